"""Input by way of the cache: mounted for a container, copied for a plain process, and fetched where neither can be."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from dlapp.errors import NotFound
from dlapp.storage.cache.entry import CacheLocation
from dlapp.storage.cache.fetch import MAX_ENTRIES, CacheMount, fetch
from dlapp.storage.cache.store import InputCache
from dlapp.storage.fetch_plan import FetchPlan
from dlapp.storage.local import LocalFiles
from dlapp.storage.values import FetchTarget, MatchedEntry


class Remote(LocalFiles):
    """A file system that is somewhere else, and counts what is fetched from it."""

    def __init__(self) -> None:
        self.fetched: list[str] = []

    def fetch(self, targets: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        self.fetched += [target.entry.location for target in targets]
        super().fetch(targets, done)


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
def cache(tmp_path: Path) -> InputCache:
    return InputCache(CacheLocation(str(tmp_path / "cache"), 1 << 30, 86400.0))


@pytest.fixture
def into(tmp_path: Path) -> Path:
    return tmp_path / "workspace" / "data"


def planned(remote: Remote, tmp_path: Path, into: Path, *names: str, scheme: str = "hdfs://nn") -> FetchPlan:
    """A plan for directories with a file in each, made where they are missing; a name with a dot is a file."""
    targets = []
    for name in names:
        path = tmp_path / "remote" / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            if "." in name:
                path.write_text(f"this is {name}")
            else:
                path.mkdir()
                (path / "file").write_text(f"this is {name}")
        tree = remote.tree(MatchedEntry(f"file://{path}", path.is_dir(), 0))
        targets.append(
            (remote, FetchTarget(MatchedEntry(f"{scheme}/{name}", path.is_dir(), 0), str(into / name), tree))
        )
    return FetchPlan(str(into), tuple(targets))


def test_a_plain_process_gets_a_copy_that_is_its_own(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path
) -> None:
    first = fetch(planned(remote, tmp_path, into, "train", "labels.csv"), cache)
    (into / "train" / "file").write_text("written by the payload")
    elsewhere = into.with_name("elsewhere")
    second = fetch(planned(remote, tmp_path, elsewhere, "train", "labels.csv"), cache)
    assert remote.fetched == ["hdfs://nn/train", "hdfs://nn/labels.csv"]
    assert (first.hits.files, second.hits.files, second.totals.files) == (0, 2, 2)
    assert (elsewhere / "train" / "file").read_text() == "this is train"
    assert (elsewhere / "labels.csv").read_text() == "this is labels.csv"
    assert os.stat(elsewhere / "labels.csv").st_nlink == 1
    assert (second.mounts, second.held) == ((), ())
    assert [entry.use for entry in cache.entries()] == ["", ""]


def test_a_container_gets_mounts_and_holds_their_entries(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path
) -> None:
    brought = fetch(planned(remote, tmp_path, into, "train", "labels.csv"), cache, may_mount=True)
    assert [mount.path for mount in brought.mounts] == [str(into / "train"), str(into / "labels.csv")]
    assert Path(brought.mounts[0].source, "file").read_text() == "this is train"
    assert Path(brought.mounts[1].source).read_text() == "this is labels.csv"
    assert list((into / "train").iterdir()) == []  # where it is mounted
    assert (into / "labels.csv").read_text() == ""
    assert [entry.use for entry in cache.entries()] == ["in use", "in use"]
    for item in brought.held:
        item.close()
    assert [entry.use for entry in cache.entries()] == ["", ""]


@pytest.mark.parametrize("closed", ["train", "train/results"])
def test_paths_that_the_payload_writes_are_copied_for_a_container_too(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path, closed: str
) -> None:
    brought = fetch(
        planned(remote, tmp_path, into, "train"), cache, may_mount=True, writable_paths=[str(into / closed)]
    )
    assert brought.mounts == ()
    assert (into / "train" / "file").read_text() == "this is train"


def test_a_directory_of_the_workspace_is_added_to_and_not_hidden(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path
) -> None:
    (into / "train").mkdir(parents=True)
    (into / "train" / "own").touch()
    brought = fetch(planned(remote, tmp_path, into, "train", "test"), cache, may_mount=True)
    assert brought.mounts == (CacheMount(brought.held[0].tree + "/test", str(into / "test")),)
    assert sorted(os.listdir(into / "train")) == ["file", "own"]


def test_many_matches_are_one_entry(remote: Remote, cache: InputCache, tmp_path: Path, into: Path) -> None:
    names = [f"part{number}.txt" for number in range(MAX_ENTRIES + 1)]
    brought = fetch(planned(remote, tmp_path, into, *names), cache, may_mount=True)
    assert len(brought.held) == 1
    assert [entry.source for entry in cache.entries()] == ["hdfs://nn/part0.txt and 32 more"]
    assert [Path(mount.source).read_text() for mount in brought.mounts] == [f"this is {name}" for name in names]


def test_files_of_this_machine_are_not_kept_twice(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path
) -> None:
    fetch(planned(remote, tmp_path, into, "train", scheme="file://"), cache)
    assert cache.entries() == []
    assert (into / "train" / "file").read_text() == "this is train"


def test_files_without_a_modification_time_are_fetched_each_time(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path
) -> None:
    plan = planned(remote, tmp_path, into, "train")
    system, target = plan.targets[0]
    timeless = [node._replace(mtime_ns=0) for node in target.nodes]
    fetch(plan._replace(targets=((system, target._replace(nodes=timeless)),)), cache, may_mount=True)
    assert cache.entries() == []
    assert (into / "train" / "file").read_text() == "this is train"


def test_without_room_in_the_cache_it_is_fetched_as_if_there_were_none(
    remote: Remote, tmp_path: Path, into: Path
) -> None:
    cache = InputCache(CacheLocation(str(tmp_path / "cache"), 100, 86400.0))
    brought = fetch(planned(remote, tmp_path, into, "train"), cache, may_mount=True)
    assert brought.mounts == ()
    assert brought.unsynced == ()
    assert (into / "train" / "file").read_text() == "this is train"


def test_without_space_for_a_copy_beside_the_entry_the_entry_is_removed(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch(planned(remote, tmp_path, into.with_name("before"), "train"), cache)
    answers = iter([0])  # free bytes where the copy would go; then what there really is
    monkeypatch.setattr("dlapp.storage.cache.fetch.free_bytes", lambda path: next(answers, 1 << 40))
    fetch(planned(remote, tmp_path, into, "train"), cache)
    assert cache.entries() == []
    assert remote.fetched == ["hdfs://nn/train"] * 2
    assert (into / "train" / "file").read_text() == "this is train"


def test_progress_is_that_of_all_of_it(remote: Remote, cache: InputCache, tmp_path: Path, into: Path) -> None:
    heard: list[tuple[int, int]] = []
    plan = planned(remote, tmp_path, into, "one.txt", "two.txt")
    fetch(plan, cache, progress=lambda done, total: heard.append((done, total)))
    total = plan.totals.size_bytes
    assert heard[-1] == (total, total)
    assert [done for done, _ in heard] == sorted(done for done, _ in heard)


def test_an_error_of_the_source_leaves_no_entry_in_use(
    remote: Remote, cache: InputCache, tmp_path: Path, into: Path
) -> None:
    plan = planned(remote, tmp_path, into, "train", "test")
    (tmp_path / "remote" / "test" / "file").unlink()
    with pytest.raises(NotFound):
        fetch(plan, cache, may_mount=True)
    assert [(entry.source, entry.use) for entry in cache.entries()] == [("hdfs://nn/train", "")]
