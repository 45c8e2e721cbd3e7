"""Test what peers send: who asks an ApplicationMaster and what it answers, HDFS by HTTP, dockerd."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from dlapp.am.control.server import ControlEndpoint, ControlRequest
from dlapp.net.control_client import ControlConnection
from dlapp.net.dockerd import Dockerd, DockerRefused, DockerSilent
from dlapp.net.http import HttpClient, IncompleteResponse
from dlapp.net.http_framing import FramingError, check_trailer, parse_chunk_line, parse_head
from dlapp.values.access import TOOLS, derive_token
from dlapp.values.serialization import to_json
from tests.fuzz.mutation import mutated_json
from tests.fuzz.parsing import fuzz, fuzz_json
from tests.fuzz.samples import CONTAINER, HELLO, REPORT, SECRET
from tests.fuzz.server import answering
from tests.fuzz.test_archives import tar
from tests.fuzz.test_hadoop import http

# ---- the control address ----


def request(method: str, path: str, token: str = "", body: bytes = b"") -> bytes:
    """A request as a task or a tool sends it."""
    proof = f"Authorization: Bearer {token}\r\n" if token else ""
    return f"{method} {path} HTTP/1.1\r\nHost: a:1\r\n{proof}Content-Length: {len(body)}\r\n\r\n".encode() + body


TASK, TOOL = derive_token(SECRET, str(CONTAINER)), derive_token(SECRET, TOOLS)
REQUESTS = [
    request("POST", f"/v1/tasks/{CONTAINER}/hello", TASK, json.dumps(to_json(HELLO)).encode()),
    request("POST", f"/v1/tasks/{CONTAINER}/report", TASK, json.dumps(to_json(REPORT)).encode()),
    request("GET", "/v1/view", TOOL) + request("GET", "/v1/view"),
    request("POST", "/v1/softkill", TOOL, b'{"user": "tony"}'),
    request("GET", "/"),
]


@pytest.fixture
def control() -> Iterator[Callable[[bytes], bytes]]:
    """A control address, asked by bytes: what it answers until it closes or has nothing to say."""

    def put(call: ControlRequest) -> None:
        call.answer({"taken": call.kind.value})

    address = ControlEndpoint(SECRET, put, open_page=True)
    with address.server as server:

        def ask(data: bytes) -> bytes:
            with socket.create_connection(("127.0.0.1", server.port), timeout=120) as link:
                answer = b""
                with suppress(ConnectionError):
                    link.sendall(data)
                    link.shutdown(socket.SHUT_WR)
                    while piece := link.recv(1 << 16):
                        answer += piece
            assert b"500 " not in answer[:20], answer
            return answer

        yield ask
        assert b'{"taken":"view"}' in ask(request("GET", "/v1/view", TOOL))


def test_a_request_to_a_control_address_is_answered_or_refused(control: Callable[[bytes], bytes]) -> None:
    def read(data: bytes) -> None:
        answer = control(data)
        assert not answer or answer.startswith(b"HTTP/1.1 "), answer[:100]

    fuzz(read, REQUESTS)


@pytest.mark.parametrize("word", ["hello", "report"])
def test_a_message_to_a_control_address_is_taken_or_refused(control: Callable[[bytes], bytes], word: str) -> None:
    def read(data: bytes) -> None:
        answer = control(request("POST", f"/v1/tasks/{CONTAINER}/{word}", TASK, data))
        assert answer.split(b" ")[1] in (b"200", b"400", b"413"), answer[:200]

    fuzz_json(read, [to_json(HELLO if word == "hello" else REPORT)])


def test_an_answer_of_a_control_address_is_read_or_refused() -> None:
    samples = [
        http(b'{"state": "RUNNING"}', "Content-Type: application/json", "Content-Length: 20"),
        http(b"5\r\n[1,2]\r\n0\r\n\r\n", "Transfer-Encoding: chunked"),
        http(b'{"error": "no"}', "Content-Length: 15"),
    ]
    with answering() as server:

        def read(data: bytes) -> None:
            server.answers = [data]
            with ControlConnection(f"http://127.0.0.1:{server.port}", "t", max_answer_bytes=1 << 20) as connection:
                connection.call("GET", "/v1/view", timeout_s=120)

        fuzz(read, samples)


# ---- HDFS by HTTP ----

ANSWERS = [
    http(b"Wikipedia", "Content-Length: 9", "Connection: keep-alive"),
    http(b"4;x=y\r\nWiki\r\n5\r\npedia\r\n0\r\nT: 1\r\n\r\n", "Transfer-Encoding: chunked"),
    http(b"", "Content-Length: 0", "Location: http://127.0.0.1:1/x?op=OPEN", status="307 Temporary Redirect"),
    b"HTTP/1.1 100 Continue\r\n\r\n" + http(b"Wikipedia"),
]


def test_an_answer_of_hdfs_is_framed_or_refused() -> None:
    with answering() as server:

        def read(data: bytes) -> None:
            server.answers = [data]
            with closing(HttpClient(120, 120)) as connections:
                connections.request("GET", f"http://127.0.0.1:{server.port}", "/")

        fuzz(read, ANSWERS, errors=(IncompleteResponse,))


def test_the_parts_of_a_response_are_parsed_or_refused() -> None:
    def read(data: bytes) -> None:
        head, _, body = data.partition(b"\r\n\r\n")
        parsed = parse_head(head)
        assert parsed.length is None or 0 <= parsed.length < 10**19
        if parsed.is_chunked:
            assert 0 <= parse_chunk_line(body.partition(b"\r\n")[0]) < 1 << 60
            check_trailer(body.rpartition(b"\r\n")[2] or b"T: 1")

    fuzz(read, ANSWERS, errors=(FramingError,))


# ---- dockerd ----

FOUND = [
    {"Id": "a" * 64, "State": "running", "Labels": {"dlapp.uid": "1000", "dlapp.container": str(CONTAINER)}},
    {"Id": "b" * 64, "State": "exited", "Labels": None},
]


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[tuple[str, Callable[[bytes], None]]]:
    """A dockerd that gives an answer; its address, and what sets the answer."""
    with answering(tmp_path / "s") as server:

        def answer(data: bytes) -> None:
            server.answers = [data]

        yield f"unix://{tmp_path}/s", answer


def answered(body: bytes) -> bytes:
    return http(body, "Content-Type: application/json", f"Content-Length: {len(body)}")


DOCKER = (DockerSilent, DockerRefused)


def test_the_containers_that_dockerd_names_to_the_ledger_are_understood_or_refused(docker: Any) -> None:
    host, answer = docker

    def read(data: bytes) -> None:
        answer(answered(data))
        for item in Dockerd(host, 120).labelled(["dlapp.container=x"], until=time.monotonic() + 120):
            assert isinstance(item.id, str)

    fuzz_json(read, [FOUND], errors=(DockerSilent,))


@pytest.mark.proves("dockerd-limits")
def test_an_answer_of_dockerd_is_read_or_refused(docker: Any) -> None:
    host, answer = docker
    body = json.dumps(FOUND).encode()
    chunked = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)

    def read(data: bytes) -> None:
        answer(data)
        Dockerd(host, 120).labelled(["x"])

    samples = [answered(body), http(chunked, "Content-Type: application/json", "Transfer-Encoding: chunked")]
    fuzz(read, samples, errors=DOCKER)


CALLS: dict[str, tuple[Callable[[Dockerd], Any], Any]] = {
    "networks": (lambda item: item.networks(), [{"Name": "bridge"}, {"Name": "none"}]),
    "labelled": (lambda item: item.labelled(["x"]), FOUND),
    "inspect": (
        lambda item: item.inspect("x"),
        {"State": {"Status": "exited", "ExitCode": 3}, "Config": {"Labels": {}}},
    ),
    "image": (lambda item: item.image("x"), {"Id": "sha256:0", "RepoDigests": ["a@sha256:0"], "Size": 5}),
    "refusal": (lambda item: item.start("x"), {"message": "no such container"}),
}


@pytest.mark.proves("dockerd-limits")
@pytest.mark.parametrize("name", CALLS)
def test_answers_of_dockerd_are_parsed_or_refused(docker: Any, name: str) -> None:
    host, answer = docker
    ask, sample = CALLS[name]
    status = "404 Not Found" if name == "refusal" else "200 OK"

    def read(data: bytes) -> None:
        answer(http(data, "Content-Type: application/json", f"Content-Length: {len(data)}", status=status))
        with suppress(DockerRefused):
            ask(Dockerd(host, 120))

    fuzz_json(read, [sample], errors=DOCKER)


def test_a_file_of_an_image_is_read_or_refused(docker: Any) -> None:
    host, answer = docker

    def read(data: bytes) -> None:
        answer(http(data, "Content-Type: application/x-tar", f"Content-Length: {len(data)}"))
        Dockerd(host, 120).read_file("x", "/etc/passwd")

    fuzz(read, [tar()], errors=DOCKER)


def test_the_progress_of_a_pull_is_read_or_refused(docker: Any) -> None:
    host, answer = docker
    lines = [{"status": "Downloading", "id": "a", "progressDetail": {"current": 1, "total": 2}}, {"error": "no"}]
    body = b"\r\n".join(json.dumps(line).encode() for line in lines) + b"\r\n"

    def read(data: bytes) -> None:
        answer(http(data, "Content-Type: application/json"))
        for line in Dockerd(host, 120).lines("/images/create", {}, {}, timeout_s=120):
            assert isinstance(line, dict)

    fuzz(read, [body], errors=DOCKER)
    fuzz(read, [body], errors=DOCKER, strategy=mutated_json(lines))
