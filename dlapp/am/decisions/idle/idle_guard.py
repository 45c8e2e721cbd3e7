"""GPUs that an application holds and does not use (`dlapp.values.idle_guard`).

Each container with GPUs is assessed by what its task measures while its payload runs: all of its GPUs were below the
guard's utilisation in every report for so long as the window. If a GPU reports its activity, that counts. What is not
known counts as busy, also that of a task which is not connected, and the window restarts with each start of a payload
and with each ApplicationMaster.

The application is ended only if all of its GPUs are idle. Containers that are about to run count as busy: the others
may wait for them.
"""

from __future__ import annotations

from collections.abc import Iterator

from dlapp.am.decisions import shutdown
from dlapp.am.decisions.gangs import hangs
from dlapp.am.model.instance import Container, Instance, Stage
from dlapp.am.model.state import ApplicationState
from dlapp.values.idle_guard import IdleAction, IdleGuard, least_window_s
from dlapp.values.messages import Phase
from dlapp.values.notification import IDLE
from dlapp.values.report import Cause
from dlapp.values.usage import Usage

_EVERY_MS = 1000


def handle_usage(state: ApplicationState, container: Container, usage: Usage | None) -> None:
    """Record since when the GPUs of a container are idle; ``container.usage`` is still the previous one.

    ``usage`` is None if nothing new was measured.
    """
    guard, before = state.spec.idle_guard, container.usage
    if guard is None or usage is None or (before is not None and usage.at_ms <= before.at_ms):
        return
    busiest = usage.busiest_gpu(len(container.gpus), by_activity=True) if container.gpus else None
    if container.phase is not Phase.RUNNING or busiest is None or busiest >= guard.utilisation:
        container.gpus_idle_ms = None
    else:
        first_ms, last_ms = container.gpus_idle_ms or (state.awake_ms, state.awake_ms)
        container.gpus_idle_ms = (first_ms if _is_fresh(state, last_ms) else state.awake_ms, state.awake_ms)


def check(state: ApplicationState) -> None:
    """Find the containers whose GPUs are idle, and take the guard's action."""
    guard, notices, checks = state.spec.idle_guard, state.notices, state.checks
    if guard is None:
        return
    if state.stage is not Stage.ACTIVE:
        checks.idle = ()
        return
    if state.awake_ms - checks.idle_ms < _EVERY_MS:
        return
    checks.idle_ms = state.awake_ms
    assessed = list(_with_gpus(state))
    before, checks.idle = checks.idle, tuple(one for one in assessed if _is_idle(state, guard, one.container))
    if not checks.idle:
        return
    if guard.action is IdleAction.NOTIFY and not before:
        notices.idle_spells += 1
        first = checks.idle[0].container
        assert first is not None
        text = f"all GPUs of container {checks.idle[0].index} on {first.host} {guard}; dlapp-status shows which others"
        state.notify(IDLE, f"{first.container_id}-{notices.idle_spells}", text)
    if guard.action is IdleAction.STOP and len(checks.idle) == len(assessed):
        shutdown.stop_softly(state, f"{shutdown.IDLE_GUARD} (all GPUs {guard})", Cause.TIMED_OUT)
        checks.idle = ()


def _with_gpus(state: ApplicationState) -> Iterator[Instance]:
    """Yield the indexes that have GPUs, or are about to have them."""
    for role in state.roles:
        if role.spec.resources.gcores:
            for index in role.indexes:
                one = state.instances[index]
                if not (one.done or one.given_up) and (one.container is not None or role.is_wanted):
                    yield one


def _is_idle(state: ApplicationState, guard: IdleGuard, container: Container | None) -> bool:
    if container is None or container.gpus_idle_ms is None or not hangs.is_supervised(state, container):
        return False
    first_ms, last_ms = container.gpus_idle_ms
    return _is_fresh(state, last_ms) and last_ms - first_ms >= guard.window_s * 1000


def _is_fresh(state: ApplicationState, reported_ms: int) -> bool:
    return state.awake_ms - reported_ms <= least_window_s(len(state.instances)) * 1000
