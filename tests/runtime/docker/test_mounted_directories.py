"""Directories of shared file systems in a container: who can rename there gets nothing else mounted by root."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlapp.node_policy import node_policy
from dlapp.runtime.docker.images import ImageStore, LocalImage
from dlapp.runtime.docker.payload import DockerRun
from dlapp.runtime.payload import Payload, PayloadError
from dlapp.values.launch_spec import DockerSettings
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources


class Daemon:
    """A dockerd that records its calls."""

    timeout_s = 60.0

    def __init__(self, messages: list[str]) -> None:
        self._messages = messages

    def process_id(self) -> int | None:
        return None

    def remove(self, name: str) -> None: ...

    def start(self, name: str) -> None:
        self._messages.append("start")

    def inspect(self, name: str) -> dict[str, Any]:
        return {"State": {}}


@pytest.mark.proves("mount-input")
@pytest.mark.parametrize("elsewhere", ["a link", "a link above", "gone"])
@pytest.mark.parametrize(
    ("moment", "expected"),
    [("pull", []), ("make", ["make"]), ("start", ["make", "ready"]), ("", ["make", "ready", "start"])],
)
def test_a_directory_whose_path_changed_after_its_check_is_not_mounted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str, expected: list[str], elsewhere: str
) -> None:
    messages: list[str] = []
    data = tmp_path / "shared/team/data"
    data.mkdir(parents=True)
    (tmp_path / "secret/data").mkdir(parents=True)
    (tmp_path / "task/workspace").mkdir(parents=True)

    def attack(now: str) -> None:
        if now != moment:
            return
        above = elsewhere == "a link above"
        (data.parent if above else data).rename(tmp_path / "aside")
        if elsewhere != "gone":
            (data.parent if above else data).symlink_to(tmp_path / ("secret" if above else "secret/data"))

    def require(*_: object) -> LocalImage:
        attack("pull")
        return LocalImage("debian", {"Id": "sha256:1"})

    def make(*_: object) -> None:
        messages.append("make")
        attack("make")

    monkeypatch.setattr("dlapp.runtime.docker.payload.open_docker", lambda *_: Daemon(messages))
    monkeypatch.setattr("dlapp.runtime.docker.payload.remove_leftover_containers", lambda *_, **__: None)
    monkeypatch.setattr("dlapp.runtime.docker.payload.add_account", lambda *_: None)
    monkeypatch.setattr("dlapp.runtime.docker.payload.make", make)
    monkeypatch.setattr(ImageStore, "require", require)
    payload = Payload(
        application_id="application_1700000000000_0001",
        container_id="container_1700000000000_0001_01_000002",
        directory=str(tmp_path / "task"),
        script="",
        command=("true",),
        args=(),
        env={},
        resources=Resources(memory_mib=64),
        image="debian",
        mounts=((str(data), f"{tmp_path}/task/workspace/in"),),
        shared=(str(data),),
    )
    settings = DockerSettings("unix:///nowhere", "none", lock_dir=str(tmp_path))
    policy, shared = node_policy("/none").docker, (str(tmp_path / "shared"),)

    def between() -> None:
        messages.append("ready")
        attack("start")

    run = DockerRun(payload, settings, policy, lambda _: None, shared_paths=shared)
    try:
        if moment:
            with pytest.raises(PayloadError, match="an input could not be mounted") as refused:
                prepare_and_start(run, between)
            assert refused.value.fault is Fault.NODE
        else:
            prepare_and_start(run, between)
        assert messages == expected
    finally:
        run.close()


def prepare_and_start(run: DockerRun, between: Callable[[], None]) -> None:
    run.prepare()
    between()
    run.start()
