"""Gangs: their gate opens, and closes when a member is lost (see `dlapp.am.model.gate`).

An earlier attempt may have closed the gate, or opened it, and died before any task received that. So when all
containers that it left of a gang have reported or ended, it is decided once whether they form a valid gang.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dlapp.am.decisions import assignment, containers, shutdown
from dlapp.am.decisions.assessment import FORGIVEN_MS, Assessment, container_name
from dlapp.am.decisions.gangs import checkpoints, launches, roster
from dlapp.am.model.demand import Role
from dlapp.am.model.gate import MAX_RESTARTS, GangFailure, Gate
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.roster import has_address
from dlapp.am.model.state import ApplicationState
from dlapp.value import replace
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import RestartView
from dlapp.values.spec import RoleFailure

GANG_RESTARTED = Assessment(Fault.STOPPED, StopReason.GANG_RESTARTED.value, free=True)
"""Reason for the end of a payload whose gang had been restarted before."""
MAX_CAUSE = 200
"""Maximum length of the cause of a restart [characters]."""
_INCOMPLETE = "it was incomplete after the death of an ApplicationMaster"


def handle_ready(state: ApplicationState, container: Container) -> None:
    """Record that a task is ready and waits at the gate."""
    index, role = container.bound_instance.index, state.role_of(container)
    if container.stop_reason is not None or container.announced is not None:
        return
    if not has_address(state, container):
        return  # its peers could not find it
    if not role.gate.open and not checkpoints.is_restored(container, role.gate):
        return  # it is ordered to restore another one
    if role.gate.mark_ready(index, container.generation):
        open_gate(state, role.gate)
    else:
        start_payloads(state, role, (index,))


def open_gate(state: ApplicationState, gate: Gate) -> None:
    """Let the payloads of all members start, except in roles whose dependencies are not met."""
    gate.open = True
    checkpoints.record_gate(state, gate)
    roster.begin(state, gate)
    for role in state.roles_of(gate):
        start_payloads(state, role, role.indexes)


def start_payloads(state: ApplicationState, role: Role, indexes: Iterable[int]) -> None:
    """Let payloads of a role start, if its gate is open and its dependencies are met."""
    if not role.may_start:
        return
    for index in indexes:
        container = state.instances[index].container
        if container is not None:
            assignment.start_if_allowed(state, container)


def restart(
    state: ApplicationState, gate: Gate, why: str, member: Instance | None = None, *, is_charged: bool = False
) -> None:
    """Restart a gang: end the payloads of all members, and close the gate until all are ready again.

    Args:
        state: state of the application; it is changed.
        gate: gate of the gang.
        why: the reason, for the user.
        member: the member that caused it; None: no single one.
        is_charged: it failed by itself, which counts against its retries.
    """
    one = _restart_view(state, gate, gate.generation + 1, why, member)
    gate.restarts = (*gate.restarts, one)[-MAX_RESTARTS:]
    _begin_generation(state, gate, gate.generation + 1)
    gate.charged = member.index if member is not None and is_charged else None


def _restart_view(
    state: ApplicationState, gate: Gate, generation: int, why: str, member: Instance | None
) -> RestartView:
    line, index = why.partition("\n")[0], None
    if member is not None:
        index = member.index
        line = f"{container_name(index, member.role.name, member.role_index)}: {line}"
    cause = line if len(line) <= MAX_CAUSE else line[: MAX_CAUSE - 1] + "…"
    return RestartView(role=gate.name, generation=generation, at_ms=state.now_ms, container=index, cause=cause)


def uncount_restart(state: ApplicationState, assessed: Assessment, member: Instance) -> None:
    """Uncount a restart: the member that seemed to cause it failed with the node of another one, ``member``, whose end
    was assessed.
    """
    gate = state.role_of_index(member.index).gate
    was_charged = gate.charged is not None
    uncount_failure(state, gate)
    gate.node_faults += was_charged and not assessed.free  # else the restart is counted so already
    if was_charged and gate.restarts and gate.restarts[-1].generation == gate.generation:
        known = gate.restarts[-1]
        one = _restart_view(state, gate, gate.generation, assessed.reason, member)
        gate.restarts = (*gate.restarts[:-1], replace(one, at_ms=known.at_ms))
        checkpoints.record_gate(state, gate, durable=False)


def defer_failure(state: ApplicationState, instance: Instance, text: str) -> None:
    """Let a member's failure end the application when the others have ended: they get SIGTERM, and store their output.

    When a node is lost or a GPU fails, the peers exit with errors, and their reports often arrive first.
    """
    gate = state.role_of_index(instance.index).gate
    if gate.failure is not None:
        return
    gate.failure = GangFailure(instance.index, text, state.awake_ms + int(state.spec.failure_settle_s * 1000))
    for container in _open_members(state, gate):
        if container.stop_reason is None and container.orders is not None and container.orders.stop is Stop.NO:
            why = f"container {instance.index} of its gang has failed"
            state.order(container, stop=Stop.SOFT, why=why, grace_s=state.spec.kill_grace_s)


def check_failures(state: ApplicationState) -> None:
    """Let a failure end the application if the gang's members have ended, or their time is up and none is silent."""
    for gate in state.gates:
        failure = gate.failure
        if failure is None or state.stage is not Stage.ACTIVE:
            continue
        if state.awake_ms < failure.until_ms:
            is_settled = next(_open_members(state, gate), None) is None
        else:
            longest_ms = 2 * int(state.timing.report_interval_s(len(state.instances)) * 1000)
            is_settled = all(state.awake_ms - one.last_contact_ms < longest_ms for one in _open_members(state, gate))
        if is_settled:
            gate.failure = None
            shutdown.fail(state, failure.text)


