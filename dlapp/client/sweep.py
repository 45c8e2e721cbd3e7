"""Sweep for programs: its trials, as its application has recorded them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.cluster import ENDED
from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.sweep.results import SweepResults, TrialState, TrialView, read_results
from dlapp.sweep.spec import Sampler
from dlapp.sweep.trial import TrialSpec, trial_of
from dlapp.value import replace
from dlapp.values.ids import ApplicationId

if TYPE_CHECKING:
    from dlapp.cluster.engine import Engine


class Sweep:
    """The trials of one application.

    Args:
        application_id: the id of the application.
        engine: the engine of its client, which must stay open.
    """

    def __init__(self, application_id: ApplicationId, engine: Engine) -> None:
        self.application_id, self._engine = application_id, engine

    def results(self, *, curves: bool = True) -> SweepResults:
        """Return the results of all trials; while they run, as of some seconds ago.

        Args:
            curves: include their curves, which takes most of the time.

        Raises:
            NotFound: there is no such application.
            UsageError: it has no sweep.
            DlappError: its results cannot be read.
        """
        found = self._read(curves)
        if any(one.state is TrialState.RUNNING for one in found.trials):
            view = self._engine.view(self.application_id).json
            if view["state"] in ENDED:
                # Read again: the last results may have arrived since. Trials that are still running in them were never
                # recorded.
                found = self._read(curves)
                return replace(found, trials=tuple(map(_ended, found.trials)))
        return found

    def _read(self, curves: bool) -> SweepResults:
        text = self._engine.trials_text(self.application_id)
        if text:
            try:
                return read_results(text, curves=curves)
            except ValueError as error:
                raise DlappError(f"the trials of {self.application_id} cannot be read: {error}") from error
        sweep = self._engine.submission(self.application_id).spec.sweep
        if sweep is None:
            raise UsageError(f"{self.application_id} has no [sweep]")
        return SweepResults(total=sweep.trials, parameters=sweep.parameters, metric=sweep.metric, goal=sweep.goal)

    def trials(self) -> list[TrialView]:
        """Return the started trials, best first. Raises the errors of `results`."""
        return self.results().ranked()

    def best(self) -> TrialView | None:
        """Return the best of the trials that are done or were stopped early; None if none has a metric yet. Raises the
        errors of `results`."""
        return self.results().best()

    def trial(self, number: int) -> TrialSpec:
        """Return the parameters of a trial.

        Raises:
            NotFound: there is no such trial, or Optuna has not chosen its parameters yet. See also `results`.
        """
        found = next((one for one in self.results(curves=False).trials if one.number == number), None)
        if found is not None:
            return TrialSpec(number, found.parameters)
        sweep = self._engine.submission(self.application_id).spec.sweep
        assert sweep is not None
        if 0 <= number < sweep.trials and sweep.sampler is Sampler.OPTUNA:
            what = f"trial {number} of {self.application_id}"
            raise NotFound(f"{what} has no parameters yet: Optuna chooses them at its start")
        try:
            return trial_of(sweep, number)
        except IndexError:
            last = sweep.trials - 1
            raise NotFound(f"{self.application_id} has no trial {number}; its trials are 0 to {last}") from None


def _ended(trial: TrialView) -> TrialView:
    """Return a trial of an ended application: one that was running will run again in a sweep that resumes it."""
    if trial.state is not TrialState.RUNNING:
        return trial
    return replace(trial, state=TrialState.WAITING, why="ended with its application")
