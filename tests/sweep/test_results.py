"""Test the results of a sweep: the order of the leaderboard, and the file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import SpecError
from dlapp.sweep.results import (
    MAX_CURVE_POINTS,
    SweepResults,
    TrialState,
    TrialView,
    committed_line,
    downsampled,
    head_line,
    missing_metric_text,
    read_results,
    trial_line,
    with_ended_trials,
)
from dlapp.sweep.spec import MAX_RESULTS_BYTES, MAX_TRIALS, Goal, GridParameter, Sampler, SweepSpec
from dlapp.value import replace

STATES = TrialState
SWEEP = SweepSpec(
    sampler=Sampler.GRID,
    trials=6,
    grid=(GridParameter("lr", ("1", "2")), GridParameter("n", ("a", "b", "ü"))),
    metric="accuracy",
    goal=Goal.MAX,
)
COUNT = GridParameter("n", tuple(map(str, range(MAX_TRIALS))))


def results(goal: Goal, *trials: TrialView) -> SweepResults:
    return SweepResults(total=9, metric="m", goal=goal, trials=trials)


def trial_view(number: int, state: TrialState, metric: float | None = None) -> TrialView:
    return TrialView(number=number, state=state, metric=metric)


def test_results_are_sorted_best_first_and_failed_last() -> None:
    trials = (
        trial_view(0, STATES.DONE, 0.5),
        trial_view(1, STATES.FAILED, 0.9),
        trial_view(2, STATES.RUNNING),
        trial_view(3, STATES.RUNNING, 0.7),
        trial_view(4, STATES.STOPPED, 0.5),
        trial_view(5, STATES.DONE),
    )
    assert [each.number for each in results(Goal.MAX, *trials).ranked()] == [3, 0, 4, 2, 5, 1]
    assert [each.number for each in results(Goal.MIN, *trials).ranked()] == [0, 4, 3, 2, 5, 1]


def test_the_best_is_one_that_has_ended_well_with_a_metric() -> None:
    running, failed = trial_view(1, STATES.RUNNING, 0.9), trial_view(2, STATES.FAILED, 0.9)
    assert results(Goal.MAX, running, failed, trial_view(3, STATES.DONE)).best() is None
    stopped = trial_view(4, STATES.STOPPED, 0.1)
    assert results(Goal.MAX, running, failed, stopped).best() == stopped
    assert results(Goal.MIN, stopped, trial_view(5, STATES.DONE, -1.0)).best() == trial_view(5, STATES.DONE, -1.0)


def test_trials_that_were_never_started_count_as_waiting() -> None:
    found = results(
        Goal.MAX, trial_view(0, STATES.DONE), trial_view(1, STATES.RUNNING), trial_view(2, STATES.WAITING)
    ).counts()
    assert found == {"waiting": 7, "running": 1, "done": 1}


def test_a_trial_without_its_metric_is_named() -> None:
    assert missing_metric_text("accuracy") == "never reported accuracy"
    refused = missing_metric_text("accuracy", "a number is not finite")
    assert refused == "never reported accuracy (a report was refused: a number is not finite)"


finite = st.floats(allow_nan=False, allow_infinity=False, width=32)
counts = st.integers(0, 1 << 40)


@st.composite
def views(draw: st.DrawFn, number: int) -> TrialView:
    return TrialView(
        number=number,
        state=draw(st.sampled_from(list(TrialState))),
        parameters={"lr": draw(st.text(max_size=5)), "n": "a\nb"},
        tries=draw(counts),
        metric=draw(st.none() | finite),
        step=draw(st.none() | counts),
        reports=draw(counts),
        ran_s=draw(st.integers(0, 10**9)) / 1000,
        container=draw(st.none() | counts),
        exit_code=draw(st.none() | st.integers(0, 255)),
        why=draw(st.text(max_size=20)),
        curve=tuple(draw(st.lists(st.tuples(st.integers(0, 1 << 53).map(float) | finite, finite), max_size=4))),
        is_committed=draw(st.booleans()),
        is_pruned=draw(st.booleans()),
    )


@given(st.integers(0, 6).flatmap(lambda count: st.tuples(*(views(number) for number in range(count)))))
def test_results_are_read_back_from_the_file(trials: tuple[TrialView, ...]) -> None:
    lines = [head_line(SWEEP), *(trial_line(each, SWEEP.parameters) for each in reversed(trials))]
    text = "".join(f"{line}\n" for line in lines)
    expected = SweepResults(total=6, parameters=("lr", "n"), metric="accuracy", goal=Goal.MAX, trials=trials)
    assert read_results(text) == expected
    without = tuple(replace(each, curve=()) for each in trials)
    assert read_results(text, curves=False) == replace(expected, trials=without)
    assert read_results(text + '[7,"do') == expected  # its writer is not done


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_trial_committed_later_has_the_line_of_a_committed_trial(is_pruned: bool) -> None:
    trial = TrialView(number=3, state=STATES.STOPPED, is_pruned=is_pruned, why=",false,true]")
    line = trial_line(trial, SWEEP.parameters)
    assert committed_line(line) == trial_line(replace(trial, is_committed=True), SWEEP.parameters)


def end_of(number: int, **fields: object) -> dict[str, object]:
    ended = {
        "kind": "trial_end",
        "t": 9,
        "number": number,
        "try": 2,
        "state": "done",
        "ran_s": 1.5,
        "in": "c",
        "index": 1,
    }
    return ended | {"points": [[3, 0.5]], "reports": 4, "exit_code": 0} | fields


def test_ends_that_are_on_record_are_among_the_results_that_were_written_before() -> None:
    running = trial_view(1, STATES.RUNNING, 0.1)
    done = TrialView(number=0, state=STATES.DONE, parameters={"lr": "1", "n": "a"}, metric=0.25, step=2)
    lines = [head_line(SWEEP), *(trial_line(each, SWEEP.parameters) for each in (done, running))]
    records = [
        end_of(1),
        end_of(4, state="stopped", stop="stopped early at step 3", committed=True),
        end_of(2, state="killed"),
        end_of(6),
        end_of(3, ran_s=float("nan")),
        {"kind": "trial_committed", "number": 0},
        {"kind": "trial_committed", "number": 5},
        {"kind": "other"},
        ["no object"],
    ]
    text = with_ended_trials("\n".join((*lines, "")), SWEEP, records)  # type: ignore[arg-type]
    found = {each.number: each for each in read_results(text).trials}
    assert found[0] == replace(done, is_committed=True)
    assert (found[1].state, found[1].parameters, found[1].tries) == (STATES.DONE, {"lr": "1", "n": "b"}, 2)
    assert (found[1].metric, found[1].step, found[1].container, found[1].container_id) == (0.5, 3, 1, "c")
    assert (found[4].is_committed, found[4].is_pruned, found[4].why) == (True, True, "stopped early at step 3")
    assert sorted(found) == [0, 1, 4]
    assert with_ended_trials(text, SWEEP, records) == text  # type: ignore[arg-type]
    alone = read_results(with_ended_trials("", SWEEP, records))  # type: ignore[arg-type]
    assert [each.number for each in alone.trials] == [1, 4]
    assert read_results(with_ended_trials("damaged", SWEEP, records)) == alone  # type: ignore[arg-type]


def test_a_later_format_with_more_in_it_is_read() -> None:
    head = {**json.loads(head_line(SWEEP)), "added": 1}
    row = [*json.loads(trial_line(trial_view(3, STATES.DONE, 1.5), SWEEP.parameters)), "added"]
    found = read_results(f"{json.dumps(head)}\n{json.dumps(row)}\n")
    assert found.trials == (trial_view(3, STATES.DONE, 1.5),)


@pytest.mark.parametrize(
    "change",
    [
        (0, "1"),
        (0, True),
        (1, "lost"),
        (1, []),
        (3, "x"),
        (3, float("nan")),
        (3, 10**400),
        (6, -(10**400)),
        (9, None),
        (10, ["1"]),
        (10, ["1", 2]),
        (11, "1"),
        (11, "1 x"),
        (11, "1 nan"),
        (11, "1 2 " * 40),
        (11, 1),
    ],
)
def test_an_invalid_results_file_is_refused(change: tuple[int, object]) -> None:
    row = json.loads(trial_line(trial_view(3, STATES.DONE, 1.5), SWEEP.parameters))
    row[change[0]] = change[1]
    with pytest.raises(ValueError, match=r"."):
        read_results(f"{head_line(SWEEP)}\n{json.dumps(row)}\n")


@pytest.mark.parametrize("names", [["a;touch x;b"], ["$(touch x)"], ["a b"], [""], ["ä"], [1], "ab", ["x"] * 101, None])
def test_a_name_that_a_shell_could_not_take_as_a_variable_is_refused(names: object) -> None:
    head = {**json.loads(head_line(SWEEP)), "parameters": names}
    with pytest.raises(ValueError, match=r"."):
        read_results(f"{json.dumps(head)}\n")


@given(st.text(max_size=100))
def test_any_text_is_results_or_refused(text: str) -> None:
    for item in (text, f"{head_line(SWEEP)}\n{text}\n"):
        try:
            read_results(item)
        except ValueError:
            continue


def test_the_results_of_the_largest_sweep_can_be_read() -> None:
    values = ("x" * 600, "y" * 400, "z" * 200)
    grid = (*(GridParameter(f"long{place}", (value,)) for place, value in enumerate(values)), COUNT)
    sweep = SweepSpec(sampler=Sampler.GRID, trials=MAX_TRIALS, grid=grid, metric="m", goal=Goal.MIN)
    curve = tuple((step + 0.5, -1.2345678901234567e-101) for step in range(MAX_CURVE_POINTS))
    parameters = dict(zip(sweep.parameters, (*values, "9999"), strict=True))
    trial = replace(trial_view(9999, STATES.FAILED, 1.5), parameters=parameters, curve=curve, why="w" * 5000)
    size = len(head_line(sweep)) + MAX_TRIALS * (len(trial_line(trial, sweep.parameters)) + 1)
    assert size <= MAX_RESULTS_BYTES


@pytest.mark.parametrize("value", ["x" * 1300, "\x01" * 220])
def test_a_sweep_with_too_large_results_is_refused(value: str) -> None:
    grid = (GridParameter("long", (value,)), COUNT)
    assert SweepSpec(sampler=Sampler.GRID, trials=1000, grid=grid)
    with pytest.raises(SpecError, match="KiB of values in its trials, the maximum is 12288 KiB"):
        SweepSpec(sampler=Sampler.GRID, trials=MAX_TRIALS, grid=grid)


def test_a_long_curve_keeps_its_ends() -> None:
    points = [(float(step), float(-step)) for step in range(1000)]
    found = downsampled(points)
    assert (len(found), found[0], found[-1]) == (MAX_CURVE_POINTS, points[0], points[-1])
    assert downsampled(points[:5]) == tuple(points[:5])
    assert sorted(set(found)) == list(found)
