"""Connections to a host by its name."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from typing import Any


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
