"""Specification of a sweep: the ``[sweep]`` section of a properties file as values.

Parameters and their values are text, like environment variables and arguments: a trial gets exactly what the user
wrote, and numbers drawn by dlapp are formatted so that parsing restores the same number.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from enum import Enum

from dlapp.errors import SpecError
from dlapp.system.text import first_repeated
from dlapp.value import Value
from dlapp.values.rules import Limit, Problem, found_by, limit_problems, refuse

MAX_TRIALS = 10_000
"""Maximum number of trials; simulated and measured with this number."""
MAX_PARAMETERS = 100
_COUNTED = 10**18
"""Number above which the trials of a grid are not counted: Python writes no number of thousands of digits."""
MAX_VALUE_BYTES = 4096
MAX_TABLE_BYTES = 128 << 10
"""Text of all rows of a list, or all values of a grid: on YARN they are in the application's credentials, which have a
limit."""
MAX_RUNGS = 32
MAX_STEP = 1 << 53
"""Maximum step: larger ones do not fit into a float."""
TRIALS = Limit(1, MAX_TRIALS)
TRIALS_PER_CONTAINER = Limit(1, 256)
TRIAL_RETRIES = Limit(0, 1000)
TRIAL_FAILURES = Limit(0, MAX_TRIALS)
TRIAL_TIME = Limit(0.0, unit="s", above=True, whole=False)
SEED = Limit(0, (1 << 53) - 1)
RESERVED_PARAMETERS = ("index", "trial")
"""Names of ``{index}`` and ``{trial}`` in arguments, which dlapp replaces by numbers of its own."""
OPTUNA = "optuna:"
MAX_RESULTS_BYTES = 32 << 20
"""Size limit of the file with the results of a sweep: with 10,000 trials it has about 10 MB."""
MAX_VALUES_BYTES = 12 << 20
"""Size limit of the parameters of all trials in that file: a file that is too large could not be read, and the sweep
could not continue."""
_NUMBER_BYTES = 18
"""Size of a drawn number in that file, with its quotes."""


class Sampler(Enum):
    """Source of the parameters of trials."""

    GRID = "grid"
    """All combinations of the values of each parameter."""
    RANDOM = "random"
    """Draws from distributions, each trial's independent of the others."""
    LIST = "list"
    """Rows of a file."""
    OPTUNA = "optuna"
    """A sampler of Optuna, which learns from the trials that have ended."""


class Goal(Enum):
    """Direction in which a metric is better."""

    MAX = "max"
    MIN = "min"


class SweepCommit(Enum):
    """Time at which the outputs of trials are committed."""

    END = "end"
    """All together, when the sweep has ended."""
    TRIAL = "trial"
    """The output of each trial is committed at its end."""


class DistributionKind(Enum):
    """Kind of a distribution."""

    UNIFORM = "uniform"
    LOGUNIFORM = "loguniform"
    INT = "int"
    CHOICE = "choice"


class GridParameter(Value):
    """A parameter of a grid, with its values in the order of the file."""

    name: str
    values: tuple[str, ...]

    def __post_init__(self) -> None:
        _check_values(f"sweep.grid.{self.name}", self.values)


class Distribution(Value, kw_only=True):
    """A parameter with a distribution of its values.

    Args:
        low, high: its bounds; for `DistributionKind.INT` both are possible values; None with ``choice``.
        values: those of ``choice``.
    """

    name: str
    kind: DistributionKind
    low: float | None = None
    high: float | None = None
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        where = f"sweep.random.{self.name}"
        if self.kind is DistributionKind.CHOICE:
            _check_values(where, self.values)
        elif problem := bounds_problem(self.kind, self.low, self.high):
            raise SpecError(where, problem)


class TrialTable(Value):
    """Parameters of trials as rows of a file: their names, and for each trial its values, in the same order."""

    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.names):
                problem = f"row {number} has {len(row)} values, and there are {len(self.names)} parameters"
                raise SpecError("sweep.list", problem)
            for value in row:
                check_value("sweep.list", value)


class AshaSpec(Value):
    """Early stopping by successive halving (`dlapp.sweep.asha`).

    Args:
        rungs: steps at which trials are compared, growing.
        factor: of the trials that reach a rung, one in this many continues.
    """

    rungs: tuple[int, ...]
    factor: float

    def __post_init__(self) -> None:
        if problem := asha_problem(self.rungs, self.factor):
            raise SpecError("sweep.asha", problem)


