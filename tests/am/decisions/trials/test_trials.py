"""The ApplicationMaster of a sweep: each trial's result counts once, whatever dies."""

from __future__ import annotations

import itertools
import sys

import pytest

from dlapp.am.decisions.trials import recovery
from dlapp.am.model import events, journal
from dlapp.am.model.state import ApplicationState, Timing
from dlapp.am.model.trials import SweepState, TrialRecord, end_record
from dlapp.sweep.results import TrialState, TrialView, read_results
from dlapp.sweep.spec import AshaSpec, Distribution, DistributionKind, Goal, Sampler, SweepCommit, SweepSpec
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Fault, TaskResult
from dlapp.values.report import FinalStatus
from tests.am.driving import APPLICATION
from tests.am.simulated.plan import Outcome, TrialOutcome
from tests.am.simulated.sweep import sweep_world
from tests.am.simulated.trials import stored, well
from tests.am.simulated.world import World
from tests.seeds import each_seed


def sweep_of(trials: int, **fields: object) -> SweepSpec:
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    given = {"metric": "accuracy", "goal": Goal.MAX, **fields}
    return SweepSpec(sampler=Sampler.RANDOM, trials=trials, random=(draws,), **given)  # type: ignore[arg-type]


def trials_of(cluster: World) -> SweepState:
    assert cluster.master is not None
    assert cluster.master.state.sweep is not None
    return cluster.master.state.sweep


def test_each_trial_runs_once_and_its_output_is_committed() -> None:
    cluster = sweep_world(1, sweep_of(20), workers=3)
    ending = cluster.run()
    assert (ending.final_status, ending.diagnostics) == (FinalStatus.SUCCEEDED, "")
    assert cluster.trials.starts == dict.fromkeys(range(20), 1)
    assert cluster.outputs.last is not None
    assert [(part.index, part.trial) for part in cluster.outputs.last.parts] == [(n, f"trial_{n}_1") for n in range(20)]
    results = read_results(trials_of(cluster).results())
    assert results.counts() == {"done": 20}
    best = results.best()
    assert best is not None
    assert (best.number, best.metric) == (19, 19.0)


@each_seed("results of trials", 60)
def test_no_result_is_lost_and_none_counts_twice_whoever_is_killed(seed: int) -> None:
    """Run 40 trials by 1 to 4 workers with 6 kills of workers, up to 4 of masters, and 0 or 10 % of messages lost."""
    cluster = sweep_world(
        seed,
        sweep_of(40, trials_per_container=1 + seed % 3),
        workers=1 + seed % 4,
        worker_kills=6,
        master_kills=seed % 5,
        loss=0.1 if seed % 2 else 0.0,
    )
    ending = cluster.run()
    assert ending.final_status is FinalStatus.SUCCEEDED, f"seed {seed}: {ending}"
    assert sorted(cluster.trials.on_record) == list(range(40))
    assert cluster.outputs.last is not None
    parts = {part.index: part.trial.rpartition("_")[2] for part in cluster.outputs.last.parts}
    assert parts == {number: state.partition(" ")[2] for number, state in cluster.trials.on_record.items()}


@each_seed("commits of trials", 40)
def test_each_trial_is_committed_once_after_any_kill(seed: int) -> None:
    """Run 40 trials by 1 to 4 workers with 3 kills of workers, up to 4 of masters, and 0 or 10 % of messages lost."""
    cluster = sweep_world(
        seed,
        sweep_of(40, commit=SweepCommit.TRIAL),
        workers=1 + seed % 4,
        worker_kills=3,
        master_kills=seed % 5,
        loss=0.1 if seed % 2 else 0.0,
    )
    ending = cluster.run()
    assert ending.final_status is FinalStatus.SUCCEEDED, f"seed {seed}: {ending}"
    assert cluster.outputs.last is not None
    # Of an attempt that died before it heard of its last commit, the next one commits again what is there, or the end.
    rest = {part.index: part.trial for part in cluster.outputs.last.parts}
    assert all(cluster.trials.committed.get(number, trial) == trial for number, trial in rest.items())
    tries = {n: trial.rpartition("_")[2] for n, trial in (cluster.trials.committed | rest).items()}
    assert tries == {number: state.partition(" ")[2] for number, state in cluster.trials.on_record.items()}
    assert cluster.outputs.last.committed == 40 - len(rest)


