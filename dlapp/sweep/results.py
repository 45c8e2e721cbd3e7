"""Results of a sweep: the state of each trial, the leaderboard, and their file.

The file is JSON, one value per line: the first is the sweep, then each started trial, sorted by number. A trial is an
array, because ten thousand of them are written every few seconds and read by a command in a fraction of a second; its
curve is text, ``1 0.5 2 0.75``, which is parsed only to show curves. The format is extended only by adding: elements at
the end of an array, keys of the first object.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

from dlapp.sweep.spec import MAX_PARAMETERS, MAX_TRIALS, Goal, Sampler, SweepSpec
from dlapp.sweep.trial import trial_of
from dlapp.value import Value, field

MAX_CURVE_POINTS = 32
"""Points that are kept of a trial's curve: 10,000 trials have 5 MB of them."""
_PRUNED = ",false,true]"
"""End of the line of a trial that was stopped early, until its output is committed by itself."""
_MAX_WHY = 500
"""Maximum length of a reason in the file: with long file names a program can cause thousands of characters each
time."""


class TrialState(Enum):
    """State of a trial."""

    WAITING = "waiting"
    """Trial that runs for the first time, or again, when there is room for it."""
    RUNNING = "running"
    DONE = "done"
    """Trial whose program ended with exit code 0."""
    STOPPED = "stopped"
    """Trial that was ended early on purpose; its output counts."""
    FAILED = "failed"


WITH_RESULT = (TrialState.DONE, TrialState.STOPPED)


class TrialView(Value, kw_only=True):
    """State or result of one trial.

    Args:
        tries: number of its starts.
        metric: the last reported value; None if it reported none.
        step: the step of that report.
        reports: number of reports of the metric, in its last run.
        ran_s: run time of its program, in its last run [s].
        container: CONTAINER_INDEX of the container that runs it, or ran it last; None if none did.
        container_id: the id of that container; empty if unknown.
        is_committed: whether its output was committed separately, and is in place.
        is_pruned: whether it was stopped early, because others are better.
        exit_code: the exit code of its program; None if it runs, or was ended by a signal.
        why: why it was stopped or failed, or has no metric; empty otherwise.
        curve: reported steps and values, at most `MAX_CURVE_POINTS`.
    """

    number: int
    state: TrialState
    parameters: dict[str, str] = field(default_factory=dict)
    tries: int = 0
    metric: float | None = None
    step: int | None = None
    reports: int = 0
    ran_s: float = 0.0
    container: int | None = None
    exit_code: int | None = None
    why: str = ""
    curve: tuple[tuple[float, float], ...] = ()
    container_id: str = ""
    is_committed: bool = False
    is_pruned: bool = False


class SweepResults(Value, kw_only=True):
    """State or result of a sweep with its trials.

    Args:
        total: number of trials, including those that were never started and are not in ``trials``.
        parameters: their names, in the order of the properties file.
        metric: name of the metric; empty if trials are not compared.
        goal: whether greater or smaller is better; None if there is no metric.
        trials: the started ones, by number.
    """

    total: int
    parameters: tuple[str, ...] = ()
    metric: str = ""
    goal: Goal | None = None
    trials: tuple[TrialView, ...] = ()

    def ranked(self) -> list[TrialView]:
        """Return the trials, best first: those with a metric, then those without, and last those that failed. Trials
        with the same metric are in the order of their numbers."""
        sign = 1.0 if self.goal is Goal.MIN else -1.0

        def key(one: TrialView) -> tuple[int, float, int]:
            if one.state is TrialState.FAILED:
                return 2, 0.0, one.number
            return (1, 0.0, one.number) if one.metric is None else (0, sign * one.metric, one.number)

        return sorted(self.trials, key=key)

    def best(self) -> TrialView | None:
        """Return the best of the trials that are done or were stopped; None if none has a metric."""
        ended = (one for one in self.ranked() if one.state in WITH_RESULT and one.metric is not None)
        return next(ended, None)

    def counts(self) -> dict[str, int]:
        """Return the number of trials in each state, by the names of the states; without states of no trial."""
        found = dict.fromkeys((one.value for one in TrialState), 0)
        for one in self.trials:
            found[one.state.value] += 1
        found[TrialState.WAITING.value] += self.total - len(self.trials)
        return {state: count for state, count in found.items() if count}


