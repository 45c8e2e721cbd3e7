"""Test the parameters of trials."""

from __future__ import annotations

import itertools
import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.sweep.spec import (
    Distribution,
    DistributionKind,
    GridParameter,
    Sampler,
    SweepSpec,
    TrialTable,
)
from dlapp.sweep.trial import TrialSpec, first_difference, trial_of
from dlapp.value import replace
from dlapp.values.serialization import from_json, to_json

KINDS = DistributionKind


def grid(*counts: int) -> SweepSpec:
    parameters = tuple(
        GridParameter(f"p{place}", tuple(f"{place}.{number}" for number in range(count)))
        for place, count in enumerate(counts)
    )
    return SweepSpec(sampler=Sampler.GRID, trials=math.prod(counts), grid=parameters)


def drawn(trials: int, seed: int = 0) -> SweepSpec:
    return SweepSpec(
        sampler=Sampler.RANDOM,
        trials=trials,
        seed=seed,
        random=(
            Distribution(name="lr", kind=KINDS.LOGUNIFORM, low=1e-5, high=1e-1),
            Distribution(name="momentum", kind=KINDS.UNIFORM, low=0.5, high=1.0),
            Distribution(name="layers", kind=KINDS.INT, low=1, high=4),
            Distribution(name="optimizer", kind=KINDS.CHOICE, values=("sgd", "adam", "a, b")),
        ),
    )


@given(st.lists(st.integers(1, 4), min_size=1, max_size=4))
def test_a_grid_has_each_combination_once_and_the_last_parameter_changes_first(counts: list[int]) -> None:
    sweep = grid(*counts)
    found = [tuple(trial_of(sweep, number).parameters.items()) for number in range(sweep.trials)]
    columns = [[(item.name, value) for value in item.values] for item in sweep.grid]
    assert found == list(itertools.product(*columns))


def test_a_list_has_its_rows_in_order() -> None:
    rows = (("0.1", "32"), ("0.01", "64"))
    sweep = SweepSpec(sampler=Sampler.LIST, trials=2, table=TrialTable(("lr", "batch"), rows))
    assert trial_of(sweep, 1) == TrialSpec(1, {"lr": "0.01", "batch": "64"})


@given(st.integers(0, 1 << 40), st.integers(1, 50), st.integers(0, 50))
def test_the_same_seed_gives_the_same_trials_also_when_more_are_added(seed: int, trials: int, more: int) -> None:
    first, longer = drawn(trials, seed), drawn(trials + more, seed)
    assert [trial_of(first, number) for number in range(trials)] == [
        trial_of(longer, number) for number in range(trials)
    ]


def test_draws_do_not_depend_on_the_other_parameters() -> None:
    sweep = drawn(20)
    alone = replace(sweep, random=sweep.random[2:3])
    for number in range(20):
        assert trial_of(alone, number).parameters["layers"] == trial_of(sweep, number).parameters["layers"]


def test_draws_are_the_same_in_every_version() -> None:
    assert trial_of(drawn(3, seed=7), 2).parameters == {
        "lr": "0.00640566912",
        "momentum": "0.8348646235",
        "layers": "3",
        "optimizer": "a, b",
    }


def test_draws_fill_their_distributions() -> None:
    sweep = drawn(4000)
    found = [trial_of(sweep, number).parameters for number in range(sweep.trials)]
    rates = sorted(float(item["lr"]) for item in found)
    assert 1e-5 <= rates[0] < 2e-5
    assert 5e-2 < rates[-1] <= 1e-1
    assert 5e-4 < rates[2000] < 2e-3  # the median of a log-uniform distribution is the geometric mean of its bounds
    momenta = [float(item["momentum"]) for item in found]
    assert abs(sum(momenta) / 4000 - 0.75) < 0.01
    for name, values in (("layers", ["1", "2", "3", "4"]), ("optimizer", ["sgd", "adam", "a, b"])):
        counts = [sum(item[name] == value for item in found) for value in values]
        assert sum(counts) == 4000
        assert min(counts) > 0.85 * 4000 / len(values)


def test_numbers_read_back_as_they_were_drawn_and_have_few_digits() -> None:
    for number in range(100):
        for name in ("lr", "momentum"):
            text = trial_of(drawn(100), number).parameters[name]
            assert repr(float(text)) == text
            assert float(f"{float(text):.10g}") == float(text)


def test_there_is_no_trial_beyond_the_last() -> None:
    for number in (-1, 6):
        with pytest.raises(IndexError):
            trial_of(grid(2, 3), number)


def test_names_in_braces_are_replaced_in_arguments_once() -> None:
    trial = TrialSpec(17, {"lr": "{trial}", "name": "a b", "n": "3"})
    words = ("--lr={lr}", "{name}", "{trial}/{n}{n}", "{index}", "{unknown}", "{}")
    assert trial.arguments(words) == ("--lr={trial}", "a b", "17/33", "{index}", "{unknown}", "{}")
    assert trial.environment() == {"lr": "{trial}", "name": "a b", "n": "3", "DLAPP_TRIAL": "17"}


def test_a_continued_sweep_has_the_trials_that_ran() -> None:
    before = drawn(10)
    assert first_difference(before, drawn(30), range(10)) is None
    assert first_difference(before, drawn(30, seed=1), [4, 5]) == 4
    assert first_difference(before, drawn(5), [3, 7]) == 7
    grown = replace(grid(2, 3), grid=(GridParameter("p0", ("0.0", "0.1", "0.2")), grid(2, 3).grid[1]), trials=9)
    assert first_difference(grid(2, 3), grown, range(6)) is None
    renumbered = replace(
        grid(2, 3), grid=(grid(2, 3).grid[0], GridParameter("p1", ("1.0", "1.1", "1.2", "x"))), trials=8
    )
    assert first_difference(grid(2, 3), renumbered, range(6)) == 3


def test_a_sweep_is_restored_from_json() -> None:
    table = SweepSpec(sampler=Sampler.LIST, trials=1, table=TrialTable(("lr",), (("0.1",),)))
    for sweep in (grid(2, 3), drawn(5), table):
        assert from_json(SweepSpec, json.loads(json.dumps(to_json(sweep))), strict=True) == sweep