def count_node_fault(state: ApplicationState, gate: Gate, container: Container) -> None:
    """Count the end of an open gang's generation by a failure of one member that no program caused.

    The generations count, and not the failures of each member: else a gang of N containers could restart N times as
    often. A long run forgives, as it does for one index.
    """
    since_ms = max([container.started_ms, *(one.at_ms for one in gate.restarts[-1:])])
    hours = max(0, state.now_ms - since_ms) // FORGIVEN_MS
    gate.node_faults = max(0, gate.node_faults - hours) + 1


def uncount_failure(state: ApplicationState, gate: Gate) -> None:
    """Uncount the failure of a member: its generation failed with a node, or with a container that YARN took away."""
    index = gate.failure.member if gate.failure is not None else gate.charged
    gate.failure = gate.charged = None
    if index is not None:
        state.instances[index].user_faults -= 1
        state.record_faults(state.instances[index])


def _open_members(state: ApplicationState, gate: Gate) -> Iterator[Container]:
    """Yield the containers of a gang whose ends are awaited."""
    for member in state.members_of(gate):
        container = member.container
        if container is not None and container.container_id in state.containers.open and not container.is_kept:
            yield container


def handle_generation(state: ApplicationState, container: Container, generation: int) -> None:
    """Record the generation of a phase, as reported by a task.

    Only an attempt without the journals of earlier ones can receive unknown generations. The highest one is that of the
    gang, unless this attempt has begun others.
    """
    role = state.role_of(container)
    container.generation = generation
    if role.gate.gang and generation > role.gate.generation:
        _begin_generation(state, role.gate, generation if role.recovering else generation + 1)


def _begin_generation(state: ApplicationState, gate: Gate, generation: int) -> None:
    """Move all members of an earlier generation back to the gate: in the same containers if their tasks support it,
    else in new ones."""
    gate.close(generation)
    launches.clear(state)
    members = state.members_of(gate)
    taken_back = {one.index for one in members if one.given_up}
    # Without finished members the others are not complete. Recorded before the gate: a next attempt that finds it
    # closed would wait for them in vain.
    for index in sorted(taken_back):
        state.reinstate(state.instances[index])
    checkpoints.record_gate(state, gate)
    for instance in members:
        container = instance.container
        if container is None or instance.index in taken_back:
            continue
        is_earlier = container.generation < generation
        if container.container_id not in state.containers.open:
            if is_earlier:
                assignment.free(state, instance)
        elif container.announced is not None:
            continue  # it saves its state, and is replaced then
        elif is_earlier and (container.storing or _is_stopping(container)):
            containers.stop(state, container, StopReason.GANG_RESTARTED)
        else:
            if is_earlier:
                container.ran = False
                state.mark_not_done(instance)
            state.order(
                container,
                generation=generation,
                go=False,
                roster=0,
                abort="",
                checkpoint=None,
                launches=(),
                launch_states=(),
            )


def _is_stopping(container: Container) -> bool:
    if container.is_kept:
        return True  # it has released its GPUs
    is_told = container.orders is not None and container.orders.stop is not Stop.NO
    return is_told or container.stop_reason is not None


def is_of_earlier_generation(state: ApplicationState, container: Container) -> bool:
    """Return whether the gang of a container's payload has been restarted since the payload began."""
    gate = state.role_of(container).gate
    return gate.gang and container.instance is not None and container.generation < gate.generation


def check_recovered(state: ApplicationState, role: Role) -> None:
    """Decide whether an earlier attempt's containers of a role's gang form a valid gang, once all reported or ended."""
    if not role.recovering or state.stage is not Stage.ACTIVE:
        return
    roles = state.roles_of(role.gate)
    if any(one.blockers for one in roles):
        return
    bound = [one.container for one in state.members_of(role.gate) if one.container is not None]
    if any(one.unconfirmed for one in bound):
        return
    for one in roles:
        one.recovering = False
    is_incomplete = any(one.waiting and one.spec.on_failure is not RoleFailure.RESTART for one in roles)
    if role.gate.open:
        if is_incomplete:
            restart(state, role.gate, _INCOMPLETE)
    elif any(
        _has_started(one) and one.stop_reason is None and not is_of_earlier_generation(state, one) for one in bound
    ):
        # No journal has the opening of the gate, but payloads run. If all are there, it was; else it cannot be
        # completed.
        if is_incomplete or not checkpoints.have_same_checkpoint(state, role.gate, bound):
            restart(state, role.gate, _INCOMPLETE)
        else:
            open_gate(state, role.gate)


def _has_started(container: Container) -> bool:
    """Return whether the payload of a container has started in the generation of its last report."""
    return container.ran or container.storing or container.phase in (Phase.RUNNING, Phase.ENDED)
