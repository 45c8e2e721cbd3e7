"""Pool of connections: idle ones are kept for reuse, and another thread can interrupt busy ones."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

Address = tuple[str, int]


class Reusable(Protocol):
    """Interface of a pooled connection."""

    def close(self) -> None:
        """Close the connection. Idempotent."""

    def abort(self) -> None:
        """Interrupt a thread that waits on the connection, with an error; called by any other thread."""

    def is_fresh(self) -> bool:
        """Return whether the connection is still open, as far as visible."""


C = TypeVar("C", bound=Reusable)
_MAX_IDLE = 64
"""Maximum number of idle connections per address."""


class ConnectionPool(Generic[C]):
    """Connections by address. Thread-safe; a connection belongs to one thread until it is returned."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Address, list[C]] = {}
        self._busy: dict[C, int] = {}
        # Not ``__del__``: if a reference cycle contains the pool, the collector could finalize the sockets first.
        weakref.finalize(self, _close_all, self._idle).atexit = False

    def acquire(self, address: Address, connect: Callable[[Address], C], *, is_new: bool = False) -> tuple[C, bool]:
        """Return a connection for this thread, and whether it was used before.

        Args:
            connect: opens a connection.
            is_new: do not reuse a connection.

        Raises:
            what ``connect`` raises.
        """
        while not is_new:
            with self._lock:
                kept = self._idle.get(address)
                found = kept.pop() if kept else None
                if found is None:
                    break
                self._busy[found] = threading.get_ident()
            if found.is_fresh():
                return found, True
            self.release(address, found, reusable=False)
        made = connect(address)
        with self._lock:
            self._busy[made] = threading.get_ident()
        return made, False

    def release(self, address: Address, connection: C, *, reusable: bool) -> None:
        """Take a connection back from its thread: keep it if it is reusable, and close it otherwise."""
        with self._lock:
            self._busy.pop(connection, None)
            if reusable and len(kept := self._idle.setdefault(address, [])) < _MAX_IDLE:
                kept.append(connection)
                return
        connection.close()

    def abort(self, threads: Collection[int]) -> None:
        """Interrupt the connections that the given threads (idents) use."""
        with self._lock:
            broken = [one for one, thread in self._busy.items() if thread in threads]
        for one in broken:
            one.abort()

    def close(self) -> None:
        """Close the idle connections."""
        with self._lock:
            idle = self._idle.copy()
            self._idle.clear()
        _close_all(idle)


def _close_all(idle: dict[Address, list[C]]) -> None:
    for kept in idle.values():
        for one in kept:
            one.close()
