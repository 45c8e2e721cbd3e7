"""Early stopping of trials by asynchronous successive halving, ASHA: the stopping variant, as Ray's ASHAScheduler.

A rung is a step at which trials are compared. The first report of a trial at or after a rung is recorded there. The
trial goes on if its value is not below the ``1 - 1/factor`` quantile of those that were recorded in this rung before
it. So the first trial of a rung goes on, and no trial waits for another one. Each decision depends only on those before
it, which are journaled: the next ApplicationMaster goes on with `AshaState.restore`.

Source: Li et al., A System for Massively Parallel Hyperparameter Tuning, 2020; Ray 2.x,
ray/tune/schedulers/async_hyperband.py, one bracket, ``stop_last_trials``.
"""

from __future__ import annotations

from bisect import insort

from dlapp.sweep.spec import AshaSpec, Goal
from dlapp.value import Value


class RungDecision(Value):
    """Record of a trial in a rung, and what was decided.

    Args:
        trial: number of the trial.
        rung: the step of the rung.
        step: that was reported.
        value: of the metric.
        cutoff: the value that it had to reach; None: it is the first in its rung.
        stops: the trial is stopped.
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
    """Values of the trials that have reached each rung.

    Args:
        spec: rungs and factor.
        goal: whether more of the metric is better.
    """

    def __init__(self, spec: AshaSpec, goal: Goal) -> None:
        self._sign = 1.0 if goal is Goal.MAX else -1.0
        self._quantile = (1 - 1 / spec.factor) * 100 / 100  # as in Ray, which gives numpy a percentage
        self._rungs = spec.rungs[::-1]
        self._recorded: dict[int, set[int]] = {rung: set() for rung in spec.rungs}
        self._values: dict[int, list[float]] = {rung: [] for rung in spec.rungs}

    def report(self, trial: int, step: int, value: float) -> RungDecision | None:
        """Decide on a report, and record it; None: it is not the first of its trial in a rung.

        Args:
            trial: number of the trial.
            step: that it reports.
            value: of the metric, finite.
        """
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
        """Record a decision that was made before; once more changes nothing."""
        recorded = self._recorded.get(decision.rung)
        if recorded is not None and decision.trial not in recorded:
            recorded.add(decision.trial)
            insort(self._values[decision.rung], self._sign * decision.value)


def _quantile(ordered: list[float], share: float) -> float | None:
    """Return a quantile with linear interpolation, in numpy's operations: ties are decided by the last digit."""
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