def test_a_killed_sweep_reports_the_number_of_committed_trials() -> None:
    cluster = sweep_world(3, sweep_of(20, commit=SweepCommit.TRIAL))
    cluster.schedule(4, lambda: cluster.handle(events.Kill("ann")))
    ending = cluster.run()
    assert cluster.outputs.last is not None
    count = sum(trial.is_committed for trial in read_results(trials_of(cluster).results()).trials)
    assert cluster.outputs.last.how is events.Settlement.DROP
    assert 1 < count < 20
    assert ending.diagnostics.endswith(f"; the output of {count} trials is committed in file:///results/run")


def test_a_sweep_that_is_killed_keeps_the_output_of_the_trials_that_have_ended() -> None:
    cluster = sweep_world(3, sweep_of(20))
    cluster.schedule(4, lambda: cluster.handle(events.Kill("ann")))
    ending = cluster.run()
    assert cluster.outputs.last is not None
    results = read_results(trials_of(cluster).results()).trials
    ended = [result.number for result in results if result.state in (TrialState.DONE, TrialState.STOPPED)]
    assert cluster.outputs.last.how is events.Settlement.DROP
    assert 1 < len(ended) < 20
    assert [part.index for part in cluster.outputs.last.parts] == ended
    assert ending.diagnostics.startswith(f"killed by ann, the complete output of trials {ended[0]}, {ended[1]}")
    assert ending.diagnostics.endswith("kept as partial")


def test_a_trial_that_fails_is_tried_again_and_does_not_end_the_sweep() -> None:
    def outcome(number: int, try_number: int) -> TrialOutcome:
        if number == 3 or (number == 5 and try_number == 1):
            return TaskResult(fault=Fault.USER, exit_code=9), ()
        return well(number, try_number)

    cluster = sweep_world(2, sweep_of(8, retries=1), outcome=outcome)
    ending = cluster.run()
    assert ending.final_status is FinalStatus.SUCCEEDED
    assert ending.diagnostics == "1 of 8 trials failed (trial 3): exit code 9"
    assert (cluster.trials.starts[3], cluster.trials.starts[5]) == (2, 2)
    assert cluster.trials.on_record[5] == "done 2"


def away(until_s: float, box: list[World], fault: Fault = Fault.NODE) -> Outcome:
    """Return outcomes of trials that need Docker, which is away until this time [s of the simulation]."""

    def outcome(number: int, try_number: int) -> TrialOutcome:
        if 2.0 <= box[0].now < until_s:
            return TaskResult(fault=fault, message="no such file or directory", service="Docker at unix:///x"), ()
        return well(number, try_number)

    return outcome


@each_seed("trials that wait")
@pytest.mark.parametrize("fault", [Fault.NODE, Fault.SERVICE])
@pytest.mark.parametrize("until_s", [8.0, 900.0])
def test_trials_wait_for_a_service_as_containers_do(seed: int, fault: Fault, until_s: float) -> None:
    """Run 10 trials while a service is away for 8 s or 15 minutes."""
    box: list[World] = []
    box.append(sweep_world(seed, sweep_of(10), outcome=away(until_s, box, fault)))
    ending = box[0].run()
    assert (ending.final_status, ending.diagnostics) == (FinalStatus.SUCCEEDED, "")
    assert all(text.startswith("done") for text in box[0].trials.on_record.values())
    assert len(box[0].trials.on_record) == 10
    # The pauses double up to a minute: no trial is started in vain every second.
    assert sum(box[0].trials.starts.values()) < 10 + 2 * (8 + until_s / 60)


