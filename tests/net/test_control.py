"""The control connection and its server: real sockets, cut, slow and garbled."""

from __future__ import annotations

import json
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.net import control
from dlapp.net.control import Admission, Admit, ControlServer, Refusal, Request
from dlapp.net.control_client import ControlConnection
from tests.services.polling import wait_until
from tests.services.ports import refusing


def everybody(_method: str, _path: str, _token: str) -> Admission:
    return Admission(4 << 20, authenticated=True)


@contextmanager
def serving(answer: Callable[[ControlServer, Request], None], admit: Admit = everybody) -> Iterator[ControlServer]:
    box: list[ControlServer] = []
    with ControlServer(lambda request: answer(box[0], request), admit=admit) as server_not_yet:
        box.append(server_not_yet)
        yield server_not_yet


def echo(server: ControlServer, request: Request) -> None:
    server.reply(
        request, 200, {"method": request.method, "path": request.path, "token": request.token, "body": request.json()}
    )


def url_of(server: ControlServer) -> str:
    return f"http://{server.host}:{server.port}"


def ask(url: str, method: str = "GET", path: str = "/", body: object = None, *, token: str | None = None) -> Any:
    with ControlConnection(url, token) as connection:
        return connection.call(method, path, body, timeout_s=120)


def test_a_call_carries_method_path_token_and_body() -> None:
    with serving(echo) as server:
        answer = ask(url_of(server), "POST", "/v1/x", {"a": [1, "é"]}, token="secret")
    assert answer == {"method": "POST", "path": "/v1/x", "token": "secret", "body": {"a": [1, "é"]}}


def test_one_connection_serves_many_calls() -> None:
    with serving(echo) as server, ControlConnection(url_of(server), "t") as connection:
        for number in range(200):
            assert connection.call("POST", "/", number)["body"] == number
        assert len(server._peers) == 1


def test_an_answer_may_be_held_back_while_others_are_served() -> None:
    held_requests: list[Request] = []

    def hold(server: ControlServer, request: Request) -> None:
        if request.path == "/wait":
            held_requests.append(request)
        else:
            echo(server, request)

    with serving(hold) as server:
        got: list[object] = []
        waiter = threading.Thread(target=lambda: got.append(ask(url_of(server), "GET", "/wait")))
        waiter.start()
        wait_until(lambda: bool(held_requests))
        assert ask(url_of(server), "GET", "/now")["path"] == "/now"
        assert not got
        server.reply(held_requests[0], 200, "news")
        waiter.join()
    assert got == ["news"]


@pytest.mark.parametrize(("status", "error"), [(401, Denied), (403, Denied), (404, NotFound), (409, DlappError)])
def test_a_refusal_is_raised_as_its_error(status: int, error: type[DlappError]) -> None:
    with (
        serving(lambda s, r: s.reply(r, status, {"error": "because"})) as server,
        pytest.raises(error, match="because"),
    ):
        ask(url_of(server), "GET", "/")


def test_a_refused_connection_is_reported_with_the_address() -> None:
    with refusing() as (_, port), pytest.raises(Unreachable, match=f"http://127.0.0.1:{port}.*refused"):
        ControlConnection(f"http://127.0.0.1:{port}").call("GET", "/")


def test_a_silent_server_uses_up_the_deadline_only() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        with pytest.raises(Unreachable, match=r"no answer in 0\.2 s"):
            ControlConnection(f"http://127.0.0.1:{silent.getsockname()[1]}").call("GET", "/", timeout_s=0.2)
        assert time.monotonic() - began < 9  # it would be 10 s without a limit of its own


@pytest.mark.parametrize(
    "garbage", [b"", b"\0" * 100, b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nshort", b"x" * 100_000]
)
def test_an_answer_that_is_garbage_or_cut_is_one_clear_error(garbage: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(garbage)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Unreachable, match="ApplicationMaster at http://127"):
            ControlConnection(f"http://127.0.0.1:{listener.getsockname()[1]}").call("GET", "/", timeout_s=5)
        thread.join()


def test_a_request_cut_at_any_byte_reaches_no_handler_and_harms_no_other() -> None:
    whole = b'POST /v1/x HTTP/1.1\r\nHost: a\r\nContent-Length: 12\r\n\r\n{"a": "bcde"}'
    seen: list[Request] = []

    def note(server: ControlServer, request: Request) -> None:
        seen.append(request)
        echo(server, request)

    with serving(note) as server:
        for cut in range(len(whole) - 1):
            with socket.create_connection((server.host, server.port)) as sock:
                sock.sendall(whole[:cut])
        assert ask(url_of(server), "GET", "/")["path"] == "/"
        assert [request.path for request in seen] == ["/"]
        wait_until(lambda: len(server._peers) <= 1)


def test_garbage_gets_a_400_and_the_next_caller_an_answer() -> None:
    with serving(echo) as server:
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(b"\x16\x03\x01\x02\x00 this is TLS, not HTTP\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 400")
        assert ask(url_of(server), "GET", "/ok")["path"] == "/ok"


@pytest.mark.parametrize(
    "body", [b"Content-Length: 2000\r\n\r\n" + b"x" * 2000, b"Transfer-Encoding: chunked\r\n\r\n7d0\r\n" + b"x" * 2000]
)
def test_a_body_above_the_limit_is_refused_with_413(body: bytes) -> None:
    with (
        serving(echo, lambda *_: Admission(1000, authenticated=True)) as server,
        socket.create_connection((server.host, server.port)) as sock,
    ):
        sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n" + body)
        assert sock.recv(100).startswith(b"HTTP/1.1 413")


def test_a_request_is_refused_at_its_head_and_the_asker_reads_why_though_it_sends_on() -> None:
    with serving(echo, lambda *_: Refusal(401, "no")) as server:
        with socket.create_connection((server.host, server.port)) as sock:
            sock.sendall(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n")
            assert sock.recv(100).startswith(b"HTTP/1.1 401")
        with pytest.raises(Denied, match="no"):
            ask(url_of(server), "POST", "/", "x" * 1_000_000)


def test_a_connection_that_sends_no_request_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "REQUEST_DEADLINE_S", 0.05)
    with serving(echo) as server, socket.create_connection((server.host, server.port)) as sock:
        sock.settimeout(120)
        assert sock.recv(1) == b""


def test_a_call_survives_that_the_server_closed_the_kept_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "IDLE_DEADLINE_S", 0.01)
    with serving(echo) as server, ControlConnection(url_of(server)) as connection:
        connection.call("GET", "/1")
        wait_until(lambda: not server._peers)
        assert connection.call("GET", "/2")["path"] == "/2"


