"""Ends and silence of containers, and the result for their indexes: done, retried, given up, or the application
fails."""

from __future__ import annotations

from collections.abc import Sequence

from dlapp.am.decisions import assessment, assignment, blockers, containers, preemption, services, shutdown
from dlapp.am.decisions.assessment import Assessment
from dlapp.am.decisions.gangs import gang, gang_window
from dlapp.am.model.demand import Role
from dlapp.am.model.events import CheckStart, StopContainer
from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.records.containers import EndRecord, ResultRecord
from dlapp.am.model.records.indexes import GiveUpRecord
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.cluster.engine import ContainerEnd
from dlapp.value import replace
from dlapp.values.messages import Fault, Phase, Stop, TaskResult
from dlapp.values.spec import ContainerFailure, RoleFailure


def handle_end(state: ApplicationState, end: ContainerEnd) -> None:
    """Handle a container's end, or its presumed end on a lost node."""
    container = state.containers.by_id.get(end.container_id)
    if end.presumed and _may_run_on(state, end, container):
        return
    if container is None:
        state.containers.released.pop(end.container_id, None)
        state.containers.gone.add(end.container_id)
        blockers.unblock_all_roles(state, end.container_id)
        return
    if container.end is not None:
        return
    container.end, container.view = end, None
    if container.finished_ms is None:
        container.finished_ms = state.now_ms
    state.record(EndRecord(end.container_id, end.exit_status, end.diagnostics, end.node_fault))
    state.containers.live.pop(end.container_id, None)
    if container.result is None:
        _assess_end(state, container, end)


def handle_removed_nodes(state: ApplicationState, hosts: Sequence[str]) -> None:
    """Handle that an operator has removed nodes: their NodeManagers end all containers, if they run."""
    state.nodes.removed.update(hosts)
    for container in [one for one in state.containers.open.values() if one.grant.node in hosts]:
        if container.presumed_end is not None:
            handle_end(state, container.presumed_end)


def _may_run_on(state: ApplicationState, end: ContainerEnd, container: Container | None) -> bool:
    """Return whether a container of a lost node may still run an index; then its end does not count yet.

    Its task was ordered to end, or will be when it connects. Then its result counts; otherwise its silence, or
    the recovery's deadline, as for every container that the engine does not list. If the operator has removed the node,
    its NodeManager ends its containers. One that did not answer may be dead, and they run on: then they are waited for
    too, but those of an earlier attempt only until their tasks must have looked for this one once.
    """
    if container is None:
        is_stranger = any(end.container_id in role.blockers for role in state.roles)
        if not is_stranger or state.recovery.until_ms is None:
            return False
        state.recovery.presumed_ends.append(end)
        return True
    is_removed = container.grant.node in state.nodes.removed
    if is_removed and end.node_answered:
        return False
    if container.unconfirmed:
        until_ms, half_ms = state.recovery.until_ms, state.timing.recovery_ms // 2
        is_waited_for = until_ms is not None
        if until_ms is not None and is_removed:
            left_ms = max(until_ms, state.recovery.unpublished_until_ms) - half_ms - state.awake_ms
            is_waited_for = left_ms > 0
            state.set_deadline(min(max(left_ms, 0), half_ms), Due.REMOVED, container)
    else:
        is_silent = state.awake_ms - container.last_contact_ms >= state.timing.silence_ms
        is_waited_for = container.instance is not None and not is_silent
    if end.container_id not in state.containers.open or not is_waited_for:
        return False
    container.listed, container.presumed_end = False, end
    if container.orders is not None and container.orders.stop is not Stop.NOW:
        state.order(container, stop=Stop.NOW, why=end.diagnostics, go=False)
    return True


