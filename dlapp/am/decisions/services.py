"""Waits for services that all nodes use (ZooKeeper, HDFS, a registry), for a NodeManager, and on a single node for
Docker.

A task that cannot continue without a service keeps trying, and reports the service. On a cluster it is ordered to end
after `HELD_MS`, so that others can use its resources. A task may also end because a service became unavailable during a
step. None of this is counted, and no node is avoided for it, unless the node itself is silent: the index waits, with or
without a container, until `service_patience` has passed since it first waited for this service. The trials of a
container wait in the same way (`dlapp.am.decisions.trials.reports`): it gets none during a pause.
"""

from __future__ import annotations

from dlapp.am.decisions import containers
from dlapp.am.decisions.assessment import GOOD_MS, Assessment
from dlapp.am.model.instance import Container, Instance, StopReason
from dlapp.am.model.records.indexes import WaitRecord
from dlapp.am.model.records.recovered import RecoveredWait
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.cluster.engine import NODE_MANAGER
from dlapp.value import replace
from dlapp.values.messages import Fault

HELD_MS = 600_000
"""How long a container on a cluster waits for a service before it is released."""


def handle_wait(state: ApplicationState, container: Container, service: str) -> None:
    """Record the service that a bound container's task reports to wait for; empty: it waits for none."""
    instance = container.bound_instance
    if service:
        is_new = container.waits_since_ms is None or state.service_waits.get(instance.index) != service
        begin_wait(state, instance, service)
        if container.waits_since_ms is None:
            container.waits_since_ms = state.awake_ms
        if is_new:
            check_wait(state, container)
    elif container.stop_reason is StopReason.SERVICE:
        return  # it is ending, and is assessed by the service it waited for
    elif container.trials_wait_ms is None:
        end_wait(state, container)


def end_wait(state: ApplicationState, container: Container) -> None:
    """Record that a bound container waits for no service (any more)."""
    instance = container.bound_instance
    container.trials_wait_ms = None
    if container.waits_since_ms is not None or instance.index in state.service_waits:
        container.waits_since_ms = None
        instance.good_since_ms = state.awake_ms
        if state.service_waits.pop(instance.index, None) is not None:
            _record_wait(state, instance)


def begin_wait(state: ApplicationState, instance: Instance, service: str) -> None:
    """Make an index wait for a service; the start time is kept until it has run well for `GOOD_MS`."""
    reset_if_stable(state, instance)
    instance.waits_since_ms.setdefault(service, state.awake_ms)
    if state.service_waits.get(instance.index) != service:
        state.service_waits[instance.index] = service
        _record_wait(state, instance)


def _record_wait(state: ApplicationState, instance: Instance) -> None:
    """Record for which service an index waits, and its start times by service, for a next attempt."""
    since_ms = {service: state.now_ms - state.awake_ms + ms for service, ms in instance.waits_since_ms.items()}
    service = state.service_waits.get(instance.index, "")
    state.record(WaitRecord(instance.index, service, since_ms))


def recover(state: ApplicationState, instance: Instance, wait: RecoveredWait) -> None:
    """Continue the waits of an index from an earlier attempt."""

    def awake_ms(ms: int) -> int:
        return state.awake_ms - max(0, state.now_ms - ms)

    instance.waits_since_ms = {service: awake_ms(ms) for service, ms in wait.since_ms.items()}
    instance.good_since_ms = awake_ms(wait.good_since_ms)
    if wait.service:
        state.service_waits[instance.index] = wait.service


def reset_if_stable(state: ApplicationState, instance: Instance) -> None:
    """Forget the earlier waits and pauses of an index whose container has run for `GOOD_MS` without waiting."""
    if instance.container is None or instance.index in state.service_waits:
        return
    if state.awake_ms - instance.good_since_ms >= GOOD_MS:
        instance.pauses = 0
        if instance.waits_since_ms:
            instance.waits_since_ms.clear()
            _record_wait(state, instance)


def left_ms(state: ApplicationState, instance: Instance, service: str) -> int:
    """Return the remaining time that an index may wait for a service [ms]; 0 or less: none."""
    since_ms = instance.waits_since_ms.get(service, state.awake_ms)
    return since_ms + int(state.spec.service_patience_s * 1000) - state.awake_ms


def check_wait(state: ApplicationState, container: Container) -> None:
    """End a container whose time to wait is up, or set the deadline; `assess_wait` assesses its index."""
    instance = container.instance
    if instance is None or container.waits_since_ms is None:
        return
    left = left_ms(state, instance, state.service_waits.get(instance.index, ""))
    if not state.engine.single_node:
        left = min(left, container.waits_since_ms + HELD_MS - state.awake_ms)
    if left > 0:
        state.set_deadline(left, Due.SERVICE, container)
    else:
        containers.stop(state, container, StopReason.SERVICE)


def may_delay_hello(state: ApplicationState, container: Container) -> bool:
    """Return whether a container's task may be late because its node fetches files from a service that others wait for;
    no longer than that service is waited for.
    """
    is_away = any(not service.startswith(NODE_MANAGER) for service in state.service_waits.values())
    longest_ms = state.timing.hello_ms + int(state.spec.service_patience_s * 1000)
    return is_away and state.awake_ms - container.last_contact_ms < longest_ms


def assess_wait(state: ApplicationState, instance: Instance | None) -> Assessment:
    """Return the assessment of a container that was stopped because it waited for a service."""
    service = state.service_waits.get(instance.index, "") if instance is not None else ""
    is_silent = service.startswith(NODE_MANAGER)
    return Assessment(Fault.SERVICE, "it does not answer", free=True, service=service, is_silent=is_silent)


def as_service_failure(state: ApplicationState, assessed: Assessment) -> Assessment:
    """Return an assessment of SERVICE also if a single node lacks a service of its own, such as Docker."""
    is_service = assessed.fault is Fault.SERVICE or (assessed.fault is Fault.NODE and state.engine.single_node)
    if not assessed.service or not is_service:
        return assessed
    is_avoided = assessed.avoid_node and assessed.fault is Fault.SERVICE
    return replace(assessed, fault=Fault.SERVICE, free=True, avoid_node=is_avoided)
