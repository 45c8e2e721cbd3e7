"""Report on an application: its page, with all recorded data. One function serves every reader, so the file that the
ApplicationMaster writes at the end has the same content as dlapp-report.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from dlapp.errors import Denied, DlappError, Unreachable
from dlapp.pages.facts import asks, facts, without_passwords
from dlapp.pages.page import Extras, LogEnd, page
from dlapp.pages.usage_curves import time_axis, usage_curves
from dlapp.values.report import ApplicationView, ContainerView
from dlapp.values.spec import Submission
from dlapp.values.usage import UsageHistory

if TYPE_CHECKING:
    from dlapp.sweep.results import SweepResults

TAIL_LINES, TAIL_BYTES, MAX_LOGS = 30, 4 << 10, 16
"""Limits of the last lines of each stream, and the maximum number of containers; the failed ones come first."""
MAX_UNANSWERED = 3
"""Number of unresponsive servers after which no further one is tried."""
_STREAMS = ("stderr", "stdout")


class Sources(NamedTuple):
    """Sources of the parts that a view does not have. Unreadable ones raise DlappError or OSError.

    Args:
        submission: what was submitted.
        usage: resource usage of the containers over time.
        sweep: the trials of a sweep; not called for another application.
        log_tail: the last `TAIL_LINES` lines of a stream of a container, within `TAIL_BYTES`; empty: it has none.
    """

    submission: Callable[[], Submission]
    usage: Callable[[], UsageHistory]
    log_tail: Callable[[ContainerView, str], bytes]
    sweep: Callable[[], SweepResults]


def report(view: ApplicationView, now_ms: int, sources: Sources) -> str:
    """Return the page of an application with all recorded data. It names what cannot be read."""
    notes: list[str] = []
    begin_ms, end_ms = time_axis(view, now_ms)
    submission, curves = None, {}
    try:
        submission = sources.submission()
    except Denied:
        pass  # another user's, whose properties are not shown
    except (DlappError, OSError) as error:
        notes.append(f"what was submitted cannot be read: {error}")
    try:
        curves = usage_curves(sources.usage().containers, begin_ms, end_ms)
    except (DlappError, OSError) as error:
        notes.append(str(error))
    results = None
    if submission is not None and submission.spec.sweep is not None:
        try:
            results = sources.sweep()
        except (DlappError, OSError) as error:
            notes.append(f"the trials cannot be read: {error}")
    extras = Extras(
        curves=curves,
        length_s=(end_ms - begin_ms) / 1000,
        facts=facts(view, submission),
        asks=[] if submission is None else asks(submission.spec),
        properties="" if submission is None else without_passwords(submission.properties),
        logs=_log_ends(view, sources, notes),
        notes=notes,
        sweep=results,
    )
    return page(view, now_ms, extras)


def _log_ends(view: ApplicationView, sources: Sources, notes: list[str]) -> list[LogEnd]:
    order = sorted(view.containers, key=lambda one: (one.exit_code == 0 and one.signal is None, one.index))
    ends, unanswered = [], 0
    for one in order[:MAX_LOGS]:
        for stream in _STREAMS:
            try:
                data = sources.log_tail(one, stream)
            except (DlappError, OSError) as error:
                notes.append(f"{stream} of container {one.index} cannot be read: {error}")
                unanswered += isinstance(error, Unreachable)
                break
            ends.append(LogEnd(one.index, stream, plain_text(data)))
        if unanswered == MAX_UNANSWERED:
            notes.append("no other logs were asked for, because each answer is waited for")
            break
    if (left := len(order) - MAX_LOGS) > 0:
        notes.append(f"the logs of {left} more containers are not shown: dlapp-logs has them")
    return ends


def plain_text(data: bytes) -> str:
    """Return text without control characters, which HTML does not allow and terminals obey."""
    return "".join(one for one in data.decode(errors="replace") if one in "\n\t" or one.isprintable())
