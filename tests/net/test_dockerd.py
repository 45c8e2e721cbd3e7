"""Calls of dockerd's API, against one whose answers a test chooses."""

from __future__ import annotations

import contextlib
import socketserver
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from dlapp.net import dockerd as client
from dlapp.net.dockerd import Dockerd as Client
from dlapp.net.dockerd import DockerRefused, DockerSilent


class Answers(socketserver.StreamRequestHandler):
    """One call is answered with the next status; the last one is given again and again."""

    def handle(self) -> None:
        while self.rfile.readline().strip():
            pass
        server = self.server
        assert isinstance(server, Dockerd)
        status = server.statuses.pop(0) if len(server.statuses) > 1 else server.statuses[0]
        server.calls += 1
        with contextlib.suppress(OSError):
            head = f"HTTP/1.1 {status} -\r\nContent-Length: {len(server.body)}\r\n\r\n"
            self.wfile.write(head.encode() + server.body)


class Dockerd(socketserver.ThreadingUnixStreamServer):
    """Gives ``statuses`` in their order, and counts the calls."""

    daemon_threads = True

    def __init__(self, path: Path, statuses: list[int]) -> None:
        self.statuses, self.calls = statuses, 0
        self.body = b""
        super().__init__(str(path), Answers)


@contextlib.contextmanager
def dockerd(path: Path, *statuses: int) -> Iterator[Dockerd]:
    server = Dockerd(path, list(statuses))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("last", [204, 404])
def test_remove_waits_for_a_removal_by_another_client(tmp_path: Path, last: int) -> None:
    with dockerd(tmp_path / "s", 409, 409, last) as server:
        Client(f"unix://{tmp_path}/s", 60).remove("a", until=time.monotonic() + 60)
        assert server.calls == 3


def test_a_removal_that_never_ends_is_not_waited_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "REMOVAL_S", 0.3)
    with dockerd(tmp_path / "s", 409), pytest.raises(DockerSilent, match="no answer in time"):
        Client(f"unix://{tmp_path}/s", 60).remove("a", until=time.monotonic() + 60)


def test_removing_a_missing_container_is_no_error(tmp_path: Path) -> None:
    with dockerd(tmp_path / "s", 404) as server:
        Client(f"unix://{tmp_path}/s", 60).remove("a", until=time.monotonic() + 60)
        assert server.calls == 1


@pytest.mark.parametrize("status", [301, 302, 307, 308, 400, 418, 502])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_status_that_is_no_success_is_an_error_of_the_call_and_not_an_outage(
    tmp_path: Path, status: int, streamed: bool
) -> None:
    with dockerd(tmp_path / "s", status) as server:
        server.body = b'<a href="/images/env/json">\n  Moved</a>.\n'
        docker = Client(f"unix://{tmp_path}/s", 60)
        pull = partial(docker.lines, "/images/create", {}, {}, timeout_s=60)
        with pytest.raises(DockerRefused) as error:
            list(pull() if streamed else docker.image("env//x:1") or ())
    assert str(error.value) == f'status {status}: <a href="/images/env/json"> Moved</a>.'
    assert error.value.status == status


def test_a_container_that_has_already_started_is_no_error(tmp_path: Path) -> None:
    with dockerd(tmp_path / "s", 304):
        Client(f"unix://{tmp_path}/s", 60).start("a")
