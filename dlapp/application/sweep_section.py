"""Section ``[sweep]`` of a properties file, converted to a `SweepSpec`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from dlapp.application.keys import GRID, RANDOM
from dlapp.application.properties import Problems, Properties
from dlapp.errors import UsageError
from dlapp.sweep.spec import (
    MAX_TRIALS,
    RESERVED_PARAMETERS,
    Goal,
    GridParameter,
    Sampler,
    SweepCommit,
    SweepSpec,
    TrialTable,
    most_trials,
    sweep_problems,
)
from dlapp.sweep.trial_list import MAX_FILE_BYTES, read_trial_list
from dlapp.system.text import nearest
from dlapp.value import replace

SECTION = "sweep"
_REFERENCE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}", re.ASCII)
_ANY_METRIC = "metric"


class _Draft(SweepSpec, kw_only=True):
    """A sweep that may have errors, which `sweep_problems` finds."""

    def __post_init__(self) -> None:
        """Accept any values; each alone was checked when the file was read."""


def read_sweep_section(properties: Properties, problems: Problems, path_of: Callable[[str], str]) -> SweepSpec | None:
    """Return the sweep of a file; None after errors, which are noted.

    Args:
        properties: the file, with a ``[sweep]``.
        path_of: returns the absolute path of a file as the user wrote it; ValueError with the problem.
    """
    broken = {one for one in problems.named if one.startswith(f"{SECTION}.")}
    keys = properties.sections[SECTION]

    def get(key: str, default: Any = None) -> Any:
        return properties.value(SECTION, key, default)

    def add(where: str, problem: str) -> None:
        problems.add(properties.line(SECTION, where.partition(".")[2]), where, problem)

    grid = tuple(GridParameter(key.removeprefix(GRID), get(key)) for key in keys if key.startswith(GRID))
    random = tuple(replace(get(key), name=key.removeprefix(RANDOM)) for key in keys if key.startswith(RANDOM))
    table = None
    if "list" in keys:
        try:
            table = _read_table(path_of(get("list")))
        except ValueError as refused:
            for line in str(refused).split("\n"):
                add(f"{SECTION}.list", line)
            broken.add(f"{SECTION}.list")
    sampler, _, optuna_sampler = get("sampler", _usual_sampler(keys, broken)).partition(":")
    sources = tuple(f"{SECTION}.{one}" for one in (GRID, RANDOM, "list"))
    parameters_broken = any(one.startswith(sources) for one in broken)
    draft = _Draft(
        sampler=Sampler(sampler),
        trials=get("trials", 0),
        grid=grid,
        random=random,
        table=table,
        seed=get("seed", 0),
        optuna_sampler=optuna_sampler,
        optuna_pruner=get("pruner", ""),
        metric=get("metric", _ANY_METRIC if f"{SECTION}.metric" in broken else ""),
        goal=Goal(get("goal")) if "goal" in keys else None,
        concurrency=get("concurrency"),
        trials_per_container=get("trials_per_container", 1),
        trial_time_s=get("trial_time"),
        retries=get("retries", 0),
        max_failures=get("max_failures"),
        asha=get("asha"),
        commit=SweepCommit(get("commit", SweepCommit.END.value)),
    )
    if "trials" not in keys:
        draft = replace(draft, trials=_default_trials(draft, broken, add))
    if "seed" in keys and draft.sampler in (Sampler.GRID, Sampler.LIST):
        add(f"{SECTION}.seed", f"has no effect with sampler={draft.sampler.value}, which draws nothing")
    for where, problem in sweep_problems(draft):
        if where in broken or (parameters_broken and where in (SECTION, f"{SECTION}.trials")):
            continue
        add(where, problem)
    if any(one == SECTION or one.startswith(f"{SECTION}.") for one in problems.named):
        return None
    return SweepSpec(**{name: getattr(draft, name) for name in SweepSpec.record_fields})


def _default_trials(draft: SweepSpec, broken: Collection[str], add: Callable[[str, str], None]) -> int:
    """Return the default number of trials: all possible ones. ``broken`` has the keys whose errors are known."""
    most = most_trials(draft)
    if most is not None and most > MAX_TRIALS:
        add(SECTION, f"has {most} trials, the maximum is {MAX_TRIALS}; trials=N takes the first N")
    elif most is None and draft.random and f"{SECTION}.trials" not in broken:
        add(f"{SECTION}.trials", "is missing: how many trials are drawn")
    return min(most or 1, MAX_TRIALS)


def _usual_sampler(keys: Any, broken: set[str]) -> str:
    """Return the default sampler: the kind of the parameters."""
    names = [*keys, *(one.partition(".")[2] for one in broken)]
    if any(one.startswith(GRID) for one in names):
        return Sampler.GRID.value
    if "list" in names:
        return Sampler.LIST.value
    return Sampler.RANDOM.value if any(one.startswith(RANDOM) for one in names) else Sampler.GRID.value


def _read_table(path: str) -> TrialTable:
    """Read a list of trials. Raises UsageError: it cannot be read, or has errors."""
    try:
        # Do not block on a FIFO without a writer.
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            data = stream.read(MAX_FILE_BYTES + 1) or b""  # None: a FIFO whose writer has written nothing
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error
    return read_trial_list(data, path)


def unknown_names(sweep: SweepSpec, args: Sequence[str]) -> Iterator[str]:
    """Return notes on ``{NAME}`` in arguments that is not the name of a parameter."""
    known = (*sweep.parameters, *RESERVED_PARAMETERS)
    for name in dict.fromkeys(name for word in args for name in _REFERENCE.findall(word)):
        if name not in known:
            yield f"user_shell_args: {{{name}}} is no parameter of the sweep and stays as it is, {nearest(name, known)}"