def missing_metric_text(metric: str, problem: str = "") -> str:
    """Return the message on a trial that ended without its metric; ``problem``: why a report of it was refused."""
    return f"never reported {metric}" + (f" (a report was refused: {problem})" if problem else "")


def downsampled(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """Return at most `MAX_CURVE_POINTS` points of a curve, including the first and the last one."""
    most = MAX_CURVE_POINTS
    if len(points) <= most:
        return tuple(points)
    last = len(points) - 1
    return tuple(points[place * last // (most - 1)] for place in range(most))


def head_line(sweep: SweepSpec) -> str:
    """Return the first line of the file, without its line end."""
    goal = None if sweep.goal is None else sweep.goal.value
    head = {"trials": sweep.trials, "metric": sweep.metric, "goal": goal, "parameters": list(sweep.parameters)}
    return json.dumps(head, separators=(",", ":"))


def trial_line(trial: TrialView, parameters: Iterable[str]) -> str:
    """Return the line of a started trial, without its line end, with the parameters of the first line."""
    row = (
        trial.number,
        trial.state.value,
        trial.tries,
        trial.metric,
        trial.step,
        trial.reports,
        round(trial.ran_s, 3),
        trial.container,
        trial.exit_code,
        trial.why[:_MAX_WHY],
        [trial.parameters.get(name) for name in parameters],
        " ".join(f"{int(step) if step == int(step) else step} {value!r}" for step, value in trial.curve),
        trial.container_id,
    )
    line = json.dumps(row, separators=(",", ":"))
    if trial.is_pruned:
        line = f"{line[:-1]}{_PRUNED}"
    return committed_line(line) if trial.is_committed else line


def committed_line(line: str) -> str:
    """Return the updated line of a trial whose output has been committed separately since it was written."""
    return f"{line.removesuffix(_PRUNED)},true,true]" if line.endswith(_PRUNED) else f"{line[:-1]},true]"


def with_ended_trials(text: str, sweep: SweepSpec, records: Iterable[Mapping[str, Any]]) -> str:
    """Return results with the journaled ends of trials: their writer may have died before it wrote these.

    Args:
        text: the text of the file; empty if there is none.
        sweep: the sweep of the results.
        records: the records of the journal, of any kind and in any order.
    """
    try:
        known = read_results(text).trials
    except ValueError:
        known, text = (), ""
    head, _, rest = text.partition("\n")
    lines = {json.loads(line)[0]: line for line in rest.split("\n")[:-1]}
    committed = {one.number for one in known if one.is_committed}
    for record in records:
        try:
            if record["kind"] == "trial_end":
                trial = _ended(record, sweep)
                lines[trial.number] = trial_line(trial, sweep.parameters)
            elif record["kind"] == "trial_committed":
                committed.add(int(record["number"]))
        except (LookupError, TypeError, ValueError, OverflowError):
            continue  # it ended because the application did; or the record is damaged
    for number in committed & lines.keys():
        row = json.loads(lines[number])
        if len(row) < 14 or row[13] is not True:
            lines[number] = committed_line(lines[number])
    return "\n".join((head or head_line(sweep), *(lines[number] for number in sorted(lines)), ""))


def _ended(record: Mapping[str, Any], sweep: SweepSpec) -> TrialView:
    number, state, stop = int(record["number"]), TrialState(record["state"]), str(record.get("stop", ""))
    if not 0 <= number < sweep.trials:
        raise ValueError("there is no such trial")
    points = tuple((float(int(step)), finite_number(value)) for step, value in record.get("points", ()))
    code, index = record.get("exit_code"), record.get("index")
    parameters = record.get("parameters") if sweep.sampler is Sampler.OPTUNA else trial_of(sweep, number).parameters
    return TrialView(
        number=number,
        state=state,
        parameters={str(name): str(value) for name, value in (parameters or {}).items()},
        tries=int(record["try"]),
        metric=points[-1][1] if points else None,
        step=int(points[-1][0]) if points else None,
        reports=int(record.get("reports", 0)),
        ran_s=finite_number(record["ran_s"]),
        container=None if index is None else int(index),
        exit_code=None if code is None else int(code),
        why=stop or str(record.get("message", "")),
        curve=downsampled(points),
        container_id=str(record["in"]),
        is_committed=record.get("committed", False) is True,
        is_pruned=state is TrialState.STOPPED and bool(stop),
    )


def read_results(text: str, *, curves: bool = True) -> SweepResults:
    """Read the file. An incomplete last line is ignored.

    Args:
        text: the text of the file.
        curves: whether to parse them, which takes most of the time.

    Raises:
        ValueError: the file is invalid.
    """
    first, _, rest = text.partition("\n")
    lines = rest[: rest.rfind("\n") + 1].rstrip("\n").replace("\n", ",")
    try:
        head, rows = json.loads(first), json.loads(f"[{lines}]")
        if not isinstance(head, dict):
            raise ValueError("its first line is not an object")
        names = _names(head["parameters"])
        goal = Goal(head["goal"]) if head["goal"] is not None else None
        total = _checked(head["trials"], int)
        trials = [_trial(row, names, curves) for row in rows]
        metric = str(head["metric"])
    except (LookupError, TypeError, RecursionError, OverflowError) as error:
        raise ValueError(f"a line is not complete: {error!r}") from error
    trials.sort(key=lambda one: one.number)
    if not 0 <= total <= MAX_TRIALS or len(trials) > total:
        raise ValueError(f"it has {len(trials)} of {total} trials")
    return SweepResults(total=total, parameters=names, metric=metric, goal=goal, trials=tuple(trials))


def _names(value: Any) -> tuple[str, ...]:
    """Return names of parameters; a shell may evaluate them (``dlapp-sweep --best``), even another user's."""
    names = tuple(_checked(name, str) for name in _checked(value, list))
    if len(names) > MAX_PARAMETERS or not all(name.isascii() and name.isidentifier() for name in names):
        raise ValueError("it has parameters with names that no parameter can have")
    return names


def _trial(row: Any, names: tuple[str, ...], curves: bool) -> TrialView:
    number, state, tries, metric, step, reports, ran_s, container, exit_code, why, values, curve = row[:12]
    container_id = row[12] if len(row) > 12 else ""
    return TrialView(
        number=_checked(number, int),
        state=_STATES[state],
        tries=_checked(tries, int),
        metric=None if metric is None else finite_number(metric),
        step=None if step is None else _checked(step, int),
        reports=_checked(reports, int),
        ran_s=finite_number(ran_s),
        container=None if container is None else _checked(container, int),
        exit_code=None if exit_code is None else _checked(exit_code, int),
        why=_checked(why, str),
        parameters={name: _checked(value, str) for name, value in zip(names, values, strict=True) if value is not None},
        curve=_curve(curve) if curves else (),
        container_id=_checked(container_id, str),
        is_committed=len(row) > 13 and row[13] is True,
        is_pruned=len(row) > 14 and row[14] is True,
    )


_STATES = {one.value: one for one in TrialState}


def _curve(text: Any) -> tuple[tuple[float, float], ...]:
    words = _checked(text, str).split(" ", 2 * MAX_CURVE_POINTS) if text else []
    numbers = [finite_number(float(word)) for word in words]
    return tuple(zip(numbers[::2], numbers[1::2], strict=True))


def _checked(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"it has {type(value).__name__} in place of {kind.__name__}")
    return value


def finite_number(value: Any) -> float:
    """Return a number of a record as a float. Raises ValueError, OverflowError: it is not a finite number."""
    if type(value) not in (int, float) or not math.isfinite(value):
        raise ValueError("it has no finite number where one belongs")
    return float(value)
