"""Streams of the kind port, at the container's end: whose port it is, and where it is reached."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dlapp.net.streams import NOT_OPEN, StreamRefused
from dlapp.runtime.payload import PayloadPlace
from dlapp.system.machine import boot_id
from dlapp.system.network import tcp_table
from dlapp.system.network.tcp_table import TcpSocket
from dlapp.system.processes import kernel
from dlapp.system.processes.proc import start_time
from dlapp.task.streams import port
from dlapp.task.streams.stream import Stream
from dlapp.value import replace
from dlapp.values.messages import PortPlace
from dlapp.values.serialization import from_json
from tests.services.ports import refusing

PATIENCE_S = 120.0
PLAIN = PayloadPlace(directory="/nowhere")


class FakeStream:
    """A stream whose other end the test has."""

    host = "node7"

    for_viewer = False

    def __init__(self, place: PayloadPlace, **head: Any) -> None:
        self.place, self.head = place, head
        self.client, self._accepted = socket.socketpair()
        self.client.settimeout(PATIENCE_S)
        self.is_accepted = False

    def accept(self) -> socket.socket:
        self.is_accepted = True
        return self._accepted

    def serve(self) -> None:
        port.serve(cast(Stream, self))

    def close(self) -> None:
        self.client.close()
        self._accepted.close()


@contextlib.contextmanager
def stream(number: object, place: PayloadPlace = PLAIN, **head: Any) -> Iterator[FakeStream]:
    one = FakeStream(place, port=number, **head)
    yield one
    one.close()


@contextlib.contextmanager
def listening(address: str = "127.0.0.1") -> Iterator[int]:
    """Yield the port of a server that greets."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as server:

        def greet() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = server.accept()
                    connection.sendall(b"hello")
                    connection.close()

        threading.Thread(target=greet, daemon=True).start()
        yield server.getsockname()[1]
        server.shutdown(socket.SHUT_RDWR)


def read_place(number: int, place: PayloadPlace = PLAIN) -> PortPlace:
    with stream(number, place, look=True) as one:
        one.serve()
        return from_json(PortPlace, json.loads(one.client.recv(65536)))


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "::1"])
def test_a_port_of_the_payloads_user_is_connected(address: str) -> None:
    with listening(address) as number, stream(number) as one:
        thread = threading.Thread(target=one.serve, daemon=True)
        thread.start()
        assert one.client.recv(100) == b"hello"
        one.client.close()
        thread.join(PATIENCE_S)
        assert not thread.is_alive()


def test_a_directly_reachable_port_is_reported_with_its_address() -> None:
    here = PortPlace(boot=boot_id(), network=os.stat("/proc/self/ns/net").st_ino)
    with listening() as number:
        assert read_place(number) == replace(here, loopback="127.0.0.1")
    with listening("0.0.0.0") as number:
        assert read_place(number) == replace(here, hosts=("node7",), loopback="127.0.0.1")
    with listening("::1") as number:
        assert read_place(number) == replace(here, loopback="::1")


def test_a_port_without_a_listener_is_not_open_yet() -> None:
    with refusing() as (_, number), stream(number) as one:
        with pytest.raises(StreamRefused, match=f"nothing listens on port {number} yet") as caught:
            one.serve()
        assert caught.value.reason == NOT_OPEN
        assert not one.is_accepted


@pytest.mark.parametrize("number", [0, 65536, -1, "80", None, 1.5])
def test_an_invalid_port_number_is_refused(number: object) -> None:
    with stream(number) as one, pytest.raises(StreamRefused, match="the number of a port is 1 to 65535"):
        one.serve()


def rows(*places: tuple[str, int]) -> list[TcpSocket]:
    return [TcpSocket(address, 8888, "0.0.0.0", 0, True, os.getuid() + more, 7) for address, more in places]


