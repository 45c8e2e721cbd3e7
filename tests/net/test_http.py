"""HTTP as servers may speak it, cut anywhere; each server here says what a test has written down."""

from __future__ import annotations

import errno
import itertools
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.errors import Unreachable as AnyUnreachable
from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.net.http import HttpClient, IncompleteResponse, RequestBody, ResponseSink, SourceShrank
from dlapp.net.http_framing import parse_head
from dlapp.storage.hdfs.webhdfs import WebHdfs, WrongAnswer
from tests.fuzz.server import answering
from tests.services.http.tls import CERTIFICATE, tls_in_front
from tests.services.polling import PATIENCE_S, wait_until
from tests.services.ports import refusing

Script = list[list[bytes]]
"""For each connection the answers that it gives, in order; then it is closed."""


def sized(body: bytes, *more: bytes, status: bytes = b"200 OK") -> bytes:
    headers = b"".join(b"%s\r\n" % item for item in more)
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n%s\r\n%s" % (status, len(body), headers, body)


ACTIVE_NAMENODE = sized(
    b'{"beans":[{"modelerType":"org.apache.hadoop.hdfs.server.namenode.NameNode","State":"active"}]}'
)
NO_ROLE = sized(b'{"beans":[]}')


@contextmanager
def saying(
    script: Script, *, read_all: bool = True, role: bytes = ACTIVE_NAMENODE
) -> Iterator[tuple[str, list[bytes]]]:
    """A server that says what is written down; its address, and the requests that came.

    Asked for its role, which the script leaves out, it answers with ``role``.
    """
    heard: list[bytes] = []
    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        for answers in script:
            client, _ = listening.accept()
            with client, suppress(OSError):  # who asked may have gone
                for answer in answers:
                    request = _request(client) if read_all else client.recv(10)
                    while request.startswith(b"GET /jmx"):
                        client.sendall(role)
                        request = _request(client)
                    heard.append(request)
                    for piece in (answer[: len(answer) // 2], answer[len(answer) // 2 :]):
                        client.sendall(piece)

    thread = threading.Thread(target=serve, daemon=True)  # a client that did not come would keep it for ever
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}", heard
    finally:
        thread.join(120)
        listening.close()
        assert not thread.is_alive()


def _request(client: socket.socket) -> bytes:
    received = b""
    while b"\r\n\r\n" not in received:
        more = client.recv(65536)
        if not more:
            return received
        received += more
    head, _, body = received.partition(b"\r\n\r\n")
    length = next((int(line[16:]) for line in head.split(b"\r\n") if line.startswith(b"Content-Length: ")), 0)
    while len(body) < length and (more := client.recv(65536)):
        body += more
    return head + b"\r\n\r\n" + body


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4;x=y\r\nWiki\r\n5\r\npedia\r\n0\r\nT: 1\r\n\r\n"
TO_THE_END = b"HTTP/1.0 200 OK\r\n\r\nWikipedia"
EMPTY = b"HTTP/1.1 204 No Content\r\n\r\n"


@pytest.fixture
def connections() -> Iterator[HttpClient]:
    one = HttpClient(PATIENCE_S, PATIENCE_S)
    yield one
    one.close()


def test_answers_of_all_kinds_reuse_connections(connections: HttpClient) -> None:
    first = [sized(b"Wikipedia"), CHUNKED, EMPTY, b"HTTP/1.1 100 Continue\r\n\r\n" + sized(b"x", b"Connection: close")]
    with saying([first, [TO_THE_END]]) as (server, heard):
        bodies = [connections.request("GET", server, f"/{number}").body for number in range(5)]
    assert bodies == [b"Wikipedia", b"Wikipedia", b"", b"x", b"Wikipedia"]
    assert [text.split()[1] for text in heard] == [b"/0", b"/1", b"/2", b"/3", b"/4"]


def test_a_refusal_of_a_server_is_an_answer(connections: HttpClient) -> None:
    with saying([[sized(b"{}", status=b"403 Forbidden")]]) as (server, _):
        answer = connections.request("GET", server, "/")
    assert (answer.status, answer.good, answer.body) == (403, False, b"{}")


def test_a_kept_connection_that_the_server_closed_is_not_used(connections: HttpClient) -> None:
    with saying([[sized(b"1")], [sized(b"2")]]) as (server, _):
        assert connections.request("GET", server, "/").body == b"1"
        ((idle_connection,),) = connections._idle.values()
        wait_until(lambda: not idle_connection.is_fresh(3600.0), what="its end arrives here")
        assert connections.request("GET", server, "/").body == b"2"


@pytest.mark.parametrize("size", [0, 10, 70_000, 3_000_000])
def test_a_body_is_written_to_and_read_from_a_file_at_an_offset(
    connections: HttpClient, tmp_path: Path, size: int
) -> None:
    content, sizes = os.urandom(size), list[int]()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (content[:1000], content[1000:]) if part)
    as_chunks = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
    target = os.open(tmp_path / "x", os.O_RDWR | os.O_CREAT)
    try:
        with saying([[sized(content), as_chunks, sized(b"")]]) as (server, heard):
            for place in (5, 5 + size):
                answer = connections.request("GET", server, "/", sink=ResponseSink(target, place, size, sizes.append))
                assert (answer.received, answer.body) == (size, b"")
            whole = bytes(5) + content * 2 if size else b""
            assert connections.request("PUT", server, "/", RequestBody(target, len(whole))).good
        assert heard[2].partition(b"\r\n\r\n")[2] == (tmp_path / "x").read_bytes() == whole
        assert sum(sizes) == 2 * size
    finally:
        os.close(target)


