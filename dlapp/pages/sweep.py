"""Section of a page about a sweep: the best trials, their parameters as parallel coordinates, their learning curves.

Charts are SVG within the page. They are bounded: of many trials the best ones are drawn, and an even sample of the
rest, so that a page on ten thousand trials is as large as one on some hundreds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from html import escape
from typing import NamedTuple

from dlapp.pages.sections import section
from dlapp.pages.text import duration, rows
from dlapp.sweep.results import SweepResults, TrialView
from dlapp.sweep.trial import numbers_of

MAX_DRAWN = 300
"""Maximum number of lines of a picture: 150 kB."""
MAX_AXES = 12
MAX_ROWS = 20
_BEST = 5
"""Number of the best trials that are drawn in colour, above the others."""
_LOG_RATIO = 50.0
"""Ratio of the largest to the smallest of positive numbers from which an axis is logarithmic."""
_MAX_WORDS_SHOWN = 10
"""Maximum number of labels on an axis of words; with more only its ends have labels."""
_MAX_TEXT = 40
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 720.0, 260.0, 56.0, 30.0, 22.0


class _Axis(NamedTuple):
    """An axis of the chart of parameters.

    Args:
        place: returns a trial's position on it, 0 to 1 from below; None if it has none.
        least, most: texts at its ends.
        between: places and texts of the values between.
    """

    title: str
    place: Callable[[TrialView], float | None]
    least: str
    most: str
    between: tuple[tuple[float, str], ...] = ()


def sweep_section(results: SweepResults) -> str:
    """Return the section of a sweep; empty if no trial was started."""
    ranked = results.ranked()
    if not ranked:
        return ""
    with_metric = [one for one in ranked if one.metric is not None]
    counts = ", ".join(f"{count} {state}" for state, count in results.counts().items())
    best = results.best()
    goal = f"{results.metric}, {results.goal.value} is best" if results.goal is not None else ""
    name = "" if best is None else f"trial {best.number}: {best.metric:.6g}"
    pairs = [("trials", f"{results.total}: {counts}"), ("metric", goal), ("best", name)]
    pictures = parallel_coordinates(results, with_metric) + learning_curves(results, with_metric)
    return section("Sweep", rows(pairs) + pictures + _table(results, ranked[:MAX_ROWS]))


def parallel_coordinates(results: SweepResults, ranked: Sequence[TrialView]) -> str:
    """Return the picture of parameters against the metric: a line for each trial; empty if there is nothing to compare.

    ``ranked`` has the trials with a metric, best first.
    """
    axes = [axis for name in results.parameters if (axis := _parameter_axis(name, ranked)) is not None]
    left_out = len(axes) - (MAX_AXES - 1)
    axes = axes[: MAX_AXES - 1]
    metric = _number_axis(results.metric, [(one, one.metric) for one in ranked if one.metric is not None])
    if not axes or metric is None:
        return ""
    axes.append(metric)
    across = (_WIDTH - 2 * _LEFT) / (len(axes) - 1)
    up = _HEIGHT - _TOP - _BOTTOM
    parts = []
    for number, axis in enumerate(axes):
        x = _LEFT + number * across
        parts.append(
            f'<line class="axis" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{_HEIGHT - _BOTTOM}"/>'
            f'<text x="{x:.1f}" y="12" text-anchor="middle">{escape(_short(axis.title))}</text>'
            f'<text x="{x:.1f}" y="{_TOP - 4}" text-anchor="middle">{escape(_short(axis.most))}</text>'
            f'<text x="{x:.1f}" y="{_HEIGHT - 6}" text-anchor="middle">{escape(_short(axis.least))}</text>'
        )
        parts += [
            f'<text x="{x + 5:.1f}" y="{_TOP + (1 - place) * up + 4:.1f}">{escape(_short(text))}</text>'
            for place, text in axis.between
        ]

    def line(one: TrialView) -> str:
        places = [axis.place(one) for axis in axes]
        points = [
            f"{_LEFT + number * across:.1f},{_TOP + (1 - place) * up:.1f}"
            for number, place in enumerate(places)
            if place is not None
        ]
        return " ".join(points)

    title = f"parameters and {results.metric} of {_trials(len(ranked))}"
    note = f" ({left_out} more parameters are not drawn)" if left_out > 0 else ""
    return _figure("Parameters", title + note, "".join(parts), _lines(ranked, line))


def learning_curves(results: SweepResults, ranked: Sequence[TrialView]) -> str:
    """Return the picture of the metric over the steps; empty if no trial has reported twice.

    ``ranked`` has the trials with a metric, best first.
    """
    with_curve = [one for one in ranked if len(one.curve) > 1]
    if not with_curve:
        return ""
    steps = [step for one in with_curve for step, _ in one.curve]
    values = [value for one in with_curve for _, value in one.curve]
    first, last, least, most = min(steps), max(steps), min(values), max(values)
    across, up = _WIDTH - _LEFT - 8, _HEIGHT - _TOP - _BOTTOM
    bottom = _HEIGHT - _BOTTOM
    frame = (
        f'<line class="axis" x1="{_LEFT}" y1="{bottom}" x2="{_WIDTH}" y2="{bottom}"/>'
        f'<text x="{_LEFT - 4}" y="{_TOP + 4}" text-anchor="end">{most:.4g}</text>'
        f'<text x="{_LEFT - 4}" y="{bottom}" text-anchor="end">{least:.4g}</text>'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">{first:.6g}</text>'
        f'<text x="{_WIDTH}" y="{_HEIGHT - 6}" text-anchor="end">step {last:.6g}</text>'
    )

    def line(one: TrialView) -> str:
        return " ".join(
            f"{_LEFT + _fraction(step, first, last) * across:.1f},{bottom - _fraction(value, least, most) * up:.1f}"
            for step, value in one.curve
        )

    return _figure(
        "Learning curves", f"{results.metric} of {_trials(len(with_curve))}", frame, _lines(with_curve, line)
    )


def _figure(heading: str, title: str, frame: str, lines: str) -> str:
    texts = f"<span>{escape(heading)}</span><small>{escape(title)}</small>"
    return (
        f'<figure><h3>{texts}</h3><div class="scroll" tabindex="0" role="region" aria-label="{escape(heading)}">'
        f'<svg class="wide" viewBox="0 0 {_WIDTH:.0f} {_HEIGHT:.0f}" role="img">'
        f'<title>{escape(title)}</title><g class="soft" fill="currentColor" font-size="11">{frame}</g>{lines}</svg>'
        "</div></figure>"
    )


def _lines(ranked: Sequence[TrialView], points: Callable[[TrialView], str]) -> str:
    """Return the lines of trials, the best ones last, so that they are drawn on top."""
    best, others = ranked[:_BEST], ranked[_BEST:]
    if len(others) > MAX_DRAWN - _BEST:
        every = len(others) / (MAX_DRAWN - _BEST)
        others = [others[int(place * every)] for place in range(MAX_DRAWN - _BEST)]
    soft = "".join(_line(one, points(one), "") for one in reversed(others))
    above = "".join(_line(one, points(one), ' class="curve"') for one in reversed(best))
    return f'<g class="soft" fill="none" stroke="currentColor" stroke-opacity="0.3">{soft}</g>{above}'


def _line(one: TrialView, points: str, kind: str) -> str:
    metric = "" if one.metric is None else f": {one.metric:.6g}"
    return f'<polyline{kind} points="{points}"><title>trial {one.number}{metric}</title></polyline>'


def _parameter_axis(name: str, trials: Sequence[TrialView]) -> _Axis | None:
    """Return the axis of a parameter; None if all trials have the same value."""
    texts = {one.number: one.parameters[name] for one in trials if name in one.parameters}
    if len(set(texts.values())) < 2:
        return None
    numbers = {number: numbers_of({name: text}).get(name) for number, text in texts.items()}
    if all(value is not None for value in numbers.values()):
        known = [(one, value) for one in trials if (value := numbers.get(one.number)) is not None]
        return _number_axis(name, known)
    words = sorted(set(texts.values()))
    places = {word: place / (len(words) - 1) for place, word in enumerate(words)}
    between = tuple((places[word], word) for word in words[1:-1]) if len(words) <= _MAX_WORDS_SHOWN else ()
    return _Axis(name, lambda one: places.get(texts.get(one.number, "")), words[0], words[-1], between)


def _number_axis(title: str, known: Sequence[tuple[TrialView, float]]) -> _Axis | None:
    """Return an axis of numbers; None if all are equal."""
    values = {one.number: value for one, value in known}
    if len(set(values.values())) < 2:
        return None
    least, most = min(values.values()), max(values.values())
    scale: Callable[[float], float] = math.log if least > 0 and most / least > _LOG_RATIO else float
    low, high = scale(least), scale(most)

    def place(one: TrialView) -> float | None:
        value = values.get(one.number)
        return None if value is None else _fraction(scale(value), low, high)

    return _Axis(title, place, f"{least:.4g}", f"{most:.4g}")


def _fraction(value: float, least: float, most: float) -> float:
    """Return the position of a value between two others, 0 to 1. The difference of two may overflow a float."""
    length = most / 2 - least / 2
    return (value / 2 - least / 2) / length if length else 0.0


def _table(results: SweepResults, trials: Sequence[TrialView]) -> str:
    head = ["trial", results.metric or "metric", "step", *results.parameters[:MAX_AXES], "time", "state", "why"]
    titles = "".join(f'<th scope="col">{escape(_short(name))}</th>' for name in head)
    body = []
    for one in trials:
        cells = [
            "" if one.metric is None else f"{one.metric:.6g}",
            "" if one.step is None else str(one.step),
            *(_short(one.parameters.get(name, "")) for name in results.parameters[:MAX_AXES]),
            duration(one.ran_s),
            one.state.value,
            one.why,
        ]
        body.append(f'<tr><td class="n">{one.number}</td>{"".join(f"<td>{escape(cell)}</td>" for cell in cells)}</tr>')
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="trials"><table>'
        f"<thead><tr>{titles}</tr></thead><tbody>{''.join(body)}</tbody>"
        "</table></div>"
    )


def _trials(count: int) -> str:
    return f"{count} trial{'s' if count > 1 else ''}" + (f", {MAX_DRAWN} of them drawn" if count > MAX_DRAWN else "")


def _short(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
