"""Timeouts of requests that are refused, or that fit no node; no I/O.

Neither ends at once: the largest node may have been away for a moment, and after a ResourceManager's restart all are.
"""

from __future__ import annotations

from collections.abc import Collection

from dlapp.cluster.engine import ContainerRequest
from dlapp.cluster.yarn.am.resource_requests import ResourceRequestTable
from dlapp.errors import AskTooLarge, DlappError
from dlapp.hadoop.errors import RemoteError, RequestRefused

REFUSED_GRACE_S = 5.0
"""So long an ask is tried that the ResourceManager refuses: its largest node may have been away for a moment."""
ODD_GRACE_S = 300.0
"""So long where it answers with an error that we know nothing of: it may be the server's own trouble."""
NO_NODE_GRACE_S = 60.0
"""An ask that no present node could hold, were it empty, waits so long for one that could."""


class UnsatisfiedRequestTimeouts:
    """Since when each ask, by request id, has been refused, and since when no node could hold it."""

    def __init__(self) -> None:
        self._refused_since: dict[int, float] = {}
        self._unmet_since: dict[int, float] = {}

    def taken(self, request_id: int) -> None:
        """The ResourceManager took an ask."""
        self._refused_since.pop(request_id, None)

    def refused(self, request_id: int, error: DlappError, now: float, *, restarted: bool) -> str | None:
        """Return why a request that the ResourceManager refused is given up; None: it is tried again.

        Args:
            request_id: of the container request.
            error: what the ResourceManager said.
            now: the time [s, monotonic].
            restarted: the ResourceManager was, so that its nodes may not be back.
        """
        since = self._refused_since.setdefault(request_id, now)
        grace_s = NO_NODE_GRACE_S if restarted else REFUSED_GRACE_S
        if not is_expected(error):
            grace_s = ODD_GRACE_S
        return None if now - since < grace_s else _reason(error)

    def fits_nowhere(self, wants: ResourceRequestTable, now: float) -> Collection[tuple[int, str]]:
        """Asks that no present node could hold for too long, with the reason."""
        waiting, given_up = wants.waiting(), []
        for request_id in set(self._unmet_since) - {ask.request_id for ask in waiting}:
            del self._unmet_since[request_id]
        for ask in waiting:
            if wants.fits_a_node(ask):
                self._unmet_since.pop(ask.request_id, None)
            elif now - self._unmet_since.setdefault(ask.request_id, now) >= NO_NODE_GRACE_S:
                why = f"{_where_in_words(ask)} has {_in_words(ask)}, in all, for one container"
                given_up.append((ask.request_id, why))
        return given_up


def is_expected(error: DlappError) -> bool:
    """Return whether a refusal is one of the ask, rather than trouble of the server's."""
    return isinstance(error, RequestRefused | AskTooLarge)


def _reason(error: DlappError) -> str:
    """Return what the server said, without the name of our call and of its exception."""
    return error.message.partition("\n")[0].strip() if isinstance(error, RemoteError) else str(error)


def _where_in_words(ask: ContainerRequest) -> str:
    place = ask.placement
    if place.nodes:
        return f"none of the nodes asked for ({', '.join(place.nodes)}) is there and"
    others = f" but the excluded {', '.join(place.exclude_nodes)}" if place.exclude_nodes else ""
    return f"no node of the cluster{others}"


def _in_words(ask: ContainerRequest) -> str:
    amounts = ask.resources
    return f"{amounts.memory_mib} MiB, {amounts.vcores} vcores and {amounts.gcores} gcores"
