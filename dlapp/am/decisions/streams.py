"""Streams to containers: which of them may have one. Nothing is remembered of a stream but the order to its task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.am.decisions.assessment import ranges
from dlapp.am.model.events import OpenStream, RefuseStream
from dlapp.am.model.instance import Instance, Stage
from dlapp.am.model.state import ApplicationState
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Phase, Stop, StreamOrder

if TYPE_CHECKING:
    from dlapp.am.model.trials import SweepState


def handle_open_stream(state: ApplicationState, event: OpenStream) -> None:
    """Order the task of an index to open a stream, or refuse it."""
    try:
        index = event.index if event.trial is None else _index_of_trial(state, event.trial, event.index)
        if index is None or not 0 <= index < len(state.instances):
            there = f"0 to {len(state.instances) - 1}" if len(state.instances) > 1 else "0 alone"
            raise _Refused(f"there is no container {index}: the application has {there}", is_unknown=True)
        instance = state.instances[index]
        name = f"{instance.role.name}:{instance.role_index}"
        if (why := _refusal_reason(state, instance)) or instance.container is None or instance.container.orders is None:
            raise _Refused(f"{name} {why}")
        order = _order_for_trial(state, event, instance.container.container_id, name)
    except _Refused as refused:
        state.add_action(RefuseStream(event.order.number, str(refused), is_unknown=refused.is_unknown))
        return
    pending = tuple(one for one in instance.container.orders.streams if one.number in event.pending)
    state.order(instance.container, streams=(*pending, order))


class _Refused(Exception):
    """A stream that cannot be opened, with the reason for the user; ``is_unknown`` as in `RefuseStream`."""

    def __init__(self, why: str, *, is_unknown: bool = False) -> None:
        super().__init__(why)
        self.is_unknown = is_unknown


def _index_of_trial(state: ApplicationState, number: int, index: int | None) -> int:
    """Return the index of the container that runs a trial.

    Args:
        state: the state of the application.
        number: number of the trial.
        index: index of the container that the user named; None: none.
    """
    sweep = state.sweep
    if sweep is None:
        raise _Refused(f"there is no trial {number}: the application has no [sweep]", is_unknown=True)
    if not 0 <= number < len(sweep.trials):
        raise _Refused(f"there is no trial {number}: its trials are 0 to {len(sweep.trials) - 1}", is_unknown=True)
    from dlapp.sweep.results import TrialState  # few applications are sweeps

    trial = sweep.trials[number]
    if trial.state is not TrialState.RUNNING or trial.index is None:
        raise _Refused(f"trial {number} does not run ({trial.state.value}); {_running_text(sweep)}")
    if index not in (None, trial.index):
        raise _Refused(f"trial {number} runs in container {trial.index}, not in container {index}")
    return trial.index


def _order_for_trial(
    state: ApplicationState, event: OpenStream, container_id: ContainerId, container: str
) -> StreamOrder:
    """Return the order of a stream with the trial for which it is; a command in a sweep is always for a trial.

    Args:
        state: the state of the application.
        event: the request.
        container_id: the container of the stream.
        container: its name for users.
    """
    order, sweep = event.order, state.sweep
    if sweep is None or (event.trial is None and not order.is_command):
        return order
    here = sweep.running_in(container_id)
    found = here if event.trial is None else [one for one in here if one.number == event.trial]
    if not found:
        raise _Refused(f"{container} runs no trial now; {_running_text(sweep)}")
    if len(found) > 1:
        numbers = ", ".join(ranges(sorted(one.number for one in found)))
        raise _Refused(f"{container} runs several trials: choose one of {numbers} with --trial")
    return replace(order, trial=found[0].number, try_number=found[0].tries)


def _running_text(sweep: SweepState) -> str:
    """Return which trials run, for the end of a message."""
    running = sorted(one.number for held in sweep.held for one in sweep.running_in(held))
    return f"running: {', '.join(ranges(running))}" if running else "no trial runs now"


def _refusal_reason(state: ApplicationState, instance: Instance) -> str:
    """Return why an index cannot have a stream now, as the end of a sentence; empty: it can."""
    if instance.done or instance.given_up:
        return "has ended"
    container = instance.container
    if state.stage is not Stage.ACTIVE and not (container is not None and container.is_kept):
        return "is not there any more: the application is ending"
    if container is None or container.container_id not in state.containers.open:
        return "waits for a container"
    if container.orders is not None and container.orders.stop is not Stop.NO:
        return "is being stopped"
    if container.phase is not Phase.RUNNING:
        return f"does not run its program now: {container.phase.value}"
    return ""