class SweepSpec(Value, kw_only=True):
    """The ``[sweep]`` section.

    Args:
        grid: the parameters of a grid; the last one changes first.
        random: the parameters that are drawn, also by Optuna.
        table: the rows of a list.
        seed: the seed of the draws; the same seed gives the same trials.
        optuna_sampler: name of Optuna's sampler (`dlapp.sweep.text_forms`).
        optuna_pruner: name of Optuna's pruner; empty: none.
        metric: the payload's metric that trials are compared by; empty: they are not.
        goal: whether more of it is better; None: there is no metric.
        concurrency: maximum number of parallel trials; None for the capacity of the containers.
        trials_per_container: maximum number of parallel trials in a container.
        trial_time_s: limit for one run of a trial [s]; None for no limit.
        retries: number of restarts of a trial after failures of its program.
        max_failures: number of failed trials that ends the sweep; None for no limit.
        asha: early stopping; None for none.
        commit: when output is committed.
    """

    sampler: Sampler
    trials: int
    grid: tuple[GridParameter, ...] = ()
    random: tuple[Distribution, ...] = ()
    table: TrialTable | None = None
    seed: int = 0
    optuna_sampler: str = ""
    optuna_pruner: str = ""
    metric: str = ""
    goal: Goal | None = None
    concurrency: int | None = None
    trials_per_container: int = 1
    trial_time_s: float | None = None
    retries: int = 0
    max_failures: int | None = None
    asha: AshaSpec | None = None
    commit: SweepCommit = SweepCommit.END

    def __post_init__(self) -> None:
        refuse(self.problems())

    def problems(self) -> Iterator[Problem]:
        """Yield what is wrong with the sweep."""
        yield from limit_problems("sweep", self, _LIMITS)
        for one in self.grid:
            yield from found_by(_check_values, f"sweep.grid.{one.name}", one.values)
        yield from sweep_problems(self)

    @property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters."""
        if self.table is not None:
            return self.table.names
        return (*(one.name for one in self.grid), *(one.name for one in self.random))

    def concurrency_of(self, containers: int) -> int:
        """Return the maximum number of trials that run in parallel in a number of containers."""
        most = containers * self.trials_per_container
        return most if self.concurrency is None else min(self.concurrency, most)

    def longest_s(self, containers: int) -> float | None:
        """Return the maximum time that a number of containers needs for the programs of all trials [s]; None if there
        is no limit.

        Repeated runs of a trial after the loss of its container are not counted.
        """
        if self.trial_time_s is None:
            return None
        rounds = -(-self.trials // self.concurrency_of(containers))
        return rounds * (1 + self.retries) * self.trial_time_s


def sweep_problems(sweep: SweepSpec) -> Iterator[tuple[str, str]]:
    """Yield contradictions in a sweep: the key of a properties file, and the problem."""
    given = {
        Sampler.GRID: bool(sweep.grid),
        Sampler.RANDOM: bool(sweep.random),
        Sampler.LIST: sweep.table is not None,
    }
    source = Sampler.RANDOM if sweep.sampler is Sampler.OPTUNA else sweep.sampler
    if not given[source]:
        yield "sweep", f"has no parameters: {_SOURCES[source]} is missing"
    for other, is_given in given.items():
        if is_given and other is not source:
            yield "sweep", f"has {_SOURCES[other]}, which has no effect with sampler={sweep.sampler.value}"
    names = sweep.parameters
    if len(names) > MAX_PARAMETERS:
        yield "sweep", f"has {len(names)} parameters, the maximum is {MAX_PARAMETERS}"
    if (twice := first_repeated(names)) is not None:
        yield "sweep", f"has the parameter {twice} twice"
    most = most_trials(sweep)
    if most is not None and sweep.trials > most:
        where = f"the grid has {most}" if sweep.sampler is Sampler.GRID else f"the list has {most}"
        yield "sweep.trials", f"is {sweep.trials}, {where}"
    if (size := table_bytes(sweep)) > MAX_TABLE_BYTES:
        yield "sweep", f"has {size >> 10} KiB of values, the maximum is {MAX_TABLE_BYTES >> 10} KiB"
    if (size := sweep.trials * _longest_row(sweep)) > MAX_VALUES_BYTES:
        problem = f"has {size >> 10} KiB of values in its trials, the maximum is {MAX_VALUES_BYTES >> 10} KiB"
        yield "sweep", problem
    if sweep.metric and sweep.goal is None:
        yield "sweep.goal", "is missing: max or min, for which metric is better"
    if not sweep.metric:
        for name, is_set in (("goal", sweep.goal is not None), ("asha", sweep.asha is not None)):
            if is_set:
                yield f"sweep.{name}", "has no effect without metric"
        if sweep.sampler is Sampler.OPTUNA:
            yield "sweep.metric", "is missing: Optuna learns from it"
    if sweep.sampler is not Sampler.OPTUNA:
        if sweep.optuna_pruner:
            yield "sweep.pruner", f"has no effect without sampler={OPTUNA}NAME (asha stops trials of every sampler)"
    elif sweep.asha is not None and sweep.optuna_pruner:
        yield "sweep.pruner", "is given, and so is asha; one of them stops trials"


def most_trials(sweep: SweepSpec) -> int | None:
    """Return the number of possible trials, at most `_COUNTED`; None if unlimited."""
    if sweep.table is not None:
        return len(sweep.table.rows)
    if sweep.sampler is not Sampler.GRID:
        return None
    most = 1
    for one in sweep.grid:
        most = min(most * len(one.values), _COUNTED)
    return most


def table_bytes(sweep: SweepSpec) -> int:
    """Return the total size of the text values of a sweep [bytes]."""
    rows = sweep.table.rows if sweep.table is not None else ()
    columns = (*(one.values for one in sweep.grid), *(one.values for one in sweep.random))
    return sum(len(value.encode(errors="surrogateescape")) + 3 for row in (*rows, *columns) for value in row)


def _longest_row(sweep: SweepSpec) -> int:
    """Return how long the values of one trial can be in the file of results [bytes]; those of a list are few."""
    import json

    columns = (*(one.values for one in sweep.grid), *(one.values for one in sweep.random))
    return sum(max((len(json.dumps(value)) for value in values), default=_NUMBER_BYTES) for values in columns)


def check_value(where: str, value: str) -> None:
    """Refuse text that is impossible in a variable or argument. Raises SpecError; the message names ``where``."""
    if "\0" in value:
        raise SpecError(where, "has a value with a NUL in it")
    if len(value.encode(errors="surrogateescape")) > MAX_VALUE_BYTES:
        raise SpecError(where, f"has a value of more than {MAX_VALUE_BYTES} bytes")


def bounds_problem(kind: DistributionKind, low: float | None, high: float | None) -> str:
    """Return why these bounds are invalid for a distribution; empty if they are valid."""
    if low is None or high is None:
        return f"{kind.value} needs two bounds"
    if not (math.isfinite(low) and math.isfinite(high)):
        return "a bound is not finite"
    if not low < high:
        return f"the upper bound {high:.12g} is not above the lower one, {low:.12g}"
    if kind is DistributionKind.LOGUNIFORM and low <= 0:
        return f"the lower bound of loguniform is {low:.12g}, it must be above 0"
    if kind is DistributionKind.INT:
        if low != int(low) or high != int(high):
            return "the bounds of int are whole numbers"
        if max(-low, high) >= MAX_STEP:
            return f"a bound is beyond {MAX_STEP}"
    return ""


def asha_problem(rungs: tuple[int, ...], factor: float) -> str:
    """Return why trials cannot be compared at these steps; empty if they can."""
    if not rungs:
        return "has no rung"
    if len(rungs) > MAX_RUNGS:
        return f"has {len(rungs)} rungs, the maximum is {MAX_RUNGS}"
    for one, following in zip((0, *rungs), rungs, strict=False):
        if following <= one:
            return f"the rung {following} is not above " + (f"{one}, the one before it" if one else "0")
    if rungs[-1] >= MAX_STEP:
        return f"the rung {rungs[-1]} is too large"
    if not 1 < factor <= 1e6:
        return f"the factor is {factor:g}, it must be above 1"
    return ""


def _check_values(where: str, values: tuple[str, ...]) -> None:
    if not values:
        raise SpecError(where, "has no values")
    for value in values:
        check_value(where, value)
    if (twice := first_repeated(values)) is not None:
        raise SpecError(where, f"has {twice!r} twice")


_LIMITS = (
    ("trials", "trials", TRIALS),
    ("trials_per_container", "trials_per_container", TRIALS_PER_CONTAINER),
    ("concurrency", "concurrency", TRIALS),
    ("retries", "retries", TRIAL_RETRIES),
    ("max_failures", "max_failures", TRIAL_FAILURES),
    ("seed", "seed", SEED),
    ("trial_time_s", "trial_time", TRIAL_TIME),
)
_SOURCES = {Sampler.GRID: "grid.NAME", Sampler.RANDOM: "random.NAME", Sampler.LIST: "list"}