@pytest.mark.proves("ports-taken")
def test_a_port_of_another_user_is_never_connected(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*places: tuple[str, int]) -> str:
        monkeypatch.setattr(tcp_table, "listeners", lambda *_: rows(*places))
        with stream(8888) as one, pytest.raises(StreamRefused) as caught:
            one.serve()
        return str(caught.value)

    assert "not this application's" in refused(("127.0.0.1", 1))
    assert "not this application's" in refused(("0.0.0.0", 1), ("::", 2))
    assert "too" in refused(("::", 0), ("127.0.0.1", 1)), "::  may or may not be IPv4 as well"
    monkeypatch.setattr(tcp_table, "listeners", lambda *_: rows(("10.0.0.5", 0), ("127.0.0.1", 1)))
    assert read_place(8888).hosts == ("10.0.0.5",)
    assert read_place(8888).loopback == ""


@pytest.mark.proves("ports-taken", "ports-others")
@pytest.mark.root("another user listens")
def test_a_real_port_of_another_user_is_refused() -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True); s.accept()"
    )
    become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    with subprocess.Popen([*become, "/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        number = int(other.stdout.readline())
        with stream(number) as one, pytest.raises(StreamRefused, match="is 12345's, not this application's"):
            one.serve()
        other.kill()


def refuse_after_the_look(
    monkeypatch: pytest.MonkeyPatch, number: int, again: Callable[[], list[TcpSocket]]
) -> StreamRefused:
    """Return how a port is refused that is the payload's at the first look, and what ``again`` says at the next."""
    own = TcpSocket("127.0.0.1", number, "0.0.0.0", 0, True, os.getuid(), 7)
    looks = iter([lambda: [own], again])
    monkeypatch.setattr(tcp_table, "listeners", lambda *_: next(looks)())
    with stream(number) as one:
        with pytest.raises(StreamRefused, match="not this application's any more") as caught:
            one.serve()
        assert not one.is_accepted
    return caught.value


def test_a_port_taken_by_another_user_before_the_connect_gets_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        taken = [TcpSocket("127.0.0.1", number, "0.0.0.0", 0, True, os.getuid() + 1, 8)]
        assert refuse_after_the_look(monkeypatch, number, lambda: taken).reason == NOT_OPEN
        assert refuse_after_the_look(monkeypatch, number, list).reason == NOT_OPEN
    with listening() as number:
        other = TcpSocket("127.0.0.1", number, "127.0.0.1", 1, False, os.getuid() + 1, 8)
        monkeypatch.setattr(tcp_table, "peer_of", lambda _: other)
        own = [TcpSocket("127.0.0.1", number, "0.0.0.0", 0, True, os.getuid(), 9)]
        refuse_after_the_look(monkeypatch, number, lambda: own)


@pytest.mark.proves("ports-others")
@pytest.mark.root("another user takes the connection")
def test_another_user_who_accepted_and_closed_the_port_gets_no_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import socket; s = socket.create_server(('127.0.0.1', 0)); print(s.getsockname()[1], flush=True)\n"
        "taken, _ = s.accept(); s.close(); print('taken', flush=True); print(taken.recv(100), flush=True)"
    )
    become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
    with subprocess.Popen([*become, "/usr/bin/python3", "-c", code], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        output = other.stdout
        number = int(output.readline())

        def back_again() -> list[TcpSocket]:
            assert output.readline() == "taken\n"
            return [TcpSocket("127.0.0.1", number, "0.0.0.0", 0, True, os.getuid(), 9)]

        refuse_after_the_look(monkeypatch, number, back_again)
        assert output.readline() == "b''\n"


def test_a_server_that_accepts_only_one_connection_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0)))
        number = server.getsockname()[1]
        own = TcpSocket("127.0.0.1", number, "0.0.0.0", 0, True, os.getuid(), 7)

        def take() -> list[TcpSocket]:
            taken, _ = server.accept()
            server.close()
            taken.sendall(b"once")
            opened.callback(taken.close)
            return []

        looks = iter([lambda: [own], take])
        monkeypatch.setattr(tcp_table, "listeners", lambda *_: next(looks)())
        one = opened.enter_context(stream(number))
        thread = threading.Thread(target=one.serve, daemon=True)
        thread.start()
        assert one.client.recv(100) == b"once"


