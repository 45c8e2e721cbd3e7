"""Use of a payload, seen by the connections to its ports: real sockets."""

from __future__ import annotations

import socket
import time

import pytest

from dlapp.system.network.connections import has_connections, is_connected
from dlapp.task.protocol.use_watch import UseWatch
from tests.applications import wait_for

TABLE = b"""\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:%b 0100007F:%b %b 00000000:00000000 00:00000000 00000000  1000        0 1 1 0 100 0 0 10 0
"""


@pytest.mark.parametrize(
    ("local", "remote", "state", "connected"),
    [
        (b"4E20", b"9999", b"01", True),
        (b"4E20", b"9999", b"06", True),
        (b"4E20", b"9999", b"08", True),
        (b"4E20", b"0000", b"0A", False),
        (b"4E20", b"9999", b"03", False),
        (b"9999", b"4E20", b"01", False),
        (b"", b"", b"", False),
    ],
)
def test_connections_are_those_of_the_local_port_that_were_established(
    local: bytes,
    remote: bytes,
    state: bytes,
    connected: bool,
) -> None:
    assert is_connected(TABLE % (local, remote, state), (20_000,)) is connected


def test_a_table_of_garbage_has_no_connections() -> None:
    assert not is_connected(b"\0\xff\n\n:::\n 1 2\n a b c d e\n", (20_000,))


def unused_port(family: int, address: str) -> socket.socket:
    """Listen at a port that no connection has: one of another address may have the number, and counts as well."""
    while True:
        listening = socket.create_server((address, 0), family=family)
        if has_connections(None, (listening.getsockname()[1],)) is False:
            return listening
        listening.close()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_is_in_use_during_a_connection_and_a_moment_longer(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with unused_port(family, address) as listening:
        port = listening.getsockname()[1]
        watch = UseWatch((port,), lambda: ())
        assert watch.in_use(0.0) is False
        client = socket.create_connection((address, port))
        with listening.accept()[0] as accepted:
            assert watch.in_use(100.0) is True
            client.close()  # the client first: the kernel keeps nothing of it here
            accepted.recv(1)
        wait_for("the end of the connection", lambda: has_connections(None, (port,)) is False)
        assert watch.in_use(101.5) is True
        assert watch.in_use(1000.0) is False


def test_without_a_table_use_is_not_known() -> None:
    assert UseWatch((20_000,), lambda: (2**30,)).in_use(time.monotonic()) is None
