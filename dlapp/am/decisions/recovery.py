"""Recovery from an earlier attempt: a journal, live containers, tasks that report what they run.

The engine lists the live containers, the tasks report their index; the journal supplements both. An index that the
journal binds to a container is not assigned, and a container with an unknown index blocks all indexes of its role,
until its task reports or its end is known. A container whose task is silent until the recovery's deadline is stopped.
Containers known only from a journal or a late message, confirmed neither by the engine nor by a task, are presumed
gone.

A task can report only after it has found us. If that takes a file on HDFS, and HDFS is not writable for an hour, the
tasks of the earlier attempt keep computing, so the deadline starts when the file exists.
"""

from __future__ import annotations

from dlapp.am.decisions import assessment, assignment, blockers, containers, failures, services, shutdown
from dlapp.am.decisions.gangs import gang
from dlapp.am.decisions.start import start_gate
from dlapp.am.model.events import StopContainer
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.records.recovered import RecoveredContainer, RecoveredState
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.cluster.engine import STATUS_UNKNOWN, ContainerEnd, Grant
from dlapp.values.messages import Fault, Phase


def recover(state: ApplicationState, former: RecoveredState, live: tuple[Grant, ...]) -> None:
    """Adopt the state of the earlier attempts, and their containers, of which the engine lists those in ``live``."""
    start_gate.recover(state, former)
    state.containers.gone |= former.gone
    by_id = {grant.container_id: grant for grant in live if grant.container_id not in former.gone}
    for role in state.roles:
        role.recovering = role.gate.gang
        if role.gate.gang and (known := former.gates.get(role.gate.name)) is not None:
            role.gate.close(known.generation)
            role.gate.restarts, role.gate.node_faults = known.restarts, known.node_faults
            if role.gate.checkpoints is not None:
                role.gate.checkpoints.begin(known.checkpoint, known.checkpoints_after)
            role.gate.open = known.open
    for index, (user_faults, node_faults) in former.faults.items():
        if index < len(state.instances):
            state.instances[index].user_faults = user_faults
            state.instances[index].node_faults = node_faults
    for container_id, one in former.containers.items():
        _recover_container(state, former, one, by_id.pop(container_id, None))
    for index, wait in former.waits.items():
        if 0 <= index < len(state.instances) and index not in former.given_up:
            services.recover(state, state.instances[index], wait)
    for index, failure in former.given_up.items():
        state.give_up(state.instances[index], failure)
        if index in former.last and former.containers[former.last[index]].ran:
            state.role_of_index(index).begun.add(index)
    if state.sweep is not None:
        from dlapp.am.decisions.trials import recovery  # few applications need it

        recovery.recover(state, former)
    for grant in by_id.values():
        adopt(state, grant)
    if former.ending is not None:
        _end_as_decided(state, former)
        return
    _assess_recorded_ends(state)
    if state.stage is Stage.ACTIVE and former.soft is not None:
        by, cause, ends_ms = former.soft
        shutdown.stop_softly(state, by, cause, ends_ms=ends_ms)
    for role in state.roles:
        gang.check_recovered(state, role)


def _end_as_decided(state: ApplicationState, former: RecoveredState) -> None:
    """Continue the end that an earlier attempt had decided."""
    assert former.ending is not None
    for instance in state.instances:
        if (container := instance.container) is not None and (result := container.result) is not None:
            failures.record_stored_output(instance, container, result)
    state.ending, state.closing.settlement = former.ending
    if former.outputs is not None:
        state.closing.outputs = former.outputs
        state.stage = Stage.LEAVING
        state.closing.until_ms = state.awake_ms + state.timing.end_ms
        containers.stop_all(state)
    elif state.commits:
        containers.stop_all(state)
        shutdown.settle(state)
    else:
        shutdown.conclude(state, state.ending, state.closing.settlement)


def _keep_earlier(instance: Instance, known: RecoveredContainer) -> None:
    """Keep an earlier container of an index, for display."""
    container = Container(known.grant, 0, known.started_ms)
    container.host, container.ran, container.try_number = known.host, known.ran, known.try_number
    container.result, container.end, container.finished_ms = known.result, known.end, known.finished_ms
    instance.add_earlier(container)