def test_an_answer_of_many_megabytes_arrives_whole() -> None:
    big = "x" * (8 << 20)
    with serving(lambda s, r: s.reply(r, 200, big)) as server:
        assert ask(url_of(server), "GET", "/") == big


def test_an_equal_request_of_the_same_connection_is_recognised_and_no_other() -> None:
    known: list[object] = []

    def answer(server: ControlServer, request: Request) -> None:
        known.append(request.cached_result())
        if known[-1] is None:
            request.cache_result((request.path, request.json()))
        server.reply(request, 200, {})

    with serving(answer) as server, ControlConnection(url_of(server), "t") as connection:
        for path, body in (("/a", 1), ("/a", 1), ("/b", 1), ("/b", 2), ("/b", 2), ("/a", 1)):
            connection.call("POST", path, body)
        ask(url_of(server), "POST", "/a", 1)
    assert known == [None, ("/a", 1), None, None, ("/b", 2), None, None]


def test_requests_sent_together_are_answered_in_order() -> None:
    one = b"GET /%d HTTP/1.1\r\nHost: a\r\n\r\n"
    with serving(echo) as server, socket.create_connection((server.host, server.port)) as sock:
        sock.sendall(b"".join(one % n for n in range(5)))
        data = b""
        while data.count(b'"path"') < 5:
            data += sock.recv(65536)
    paths = [json.loads(part.partition(b"}")[0] + b"}")["path"] for part in data.split(b"\r\n\r\n")[1:]]
    assert paths == [f"/{n}" for n in range(5)]


def test_an_error_in_the_handler_loses_one_answer_and_not_the_server(capfd: pytest.CaptureFixture[str]) -> None:
    def stumble(server: ControlServer, request: Request) -> None:
        if request.path == "/bad":
            raise RuntimeError("stumbled")
        echo(server, request)

    with serving(stumble) as server:
        with pytest.raises(DlappError, match="internal error"):
            ask(url_of(server), "GET", "/bad")
        assert ask(url_of(server), "GET", "/good")["path"] == "/good"
    assert "RuntimeError: stumbled" in capfd.readouterr().err


def test_leaving_the_server_closes_every_connection_and_ends_its_thread() -> None:
    with serving(echo) as server:
        sock = socket.create_connection((server.host, server.port))
        ask(url_of(server), "GET", "/")
    assert sock.recv(1) == b""
    sock.close()
    assert not server._thread.is_alive()


def with_token(_method: str, _path: str, token: str) -> Admission | Refusal:
    return Admission(4 << 20, authenticated=True) if token else Refusal(401, "no token")


def test_a_low_limit_of_open_files_leaves_some_to_others_and_strangers_give_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(control, "max_connections", lambda: 3)
    with serving(echo, with_token) as server:
        strangers = [socket.create_connection((server.host, server.port)) for _ in range(3)]
        wait_until(lambda: len(server._peers) == 3)
        tasks = [ControlConnection(url_of(server), "t") for _ in range(3)]
        for number, one in enumerate(tasks):
            assert one.call("POST", "/", number)["body"] == number
        assert all(stranger.recv(1) == b"" for stranger in strangers)
        with ControlConnection(url_of(server), "t") as fourth:
            with pytest.raises(Unreachable):
                fourth.call("POST", "/", 4)
            tasks.pop().rest()
            wait_until(lambda: len(server._peers) == 2)
            assert fourth.call("POST", "/", 4)["body"] == 4
        for stranger in strangers:
            stranger.close()
        for one in tasks:
            one.close()


@pytest.mark.parametrize(
    ("soft", "most"), [(1_000_000, control.MAX_CONNECTIONS), (4096, 3840), (256, 192), (-1, control.MAX_CONNECTIONS)]
)
def test_connections_leave_256_descriptors_or_a_quarter(soft: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, soft))
    assert control.max_connections() == most


def test_an_internal_error_while_a_connection_is_served_ends_that_one_alone(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> None:
        raise ValueError("a fault of dlapp")

    with serving(echo) as server:
        with monkeypatch.context() as patched:
            patched.setattr(server, "_next_request", fails)
            with socket.create_connection((server.host, server.port), timeout=60) as one:
                one.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
                assert one.recv(1) == b""
        assert ask(url_of(server), path="/still")["path"] == "/still"
    assert "ValueError: a fault of dlapp" in capfd.readouterr().err
