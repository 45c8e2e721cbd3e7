"""Messages of tasks: a hello, which requests work or names the running index, and reports.

The messages are in `dlapp.values.messages`. A task is answered with orders; one that runs the wrong index is told to
end.
"""

from __future__ import annotations

from dlapp.am.decisions import assignment, blockers, containers, failures, recovery, services
from dlapp.am.decisions.gangs import checkpoints, gang, hangs, launches, roster
from dlapp.am.decisions.idle import idle_guard
from dlapp.am.decisions.usage import usage_history
from dlapp.am.model.events import SendOrders, StopContainer
from dlapp.am.model.instance import Container, Stage, StopReason
from dlapp.am.model.records.containers import RunRecord
from dlapp.am.model.roster import record_address
from dlapp.am.model.state import ApplicationState
from dlapp.cluster.engine import Grant
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Hello, Orders, Phase, Report, Stop

RAN = (Phase.RUNNING, Phase.STORING)


def handle_hello(state: ApplicationState, hello: Hello) -> None:
    """Handle a task's first message to this attempt."""
    if state.stage is Stage.STARTING:
        return  # The task repeats it; a container of this application may only be known with the registration.
    container = _container_of(state, hello.container_id, hello.index, hello.host)
    if container is None:
        assignment.refuse(state, hello.container_id, "this container is not one of this application's")
        return
    if container.end is not None or container.result is not None:
        assignment.refuse(state, hello.container_id, "this container has no more work")
        return
    container.hello, container.view = True, None
    container.last_contact_ms = state.awake_ms
    container.host = hello.host or container.host
    if container.stop_reason is None and hello.index is not None:
        _bind_reported_index(state, container, hello.index, hello.phase, hello.generation)
    elif container.unconfirmed and container.instance is None:
        blockers.remove(state, container)  # it runs nothing: a container like any other
    if container.stop_reason is None and container.instance is None:
        assignment.assign_waiting_index(state, container)
    elif container.stop_reason is None and container.instance is not None:
        _confirm(state, container)
        assignment.assign(state, container, container.instance)
    if container.stop_reason is not None:
        assignment.refuse(state, hello.container_id, container.stop_reason.value)


def handle_report(state: ApplicationState, report: Report) -> None:
    """Handle a task's report."""
    if state.stage is Stage.STARTING:
        return  # It is deferred, and the task repeats it.
    container = _container_of(state, report.container_id, report.index, "")
    if container is None or container.end is not None:
        stop_unknown_task(state, report)
        return
    container.last_contact_ms = state.awake_ms
    if container.result is not None:
        return
    if container.instance is None or container.instance.index != report.index:
        if container.stop_reason is None:
            _bind_reported_index(state, container, report.index, report.phase, report.generation)
        if container.instance is None or container.instance.index != report.index:
            stop_unknown_task(state, report)
            return
    if report.number >= container.report_number:
        # First: with the last one the roster is complete, and so are the checkpoints of a gang.
        record_address(state, container, report)
        container.restored = report.restored
    _confirm(state, container)
    if container.renumber:
        container.renumber = False
        assert container.orders is not None
        if report.seen >= container.orders.number:
            state.order(container, number=report.seen)
    if report.number > container.report_number:
        _handle_new_report(state, container, report)
    hangs.handle_usage(state, container, report.usage)
    idle_guard.handle_usage(state, container, report.usage)
    usage_history.record_report(state, container, report)


def _handle_new_report(state: ApplicationState, container: Container, report: Report) -> None:
    container.report_number, container.view = report.number, None
    gang.handle_generation(state, container, report.generation)
    container.progress, container.detail = report.progress, report.detail
    container.gpus, container.address = report.gpus, report.address
    hangs.handle_status(state, container, report.payload)
    container.image, container.payload, container.board = report.image, report.payload, report.board
    container.phase = report.phase
    if report.failure is None and report.result is None and not container.storing:
        container.payload_ended_ms = None
    elif container.payload_ended_ms is None:
        container.payload_ended_ms = state.now_ms
    _record_run(state, container, report.phase)
    if report.payload is not None and container.ran:
        members = state.role_of(container).ready
        (members.add if report.payload.ready else members.discard)(container.bound_instance.index)
    if report.result is None:
        services.handle_wait(state, container, report.waits_for)
    roster.send_roster(state, container)
    checkpoints.handle_report(state, container, report)
    launches.handle_report(state, container, report)
    if state.sweep is not None:
        from dlapp.am.decisions.trials import reports  # few applications need it

        reports.handle_report(state, container, report)
    if report.result is not None:
        failures.handle_result(state, container, report.result)
    elif report.failure is not None:
        failures.handle_failure(state, container, report.failure)
    elif report.phase is Phase.WAITING:
        gang.handle_ready(state, container)


def stop_unknown_task(state: ApplicationState, report: Report) -> None:
    """Answer a task that runs something it should not: a known end, another's index, or a container that is not
    ours."""
    orders = Orders(attempt=state.attempt, number=report.seen + 1, stop=Stop.NOW)
    state.add_action(SendOrders(report.container_id, orders))
    if state.stage is not Stage.ENDED:
        state.add_action(StopContainer(report.container_id))


def _container_of(state: ApplicationState, container_id: ContainerId, index: int | None, host: str) -> Container | None:
    """Return the container, adopted if an earlier attempt left it and only its task reports it."""
    container = state.containers.by_id.get(container_id)
    if container is not None or index is None or not 0 <= index < len(state.instances):
        return container
    if state.stage is not Stage.ACTIVE or container_id.attempt >= state.attempt or not state.is_new(container_id):
        return None
    role = state.role_of_index(index)
    grant = Grant(container_id=container_id, request_id=role.request_id, node=host, resources=role.spec.resources)
    return recovery.adopt(state, grant, listed=False)


def _bind_reported_index(
    state: ApplicationState, container: Container, index: int, phase: Phase, generation: int
) -> None:
    """Bind the index that a task reports to run, unless that index runs elsewhere."""
    role = state.role_of(container)
    if container.instance is not None:
        if container.instance.index != index:
            containers.stop(state, container, StopReason.CONFLICT, at_once=True)
        return
    free = (
        index in role.indexes
        and state.instances[index].container is None
        and not state.instances[index].given_up
        and container.unconfirmed
        and state.stage is Stage.ACTIVE
    )
    if not free:
        containers.stop(state, container, StopReason.CONFLICT, at_once=True)
        return
    assignment.bind(state, container, state.instances[index])
    container.phase = phase
    gang.handle_generation(state, container, generation)
    _record_run(state, container, phase)
    _confirm(state, container)


def _confirm(state: ApplicationState, container: Container) -> None:
    """Record that a task has reported and its index is known."""
    container.hello = True
    if container.unconfirmed and container.stop_reason is not StopReason.UNCONFIRMED:
        blockers.remove(state, container)


def _record_run(state: ApplicationState, container: Container, phase: Phase) -> None:
    if phase in RAN and not container.ran and not gang.is_of_earlier_generation(state, container):
        container.ran = state.payload_ran = True
        container.idle_since_ms = container.gpus_idle_ms = None
        if container.instance is not None:
            state.role_of(container).begun.add(container.instance.index)
        state.record(RunRecord(container.container_id, container.generation))