def test_a_sweep_that_waited_too_long_for_a_service_fails_and_keeps_its_output() -> None:
    box: list[World] = []
    box.append(sweep_world(1, sweep_of(10), outcome=away(1e9, box)))
    ending = box[0].run()
    assert ending.final_status is FinalStatus.FAILED
    assert "waited 3600 s (service_patience) for Docker at unix:///x: no such file or directory" in ending.diagnostics
    assert "the output of the others is committed, and `dlapp-launcher --resume` runs" in ending.diagnostics
    assert box[0].outputs.last is not None
    done = {number for number, text in box[0].trials.on_record.items() if text.startswith("done")}
    assert done
    assert {part.index for part in box[0].outputs.last.parts} == done


def test_a_sweep_with_a_trial_whose_output_could_not_be_stored_is_no_success() -> None:
    """Run six trials; the output of one stays on its machine."""

    def outcome(number: int, try_number: int) -> TrialOutcome:
        result, points = well(number, try_number)
        if number == 3:
            message = "the output could not be stored: hdfs://nn: refused; it stays on box1 in /disk/unstored"
            result = TaskResult(fault=Fault.DATA, exit_code=0, message=message, storing_failed=True)
        return result, points

    cluster = sweep_world(3, sweep_of(6, retries=1), outcome=outcome)
    ending = cluster.run()
    assert (ending.final_status, cluster.trials.starts[3]) == (FinalStatus.FAILED, 1)
    assert ending.diagnostics.startswith("1 of 6 trials failed (trial 3): the output could not be stored: hdfs://nn: ")
    assert ending.diagnostics.endswith("`dlapp-launcher --resume` runs the trials that failed")


def test_a_trial_that_a_node_fails_is_tried_again_after_a_pause_and_its_sweep_is_no_success() -> None:
    box: list[World] = []

    def outcome(number: int, try_number: int) -> TrialOutcome:
        if number == 3:
            times.append(box[0].now)
            return TaskResult(fault=Fault.NODE, message="no space left"), ()
        return well(number, try_number)

    times: list[float] = []
    box.append(sweep_world(4, sweep_of(6), workers=1, outcome=outcome))
    ending = box[0].run()
    assert ending.final_status is FinalStatus.FAILED
    assert ending.diagnostics.startswith("1 of 6 trials failed (trial 3): no space left; the output of the others is")
    assert len(times) == 4
    assert all(later - earlier >= 1 for earlier, later in itertools.pairwise(times))


def test_a_trial_without_data_whose_script_left_processes_fails() -> None:
    def outcome(number: int, try_number: int) -> TrialOutcome:
        result, points = well(number, try_number)
        if number == 3:
            outputs = tuple(replace(output, size_bytes=0) for output in result.outputs)
            result = replace(result, outputs=outputs)
        return replace(result, left="1 process, bash"), points

    cluster = sweep_world(2, sweep_of(8, retries=1), outcome=outcome)
    ending = cluster.run()
    assert ending.diagnostics == (
        "1 of 8 trials failed (trial 3): its output has no data, and its script ended before processes that it had "
        "started, which were killed (1 process, bash): end the script with wait"
    )
    assert cluster.trials.starts[3] == 1


def test_more_failures_than_allowed_end_the_sweep_and_keep_its_output() -> None:
    def outcome(number: int, try_number: int) -> TrialOutcome:
        return (TaskResult(fault=Fault.USER, exit_code=1), ()) if number in (2, 4) else well(number, try_number)

    cluster = sweep_world(3, sweep_of(30, max_failures=1), outcome=outcome)
    ending = cluster.run()
    assert ending.final_status is FinalStatus.FAILED
    assert ending.diagnostics == (
        "more trials failed than max_failures=1 allows: 2 of 30 trials failed (trials 2, 4); the first of them, "
        "trial 2: exit code 1"
    )
    assert cluster.outputs.last is not None
    assert {part.index for part in cluster.outputs.last.parts} >= {0, 1, 3}


def test_a_sweep_whose_trials_all_fail_has_failed() -> None:
    cluster = sweep_world(4, sweep_of(3), outcome=lambda *_: (TaskResult(fault=Fault.USER, exit_code=1), ()))
    ending = cluster.run()
    assert ending.final_status is FinalStatus.FAILED
    assert ending.diagnostics.startswith("3 of 3 trials failed (trials 0-2); the first of them, trial 0: exit code 1")


