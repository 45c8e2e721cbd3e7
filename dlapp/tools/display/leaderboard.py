"""Trials of a sweep as text: the leaderboard, CSV, JSON; pure functions, so that every line can be tested exactly."""

from __future__ import annotations

import csv
import io
import json
import shlex
from collections.abc import Iterator
from typing import Any

from dlapp.sweep.results import SweepResults, TrialState, TrialView
from dlapp.sweep.trial import VARIABLE
from dlapp.tools.display.view import NOTHING, table, truncated

METRIC_VARIABLE = "DLAPP_METRIC"
_MAX_COLUMN = 24


def leaderboard_lines(results: SweepResults, most: int | None, columns: int | None = None) -> list[str]:
    """Return the number of trials in each state, and a table of the best ones.

    Args:
        most: maximum number of rows; None for all.
        columns: width of the terminal; None to not cut lines.
    """
    ranked = results.ranked()
    shown = ranked[:most]
    lines = [counts_line(results)]
    if not shown:
        return lines
    names = results.parameters
    head = ["TRIAL", *([results.metric or "METRIC", "STEP"] if results.metric else ()), *names]
    rows = [_cells(one, results) for one in shown]
    lines += table([*head, "TIME", "STATE", "WHY"], rows)
    if len(ranked) > len(shown):
        lines.append(f"{len(ranked) - len(shown)} more (--all shows them)")
    return lines if columns is None else [truncated(line, columns) for line in lines]


def counts_line(results: SweepResults) -> str:
    """Return how many trials there are, and in which state."""
    counts = ", ".join(f"{count} {state}" for state, count in results.counts().items())
    goal = f"; {results.metric}, {results.goal.value} is best" if results.goal is not None else ""
    return f"{results.total} trials: {counts}{goal}"


def best_lines(trial: TrialView) -> list[str]:
    """Return the best trial as shell assignments: its number, its metric, its parameters."""
    values = {VARIABLE: str(trial.number), METRIC_VARIABLE: repr(trial.metric), **trial.parameters}
    return [f"{name}={shlex.quote(value)}" for name, value in values.items()]


def csv_text(results: SweepResults) -> str:
    """Return all started trials as CSV, best first. Formulas are escaped: cells may be another user's text."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    own = (
        "trial",
        "state",
        _no_formula(results.metric) or "metric",
        "step",
        "seconds",
        "tries",
        "container",
        "exit_code",
        "why",
    )
    writer.writerow((*own, *results.parameters))
    for one in results.ranked():
        values = (one.number, one.state.value, one.metric, one.step, one.ran_s, one.tries, one.container, one.exit_code)
        texts = (one.why, *(one.parameters.get(name, "") for name in results.parameters))
        writer.writerow((*values, *map(_no_formula, texts)))
    return file.getvalue()


def _no_formula(text: str) -> str:
    """Return text for a spreadsheet, with ``'`` before text that it would evaluate. Numbers stay unchanged."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")  # the writer does not quote \r, which would start a row
    if not text.startswith(("=", "+", "-", "@", "\t", "\n")):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text


def json_lines(application_id: str, results: SweepResults) -> Iterator[str]:
    """Yield the lines of a JSON document: the sweep, and a line for each started trial, best first."""
    best = results.best()
    head = {
        "application_id": application_id,
        "metric": results.metric,
        "goal": None if results.goal is None else results.goal.value,
        "parameters": list(results.parameters),
        "total": results.total,
        "counts": results.counts(),
        "best": None if best is None else best.number,
    }
    ranked = results.ranked()
    yield f'{json.dumps(head)[:-1]}, "trials": ['
    for place, one in enumerate(ranked, start=1):
        yield json.dumps(trial_json(one)) + ("," if place < len(ranked) else "")
    yield "]}"


def trial_json(one: TrialView) -> dict[str, Any]:
    """Return a trial in its JSON form, without its curve."""
    return {
        "trial": one.number,
        "state": one.state.value,
        "metric": one.metric,
        "step": one.step,
        "reports": one.reports,
        "ran_s": one.ran_s,
        "tries": one.tries,
        "container": one.container,
        "exit_code": one.exit_code,
        "why": one.why,
        "parameters": one.parameters,
    }


def _cells(one: TrialView, results: SweepResults) -> list[str]:
    reported = []
    if results.metric:
        reported.append(NOTHING if one.metric is None else f"{one.metric:.6g}")
        reported.append(NOTHING if one.step is None else str(one.step))
    parameters = [truncated(one.parameters.get(name, NOTHING), _MAX_COLUMN) for name in results.parameters]
    return [str(one.number), *reported, *parameters, _time_text(one), one.state.value, one.why]


def _time_text(one: TrialView) -> str:
    if one.state is TrialState.WAITING:
        return NOTHING
    seconds = one.ran_s
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{rest:02d}"