def _assess_end(state: ApplicationState, container: Container, end: ContainerEnd) -> None:
    state.containers.open.pop(end.container_id, None)
    _release_trials(state, container)
    role = state.role_of(container)
    role.unbound.pop(end.container_id, None)
    role.held.pop(end.container_id, None)
    match container.stop_reason:
        case None if end.exit_status == 0 and end.container_id.attempt < state.attempt:
            # Its task ended because an ApplicationMaster had its result, which that one's journal lost.
            assessed = Assessment(Fault.STOPPED, "its result was lost with its ApplicationMaster", free=True)
        case None:
            assessed = assessment.of_end(end)
        case StopReason.LATE as why:
            assessed = Assessment(Fault.NODE, why.value, avoid_node=True, free=_mark_late(state, role))
        case StopReason.SILENT | StopReason.UNCONFIRMED if end.presumed or container.presumed_end is not None:
            # Its node was lost, and perhaps its task with it.
            assessed = assessment.of_end(container.presumed_end or end)
        case StopReason.SILENT | StopReason.UNCONFIRMED as why:
            assessed = Assessment(Fault.NODE, why.value, avoid_node=why is not StopReason.UNCONFIRMED)
        case StopReason.SERVICE:
            assessed = services.assess_wait(state, container.instance)
        case StopReason.PREEMPTED | StopReason.DECOMMISSIONED as why:
            assessed = preemption.assess(why)
        case why:
            assessed = Assessment(Fault.STOPPED, why.value, free=True)
    assessed = _assess_earlier_generation(state, container, assessed)
    blockers.remove(state, container)
    blockers.unblock_all_roles(state, end.container_id)
    if state.stage is not Stage.ACTIVE:
        return
    if container.instance is not None:
        conclude_try(state, container.instance, container, assessed)
    elif not assessed.free and role.waiting:
        # An index waited for it: charge the one with the fewest failures, so that the application ends at some point.
        victim = min((state.instances[n] for n in role.waiting_indexes()), key=lambda one: one.node_faults)
        conclude_try(state, victim, container, replace(assessed, fault=Fault.NODE))
    elif assessed.fault in (Fault.NODE, Fault.SERVICE) and (index := role.next_index()) is not None:
        # It pauses, so that requests do not repeat without end.
        conclude_try(state, state.instances[index], container, assessed)


def _release_trials(state: ApplicationState, container: Container) -> None:
    if state.sweep is not None:
        from dlapp.am.decisions.trials import dispatch

        dispatch.release(state, container)


def _mark_late(state: ApplicationState, role: Role) -> bool:
    """Return whether an index waits for which no container was late before; record that one was now."""
    first = next((one for n in role.waiting_indexes() if not (one := state.instances[n]).late), None)
    if first is not None:
        first.late = True
    return first is not None


def handle_result(state: ApplicationState, container: Container, result: TaskResult) -> None:
    """Handle the result reported by a bound container's task."""
    container.result, container.phase, container.finished_ms = result, Phase.ENDED, state.now_ms
    if result.exit_code is not None or result.signal is not None:
        container.ran = state.payload_ran = True
        state.role_of(container).begun.add(container.bound_instance.index)
        if gang.is_of_earlier_generation(state, container):
            container.stop_reason = container.stop_reason or StopReason.GANG_RESTARTED
    state.containers.open.pop(container.container_id, None)
    _release_trials(state, container)
    record = ResultRecord(container.container_id, result, container.generation)
    state.record(record, durable=result.fault in (Fault.USER, Fault.DATA))
    state.set_deadline(state.timing.exit_ms, Due.STOP, container)
    assess_result(state, container, result)
    if container.presumed_end is not None:
        handle_end(state, container.presumed_end)


def assess_result(state: ApplicationState, container: Container, result: TaskResult) -> None:
    """Decide about the index of a container whose task reported its result."""
    instance = container.bound_instance
    if instance.container is not container:
        return
    is_outdated = container.stop_reason is StopReason.GANG_RESTARTED or (
        container.ran and gang.is_of_earlier_generation(state, container)
    )
    if not is_outdated:
        record_stored_output(instance, container, result)
    if state.stage is Stage.ACTIVE:
        assessed = assessment.of_result(result)
        if container.announced is not None and result.fault in (Fault.USER, Fault.STOPPED):
            assessed = preemption.assess(container.announced)
        assessed = _assess_earlier_generation(state, container, assessed)
        if container.stop_reason is StopReason.GANG_RESTARTED:
            assessed = gang.GANG_RESTARTED
        elif container.stop_reason is StopReason.WINDOW:
            assessed = gang_window.RELEASED
        elif container.stop_reason is StopReason.SERVICE and result.fault is Fault.STOPPED:
            assessed = services.assess_wait(state, instance)
        conclude_try(state, instance, container, assessed)
    elif result.fault is Fault.NONE and state.stage is Stage.CLOSING:
        state.mark_done(instance)


