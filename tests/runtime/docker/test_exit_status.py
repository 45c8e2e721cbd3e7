"""Test how a container's payload ended, where it begins or ends just while something is looked at."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from dlapp.node_policy import DockerPolicy, node_policy
from dlapp.runtime.docker.payload import DockerRun
from dlapp.runtime.lifeline import Lifeline
from dlapp.runtime.payload import Payload, PayloadDevice, PayloadError, PayloadExit
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources

EXITED = {"Status": "exited", "Running": False}
RUNNING = {"Status": "running", "Running": True}


class Wrapper:
    """The first process of a container, with one step of it at a time."""

    def __init__(self, payload: Payload) -> None:
        self.payload = payload
        self._fd = -1

    def take_go(self) -> None:
        """Read the lifeline, as `wrapper.sh` does before anything else."""
        if self._fd < 0:
            self._fd = os.open(self.payload.life, os.O_RDONLY | os.O_NONBLOCK)
            assert os.read(self._fd, 3) == b"go\n"

    def hear(self) -> bytes:
        """Return what it reads next."""
        return os.read(self._fd, 16)

    def order(self, words: str) -> None:
        """Write down how the payload ended, or what it sees."""
        Path(self.payload.exit_file).write_text(words)

    def end(self) -> None:
        """End it, which closes what it holds."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Daemon:
    """A dockerd with one container; what happens in it while dockerd is asked for its state is the test's."""

    timeout_s = 60.0

    def __init__(self) -> None:
        self.meanwhile: Callable[[], None] = lambda: None
        self.state: dict[str, Any] = dict(EXITED)

    def start(self, name: str) -> None: ...

    def inspect(self, name: str) -> dict[str, Any]:
        self.meanwhile()
        return {"State": self.state}

    def process_id(self) -> int | None:
        return None


class Started:
    """A container that was made, what runs in it, and its dockerd."""

    def __init__(self, directory: Path, gpus: tuple[PayloadDevice, ...], monkeypatch: pytest.MonkeyPatch) -> None:
        self.daemon = Daemon()
        monkeypatch.setattr("dlapp.runtime.docker.payload.open_docker", lambda host, timeout_s: self.daemon)
        monkeypatch.setattr("dlapp.runtime.docker.exit_status._dockerd_start_times", dict)  # not this machine's
        payload = Payload(
            application_id="application_1700000000000_0001",
            container_id="container_1700000000000_0001_01_000002",
            directory=str(directory),
            script="run.sh",
            args=(),
            env={},
            resources=Resources(memory_mib=64),
            image="debian",
            gpus=gpus,
        )
        Path(payload.exit_file).parent.mkdir(parents=True, exist_ok=True)
        Path(payload.exit_file).touch()
        policy: DockerPolicy = node_policy("/none", owner=os.getuid()).docker
        self.run = DockerRun(payload, DockerSettings("unix:///nowhere", "none"), policy, lambda line: None)
        self.lifeline = self.run._lifeline = Lifeline(payload.life)
        self.wrapper = Wrapper(payload)


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Generator[Callable[..., Started], None, None]:
    """Makes one; call it with the GPUs that it is to have."""
    made: list[Started] = []

    def make(*gpus: PayloadDevice) -> Started:
        made.append(Started(tmp_path, gpus, monkeypatch))
        return made[-1]

    yield make
    for item in made:
        item.wrapper.end()
        item.run.close()


@pytest.mark.parametrize(
    ("words", "code", "ended"),
    [
        ("exited 0\n", 0, PayloadExit(0, None)),
        ("exited 3\n", 3, PayloadExit(3, None)),
        ("exited 0\nleft 2 sleep\n", 0, PayloadExit(0, None, left="2 processes, sleep")),
        ("exited 3\nleft 1 a b\x1b\n", 3, PayloadExit(3, None, left="1 process, a b?")),
        ("exited 127\n", 127, PayloadExit(127, None)),
        # Killed before it could say anything.
        ("", 137, PayloadExit(None, 9)),
        ("exited 255\n", 255, PayloadExit(255, None)),
        (
            "",
            255,
            PayloadExit(
                None,
                None,
                Fault.NODE,
                "Docker did not see how the container ended, and reports exit code 255",
                service="Docker",
            ),
        ),
    ],
)
def test_a_payload_that_starts_and_ends_during_a_dockerd_call_counts_as_started(
    container: Callable[..., Started], words: str, code: int, ended: PayloadExit
) -> None:
    one = container()
    one.daemon.state = {**EXITED, "ExitCode": code, "OOMKilled": False}
    one.run.start()

    def runs() -> None:
        one.wrapper.take_go()
        one.wrapper.order(words)
        one.wrapper.end()
        one.daemon.meanwhile = lambda: None

    one.daemon.meanwhile = runs
    assert one.run.ended() == ended


def test_an_end_unknown_to_dockerd_is_not_a_success(
    container: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.runtime.docker.exit_status.SETTLED_S", 0.05)
    one = container()
    one.daemon.state = {**RUNNING, "ExitCode": 0}  # as long as it runs, for Docker
    one.run.start()
    one.wrapper.take_go()
    one.wrapper.end()
    gone = "the container is gone and left no exit code"
    assert one.run.ended() == PayloadExit(None, None, Fault.NODE, gone, service="Docker")


def test_the_wrappers_record_is_believed_without_the_lifeline(
    container: Callable[..., Started],
) -> None:
    one = container()
    one.daemon.state = {**EXITED, "ExitCode": 3}
    one.run.start()
    one.wrapper.order("exited 3\n")
    assert not one.lifeline.is_held_by_payload
    assert one.run.ended() == PayloadExit(3, None)


@pytest.mark.parametrize(
    ("code", "fault", "words"),
    [
        (1, Fault.NODE, "the container of image debian ended before the payload began: exit code 1"),
        (127, Fault.USER, "image debian has no /bin/sh, which dlapp needs in it"),
    ],
)
def test_a_wrapper_that_never_read_its_lifeline_never_started(
    container: Callable[..., Started], code: int, fault: Fault, words: str
) -> None:
    one = container()
    one.daemon.state = {**EXITED, "ExitCode": code}
    one.run.start()
    with pytest.raises(PayloadError, match=words) as refused:
        one.run.ended()
    assert refused.value.fault is fault
    assert not one.lifeline.is_held_by_payload


class Preempted(Lifeline):
    """A lifeline in which something happens right after it was asked for the second time whether it was taken."""

    def __init__(self, path: str, then: Callable[[], None]) -> None:
        super().__init__(path)
        self._asked, self._then = 0, then

    @property
    def is_held_by_payload(self) -> bool:
        answer = super().is_held_by_payload
        self._asked += 1
        if self._asked == 2:
            self._then()
        return answer


def test_a_wrapper_that_reads_its_lifeline_between_two_checks_is_alive(
    container: Callable[..., Started], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dlapp.runtime.gpu.verification.device_numbers", dict)
    one = container(PayloadDevice("GPU-aa", 0))
    one.lifeline.close()
    lifeline = one.run._lifeline = Preempted(one.wrapper.payload.life, one.wrapper.take_go)
    one.daemon.state = {"Status": "running", "Running": True}
    one.daemon.meanwhile = lambda: one.wrapper.order("smi none\nend\n")
    one.run.start()
    assert one.wrapper.hear() == b"go\n", "it may begin"
    assert lifeline.is_held_by_payload
