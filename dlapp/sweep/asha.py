"""Early stopping of trials by asynchronous successive halving, ASHA: the stopping variant, like Ray's ASHAScheduler.

A rung is a step at which trials are compared. The first report of a trial at or after a rung is recorded there. The
trial continues if its value is not below the ``1 - 1/factor`` quantile of the values recorded in this rung before. So
the first trial of a rung continues, and no trial waits for another one. Each decision depends only on earlier ones,
which are journaled: the next ApplicationMaster continues with `AshaState.restore`.

Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020; Ray 2.x,
ray/tune/schedulers/async_hyperband.py, one bracket, ``stop_last_trials``.
"""

from __future__ import annotations

from bisect import insort

from dlapp.sweep.spec import AshaSpec, Goal
from dlapp.value import Value


class RungDecision(Value):
    """Record of a trial in a rung, with the decision.

    Args:
        rung: the step of the rung.
        step, value: those of the report.
        cutoff: the required value; None for the first trial in its rung.
        stops: whether the trial is stopped.
    """

    trial: int
    rung: int
    step: int
    value: float
    cutoff: float | None
    stops: bool

    @property
    def message(self) -> str:
        """Return why the trial is stopped."""
        cutoff = "none" if self.cutoff is None else f"{self.cutoff:.6g}"
        return f"stopped early at step {self.step}: {self.value:.6g}, rung {self.rung} needs {cutoff}"


class AshaState:
    """Values of the trials that have reached each rung."""

    def __init__(self, spec: AshaSpec, goal: Goal) -> None:
        self._sign = 1.0 if goal is Goal.MAX else -1.0
        self._quantile = (1 - 1 / spec.factor) * 100 / 100  # as in Ray, which gives numpy a percentage
        self._rungs = spec.rungs[::-1]
        self._recorded: dict[int, set[int]] = {rung: set() for rung in spec.rungs}
        self._values: dict[int, list[float]] = {rung: [] for rung in spec.rungs}

    def report(self, trial: int, step: int, value: float) -> RungDecision | None:
        """Decide on a trial's report of a finite value, and record it; None if it is not its first one in a rung."""
        for rung in self._rungs:
            if step < rung or trial in self._recorded[rung]:
                continue
            cutoff = _quantile(self._values[rung], self._quantile)
            stops = cutoff is not None and self._sign * value < cutoff
            decision = RungDecision(trial, rung, step, value, None if cutoff is None else self._sign * cutoff, stops)
            self.restore(decision)
            return decision
        return None

    def restore(self, decision: RungDecision) -> None:
        """Restore an earlier decision. Idempotent."""
        recorded = self._recorded.get(decision.rung)
        if recorded is not None and decision.trial not in recorded:
            recorded.add(decision.trial)
            insort(self._values[decision.rung], self._sign * decision.value)


def _quantile(ordered: list[float], share: float) -> float | None:
    """Return a quantile with linear interpolation, by the same operations as numpy: the last digit decides ties."""
    if not ordered:
        return None
    place = (len(ordered) - 1) * share
    below = int(place)
    if below >= len(ordered) - 1:
        return ordered[-1]
    low, high, weight = ordered[below], ordered[below + 1], place - below
    if weight >= 0.5:
        return high - (high - low) * (1 - weight)
    return low + (high - low) * weight
