"""Ports for servers that are told theirs and bind it seconds later."""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Sequence
from pathlib import Path

_LOWEST = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


def held(addresses: Sequence[str] = ("127.0.0.1",)) -> tuple[int, list[socket.socket]]:
    """A port that is free on all of the addresses, and the sockets that hold it until they are closed.

    None of those that the system gives to whoever asks for any: a client, or another server, would have it before the
    one that it is meant for.
    """
    while True:
        port = random.randrange(_LOWEST // 2, _LOWEST)
        with contextlib.ExitStack() as stack:
            try:
                sockets = [stack.enter_context(socket.create_server((address, port))) for address in addresses]
            except OSError:
                continue
            stack.pop_all()
            return port, sockets
