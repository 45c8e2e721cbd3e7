"""Somebody who reaches an ApplicationMaster's control address and has no token: it loses neither memory nor tasks."""

from __future__ import annotations

import contextlib
import resource
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.net.control_client import ControlConnection
from dlapp.values.access import derive_token
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Phase, Report
from dlapp.values.serialization import to_json
from tests.services.processes.control_process import SECRET
from tests.tiers import FULL

APPLICATION = ApplicationId(1_700_000_000_000, 1)
TASK = ContainerId(APPLICATION, 1, 2)
ROOT = Path(__file__).parents[3]
GROWTH_KIB = 8 << 10


class Server:
    """The control address, and its process."""

    def __init__(self, port: int, pid: int) -> None:
        self.port, self._pid = port, pid

    def connect(self) -> socket.socket:
        sock = socket.create_connection(("127.0.0.1", self.port), timeout=120)
        sock.setblocking(False)
        return sock

    @property
    def memory_kib(self) -> int:
        return self._status("VmRSS")

    @property
    def peak_kib(self) -> int:
        return self._status("VmHWM")

    def _status(self, field: str) -> int:
        lines = Path(f"/proc/{self._pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:"))

    @property
    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self._pid}/fd").iterdir()))


@pytest.fixture
def server() -> Iterator[Server]:
    command = [sys.executable, "-m", "tests.services.processes.control_process"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            server = Server(int(process.stdout.readline()), process.pid)
            tasks_go_on(server)  # what it loads with its first request is loaded
            yield server
        finally:
            process.stdin.close()


def task(server: Server, number: int = 2) -> ControlConnection:
    container = ContainerId(APPLICATION, 1, number)
    return ControlConnection(f"http://127.0.0.1:{server.port}", derive_token(SECRET, str(container)))


def report(connection: ControlConnection, number: int, container: ContainerId = TASK) -> None:
    body = to_json(Report(container_id=container, number=number, index=0, phase=Phase.RUNNING))
    answer = connection.call("POST", f"/v1/tasks/{container}/report", body, timeout_s=120)
    assert answer["attempt"] == 1


def tasks_go_on(server: Server, reports: int = 20) -> None:
    """A task that connects now is served, many times."""
    with task(server) as connection:
        for number in range(1, reports):
            report(connection, number)


def send_all_that_is_taken(socks: list[socket.socket], data: bytes) -> None:
    """Send each connection all of this, as far as the other side takes it and does not close it; nothing is read."""
    left = {sock: memoryview(data) for sock in socks}
    while left:
        _, ready, _ = select.select([], list(left), [], 0.5)
        if not ready:
            return
        for sock in ready:
            try:
                left[sock] = left[sock][sock.send(left[sock]) :]
            except OSError:
                left[sock] = memoryview(b"")
            if not left[sock]:
                del left[sock]


def head(path: str, *lines: str, method: str = "POST") -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: a", *lines, "", ""]).encode()


CHUNKS = b"".join(b"10000\r\n" + b"x" * 0x10000 + b"\r\n" for _ in range(60))


@pytest.mark.proves("control-server")
@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("connections", "sent"),
    [
        pytest.param(
            25, head(f"/v1/tasks/{TASK}/report", "Content-Length: 4000000") + b"x" * 3_999_999, id="bodies of 4 MiB"
        ),
        pytest.param(25, head(f"/v1/tasks/{TASK}/hello", "Transfer-Encoding: chunked") + CHUNKS, id="chunked bodies"),
        pytest.param(25, head("/", "Transfer-Encoding: chunked", method="GET") + CHUNKS, id="a page with a body"),
        pytest.param(25, head("/v1/view", "Authorization: Bearer wrong", method="GET") * 2000, id="wrong tokens"),
        pytest.param(25, head("/", method="GET") * 5000, id="pipelined requests for the page, unread"),
        pytest.param(25, b"GET / HTTP/1.1\r\nX: " + b"x" * 4_000_000, id="a head without an end"),
        pytest.param(25, b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 500_000, id="a head of many lines"),
        pytest.param(400, b"GET / HTTP/1.1\r\nX: " + b"x" * 15_000, id="large heads that never end"),
        pytest.param(400, b"GET /" + b"x" * 15_000, id="request lines that never end"),
    ],
)
def test_bytes_of_strangers_cost_the_server_no_memory_and_do_not_disturb_tasks(
    server: Server, connections: int, sent: bytes
) -> None:
    before = server.memory_kib
    with contextlib.ExitStack() as stack, task(server) as known:
        report(known, 1)
        socks = [stack.enter_context(server.connect()) for _ in range(connections)]
        send_all_that_is_taken(socks, sent)
        tasks_go_on(server, reports=500)  # what was sent is looked at meanwhile
        report(known, 2)
        assert server.peak_kib - before < GROWTH_KIB


