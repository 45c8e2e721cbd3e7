"""Test Optuna behind its ask-and-tell interface, with the real library."""

from __future__ import annotations

import sys

import pytest

from dlapp.errors import DlappError
from dlapp.sweep.optuna_study import OptunaStudy, OptunaUnavailable, PastTrial
from dlapp.sweep.spec import Distribution, DistributionKind, Goal, Sampler, SweepSpec
from dlapp.value import replace

pytest.importorskip("optuna")
KINDS = DistributionKind


def sweep(sampler: str = "tpe", pruner: str = "", goal: Goal = Goal.MAX) -> SweepSpec:
    return SweepSpec(
        sampler=Sampler.OPTUNA,
        optuna_sampler=sampler,
        optuna_pruner=pruner,
        trials=100,
        random=(
            Distribution(name="x", kind=KINDS.UNIFORM, low=-1.0, high=1.0),
            Distribution(name="lr", kind=KINDS.LOGUNIFORM, low=1e-5, high=0.1),
            Distribution(name="n", kind=KINDS.INT, low=1, high=4),
            Distribution(name="kind", kind=KINDS.CHOICE, values=("a", "b")),
        ),
        metric="m",
        goal=goal,
    )


def loss(parameters: dict[str, str]) -> float:
    return (float(parameters["x"]) - 0.3) ** 2 + (parameters["kind"] == "a")


@pytest.mark.parametrize("goal", list(Goal))
def test_a_sampler_learns_from_the_trials_that_have_ended(goal: Goal) -> None:
    study = OptunaStudy(sweep(goal=goal))
    found = []
    for number in range(60):
        value = loss(study.ask(number))
        study.tell(number, value if goal is Goal.MIN else -value)
        found.append(value)
    assert sum(found[40:]) / 20 < sum(found[:10]) / 10 / 2


def test_parameters_are_within_their_distributions_and_text() -> None:
    study = OptunaStudy(sweep("random"))
    for number in range(30):
        parameters = study.ask(number)
        assert -1 <= float(parameters["x"]) <= 1
        assert 1e-5 <= float(parameters["lr"]) <= 0.1
        assert parameters["n"] in ("1", "2", "3", "4")
        assert parameters["kind"] in ("a", "b")


def test_the_same_seed_gives_the_same_first_trials() -> None:
    first, second = OptunaStudy(sweep()), OptunaStudy(sweep())
    assert [first.ask(number) for number in range(5)] == [second.ask(number) for number in range(5)]
    assert OptunaStudy(replace(sweep(), seed=1)).ask(0) != OptunaStudy(sweep()).ask(0)


def test_a_study_is_rebuilt_from_the_journal_and_continues() -> None:
    study = OptunaStudy(sweep(pruner="median"))
    past = {}
    for number in range(20):
        parameters = study.ask(number)
        value = -loss(parameters)
        points = tuple((step, value - 1 / step) for step in range(1, 5))
        for step, reported in points:
            study.report(number, step, reported)
        if number == 3:
            past[number] = PastTrial(parameters=parameters, points=points, has_ended=True)
        elif number < 15:
            past[number] = PastTrial(parameters=parameters, points=points, value=value, has_ended=True)
        elif number < 19:  # one is lost: it was not on record
            past[number] = PastTrial(parameters=parameters, points=points)
    again = OptunaStudy(sweep(pruner="median"), past)
    assert again.ask(19) not in [trial.parameters for trial in past.values()]
    for number in range(15, 20):  # those that run go on
        again.tell(number, -2.0)
    for number in range(20, 60):
        again.tell(number, -loss(again.ask(number)))
    late = [again.ask(number) for number in range(60, 70)]
    assert sum(map(loss, late)) / 10 < 0.5


def test_a_pruner_stops_trials_that_are_worse_than_the_others() -> None:
    study = OptunaStudy(sweep("random", "median"))
    for number in range(8):
        study.ask(number)
        for step in range(1, 4):
            assert not study.report(number, step, 1.0 + number / 100)
        study.tell(number, 1.0)
    study.ask(8)
    assert study.report(8, 1, 0.1)
    assert not study.report(8, 1, 0.0)  # a trial that runs again reports a step once more
    study.tell(8, 0.1)
    study.ask(9)
    assert not study.report(9, 1, 2.0)


def test_without_a_pruner_no_trial_is_stopped() -> None:
    study = OptunaStudy(sweep("random"))
    for number in range(8):
        study.ask(number)
        study.report(number, 1, 1.0)
        study.tell(number, 1.0)
    study.ask(8)
    assert not study.report(8, 1, 0.0)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(OptunaUnavailable, match="the sweep's sampler needs Optuna, which cannot be imported here"):
        OptunaStudy(sweep())


def test_additional_packages_of_a_sampler_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    study = OptunaStudy(sweep("cmaes"))
    study.ask(0)  # before it has a result, it draws
    study.tell(0, 1.0)
    with pytest.raises(OptunaUnavailable, match="Optuna's sampler cmaes needs more: "):
        study.ask(1)


def test_parameters_that_do_not_fit_are_refused() -> None:
    for parameters in ({}, {"x": "0.5", "lr": "many", "n": "1", "kind": "a"}):
        with pytest.raises(DlappError, match="the recorded parameters of trial 3 cannot be read: "):
            OptunaStudy(sweep(), {3: PastTrial(parameters=parameters)})