@pytest.mark.proves("ports-others")
def test_an_address_of_a_container_that_has_ended_is_another_ones_by_now(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its network cannot be entered, and the process has ended when the connection is there.
    monkeypatch.setattr(port, "_inside", lambda *_: None)
    with listening() as number:
        place = PayloadPlace(
            directory="/x", container="c", pid=os.getpid(), started=1, own_network=True, addresses=("127.0.0.1",)
        )
        listeners = [TcpSocket("0.0.0.0", number, "0.0.0.0", 0, True, 0, 7)]
        monkeypatch.setattr(tcp_table, "listeners", lambda *_: listeners)
        with stream(number, place) as one, pytest.raises(StreamRefused, match="the program has ended") as caught:
            one.serve()
        assert caught.value.reason == NOT_OPEN
        assert not one.is_accepted


IN_ITS_NETWORK = """
import fcntl, socket, struct, sys
with socket.socket() as any_socket:
    # The loopback interface is down in a new network. Source: netdevice(7), SIOCSIFFLAGS, IFF_UP.
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", 1))
server = socket.create_server((sys.argv[1], 0))
print(server.getsockname()[1], flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"inside")
    connection.close()
"""


@contextlib.contextmanager
def in_its_network(address: str = "127.0.0.1") -> Iterator[tuple[PayloadPlace, int]]:
    """Yield the place of a program with a network of its own, and its port."""
    command = ["unshare", "--net", sys.executable, "-c", IN_ITS_NETWORK, address]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        number = int(program.stdout.readline())
        started = start_time(program.pid)
        assert started is not None
        yield PayloadPlace(directory="/x", container="c", pid=program.pid, started=started, own_network=True), number
        program.kill()


@pytest.mark.root("a network namespace is made and entered")
def test_a_loopback_port_in_a_network_of_its_own_is_entered() -> None:
    with in_its_network() as (place, number):
        before = os.stat("/proc/self/ns/net").st_ino
        with stream(number, place) as one:
            threading.Thread(target=one.serve, daemon=True).start()
            assert one.client.recv(100) == b"inside"
        assert os.stat("/proc/self/ns/net").st_ino == before
        assert read_place(number, place) == PortPlace(), "nobody else reaches it"
        other = number - 1 if number > 1024 else number + 1
        with stream(other, place) as one, pytest.raises(StreamRefused) as caught:
            one.serve()
        assert caught.value.reason == NOT_OPEN
        late = PayloadPlace(directory="/x", pid=place.pid, started=place.started + 1, own_network=True)
        with stream(number, late) as one, pytest.raises(StreamRefused, match="the program has ended"):
            one.serve()


@pytest.mark.root("a network namespace is made")
def test_a_loopback_port_in_a_network_that_may_not_be_entered_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_fd: int) -> None:
        raise PermissionError

    monkeypatch.setattr(kernel, "enter_network", refuse)
    with (
        in_its_network() as (place, number),
        stream(number, place) as one,
        pytest.raises(StreamRefused, match=r"let it listen on 0\.0\.0\.0"),
    ):
        one.serve()


def test_dockers_address_is_used_for_an_invisible_container() -> None:
    with listening() as number:
        place = PayloadPlace(directory="/x", container="c", own_network=True, addresses=("127.0.0.1",))
        with stream(number, place) as one:
            threading.Thread(target=one.serve, daemon=True).start()
            assert one.client.recv(100) == b"hello"
    with stream(number, place) as one, pytest.raises(StreamRefused, match="cannot be reached"):
        one.serve()


SERVERS = """
import socket, subprocess, sys
if len(sys.argv) > 1:
    server = socket.create_server(("127.0.0.1", 0))
    print(server.getsockname()[1], flush=True)
    while True:
        server.accept()[0].sendall(b"hello")
subprocess.run([sys.executable, sys.argv[0], "server"])
"""


