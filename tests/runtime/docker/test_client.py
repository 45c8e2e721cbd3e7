"""The two clients of dockerd against one whose answers a test chooses: commands get what tasks get, and as soon."""

from __future__ import annotations

import contextlib
import socket
import socketserver
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.net.dockerd import Dockerd, DockerFacts, DockerNotLocal, DockerRefused, DockerSilent
from dlapp.runtime.docker import client
from dlapp.runtime.docker.client import DockerClient

Act = Callable[[str, Callable[[bytes], object]], object]
CLIENTS = (Dockerd, DockerClient)
VERSION = b'{"Version": "20.10.5", "ApiVersion": "1.41"}'


class Daemon(socketserver.ThreadingUnixStreamServer):
    """A dockerd that answers each request by ``act``, which gets the path and the function that sends."""

    daemon_threads = True

    def __init__(self, path: Path, act: Act) -> None:
        self.act = act
        self.over = threading.Event()
        super().__init__(str(path), _Handler)


class _Handler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        assert isinstance(self.server, Daemon)
        if not (first := self.rfile.readline()):
            return  # it only connects
        path = first.split()[1].decode()
        while self.rfile.readline().strip():
            pass
        with contextlib.suppress(OSError):
            self.server.act(path, self.wfile.write)


@contextlib.contextmanager
def daemon(directory: Path, act: Act) -> Iterator[Daemon]:
    server = Daemon(directory / "s", act)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.over.set()
        server.shutdown()
        server.server_close()


def sent(body: bytes, status: int = 200, more: str = "") -> bytes:
    head = f"HTTP/1.1 {status} -\r\nContent-Type: application/json\r\n{more}Content-Length: {len(body)}\r\n\r\n"
    return head.encode() + body


def outcome(call: Callable[[], object]) -> object:
    """Return what a call returns, or the type, the status and the message of its error."""
    try:
        return call()
    except (DockerRefused, DockerSilent) as error:
        return type(error), getattr(error, "status", None), str(error)


ANSWERS = {
    "a version": sent(VERSION),
    "a list": sent(b"[1]"),
    "no JSON": sent(b"{oops"),
    "deep": sent(b"[" * 100_000),
    "a refusal": sent(b'{"message": "no"}', 500),
    "a refusal without JSON": sent(b"bad gateway", 502),
    "a redirect": sent(b"", 301, "Location: /x\r\n"),
    "a redirect to another server": sent(b"", 307, "Location: http://127.0.0.1:1/x\r\n"),
    "no HTTP": b"SSH-2.0-x\r\n",
    "nothing": b"",
    "a part": sent(VERSION)[:-10],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_both_clients_give_the_same_result_for_an_answer(tmp_path: Path, name: str) -> None:
    """Answer /version with each of `ANSWERS`; both clients return the same value or raise the same error."""
    with daemon(tmp_path, lambda _path, send: send(ANSWERS[name])):
        own, package = (outcome(client(f"unix://{tmp_path}/s", 60).version) for client in CLIENTS)
    assert own == package
    assert isinstance(own, dict) == (name == "a version")


@pytest.mark.parametrize("kind", ["missing", "closed"])
def test_both_clients_give_the_same_error_without_a_dockerd(tmp_path: Path, kind: str) -> None:
    if kind == "closed":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(tmp_path / "s"))
    own, package = (outcome(client(f"unix://{tmp_path}/s", 60).networks) for client in CLIENTS)
    text = {"missing": "no such file or directory", "closed": "connection refused"}[kind]
    assert own == package == (DockerSilent, None, text)


@pytest.mark.root("to drop its rights")
def test_a_user_who_may_not_use_dockerd_is_denied(tmp_path: Path) -> None:
    program = (
        "import os, sys\nfrom dlapp.runtime.docker.client import DockerClient, DockerSilent\nimport docker.errors\n"
        "os.setuid(65534)\n"
        "try: DockerClient(sys.argv[1], 60).version()\nexcept DockerSilent as error: print(error.denied, error)"
    )
    tmp_path.chmod(0o700)
    with daemon(tmp_path, lambda _path, send: send(sent(VERSION))):
        argv = [sys.executable, "-c", program, f"unix://{tmp_path}/s"]
        done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("True permission denied\n", "")


