"""A whole page: the ApplicationMaster's while the application runs, or the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from dlapp.pages import sections
from dlapp.pages.curves import Curve, figures
from dlapp.pages.style import STYLE
from dlapp.pages.text import local_time, rows
from dlapp.pages.timeline import timeline
from dlapp.report import ApplicationView

REFRESH_S = 2


class LogEnd(NamedTuple):
    """Last lines of one stream of a container.

    Args:
        container: CONTAINER_INDEX.
        stream: ``stdout`` or ``stderr``.
        text: what is left of it.
    """

    container: int
    stream: str
    text: str


class Extras(NamedTuple):
    """Parts of a report that the view does not have.

    Args:
        curves: by the name of what they are of; those without a name are shown at once, the others when it is chosen.
        length_s: of the time axis of the curves [s].
        facts: names and texts: versions, digests.
        properties: the resolved properties file.
        logs: ends of logs.
        notes: what could not be read, a line each.
    """

    curves: Mapping[str, Sequence[Curve]] = {}
    length_s: float = 0.0
    facts: Sequence[tuple[str, str]] = ()
    properties: str = ""
    logs: Sequence[LogEnd] = ()
    notes: Sequence[str] = ()


NOTHING_MORE = Extras()


def page(view: ApplicationView, now_ms: int, extras: Extras = NOTHING_MORE, *, live: bool = False) -> str:
    """Return the page as HTML.

    Args:
        view: of the application.
        now_ms: the time [ms since 1970].
        extras: what else is shown.
        live: a browser loads it again every `REFRESH_S` seconds, and its links to logs lead to the nodes.
    """
    refresh = f'<meta http-equiv="refresh" content="{REFRESH_S}">' if live else ""
    gantt = timeline(view, now_ms)
    body = [
        sections.head(view, now_ms),
        "".join(f'<p class="bad">{escape(one)}</p>' for one in extras.notes),
        sections.cause(view),
        sections.receipt(view),
        f"<section><h2>Timeline</h2>{gantt}</section>" if gantt else "",
        _curves(extras),
        sections.containers(view, links=live),
        sections.outputs(view),
        f"<section><h2>Versions</h2>{rows(list(extras.facts))}</section>" if extras.facts else "",
        f"<section><h2>Properties</h2><pre>{escape(extras.properties)}</pre></section>" if extras.properties else "",
        _logs(extras.logs),
    ]
    title = f"{view.appname} {view.application_id}".strip()
    written = "" if live else f'<footer><p class="soft">written {escape(local_time(now_ms))}</p></footer>'
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{refresh}'
        '<meta name="viewport" content="width=device-width,initial-scale=1"><meta name="color-scheme" '
        f'content="light dark"><title>{escape(title)}</title><style>{STYLE}</style></head>'
        f"<body><main>{''.join(body)}</main>{written}</body></html>\n"
    )


def _curves(extras: Extras) -> str:
    shown = [(name, figures(curves, extras.length_s)) for name, curves in extras.curves.items()]
    parts = [
        f"<details><summary>{escape(name)}</summary>{text}</details>" if name else text for name, text in shown if text
    ]
    return f"<section><h2>Use of resources</h2>{''.join(parts)}</section>" if parts else ""


def _logs(logs: Sequence[LogEnd]) -> str:
    parts = [
        f"<details><summary>container {one.container}, {escape(one.stream)}</summary>"
        f"<pre>{escape(one.text)}</pre></details>"
        for one in logs
        if one.text
    ]
    return f"<section><h2>Ends of the logs</h2>{''.join(parts)}</section>" if parts else ""