@pytest.mark.slow
@given(st.binary(max_size=300), st.integers(0, 400))
def test_an_answer_that_is_cut_anywhere_is_broken_and_never_shorter(body: bytes, cut: int) -> None:
    whole = sized(body)
    connections = HttpClient(PATIENCE_S, PATIENCE_S)
    with saying([[whole[:cut]]]) as (server, _):
        if cut >= len(whole):
            assert connections.request("GET", server, "/").body == body
            connections.close()
            return
        with pytest.raises(IncompleteResponse) as broken:
            connections.request("GET", server, "/")
    head = whole.index(b"\r\n\r\n") + 4
    assert broken.value.sent
    assert (broken.value.answered, broken.value.received) == (cut >= head, max(0, cut - head))


@pytest.mark.parametrize(
    "answer",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
        b"\x00\x01\x02" * 50_000,
    ],
)
def test_an_answer_that_is_not_http_is_refused(connections: HttpClient, answer: bytes) -> None:
    with saying([[answer]]) as (server, _), pytest.raises(IncompleteResponse, match="no valid HTTP response"):
        connections.request("GET", server, "/")


def test_a_failed_connection_means_that_no_request_was_sent(connections: HttpClient) -> None:
    with refusing() as (_, port):
        for server, words in (
            (f"http://127.0.0.1:{port}", "refused"),
            ("http://no.such.host.invalid:80", "host not found"),
        ):
            with pytest.raises(IncompleteResponse, match=words) as broken:
                connections.request("GET", server, "/")
            assert not broken.value.sent


