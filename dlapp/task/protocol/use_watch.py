"""Use of a payload that serves others, as its task sees it from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence

from dlapp.system.network.connections import has_connections

USED_FOR_S = 5.0
"""Time for which a port counts as in use after a connection was seen, so that a report once a second includes short
connections."""
_READ_EVERY_S = 1.0
_COST_SHARE = 0.02
"""Maximum share of a core for reading the kernel's table, which takes long on a node with many connections."""


class UseWatch:
    """Watch of the connections to ports of a payload.

    Args:
        pids: returns its processes, in whose network it listens; none: they cannot be seen, and it is that of this one.
    """

    def __init__(self, ports: Collection[int], pids: Callable[[], Sequence[int]]) -> None:
        self._ports, self._pids = ports, pids
        self._next_read_s, self._used_until = float("-inf"), float("-inf")
        self._is_known = False

    def in_use(self, now_s: float) -> bool | None:
        """Return whether a connection exists at ``now_s`` [s, monotonic], or did within `USED_FOR_S`; None: unknown."""
        if now_s >= self._next_read_s:
            began_s = time.thread_time()
            found = has_connections(next(iter(self._pids()), None), self._ports)
            cost_s = time.thread_time() - began_s
            self._next_read_s = now_s + max(_READ_EVERY_S, cost_s / _COST_SHARE)
            self._is_known = found is not None
            if found:
                self._used_until = max(self._next_read_s, now_s + USED_FOR_S)
        return now_s < self._used_until if self._is_known else None
