"""Events that the user is notified of: the program runs, was started again, or waits too long for containers.

What a next attempt finds as well has the same key there; the outbox (`dlapp.notifications.outbox`) knows what was sent.
The end is notified by the module that executes it, a hang by `dlapp.am.decisions.gangs.hangs`.
"""

from __future__ import annotations

from dlapp.am.model.instance import Stage
from dlapp.am.model.state import ApplicationState
from dlapp.values.notification import QUEUE, RESTARTED, RUNNING, WAITING


def check(state: ApplicationState) -> None:
    """Send notifications of new events."""
    if state.stage is not Stage.ACTIVE:
        return
    if state.payload_ran:
        _notify(state, RUNNING, "", "the program runs")
    if state.attempt > 1:
        text = f"attempt {state.attempt} of its ApplicationMaster has begun: the one before died"
        _notify(state, RESTARTED, f"attempt-{state.attempt}", text)
    for gate in state.gates:
        if gate.generation:
            text = f"the programs of a gang start again (role {gate.name}, restart {gate.generation})"
            if gate.restarts and gate.restarts[-1].generation == gate.generation:
                text += f": {gate.restarts[-1].cause}"
            _notify(state, RESTARTED, f"{gate.name}-{gate.generation}", text)
    _check_waiting(state)


def _notify(state: ApplicationState, event: str, key: str, text: str) -> None:
    if (event, key) not in state.notices.events:
        state.notices.events.add((event, key))
        state.notify(event, key, text)


def _check_waiting(state: ApplicationState) -> None:
    if state.notices.waiting_after_ms is None:
        return
    notices = state.notices
    if not state.start_gate.is_open:
        notices.waits_since_ms = None  # it does not wait for containers yet
        return
    lacking = sum(one.waiting - len(one.paused) - len(one.unbound) for one in state.roles if one.is_wanted)
    if lacking <= 0:
        notices.waits_since_ms, notices.waiting_notified = None, False
        return
    if notices.waits_since_ms is None:
        notices.waits_since_ms = state.now_ms
    waited_ms = state.now_ms - notices.waits_since_ms
    if not notices.waiting_notified and waited_ms >= state.notices.waiting_after_ms:
        notices.waiting_notified = True
        text = f"it has waited for {lacking} of {len(state.instances)} containers for {waited_ms // 60_000} min"
        is_first = notices.waits_since_ms == state.submission.submitted_ms
        state.notify(WAITING, QUEUE if is_first else str(notices.waits_since_ms), text)
