"""Start of an application that waits for the end of others, or for a release: until then it requests no container.

A met condition is recorded before a container is requested, and a release before it is answered. So a later
attempt does not wait for it again: the engine may have forgotten the other application by then.
"""

from __future__ import annotations

from dlapp.am.decisions import shutdown
from dlapp.am.model.events import AnswerStop, OthersEnded, Release
from dlapp.am.model.instance import Stage
from dlapp.am.model.records.application import StartRecord
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.am.model.state import ApplicationState
from dlapp.values.messages import StopAnswer
from dlapp.values.start_conditions import evaluate_conditions, held_text, waiting_text


def recover(state: ApplicationState, former: RecoveredState) -> None:
    """Restore what earlier attempts have waited for."""
    if former.start is None:
        return
    gate, (pending, is_held, at_ms) = state.start_gate, former.start
    gate.pending, gate.is_held = pending, is_held
    if gate.is_open:
        state.lifetime.runtime_from_ms = state.awake_ms - max(0, state.now_ms - at_ms)


def handle_others_ended(state: ApplicationState, event: OthersEnded) -> None:
    """Process the ends of other applications, or the fact that they cannot be read."""
    gate = state.start_gate
    gate.unread = event.unread
    if state.stage is not Stage.ACTIVE:
        return
    left = evaluate_conditions(gate.pending, event.ends)
    if left.failure:
        shutdown.fail(state, left.failure)
    elif left.pending != gate.pending:
        gate.pending = left.pending
        _record(state)


def handle_release(state: ApplicationState, event: Release) -> None:
    """Process a user's release of the application."""
    gate, name = state.start_gate, state.application_id
    if not gate.is_held:
        text = f"{name} is not held"
    else:
        gate.is_held = False
        _record(state)
        text = f"{name} is released" + (f", and {waiting_text(gate.pending)}" if gate.pending else "")
    state.add_action(AnswerStop(StopAnswer(state="released", message=text)))


def closed_text(state: ApplicationState) -> str:
    """Return what the application waits for, for users; empty: nothing."""
    gate = state.start_gate
    if gate.pending:
        return waiting_text(gate.pending) + (f"; {gate.unread}" if gate.unread else "")
    return held_text(str(state.application_id)) if gate.is_held else ""


def _record(state: ApplicationState) -> None:
    gate = state.start_gate
    state.record(StartRecord(gate.pending, gate.is_held), durable=True)
    if gate.is_open:
        state.lifetime.runtime_from_ms = state.awake_ms
