"""A local port that serves one user."""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator

import pytest

from dlapp.client.streams import local_port
from dlapp.client.streams.local_port import LocalPort
from dlapp.errors import UsageError
from tests.applications import wait_for
from tests.open_files import open_files

PATIENCE_S = 120.0


def echo(connection: socket.socket) -> None:
    while data := connection.recv(4096):
        connection.sendall(data)


def was_reset(port: LocalPort) -> bool:
    """Connect, and return whether that is reset before an answer."""
    try:
        with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as one:
            one.sendall(b"x")
            return one.recv(1) == b"never"
    except ConnectionError:
        return True


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def port(messages: list[str]) -> Iterator[LocalPort]:
    with LocalPort(None, 0, echo, messages.append) as made:
        yield made


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_both_loopback_addresses_serve_their_user(port: LocalPort, messages: list[str], address: str) -> None:
    with socket.create_connection((address, port.port), timeout=PATIENCE_S) as one:
        one.sendall(b"hello")
        assert one.recv(100) == b"hello"
    assert messages == []


@pytest.mark.proves("ports-local")
@pytest.mark.root("the client is another user")
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_another_user_gets_not_a_byte(port: LocalPort, messages: list[str], address: str) -> None:
    code = (
        "import socket, sys\n"
        "try:\n"
        "    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 120); s.sendall(b'x'); print(s.recv(9))\n"
        "except ConnectionError: print('reset')"
    )
    become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    command = [*become, "/usr/bin/python3", "-c", code, address, str(port.port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.stdout == "reset\n", done.stderr
    assert messages == [f"refused a connection of 12345 to port {port.port}"]


def test_a_connection_of_an_unknown_user_is_refused(
    port: LocalPort, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_port, "uid_of_peer", lambda _: None)
    assert was_reset(port)
    assert messages == [f"refused a connection whose user is not known to port {port.port}"]


def test_a_port_that_is_taken_is_an_error_or_another_one_is_used() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = server.getsockname()[1]
        with pytest.raises(UsageError, match=f"the local port {taken} cannot be used: Address already in use"):
            LocalPort(taken, 1, echo, print)
        with LocalPort(None, taken, echo, print) as other:
            assert other.port != taken


@pytest.mark.proves("ports-local")
def test_a_port_whose_other_address_is_taken_is_not_used() -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as server:
        taken = server.getsockname()[1]
        with pytest.raises(UsageError, match="cannot be used"):
            LocalPort(taken, 1, echo, print)


def test_close_ends_connections_threads_and_sockets() -> None:
    before, threads = open_files(), set(threading.enumerate())
    with LocalPort(None, 0, echo, print) as port:
        client = socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S)
        client.sendall(b"x")
        assert client.recv(1) == b"x"
    assert client.recv(1) == b""
    client.close()
    wait_for("the end of its threads", lambda: not set(threading.enumerate()) - threads)
    assert not open_files() - before


def reset_at_once(port: LocalPort) -> None:
    with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_the_server_survives_a_thousand_reset_connections(port: LocalPort) -> None:
    for _ in range(1000):
        reset_at_once(port)
    with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as one:
        one.sendall(b"hello")
        assert one.recv(100) == b"hello"


@pytest.mark.parametrize("error", [OSError(errno.ENOTCONN, "not connected"), RuntimeError("can't start new thread")])
def test_an_error_at_the_begin_of_a_connection_ends_that_one_alone(
    port: LocalPort, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(_: socket.socket) -> int:
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(local_port, "uid_of_peer", fails)
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port.port)) as one:
            assert one.recv(1) == b""
    with socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as one:
        one.sendall(b"hello")
        assert one.recv(100) == b"hello"


def test_connections_are_bounded(messages: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_port, "MAX_CONNECTIONS", 1)
    with (
        LocalPort(None, 0, echo, messages.append) as port,
        socket.create_connection(("127.0.0.1", port.port), timeout=PATIENCE_S) as one,
    ):
        one.sendall(b"x")
        assert one.recv(1) == b"x"
        assert was_reset(port)
        assert messages == [f"refused a connection to port {port.port}: there are 1 already"]
