"""A whole page: the ApplicationMaster's while the application runs, or the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, NamedTuple

from dlapp.pages import sections
from dlapp.pages.containers import containers, is_link, shown_containers
from dlapp.pages.curves import Curve, figures
from dlapp.pages.style import STYLE
from dlapp.pages.text import local_time, rows
from dlapp.pages.timeline import timeline
from dlapp.system.text import counted
from dlapp.values.report import ApplicationView

if TYPE_CHECKING:
    from dlapp.sweep.results import SweepResults

REFRESH_S = 5
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Policy by which a browser runs no script and fetches nothing, even if text is inserted into a page as markup."""
NO_REFRESH = "still=1"
"""Part of a page's query that stops the automatic refresh. YARN's proxy refuses a name without a value."""


class LogEnd(NamedTuple):
    """Last lines of one stream, ``stdout`` or ``stderr``, of the container with this CONTAINER_INDEX."""

    container: int
    stream: str
    text: str


class Extras(NamedTuple):
    """Parts of a report that the view does not have.

    Args:
        curves: by the name of their subject; those without a name are shown at once, the others on selection.
        length_s: the length of the time axis of the curves [s].
        asks: names and texts of what was requested.
        facts: names and texts: versions, digests.
        properties: the resolved properties file.
        logs: ends of logs.
        notes: what could not be read, one line each.
        sweep: the trials of a sweep; None if it has no sweep.
    """

    curves: Mapping[str, Sequence[Curve]] = {}
    length_s: float = 0.0
    asks: Sequence[tuple[str, str]] = ()
    facts: Sequence[tuple[str, str]] = ()
    properties: str = ""
    logs: Sequence[LogEnd] = ()
    notes: Sequence[str] = ()
    sweep: SweepResults | None = None


NO_EXTRAS = Extras()


def page(view: ApplicationView, now_ms: int, extras: Extras = NO_EXTRAS, *, refreshes: bool | None = None) -> str:
    """Return the page as HTML.

    Args:
        view: the view of the application.
        now_ms: the time [ms since 1970].
        extras: what else is shown.
        refreshes: whether a browser reloads an ApplicationMaster's page every `REFRESH_S` seconds; None for a report.
    """
    shown = shown_containers(view)
    with_ends = {one.container for one in extras.logs if one.text}
    partly = f"{len(shown)} of {len(view.containers)} containers" if len(shown) < len(view.containers) else ""
    body = [
        refresh_line(refreshes, "", now_ms) if refreshes is not None else "",
        "<main>",
        sections.head(view, now_ms),
        "".join(f'<p class="note">{escape(one)}</p>' for one in extras.notes),
        _links(view),
        sections.cause(view),
        sections.receipt(view),
        _sweep(extras),
        sections.section("Timeline", timeline(view, shown, now_ms), partly),
        _curves(extras),
        containers(view, shown, now_ms, with_ends=with_ends, live=refreshes is not None),
        sections.outputs(view),
        sections.section("Request", rows(extras.asks)),
        sections.section("Versions", rows(extras.facts)),
        sections.section("Properties", f"<pre>{escape(extras.properties)}</pre>" if extras.properties else ""),
        _logs(view, extras.logs),
        "</main>",
        f'<footer class="soft">written {escape(local_time(now_ms))}</footer>' if refreshes is None else "",
    ]
    title = f"{view.appname} {view.application_id}".strip()
    return document(title, "".join(body), refreshes=bool(refreshes))


def document(title: str, body: str, *, refreshes: bool) -> str:
    """Return a whole document: the title is plain text, the body HTML. With ``refreshes`` a browser reloads it every
    `REFRESH_S` seconds.
    """
    names = {"viewport": "width=device-width,initial-scale=1", "color-scheme": "light dark", "referrer": "no-referrer"}
    metas = "".join(f'<meta name="{name}" content="{content}">' for name, content in names.items())
    metas += f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
    metas += f'<meta http-equiv="refresh" content="{REFRESH_S}">' if refreshes else ""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">{metas}<title>{escape(title)}</title>'
        f"<style>{STYLE}</style></head><body>{body}</body></html>\n"
    )


def refresh_line(refreshes: bool, query: str, now_ms: int, links: str = "") -> str:
    """Return the line above an ApplicationMaster's page with its age, and the link that stops the refresh.

    Args:
        refreshes: as of `document`.
        query: the query of the page, without `NO_REFRESH`.
        now_ms: the time [ms since 1970].
        links: HTML at its beginning.
    """
    if refreshes:
        how, link, word = f"reloads every {REFRESH_S} s", "&amp;".join(filter(None, (query, NO_REFRESH))), "pause"
    else:
        how, link, word = "paused", query, f"reload every {REFRESH_S} s"
    return (
        f"<nav>{links or '<span></span>'}<span>{escape(local_time(now_ms))}, {how} · "
        f'<a href="?{link}">{word}</a></span></nav>'
    )


def _links(view: ApplicationView) -> str:
    states = {None: "", True: ", ready", False: ", not ready"}
    items = "".join(
        f'<li>{escape(one.name)}: <a href="{escape(one.url)}">{escape(one.url)}</a>{states[one.ready]}</li>'
        if is_link(one.url)
        else f"<li>{escape(one.name)}: {escape(one.problem or one.url)}</li>"
        for one in view.links
    )
    return sections.section("Services", f"<ul>{items}</ul>" if items else "")


def _sweep(extras: Extras) -> str:
    if extras.sweep is None:
        return ""
    from dlapp.pages.sweep import sweep_section  # few applications need it

    return sweep_section(extras.sweep)


def _curves(extras: Extras) -> str:
    shown = [(name, figures(curves, extras.length_s)) for name, curves in extras.curves.items()]
    together = "".join(text for name, text in shown if not name)
    each = [f"<details><summary>{escape(name)}</summary>{text}</details>" for name, text in shown if name and text]
    if each:
        together += (
            f"<details><summary>{counted(len(each), 'containers')}, one by one</summary>{''.join(each)}</details>"
        )
    return sections.section("Use of resources", together)


def _logs(view: ApplicationView, logs: Sequence[LogEnd]) -> str:
    parts, seen = [], set[int]()
    failed = view.diagnosis.index if view.diagnosis is not None else None
    for one in logs:
        if one.text:
            place = "" if one.container in seen else f' id="log-{one.container}"'
            seen.add(one.container)
            is_open = " open" if one.container == failed and one.stream == "stderr" else ""
            parts.append(
                f"<details{is_open}><summary>container {one.container}, {escape(one.stream)}</summary>"
                f"<pre{place}>{escape(one.text)}</pre></details>"
            )
    return sections.section("Ends of the logs", f'<div class="ends">{"".join(parts)}</div>' if parts else "")
