"""Test early stopping."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from dlapp.sweep.asha import AshaState, RungDecision
from dlapp.sweep.spec import AshaSpec, Goal
from dlapp.values.serialization import from_json, to_json
from tests.seeds import each_seed
from tests.tiers import FULL

RECORDED = json.loads((Path(__file__).parent / "ray_asha.json").read_text(encoding="utf-8"))
"""Decisions of Ray's ASHAScheduler, written by record_ray_asha.py."""


def decided(case: dict[str, Any]) -> list[bool]:
    """Return whether each report of a case stops its trial."""
    state = AshaState(AshaSpec(tuple(case["rungs"]), case["factor"]), Goal(case["goal"]))
    decisions = [state.report(trial, step, value) for trial, step, value in case["reports"]]
    return [decision is not None and decision.stops for decision in decisions]


@pytest.mark.parametrize("name", sorted(RECORDED["cases"]))
def test_decisions_are_those_of_ray(name: str) -> None:
    case = RECORDED["cases"][name]
    assert any(case["stops"])
    assert decided(case) == [stop == 1 for stop in case["stops"]]


def test_the_first_trial_of_a_rung_continues() -> None:
    state = AshaState(AshaSpec((1,), 4.0), Goal.MAX)
    stopped = [trial for trial in range(100) if (found := state.report(trial, 1, -trial)) is not None and found.stops]
    assert stopped == list(range(1, 100))  # each is worse than all before it


@each_seed("trials of a rung")
def test_with_a_factor_of_four_one_trial_in_four_continues(seed: int) -> None:
    """The range is 221 to 279 of 1,000 trials; the first decisions know few values."""
    state = AshaState(AshaSpec((1,), 4.0), Goal.MAX)
    numbers = list(range(1000))
    random.Random(seed).shuffle(numbers)
    decisions = [state.report(trial, 1, float(trial)) for trial in numbers]
    assert 220 < sum(decision is not None and not decision.stops for decision in decisions) < 280


def test_fewer_is_better_where_the_goal_is_min() -> None:
    state = AshaState(AshaSpec((1, 2), 2.0), Goal.MIN)
    assert state.report(0, 1, 5.0) == RungDecision(0, 1, 1, 5.0, None, False)
    assert state.report(1, 1, 6.0) == RungDecision(1, 1, 1, 6.0, 5.0, True)
    assert state.report(2, 1, 4.0) == RungDecision(2, 1, 1, 4.0, 5.5, False)
    assert state.report(2, 2, 9.0) == RungDecision(2, 2, 2, 9.0, None, False)


def test_a_report_before_or_between_rungs_makes_no_decision() -> None:
    state = AshaState(AshaSpec((3, 9), 3.0), Goal.MAX)
    assert state.report(0, 2, 1.0) is None
    assert state.report(0, 4, 1.0) is not None
    assert state.report(0, 5, 0.0) is None


@pytest.mark.parametrize("goal", Goal)
@each_seed("attempts of a sweep", 50 if FULL else 10)
def test_the_next_attempt_decides_as_if_there_had_been_one(seed: int, goal: Goal) -> None:
    """Restart before one in five of 80 reports, with 10 seeds and at night with 50."""
    rng = random.Random(seed)
    spec = AshaSpec((1, 3, 9), rng.uniform(1.5, 5))
    reports = [(rng.randrange(20), rng.randrange(1, 12), rng.choice([0.1, 0.2, rng.random()])) for _ in range(80)]
    undisturbed = AshaState(spec, goal)
    expected = [undisturbed.report(*item) for item in reports]
    state = AshaState(spec, goal)
    journal: list[RungDecision] = []
    for place, report in enumerate(reports):
        if rng.random() < 0.2:
            state = AshaState(spec, goal)
            for line in journal:
                state.restore(from_json(RungDecision, json.loads(json.dumps(to_json(line)))))
                state.restore(line)  # once more changes nothing
        decision = state.report(*report)
        assert decision == expected[place]
        if decision is not None:
            journal.append(decision)


def test_the_message_names_the_required_value() -> None:
    assert RungDecision(4, 9, 10, 0.5, 0.625, True).message == "stopped early at step 10: 0.5, rung 9 needs 0.625"
