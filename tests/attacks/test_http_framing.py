"""Responses of a hostile or broken server: each is refused, and never taken for a complete, shorter or longer one."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import h11
import pytest

from dlapp.errors import Unreachable
from dlapp.hadoop.web import Web
from dlapp.net.control_client import ControlConnection
from dlapp.net.dockerd import Dockerd, DockerSilent
from dlapp.net.http import HttpClient, IncompleteResponse, ResponseSink
from dlapp.net.http_framing import MAX_CHUNK_LINE_BYTES, MAX_FIELDS, MAX_HEAD_BYTES
from tests.fuzz.server import answering

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"

REFUSED = {
    "chunk longer than its length": CHUNKED + b"3\r\nhello\r\n0\r\n\r\n",
    "chunk shorter than its length": CHUNKED + b"6\r\nhello\r\n0\r\n\r\n",
    "chunk without its CRLF": CHUNKED + b"3\r\nhel0\r\n\r\n",
    "chunk ended by LF": CHUNKED + b"3\r\nhel\n0\r\n\r\n",
    "negative chunk": CHUNKED + b"-1\r\n\r\n",
    "positive sign": CHUNKED + b"+3\r\nhel\r\n0\r\n\r\n",
    "underscore in a chunk's length": CHUNKED + b"0_5\r\nhello\r\n0\r\n\r\n",
    "prefix of a chunk's length": CHUNKED + b"0x3\r\nhel\r\n0\r\n\r\n",
    "space before a chunk's length": CHUNKED + b" 3\r\nhel\r\n0\r\n\r\n",
    "space before an extension": CHUNKED + b"3 ;x\r\nhel\r\n0\r\n\r\n",
    "no length of a chunk": CHUNKED + b";x\r\n\r\n0\r\n\r\n",
    "huge length of a chunk": CHUNKED + b"f" * 40 + b"\r\nhello\r\n0\r\n\r\n",
    "endless extension": CHUNKED + b"3;" + b"x" * (MAX_CHUNK_LINE_BYTES + 1) + b"\r\nhel\r\n0\r\n\r\n",
    "line feed in an extension": CHUNKED + b"3;a\nb\r\nhel\r\n0\r\n\r\n",
    "trailer that is no field": CHUNKED + b"3\r\nhel\r\n0\r\nno field\r\n\r\n",
    "folded trailer": CHUNKED + b"3\r\nhel\r\n0\r\nA: b\r\n c\r\n\r\n",
    "too many trailers": CHUNKED + b"0\r\n" + b"A: b\r\n" * (MAX_FIELDS + 1) + b"\r\n",
    "trailers too long": CHUNKED + b"0\r\n" + (b"A: " + b"b" * 1000 + b"\r\n") * 70 + b"\r\n",
    "negative length": OK + b"Content-Length: -3\r\n\r\nhello",
    "signed length": OK + b"Content-Length: +3\r\n\r\nhel",
    "underscore in a length": OK + b"Content-Length: 0_5\r\n\r\nhello",
    "digits of another script": OK + "Content-Length: ٣\r\n\r\nhel".encode(),
    "huge length": OK + b"Content-Length: " + b"9" * 30 + b"\r\n\r\nhel",
    "length of thousands of digits": OK + b"Content-Length: " + b"1" * 5000 + b"\r\n\r\nhel",
    "no length": OK + b"Content-Length:\r\n\r\nhel",
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 5\r\n\r\nhello",
    "two lengths in one field": OK + b"Content-Length: 3, 5\r\n\r\nhello",
    "two lengths in different case": OK + b"content-length: 5\r\nCONTENT-LENGTH: 3\r\n\r\nhello",
    "length beside chunked": OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n",
    "gzip and chunked": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n",
    "chunked twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n",
    "chunked, chunked": OK + b"Transfer-Encoding: chunked, chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n",
    "identity": OK + b"Transfer-Encoding: identity\r\nContent-Length: 3\r\n\r\nhel",
    "chunked in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nhel\r\n0\r\n\r\n",
    "space before the colon": OK + b"Content-Length : 3\r\n\r\nhel",
    "space before the name": OK + b" Content-Length: 3\r\n\r\nhel",
    "folded field": OK + b"Content-Length:\r\n 3\r\n\r\nhel",
    "folded field after another": OK + b"X: y\r\n\tz\r\nContent-Length: 3\r\n\r\nhel",
    "bare CR in a value": OK + b"X: y\rContent-Length: 3\r\n\r\nhel",
    "bare LF in a value": OK + b"X: y\nContent-Length: 5\r\nContent-Length: 3\r\n\r\nhel",
    "NUL in a value": OK + b"X: \0\r\nContent-Length: 3\r\n\r\nhel",
    "no name": OK + b": x\r\nContent-Length: 3\r\n\r\nhel",
    "no colon": OK + b"Content-Length 3\r\n\r\nhel",
    "space in a name": OK + b"Content Length: 3\r\n\r\nhel",
    "too many fields": OK + b"A: b\r\n" * (MAX_FIELDS + 1) + b"Content-Length: 3\r\n\r\nhel",
    "head too long": OK + b"A: " + b"b" * MAX_HEAD_BYTES + b"\r\nContent-Length: 3\r\n\r\nhel",
    "other protocol": b"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 3\r\n\r\nhel",
    "status of two digits": b"HTTP/1.1 20 OK\r\nContent-Length: 3\r\n\r\nhel",
    "status of four digits": b"HTTP/1.1 2000 OK\r\nContent-Length: 3\r\n\r\nhel",
    "status below 100": b"HTTP/1.1 099 OK\r\nContent-Length: 3\r\n\r\nhel",
    "two spaces before the status": b"HTTP/1.1  200 OK\r\nContent-Length: 3\r\n\r\nhel",
    "version 2": b"HTTP/2.0 200 OK\r\nContent-Length: 3\r\n\r\nhel",
    "version without a dot": b"HTTP/1 200 OK\r\nContent-Length: 3\r\n\r\nhel",
    "endless interim responses": b"HTTP/1.1 100 Continue\r\n\r\n" * 1000 + OK + b"Content-Length: 3\r\n\r\nhel",
}
H11_TAKES = {
    "head too long",  # where it comes in one piece
    "trailers too long",
    "too many fields",
    "too many trailers",
    "endless extension",
    "chunked in HTTP/1.0",
    "length beside chunked",
    "folded field",
    "folded field after another",
    "folded trailer",
    "version 2",
    "endless interim responses",
}
"""What h11 leaves to its callers, or takes where RFC 9112 allows both."""

TAKEN = {
    "chunks with extensions": CHUNKED + b"4;x=y\r\nWiki\r\n5;a =  \r\npedia\r\n0\r\nT: 1\r\n\r\n",
    "upper and lower case": OK + b"TRANSFER-ENCODING: Chunked\r\n\r\n00009\r\nWikipedia\r\n0\r\n\r\n",
    "the same length twice": OK + b"Content-Length: 9\r\nContent-Length: 9, 9\r\n\r\nWikipedia",
    "no reason": b"HTTP/1.1 200\r\nContent-Length: 9\r\n\r\nWikipedia",
    "up to the end": b"HTTP/1.0 200 OK\r\n\r\nWikipedia",
    "after an interim response": b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n"
    + OK
    + b"Content-Length: 9\r\n\r\nWikipedia",
    "value in Latin-1": OK + b"X: \xe4\t\r\nContent-Length:9\t\r\n\r\nWikipedia",
}


@contextmanager
def server_of(response: bytes) -> Iterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listening.accept()
        with client, suppress(OSError):
            while b"\r\n\r\n" not in client.recv(65536):
                pass
            client.sendall(response)
            client.shutdown(socket.SHUT_WR)
            client.recv(1)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        thread.join(120)
        listening.close()


def body_by_h11(response: bytes) -> bytes | None:
    """The body that h11 reads, None where it refuses."""
    client = h11.Connection(h11.CLIENT, max_incomplete_event_size=1 << 20)
    client.send(h11.Request(method="GET", target="/", headers=[("Host", "x")]))
    client.send(h11.EndOfMessage())
    body = b""
    try:
        client.receive_data(response)
        client.receive_data(b"")
        while not isinstance(event := client.next_event(), (h11.EndOfMessage, h11.ConnectionClosed)):
            if event in (h11.NEED_DATA, h11.PAUSED):
                return None
            body += event.data if isinstance(event, h11.Data) else b""
    except h11.RemoteProtocolError:
        return None
    return body


@pytest.mark.proves("http-framing")
@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize("case", REFUSED)
def test_a_response_without_a_length_is_refused(case: str, to_file: bool, tmp_path: Path) -> None:
    with (
        server_of(REFUSED[case]) as server,
        closing(HttpClient(120, 120)) as connections,
        open(tmp_path / "x", "wb") as file,
    ):
        sink = ResponseSink(file.fileno(), 0, 100_000, lambda count: None) if to_file else None
        with pytest.raises(IncompleteResponse, match=r"HTTP|closed the connection"):
            connections.request("GET", server, "/", sink=sink)


def asked_by_rest(server: str) -> None:
    with Web(120) as web:
        web.call("GET", server)


def streamed(server: str) -> None:
    with Web(120) as web:
        list(web.stream(server))


def asked_by_control(server: str) -> None:
    with ControlConnection(server) as connection:
        connection.call("GET", "/", timeout_s=120)


@pytest.mark.parametrize("ask", [asked_by_rest, streamed, asked_by_control])
@pytest.mark.parametrize("case", REFUSED)
def test_invalid_framing_is_refused_by_every_client(case: str, ask: Callable[[str], None]) -> None:
    words = "not as a web server|closed the connection|no valid HTTP response"
    with server_of(REFUSED[case]) as server, pytest.raises(Unreachable, match=words):
        ask(server)


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_framing_of_dockerd_is_refused(case: str, tmp_path: Path) -> None:
    with answering(tmp_path / "s") as server:
        server.answers = [REFUSED[case]]
        with pytest.raises(DockerSilent, match=r"no valid HTTP response|closed the connection"):
            Dockerd(f"unix://{tmp_path}/s", 120).networks()


@pytest.mark.parametrize("case", sorted(REFUSED))
def test_the_table_agrees_with_h11(case: str) -> None:
    assert (body_by_h11(REFUSED[case]) is not None) == (case in H11_TAKES)


@pytest.mark.parametrize("case", TAKEN)
def test_valid_framing_of_rfc_9112_is_accepted(case: str) -> None:
    with server_of(TAKEN[case]) as server, closing(HttpClient(120, 120)) as connections:
        assert connections.request("GET", server, "/").body == b"Wikipedia"
    assert body_by_h11(TAKEN[case]) == b"Wikipedia"
