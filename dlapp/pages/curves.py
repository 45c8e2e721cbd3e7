"""Curves of what containers used over time, as SVG: a line for the mean, and around it the least and the most."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dlapp.pages.text import duration

_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 320.0, 110.0, 44.0, 8.0, 16.0


class CurvePoint(NamedTuple):
    """Values of one interval; a mean of None: not known, and the line has a gap there.

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
        unit: of the values: ``GiB``, ``%``; empty: they have none.
        points: in time.
        full: the upper end of the axis if nothing is above it; None: the largest value is.
    """

    title: str
    unit: str
    points: Sequence[CurvePoint]
    full: float | None = None


def figures(curves: Sequence[Curve], length_s: float) -> str:
    """Return all curves that have a point, side by side.

    Args:
        curves: to draw.
        length_s: of the time axis [s].
    """
    shown = "".join(_figure(one, max(length_s, 1e-3)) for one in curves if any(p.mean is not None for p in one.points))
    return f'<div class="curves">{shown}</div>' if shown else ""


def _figure(curve: Curve, length_s: float) -> str:
    top = max([curve.full or 0.0, *(p.most if p.most is not None else p.mean or 0.0 for p in curve.points)]) or 1.0
    across, up = (_WIDTH - _LEFT) / length_s, (_HEIGHT - _TOP - _BOTTOM) / top
    bottom = _HEIGHT - _BOTTOM

    def place(at_s: float, value: float) -> str:
        return f"{_LEFT + min(at_s, length_s) * across:.1f},{bottom - value * up:.1f}"

    parts = []
    for run in _runs(curve.points):
        upper = [place(p.at_s, p.most) for p in run if p.most is not None]
        lower = [place(p.at_s, p.least) for p in reversed(run) if p.least is not None]
        if len(upper) > 1 and upper != lower[::-1]:
            parts.append(f'<polygon class="band" points="{" ".join(upper + lower)}"/>')
        line = [place(p.at_s, p.mean) for p in run if p.mean is not None]
        if len(line) == 1:  # a line of one point has no length
            x, _, y = line[0].partition(",")
            line.append(f"{float(x) + 1:.1f},{y}")
        parts.append(f'<polyline class="curve" points="{" ".join(line)}"/>')
    means = [p.mean for p in curve.points if p.mean is not None]
    most = max([p.most for p in curve.points if p.most is not None] or means)
    mean_text, most_text = (f"{_number(value)} {curve.unit}".rstrip() for value in (sum(means) / len(means), most))
    text = f"{curve.title}: mean {mean_text}, most {most_text}"
    title = f"{curve.title} [{curve.unit}]" if curve.unit else curve.title
    return (
        f'<figure><h3>{escape(title)}</h3><svg viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img">'
        f"<title>{escape(text)}</title>"
        f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH}" y2="{bottom}"/>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 8}" text-anchor="end">{_number(top)}</text>'
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">0</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 3}">0</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 3}" text-anchor="end">{escape(duration(length_s))}</text>'
        f"{''.join(parts)}</svg></figure>"
    )


def _runs(points: Sequence[CurvePoint]) -> list[list[CurvePoint]]:
    """Return the runs of points whose mean is known."""
    runs: list[list[CurvePoint]] = [[]]
    for point in points:
        if point.mean is None:
            runs.append([])
        else:
            runs[-1].append(point)
    return [run for run in runs if run]


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
