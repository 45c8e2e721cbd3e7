"""Messages of the engine: registration, granted containers, preempted ones, their ends, refused requests."""

from __future__ import annotations

from dlapp.am.decisions import blockers, failures, preemption, recovery, shutdown
from dlapp.am.model.events import Abandon, StartTask
from dlapp.am.model.instance import Stage
from dlapp.am.model.records.application import VERSION, BeginRecord, ChangeRecord
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.cluster.engine import Grant, Heartbeat, Registered
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Stop
from dlapp.values.spec import Resources, RoleSpec


def handle_registered(state: ApplicationState, registered: Registered) -> None:
    """Handle the registration's answer."""
    state.stage = Stage.ACTIVE
    state.engine.single_node, state.engine.lists_all = registered.single_node, registered.is_complete
    former = state.recovery.former
    if former is not None:
        former.pass_boot(registered.boot_id)
    state.lifetime.started_ms = state.now_ms if former is None or former.started_ms is None else former.started_ms
    state.lifetime.runtime_from_ms = state.awake_ms - max(0, state.now_ms - state.lifetime.started_ms)
    state.record(BeginRecord(state.attempt, state.lifetime.started_ms, VERSION, registered.boot_id))
    if state.attempt > 1 or registered.live:
        state.recovery.until_ms = state.awake_ms + state.timing.recovery_ms
        recovery.recover(state, former or RecoveredState(), registered.live)
        if registered.is_complete:
            recovery.end_unlisted_containers(state)
    if state.stop.before_start is not None:
        shutdown.execute_stop(state, state.stop.before_start)


def handle_heartbeat(state: ApplicationState, heartbeat: Heartbeat) -> None:
    """Handle a heartbeat's answer."""
    if heartbeat.shut_down is not None:
        state.stage = Stage.ENDED
        state.add_action(Abandon(heartbeat.shut_down))
        return
    if state.stage is Stage.STARTING:
        return
    if heartbeat.resync:
        state.nodes.avoided.clear()
    if heartbeat.killed_in_s is not None:
        shutdown.handle_lifetime(state, heartbeat.killed_in_s)
    for container_id in heartbeat.ending:
        _handle_ending(state, container_id)
    for notice in heartbeat.announced:
        preemption.handle_notice(state, notice)
    if heartbeat.removed_nodes:
        failures.handle_removed_nodes(state, heartbeat.removed_nodes)
    for end in heartbeat.ended:
        failures.handle_end(state, end)
    for end in heartbeat.start_failed:
        # The engine could not even start a task there: the node is responsible, whatever the code.
        failures.handle_end(state, end if end.node_fault else replace(end, node_fault=True))
    for grant in heartbeat.granted:
        handle_grant(state, grant)
    for container_id in heartbeat.started:
        _handle_started(state, container_id)
    for container_id in heartbeat.preparing:
        if (container := state.containers.open.get(container_id)) is not None and not container.hello:
            container.is_preparing = True
    for request_id, why in heartbeat.refused:
        role = state.role_of_request(request_id)
        if state.stage is Stage.ACTIVE and role is not None and role.missing > 0:
            name = f"role {role.spec.name}: " if len(state.roles) > 1 else ""
            shutdown.fail(state, f"{name}{why}")


def handle_grant(state: ApplicationState, grant: Grant) -> None:
    """Start a task in a granted container, or release it if it is not needed."""
    if not state.is_new(grant.container_id):
        return
    if grant.container_id.attempt < state.attempt:
        recovery.adopt(state, grant)  # the engine did not list it at registration
        return
    role = state.role_of_request(grant.request_id)
    if state.stage is not Stage.ACTIVE or role is None or role.missing <= 0:
        state.containers.released[grant.container_id] = None
        return
    state.nodes.removed.discard(grant.node)
    container = state.add_container(grant, role)
    role.unbound[grant.container_id] = container
    _record_change(state, role.spec, grant.resources)
    state.add_action(StartTask(grant))


def _handle_started(state: ApplicationState, container_id: ContainerId) -> None:
    """Set the deadline of a container's task: its node has accepted it."""
    container = state.containers.open.get(container_id)
    if container is not None and container.node_has_it_ms is None:
        container.node_has_it_ms = state.awake_ms
        state.set_deadline(state.timing.hello_ms, Due.HELLO, container)


def _record_change(state: ApplicationState, role: RoleSpec, given: Resources) -> None:
    """Record for the view that the engine gives a role's containers other amounts than requested."""
    asked = role.resources
    if given == asked:
        return
    amounts = (
        ("memory", asked.memory_mib, given.memory_mib, " MiB"),
        ("vcores", asked.vcores, given.vcores, ""),
        ("gcores", asked.gcores, given.gcores, ""),
    )
    texts = [
        f"{name} {'raised' if has > wanted else 'lowered'} from {wanted} to {has}{unit}"
        for name, wanted, has, unit in amounts
        if has != wanted
    ]
    text = f"each {role.name} container: {', '.join(texts)}"
    if state.engine.changes.get(role.name) != text:
        state.engine.changes[role.name] = text
        state.record(ChangeRecord(role.name, text))


def _handle_ending(state: ApplicationState, container_id: ContainerId) -> None:
    """Handle the engine's notice that it takes a container away. One of an earlier attempt without a journal entry may
    run any index until its end is known: YARN takes those started in the last second before their ApplicationMaster
    died.
    """
    container = state.containers.by_id.get(container_id)
    if container is not None and container_id in state.containers.open and container.orders is not None:
        # A node that YARN has lost may still be connected: then its task is ordered to end.
        if container.orders.stop is not Stop.NOW:
            state.order(container, stop=Stop.NOW, why="its node is lost, or it was preempted", go=False)
    elif state.is_new(container_id) and container_id.attempt < state.attempt:
        blockers.block_all_roles(state, container_id)