def test_no_more_trials_run_at_once_than_the_sweep_allows() -> None:
    cluster = sweep_world(5, sweep_of(30, concurrency=3, trials_per_container=2), workers=4)
    cluster.run()
    assert cluster.trials.most_running == 3


def test_a_trial_without_its_metric_is_named() -> None:
    def outcome(number: int, try_number: int) -> TrialOutcome:
        return TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored(number, try_number),)), ()

    cluster = sweep_world(6, sweep_of(2), outcome=outcome)
    cluster.run()
    first = read_results(trials_of(cluster).results()).trials[0]
    assert (first.state, first.metric, first.why) == (TrialState.DONE, None, "never reported accuracy")


def test_trials_that_are_behind_are_stopped_early_and_keep_their_output() -> None:
    def outcome(number: int, try_number: int) -> TrialOutcome:
        points = tuple((float(step), float(number % 7) * step) for step in range(1, 10))
        return well(number, try_number)[0], points

    cluster = sweep_world(
        8,
        sweep_of(30, asha=AshaSpec((1, 3), 3.0)),
        outcome=outcome,
        worker_kills=3,
        master_kills=2,
        trial_s=(1.0, 4.0),
    )
    assert cluster.run().final_status is FinalStatus.SUCCEEDED
    results = read_results(trials_of(cluster).results())
    stopped = [trial for trial in results.trials if trial.state is TrialState.STOPPED]
    assert stopped
    assert all(item.why.startswith("stopped early at step ") for item in stopped)
    assert cluster.outputs.last is not None
    assert len(cluster.outputs.last.parts) == 30


def test_optuna_chooses_the_parameters_which_are_on_record_before_a_trial_starts() -> None:
    pytest.importorskip("optuna")
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(
        sampler=Sampler.OPTUNA,
        optuna_sampler="tpe",
        trials=40,
        random=(draws,),
        metric="accuracy",
        goal=Goal.MAX,
        retries=1,
    )
    given: dict[int, str] = {}
    lost: list[int] = []

    def outcome(number: int, try_number: int) -> TrialOutcome:
        x = trials_of(cluster).parameters_of(trials_of(cluster).trials[number])["X"]
        assert given.setdefault(number, x) == x  # also when it is tried again, and by another ApplicationMaster
        if number % 9 == 4 and try_number == 1:
            lost.append(number)
            return TaskResult(fault=Fault.USER, exit_code=1), ()
        return well(number, try_number)[0], ((1.0, -abs(float(x) - 0.7)),)

    cluster = sweep_world(9, sweep, outcome=outcome, worker_kills=3, master_kills=4, loss=0.05)
    assert cluster.run().final_status is FinalStatus.SUCCEEDED
    assert sorted(cluster.trials.on_record) == list(range(40))
    assert lost
    results = read_results(trials_of(cluster).results())
    assert {trial.number: trial.parameters["X"] for trial in results.trials} == given
    early, late = ([abs(float(given[n]) - 0.7) for n in range(*ends)] for ends in ((0, 10), (30, 40)))
    assert sum(late) < sum(early)


def test_a_pruner_of_optuna_stops_trials_that_are_behind() -> None:
    pytest.importorskip("optuna")
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(
        sampler=Sampler.OPTUNA,
        optuna_sampler="random",
        optuna_pruner="median",
        trials=30,
        random=(draws,),
        metric="accuracy",
        goal=Goal.MAX,
    )

    def outcome(number: int, try_number: int) -> TrialOutcome:
        return well(number, try_number)[0], tuple((float(step), float(number % 7) * step) for step in range(1, 6))

    cluster = sweep_world(10, sweep, outcome=outcome, worker_kills=2, master_kills=2, trial_s=(1.0, 4.0))
    assert cluster.run().final_status is FinalStatus.SUCCEEDED
    results = read_results(trials_of(cluster).results())
    stopped = [trial for trial in results.trials if trial.state is TrialState.STOPPED]
    assert stopped
    assert all(item.why.endswith(", by Optuna's pruner median") for item in stopped)
    assert all(item.is_pruned for item in stopped)


