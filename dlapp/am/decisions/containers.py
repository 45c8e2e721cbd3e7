"""Containers are stopped: by their task's orders, and by the engine."""

from __future__ import annotations

from dlapp.am.model.events import StopContainer
from dlapp.am.model.instance import Container, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.values.messages import Stop


def stop(state: ApplicationState, container: Container, why: StopReason, *, at_once: bool = False) -> None:
    """End a container: by its orders first, so that its task can clean up, where it listens; then by the engine.

    Args:
        state: the state of the application; it is changed.
        container: the one to end.
        why: the reason, which its end is assessed by.
        at_once: the engine ends it now.
    """
    if container.end is not None:
        return
    container.stop_reason = container.stop_reason or why
    container.view = container.kept_until_ms = None
    role = state.role_of(container)
    role.unbound.pop(container.container_id, None)
    role.held.pop(container.container_id, None)
    listens = container.orders is not None and container.hello
    if listens and container.orders and container.orders.stop is not Stop.NOW:
        state.order(container, stop=Stop.NOW, why=stop_text(state, why), go=False)
    if listens and not at_once:
        state.set_deadline(state.timing.stop_ms, Due.STOP, container)
    else:
        request_stop(state, container)


def request_stop(state: ApplicationState, container: Container) -> None:
    """Let the engine end a container, and again until its end is known."""
    state.add_action(StopContainer(container.container_id))
    state.set_deadline(state.timing.repeat_stop_ms, Due.STOP, container)


def stop_all(state: ApplicationState) -> None:
    """End all open containers, because the application ends."""
    for container in list(state.containers.open.values()):
        stop(state, container, StopReason.ENDING)


def stop_text(state: ApplicationState, why: StopReason) -> str:
    """Return the order to stop for a task."""
    return (state.ending.diagnostics if state.ending and why is StopReason.ENDING else "") or why.value
