"""Readiness of a server, seen by its port: real sockets."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator

import pytest

from dlapp.system.network.readiness import ReadinessProbe
from tests.applications import wait_for


@contextlib.contextmanager
def server(answer: bytes = b"", *, address: str = "127.0.0.1") -> Iterator[tuple[str, int]]:
    """A server that answers each connection so, after it has read the head of a request."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        while answer and not (data := connection.recv(65536)).endswith(b"\r\n\r\n"):
                            assert data
                        connection.sendall(answer)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield address, listening.getsockname()[1]
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(120)


def becomes_ready(probe: ReadinessProbe, tries: int = 3) -> bool:
    """Go on with the probe until it is ready, or has tried so often that it will not be."""
    now = [0.0]
    ended = [0]

    def look() -> bool:
        before = probe._socket
        probe.check(now[0])
        if probe._socket is None:
            now[0] += 2
            ended[0] += before is not None or not probe.is_ready
        return probe.is_ready or ended[0] >= tries

    wait_for("the probe's verdict", look)
    probe.close()
    return probe.is_ready


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_that_accepts_connections_is_ready(address: str) -> None:
    with server(address=address) as place:
        assert becomes_ready(ReadinessProbe(place))
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as held:  # nobody else is given its port
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(place)
        assert not becomes_ready(ReadinessProbe(place))


@pytest.mark.parametrize(
    ("answer", "ready"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", True),
        (b"HTTP/1.0 302 Found\r\nLocation: /x\r\n\r\n", True),
        (b"HTTP/1.1 204\r\n\r\n", True),
        (b"HTTP/1.1 404 Not Found\r\n\r\n", False),
        (b"HTTP/1.1 503 Loading\r\n\r\n", False),
        (b"SSH-2.0-OpenSSH_9.2\r\n", False),
        (b"HTTP/1.1 2000\r\n\r\n", False),
        (b"HTTP/1.1 20", False),
    ],
)
def test_an_http_path_is_ready_when_it_is_answered_well(answer: bytes, ready: bool) -> None:
    with server(answer) as place:
        assert becomes_ready(ReadinessProbe(place, "/health")) is ready


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_path_that_is_a_secret_is_sent_to_a_process_of_its_user(address: str) -> None:
    with server(b"HTTP/1.1 200 OK\r\n\r\n", address=address) as place:
        assert becomes_ready(ReadinessProbe(place, "/secret/", os.getuid()))


@pytest.mark.proves("tensorboard-path")
@pytest.mark.parametrize("accepts", [True, False])
def test_a_secret_path_is_sent_only_to_a_verified_server_of_the_user(accepts: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        probe = ReadinessProbe(listening.getsockname()[:2], "/secret/", os.getuid() + (1 if accepts else 0))
        probe.check(0.0)
        got = b""
        if accepts:
            connection, _ = listening.accept()
            with connection:
                for now_s in range(1, 40):
                    probe.check(float(now_s))
                connection.settimeout(120)
                got = connection.recv(65536)
        else:
            for now_s in range(1, 32):
                probe.check(float(now_s))
        assert not probe.is_ready
        probe.close()
        if not accepts:
            connection, _ = listening.accept()
            with connection:
                connection.settimeout(120)
                got = connection.recv(65536)
        assert got == b""


def test_an_unresponsive_server_does_not_block_the_probe() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        probe = ReadinessProbe(silent.getsockname()[:2], "/health")
        probe.check(0.0)
        for now_s in range(1, 40):
            probe.check(float(now_s))
        assert not probe.is_ready
        probe.close()
