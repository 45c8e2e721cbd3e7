"""Section ``[sweep]`` of a properties file, converted to a `SweepSpec`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

from dlapp.application.keys import GRID, RANDOM, SECTIONS, named_keys
from dlapp.application.properties import Problems
from dlapp.errors import UsageError
from dlapp.sweep.spec import (
    MAX_TRIALS,
    GridParameter,
    Sampler,
    SweepSpec,
    TrialTable,
    most_trials,
)
from dlapp.sweep.trial_list import MAX_FILE_BYTES, read_trial_list
from dlapp.value import replace
from dlapp.values.rules import changed, unchecked

SECTION = "sweep"
_ANY_METRIC = "metric"


def read_sweep_section(settings: Mapping[str, Any], problems: Problems, path_of: Callable[[str], str]) -> SweepSpec:
    """Return the draft of a sweep, whose rules are not checked.

    Args:
        settings: key of ``[sweep]`` -> value.
        problems: collects the errors of files and of what is missing; its named keys have errors already.
        path_of: returns the absolute path of a file as the user wrote it; ValueError with the problem.
    """
    broken = {one for one in problems.named if one.startswith(f"{SECTION}.")}
    fields = {key.field: settings[name] for name, key in SECTIONS[SECTION].items() if key.field and name in settings}
    random = tuple(replace(one, name=name) for name, one in named_keys(settings, RANDOM))
    table = None
    if "list" in settings:
        try:
            table = _read_table(path_of(settings["list"]))
        except ValueError as refused:
            for line in str(refused).split("\n"):
                problems.report(f"{SECTION}.list", line)
            broken.add(f"{SECTION}.list")
    if f"{SECTION}.metric" in broken:
        fields["metric"] = _ANY_METRIC
    sampler, _, optuna_sampler = settings.get("sampler", _usual_sampler(settings, broken)).partition(":")
    draft = unchecked(
        SweepSpec,
        **{"trials": 0, **fields},
        sampler=Sampler(sampler),
        optuna_sampler=optuna_sampler,
        grid=tuple(unchecked(GridParameter, name=name, values=values) for name, values in named_keys(settings, GRID)),
        random=random,
        table=table,
    )
    if "trials" not in settings:
        draft = changed(draft, trials=_default_trials(draft, broken, problems.report))
    if "seed" in settings and draft.sampler in (Sampler.GRID, Sampler.LIST):
        problems.report(f"{SECTION}.seed", f"has no effect with sampler={draft.sampler.value}, which draws nothing")
    return draft


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
