"""HTTP to a cluster's servers: connections are kept, and whatever a server does is one line."""

from __future__ import annotations

import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.errors import Unreachable
from dlapp.hadoop import web
from dlapp.hadoop.web import AnswerTooLarge, NoAddress, Web
from dlapp.login import Login

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def server(*connections: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that does with its first connection what the first of these does, and so on; its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for connection in connections:
                link, _ = listening.accept()
                with link:
                    connection(link)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
        thread.join(120)
        assert not thread.is_alive()


def answering(*answers: bytes) -> Callable[[socket.socket], None]:
    """Reads a request before each answer, then closes."""

    def work(link: socket.socket) -> None:
        for answer in answers:
            request = b""
            while b"\r\n\r\n" not in request:
                request += link.recv(65536)
            link.sendall(answer)

    return work


def test_a_connection_is_kept() -> None:
    with server(answering(OK, OK)) as url, Web(120) as client:
        assert client.call("GET", url).body == b"{}"
        assert client.call("POST", f"{url}/x", {"a": "b"}, b"{}").status == 200


def test_a_connection_closed_by_the_server_is_reopened() -> None:
    with server(answering(OK), answering(OK)) as url, Web(120) as client:
        assert client.call("GET", url).body == b"{}"
        assert client.call("GET", url).body == b"{}"


def test_a_query_is_added_to_that_of_the_url() -> None:
    seen = []

    def work(link: socket.socket) -> None:
        seen.append(link.recv(65536))
        link.sendall(OK)

    with server(work) as url, Web(120) as client:
        client.call("GET", f"{url}/logs?nm.id=a:1", {"user.name": "tony & co"})
    assert seen[0].startswith(b"GET /logs?nm.id=a:1&user.name=tony+%26+co HTTP/1.1\r\n")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        pytest.param(b"", "closed the connection", marks=pytest.mark.slow),
        (b"HTTP/1.1 200 OK\r\nContent-Len", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}", "closed the connection"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{}", "closed the connection"),
        pytest.param(b"\x15\x03\x03\x00\x02\x02\x46", "not as a web server", marks=pytest.mark.slow),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "not as a web server"),
    ],
)
def test_an_answer_that_is_cut_or_none_is_one_line(answer: bytes, words: str) -> None:
    with server(answering(answer)) as url, Web(120) as client, pytest.raises(Unreachable, match=words) as caught:
        client.call("GET", url)
    assert "\n" not in str(caught.value)


def test_a_silent_server_times_out() -> None:
    def work(link: socket.socket) -> None:
        while link.recv(65536):
            pass

    with server(work) as url, Web(0.2) as client, pytest.raises(Unreachable, match=r"no answer in 0\.2 s"):
        client.call("GET", url)


@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"", b"HTTP/1.1 200 OK and still no end of this line"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0000"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"),
    ],
    ids=["status", "head", "chunk", "trailer"],
)
def test_a_trickling_server_times_out_like_a_silent_one(begins: bytes, goes_on: bytes) -> None:
    given_up = threading.Event()

    def work(link: socket.socket) -> None:
        link.recv(65536)
        link.sendall(begins)
        with suppress(OSError):
            for byte in itertools.cycle(goes_on):
                if given_up.wait(0.05):
                    break
                link.sendall(bytes([byte]))

    with server(work) as url, Web(0.3) as client:
        began = time.monotonic()
        try:
            with pytest.raises(Unreachable, match=r"no answer in 0\.3 s"):
                client.call("GET", url)
            assert time.monotonic() - began < 20
        finally:
            given_up.set()


def test_an_answer_without_end_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web, "MAX_BYTES", 1000)

    def work(link: socket.socket) -> None:
        link.recv(65536)
        link.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 3000\r\n\r\n" + 2000 * b"x")
        link.recv(65536)

    with server(work) as url, Web(120) as client, pytest.raises(AnswerTooLarge, match="more than 0 MiB"):
        client.call("GET", url)


@pytest.mark.parametrize("url", ["", "rm:8088", "http://", "http://rm:port", "ftp://rm"])
def test_an_invalid_web_address_is_refused(url: str) -> None:
    with Web(120) as client, pytest.raises(NoAddress, match="is not a web address"):
        client.call("GET", url)


def test_an_unreachable_server_gives_one_line_with_address_and_setting() -> None:
    with YarnRest(["http://127.0.0.1:1"], Login("tony")) as rest, pytest.raises(Unreachable) as caught:
        rest.info()
    assert str(caught.value) == "http://127.0.0.1:1: connection refused; see yarn.resourcemanager.webapp.address"


def test_a_redirection_is_followed_and_a_circle_of_them_is_not() -> None:
    with server(answering(OK)) as active:
        redirect = f"HTTP/1.1 307 X\r\nLocation: {active}/ws/v1/cluster/info\r\nContent-Length: 0\r\n\r\n".encode()
        with server(answering(redirect)) as standby, YarnRest([standby], Login("tony")) as rest:
            assert rest.info() == {}
    around = b"HTTP/1.1 307 X\r\nLocation: /ws\r\nContent-Length: 0\r\n\r\n"
    with (
        server(answering(around, around, around)) as url,
        YarnRest([url], Login("tony")) as rest,
        pytest.raises(Unreachable, match=r"circles|standby"),
    ):
        rest.info()