@contextlib.contextmanager
def program_with_a_server(directory: Path, program_text: str = SERVERS) -> Iterator[tuple[PayloadPlace, int]]:
    """Yield the place of a plain program, and the port of a server that is its child."""
    (directory / "servers.py").write_text(program_text)
    command = [sys.executable, str(directory / "servers.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as program:
        try:
            assert program.stdout is not None
            number = int(program.stdout.readline())
            started = start_time(program.pid)
            assert started is not None
            yield PayloadPlace(directory="/x", pid=program.pid, started=started), number
        finally:
            os.killpg(program.pid, signal.SIGKILL)


def for_viewer(number: int, place: PayloadPlace) -> StreamRefused | bytes:
    """Return what a viewer is sent by a port, or how it is refused."""
    with stream(number, place) as one:
        one.for_viewer = True
        reported: list[StreamRefused] = []

        def serve() -> None:
            try:
                one.serve()
            except StreamRefused as error:
                reported.append(error)
                one.close()

        threading.Thread(target=serve, daemon=True).start()
        answer = b""
        with contextlib.suppress(OSError):
            answer = one.client.recv(100)
        return reported[0] if reported else answer


@pytest.mark.proves("ports-viewer")
def test_a_viewer_reaches_the_programs_own_ports_and_none_of_its_users_others(tmp_path: Path) -> None:
    with program_with_a_server(tmp_path) as (place, number), listening() as another:
        assert for_viewer(number, place) == b"hello"
        assert f"port {another} of node7 is another program's of the same user" in str(for_viewer(another, place))
        with stream(another, place) as one:
            threading.Thread(target=one.serve, daemon=True).start()
            assert one.client.recv(100) == b"hello", "its owner reaches both"
        for unseen in (PLAIN, replace(place, pid=0)):
            assert "its owner alone reaches port" in str(for_viewer(number, unseen))
        assert "another program's" in str(for_viewer(number, replace(place, started=place.started + 1)))


def test_a_viewer_does_not_reach_a_server_that_a_command_of_the_owner_started(tmp_path: Path) -> None:
    keeper = "open('/proc/self/comm', 'w').write('dlapp-exec'); import runpy; runpy.run_path({!r}, run_name='x')"
    script = tmp_path / "keeper.py"
    with program_with_a_server(tmp_path) as (place, number):
        assert for_viewer(number, place) == b"hello"
    (tmp_path / "servers.py").rename(tmp_path / "inner.py")
    script.write_text(keeper.format(str(tmp_path / "inner.py")))
    with program_with_a_server(
        tmp_path, f"import subprocess, sys; subprocess.run([sys.executable, {str(script)!r}])"
    ) as (
        place,
        number,
    ):
        assert f"port {number} of node7 is another program's of the same user" in str(for_viewer(number, place))


@pytest.mark.proves("ports-viewer")
def test_a_viewer_is_refused_if_another_program_accepted_the_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with program_with_a_server(tmp_path) as (place, number):
        other = TcpSocket("127.0.0.1", number, "127.0.0.1", 1, False, os.getuid(), 8)
        monkeypatch.setattr(tcp_table, "peer_of", lambda _: other)
        assert "not this application's any more" in str(for_viewer(number, place))


@pytest.mark.proves("ports-viewer")
def test_a_viewer_is_refused_for_processes_that_cannot_be_inspected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_pid: int) -> set[int]:
        raise PermissionError

    with program_with_a_server(tmp_path) as (place, number):
        monkeypatch.setattr(port, "socket_inodes", refuse)
        assert "cannot be inspected on node7" in str(for_viewer(number, place))


def test_a_viewer_is_refused_if_two_programs_share_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with program_with_a_server(tmp_path) as (place, number):
        own = tcp_table.listeners(number)
        monkeypatch.setattr(tcp_table, "listeners", lambda *_: [*own, own[0]._replace(inode=own[0].inode + 1)])
        assert "is used by" in str(for_viewer(number, place))
