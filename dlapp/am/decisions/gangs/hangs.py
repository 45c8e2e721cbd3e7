"""Payloads that hang: they reported something once, and then nothing for ``hang_timeout``.

One that reports is alive for all of its gang, because a rank that waits for another one cannot report either. A device
that is busy proves nothing: a collective call of NCCL that waits for ever keeps it at 100 %. A payload that never
reports is not judged.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlapp.am.decisions.gangs import gang
from dlapp.am.model.instance import Container, Stage
from dlapp.am.model.state import ApplicationState
from dlapp.messages import PayloadStatus, Phase, Stop

_EVERY_MS = 1000


def take_status(state: ApplicationState, container: Container, status: PayloadStatus | None) -> None:
    """Note when a payload said something new; its container still has what it had said before."""
    before = container.payload.lines if container.payload is not None else 0
    if status is None or not status.lines:
        container.reported_ms = None
    elif status.lines != before or container.reported_ms is None:
        container.reported_ms = state.awake_ms


def check(state: ApplicationState) -> None:
    """Have payloads dump their stacks and fail which reported nothing for too long."""
    limit_s = state.spec.hang_timeout_s
    if limit_s is None or state.stage is not Stage.ACTIVE or state.awake_ms - state.hangs_checked_ms < _EVERY_MS:
        return
    state.hangs_checked_ms = state.awake_ms
    for group in _groups(state):
        times_ms = [one.reported_ms for one in group if one.reported_ms is not None]
        if times_ms and state.awake_ms - max(times_ms) >= limit_s * 1000:
            for container in group:
                state.order(container, abort=f"no report for {limit_s:g} s (hang_timeout)")


def _groups(state: ApplicationState) -> Iterator[list[Container]]:
    """Yield the containers whose payloads are judged together, as far as these run."""
    seen = set()
    for role in state.roles:
        if not role.gate.gang:
            for index in role.indexes:
                yield _running(state, [index])
        elif role.gate.open and role.gate not in seen:
            seen.add(role.gate)
            yield _running(state, [index for one in state.roles_of(role.gate) for index in one.indexes])


def _running(state: ApplicationState, indexes: list[int]) -> list[Container]:
    found = (state.instances[index].container for index in indexes)
    return [one for one in found if one is not None and _is_judged(state, one)]


def _is_judged(state: ApplicationState, container: Container) -> bool:
    orders = container.orders
    return (
        container.ran
        and container.phase is Phase.RUNNING
        and container.result is None
        and container.end is None
        and container.stop_reason is None
        and orders is not None
        and orders.stop is Stop.NO
        and not orders.abort
        and not gang.was_recalled(state, container)
    )
