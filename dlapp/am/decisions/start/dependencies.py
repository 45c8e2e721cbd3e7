"""Dependencies between roles: when their containers are requested, and when their payloads may start.

All members of a gang must be ready before one of them starts; a role that depends on another member of its gang only
starts its payloads later. A role that depends on another gang's role, or one in no gang, requests its containers when
that role has reached its state: until then they would hold resources that the other role may need.
"""

from __future__ import annotations

from dlapp.am.decisions import assessment, containers, failures, shutdown
from dlapp.am.decisions.gangs import gang
from dlapp.am.model.demand import Role
from dlapp.am.model.instance import Stage, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.values.spec import ContainerFailure, Until


def check(state: ApplicationState) -> None:
    """Let roles request containers and start payloads as soon as their dependencies are met."""
    if state.stage is not Stage.ACTIVE:
        return
    for role, conditions in state.conditions.items():
        holds = [is_met(other, until) for other, until in conditions]
        if not role.is_wanted:
            is_met_outside = all(
                met or other.gate is role.gate for met, (other, _) in zip(holds, conditions, strict=True)
            )
            # Those that an earlier attempt had requested exist.
            role.is_wanted = is_met_outside or role.waiting < role.spec.instances
        began, role.may_begin = role.may_begin, all(holds)
        if role.may_begin and not began:
            gang.start_payloads(state, role, role.indexes)
        elif not role.may_begin:
            _give_up_if_impossible(state, role, [one for condition in conditions if (one := _lost_indexes(*condition))])


def is_met(other: Role, until: Until) -> bool:
    """Return whether a role has reached the state that a dependent role waits for."""
    return len(_reached_indexes(other, until)) == other.spec.instances


def _lost_indexes(other: Role, until: Until) -> set[int]:
    """Return the given-up indexes because of which a role will never reach a state."""
    return other.lost - _reached_indexes(other, until) if until is not Until.DONE else other.lost


def _reached_indexes(other: Role, until: Until) -> set[int]:
    """Return the indexes of a role that have reached a state."""
    return {Until.STARTED: other.begun, Until.READY: other.ready, Until.DONE: other.done}[until]


def _give_up_if_impossible(state: ApplicationState, role: Role, lost: list[set[int]]) -> None:
    """End, or continue without, the indexes of a role that can never start because these, its dependencies, were lost.

    Those that an earlier attempt had bound are stopped first; they are given up when their containers have ended.
    """
    if not lost:
        return  # the usual case
    unstarted = set(role.indexes) - role.begun - role.lost
    if not unstarted:
        return
    first = state.instances[min(lost[0])]
    name = assessment.container_name(first.index, first.role.name, first.role_index)
    failure = f"role {role.spec.name} cannot start: it depends on role {first.role.name}, and {name} failed"
    decides = state.spec.decides(role.spec)
    bound = [one for index in sorted(unstarted) if (one := state.instances[index].container) is not None]
    if (bound and role.gate.gang) or (decides and state.spec.on_container_failure is ContainerFailure.STOP):
        shutdown.fail(state, failure)
        return
    for container in bound:
        if container.stop_reason is None:
            containers.stop(state, container, StopReason.SURPLUS)
    for index in sorted(unstarted):
        if state.instances[index].container is None:
            failures.give_up(state, state.instances[index], failure if decides else "")
