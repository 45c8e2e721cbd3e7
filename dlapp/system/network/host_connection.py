"""Connections to a host by name."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Callable, Iterable
from typing import Any

_RETRY_MS = 2


def look_up(host: str, port: int) -> list[tuple[int, Any]]:
    """Return the addresses of a host, each with its family.

    An IPv4 address needs no lookup: getaddrinfo loads the rules of internationalized names for it, 2 ms of CPU time.

    Raises:
        OSError: it has none.
    """
    try:
        socket.inet_pton(socket.AF_INET, host)
    except OSError:
        return [(one[0], one[4]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    return [(socket.AF_INET, (host, port))]


def connect_first(addresses: Iterable[tuple[int, Any]], left_s: Callable[[], float]) -> socket.socket:
    """Connect to the first of some addresses that accepts.

    Args:
        addresses: from `look_up`.
        left_s: returns the remaining time for the next one [s].

    Raises:
        OSError: none accepts.
    """
    failure: OSError | None = None
    for family, address in addresses:
        try:
            sock = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            # This machine may have no IPv6. If another address gives a more specific error, that is raised.
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
    """Wait until a process has accepted a connection within this machine, and refuse it if that is another user's.

    The process that listened before the connection may not be the one that has accepted it.

    Args:
        connection: nothing was sent on it yet.
        uid: required user of the process.
        until: deadline [s, monotonic].

    Raises:
        PermissionError: it is another user's.
        OSError: it was closed, or not accepted in time.
    """
    from dlapp.system.network.tcp_table import uid_of_peer

    closed = select.poll()
    closed.register(connection, select.POLLIN)
    while (found := uid_of_peer(connection)) is None:
        if time.monotonic() >= until:
            raise TimeoutError
        if closed.poll(_RETRY_MS):
            raise ConnectionResetError(errno.ECONNRESET, "it closed the connection")
    if found != uid:
        raise PermissionError(errno.EPERM, "another user's process has its address")
