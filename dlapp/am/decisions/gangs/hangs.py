"""Detection of hanging payloads: they have reported before, and then nothing for ``hang_timeout``.

One reporting member proves that its whole gang is alive, because a rank that waits for another one cannot report
either. A busy device proves nothing: a hanging collective call of NCCL keeps it at 100 %.

Payloads that never reported are assessed only with ``hang_idle``, by their tasks' measurements: all of a gang have used
neither CPU nor GPU for that time. Unknown usage does not count as idle.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlapp.am.decisions.gangs import gang
from dlapp.am.model.instance import Container, Instance, Stage
from dlapp.am.model.state import ApplicationState
from dlapp.values.messages import PayloadStatus, Phase, Stop
from dlapp.values.notification import HANG
from dlapp.values.usage import Usage

_EVERY_MS = 1000
_MAX_CORES, _MAX_UTILISATION = 0.05, 0.01
"""CPU usage of an idle payload: threads that poll a few times a second use less than 0.01 cores."""


def handle_status(state: ApplicationState, container: Container, status: PayloadStatus | None) -> None:
    """Record when a payload reported something new; its container still has the previous report."""
    before = container.payload.lines if container.payload is not None else 0
    if status is None or not status.lines:
        container.reported_ms = None
    elif status.lines != before or container.reported_ms is None:
        container.reported_ms = state.awake_ms


def handle_usage(state: ApplicationState, container: Container, usage: Usage | None) -> None:
    """Record since when a payload is idle; None: no new measurement."""
    if usage is None:
        return
    is_idle = usage.cpu_cores is not None and usage.cpu_cores <= _MAX_CORES
    busiest = usage.busiest_gpu(len(container.gpus))
    is_idle = is_idle and busiest is not None and busiest <= _MAX_UTILISATION
    if not is_idle or container.phase is not Phase.RUNNING:
        container.idle_since_ms = None
    elif container.idle_since_ms is None:
        container.idle_since_ms = state.awake_ms


def check(state: ApplicationState) -> None:
    """Order payloads to dump their stacks and fail if they reported nothing for too long, or were idle."""
    limit_s = state.spec.hang_timeout_s
    if limit_s is None or state.stage is not Stage.ACTIVE or state.awake_ms - state.checks.hangs_ms < _EVERY_MS:
        return
    state.checks.hangs_ms = state.awake_ms
    for group, is_whole in _groups(state):
        times_ms = [one.reported_ms for one in group if one.reported_ms is not None]
        what = "no report"
        if not times_ms and state.spec.hang_idle and is_whole:
            what = "no use of CPU or GPU"
            idle_ms = [one.idle_since_ms for one in group if one.idle_since_ms is not None]
            times_ms = idle_ms if len(idle_ms) == len(group) else []
        if times_ms and state.awake_ms - max(times_ms) >= limit_s * 1000:
            keys = "hang_timeout" if what == "no report" else "hang_timeout, hang_idle"
            text = f"{what} of the program for {limit_s:g} s ({keys}), so it is ended"
            state.notify(HANG, str(group[0].container_id), text)
            for container in group:
                state.order(container, abort=f"{what} for {limit_s:g} s ({keys})")


def _groups(state: ApplicationState) -> Iterator[tuple[list[Container], bool]]:
    """Yield the containers whose payloads are assessed together, as far as they run, and whether all of them do."""
    seen = set()
    for role in state.roles:
        if role.spec.keep_running:
            continue  # it may have nothing to report while it gets no requests
        if not role.gate.gang:
            for index in role.indexes:
                yield _running(state, [state.instances[index]])
        elif role.gate.open and role.gate not in seen:
            seen.add(role.gate)
            yield _running(state, state.members_of(role.gate))


def _running(state: ApplicationState, instances: list[Instance]) -> tuple[list[Container], bool]:
    members = [one for one in instances if not (one.done or one.given_up)]
    found = [one.container for one in members if one.container is not None and is_supervised(state, one.container)]
    return found, len(found) == len(members)


def is_supervised(state: ApplicationState, container: Container) -> bool:
    """Return whether a container's payload runs, and was not ordered to end."""
    orders = container.orders
    return (
        container.ran
        and container.phase is Phase.RUNNING
        and container.result is None
        and container.end is None
        and container.stop_reason is None
        and not container.is_kept
        and orders is not None
        and orders.stop is Stop.NO
        and not orders.abort
        and not gang.is_of_earlier_generation(state, container)
    )
