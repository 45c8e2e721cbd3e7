"""Unused services: an application of services only ends when no client was connected for ``max_idle``.

An unknown state counts as use: a task that is not connected, connections that are not visible, a service that is not
ready yet. Only where a service fails again and again before it is ready, that counts as use no longer.
"""

from __future__ import annotations

from dlapp.am.decisions import shutdown
from dlapp.am.model.instance import Instance, Stage
from dlapp.am.model.state import ApplicationState

_TRIES = 3
"""Number of consecutive failed starts after which a service that is not ready counts as unused."""


def check(state: ApplicationState) -> None:
    """End the application if none of the services with a ``max_idle`` was in use for so long."""
    if not state.spec.is_service or state.stage is not Stage.ACTIVE:
        return
    assessed = [role for role in state.roles if role.spec.max_idle_s is not None]
    for role in assessed:
        if not state.start_gate.is_open or any(_is_used(state.instances[index]) for index in role.indexes):
            role.used_ms = state.awake_ms
    if assessed and all(state.awake_ms - role.used_ms >= (role.spec.max_idle_s or 0) * 1000 for role in assessed):
        shutdown.end_unused(state, max(role.spec.max_idle_s or 0 for role in assessed))


def _is_used(instance: Instance) -> bool:
    payload = instance.container.payload if instance.container is not None else None
    if payload is None or not payload.ready:
        return instance.pauses < _TRIES
    return payload.in_use is not False