def _recover_container(
    state: ApplicationState, former: RecoveredState, known: RecoveredContainer, grant: Grant | None
) -> None:
    container_id = known.grant.container_id
    index = known.index
    if index is not None and not 0 <= index < len(state.instances):
        index = None
    bound = index is not None and former.bound.get(index) == container_id
    if known.end is not None and not bound and (index is None or former.last.get(index) != container_id):
        state.containers.gone.add(container_id)
        if index is not None:
            _keep_earlier(state.instances[index], known)
        return
    role = state.role_of_index(index) if index is not None else state.role_of_request(known.grant.request_id)
    if role is None:
        return
    container = Container(grant or known.grant, role.place, known.started_ms)
    container.host, container.ran, container.try_number = known.host, known.ran, known.try_number
    container.result, container.end, container.finished_ms = known.result, known.end, known.finished_ms
    container.last_contact_ms, container.listed, container.renumber = state.awake_ms, grant is not None, True
    container.generation = known.generation
    if container.result is not None:
        container.phase = Phase.ENDED
    state.payload_ran = state.payload_ran or container.ran
    state.containers.by_id[container_id] = container
    alive = container.end is None and (container.listed or container.result is None)
    if container.end is None:
        # A container known only from the journal may nevertheless be alive until the recovery's deadline; after a
        # result of its task it counts as gone.
        if alive:
            state.containers.live[container_id] = container
        if container.result is None:
            state.containers.open[container_id] = container
            container.unconfirmed = True
        elif alive:
            state.set_deadline(state.timing.exit_ms, Due.STOP, container)
    if index is not None and former.last.get(index) == container_id:
        state.instances[index].last = container
        state.instances[index].tries = former.tries.get(index, 0)
        state.instances[index].spent = former.spent.get(index)
    if index is None or not bound:
        if container.unconfirmed:
            blockers.add(state, container)
        return
    instance = state.instances[index]
    instance.container, container.instance, container.is_recorded = container, instance, True
    role.remove_waiting(index)
    if container.unconfirmed and gang.is_of_earlier_generation(state, container):
        container.ran = False  # in this generation
    if container.ran:
        role.begun.add(index)
    if container.unconfirmed:
        assignment.make_orders(state, container)


def _assess_recorded_ends(state: ApplicationState) -> None:
    """Decide on the results and ends for which the earlier attempt recorded no decision."""
    # Successes first: if they decide, the others were stopped because of them, and some of those exit with an error.
    # Then failures: others ended because of them.
    for instance in sorted(state.instances, key=_assessment_order):
        if state.stage is Stage.ACTIVE and not state.undecided:
            shutdown.advance(state)
        container = instance.container
        if container is None or state.stage is not Stage.ACTIVE:
            continue
        if instance.given_up:
            if container.result is not None:
                failures.record_stored_output(instance, container, container.result)
        elif (container.result or container.end) and container.ran and gang.is_of_earlier_generation(state, container):
            assignment.free(state, instance)
        elif container.result is not None:
            failures.assess_result(state, container, container.result)
        elif container.end is not None:
            failures.conclude_try(state, instance, container, assessment.of_end(container.end))


def _assessment_order(instance: Instance) -> int:
    result = instance.container.result if instance.container is not None else None
    if result is None:
        return 1
    return {Fault.NONE: 0, Fault.STOPPED: 2}.get(result.fault, 1)


def adopt(state: ApplicationState, grant: Grant, *, listed: bool = True) -> Container | None:
    """Adopt an earlier attempt's container, listed by the engine or only by its task; its index is not known."""
    role = state.role_of_request(grant.request_id)
    if role is None:
        state.containers.gone.add(grant.container_id)
        state.add_action(StopContainer(grant.container_id))
        return None
    container = state.add_container(grant, role)
    container.unconfirmed = container.renumber = True
    container.listed = listed
    if state.recovery.until_ms is None or state.recovery.until_ms <= state.awake_ms:
        state.recovery.until_ms = state.awake_ms + state.timing.recovery_ms
    blockers.add(state, container)
    if state.stage is not Stage.ACTIVE:
        containers.stop(state, container, StopReason.ENDING)
    return container


def end_unlisted_containers(state: ApplicationState) -> None:
    """Treat containers that the engine does not list as gone, if its list is complete."""
    for container in [one for one in state.containers.live.values() if not one.listed]:
        # An index whose payload never ran is retried in any case.
        status, is_fresh = (STATUS_UNKNOWN, False) if container.ran else (-100, True)
        end = ContainerEnd(container_id=container.container_id, exit_status=status, node_fault=is_fresh)
        failures.handle_end(state, end)


def handle_published(state: ApplicationState) -> None:
    """Record that tasks of an earlier attempt can find this one from now on."""
    if state.recovery.until_ms is not None and state.recovery.unpublished_until_ms > state.awake_ms:
        state.recovery.until_ms = state.awake_ms + state.timing.recovery_ms
    state.recovery.unpublished_until_ms = 0


def check_deadline(state: ApplicationState) -> None:
    """Stop the containers whose tasks have not reported in time."""
    if state.recovery.until_ms is None:
        return
    if state.awake_ms < max(state.recovery.until_ms, state.recovery.unpublished_until_ms):
        return
    state.recovery.until_ms = None
    presumed, state.recovery.presumed_ends = state.recovery.presumed_ends, []
    for end in presumed:
        failures.handle_end(state, end)
    for container in [one for one in state.containers.open.values() if one.unconfirmed]:
        if container.listed:
            containers.stop(state, container, StopReason.UNCONFIRMED, at_once=True)
        else:
            failures.record_presumed_end(state, container)
