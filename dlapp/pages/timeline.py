"""Timeline of all containers of an application, with their earlier tries: a line for each index, a bar for each phase.

For each container, its start, its end, and the duration of each phase are known; phases have a fixed order, so the bars
need no other times. A restarted gang passes through some phases again: their time is shown in one bar.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import NamedTuple

from dlapp.pages.axes import time_axis_html, time_marks
from dlapp.pages.text import duration, local_time
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, ContainerView, TryView
from dlapp.values.spec import DEFAULT_ROLE

_WIDTH = 10_000
"""Width of the picture in its own units, which a browser scales."""
_SHORTEST = 6
"""Minimum length of a bar [units of the picture]; shorter phases are omitted."""
_ROWS_PX = ((24, 18), (60, 14), (200, 8), (400, 4))
"""Height of a line by the maximum number of containers; with more it is `_MIN_ROW_PX`."""
_MIN_ROW_PX = 2
_NAME_PX = 14
"""Minimum distance of two names."""
_WITH_TITLES = 200
"""Maximum number of containers whose bars have tooltips: with more, these would multiply the size of the page."""
FAILED, UNKNOWN = "failed", "unknown"
"""Kinds of bars that are not phases: a mark at the end of a failed one, and times without data."""
_MARK = 50
SHOWN_PHASES = tuple(one for one in Phase if one is not Phase.ENDED)
_KINDS = (*(one.value for one in SHOWN_PHASES), UNKNOWN, FAILED)
_LABELS = {UNKNOWN: "not known"}


class Bar(NamedTuple):
    """One bar: the CSS class of its colour, and when it begins and ends [ms since 1970]."""

    kind: str
    begin_ms: float
    end_ms: float

    @property
    def is_failure(self) -> bool:
        """Return whether it marks the moment of a failure."""
        return self.kind == FAILED


def bars_of(one: ContainerView | TryView, now_ms: int) -> list[Bar]:
    """Return the bars of one container, in order of time; the last one of a container that runs ends now."""
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


def container_name(one: ContainerView) -> str:
    """Return the name of a container in a list: ``3`` or, among roles, ``3 trainer 1``."""
    is_alone = one.role == DEFAULT_ROLE and one.index == one.role_index
    return str(one.index) if is_alone else f"{one.index} {one.role} {one.role_index}"


def timeline(view: ApplicationView, containers: Sequence[ContainerView], now_ms: int) -> str:
    """Return the chart: a line for each container, in this order; empty if none has started."""
    tries: list[list[ContainerView | TryView]] = [[*one.earlier, one] for one in containers]
    starts = [each.started_ms for line in tries for each in line if each.started_ms]
    if not starts:
        return ""
    begin_ms = min(starts + ([view.submitted_ms] if view.submitted_ms else []))
    end_ms = max([begin_ms + 1, view.finished_ms or now_ms])
    row = next((height for most, height in _ROWS_PX if len(containers) <= most), _MIN_ROW_PX)
    height, length_s = row * len(containers), (end_ms - begin_ms) / 1000
    scale, has_titles = _WIDTH / (end_ms - begin_ms), len(containers) <= _WITH_TITLES
    gap = 3 if row >= 14 else 1 if row >= 4 else 0
    parts = [_tracks(len(containers), row, gap)] if gap == 3 else []
    marks = "".join(f"M{at_s * 1000 * scale:.0f},0v{height}" for at_s in time_marks(length_s))
    parts.append(f'<path class="axis" d="{marks}"/>')
    paths, shown = dict[str, list[str]](), set[str]()
    for number, (one, line) in enumerate(zip(containers, tries, strict=True)):
        for each in line:
            for x, width, bar in _placed(bars_of(each, now_ms), begin_ms, scale):
                shown.add(bar.kind)
                y, high = number * row, max(1, row - gap)
                if has_titles:
                    title = f"<title>{escape(_title(bar, one.index, each.attempt))}</title>"
                    parts.append(
                        f'<rect class="{bar.kind}" x="{x}" y="{y}" width="{width}" height="{high}">{title}</rect>'
                    )
                else:
                    paths.setdefault(bar.kind, []).append(f"M{x},{y}h{width}v{high}h-{width}z")
    parts += [f'<path class="{kind}" d="{"".join(found)}"/>' for kind, found in paths.items()]
    names = _names(containers, row)
    widest = max(map(len, names.values()), default=0)
    marks = "".join(f'<span style="top:{top}px">{escape(name)}</span>' for top, name in names.items())
    title = f"Timeline of {len(containers)} containers from {local_time(begin_ms)} to {local_time(end_ms)}"
    key = "".join(f'<li><i class="{kind}"></i>{_LABELS.get(kind, kind)}</li>' for kind in _KINDS if kind in shown)
    return (
        f'<figure><div class="gantt">{time_axis_html(length_s)}'
        f'<div class="names" style="--w:{min(widest, 24) * 0.66:.1f}em" aria-hidden="true">{marks}</div>'
        f'<svg style="height:{height}px" viewBox="0 0 {_WIDTH} {height}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg></div><ul class="key">{key}</ul></figure>'
    )


def _tracks(count: int, row: int, gap: int) -> str:
    lines = "".join(f"M0,{number * row}h{_WIDTH}v{row - gap}h-{_WIDTH}z" for number in range(count))
    return f'<path class="track" d="{lines}"/>'


def _placed(bars: Sequence[Bar], begin_ms: int, scale: float) -> Iterator[tuple[int, int, Bar]]:
    """Yield left and width of the visible bars [units of the chart]."""
    for bar in bars:
        x, end = round((bar.begin_ms - begin_ms) * scale), round((bar.end_ms - begin_ms) * scale)
        if bar.is_failure:
            x = max(0, end - _MARK)
        if end - x >= _SHORTEST:
            yield x, end - x, bar


def _title(bar: Bar, index: int, attempt: int) -> str:
    lasted = "" if bar.is_failure else f" {duration((bar.end_ms - bar.begin_ms) / 1000)}"
    return f"{index} try {attempt}: {bar.kind}{lasted}"


def _names(containers: Sequence[ContainerView], row: int) -> dict[int, str]:
    """Return as many line names as fit, by the middle of the line [pixels from the top]."""
    step = next((one for one in (1, 5, 10, 20, 50) if one * row >= _NAME_PX), 100)
    return {number * row + row // 2: container_name(one) for number, one in enumerate(containers) if number % step == 0}
