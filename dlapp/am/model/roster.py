"""Roster of an application: the addresses of its containers (`dlapp.values.roster`), and the version their tasks need.

Its members come from reports of tasks, so a next attempt recovers it like the phases: when all have reported. A lost
member keeps its entry until another container has replaced it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.values.roster import Member, Roster, is_address

if TYPE_CHECKING:
    from dlapp.am.model.gate import Gate
    from dlapp.am.model.instance import Container
    from dlapp.am.model.state import ApplicationState
    from dlapp.values.messages import Report

_PORTS = range(1, 65_536)


def record_address(state: ApplicationState, container: Container, report: Report) -> None:
    """Record the address of a bound container, as its task reports it."""
    if not state.roster.exists:
        return
    instance, role = container.bound_instance, container.bound_instance.role
    if not state.roster.is_known:
        gate = state.role_of(container).gate
        if report.generation == gate.generation:
            gate.roster_version = max(gate.roster_version, report.roster_version)
    is_place = is_address(report.address) and len(report.ports) == role.ports
    if not is_place or any(port not in _PORTS for port in report.ports):
        return  # it has none yet
    assert report.address is not None
    member = Member(
        role=role.name,
        role_index=instance.role_index,
        index=instance.index,
        host=container.host,
        address=report.address,
        ports=report.ports,
    )
    state.roster.places[instance.index] = container
    if state.roster.members.get(instance.index) != member:
        state.roster.members[instance.index] = member
        state.roster.is_changed = True


def has_address(state: ApplicationState, container: Container) -> bool:
    """Return whether a bound container's task has reported its address, if its peers need it."""
    return not state.roster.exists or state.roster.places.get(container.bound_instance.index) is container


def publish(state: ApplicationState) -> int:
    """Make the members known now the current roster, and return its number."""
    roster = state.roster
    if roster.is_changed:
        roster.is_changed = False
        roster.number += 1
        for gate in {role.gate for role in state.roles}:
            gate.roster_version += 1
    return roster.number


def roster_for(state: ApplicationState, container: Container) -> int:
    """Return the number of the roster with which a container's payload may start; 0: none yet."""
    return publish(state) if state.roster.is_known and has_address(state, container) else 0


def roster_of(state: ApplicationState, gate: Gate) -> Roster:
    """Return the roster for the containers behind a gate, with all members that are known."""
    members = tuple(state.roster.members[index] for index in sorted(state.roster.members))
    return Roster(generation=gate.generation, version=gate.roster_version, members=members)
