"""Commands, one file each: parse, call `dlapp.client`, print. `display/` formats the output.

Only click and `common` are imported before a command runs, so that ``--help`` is fast and ``dlapp-status`` loads only
what it shows. click is imported without garbage collections, which would find nothing.
"""

from __future__ import annotations

from dlapp.system.processes.loading import loading

with loading():
    import click  # noqa: F401
