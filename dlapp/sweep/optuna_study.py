"""Sweeps with parameters chosen by Optuna: its samplers and pruners, used through its ask-and-tell interface.

The study is in the ApplicationMaster's memory. The next ApplicationMaster rebuilds it from the journal: each trial with
its parameters, its reports, and its end. The sampler then continues with a new seed, so its choices differ from those
of an undisturbed study.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dlapp.errors import DlappError
from dlapp.sweep.spec import Distribution, DistributionKind, Goal, SweepSpec
from dlapp.sweep.text_forms import OPTUNA_PRUNERS, OPTUNA_SAMPLERS
from dlapp.sweep.trial import text_of
from dlapp.value import Value

_SEED_STEP = 1_000_003
_MAX_SEED = 1 << 32


class OptunaUnavailable(DlappError):
    """Optuna, or a library that the sampler needs, cannot be imported."""


class PastTrial(Value, kw_only=True):
    """An earlier trial, from the journal.

    Args:
        points: steps and values of the metric that it reported.
        value: the result; None if it has none.
        has_ended: whether it has ended, and will not run again.
        was_pruned: whether a pruner stopped it.
    """

    parameters: dict[str, str]
    points: tuple[tuple[int, float], ...] = ()
    value: float | None = None
    has_ended: bool = False
    was_pruned: bool = False


class OptunaStudy:
    """A study, with the sweep's numbers of its trials.

    Args:
        sweep: with Optuna's sampler.
        past: number -> earlier trial.

    Raises:
        OptunaUnavailable: Optuna is not installed, or what its sampler needs.
        DlappError: an earlier trial does not match the sweep.
    """

    def __init__(self, sweep: SweepSpec, past: Mapping[int, PastTrial] | None = None) -> None:
        before = past or {}
        self._optuna = optuna_module = _load()
        self._sweep = sweep
        self._trials: dict[int, Any] = {}
        self._last_steps: dict[int, int] = {}
        self._is_pruned: set[int] = set()
        optuna_module.logging.set_verbosity(optuna_module.logging.WARNING)
        seed = (sweep.seed + _SEED_STEP * len(before)) % _MAX_SEED
        pruner = OPTUNA_PRUNERS.get(sweep.optuna_pruner, "NopPruner")
        try:
            self._study = optuna_module.create_study(
                direction="maximize" if sweep.goal is Goal.MAX else "minimize",
                sampler=_sampler(optuna_module, sweep.optuna_sampler, seed),
                pruner=getattr(optuna_module.pruners, pruner)(),
            )
        except ImportError as error:
            raise OptunaUnavailable(f"Optuna's sampler {sweep.optuna_sampler} needs more: {error}") from error
        for number, one in sorted(before.items()):
            self._restore(number, one)

    def ask(self, number: int) -> dict[str, str]:
        """Return the parameters of a new trial, which must be journaled before it is started.

        Raises:
            OptunaUnavailable: see the class.
        """
        try:
            trial = self._study.ask()
            parameters = {one.name: _suggested(trial, one) for one in self._sweep.random}
        except ImportError as error:
            raise OptunaUnavailable(f"Optuna's sampler {self._sweep.optuna_sampler} needs more: {error}") from error
        self._trials[number] = trial
        return parameters

    def report(self, number: int, step: int, value: float) -> bool:
        """Record a report of a running trial; return whether the pruner stops it. A step that is not above the last, as
        of a restarted trial, is ignored.
        """
        if step <= self._last_steps.get(number, -1):
            return False
        self._last_steps[number] = step
        trial = self._trials[number]
        trial.report(value, step)
        if self._sweep.optuna_pruner and trial.should_prune():
            self._is_pruned.add(number)
            return True
        return False

    def tell(self, number: int, value: float | None) -> None:
        """Record the end of a trial with its result; None if it failed, or reported no metric."""
        states = self._optuna.trial.TrialState
        if value is None:
            self._study.tell(self._trials[number], state=states.FAIL)
        elif number in self._is_pruned:
            self._study.tell(self._trials[number], state=states.PRUNED)
        else:
            self._study.tell(self._trials[number], value)

    def _restore(self, number: int, past: PastTrial) -> None:
        try:
            values = {one.name: _value_of(past.parameters[one.name], one) for one in self._sweep.random}
        except (LookupError, ValueError) as error:
            raise DlappError(f"the recorded parameters of trial {number} cannot be read: {error!r}") from error
        self._study.enqueue_trial(values)
        trial = self._study.ask()
        for one in self._sweep.random:
            _suggested(trial, one)
        self._trials[number] = trial
        for step, value in past.points:
            trial.report(value, step)
            self._last_steps[number] = step
        if past.was_pruned:
            self._is_pruned.add(number)
        if past.has_ended:
            self.tell(number, past.value)


def _load() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise OptunaUnavailable(f"the sweep's sampler needs Optuna, which cannot be imported here: {error}") from error
    return optuna


def _sampler(optuna_module: Any, name: str, seed: int) -> Any:
    kind = getattr(optuna_module.samplers, OPTUNA_SAMPLERS[name])
    # Trials run in parallel: without it a sampler would give trials that start together nearly the same parameters.
    return kind(seed=seed, constant_liar=True) if name == "tpe" else kind(seed=seed)


def _suggested(trial: Any, parameter: Distribution) -> str:
    """Return the value of a parameter of an Optuna trial as text."""
    if parameter.kind is DistributionKind.CHOICE:
        chosen: str = trial.suggest_categorical(parameter.name, parameter.values)
        return chosen
    low, high = parameter.low, parameter.high
    assert low is not None
    assert high is not None
    if parameter.kind is DistributionKind.INT:
        return text_of(trial.suggest_int(parameter.name, int(low), int(high)), parameter.kind)
    is_log = parameter.kind is DistributionKind.LOGUNIFORM
    return text_of(trial.suggest_float(parameter.name, low, high, log=is_log), parameter.kind)


def _value_of(text: str, parameter: Distribution) -> Any:
    if parameter.kind is DistributionKind.CHOICE:
        return text
    return int(text) if parameter.kind is DistributionKind.INT else float(text)