def _assess_earlier_generation(state: ApplicationState, container: Container, assessed: Assessment) -> Assessment:
    """Assess the end of a container whose gang was restarted: it does not count against the index.

    If the node caused the end, it also caused the failure of the previous generation.
    """
    if not gang.is_of_earlier_generation(state, container):
        return assessed
    if assessed.fault is not Fault.NODE or container.instance is None:
        return gang.GANG_RESTARTED
    gang.uncount_restart(state, assessed, container.instance)
    return assessed


def handle_failure(state: ApplicationState, container: Container, result: TaskResult) -> None:
    """Handle the reported end of a payload: the task continues with its gang's next generation, is kept, or ends."""
    instance, gate = container.bound_instance, state.role_of(container).gate
    is_over = container.stop_reason is not None or container.is_kept or gang.is_of_earlier_generation(state, container)
    if is_over or state.stage is not Stage.ACTIVE or container.orders is None or container.orders.stop is not Stop.NO:
        return  # its orders already have the stop
    assessed = assessment.of_result(result)
    is_users = assessed.fault is Fault.USER  # else its result has the reason, and another node may be better
    may_restart = gate.gang and gate.open and gate.failure is None
    if is_users and may_restart and instance.role.on_failure is not RoleFailure.RESTART:
        instance.user_faults += 1
        if _is_retried(state, instance, assessed):
            state.record_faults(instance)
            gang.restart(state, gate, assessed.reason, instance, is_charged=True)
            return
        instance.user_faults -= 1
    if not (is_users and _keep_container(state, container, instance, assessed)):
        state.order(container, stop=Stop.SOFT, why=assessed.reason)


def _keep_container(state: ApplicationState, container: Container, instance: Instance, assessed: Assessment) -> bool:
    """Keep the container of a permanently failed payload, if it is a deciding one; the effects on others follow now.

    Returns:
        Whether it is kept.
    """
    keep_ms, gate = int(state.spec.keep_failed_s * 1000), state.role_of(container).gate
    if not keep_ms or gate.failure is not None or not (instance.index in state.deciding or _fails_all(state, instance)):
        return False
    instance.user_faults += 1
    if _is_retried(state, instance, assessed):
        instance.user_faults -= 1
        return False
    failure = _failure(state, instance, assessed)
    container.kept_until_ms, container.keep_ends_ms = state.now_ms + keep_ms, state.awake_ms + keep_ms
    container.phase, container.view = Phase.STARTING, None  # until its task reports that it can be inspected
    state.order(container, keep_s=state.spec.keep_failed_s)
    if gate.gang and not _fails_all(state, instance):
        gang.defer_failure(state, instance, failure)
        return True
    instance.user_faults -= 1  # if it does not end the application, its result is counted
    if state.spec.on_container_failure is ContainerFailure.STOP or _fails_all(state, instance):
        shutdown.fail(state, failure)
    return True


def record_stored_output(instance: Instance, container: Container, result: TaskResult) -> None:
    """Record what a container stored for an index."""
    if result.fault is Fault.NONE or result.outputs:
        instance.stored = (container.container_id, result.outputs)


def conclude_try(state: ApplicationState, instance: Instance, container: Container, assessed: Assessment) -> None:
    """Decide about an index whose container has ended, or could not be had.

    Args:
        state: state of the application; it is changed.
        instance: the index.
        container: the ended container.
        assessed: who was responsible, and why.
    """
    if assessed.fault is Fault.NONE and instance.role.keep_running:
        assessed = Assessment(Fault.USER, "its program ended with exit code 0")
    if assessed.fault is Fault.NONE:
        state.mark_done(instance)
        return
    assessed = services.as_service_failure(state, assessed)
    if state.sweep is not None and assessed.fault is Fault.USER:
        assessed = replace(assessed, fault=Fault.NODE, is_final=False)  # the programs of trials are assessed separately
    gate, is_bound = state.role_of(container).gate, instance.container is container
    is_restarted_alone = (
        container.stop_reason is StopReason.GANG_RESTARTED or instance.role.on_failure is RoleFailure.RESTART
    )
    ends_generation = gate.gang and gate.open and is_bound and not is_restarted_alone
    if ends_generation and not assessed.free and assessed.fault in (Fault.NODE, Fault.STOPPED):
        gang.count_node_fault(state, gate, container)
    if gate.failure is not None and is_bound:
        if assessed.fault is not Fault.NODE:
            return  # a consequence of the failure that ends the application
        gang.uncount_failure(state, gate)
        gang.restart(state, gate, assessed.reason, instance)  # including members that have ended meanwhile
    _count(state, instance, container, assessed)
    if not _is_retried(state, instance, assessed):
        _end_index(state, instance, gate, assessed)
        return
    until_ms = _pause_until_ms(state, instance, assessed)
    if instance.container is None and until_ms is not None:
        state.role_of(container).wait(instance.index, until_ms)
    if instance.container is container:
        is_users = assessed.fault is Fault.USER
        assignment.free(state, instance, is_users, paused_until_ms=until_ms)
        if ends_generation and gate.open:
            gang.restart(state, gate, assessed.reason, instance, is_charged=is_users)


