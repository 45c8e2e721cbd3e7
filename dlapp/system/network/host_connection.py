"""Connections to a host by its name."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

_LOOK_AGAIN_MS = 2


def look_up(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the addresses of a host, each with its family.

    An IPv4 address is its own: getaddrinfo loads the rules of international names for it, 2 ms of processor time.

    Raises:
        OSError: it has none.
    """
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return [(one[0], one[4]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    return [(socket.AF_INET, (host, port))]


def connect_first(addresses: Iterable[tuple[int, Any]], left_s: Callable[[], float]) -> socket.socket:
    """Connect to the first of some addresses that takes it.

    Args:
        addresses: from `look_up`.
        left_s: returns how long to wait for the next one [s].

    Raises:
        OSError: none does.
    """
    failure: OSError | None = None
    for family, address in addresses:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            # This machine has no IPv6, say. Where another address says more, that counts.
            failure = failure or error
            continue
        try:
            sock.settimeout(left_s())
            sock.connect(address)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failure = error
        else:
            return sock
    raise failure or OSError("has no address")


def check_peer(connection: socket.socket, uid: int, until: float) -> None:
    """Wait until a process has accepted a connection within this machine, and refuse one of another user's.

    Who listened before the connection may be another one than who has accepted it.

    Args:
        connection: nothing was sent on it yet.
        uid: of the user whose process it must be.
        until: when that must be known [s, monotonic].

    Raises:
        PermissionError: it is another user's.
        OSError: it was closed, or nobody has accepted it in time.
    """
    from dlapp.system.network.tcp_table import uid_of_peer

    closed = select.poll()
    closed.register(connection, select.POLLIN)
    while (found := uid_of_peer(connection)) is None:
        if time.monotonic() >= until:
            raise TimeoutError
        if closed.poll(_LOOK_AGAIN_MS):
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
    if found != uid:
        raise PermissionError(errno.EPERM, "another user's process has its address")
