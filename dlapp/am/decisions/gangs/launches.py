"""Launches: commands that the head's mpirun starts in other containers (`dlapp.frameworks.mpi`).

The head's task reports its launches until it knows that they have ended, the other tasks the states of those that their
orders name. Both are passed on as they are: nothing is remembered but the last of these reports, so the next attempt
learns it like the phases. Only the head can launch, and only in containers of its own application that take part.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlapp.am.model.instance import Container, Instance
from dlapp.am.model.state import ApplicationState
from dlapp.values.messages import LaunchState, MpiLaunch, Report, Stop

NOT_THERE = 255
"""Exit status of a launch in a container that cannot run it, as ssh has it."""


def clear(state: ApplicationState) -> None:
    """Forget the launches of an earlier generation."""
    state.launches.requested = ()
    state.launches.states.clear()


def handle_report(state: ApplicationState, container: Container, report: Report) -> None:
    """Pass on a task's report on launches."""
    instance, gate = container.bound_instance, state.role_of(container).gate
    if state.launches.head is None or report.generation != gate.generation or report.result is not None:
        return
    if instance.index == state.launches.head:
        if report.launches != state.launches.requested:
            launches: dict[int, list[MpiLaunch]] = {one.index: [] for one in state.launches.requested}
            state.launches.requested = report.launches
            for one in state.launches.requested:
                launches.setdefault(one.index, []).append(one)
            for index in sorted(launches):
                if (member := _member(state, index)) is not None and member.container is not None:
                    _order(state, member.container, launches[index])
    elif _member(state, instance.index) is not None:
        state.launches.states[instance.index] = report.launch_states
        _order(state, container, [one for one in state.launches.requested if one.index == instance.index])
    head = state.instances[state.launches.head].container
    if head is not None and head.orders is not None and head.orders.go:
        states = tuple(found for one in state.launches.requested if (found := _state_of(state, one)) is not None)
        if states != head.orders.launch_states:
            state.order(head, launch_states=states)


def _member(state: ApplicationState, index: int) -> Instance | None:
    """Return the instance in which the head may launch; None: there is none of this index that takes part."""
    if index == state.launches.head or not 0 <= index < len(state.instances):
        return None
    instance = state.instances[index]
    return instance if state.spec.decides(instance.role) else None


def _order(state: ApplicationState, container: Container, launches: Sequence[MpiLaunch]) -> None:
    """Order the launches of a container that its task does not know yet."""
    orders = container.orders
    if orders is None or not orders.go or orders.stop is not Stop.NO:
        return
    if [one.number for one in launches] != [one.number for one in orders.launches]:
        state.order(container, launches=tuple(launches))


def _state_of(state: ApplicationState, launch: MpiLaunch) -> LaunchState | None:
    member = _member(state, launch.index)
    if member is None or member.given_up or member.done:
        return LaunchState(number=launch.number, status=NOT_THERE)
    known = state.launches.states.get(launch.index, ())
    return next((one for one in known if one.number == launch.number), None)
