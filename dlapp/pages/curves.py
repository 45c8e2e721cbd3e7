"""Curves of the containers' resource usage over time, as SVG: a line for the mean, and an area from minimum to
maximum.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import groupby
from typing import NamedTuple

from dlapp.pages.axes import number, round_up, time_axis_html, time_marks

_WIDTH, _HEIGHT = 1000, 200
"""Units of a picture, which a browser scales; with them a point has few digits."""


class CurvePoint(NamedTuple):
    """Values of one interval; a mean of None is unknown, and a gap in the line.

    Args:
        at_s: the middle of the interval, since the beginning of the time axis [s].
        mean, least, most: of the values in it.
    """

    at_s: float
    mean: float | None
    least: float | None = None
    most: float | None = None


class Curve(NamedTuple):
    """One curve.

    Args:
        title: what is shown.
        unit: the unit of the values: ``GiB``, ``%``; empty if they have none.
        points: in time.
        full: upper end of the axis if no value exceeds it; None for a round number above the largest value.
    """

    title: str
    unit: str
    points: Sequence[CurvePoint]
    full: float | None = None


def figures(curves: Sequence[Curve], length_s: float) -> str:
    """Return all curves that have a point, side by side, with time axes of this length [s]."""
    shown = "".join(_figure(one, max(length_s, 1e-3)) for one in curves if any(p.mean is not None for p in one.points))
    return f'<div class="curves">{shown}</div>' if shown else ""


def _figure(curve: Curve, length_s: float) -> str:
    means = [p.mean for p in curve.points if p.mean is not None]
    highest = max([p.most for p in curve.points if p.most is not None] + means)
    lowest = min([p.least for p in curve.points if p.least is not None] + means)
    top = curve.full if curve.full is not None and highest <= curve.full else round_up(highest) if highest > 0 else 1.0
    bottom = -round_up(-lowest) if lowest < 0 else 0.0
    across, up = _WIDTH / length_s, _HEIGHT / (top - bottom)

    def place(at_s: float, value: float) -> str:
        return f"{min(at_s, length_s) * across:.0f},{_HEIGHT - (value - bottom) * up:.0f}"

    across_marks = "".join(f"M{at_s * across:.0f},0v{_HEIGHT}" for at_s in time_marks(length_s))
    parts = [f'<path class="axis" d="{across_marks}M0,0h{_WIDTH}M0,{_HEIGHT // 2}h{_WIDTH}M0,{_HEIGHT}h{_WIDTH}"/>']
    for run in _runs(curve.points):
        upper = [place(p.at_s, p.most) for p in run if p.most is not None]
        lower = [place(p.at_s, p.least) for p in reversed(run) if p.least is not None]
        if len(upper) > 1 and upper != lower[::-1]:
            parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        line = [place(p.at_s, p.mean) for p in run if p.mean is not None]
        if len(line) == 1:  # a line of one point has no length
            x, _, y = line[0].partition(",")
            line.append(f"{int(x) + 4},{y}")
        parts.append(f'<polyline class="curve" points="{" ".join(line)}"/>')
    mean, most = (_amount(value, curve.unit) for value in (sum(means) / len(means), highest))
    scale = [(0, top), *([] if bottom else [(50, top / 2)]), (100, bottom)]
    marks = "".join(f'<span style="top:{at}%">{number(value)}</span>' for at, value in scale)
    return (
        f"<figure><h3>{escape(curve.title)}<small>mean {escape(mean)}, max {escape(most)}</small></h3>"
        f'<div class="plot" aria-hidden="true">{marks}<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'preserveAspectRatio="none">{"".join(parts)}</svg></div>{time_axis_html(length_s)}</figure>'
    )


def _amount(value: float, unit: str) -> str:
    return f"{number(value)} {unit}".rstrip()


def _runs(points: Sequence[CurvePoint]) -> list[list[CurvePoint]]:
    """Return the runs of points whose mean is known."""
    return [list(run) for is_known, run in groupby(points, lambda point: point.mean is not None) if is_known]
