"""Report on one application: the data of the engine and its history, as one page."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.pages.report import TAIL_LINES, Sources, report
from dlapp.values.report import ApplicationView

if TYPE_CHECKING:
    from dlapp.client import Client


def report_of(client: Client, view: ApplicationView, now_ms: int) -> str:
    """Return the report of an application, with the ends of its logs. It names what cannot be read."""
    application_id = view.application_id

    log_tail = client.log_tails(view)
    sources = Sources(
        submission=lambda: client.submission(application_id),
        usage=lambda: client.usage(application_id),
        log_tail=lambda one, stream: log_tail(one.index, stream, TAIL_LINES),
        sweep=lambda: client.sweep(application_id).results(),
    )
    return report(view, now_ms, sources)
