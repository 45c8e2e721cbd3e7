"""Report on one application: what the engine and its history know of it, as one page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.errors import DlappError
from dlapp.pages.page import Extras, LogEnd, page
from dlapp.pages.usage_curves import time_axis, usage_curves
from dlapp.report import ApplicationView

if TYPE_CHECKING:
    from dlapp.client import Client

TAIL_LINES, MOST_LOGS = 30, 16
"""Lines of each stream, and of how many containers: those that failed come first."""
_STREAMS = ("stderr", "stdout")


def report_of(client: Client, view: ApplicationView, now_ms: int) -> str:
    """Return the page of an application, with the ends of its logs. What cannot be read is named in it.

    Args:
        client: reads the logs.
        view: of the application.
        now_ms: the time [ms since 1970].
    """
    logs, notes = _log_ends(client, view)
    begin_ms, end_ms = time_axis(view, now_ms)
    try:
        curves = usage_curves(client.usage(view.application_id).containers, begin_ms, end_ms)
    except DlappError as error:
        curves = {}
        notes.append(str(error))
    length_s = (end_ms - begin_ms) / 1000
    return page(view, now_ms, Extras(curves=curves, length_s=length_s, facts=_facts(view), logs=logs, notes=notes))


def _log_ends(client: Client, view: ApplicationView) -> tuple[list[LogEnd], list[str]]:
    order = sorted(view.containers, key=lambda one: (one.exit_code == 0 and one.signal is None, one.index))
    ends, notes = [], []
    for one in order[:MOST_LOGS]:
        for stream in _STREAMS:
            try:
                data = client.log_tail(view.application_id, one.index, stream=stream, lines=TAIL_LINES)
            except (DlappError, OSError) as error:
                notes.append(f"{stream} of container {one.index} cannot be read: {error}")
                break
            ends.append(LogEnd(one.index, stream, _plain(data)))
    if left := len(order) - MOST_LOGS:
        notes += [f"the logs of {left} more containers are not shown: dlapp-logs has them"] if left > 0 else []
    return ends, notes


def _plain(data: bytes) -> str:
    """Return text without control characters, which HTML does not allow and terminals obey."""
    return "".join(one for one in data.decode(errors="replace") if one in "\n\t" or one.isprintable())


def _facts(view: ApplicationView) -> list[tuple[str, str]]:
    from dlapp import __version__

    images = sorted({one.image for one in view.containers if one.image})
    return [("dlapp that wrote this", __version__), ("images", ", ".join(images)), ("network", view.network)]
