"""A command in a container: what is made of the bytes of Docker's stream."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from dlapp.net import exec_frames as frames
from dlapp.net.dockerd import Dockerd, DockerError, DockerRefused
from dlapp.net.exec_frames import ExecEnd, ExecRequest
from dlapp.runtime.exec.in_docker import DockerTarget


class FakeDocker:
    """A dockerd whose end of the stream the test has."""

    def __init__(self, early: bytes = b"") -> None:
        self.far, self._near = socket.socketpair()
        self._early = early
        self.refusal: DockerError | None = None

    def create_exec(self, *_: Any) -> str:
        return "1"

    def start_exec(self, _exec_id: str, *, terminal: bool) -> socket.socket:
        assert not terminal
        return self._near

    def await_exec(self, _stream: socket.socket) -> bytes:
        if self.refusal is not None:
            raise self.refusal
        return self._early

    def inspect_exec(self, _exec_id: str) -> dict[str, Any]:
        return {"Running": False, "ExitCode": 3}


@contextlib.contextmanager
def target(directory: Path) -> Iterator[tuple[DockerTarget, socket.socket]]:
    docker = FakeDocker()
    with docker.far:
        one = make_target(docker, directory)
        one.begin()
        yield one, docker.far
        one.end()


def make_target(docker: FakeDocker, directory: Path) -> DockerTarget:
    return DockerTarget(cast(Dockerd, docker), "c", str(directory), ExecRequest(command=("true",)))


def head(kind: int, size: int) -> bytes:
    return bytes([kind, 0, 0, 0]) + size.to_bytes(4)


def read(one: DockerTarget) -> list[tuple[bytes, bytes]]:
    (fd,) = one.output_fds()
    return one.read(fd)


@pytest.mark.proves("dockerd-limits")
def test_partial_frames_are_passed_on_at_once(tmp_path: Path) -> None:
    docker = FakeDocker(head(1, (4 << 30) - 1) + b"early")
    one = make_target(docker, tmp_path)
    with docker.far:
        assert one.begin() == [(frames.OUTPUT, b"early")]
        for number in range(100):
            docker.far.sendall(bytes([number]) * 1000)
            assert read(one) == [(frames.OUTPUT, bytes([number]) * 1000)]
        one.end()


def test_a_command_that_docker_refuses_leaves_no_files(tmp_path: Path) -> None:
    docker = FakeDocker()
    docker.refusal = DockerRefused(400, "no shell")
    one = make_target(docker, tmp_path)
    assert len(list(tmp_path.iterdir())) == 1
    with docker.far, pytest.raises(DockerRefused):
        one.begin()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [1, 3, 7, 8, 9, 1000])
def test_frames_are_read_from_any_chunks(tmp_path: Path, size: int) -> None:
    data = head(1, 3) + b"one" + head(2, 0) + head(2, 5) + b"error" + head(0, 2) + b"in" + head(1, 1) + b"!"
    output = {frames.OUTPUT: b"", frames.ERROR: b""}
    with target(tmp_path) as (one, far):
        for offset in range(0, len(data), size):
            far.sendall(data[offset : offset + size])
            for kind, piece in read(one):
                assert piece
                output[kind] += piece
    assert output == {frames.OUTPUT: b"onein!", frames.ERROR: b"error"}


def test_a_stream_that_does_not_keep_to_the_frames_is_over(tmp_path: Path) -> None:
    with target(tmp_path) as (one, far):
        far.sendall(head(1, 2) + b"ok" + head(7, 2) + b"no" + head(1, 2) + b"no")
        assert read(one) == [(frames.OUTPUT, b"ok")]
        assert one.output_fds() == []
        assert one.ended() == ExecEnd(3)
