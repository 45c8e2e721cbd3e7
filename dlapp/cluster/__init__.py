"""Engines, which run applications: one interface with two sides (`engine`), an engine each in `local` and `yarn`;
`view_rules` has what both make of an ApplicationMaster's view.

The embedded engine's runner is in this package, and stands between a submission and its start: nothing is imported here
that it does not need. The interface takes three times as long to import as the runner itself.
"""

from __future__ import annotations

LOG_NAMES = ("stdout", "stderr", "dlapp.log", "dlapp.times")
"""The logs of a container: of its payload, of its task, and the times of the payload's
(`dlapp.system.logs.log_times`)."""

ENDED = ("FINISHED", "FAILED", "KILLED")
"""States of applications that have ended (`dlapp.values.report.State`)."""

NOT_ENDED = "only what has ended can be removed (dlapp-softkill ends it and keeps its output, dlapp-kill what is there)"
