"""Whole tasks, with input from a real HDFS: what one of them fetched, the next one has."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from dlapp.locations import HdfsPlace
from dlapp.storage.cache.entry import CacheLocation
from dlapp.storage.cache.store import InputCache
from dlapp.storage.hdfs.file_system import HdfsFiles
from dlapp.values.launch_spec import CacheSettings, DockerSettings
from dlapp.values.messages import Fault, Stop
from dlapp.values.spec import InputSpec, OutputSpec
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.task.fake_am import FakeAm, workspace_archive


@pytest.fixture
def train(files: HdfsFiles, base: str, tmp_path: Path) -> str:
    """A directory on HDFS: ``a`` with "42", and ``deep/b``."""
    made = tmp_path / "train"
    (made / "deep").mkdir(parents=True)
    (made / "a").write_text("42\n")
    (made / "deep" / "b").write_bytes(os.urandom(200_000))
    files.store(str(made), f"{base}/train")
    return f"{base}/train"


class Node:
    """A machine that tasks run on, with a cache."""

    def __init__(self, directory: Path, hdfs: HdfsPlace) -> None:
        self.directory, self._hdfs, self._count = directory, hdfs, 0
        self.cache = InputCache(CacheLocation(str(directory / "cache"), 1 << 30, 86400.0))

    def task(self, script: str, source: str, launch: dict[str, Any] | None = None, **assignment: Any) -> FakeAm:
        """Start a task whose input is ``source``, in ``data``."""
        self._count += 1
        here = self.directory / str(self._count)
        here.mkdir()
        packed = workspace_archive(here, {"run.sh": script})
        inputs = (InputSpec(sources=(source,), input_path="data"),)
        am = FakeAm(here / "containers", **{**packed, "inputs": inputs, **assignment})
        am.__enter__()
        am.start(
            **(launch or {}),
            hdfs=self._hdfs,
            cache=CacheSettings(1 << 30, 86400.0, directory=self.cache.place.directory),
        )
        return am

    def uses(self) -> list[str]:
        return [entry.use for entry in self.cache.entries()]


@pytest.fixture
def node(tmp_path: Path, place: HdfsPlace) -> Node:
    (tmp_path / "node").mkdir()
    return Node(tmp_path / "node", place)


def ended(am: FakeAm) -> str:
    """Wait for a task that goes well; what it printed."""
    try:
        result = am.result()
        assert result.fault is Fault.NONE, (result, am.log())
        return am.printed().decode()
    finally:
        am.__exit__(None, None, None)


def test_the_second_task_reuses_input_and_cannot_change_that_of_the_third(node: Node, train: str) -> None:
    for number in range(3):
        am = node.task("cat data/train/a; echo harm > data/train/a", train)
        assert ended(am) == "42\n"
        assert ("on this node already: 2 files" in am.log()) == (number > 0)
    assert node.uses() == [""]


def test_a_container_sees_the_cache_itself_and_cannot_write_there(node: Node, train: str, dockerd: Dockerd) -> None:
    docker = {"docker": DockerSettings(dockerd.host, "none")}
    script = "cat data/train/a; (echo harm > data/train/a) 2>/dev/null || echo refused; echo mine > data/own; ls data"
    for _ in range(2):
        am = node.task(script, train, docker, docker_image=IMAGE)
        assert ended(am) == "42\nrefused\nown\ntrain\n"
    assert "on this node already: 2 files" in am.log()
    (entry,) = node.cache.entries()
    tree = Path(node.cache.place.directory, "entries", entry.key, "tree")
    assert (tree / "train" / "a").read_text() == "42\n"


def test_entries_used_by_a_container_stay_until_its_task_ends(node: Node, train: str, dockerd: Dockerd) -> None:
    docker = {"docker": DockerSettings(dockerd.host, "none")}
    script = "echo ready; while :; do cat data/train/a > /dev/null || exit 3; sleep 0.05; done"
    am = node.task(script, train, docker, docker_image=IMAGE)
    try:
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() != b"")
        assert node.uses() == ["in use"]
        (entry,) = node.cache.entries()
        assert not node.cache.remove(entry.key)
        am.stop(Stop.NOW)
        assert am.result().fault is Fault.STOPPED
        assert node.uses() == [""]
    finally:
        am.__exit__(None, None, None)
    am = node.task(script, train, docker, docker_image=IMAGE)
    try:
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() != b"")
        assert am.task is not None
        am.task.send_signal(signal.SIGKILL)
        am.wait_until(lambda: node.uses() == [""])
        assert node.cache.remove(entry.key)
    finally:
        am.__exit__(None, None, None)


def test_output_beside_or_inside_input_is_stored(node: Node, train: str, dockerd: Dockerd, tmp_path: Path) -> None:
    target = tmp_path / "results"
    part = tmp_path / "results.application_1700000000000_0001.tmp" / "container"
    am = node.task(
        "cp data/train/a data/train/result",
        train,
        {"docker": DockerSettings(dockerd.host, "none")},
        docker_image=IMAGE,
        outputs=(OutputSpec(output_path="data", target=f"file://{target}"),),
        parts=(f"file://{part}",),
    )
    ended(am)
    assert (part / "train" / "result").read_text() == (part / "train" / "a").read_text() == "42\n"
