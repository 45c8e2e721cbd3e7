"""Trials of a sweep: their numbers, parameters, arguments and variables.

The parameters of a trial depend only on the sweep's parameters, its seed and the trial's number, not on the number or
order of trials. So another ApplicationMaster, or the same sweep with more trials, gives each number the same
parameters. (Optuna's samplers learn from earlier trials; there the journal has the parameters.)
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence

from dlapp.sweep.spec import Distribution, DistributionKind, Sampler, SweepSpec
from dlapp.value import Value

VARIABLE = "DLAPP_TRIAL"
DIGITS = 10
"""Significant digits of drawn floating-point numbers. The last digits of exp and log are not the same on every
machine, and they mean nothing to a trial."""
_DRAW_BITS = 53


class TrialSpec(Value):
    """One trial.

    Args:
        number: from 0, in the order of the first starts.
        parameters: name -> value, in the order of the properties file.
    """

    number: int
    parameters: dict[str, str]

    def arguments(self, words: Sequence[str]) -> tuple[str, ...]:
        """Return the arguments of the trial's program: each ``{NAME}`` of a parameter is replaced by its value, and
        ``{trial}`` by the number."""
        from dlapp.values.program.placeholders import TRIAL, substitute  # a task without trials does not need it

        return substitute(words, {TRIAL: str(self.number), **self.parameters})

    def environment(self) -> dict[str, str]:
        """Return the variables of the trial's program in addition to those of the application."""
        return {**self.parameters, VARIABLE: str(self.number)}


def trial_of(sweep: SweepSpec, number: int) -> TrialSpec:
    """Return a trial of a grid, of distributions or of a list, but not of Optuna.

    Raises:
        IndexError: there is no such trial.
    """
    if not 0 <= number < sweep.trials:
        raise IndexError(number)
    if sweep.sampler is Sampler.GRID:
        return TrialSpec(number, _grid_parameters(sweep, number))
    if sweep.table is not None:
        return TrialSpec(number, dict(zip(sweep.table.names, sweep.table.rows[number], strict=True)))
    if sweep.sampler is Sampler.OPTUNA:
        raise ValueError("Optuna has the parameters of this sweep")
    return TrialSpec(number, {one.name: _sampled(one, sweep.seed, number) for one in sweep.random})


def first_difference(before: SweepSpec, after: SweepSpec, numbers: Sequence[int]) -> int | None:
    """Return the first trial that differs in two sweeps; None if all are equal.

    Args:
        before: the sweep that ran.
        after: the one that is to continue with its trials.
        numbers: the numbers of the started trials; ``after`` may lack some.
    """
    if Sampler.OPTUNA in (before.sampler, after.sampler):
        is_same = before.sampler is after.sampler and before.random == after.random
        return None if is_same or not numbers else numbers[0]
    for number in numbers:
        if number >= after.trials or trial_of(before, number).parameters != trial_of(after, number).parameters:
            return number
    return None


def text_of(value: float, kind: DistributionKind) -> str:
    """Return a drawn number as text."""
    return str(int(value)) if kind is DistributionKind.INT else repr(float(value))


def _grid_parameters(sweep: SweepSpec, number: int) -> dict[str, str]:
    chosen: list[str] = []
    for parameter in reversed(sweep.grid):
        number, place = divmod(number, len(parameter.values))
        chosen.append(parameter.values[place])
    return {parameter.name: value for parameter, value in zip(sweep.grid, reversed(chosen), strict=True)}


def _sampled(parameter: Distribution, seed: int, number: int) -> str:
    # A digest instead of a generator: it has no state of earlier draws, and is the same in every Python.
    digest = hashlib.sha256(f"{seed}/{number}/{parameter.name}".encode()).digest()
    drawn = int.from_bytes(digest, "big")
    if parameter.kind is DistributionKind.CHOICE:
        return parameter.values[drawn % len(parameter.values)]
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    if parameter.kind is DistributionKind.INT:
        return text_of(int(low) + drawn % (int(high) - int(low) + 1), parameter.kind)
    share = (drawn >> (256 - _DRAW_BITS)) / (1 << _DRAW_BITS)
    if parameter.kind is DistributionKind.LOGUNIFORM:
        value = math.exp(math.log(low) + share * (math.log(high) - math.log(low)))
    else:
        value = low + share * (high - low)
    return text_of(min(max(float(f"{value:.{DIGITS}g}"), low), high), parameter.kind)


def numbers_of(parameters: Mapping[str, str]) -> dict[str, float]:
    """Return the parameters that are finite numbers, as numbers."""
    found = {}
    for name, text in parameters.items():
        try:
            value = float(text)
        except ValueError:
            continue
        if math.isfinite(value):
            found[name] = value
    return found
