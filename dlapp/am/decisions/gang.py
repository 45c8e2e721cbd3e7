"""Gangs: the gate of their roles opens, and closes when a member is lost (see `dlapp.am.model.gate`).

An earlier attempt may have closed the gate, or opened it, and died before anybody had heard. So when all that it left
of a gang is heard or gone, it is looked at once whether that is one gang.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.am.decisions import assignment, containers
from dlapp.am.model.demand import Role
from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.messages import Phase
from dlapp.spec import RoleFailure


def arrive(state: ApplicationState, instance: Instance) -> None:
    """A task is ready and waits at the gate."""
    role = state.role_of_index(instance.index)
    if instance.container is None or instance.container.stop_reason is not None:
        return
    if role.gate.arrive(instance.index):
        open_gate(state, role.gate)
    else:
        start_payloads(state, role, (instance.index,))


def open_gate(state: ApplicationState, gate: Gate) -> None:
    """Let the payloads of all members start, but of roles that wait for what they depend on."""
    gate.reopen()
    state.note("gate", durable=True, role=gate.name, open=True)
    for role in state.roles_of(gate):
        start_payloads(state, role, role.indexes)


def start_payloads(state: ApplicationState, role: Role, indexes: Iterable[int]) -> None:
    """Let payloads of a role start, if its gate is open and what it depends on is there."""
    if not role.may_start:
        return
    for index in indexes:
        container = state.instances[index].container
        if container is not None:
            assignment.let_start(state, container)


def restart(state: ApplicationState, gate: Gate) -> None:
    """Begin a gang anew: stop all members, and close the gate until all are ready again."""
    gate.close()
    members = [state.instances[index] for role in state.roles_of(gate) for index in role.indexes]
    taken_back = {one.index for one in members if one.given_up}
    # The others are not complete without them. On record before the gate: a next attempt that finds it closed would
    # wait for them in vain.
    for index in sorted(taken_back):
        state.take_back(state.instances[index])
    state.note("gate", durable=True, role=gate.name, open=False)
    for instance in members:
        container = instance.container
        if container is None or instance.index in taken_back:
            continue
        if container.container_id in state.open:
            containers.stop(state, container, StopReason.RECALLED)
        else:
            assignment.free(state, instance)


def was_recalled(state: ApplicationState, container: Container) -> bool:
    """Return whether a container whose payload has run did so for a gang that begins anew.

    The gate was closed since: by this attempt, which may have been stopping the container for another reason, or by an
    earlier one, which died before all had heard. Without a journal the latter is only known once all members are heard
    or gone.
    """
    role = state.role_of(container)
    journal_knows = state.former is not None and state.former.started_ms is not None
    return role.gate.gang and not role.gate.open and (journal_knows or not role.recovering)


def check_recovered(state: ApplicationState, role: Role) -> None:
    """Decide whether what an earlier attempt left of a role's gang is one gang, once all of it is heard or gone."""
    if not role.recovering or state.stage is not Stage.ACTIVE:
        return
    members = state.roles_of(role.gate)
    if any(one.blockers for one in members):
        return
    indexes = [index for one in members for index in one.indexes]
    bound = [container for index in indexes if (container := state.instances[index].container) is not None]
    if any(one.unvouched for one in bound):
        return
    for one in members:
        one.recovering = False
    is_incomplete = any(one.waiting and one.spec.on_failure is not RoleFailure.RESTART for one in members)
    if role.gate.open:
        if is_incomplete:
            restart(state, role.gate)
    elif any(_has_passed(one) and one.stop_reason is None for one in bound):
        # No journal says that it was opened, but payloads run. All there: it was; else it cannot be completed.
        if is_incomplete:
            restart(state, role.gate)
        else:
            open_gate(state, role.gate)


def _has_passed(container: Container) -> bool:
    return container.ran or container.storing or container.phase in (Phase.RUNNING, Phase.ENDED)