@pytest.mark.parametrize("make", CLIENTS)
def test_facts_are_read_in_the_version_of_the_daemon(tmp_path: Path, make: Callable[[str, float], DockerFacts]) -> None:
    """Answer /version, /info and /networks, with or without the daemon's version 1.41 in front, and nothing else."""
    answers = {
        "/version": sent(VERSION),
        "/info": sent(b'{"Runtimes": {"nvidia": {}}}'),
        "/networks": sent(b'[{"Name": "bridge"}, {"Name": "training"}]'),
    }

    def act(path: str, send: Callable[[bytes], object]) -> None:
        send(answers.get(path.partition("?")[0].removeprefix("/v1.41"), sent(b'{"message": "no such path"}', 404)))

    with daemon(tmp_path, act):
        one = make(f"unix://{tmp_path}/s", 60)
        assert one.version()["Version"] == "20.10.5"
        assert one.info() == {"Runtimes": {"nvidia": {}}}
        assert one.networks() == ["bridge", "training"]


@pytest.mark.parametrize("version", ['"auto"', "null", '"1.41/../x"', "1.41", "{}"])
def test_a_version_that_is_none_is_refused_before_a_second_request(tmp_path: Path, version: str) -> None:
    """Answer /version with an ``ApiVersion`` for which the docker package would ask again, without a limit of size."""
    paths = []

    def act(path: str, send: Callable[[bytes], object]) -> None:
        paths.append(path)
        send(sent(b'{"ApiVersion": %s}' % version.encode()))

    with daemon(tmp_path, act):
        found = outcome(DockerClient(f"unix://{tmp_path}/s", 60).info)
    assert found == (DockerSilent, None, "an answer that does not match the API")
    assert paths == ["/version"]


@pytest.mark.parametrize("make", CLIENTS)
@pytest.mark.parametrize("begun", [b"", b"HTTP/1.1 200 OK\r\n", sent(VERSION)[:-10]])
def test_a_dockerd_that_is_silent_or_slow_takes_bounded_time(
    tmp_path: Path, make: Callable[[str, float], DockerFacts], begun: bytes
) -> None:
    """Send a part of an answer, then a further byte every 0.1 s; each call ends after its 0.5 s."""

    def act(_path: str, send: Callable[[bytes], object]) -> None:
        send(begun)
        while not server.over.wait(0.1):
            if begun:
                send(b" ")

    with daemon(tmp_path, act) as server:
        assert outcome(make(f"unix://{tmp_path}/s", 0.5).version) == (DockerSilent, None, "no answer in 0.5 s")


def test_an_answer_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Send pieces of 1 MiB without end, where 2 MiB are allowed."""
    monkeypatch.setattr(client, "MAX_LIST_BYTES", 2 << 20)

    def act(_path: str, send: Callable[[bytes], object]) -> None:
        send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        while not server.over.is_set():
            send(b"100000\r\n" + bytes(1 << 20) + b"\r\n")

    with daemon(tmp_path, act) as server:
        found = outcome(DockerClient(f"unix://{tmp_path}/s", 60).networks)
    assert found == (DockerSilent, None, "an answer of more than 2 MiB")


@pytest.mark.parametrize("make", CLIENTS)
def test_only_a_dockerd_of_this_machine_is_used(make: Callable[[str, float], Any]) -> None:
    with pytest.raises(DockerNotLocal, match=r"runtime.docker.host is tcp://127.0.0.1:1: only this machine's dockerd"):
        make("tcp://127.0.0.1:1", 60)


def test_a_task_does_not_load_the_docker_package() -> None:
    program = (
        "import sys, dlapp.task.main, dlapp.task.steps, dlapp.runtime.docker.payload\n"
        "print(*sorted({'docker', 'requests', 'dlapp.runtime.docker.client'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