def test_a_host_is_looked_up_once_and_again_after_a_failed_connection(
    connections: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up: list[str] = []
    real = socket.getaddrinfo

    def getaddrinfo(host: str, port: int, **options: int) -> object:
        looked_up.append(host)
        found = real("127.0.0.1", port, **options)
        return [(*found[0][:4], ("127.0.0.2", port)), *found] if host == "two.example" else found

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    closing = sized(b"1", b"Connection: close")
    with saying([[closing]] * 5) as (server, _):
        port = server.rpartition(":")[2]
        for _ in range(3):
            assert connections.request("GET", f"http://one.example:{port}", "/").good
        assert looked_up == ["one.example"]
        for _ in range(2):  # nobody is at its first address
            assert connections.request("GET", f"http://two.example:{port}", "/").good
        assert looked_up == ["one.example", "two.example"]
    for _ in range(2):
        with pytest.raises(IncompleteResponse, match="refused"):
            connections.request("GET", f"http://one.example:{port}", "/")
    assert looked_up == ["one.example", "two.example", "one.example"]


def test_a_numeric_address_is_not_resolved(connections: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "getaddrinfo")
    with saying([[sized(b"1", b"Connection: close")]]) as (server, _):
        assert connections.request("GET", server.replace("localhost", "127.0.0.1"), "/").good


def test_an_unsupported_address_family_is_skipped_in_favour_of_better_errors(
    connections: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up, order = [], [socket.AF_INET6, socket.AF_INET]
    real = socket.socket

    def getaddrinfo(host: str, port: int, **_options: int) -> object:
        looked_up.append(host)
        ours = {socket.AF_INET: ("127.0.0.1", port), socket.AF_INET6: ("::1", port, 0, 0)}
        return [(item, socket.SOCK_STREAM, 6, "", ours[item]) for item in order]

    def without_ipv6(family: int = -1, *args: Any, **options: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        return real(family, *args, **options)

    with saying([[sized(b"1", b"Connection: close")]] * 2) as (server, _):
        port = server.rpartition(":")[2]
        monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
        monkeypatch.setattr("dlapp.net.http.socket.socket", without_ipv6)
        for _ in range(2):
            assert connections.request("GET", f"http://both.example:{port}", "/").good
    assert looked_up == ["both.example"]
    order.reverse()
    with pytest.raises(IncompleteResponse, match="refused"):  # known by the addresses of before
        connections.request("GET", f"http://both.example:{port}", "/")
    with pytest.raises(IncompleteResponse, match="refused"):
        connections.request("GET", f"http://both.example:{port}", "/")
    order.remove(socket.AF_INET)
    for _ in range(2):
        with pytest.raises(IncompleteResponse, match="family not supported"):
            connections.request("GET", f"http://six.example:{port}", "/")
    assert looked_up == ["both.example", "both.example", "six.example", "six.example"]


def test_headers_are_found_in_any_case_and_none_in_the_middle_of_another(connections: HttpClient) -> None:
    odd = (
        b"HTTP/1.1 200 OK\r\nX: content-length: 9\r\nCONTENT-LENGTH: 2 \t\r\nX-Location: /n\r\nLOCATION:/y z\r\n\r\nok"
    )
    with saying([[odd]]) as (server, _):
        answer = connections.request("GET", server, "/")
    assert answer.body == b"ok"
    found = {name: answer.headers.get(name) for name in ("Content-Length", "location", "x-location", "date")}
    assert found == {"Content-Length": "2", "location": "/y z", "x-location": "/n", "date": ""}


def test_fields_of_one_name_are_a_list_without_repetitions() -> None:
    headers = parse_head(b"HTTP/1.1 200 OK\r\nA: x \r\nB: z\r\na: y\r\nA:x\r\nAA: w").headers
    assert headers.get("a") == "x,y"


def test_a_server_that_is_silent_is_waited_for_only_so_long() -> None:
    connections = HttpClient(2, 0.2)
    with socket.create_server(("127.0.0.1", 0)) as mute, pytest.raises(IncompleteResponse, match="timed out") as broken:
        connections.request("GET", f"http://127.0.0.1:{mute.getsockname()[1]}", "/")
    assert broken.value.sent


@pytest.mark.parametrize("to_file", [False, True], ids=["memory", "file"])
@pytest.mark.parametrize(
    ("begins", "goes_on"),
    [
        (b"", b"HTTP/1.1 200 OK and still no end of this line"),
        (b"HTTP/1.1 200 OK\r\n", b"X: y\r\n"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n", b"0000"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n", b"X: y\r\n"),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 10000\r\n\r\n", b"no"),
    ],
    ids=["status", "head", "interim", "chunk", "trailer", "refusal"],
)
def test_a_trickling_server_times_out_like_a_silent_one(
    begins: bytes, goes_on: bytes, to_file: bool, tmp_path: Path
) -> None:
    connections, given_up = HttpClient(2, 0.3), threading.Event()

    def serve() -> None:
        client, _ = listening.accept()
        with client, suppress(OSError):
            _request(client)
            client.sendall(begins)
            for byte in itertools.cycle(goes_on):
                if given_up.wait(0.05):
                    break
                client.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listening, open(tmp_path / "x", "wb") as file:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        sink = ResponseSink(file.fileno(), 0, 100_000, lambda count: None) if to_file else None
        try:
            with pytest.raises(IncompleteResponse, match="timed out"):
                connections.request("GET", f"http://127.0.0.1:{listening.getsockname()[1]}", "/", sink=sink)
        finally:
            given_up.set()
            thread.join(120)


@pytest.mark.slow
def test_a_slow_download_is_allowed_while_it_progresses(tmp_path: Path) -> None:
    connections, content = HttpClient(2, 6.0), b"abcdefghijklmnopqrstuvwxyz"

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            _request(client)
            client.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 26\r\n\r\n")
            for byte in content:
                time.sleep(0.25)  # in all more than the time of a silence
                client.sendall(bytes([byte]))

    with socket.create_server(("127.0.0.1", 0)) as listening, open(tmp_path / "x", "wb") as file:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"
        answer = connections.request("GET", server, "/", sink=ResponseSink(file.fileno(), 0, 26, lambda count: None))
        thread.join(120)
    assert answer.received == 26
    assert (tmp_path / "x").read_bytes() == content


def test_a_refusal_during_a_large_body_is_read_or_the_connection_broke(connections: HttpClient, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(bytes(20_000_000))
    no, reported = sized(b"no", b"Connection: close", status=b"403 Forbidden"), set()
    with open(tmp_path / "x", "rb") as file:
        for _ in range(3):
            with saying([[no]], read_all=False) as (server, _heard):
                try:
                    reported.add(
                        str(connections.request("PUT", server, "/", RequestBody(file.fileno(), 20_000_000)).status)
                    )
                except IncompleteResponse as broken:  # the reset of the connection overtook the answer
                    reported.add("sent" if broken.sent else "not sent")
    assert reported <= {"403", "sent"}


def test_a_file_that_shrinks_or_cannot_be_written_is_no_fault_of_the_server(
    connections: HttpClient, tmp_path: Path
) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    with open(tmp_path / "x", "rb") as file:
        with saying([[b""]]) as (server, _), pytest.raises(SourceShrank):
            connections.request("PUT", server, "/", RequestBody(file.fileno(), 10))
        for size in (100, 1_000_000):
            with saying([[sized(bytes(size))]]) as (server, _), pytest.raises(OSError, match="Bad file") as failed:
                connections.request("GET", server, "/", sink=ResponseSink(file.fileno(), 0, size, lambda count: None))
            assert not isinstance(failed.value, IncompleteResponse)


def test_more_bytes_than_requested_are_refused(connections: HttpClient, tmp_path: Path) -> None:
    with (
        open(tmp_path / "x", "wb") as file,
        saying([[sized(bytes(100))]]) as (server, _),
        pytest.raises(IncompleteResponse),
    ):
        connections.request("GET", server, "/", sink=ResponseSink(file.fileno(), 0, 50, lambda count: None))
    assert (tmp_path / "x").stat().st_size <= 50


def test_a_waiting_request_can_be_interrupted(connections: HttpClient) -> None:
    with socket.create_server(("127.0.0.1", 0)) as mute:
        failures: list[BaseException] = []

        def wait() -> None:
            try:
                connections.request("GET", f"http://127.0.0.1:{mute.getsockname()[1]}", "/")
            except IncompleteResponse as broken:
                failures.append(broken)

        thread = threading.Thread(target=wait)
        thread.start()
        deadline = time.monotonic() + PATIENCE_S / 2
        while thread.is_alive() and time.monotonic() < deadline:
            connections.abort([threading.get_ident()])  # somebody else's
            connections.abort([thread.ident or 0])
            thread.join(0.02)
        assert not thread.is_alive()
        assert time.monotonic() < deadline
    assert len(failures) == 1


def test_a_unix_socket_is_a_server_like_any_other(connections: HttpClient, tmp_path: Path) -> None:
    with answering(tmp_path / "s") as server:
        server.answers = [CHUNKED]
        assert connections.request("GET", f"unix://{tmp_path}/s", "/x").body == b"Wikipedia"
    with pytest.raises(IncompleteResponse, match="no such file") as broken:
        connections.request("GET", f"unix://{tmp_path}/none", "/x")
    assert not broken.value.sent


@pytest.mark.parametrize("answer", [sized(b"Wikipedia"), CHUNKED, TO_THE_END])
def test_a_stream_that_was_read_leaves_its_connection_to_the_next_request(
    connections: HttpClient, answer: bytes
) -> None:
    again = [] if answer is TO_THE_END else [sized(b"1")]
    with saying([[answer, *again], *([] if again else [[sized(b"1")]])]) as (server, _):
        stream = connections.stream("GET", server, "/")
        assert (stream.status, b"".join(stream)) == (200, b"Wikipedia")
        stream.close()
        assert connections.request("GET", server, "/").body == b"1"


def test_a_partly_read_stream_closes_its_connection(connections: HttpClient) -> None:
    with saying([[sized(b"a" * 200_000)], [sized(b"1")]]) as (server, _):
        stream = connections.stream("GET", server, "/")
        assert set(next(iter(stream))) == {ord("a")}
        stream.close()
        assert connections.request("GET", server, "/").body == b"1"


@pytest.mark.parametrize("answer", [sized(b"Wikipedia")[:-1], CHUNKED[:-1], CHUNKED.replace(b"5\r\n", b"4\r\n")])
def test_a_stream_that_is_cut_or_framed_wrongly_is_broken(connections: HttpClient, answer: bytes) -> None:
    with saying([[answer]]) as (server, _), pytest.raises(IncompleteResponse):
        list(connections.stream("GET", server, "/"))


@pytest.mark.parametrize(
    "begins", [b"HTTP/1.1 200 ", b"HTTP/1.1 200 OK\r\n", sized(bytes(100))[:-90]], ids=["status", "head", "body"]
)
def test_a_deadline_holds_for_all_of_a_request(begins: bytes) -> None:
    given_up = threading.Event()
    connections = HttpClient(60, 60)

    def trickle(client: socket.socket) -> None:
        client.recv(65536)
        client.sendall(begins)
        with suppress(OSError):
            while not given_up.wait(0.02):
                client.sendall(b"X")

    listening = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        client, _ = listening.accept()
        with client:
            trickle(client)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"
        with pytest.raises(IncompleteResponse, match="timed out") as broken:
            connections.request("GET", server, "/", until=time.monotonic() + 0.3)
        assert broken.value.timed_out
        with pytest.raises(IncompleteResponse, match="timed out"):
            connections.request("GET", server, "/", until=time.monotonic())
    finally:
        given_up.set()
        thread.join(120)
        listening.close()


def test_a_body_larger_than_its_limit_has_its_own_error(connections: HttpClient) -> None:
    with saying([[sized(b"12345")], [CHUNKED]]) as (server, _):
        for _ in range(2):
            with pytest.raises(IncompleteResponse) as broken:
                connections.request("GET", server, "/", max_bytes=4)
            assert broken.value.too_large


@pytest.mark.parametrize("repeatable", [True, False])
def test_repeatable_requests_are_retried_after_a_broken_kept_connection(
    connections: HttpClient, repeatable: bool
) -> None:
    # The second request is heard, and its connection closed without an answer.
    with saying([[sized(b"1"), b""], [sized(b"2")]]) as (server, heard):
        assert connections.request("GET", server, "/").body == b"1"
        if repeatable:
            assert connections.request("GET", server, "/", repeatable=True).body == b"2"
        else:
            with pytest.raises(IncompleteResponse, match="closed the connection"):
                connections.request("GET", server, "/")
            assert connections.request("GET", server, "/").body == b"2"
    assert len(heard) == 3


def test_a_closed_client_sends_no_request_and_ends_waiting_ones() -> None:
    connections, failures = HttpClient(60, 60), list[str]()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = f"http://127.0.0.1:{listening.getsockname()[1]}"

        def ask() -> None:
            try:
                connections.request("GET", server, "/")
            except IncompleteResponse as error:
                failures.append(str(error))

        thread = threading.Thread(target=ask)
        thread.start()
        client, _ = listening.accept()
        with client:
            assert client.recv(65536)
            connections.end()
            thread.join(120)
        ask()
    assert (len(failures), failures[-1]) == (2, "the connection was ended")


@pytest.mark.parametrize(("target", "header"), [("/a b", ""), ("/\r\nX: y", ""), ("/é", ""), ("", ""), ("/", "a\nb")])
def test_request_parts_cannot_inject_headers(connections: HttpClient, target: str, header: str) -> None:
    with pytest.raises(ValueError, match="characters that HTTP does not allow"):
        connections.request("GET", "http://127.0.0.1:1", target, headers={"X": header})


# ---- what WebHdfs makes of it ----


def calling(server: str, patience_s: float = 30) -> WebHdfs:
    place = HdfsPlace("hdfs://nn:8020", (server,), Login("tony"))
    timeouts_s = PATIENCE_S, PATIENCE_S
    return WebHdfs(place, patience_s=patience_s, timeout_s=timeouts_s, sleep=lambda seconds: None)


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (sized(b"<html>", status=b"401 Unauthorized"), Denied, "does not accept tony"),
        (
            sized(b'{"RemoteException":{"exception":"SecurityException","message":"no\\nat x"}}', status=b"403 No"),
            Denied,
            "/x: no$",
        ),
        (
            sized(b'{"RemoteException":{"exception":"IOException","message":"odd"}}', status=b"500 No"),
            DlappError,
            r"hdfs://nn:8020/x: odd \(IOException\)",
        ),
    ],
)
def test_refusals_map_to_distinct_errors(answer: bytes, kind: type[Exception], words: str) -> None:
    with saying([[answer]]) as (server, _), pytest.raises(kind, match=words):
        calling(server, 0.3).status("/x")


def test_path_and_user_are_only_escaped() -> None:
    with saying([[sized(b'{"FileStatus":{}}', b"Connection: close")]]) as (server, heard):
        web = WebHdfs(HdfsPlace("hdfs://nn", (server,), Login("t&y")), patience_s=0.1)
        with pytest.raises(WrongAnswer, match="no status of a file"):
            web.status("/a b/%41#é\n")
    assert heard[0].startswith(b"GET /webhdfs/v1/a%20b/%2541%23%C3%A9%0A?op=GETFILESTATUS&user.name=t%26y HTTP/1.1\r\n")


def test_a_token_replaces_the_user_and_is_in_no_message() -> None:
    with saying([[sized(b"<html>", status=b"401 Unauthorized")]]) as (server, heard):
        web = WebHdfs(HdfsPlace("hdfs://nn", (server,), Login("tony", "t0ken+/=")), patience_s=0.1)
        with pytest.raises(Denied) as denied:
            web.status("/x")
    assert b"delegation=t0ken%2B%2F%3D" in heard[0]
    assert b"user.name" not in heard[0]
    assert "t0ken" not in str(denied.value)


@pytest.mark.parametrize(
    "answer", [sized(b"<html>hello"), sized(b"[]"), sized(b"", status=b"302 Found"), b"SSH-2.0\r\n\r\n"]
)
def test_an_answer_that_is_not_from_a_namenode_is_refused(answer: bytes) -> None:
    clock: Callable[[], float] = iter(range(0, 1000, 1)).__next__
    with saying([[answer]]) as (server, _):
        place = HdfsPlace("hdfs://nn:8020", (server,), Login("tony"))
        with pytest.raises(AnyUnreachable, match=r"does not speak WebHDFS|no valid HTTP response"):
            WebHdfs(place, patience_s=0.1, timeout_s=(2, 5), clock=clock).status("/x")


def test_a_tls_only_server_is_named_at_once_with_the_setting(tmp_path: Path) -> None:
    with tls_in_front(tmp_path, ("127.0.0.1", 1)) as where, pytest.raises(AnyUnreachable) as refused:
        WebHdfs(HdfsPlace("hdfs://nn:8020", (f"http://{where}",), Login("tony")), patience_s=60).status("/x")
    assert str(refused.value) == (f"http://{where} uses TLS, not plain HTTP; set dfs.http.policy to HTTPS_ONLY")


@contextmanager
def secured(directory: Path, script: Script) -> Iterator[HdfsPlace]:
    """A NameNode that speaks TLS and answers what is written down; its certificate is trusted."""
    with saying(script) as (server, _):
        host, _, port = server.removeprefix("http://").partition(":")
        with tls_in_front(directory, (host, int(port))) as where:
            yield HdfsPlace("hdfs://nn:8020", (f"https://{where}",), Login("tony"), certificates=CERTIFICATE)


def test_another_client_may_trust_more_certificates_while_one_connects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, others = ssl.SSLContext.load_verify_locations, list[WebHdfs]()

    with secured(tmp_path, [[FOUND]]) as place:

        def load(context: ssl.SSLContext, *args: Any, **named: Any) -> None:
            real(context, *args, **named)
            more = place._replace(certificates=f"# {len(others)}\n{CERTIFICATE}")
            beside = threading.Thread(target=lambda: others.append(WebHdfs(more)))
            beside.start()
            beside.join()

        monkeypatch.setattr(ssl.SSLContext, "load_verify_locations", load)
        assert WebHdfs(place).status("/x") is not None
    assert others


def test_a_certificate_is_trusted_only_by_the_clients_that_were_given_it(tmp_path: Path) -> None:
    with secured(tmp_path, [[FOUND]]) as place:
        assert WebHdfs(place).status("/x") is not None
        with pytest.raises(AnyUnreachable, match="has a certificate that is not trusted"):
            WebHdfs(place._replace(certificates=""), patience_s=60).status("/x")


def test_a_server_that_closes_connections_is_not_taken_for_tls() -> None:
    clock: Callable[[], float] = iter(range(0, 1000, 1)).__next__
    with saying([[b""], []]) as (server, heard):  # asked, and asked for TLS
        place = HdfsPlace("hdfs://nn:8020", (server,), Login("tony"))
        with pytest.raises(AnyUnreachable, match="closed the connection in the middle of an answer"):
            WebHdfs(place, patience_s=0.1, timeout_s=(2, 5), clock=clock).status("/x")
    assert len(heard) == 1


def java(kind: str, message: str, status: bytes = b"403 Forbidden") -> bytes:
    return sized(f'{{"RemoteException":{{"exception":"{kind}","message":"{message}"}}}}'.encode(), status=status)


def file_status(number: int) -> bytes:
    """The status of a file of 5 bytes that has this number."""
    return sized(
        b'{"FileStatus":{"pathSuffix":"","type":"FILE","length":5,"fileId":%d,"permission":"644",'
        b'"modificationTime":1,"owner":"tony"}}' % number
    )


FOUND = file_status(7)
GONE = java("FileNotFoundException", "no", b"404 Not Found")
TAKEN = java("FileAlreadyExistsException", "the same")


def test_a_failover_is_waited_for_and_unreachable_servers_are_not() -> None:
    standby = java("StandbyException", "Operation category READ is not supported in state standby")
    now = 0.0

    def sleep(seconds: float) -> None:
        nonlocal now
        now += seconds

    def stranger(*servers: str) -> WebHdfs:
        place = HdfsPlace("hdfs://nn:8020", servers, Login("tony"))
        return WebHdfs(
            place, patience_s=20, first_contact_timeout_s=3, timeout_s=(2, 5), clock=lambda: now, sleep=sleep
        )

    closed = "http://127.0.0.1:9"
    with pytest.raises(AnyUnreachable, match=r"127\.0\.0\.1:9 connection refused \(tried \d+ times in [1-3] s\)"):
        stranger(closed).status("/x")
    # One has died, and the other one says that it is on standby: it takes over in a moment.
    with saying([[*[standby] * 8, FOUND]]) as (server, _):
        began = now
        assert stranger(closed, server).status("/x") is not None
        assert now - began > 3


def test_a_name_that_was_taken_and_is_free_again_is_tried_again() -> None:
    with saying([[TAKEN, GONE, FOUND, sized(b"")]]) as (server, _):
        assert calling(server).rename("/old", "/new")


def test_a_path_renamed_and_removed_by_another_client_is_not_found() -> None:
    with saying([[TAKEN, GONE, GONE]]) as (server, _), pytest.raises(NotFound, match="/old is not there"):
        calling(server).rename("/old", "/new")


def test_a_block_whose_datanode_is_still_starting_is_waited_for(tmp_path: Path) -> None:
    nowhere = java("IOException", "No active nodes contain this block")
    with saying([[sized(b"12345", b"Connection: close")]]) as (datanode, _):
        redirect = sized(b"", b"Location: %s/webhdfs/v1/x?op=OPEN&namenoderpcaddress=nn:8020" % datanode.encode())
        redirect = redirect.replace(b"200 OK", b"307 Temporary Redirect")
        with saying([[FOUND, nowhere, redirect]]) as (server, _):
            assert calling(server).read_bytes("/x", 100) == b"12345"


def opened_by(heard: list[bytes]) -> list[bytes]:
    return [text.split(b"?")[0].removeprefix(b"GET /webhdfs/v1") for text in heard if b"op=OPEN" in text]


def at_datanode(address: str) -> bytes:
    redirect = sized(b"", b"Location: %s/webhdfs/v1/x?op=OPEN&namenoderpcaddress=nn:8020" % address.encode())
    return redirect.replace(b"200 OK", b"307 Temporary Redirect")


def test_a_file_replaced_before_its_inode_was_opened_is_read_again() -> None:
    with (
        saying([[sized(b"12345", b"Connection: close")]]) as (datanode, _),
        saying([[FOUND, GONE, file_status(8), at_datanode(datanode)]]) as (server, heard),
    ):
        assert calling(server).read_bytes("/x", 100) == b"12345"
    assert opened_by(heard) == [b"/.reserved/.inodes/7", b"/.reserved/.inodes/8"]


def test_without_inode_paths_a_file_is_read_by_name_unless_it_changes() -> None:
    with saying([[sized(b"1234x", b"Connection: close")], [sized(b"12345", b"Connection: close")]]) as (datanode, _):
        redirect, other = at_datanode(datanode), file_status(8)
        # The second look after the name was opened finds that it has been replaced; then all is well.
        with saying([[FOUND, redirect, other, other, redirect, other]], role=NO_ROLE) as (server, heard):
            assert calling(server).read_bytes("/x", 100) == b"12345"
    assert opened_by(heard) == [b"/x", b"/x"]


def test_a_file_replaced_at_each_read_is_given_up() -> None:
    script = [item for number in range(200) for item in (file_status(number), GONE)]
    with saying([script]) as (server, _):
        clock: Callable[[], float] = iter(range(0, 1000, 1)).__next__
        place = HdfsPlace("hdfs://nn:8020", (server,), Login("tony"))
        web = WebHdfs(place, patience_s=20, timeout_s=(2, 5), clock=clock, sleep=lambda seconds: None)
        with pytest.raises(AnyUnreachable, match=r"/x cannot be read: it is another file each time \(tried \d+ times"):
            web.read_bytes("/x", 100)
        web.close()


def test_a_namenode_without_registered_datanodes_is_retried_for_a_while() -> None:
    refusal = java("IOException", "Failed to find datanode, suggest to check cluster health. excludeDatanodes=null")
    with saying([[sized(b"", b"Connection: close", status=b"201 Created")]]) as (datanode, heard):
        redirect = sized(b"", b"Location: %s/webhdfs/v1/x?op=CREATE&namenoderpcaddress=nn:8020" % datanode.encode())
        redirect = redirect.replace(b"200 OK", b"307 Temporary Redirect")
        with saying([[refusal, refusal, redirect]]) as (server, _):
            calling(server).write("/x", b"12345")
        assert heard[0].startswith(b"PUT /webhdfs/v1/x?op=CREATE")
    with saying([[refusal] * 50]) as (server, _):
        clock: Callable[[], float] = iter(range(0, 1000, 1)).__next__
        place = HdfsPlace("hdfs://nn:8020", (server,), Login("tony"))
        web = WebHdfs(place, patience_s=5, timeout_s=(2, 5), clock=clock, sleep=lambda seconds: None)
        with pytest.raises(AnyUnreachable, match=r"finds no DataNode that lives and has space \(tried \d+ times in"):
            web.write("/x", b"12345")
        web.close()
