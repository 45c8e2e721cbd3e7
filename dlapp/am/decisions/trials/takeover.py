"""Continuation of another sweep: trials that ended there count here, and do not run again.

All of it is written to the journal as ends of trials, so a next attempt needs to know nothing of the other application.
"""

from __future__ import annotations

from dlapp.am.model.events import TrialsTakenOver
from dlapp.am.model.records.trials import TakenOverRecord
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.trials import end_record
from dlapp.errors import UsageError
from dlapp.values.ids import ContainerId


def apply(state: ApplicationState, event: TrialsTakenOver) -> None:
    """Adopt the trials, before any is assigned."""
    sweep = state.sweep_state
    for one in event.trials:
        view = one.view
        try:
            holder = ContainerId.from_text(view.container_id)
        except UsageError:
            continue  # an older dlapp wrote it: it runs again
        if not 0 <= view.number < len(sweep.trials) or sweep.trials[view.number].tries:
            continue
        trial = sweep.trials[view.number]
        trial.tries, trial.holder, trial.index = max(1, view.tries), holder, view.container or 0
        trial.points, trial.reports, trial.ran_s = view.curve, view.reports, view.ran_s
        trial.exit_code = view.exit_code
        trial.stop, trial.message = (view.why, "") if view.is_pruned else ("", view.why)
        trial.outputs, trial.sources, trial.is_committed = one.outputs, one.sources, one.is_committed
        trial.parameters = view.parameters if sweep.uses_optuna else None
        trial.finished_ms = state.now_ms
        state.record(end_record(trial, view.state))
        sweep.restore_end(trial, view.state)
    state.record(TakenOverRecord(state.submission.resumed_from), durable=True)
