"""Cause of an application's failure, from those of its containers.

The first failure in time is the cause. Consequences of other failures, such as a closed connection, count only if there
is no other failure. If ranks waited for one that did not take part, that one is named.
"""

from __future__ import annotations

from collections.abc import Sequence

from dlapp.am.decisions import assessment, shutdown
from dlapp.am.model.instance import Container, Instance, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.value import replace
from dlapp.values.messages import Diagnosis, Fault
from dlapp.values.report import Cause, ContainerDiagnosis

_OF_NODES = {
    StopReason.SILENT: "task_silent",
    StopReason.LATE: "task_late",
    StopReason.PREEMPTED: "preempted",
    StopReason.DECOMMISSIONED: "node_decommissioned",
}
"""Reason for stopping a container, if its node may be responsible -> name of the rule."""
_ANNOUNCED = (StopReason.PREEMPTED, StopReason.DECOMMISSIONED)
_WAITED = "collective_timeout"
"""Rule for a rank that waited for another one."""


def of_application(state: ApplicationState) -> ContainerDiagnosis | None:
    """Return why an application failed or reached its time limit; None: it did not, or no rule found the cause."""
    if state.ending is None:
        return None
    if state.ending.cause is Cause.TIMED_OUT:
        stopped = [one.index for one in state.instances if one.last is None or not _ended_by_itself(one.last)]
        index = stopped[0] if stopped else 0
        return ContainerDiagnosis(index=index, diagnosis=shutdown.diagnosis_of_limit(state.ending))
    if state.ending.cause is not Cause.FAILED:
        return None
    failed = [
        (found.is_consequence, one.last.payload_ended_ms or one.last.finished_ms or 0, one.index, found)
        for one in state.instances
        if one.last is not None and (found := of_container(one.last)) is not None
    ]
    if not failed:
        return None
    _, _, index, found = min(failed, key=lambda one: one[:3])
    if found.rule == _WAITED and (missing := _missing(state, state.instances[index])):
        names = [assessment.container_name(one.index, one.role.name, one.role_index) for one in missing]
        where = "its log" if len(missing) == 1 else "their logs"
        found = replace(
            found,
            cause=f"{assessment.listed(names)} did not take part in a collective operation in time",
            next_step=f"look at {where}: a rank that prints nothing at that time hangs or is slow",
        )
    return ContainerDiagnosis(index=index, diagnosis=found)


def of_container(container: Container) -> Diagnosis | None:
    """Return why a container failed; None: it did not, or no rule found the cause."""
    result, end, why = container.result, container.end, container.stop_reason
    announced = container.announced
    if result is not None and result.lost:  # an earlier attempt had the notice, and its task repeats the reason
        announced = announced or next((one for one in _ANNOUNCED if one.value == result.message), None)
    if announced is not None and result is not None and result.fault is not Fault.NONE:
        return _of_node(announced)
    if result is not None:
        return assessment.diagnosis_of_status(assessment.LOST) if result.lost else result.diagnosis
    if end is None:
        return None
    if why in (StopReason.SILENT, StopReason.UNCONFIRMED) and (container.presumed_end is not None or end.presumed):
        return assessment.diagnosis_of_end(container.presumed_end or end)
    if why in _OF_NODES:
        return _of_node(why)
    return assessment.diagnosis_of_end(end) if why is None else None


def _of_node(why: StopReason) -> Diagnosis:
    return Diagnosis(rule=_OF_NODES[why], cause=why.value, fault=Fault.NODE, next_step=assessment.TRIED_AGAIN)


def _missing(state: ApplicationState, waited: Instance) -> Sequence[Instance]:
    """Return the ranks for which a rank of a gang waited in vain; empty: not known.

    They have no failure of their own: they were ended with the gang. So were ranks that waited and whose time was not
    up yet. The two are distinguished by the steps that they reported.
    """
    gate = state.role_of_index(waited.index).gate
    if not gate.gang:
        return ()
    others = [one for one in state.members_of(gate) if one.last is not None and not _ended_by_itself(one.last)]
    step = _step(waited)
    steps = {one.index: _step(one) for one in others}
    behind = [one for one in others if step is not None and (own := steps[one.index]) is not None and own < step]
    return behind or (others if len(others) == 1 else ())


def _ended_by_itself(container: Container) -> bool:
    return container.result is not None and container.result.fault is not Fault.STOPPED


def _step(instance: Instance) -> int | None:
    last = instance.last
    return None if last is None or last.payload is None else last.payload.step