def _count(state: ApplicationState, instance: Instance, container: Container, assessed: Assessment) -> None:
    """Count an end against the index, its service and its node."""
    if assessed.avoid_node or assessed.is_silent:
        state.nodes.avoided.add(
            container.grant.node,
            assessed.reason,
            state.awake_ms,
            is_silent=assessed.is_silent,
            is_closed=assessed.is_closed,
        )
    if instance.container is container:
        services.reset_if_stable(state, instance)
        hours = max(0, state.now_ms - container.started_ms) // assessment.FORGIVEN_MS
        instance.node_faults = max(0, instance.node_faults - hours)
    if assessed.fault is Fault.SERVICE:
        services.begin_wait(state, instance, assessed.service)
    else:
        state.service_waits.pop(instance.index, None)
    if not assessed.free:
        instance.user_faults += assessed.fault is Fault.USER
        instance.node_faults += assessed.fault in (Fault.NODE, Fault.STOPPED)


def _end_index(state: ApplicationState, instance: Instance, gate: Gate, assessed: Assessment) -> None:
    """End the application for an index that is not retried, or give the index up."""
    fails_all, is_users = _fails_all(state, instance), assessed.fault is Fault.USER
    if not (instance.index in state.deciding or (gate.gang and not gate.open) or fails_all):
        instance.container, instance.stored = None, None
        give_up(state, instance, "", durable=is_users)
        return
    failure = _failure(state, instance, assessed)
    if is_users and gate.gang and gate.open and not fails_all:
        gang.defer_failure(state, instance, failure)
    elif (state.spec.on_container_failure is ContainerFailure.STOP and state.sweep is None) or fails_all:
        shutdown.fail(state, failure)
    else:
        give_up(state, instance, failure)


def give_up(state: ApplicationState, instance: Instance, failure: str, *, durable: bool = True) -> None:
    """Give up an index, and continue without it.

    Args:
        state: state of the application; it is changed.
        instance: the index.
        failure: reason for the user, if the index is a deciding one; otherwise empty.
        durable: record this durably before acting on it.
    """
    state.give_up(instance, failure)
    record = GiveUpRecord(instance.index, instance.user_faults, instance.node_faults, failure)
    state.record(record, durable=durable)


def _fails_all(state: ApplicationState, instance: Instance) -> bool:
    """Return whether the application fails with this index, whatever the other indexes do."""
    return instance.role.on_failure is RoleFailure.FAIL or state.spec.is_service


def _failure(state: ApplicationState, instance: Instance, assessed: Assessment) -> str:
    """Return why an index failed, for the user."""
    text = assessment.failure(
        assessment.container_name(instance.index, instance.role.name, instance.role_index),
        assessed,
        user_faults=instance.user_faults,
        node_faults=instance.node_faults,
        patience_s=state.spec.service_patience_s,
    )
    if assessed.fault is Fault.USER and (faults := _user_faults(state, instance)) > instance.user_faults:
        text += f" (role {instance.role.name} failed {faults} times in all)"
    if (
        assessed.fault in (Fault.NODE, Fault.STOPPED)
        and (faults := _node_faults(state, instance)) > instance.node_faults
    ):
        text += f" (its gang failed {faults} times in all)"
    return text


