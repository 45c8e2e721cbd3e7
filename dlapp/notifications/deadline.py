"""Reader of a server's answers with a limit for all of them: a socket's timeout is one for each read.

A server that sends a byte a second would otherwise hold the thread of its channel for hours, and with it all later
notifications.
"""

from __future__ import annotations

import io
import socket
import time
from typing import Any


class _DeadlineIO(io.RawIOBase):
    def __init__(self, sock: socket.socket, limit_s: float) -> None:
        self._sock, self._read_s, self._until = sock, sock.gettimeout(), time.monotonic() + limit_s
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int | None:
        left_s = self._until - time.monotonic()
        if left_s <= 0:
            raise TimeoutError("the server's answers take too long as a whole")
        self._sock.settimeout(left_s if self._read_s is None else min(self._read_s, left_s))
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def reader_until(sock: socket.socket, limit_s: float) -> io.BufferedReader:
    """Return a reader of all that a server sends within ``limit_s`` [s]; later its reads raise `TimeoutError`."""
    return io.BufferedReader(_DeadlineIO(sock, limit_s))
