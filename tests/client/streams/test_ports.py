"""A port of a container on this machine: the ways to it, and the messages for its user."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

import pytest

from dlapp.client import Client
from dlapp.client.streams.opening import StreamOpener, read_role_index
from dlapp.client.streams.ports import PortForward, addresses_of
from dlapp.errors import NotFound, TimedOut, Unreachable, UsageError
from dlapp.net.streams import NOT_OPEN, NOT_RUNNING, StreamRefused
from dlapp.system.machine import boot_id
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Phase, PortPlace
from dlapp.values.report import ApplicationView, ContainerView, FinalStatus, State
from dlapp.values.serialization import to_json
from tests.applications import wait_for
from tests.services.ports import held

PATIENCE_S = 120.0
APP = ApplicationId(1_700_000_000_000, 1)
HERE = os.stat("/proc/self/ns/net").st_ino
WORKER = ContainerView(
    container_id=ContainerId(APP, 1, 2), role="worker", role_index=0, index=0, host="node1", phase=Phase.RUNNING
)
VIEW = ApplicationView(application_id=APP, attempt=1, state=State.RUNNING, total_containers=1, containers=(WORKER,))


class Program:
    """A server that answers each connection with its name, in upper case what it is sent."""

    def __init__(self, name: bytes, address: str = "127.0.0.1") -> None:
        self._name, self._server = name, socket.create_server((address, 0))
        self.port = int(self._server.getsockname()[1])
        self.got = b""
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(ConnectionError):
            while data := connection.recv(4096):
                self.got += data
                connection.sendall(self._name + b":" + data.upper())

    def close(self) -> None:
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()


class Cluster:
    """An application with one container, as a client sees it; ``program`` is what a stream reaches."""

    def __init__(self, program: Program) -> None:
        self.program, self.view = program, VIEW
        self.place: PortPlace | Exception = PortPlace()
        self.refusal: Exception | None = None
        self.url, self.is_own = "http://am:1", True
        self.heads: list[dict[str, Any]] = []

    def status(self, _application_id: ApplicationId) -> ApplicationView:
        return self.view

    def stream_opener(self, _application_id: ApplicationId) -> StreamOpener:
        return cast(StreamOpener, _Opener(self, self.url))

    def open(self, url: str, head: Mapping[str, Any]) -> socket.socket:
        if url != self.url:
            raise Unreachable("ApplicationMaster is gone")
        self.heads.append(dict(head))
        if self.refusal is not None:
            raise self.refusal
        if not head.get("look"):
            return socket.create_connection(("127.0.0.1", self.program.port))
        if isinstance(self.place, Exception):
            raise self.place
        ours, theirs = socket.socketpair()
        with theirs:
            theirs.sendall(json.dumps(to_json(self.place)).encode())
        return ours


class _Opener:
    def __init__(self, cluster: Cluster, url: str) -> None:
        self._cluster, self.url, self.is_own = cluster, url, cluster.is_own

    def __call__(self, _index: int, _kind: str, head: Mapping[str, Any], **_: float) -> socket.socket:
        return self._cluster.open(self.url, head)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    program = Program(b"stream")
    yield Cluster(program)
    program.close()


Forward = Callable[..., PortForward]


@pytest.fixture
def messages() -> list[str]:
    return []


@pytest.fixture
def forward(cluster: Cluster, messages: list[str]) -> Iterator[Forward]:
    opened: list[PortForward] = []

    def make(port: int = 1, **settings: Any) -> PortForward:
        opened.append(PortForward(cast(Client, cluster), APP, 0, port, say=messages.append, **settings))
        return opened[-1]

    yield make
    for item in opened:
        item.close()


def exchange(forward: PortForward, text: bytes = b"x") -> bytes:
    with socket.create_connection(("127.0.0.1", forward.local_port), timeout=PATIENCE_S) as one:
        one.sendall(text)
        if answer := one.recv(100):
            return answer
        raise ConnectionResetError


def test_a_connection_uses_a_stream_by_default(cluster: Cluster, forward: Forward, messages: list[str]) -> None:
    one = forward()
    assert [exchange(one), exchange(one, b"y")] == [b"stream:X", b"stream:Y"]
    assert one.route == "through the ApplicationMaster"
    assert cluster.heads == [{"port": 1, "look": True}, {"port": 1}, {"port": 1}]
    assert messages == [
        "worker:0 listens on port 1",
        "connections to port 1 of worker:0 go through the ApplicationMaster",
    ]


def test_a_connection_to_a_reachable_port_is_direct(cluster: Cluster, forward: Forward) -> None:
    program = Program(b"direct")
    cluster.place = PortPlace(hosts=("127.0.0.1",))
    one = forward(program.port)
    assert exchange(one) == b"direct:X"
    assert one.route == "directly at 127.0.0.1"
    assert [exchange(forward(program.port, direct=False))] == [b"stream:X"]
    program.close()


@pytest.mark.proves("ports-services")
def test_no_address_that_another_users_task_names_is_connected(cluster: Cluster, forward: Forward) -> None:
    program = Program(b"a service that only this user reaches")
    cluster.is_own, cluster.place = False, PortPlace(hosts=("127.0.0.1",))
    one = forward(program.port)
    assert exchange(one) == b"stream:X"
    assert (one.route, program.got) == ("through the ApplicationMaster", b"")
    program.close()


@pytest.mark.proves("ports-taken")
def test_a_port_that_was_left_to_another_user_gets_not_a_byte(
    cluster: Cluster, forward: Forward, messages: list[str]
) -> None:
    another = Program(b"another")
    cluster.place = PortPlace(hosts=("127.0.0.1",))
    one = forward(another.port)
    # The program has ended, and the user of the other one has its port by now.
    cluster.place = StreamRefused("port 1 of node1 is bob's, not this application's")
    with pytest.raises(ConnectionError):
        exchange(one)
    cluster.place = PortPlace()
    assert exchange(one) == b"stream:X", "it was started again elsewhere"
    assert another.got == b""
    another.close()


def test_a_port_of_an_unreachable_host_uses_a_stream(
    cluster: Cluster, forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[str] = []
    connect = socket.create_connection

    def create(address: tuple[str, int], *args: Any, **settings: Any) -> socket.socket:
        if address[0] == "node1":
            tried.append(address[0])
            raise TimeoutError
        return connect(address, *args, **settings)

    monkeypatch.setattr(socket, "create_connection", create)
    cluster.place = PortPlace(hosts=("node1",))
    one = forward()
    assert [exchange(one), exchange(one)] == [b"stream:X"] * 2
    assert tried == ["node1"], "it is not tried for each connection"


def test_the_loopback_address_of_a_host_means_something_there_alone() -> None:
    place = PortPlace(hosts=("node1",), loopback="127.0.0.1", boot=boot_id(), network=HERE)
    assert addresses_of(place) == ("127.0.0.1", "node1")
    for other in ({"boot": "another"}, {"network": HERE + 1}, {"boot": "", "network": 0}, {"loopback": ""}):
        assert addresses_of(replace(place, **other)) == ("node1",)


def test_a_port_that_is_not_open_yet_is_waited_for_and_connections_are_reset(
    cluster: Cluster, forward: Forward, messages: list[str]
) -> None:
    cluster.refusal = StreamRefused("nothing listens on port 1 yet", NOT_OPEN)
    one = forward()
    assert one.poll() == ""
    assert messages == ["nothing listens on port 1 yet"]
    with pytest.raises(ConnectionError):
        exchange(one)
    with pytest.raises(TimedOut, match="worker:0 did not listen on port 1 within 0 s"):
        one.wait_open(0.0)
    assert not one.is_open
    cluster.refusal = None
    one.wait_open(PATIENCE_S)
    assert messages[-1] == "worker:0 listens on port 1"
    assert exchange(one) == b"stream:X"


def test_another_users_port_is_refused_with_its_sentence(
    cluster: Cluster, forward: Forward, messages: list[str]
) -> None:
    cluster.refusal = StreamRefused("port 1 of node1 is bob's, not this application's")
    with pytest.raises(ConnectionError):
        exchange(forward())
    line = "port 1 of node1 is bob's, not this application's"
    assert messages == [line, f"no connection to port 1 of worker:0: {line}"]


def test_an_index_that_is_started_again_keeps_its_port(cluster: Cluster, forward: Forward, messages: list[str]) -> None:
    one = forward()
    assert one.poll() == ""
    ended = replace(WORKER, phase=Phase.ENDED, finished_ms=1)
    cluster.view = replace(VIEW, containers=(ended,))
    cluster.refusal = StreamRefused("worker:0 waits for a container", NOT_RUNNING)
    assert one.poll() == ""
    again = replace(WORKER, container_id=ContainerId(APP, 1, 7), host="node2", attempt=2)
    cluster.view, cluster.refusal = replace(VIEW, containers=(again,)), None
    assert one.poll() == ""
    assert messages == [
        "worker:0 listens on port 1",
        "worker:0 has ended",
        "worker:0 waits for a container",
        "worker:0 is started again, on node2",
        "worker:0 listens on port 1",
    ]
    assert one.is_open
    assert exchange(one) == b"stream:X"


def test_the_next_attempt_of_an_applicationmaster_is_found(cluster: Cluster, forward: Forward) -> None:
    one = forward()
    assert exchange(one) == b"stream:X"
    cluster.url = "http://am:2"
    with pytest.raises(ConnectionError):
        exchange(one)
    assert one.poll() == ""
    assert exchange(one) == b"stream:X"


@pytest.mark.proves("ports-address")
def test_an_address_that_an_applicationmaster_has_left_is_used_no_longer(
    cluster: Cluster, forward: Forward, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_id: ApplicationId) -> StreamOpener:
        raise StreamRefused(f"{APP} has not started yet", NOT_RUNNING)

    one = forward()
    assert exchange(one) == b"stream:X"
    before = len(cluster.heads)
    with monkeypatch.context() as patch:
        patch.setattr(cluster, "stream_opener", refuse)
        assert one.poll() == ""
        with pytest.raises(ConnectionError):
            exchange(one)
    assert len(cluster.heads) == before, "nobody is asked there"
    assert one.poll() == ""
    assert exchange(one) == b"stream:X"


def test_an_application_that_waits_has_a_local_port_already(
    cluster: Cluster, forward: Forward, messages: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_id: ApplicationId) -> StreamOpener:
        raise StreamRefused(f"{APP} has not started yet", NOT_RUNNING)

    with monkeypatch.context() as patch:
        patch.setattr(cluster, "stream_opener", refuse)
        cluster.view = replace(VIEW, containers=(), state=State.ACCEPTED)
        one = forward()
        assert one.poll() == ""
        assert messages == [f"{APP} has not started yet"]
    cluster.view = VIEW
    one.wait_open(PATIENCE_S)
    assert exchange(one) == b"stream:X"


def test_the_end_of_the_application_is_one_line(cluster: Cluster, forward: Forward) -> None:
    one = forward()
    cluster.view = replace(
        VIEW, state=State.FINISHED, final_status=FinalStatus.SUCCEEDED, diagnostics="all containers ended well"
    )
    line = f"{APP} has ended (succeeded, all containers ended well): it has no ports any more"
    assert one.run() == line
    with pytest.raises(NotFound, match="has ended"):
        one.wait_open(PATIENCE_S)
    with pytest.raises(NotFound, match="has ended"):
        forward()


def test_before_the_program_listens_its_port_is_not_taken_from_it(cluster: Cluster, forward: Forward) -> None:
    number, holders = held()  # one that no other program is given meanwhile
    for holder in holders:
        holder.close()
    cluster.refusal = StreamRefused(f"nothing listens on port {number} yet", NOT_OPEN)
    one = forward(number)
    with socket.create_server(("127.0.0.1", number)):
        assert one.local_port != number
    cluster.refusal = None
    assert forward(number).local_port == number


def test_an_invalid_answer_of_a_task_ends_only_its_connection(
    cluster: Cluster, forward: Forward, messages: list[str]
) -> None:
    cluster.place = cast(PortPlace, {"hosts": ["node1 or so"]})
    one = forward()
    with pytest.raises(ConnectionError):
        exchange(one)
    assert "the container did not say where its port is" in messages[0]


def test_close_leaves_no_thread(cluster: Cluster, messages: list[str]) -> None:
    threads = set(threading.enumerate())
    with PortForward(cast(Client, cluster), APP, 0, 1, say=messages.append) as one:
        open_one = socket.create_connection(("127.0.0.1", one.local_port), timeout=PATIENCE_S)
        open_one.sendall(b"x")
        assert open_one.recv(100) == b"stream:X"
    with contextlib.suppress(ConnectionError):
        assert open_one.recv(100) == b""
    open_one.close()
    wait_for("the end of its threads", lambda: not set(threading.enumerate()) - threads)


def test_roles_with_and_without_an_index() -> None:
    assert read_role_index("worker") == ("worker", 0)
    assert read_role_index("worker:12") == ("worker", 12)
    for text in ("", ":1", "worker:", "worker:x", "worker:-1", "worker:²", "worker:1:2", "worker:9999999999"):
        with pytest.raises(UsageError, match="is not ROLE or ROLE:INDEX"):
            read_role_index(text)
