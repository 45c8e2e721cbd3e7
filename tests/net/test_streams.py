"""Streams through a control server: two requests become one stream, or are refused with a sentence."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dlapp.errors import Denied, NotFound, Unreachable
from dlapp.net.control import Admission, ControlServer, Refusal, Request
from dlapp.net.control_client import ControlConnection
from dlapp.net.relay import copy_both
from dlapp.net.streams import StreamRefused, open_stream
from tests.applications import wait_for

PATIENCE_S = 120.0


class Joining:
    """A server that makes a stream of the first request to /a and the first to /b, once both are there."""

    def __init__(self) -> None:
        self.server = ControlServer(self._take, admit=self._admit)
        self.url = f"http://{self.server.host}:{self.server.port}"
        self.asked: dict[str, Request] = {}
        self.come = threading.Condition()
        self.joins = True

    def _admit(self, _method: str, path: str, token: str) -> Admission | Refusal:
        if path == "/denied":
            return Refusal(401, "no token")
        if path == "/absent":
            return Refusal(404, "no container 7")
        return Admission(1 << 16, authenticated=token == "right")

    def _take(self, request: Request) -> None:
        if request.path == "/refused":
            self.server.reply(request, 409, {"error": "nothing listens", "reason": "not_open"})
            return
        with self.come:
            self.asked[request.path] = request
            self.come.notify_all()
            if self.joins and len(self.asked) == 2:
                self.join()

    def join(self) -> None:
        self.server.connect_pair(self.asked["/a"], self.asked["/b"], self._copy)

    def wait_for(self, count: int) -> None:
        with self.come:
            assert self.come.wait_for(lambda: len(self.asked) == count, PATIENCE_S)

    @staticmethod
    def _copy(left: socket.socket, right: socket.socket) -> None:
        threading.Thread(target=copy_both, args=(left, right), daemon=True).start()

    def open(self, path: str) -> socket.socket:
        return open_stream(self.url, "right", path, {"path": path}, timeout_s=PATIENCE_S)


@pytest.fixture
def joining() -> Iterator[Joining]:
    found = Joining()
    with found.server:
        yield found


def in_thread(work: Callable[[], Any]) -> Callable[[], Any]:
    """Begin work in a thread; the answer waits for it, and returns or raises what came of it."""
    box: list[Any] = []

    def run() -> None:
        try:
            box.append(work())
        except Exception as error:
            box.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Any:
        thread.join(PATIENCE_S)
        if isinstance(box[0], Exception):
            raise box[0]
        return box[0]

    return wait


def test_two_requests_become_one_stream_without_bytes_of_the_server(joining: Joining) -> None:
    wait = in_thread(lambda: joining.open("/a"))
    with joining.open("/b") as other, wait() as one:
        one.sendall(b"from one")
        assert other.recv(100) == b"from one"
        other.sendall(b"from the other")
        other.shutdown(socket.SHUT_WR)
        assert one.recv(100) == b"from the other"
        assert one.recv(100) == b""
        one.sendall(b"still open")
        assert other.recv(100) == b"still open"
        assert not joining.server._peers


def test_bytes_right_behind_the_answer_belong_to_the_stream() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        wait = in_thread(
            lambda: open_stream(f"http://127.0.0.1:{server.getsockname()[1]}", "t", "/a", {}, timeout_s=PATIENCE_S)
        )
        connection, _ = server.accept()
        with connection:
            assert connection.recv(65536).startswith(b"POST /a HTTP/1.1\r\n")
            for piece in (b"HTTP/1.1 101 Switch", b"ing\r\nUpgrade: dlapp-stream\r\n", b"\r\nfirst bytes"):
                connection.sendall(piece)
            with wait() as stream:
                assert stream.recv(100) == b"first bytes"


def test_a_refusal_is_an_error_with_the_servers_sentence(joining: Joining) -> None:
    with pytest.raises(StreamRefused, match="nothing listens") as caught:
        joining.open("/refused")
    assert caught.value.reason == "not_open"
    with pytest.raises(Denied, match="no token"):
        joining.open("/denied")
    with pytest.raises(NotFound, match="no container 7"):
        joining.open("/absent")


def test_a_closed_or_silent_server_is_unreachable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        with pytest.raises(Unreachable, match="no answer in"):
            open_stream(url, "t", "/a", {}, timeout_s=0.2)
    with pytest.raises(Unreachable):
        open_stream(url, "t", "/a", {}, timeout_s=PATIENCE_S)


@pytest.mark.parametrize("answer", [b"", b"SSH-2.0-OpenSSH\r\n\r\n", b"HTTP/1.1 101", b"x" * (1 << 15)])
def test_an_answer_of_another_protocol_or_a_part_of_one_is_no_stream_and_waited_for_no_longer(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}"
        wait = in_thread(lambda: open_stream(url, "t", "/a", {}, timeout_s=PATIENCE_S))
        connection, _ = server.accept()
        with connection:
            connection.recv(65536)
            with contextlib.suppress(OSError):
                connection.sendall(answer)
                connection.shutdown(socket.SHUT_WR)
            with pytest.raises(Unreachable) as raised:
                wait()
            assert "no answer in" not in str(raised.value)


def test_a_request_after_the_peer_has_left_is_refused(joining: Joining) -> None:
    joining.joins = False
    with socket.create_connection((joining.server.host, joining.server.port)) as gone:
        gone.sendall(b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: dlapp-stream\r\n\r\n")
        joining.wait_for(1)
    wait_for("its end is seen", lambda: not joining.server._peers)
    wait = in_thread(lambda: joining.open("/b"))
    joining.wait_for(2)
    joining.join()
    with pytest.raises(StreamRefused, match="the other end of the stream is gone"):
        wait()


def test_a_client_that_sends_before_the_switch_gets_no_stream(joining: Joining) -> None:
    joining.joins = False
    head = b"POST /a HTTP/1.1\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: dlapp-stream\r\n\r\n"
    with socket.create_connection((joining.server.host, joining.server.port), timeout=PATIENCE_S) as hasty:
        hasty.sendall(head + b"too early")
        wait = in_thread(lambda: joining.open("/b"))
        joining.wait_for(2)
        joining.join()
        with contextlib.suppress(ConnectionResetError):
            assert hasty.recv(100) == b""
        with pytest.raises(StreamRefused, match="the other end of the stream is gone"):
            wait()


def test_a_request_without_an_upgrade_is_refused() -> None:
    seen: list[bool] = []
    box: list[ControlServer] = []

    def take(request: Request) -> None:
        seen.append(request.upgrades)
        box[0].reply(request, 200, {})

    with ControlServer(take, admit=lambda *_: Admission(1 << 16, authenticated=True)) as server:
        box.append(server)
        with ControlConnection(f"http://{server.host}:{server.port}", "right") as connection:
            connection.call("POST", "/a", {})
    assert seen == [False]


@pytest.mark.proves("ports-address")
@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_token_is_sent_to_the_process_of_its_user_alone(*, is_accepted: bool) -> None:
    own, other = os.getuid(), os.getuid() + 1
    with socket.create_server(("127.0.0.1", 0)) as server:
        url, got = f"http://127.0.0.1:{server.getsockname()[1]}", list[bytes]()

        def take() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    got.append(connection.recv(1 << 16))

        thread = threading.Thread(target=take, daemon=True)
        if is_accepted:
            thread.start()
        # What nobody has accepted may yet be anybody's.
        owner, timeout_s, why = (other, PATIENCE_S, "another user's") if is_accepted else (own, 0.05, "no answer in")
        with pytest.raises(Unreachable, match=why):
            open_stream(url, "secret", "/v1/streams", {}, timeout_s=timeout_s, owner=owner)
        with ControlConnection(url, "secret", owner=owner) as connection, pytest.raises(Unreachable, match=why):
            connection.call("POST", "/v1/kill", {}, timeout_s=timeout_s)
        assert b"".join(got) == b""
        if is_accepted:
            with pytest.raises(Unreachable, match="without an answer"):
                open_stream(url, "secret", "/v1/streams", {}, timeout_s=PATIENCE_S, owner=own)
            assert b"secret" in got[-1]
            server.shutdown(socket.SHUT_RDWR)
            thread.join(PATIENCE_S)
