"""Axes of charts: positions of the ticks, at round values, and their labels."""

from __future__ import annotations

_STEPS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400)
_MAX_MARKS = 5
_FACTORS = (1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)


def time_marks(length_s: float) -> list[float]:
    """Return the tick positions of a time axis, from 0 [s]: at most `_MAX_MARKS` + 1, at round times."""
    step = next((one for one in _STEPS_S if length_s / one <= _MAX_MARKS), 0.0)
    if not step:
        days = round_up(length_s / 86_400 / _MAX_MARKS)
        step = max(1.0, days) * 86_400
    if length_s < _STEPS_S[0] * 2:
        return [0.0, length_s]
    return [step * number for number in range(int(length_s / step) + 1)]


def mark_text(seconds: float) -> str:
    """Return a time of an axis as short as it can be: ``0``, ``30 s``, ``1 min 30 s``, ``2 h``, ``1 d 12 h``."""
    if seconds < 1:
        return f"{seconds:.1f} s" if seconds else "0"
    parts, left = [], round(seconds)
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts)


def time_axis_html(length_s: float) -> str:
    """Return the labels below or above a time axis, positioned like the chart."""
    parts = []
    for at_s in time_marks(length_s):
        share = 100 * at_s / length_s
        last = ' class="last"' if share > 92 else ""
        parts.append(f'<span{last} style="left:{share:.4g}%">{mark_text(at_s)}</span>')
    return f'<div class="times" aria-hidden="true">{"".join(parts)}</div>'


def round_up(value: float) -> float:
    """Return the next round number that is at least ``value``, which is above 0."""
    size = 1.0
    while size * 10 <= value:
        size *= 10
    while size > value:
        size /= 10
    return next((factor * size for factor in _FACTORS if factor * size >= value * (1 - 1e-9)), 10 * size)


def number(value: float) -> str:
    """Return a value with three digits: ``1234``, ``12.3``, ``0.00123``."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"
