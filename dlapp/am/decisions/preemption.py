"""Ends with notice: the engine announces which containers it will take, for others (preemption) or because their node
is decommissioned, and how long it waits.

The payload of such a container gets SIGTERM at once, and its task stores its checkpoint, then its output. Then the
container ends, and its index waits for another one; nothing of that is counted. What is not stored when the engine's
time is up keeps its previous state. A gang with running payloads is restarted at the notice, as for a lost member: its
other members get SIGTERM at the same moment, and keep their containers.

A container whose payload has ended is left alone. It stores its output, as long as the engine lets it.
"""

from __future__ import annotations

from dlapp.am.decisions import containers
from dlapp.am.decisions.assessment import Assessment
from dlapp.am.decisions.gangs import gang
from dlapp.am.model.instance import Stage, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.cluster.engine import AnnouncedEnd
from dlapp.values.messages import DECOMMISSIONED, PREEMPTED, Fault, Stop
from dlapp.values.spec import RoleFailure

_PAYLOADS_SHARE = 2 / 3
"""Share of the engine's time for the payload; the rest is for storing."""


def assess(why: StopReason) -> Assessment:
    """Assess the end of a payload after the notice, unless it succeeded."""
    return Assessment(Fault.NODE, why.value, free=True)


def handle_notice(state: ApplicationState, notice: AnnouncedEnd) -> None:
    """Handle the engine's notice that it will take a container away. It may not be ours, such as the
    ApplicationMaster's.
    """
    container = state.containers.open.get(notice.container_id)
    if container is None or container.announced is not None or container.stop_reason is not None:
        return
    if state.stage is not Stage.ACTIVE:
        return
    container.announced = why = StopReason.DECOMMISSIONED if notice.is_decommissioned else StopReason.PREEMPTED
    if container.instance is None or container.orders is None:
        containers.stop(state, container, why)
        return
    if container.storing:
        return
    if container.orders.stop is Stop.NO:
        grace_s = min(state.spec.kill_grace_s, notice.wait_s * _PAYLOADS_SHARE)
        reason = DECOMMISSIONED if notice.is_decommissioned else PREEMPTED
        state.order(container, stop=Stop.SOFT, why=why.value, reason=reason, grace_s=grace_s)
    role = state.role_of(container)
    role.gate.mark_not_ready(container.instance.index)
    if role.gate.gang and role.gate.open and role.spec.on_failure is not RoleFailure.RESTART:
        if role.gate.failure is not None:
            gang.uncount_failure(state, role.gate)
        gang.restart(state, role.gate, why.value, container.instance)
