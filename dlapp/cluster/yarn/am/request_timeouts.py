"""Timeouts of container requests that the ResourceManager refuses, or that fit no node; no I/O.

They are retried for a while: the largest node may be absent for a moment, and after a restart of the ResourceManager
all nodes are.
"""

from __future__ import annotations

from collections.abc import Collection

from dlapp.cluster.engine import ContainerRequest
from dlapp.cluster.yarn.am.resource_requests import ResourceRequestTable
from dlapp.errors import DlappError, RequestTooLarge
from dlapp.hadoop.errors import RemoteError, RequestRefused

REFUSED_GRACE_S = 5.0
"""How long a request that the ResourceManager refuses is retried: the largest node may be absent for a moment."""
UNKNOWN_ERROR_GRACE_S = 300.0
"""The same for an unknown error, which may be an internal error of the server."""
NO_NODE_GRACE_S = 60.0
"""How long a request that fits no present node, even an empty one, waits for a larger node."""


class UnsatisfiedRequestTimeouts:
    """Times since when each container request, by request id, was refused, and since when it fits no node."""

    def __init__(self) -> None:
        self._refused_since: dict[int, float] = {}
        self._unmet_since: dict[int, float] = {}

    def record_accepted(self, request_id: int) -> None:
        """Record that the ResourceManager accepted a request."""
        self._refused_since.pop(request_id, None)

    def record_refusal(self, request_id: int, error: DlappError, now: float, *, restarted: bool) -> str | None:
        """Return why a request that the ResourceManager refused is given up; None: it is retried.

        Args:
            request_id: id of the container request.
            error: the ResourceManager's answer.
            now: the time [s, monotonic].
            restarted: the ResourceManager was restarted, so that its nodes may not be registered again.
        """
        since = self._refused_since.setdefault(request_id, now)
        grace_s = NO_NODE_GRACE_S if restarted else REFUSED_GRACE_S
        if not is_expected(error):
            grace_s = UNKNOWN_ERROR_GRACE_S
        return None if now - since < grace_s else _reason(error)

    def expire_unsatisfiable(self, table: ResourceRequestTable, now: float) -> Collection[tuple[int, str]]:
        """Return the requests that have fitted no present node for too long, each with the reason."""
        waiting, given_up = table.waiting(), []
        for request_id in set(self._unmet_since) - {ask.request_id for ask in waiting}:
            del self._unmet_since[request_id]
        for ask in waiting:
            if table.fits_a_node(ask):
                self._unmet_since.pop(ask.request_id, None)
            elif now - self._unmet_since.setdefault(ask.request_id, now) >= NO_NODE_GRACE_S:
                why = f"{_placement_text(ask)} has {_amounts_text(ask)}, in all, for one container"
                given_up.append((ask.request_id, why))
        return given_up


def is_expected(error: DlappError) -> bool:
    """Return whether the request itself was refused, and not because of an error of the server."""
    return isinstance(error, RequestRefused | RequestTooLarge)


def _reason(error: DlappError) -> str:
    """Return the server's message, without the names of the call and of the exception."""
    return error.message.partition("\n")[0].strip() if isinstance(error, RemoteError) else str(error)


def _placement_text(ask: ContainerRequest) -> str:
    place = ask.placement
    if place.nodes:
        return f"none of the nodes asked for ({', '.join(place.nodes)}) is there and"
    others = f" but the excluded {', '.join(place.exclude_nodes)}" if place.exclude_nodes else ""
    return f"no node of the cluster{others}"


def _amounts_text(ask: ContainerRequest) -> str:
    amounts = ask.resources
    return f"{amounts.memory_mib} MiB, {amounts.vcores} vcores and {amounts.gcores} gcores"
