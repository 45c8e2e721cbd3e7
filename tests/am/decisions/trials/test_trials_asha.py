"""Ten thousand trials with early stopping, simulated, and what must hold of them."""

from __future__ import annotations

import math
import random

import pytest

from dlapp.am.model import journal
from dlapp.sweep.asha import AshaState, RungDecision
from dlapp.sweep.results import TrialState, read_results
from dlapp.sweep.spec import AshaSpec, Distribution, DistributionKind, Goal, Sampler, SweepSpec
from dlapp.sweep.trial import trial_of
from dlapp.value import fields
from dlapp.values.messages import Fault, TaskResult
from dlapp.values.report import FinalStatus
from dlapp.values.serialization import from_json
from tests.am.decisions.trials.test_trials import trials_of
from tests.am.simulated.plan import TrialOutcome
from tests.am.simulated.sweep import sweep_world
from tests.am.simulated.trials import well

TRIALS = 10_000
ASHA = AshaSpec((1, 3, 9), 3.0)
SWEEP = SweepSpec(
    sampler=Sampler.RANDOM,
    trials=TRIALS,
    seed=19,
    random=(
        Distribution(name="LR", kind=DistributionKind.LOGUNIFORM, low=1e-5, high=1.0),
        Distribution(name="DEPTH", kind=DistributionKind.INT, low=1, high=5),
    ),
    metric="accuracy",
    goal=Goal.MAX,
    asha=ASHA,
    retries=1,
)


def outcome(number: int, try_number: int) -> TrialOutcome:
    """Return how a trial ends: a curve by its parameters; one in 50 fails once, one in 500 always, and one in 100 never
    reports."""
    if number % 500 == 7 or (number % 50 == 9 and try_number == 1):
        return TaskResult(fault=Fault.USER, exit_code=1), ()
    result = well(number, try_number)[0]
    if number % 100 == 11:
        return result, ()
    parameters = trial_of(SWEEP, number).parameters
    limit = 1 - abs(math.log10(float(parameters["LR"])) + 2) / 6 + int(parameters["DEPTH"]) / 100
    noise = random.Random(number)
    return result, tuple(
        (float(step), round(limit * (1 - math.exp(-0.4 * step)) + noise.gauss(0, 0.01), 3)) for step in range(1, 11)
    )


@pytest.mark.slow
def test_ten_thousand_trials_with_early_stopping_end_once_as_decided() -> None:
    cluster = sweep_world(
        19, SWEEP, outcome=outcome, workers=50, worker_kills=100, master_kills=4, span_s=150.0, trial_s=(0.5, 2.0)
    )
    ending = cluster.run()
    assert ending.final_status is FinalStatus.SUCCEEDED, ending
    assert sorted(cluster.trials.on_record) == list(range(TRIALS))
    results = {item.number: item for item in read_results(trials_of(cluster).results()).trials}
    assert len(results) == TRIALS

    names = set(fields(RungDecision))
    records = [record for record in journal.records(cluster.durable) if record["kind"] == "rung"]
    decisions = [
        from_json(RungDecision, {name: value for name, value in record.items() if name in names}) for record in records
    ]
    again = AshaState(ASHA, Goal.MAX)
    for decision in decisions:
        assert (
            again.report(decision.trial, decision.step, decision.value) == decision
        )  # the same with four masters as with one
    stopped = {decision.trial for decision in decisions if decision.stops}
    by_state = {state: {n for n, one in results.items() if one.state is state} for state in TrialState}
    assert by_state[TrialState.STOPPED] <= stopped
    assert stopped <= by_state[TrialState.STOPPED] | by_state[TrialState.DONE]  # some had ended before the stop came
    assert by_state[TrialState.FAILED] == {n for n in range(TRIALS) if n % 500 == 7}
    silent = {n for n, one in results.items() if one.why == "never reported accuracy"}
    assert silent == {n for n in range(TRIALS) if n % 100 == 11 and n % 500 != 7}
    assert 0.5 * TRIALS < len(stopped) < 0.95 * TRIALS
    for number, trial in results.items():
        assert trial.parameters == trial_of(SWEEP, number).parameters

    best = max((outcome(n, 2)[1][-1][1], -n) for n in range(TRIALS) if n % 500 != 7 and n % 100 != 11)
    winner = read_results(trials_of(cluster).results()).best()
    assert winner is not None
    assert winner.metric is not None
    assert winner.metric > 0.97 * best[0]
