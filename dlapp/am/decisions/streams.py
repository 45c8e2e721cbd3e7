"""Streams to containers: which of them may have one. Nothing is remembered of a stream but the order to its task."""

from __future__ import annotations

from dlapp.am.model.events import OpenStream, RefuseStream
from dlapp.am.model.instance import Instance, Stage
from dlapp.am.model.state import ApplicationState
from dlapp.values.messages import Phase, Stop


def handle_open_stream(state: ApplicationState, event: OpenStream) -> None:
    """Order the task of an index to open a stream, or refuse it."""
    number, index = event.order.number, event.index
    if not 0 <= index < len(state.instances):
        there = f"0 to {len(state.instances) - 1}" if len(state.instances) > 1 else "0 alone"
        state.add_action(
            RefuseStream(number, f"there is no container {index}: the application has {there}", is_unknown=True)
        )
        return
    instance = state.instances[index]
    if (why := _refusal_reason(state, instance)) or instance.container is None or instance.container.orders is None:
        state.add_action(RefuseStream(number, f"{instance.role.name}:{instance.role_index} {why}"))
        return
    pending = tuple(one for one in instance.container.orders.streams if one.number in event.pending)
    state.order(instance.container, streams=(*pending, event.order))


def _refusal_reason(state: ApplicationState, instance: Instance) -> str:
    """Return why an index cannot have a stream now, as the end of a sentence; empty: it can."""
    if instance.done or instance.given_up:
        return "has ended"
    container = instance.container
    if state.stage is not Stage.ACTIVE and not (container is not None and container.is_kept):
        return "is not there any more: the application is ending"
    if container is None or container.container_id not in state.open:
        return "waits for a container"
    if container.orders is not None and container.orders.stop is not Stop.NO:
        return "is being stopped"
    if container.phase is not Phase.RUNNING:
        return f"does not run its program now: {container.phase.value}"
    return ""
