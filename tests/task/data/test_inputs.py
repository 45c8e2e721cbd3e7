"""A task's input: which cache it uses, and what it leaves behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dlapp.node_policy import NodePolicy
from dlapp.storage.cache.entry import CacheLocation
from dlapp.storage.cache.store import InputCache
from dlapp.storage.fetch_plan import FetchPlan
from dlapp.storage.local import LocalFiles
from dlapp.storage.values import FetchTarget, MatchedEntry
from dlapp.task.data import inputs as inputs_module
from dlapp.task.data.inputs import Inputs
from dlapp.values.launch_spec import CacheSettings
from tests.runtime.driver import wait_until


class Remote(LocalFiles):
    """A file system that is somewhere else."""

    def __init__(self) -> None:
        self.fetched = 0

    def fetch(self, targets: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        self.fetched += len(targets)
        super().fetch(targets, done)


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def plan(remote: Remote, tmp_path: Path) -> Callable[[str], FetchPlan]:
    source = tmp_path / "source"
    source.write_text("42")

    def planned(into: str) -> FetchPlan:
        nodes = remote.tree(MatchedEntry(f"file://{source}", False, 2))
        target = FetchTarget(MatchedEntry("hdfs://nn/source", False, 2), str(tmp_path / into / "source"), nodes)
        return FetchPlan(str(tmp_path / into), ((remote, target),))

    return planned


def settings(tmp_path: Path) -> CacheSettings:
    return CacheSettings(1 << 30, 86400.0, directory=str(tmp_path / "cache"))


def entries(directory: Path) -> list[str]:
    return [entry.use for entry in InputCache(CacheLocation(str(directory), 1 << 30, 86400.0)).entries()]


def test_mounted_input_is_in_use_until_the_task_releases_it(
    plan: Callable[[str], FetchPlan], remote: Remote, tmp_path: Path
) -> None:
    notes: list[str] = []
    for number in range(2):
        mine = Inputs(settings(tmp_path), notes.append)
        assert mine.bring(plan(f"data{number}"), may_mount=True).files == 1
        ((source, path),) = mine.mounts
        assert (Path(source).read_text(), path) == ("42", str(tmp_path / f"data{number}" / "source"))
        assert entries(tmp_path / "cache") == ["in use"]
        mine.close()
        mine.close()
    assert entries(tmp_path / "cache") == [""]
    assert remote.fetched == 1
    assert notes == ["of that, on this node already: 1 files, 2 bytes"]


def test_fetched_input_is_synced_during_a_long_payload_only(
    plan: Callable[[str], FetchPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    about = tmp_path / "cache" / "entries"

    def settled() -> bool:
        return any('"boot_id": ""' in path.read_text() for path in about.glob("*/about"))

    short = Inputs(settings(tmp_path), print)
    short.bring(plan("one"), may_mount=False)
    short.settle_later()
    short.close()
    assert not settled()
    monkeypatch.setattr(inputs_module, "SETTLE_AFTER_S", 0.01)
    long = Inputs(settings(tmp_path), print)
    long.bring(plan("two"), may_mount=False)
    long.settle_later()
    wait_until(settled, "the entry is settled")
    long.close()


def test_the_operators_directory_overrides_the_engines(
    plan: Callable[[str], FetchPlan], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = NodePolicy(cache_dir=str(tmp_path / "operators"))
    monkeypatch.setattr("dlapp.node_policy.node_policy", lambda: policy)
    Inputs(settings(tmp_path), print).bring(plan("data"), may_mount=False)
    assert entries(tmp_path / "operators" / str(os.geteuid())) == [""]
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("how", ["none", "of somebody else"])
def test_without_a_cache_everything_is_fetched(
    plan: Callable[[str], FetchPlan], remote: Remote, tmp_path: Path, how: str
) -> None:
    notes: list[str] = []
    if how == "of somebody else":
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o777)
    mine = Inputs(None if how == "none" else settings(tmp_path), notes.append)
    for into in ("one", "two"):
        mine.bring(plan(into), may_mount=True)
        assert (tmp_path / into / "source").read_text() == "42"
    assert remote.fetched == 2
    assert mine.mounts == []
    assert len(notes) == (how != "none")
