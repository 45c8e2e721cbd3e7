"""Timeline of all containers of an application, with their earlier tries: a line for each index, a bar for each phase.

Of each container it is known when it started, when it ended, and how long each phase lasted; phases come in their
order, so the bars need no other times. A gang that was restarted goes through some phases again: their time is shown in
one bar.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import NamedTuple

from dlapp.messages import Phase
from dlapp.pages.text import duration, local_time
from dlapp.report import ApplicationView, ContainerView, TryView

_WIDTH, _LABEL, _TOP = 1000.0, 130.0, 18.0
_ROW, _SMALL_ROW, _MANY = 18.0, 7.0, 60
_SHORTEST = 0.6
"""Shortest bar [units of the picture]; shorter phases are left out."""
FAILED, UNKNOWN = "failed", "unknown"
"""Kinds of bars that are no phases: a mark at the end of one that failed, and what nobody measured."""
_MARK = 3.0
SHOWN_PHASES = tuple(one for one in Phase if one is not Phase.ENDED)


class Bar(NamedTuple):
    """One bar: the CSS class of its colour, and when it begins and ends [ms since 1970]."""

    kind: str
    begin_ms: float
    end_ms: float


def bars_of(one: ContainerView | TryView, now_ms: int) -> list[Bar]:
    """Return the bars of one container, in time.

    Args:
        one: the container, or an earlier one of its index.
        now_ms: where the last bar ends if it runs [ms since 1970].
    """
    if not one.started_ms:
        return []
    end_ms = float(max(one.started_ms, now_ms if one.finished_ms is None else one.finished_ms))
    phase = one.phase if isinstance(one, ContainerView) else Phase.ENDED
    seconds = one.receipt.seconds if one.receipt is not None else {}
    bars, at = [], float(one.started_ms)
    for each in SHOWN_PHASES:
        if (lasted_ms := 1000 * seconds.get(each.value, 0.0)) > 0:
            bars.append(Bar(each.value, at, min(end_ms, at + lasted_ms)))
            at = bars[-1].end_ms
    if phase is not Phase.ENDED:
        bars.append(Bar(phase.value, at, end_ms))
    elif not bars:
        bars.append(Bar(UNKNOWN, at, end_ms))
    elif at < end_ms:
        bars[-1] = bars[-1]._replace(end_ms=end_ms)
    if one.exit_code not in (None, 0) or one.signal is not None:
        bars.append(Bar(FAILED, end_ms, end_ms))
    return bars


def timeline(view: ApplicationView, now_ms: int) -> str:
    """Return the picture as SVG; empty if no container has started.

    Args:
        view: of the application.
        now_ms: the time [ms since 1970].
    """
    lines: list[tuple[ContainerView, list[ContainerView | TryView]]] = [
        (one, [*one.earlier, one]) for one in sorted(view.containers, key=lambda one: one.index)
    ]
    starts = [each.started_ms for _, tries in lines for each in tries if each.started_ms]
    if not starts:
        return ""
    begin_ms = min(starts + ([view.submitted_ms] if view.submitted_ms else []))
    end_ms = max([begin_ms + 1, view.finished_ms or now_ms])
    row = _ROW if len(lines) <= _MANY else _SMALL_ROW
    height = _TOP + row * len(lines) + 4
    scale = (_WIDTH - _LABEL) / (end_ms - begin_ms)
    parts = [*_axis(begin_ms, end_ms, scale, height)]
    step = 1 if row is _ROW else 10
    for number, (one, tries) in enumerate(lines):
        y = _TOP + number * row
        if number % step == 0:
            name = f"{one.index} {one.role} {one.role_index}"
            parts.append(f'<text x="0" y="{y + min(row, 12):.0f}">{escape(name)}</text>')
        for each in tries:
            parts += _bars(each, one.index, y, row, begin_ms, scale, now_ms)
    title = f"Timeline of {len(lines)} containers from {local_time(begin_ms)} to {local_time(end_ms)}"
    key = "".join(f'<li><i style="background:var(--{one.value})"></i>{one.value}</li>' for one in SHOWN_PHASES)
    return (
        f'<figure><div class="scroll" tabindex="0"><svg viewBox="0 0 {_WIDTH:.0f} {height:.0f}" role="img" '
        f'style="min-width:34rem"><title>{escape(title)}</title>{"".join(parts)}</svg></div>'
        f'<ul class="key">{key}<li><i style="background:var(--{FAILED})"></i>{FAILED}</li></ul></figure>'
    )


def _bars(
    one: ContainerView | TryView, index: int, y: float, row: float, begin_ms: int, scale: float, now_ms: int
) -> Iterator[str]:
    for bar in bars_of(one, now_ms):
        x, width = _LABEL + (bar.begin_ms - begin_ms) * scale, (bar.end_ms - bar.begin_ms) * scale
        if bar.kind == FAILED:
            x, width = x - _MARK, _MARK
        if width < _SHORTEST:
            continue
        lasted = f" {duration((bar.end_ms - bar.begin_ms) / 1000)}" if bar.kind != FAILED else ""
        text = f"{index} try {one.attempt}: {bar.kind}{lasted}"
        yield (
            f'<rect x="{x:.1f}" y="{y + 1:.0f}" width="{width:.1f}" height="{row - 2:.0f}" '
            f'style="fill:var(--{bar.kind})"><title>{escape(text)}</title></rect>'
        )


def _axis(begin_ms: int, end_ms: int, scale: float, height: float) -> Iterator[str]:
    for part in range(5):
        at_ms = (end_ms - begin_ms) * part / 4
        x = _LABEL + at_ms * scale
        anchor = "start" if part == 0 else "end" if part == 4 else "middle"
        yield f'<line class="axis" x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{height:.0f}"/>'
        yield f'<text x="{x:.1f}" y="11" text-anchor="{anchor}">{escape(duration(at_ms / 1000))}</text>'
