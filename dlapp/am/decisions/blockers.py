"""Containers of an earlier attempt whose index is unknown: they block all indexes of their role.

Each blocks until its task is connected, or its end is known.
"""

from __future__ import annotations

from dlapp.am.decisions import assignment
from dlapp.am.decisions.gangs import gang
from dlapp.am.model.instance import Container
from dlapp.am.model.state import ApplicationState
from dlapp.cluster.engine import Grant
from dlapp.values.ids import ContainerId


def add(state: ApplicationState, container: Container) -> None:
    """Block a container's role."""
    role = state.role_of(container)
    if container.listed:
        role.unbound[container.container_id] = container
    role.blockers[container.container_id] = container


def block_all_roles(state: ApplicationState, container_id: ContainerId) -> None:
    """Block all roles for a container of which not even the role is known."""
    for role in state.roles:
        grant = Grant(container_id=container_id, request_id=role.request_id, node="", resources=role.spec.resources)
        role.blockers[container_id] = Container(grant, role.place, state.now_ms)


def remove(state: ApplicationState, container: Container) -> None:
    """Unblock the role of a container whose task is connected, or which has ended."""
    container.unconfirmed = False
    # If the engine reported it before its task did, it blocks the other roles, too.
    unblock_all_roles(state, container.container_id)
    gang.check_recovered(state, state.role_of(container))


def unblock_all_roles(state: ApplicationState, container_id: ContainerId) -> None:
    """Unblock all roles of a container, whatever its role was."""
    for role in state.roles:
        if role.blockers.pop(container_id, None) is not None:
            if not role.blockers:
                assignment.answer_waiting_tasks(state, role)
            gang.check_recovered(state, role)
