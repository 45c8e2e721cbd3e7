"""Window of a gang: a gang holds an incomplete set of containers for a limited time, and then releases all of them.

A gang that has some of its containers withholds them from others while it waits for the rest. Two gangs that each hold
half of a cluster would wait for each other indefinitely. So a gang that is not complete within `AppSpec.gang_window_s`
releases all containers and withdraws its requests. It requests again after a random pause, whose limit doubles with
each release: eventually one of the two requests while the other pauses.

The window counts the time in which the gang has a container and lacks another one, or GPUs that a container waits for.
If all have containers and GPUs, or are preparing (pulling the image, unpacking the workspace, fetching input), they do
not wait for resources of another gang, and the time does not count. A member that loses its container during the window
is replaced as usual. A new attempt restarts the window.
"""

from __future__ import annotations

from dlapp.am.decisions import containers
from dlapp.am.decisions.assessment import Assessment
from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container, Stage, StopReason
from dlapp.am.model.state import ApplicationState
from dlapp.values.messages import Fault, Phase

RELEASED = Assessment(Fault.STOPPED, StopReason.WINDOW.value, free=True)
"""Reason for the end of a container that its gang released."""
FIRST_PAUSE_MS, LAST_PAUSE_MS = 10_000, 600_000
"""Maximum pause after the first release; doubled with each further one, up to the second value. Two gangs need some
seconds from their requests to their leases: with shorter pauses they would collide again."""
PAUSE_OF_WINDOW = 0.1
"""Maximum pause after the first release, as a share of the window, if that is longer than `FIRST_PAUSE_MS`: windows of
many gangs that began together end together. Measured with 100 gangs on 1,000 nodes, a window of 600 s and a scheduler
that gives each of them a part (tests/am/decisions/gangs/test_gang_cluster.py): 0.90 of the work of an oracle; with 10 s
0.81."""
CHECK_MS = 1_000
"""Check interval of the window: a check takes time in proportion to the containers."""


def check(state: ApplicationState) -> None:
    """Update the windows of incomplete gangs, and release those that hold too long."""
    if state.stage is not Stage.ACTIVE:
        return
    for gate in state.gates:
        if gate.paused_until_ms is not None and gate.paused_until_ms <= state.awake_ms:
            gate.paused_until_ms = None
        if gate.open:
            gate.held_ms, gate.releases, gate.checked_ms = 0, 0, None
        elif gate.checked_ms is None or state.awake_ms - gate.checked_ms >= CHECK_MS:
            _count(state, gate)


def _count(state: ApplicationState, gate: Gate) -> None:
    """Add the time since the last check if the gang was waiting then, as the state has hardly changed since."""
    since_ms, gate.checked_ms = gate.checked_ms, state.awake_ms
    if since_ms is not None and gate.waits:
        gate.held_ms += state.awake_ms - since_ms
    held = held_containers(state, gate)
    gate.waits = bool(held) and missing_resources(state, gate) != (0, 0)
    if not held:
        gate.held_ms = 0
    elif gate.waits and gate.held_ms >= state.spec.gang_window_s * 1000:
        _release(state, gate, held)


def held_containers(state: ApplicationState, gate: Gate) -> list[Container]:
    """Return a gang's containers that are not being released."""
    found = []
    for role in state.roles_of(gate):
        bound = [state.instances[index].container for index in role.indexes]
        found += [one for one in (*bound, *role.unbound.values()) if one is not None]
    return [one for one in found if one.container_id in state.containers.open and one.stop_reason is None]


def missing_resources(state: ApplicationState, gate: Gate) -> tuple[int, int]:
    """Return how many members of a gang lack a container or GPUs, and the number of these GPUs."""
    members = gpus = 0
    for role in state.roles_of(gate):
        gcores = role.spec.resources.gcores
        missing = max(0, role.waiting - len(role.unbound))
        for index in role.indexes if gcores else ():
            container = state.instances[index].container
            missing += container is not None and container.phase is Phase.LEASING and not container.gpus
        members, gpus = members + missing, gpus + missing * gcores
    return members, gpus


def _release(state: ApplicationState, gate: Gate, held: list[Container]) -> None:
    """Release all that a gang holds, and pause its requests."""
    first_ms = max(FIRST_PAUSE_MS, int(state.spec.gang_window_s * 1000 * PAUSE_OF_WINDOW))
    limit_ms = min(first_ms << min(gate.releases, 10), max(first_ms, LAST_PAUSE_MS))
    gate.releases += 1
    gate.paused_until_ms = state.awake_ms + max(CHECK_MS, int(state.chance.random() * limit_ms))
    gate.held_ms, gate.waits = 0, False
    for container in held:
        if container.instance is not None:
            gate.mark_not_ready(container.instance.index)
        containers.stop(state, container, StopReason.WINDOW)