def test_a_trial_stopped_early_in_the_previous_sweep_counts_as_run() -> None:
    before = str(ContainerId(APPLICATION, 1, 5))
    ends = {0: ("stopped early at step 3: 0.4, by Optuna's pruner median", True), 1: ("its time was over", False)}
    views = [
        TrialView(
            number=n,
            state=TrialState.STOPPED,
            tries=1,
            metric=0.4,
            container=0,
            container_id=before,
            why=why,
            is_pruned=is_pruned,
        )
        for n, (why, is_pruned) in ends.items()
    ]
    former = events.TrialsTakenOver(tuple(events.FormerTrial(view=view, outputs=(), sources=()) for view in views))
    cluster = sweep_world(12, sweep_of(3), takes=former, master_kills=2)
    assert cluster.run().final_status is FinalStatus.SUCCEEDED
    found = {trial.number: (trial.why, trial.is_pruned) for trial in read_results(trials_of(cluster).results()).trials}
    assert {n: found[n] for n in ends} == ends
    assert [trials_of(cluster).trials[n].is_pruned for n in ends] == [True, False]


def test_a_sweep_that_needs_optuna_fails_by_name_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    draws = Distribution(name="X", kind=DistributionKind.UNIFORM, low=0.0, high=1.0)
    sweep = SweepSpec(
        sampler=Sampler.OPTUNA, optuna_sampler="tpe", trials=3, random=(draws,), metric="accuracy", goal=Goal.MAX
    )
    monkeypatch.setitem(sys.modules, "optuna", None)
    ending = sweep_world(11, sweep).run()
    assert ending.final_status is FinalStatus.FAILED
    assert ending.diagnostics.startswith("the sweep's sampler needs Optuna, which cannot be imported here: ")


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"points": [[1.0, float("inf")]]},
        {"points": [[float("inf"), 1.0]]},
        {"points": [[1, 10**400]]},
        {"points": [[10**400, 1.0]]},
        {"ran_s": float("nan")},
        {"exit_code": float("inf")},
    ],
)
def test_an_end_on_record_with_a_number_that_is_not_finite_is_passed_over(change: dict[str, object]) -> None:
    trial, holder = TrialRecord(0), ContainerId(APPLICATION, 1, 1)
    trial.tries, trial.holder, trial.index, trial.points = 1, holder, 0, ((1.0, 0.5),)
    former = journal.replay([{**end_record(trial, TrialState.DONE).as_json(1), **change}])
    state = ApplicationState(sweep_world(1, sweep_of(1)).submission, APPLICATION, 2, former=former, timing=Timing())
    recovery.recover(state, former)
    assert state.sweep is not None
    assert state.sweep.trials[0].has_ended is (not change)


def taken_over(*numbers: int) -> events.TrialsTakenOver:
    before = "container_1700000000000_0007_01_000002"
    return events.TrialsTakenOver(
        tuple(
            events.FormerTrial(
                view=TrialView(number=n, state=TrialState.DONE, tries=2, metric=0.5, container=1, container_id=before),
                outputs=(stored(n, 2),),
                sources=(f"file:///results/run.partial/{n}",),
            )
            for n in numbers
        )
    )


@pytest.mark.parametrize("lines", range(5))
def test_trials_of_the_previous_sweep_count_once_wherever_the_attempt_dies(lines: int) -> None:
    cluster = sweep_world(9, sweep_of(6), takes=taken_over(0, 3, 4))
    cluster.start_attempt()
    written = [*cluster.durable, *cluster.fleeting]
    cluster.durable, cluster.master = written[:lines], None
    cluster.trials.on_record.clear()
    ending = cluster.run()
    assert ending.final_status is FinalStatus.SUCCEEDED
    assert cluster.trials.starts == dict.fromkeys((1, 2, 5), 1)
    assert cluster.outputs.last is not None
    parts = {part.index: (part.trial, part.sources) for part in cluster.outputs.last.parts}
    assert parts[3] == ("trial_3_2", ("file:///results/run.partial/3",))
    assert parts[5] == ("trial_5_1", ())
    assert len(parts) == 6
