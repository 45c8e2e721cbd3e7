"""Text forms of the values of ``[sweep]``, as in a properties file.

Each function raises ValueError with the problem only; the caller adds the location.
"""

from __future__ import annotations

import re

from dlapp.errors import SpecError
from dlapp.sweep.spec import OPTUNA, AshaSpec, Distribution, DistributionKind, Sampler
from dlapp.system.text import first_repeated, nearest, read_choice, read_count, refuse_brackets, shown

OPTUNA_SAMPLERS = {
    "tpe": "TPESampler",
    "random": "RandomSampler",
    "cmaes": "CmaEsSampler",
    "gp": "GPSampler",
}
"""Name in a properties file -> Optuna's class."""
OPTUNA_PRUNERS = {
    "median": "MedianPruner",
    "halving": "SuccessiveHalvingPruner",
    "hyperband": "HyperbandPruner",
}
_CALL = re.compile(r"([A-Za-z_]+)[ \t\n]*\((.*)\)", re.DOTALL)
_METRIC = re.compile(r"[A-Za-z0-9_.:/@%+-]{1,64}", re.ASCII)
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?", re.ASCII)


def read_values(text: str) -> tuple[str, ...]:
    """Return the values of a parameter: ``0.1, 0.01``; one with a comma is in double quotes."""
    import csv  # only for a sweep

    refuse_brackets(text, can_quote=True)
    try:
        rows = list(csv.reader([text.replace("\n", ",")], skipinitialspace=True, strict=True))
    except csv.Error as error:
        raise ValueError(f"{shown(text)} has a quote that does not close, or text after one ({error})") from None
    values = tuple(value.strip() for row in rows for value in row if value.strip())
    if not values:
        raise ValueError("has no values")
    if (twice := first_repeated(values)) is not None:
        raise ValueError(f"has {shown(twice)} twice")
    return values


def read_distribution(text: str) -> Distribution:
    """Return a distribution without a name: ``uniform(0, 1)``, ``loguniform(1e-5, 0.1)``, ``int(1, 8)``,
    ``choice(a, b)``."""
    kinds = [one.value for one in DistributionKind]
    if not (match := _CALL.fullmatch(text)):
        raise ValueError(f"{shown(text)} is not a distribution: uniform(0, 1), loguniform, int or choice")
    if match[1] not in kinds:
        raise ValueError(f"{shown(match[1])} is not a distribution, {nearest(match[1], kinds)}")
    kind = DistributionKind(match[1])
    if kind is DistributionKind.CHOICE:
        return _distribution(kind, None, None, read_values(match[2]))
    bounds = [one.strip() for one in match[2].split(",")]
    if len(bounds) != 2:
        raise ValueError(f"{kind.value} needs two bounds, as in {kind.value}(1, 10)")
    for bound in bounds:
        if not _NUMBER.fullmatch(bound):
            raise ValueError(f"{shown(bound)} is not a number")
    return _distribution(kind, float(bounds[0]), float(bounds[1]), ())


def _distribution(
    kind: DistributionKind, low: float | None, high: float | None, values: tuple[str, ...]
) -> Distribution:
    try:
        return Distribution(name="", kind=kind, low=low, high=high, values=values)
    except SpecError as refused:
        raise ValueError(refused.problem) from None


def read_asha(text: str) -> AshaSpec:
    """Return when trials are stopped: ``1, 3, 9: 3``, the rungs and the factor."""
    rungs, colon, factor = text.rpartition(":")
    if not colon:
        raise ValueError(f"{shown(text)} is not RUNGS:FACTOR, such as 1, 3, 9: 3")
    steps = []
    for rung in rungs.split(","):
        try:
            steps.append(read_count(rung.strip(), 1))
        except ValueError as problem:
            raise ValueError(f"a rung {problem}" if rung.strip().isdecimal() else f"the rung {problem}") from None
    if not _NUMBER.fullmatch(factor.strip()):
        raise ValueError(f"the factor {shown(factor.strip())} is not a number")
    try:
        return AshaSpec(tuple(steps), float(factor))
    except SpecError as refused:
        raise ValueError(refused.problem) from None


def read_sampler(text: str) -> str:
    """Return the name of a sampler that exists: ``grid``, ``random``, ``list``, or ``optuna:NAME``."""
    known = [one.value for one in Sampler if one is not Sampler.OPTUNA]
    known += [f"{OPTUNA}{name}" for name in OPTUNA_SAMPLERS]
    return read_choice(text, known)


def read_metric(text: str) -> str:
    """Return the name of a metric, as payloads report it."""
    if not _METRIC.fullmatch(text):
        raise ValueError(f"{shown(text)} is not a metric: 1 to 64 letters, digits or any of _ . : / @ % + -")
    return text
