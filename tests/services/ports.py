"""Ports for servers that get theirs as an argument and bind it seconds later."""

from __future__ import annotations

import contextlib
import os
import random
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path

_LOWEST = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
_WORKERS = 16
_WORKER = int(os.environ.get("PYTEST_XDIST_WORKER", f"gw{os.getpid()}").removeprefix("gw")) % _WORKERS
"""Which of the processes that share the tests this is; one of a run of its own is any."""
_GIVEN = deque[int](maxlen=512)
"""The latest ports that this process handed out: half of those that it can be."""


def held(addresses: Sequence[str] = ("127.0.0.1",)) -> tuple[int, list[socket.socket]]:
    """A port that is free on all of the addresses, and the sockets that hold it until they are closed.

    None of those that the system gives to whoever asks for any: a client, or another server, would have it before the
    one that it is meant for. And none that another worker of the same run could get in the meantime, or that an
    earlier server has which does not run now.
    """
    while True:
        port = random.randrange(_LOWEST // 2 + _WORKER, _LOWEST, _WORKERS)
        if port in _GIVEN:
            continue
        with contextlib.ExitStack() as stack:
            try:
                sockets = [stack.enter_context(socket.create_server((address, port))) for address in addresses]
            except OSError:
                continue
            stack.pop_all()
            _GIVEN.append(port)
            return port, sockets


@contextlib.contextmanager
def refusing() -> Iterator[tuple[str, int]]:
    """A port at which nobody listens, and that nobody is given meanwhile."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()


def free_range(count: int) -> int:
    """The first of so many ports in a row that are free just now, and that no other server of the tests is given, nor
    another worker of the same run."""
    width = (_LOWEST // 2 - 2048) // _WORKERS
    while True:
        first = random.randrange(2048 + _WORKER * width, 2048 + (_WORKER + 1) * width - count)
        with contextlib.ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.create_server(("0.0.0.0", port)))
            except OSError:
                continue
            return first