@pytest.mark.proves("control-server")
@pytest.mark.slow
def test_thousands_of_silent_connections_use_few_descriptors_beside_tasks(server: Server) -> None:
    count = min(20_000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500, 8_000)
    before, open_before = server.memory_kib, server.descriptors
    with contextlib.ExitStack() as stack, task(server) as known:
        report(known, 1)
        for _ in range(count):
            stack.enter_context(server.connect())
        tasks_go_on(server)
        report(known, 2)
        assert server.peak_kib - before < GROWTH_KIB
        assert server.descriptors - open_before < 100


def test_slow_request_heads_give_way_to_clients_with_a_token(server: Server) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(server.connect()) for _ in range(300)]
        for byte in b"GET / HT":
            for sock in socks:
                with contextlib.suppress(OSError):
                    sock.send(bytes([byte]))
            tasks_go_on(server)
        assert server.descriptors < 100


@pytest.mark.slow
def test_thousands_of_tasks_of_one_address_keep_connections_beside_strangers(server: Server) -> None:
    count = min(5_000 if FULL else 2_000, (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 500) // 2)
    with contextlib.ExitStack() as stack:
        strangers = [stack.enter_context(server.connect()) for _ in range(64)]
        tasks = []
        for number in range(2, 2 + count):
            container = ContainerId(APPLICATION, 1, number)
            tasks.append((stack.enter_context(task(server, number)), container))
            report(*tasks[-1][:1], 1, container)
        strangers += [stack.enter_context(server.connect()) for _ in range(500)]
        began = server.descriptors
        for connection, container in tasks:
            ((used,),) = connection._client._idle.values()
            report(connection, 2, container)
            assert list(connection._client._idle.values()) == [[used]]
        assert began > count


def test_tasks_that_all_connect_at_once_are_all_served(server: Server) -> None:
    token = derive_token(SECRET, str(TASK))
    body = b'{"container_id":"%s","number":1,"index":0,"phase":"running"}' % str(TASK).encode()
    sent = head(f"/v1/tasks/{TASK}/report", f"Authorization: Bearer {token}", f"Content-Length: {len(body)}") + body
    with contextlib.ExitStack() as stack:
        # All connections are made before the first request is sent, by as many as the backlog takes at once.
        served = 0
        for _ in range(5):
            socks = [stack.enter_context(server.connect()) for _ in range(60)]
            for sock in socks:
                sock.sendall(sent)
            for sock in socks:
                sock.settimeout(120)
                served += sock.recv(100).startswith(b"HTTP/1.1 200")
        assert served == 300


def test_pipelined_requests_are_answered_in_order(server: Server) -> None:
    with server.connect() as sock:
        sock.settimeout(120)
        sock.sendall(head("/", method="GET") * 50)
        received = 0
        while received < 50 * 20_000:
            data = sock.recv(1 << 16)
            assert data
            received += len(data)


@pytest.mark.proves("control-server")
def test_a_strangers_connection_is_closed_in_bounded_time(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from dlapp.am.control.server import ControlEndpoint, ControlRequest
    from dlapp.net import control as net_control

    monkeypatch.setattr(net_control, "REQUEST_DEADLINE_S", 0.5)
    calls: list[ControlRequest] = []
    control = ControlEndpoint(SECRET, calls.append, open_page=True)
    with control.server, contextlib.ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection(("127.0.0.1", control.server.port), timeout=120))
            for _ in range(3)
        ]
        socks[1].sendall(b"GET / HTTP/1.1\r\nHost: a\r\n")
        socks[2].sendall(b"POST /v1/view HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\n\r\n")
        for sock in socks:
            # Whatever it is sent first, the connection ends.
            with contextlib.suppress(ConnectionResetError):
                while sock.recv(65536):
                    time.sleep(0)
    assert not calls
