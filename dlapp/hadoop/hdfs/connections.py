"""Connections that are kept for the next call, and that another thread can break."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection
from typing import Generic, Protocol, TypeVar

Address = tuple[str, int]


class Reusable(Protocol):
    """A connection."""

    def close(self) -> None:
        """Close it. May be repeated."""

    def cut(self) -> None:
        """Let a thread that waits on it go on, with an error; for any other thread."""

    def is_fresh(self) -> bool:
        """Return whether the server, as far as we can see, still listens on it."""


C = TypeVar("C", bound=Reusable)
_MAX_IDLE = 64
"""Of one address."""


class ConnectionPool(Generic[C]):
    """Connections by address. Any thread may call; a connection is one thread's until it is given back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[Address, list[C]] = {}
        self._busy: dict[C, int] = {}
        # With ``__del__`` the collector could end the sockets first, if something in a cycle holds this.
        weakref.finalize(self, _close_all, self._idle).atexit = False

    def take(self, address: Address, connect: Callable[[Address], C], *, is_new: bool = False) -> tuple[C, bool]:
        """Return a connection for this thread, and whether it was used before.

        Args:
            address: of the server.
            connect: opens one.
            is_new: one that was used before may not do.

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
            self.drop(found)
        made = connect(address)
        with self._lock:
            self._busy[made] = threading.get_ident()
        return made, False

    def keep(self, address: Address, connection: C) -> None:
        """Give back a connection that may be used again."""
        with self._lock:
            self._busy.pop(connection, None)
            kept = self._idle.setdefault(address, [])
            if len(kept) < _MAX_IDLE:
                kept.append(connection)
                return
        connection.close()

    def drop(self, connection: C) -> None:
        """Close a connection that may not be used again."""
        with self._lock:
            self._busy.pop(connection, None)
        connection.close()

    def cut(self, threads: Collection[int]) -> None:
        """Break what some threads use, by their identifiers."""
        with self._lock:
            broken = [one for one, thread in self._busy.items() if thread in threads]
        for one in broken:
            one.cut()

    def close(self) -> None:
        """Close what is not in use."""
        with self._lock:
            idle = self._idle.copy()
            self._idle.clear()
        _close_all(idle)


def _close_all(idle: dict[Address, list[C]]) -> None:
    for kept in idle.values():
        for one in kept:
            one.close()
