"""Recovery of the trials of an earlier attempt.

The journal has every end that counts. Tasks report which trials run: a trial that the journal has in a container that
lives stays there until its task connects. Until all have connected, no trial is assigned.
"""

from __future__ import annotations

from dlapp.am.decisions.trials import dispatch
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.trials import restore_end
from dlapp.sweep.results import TrialState


def recover(state: ApplicationState, former: RecoveredState) -> None:
    """Restore the trials from the journal, after its containers were adopted."""
    sweep = state.sweep_state
    for number, known in former.trials.items():
        if not 0 <= number < len(sweep.trials):
            continue
        trial = sweep.trials[number]
        if trial.has_ended:
            continue  # it was taken over once more: the attempt before died while it did that
        trial.tries, trial.holder, trial.index = known.tries, known.holder, known.index
        trial.user_faults, trial.node_faults = known.user_faults, known.node_faults
        trial.parameters = known.parameters
        if known.end is not None:
            how = restore_end(trial, known.end, known.ended_ms)
            if how is not TrialState.WAITING:
                sweep.restore_end(trial, how)
                if former.outputs is None:
                    dispatch.commit(state, trial, again=True)
        elif known.runs and known.holder in state.containers.open and known.index is not None:
            sweep.assign_trial(trial, known.holder, known.index, known.tries, state.now_ms)
    if sweep.asha is not None:
        for decision in former.rungs:
            sweep.asha.restore(decision)
            if 0 <= decision.trial < len(sweep.trials):
                trial = sweep.trials[decision.trial]
                trial.evaluated_step = max(trial.evaluated_step, decision.step)
                if decision.stops and trial.state is TrialState.RUNNING:
                    trial.stop = decision.message