def _user_faults(state: ApplicationState, instance: Instance) -> int:
    """Return the number of failures that count against the retries of an index.

    The failure of one member restarts its whole gang. So the failures of all instances of the role count there; each
    generation has one.
    """
    role = state.role_of_index(instance.index)
    if not role.gate.gang or instance.role.on_failure is RoleFailure.RESTART:
        return instance.user_faults
    return sum(state.instances[index].user_faults for index in role.indexes)


def _node_faults(state: ApplicationState, instance: Instance) -> int:
    """Return the number of failures of an index, or of generations of its gang, that no program caused."""
    return max(instance.node_faults, state.role_of_index(instance.index).gate.node_faults)


def _is_retried(state: ApplicationState, instance: Instance, assessed: Assessment) -> bool:
    if assessed.fault is Fault.SERVICE:
        return services.left_ms(state, instance, assessed.service) > 0
    if instance.role.keep_running and assessed.fault is not Fault.DATA:
        return True
    is_users = assessed.fault is Fault.USER
    if is_users and _fails_all(state, instance):
        return False
    return assessment.is_retried(
        assessed,
        # Not counted for the members of a restarted gang, of which there may be thousands.
        user_faults=_user_faults(state, instance) if is_users else 0,
        node_faults=_node_faults(state, instance),
        retries=instance.role.retries,
    )


def _pause_until_ms(state: ApplicationState, instance: Instance, assessed: Assessment) -> int | None:
    """Return when an index may have its next try [ms of time awake]; None: at once, as after the failure of one node
    of many.
    """
    is_taken_away = assessed.fault is Fault.NODE and (assessed.free or state.engine.single_node)
    if not (is_taken_away or assessed.fault is Fault.SERVICE or instance.role.keep_running):
        return None
    instance.pauses += 1
    return state.awake_ms + assessment.pause_ms(instance.pauses)


def check_deadlines(state: ApplicationState) -> None:
    """Stop containers whose tasks did not come up or fell silent; repeat the stop for those that did not end."""
    while (due := state.deadlines.pop_due(state.awake_ms)) is not None:
        what, container = due
        if container.end is not None:
            continue
        match what:
            case Due.STOP if _is_presumed_dead(state, container):
                record_presumed_end(state, container)
            case Due.STOP:
                containers.request_stop(state, container)
            case Due.HELLO if not container.hello and container.stop_reason is None:
                if services.may_delay_hello(state, container):
                    state.set_deadline(state.timing.repeat_stop_ms, Due.HELLO, container)
                else:
                    state.add_action(CheckStart(container.container_id))
                    state.set_deadline(state.timing.check_ms, Due.LATE, container)
            case Due.LATE if not container.hello and container.stop_reason is None:
                if container.is_preparing and _may_prepare(state, container):
                    container.is_preparing = False
                    state.set_deadline(state.timing.hello_ms, Due.HELLO, container)
                else:
                    containers.stop(state, container, StopReason.LATE)
            case Due.SERVICE if container.result is None and container.stop_reason is None:
                services.check_wait(state, container)
            case Due.SILENCE if container.result is None and container.stop_reason is None:
                left = container.last_contact_ms + state.timing.silence_ms - state.awake_ms
                if left > 0 or container.unconfirmed:
                    state.set_deadline(max(left, 1000), Due.SILENCE, container)
                else:
                    containers.stop(state, container, StopReason.SILENT, at_once=True)
            case Due.REMOVED if container.presumed_end is not None:
                handle_end(state, container.presumed_end)
            case _:  # TRIALS: the trials of a container go on (`dlapp.am.decisions.trials.dispatch`)
                pass


def _may_prepare(state: ApplicationState, container: Container) -> bool:
    """Return whether a container may continue to fetch its files."""
    since_ms = container.node_has_it_ms
    return since_ms is not None and state.awake_ms - since_ms < state.timing.prepare_ms


def _is_presumed_dead(state: ApplicationState, container: Container) -> bool:
    """Return whether a container, known only from a journal or a late message, has been silent."""
    return not container.listed and state.awake_ms - container.last_contact_ms >= state.timing.silence_ms


def record_presumed_end(state: ApplicationState, container: Container) -> None:
    """Record the end of a container known neither to the engine nor to a task: it is gone, and nothing will report
    it."""
    state.add_action(StopContainer(container.container_id))
    end = ContainerEnd(container_id=container.container_id, exit_status=-100, node_fault=True)
    handle_end(state, replace(container.presumed_end or end, presumed=False))
