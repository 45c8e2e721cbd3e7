from __future__ import annotations

import contextlib
import gc
import io
import os
import tarfile
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.errors import DlappError, NotFound
from dlapp.locations import file_location
from dlapp.storage.fetch_plan import FetchPlan, run_parallel
from dlapp.storage.inputs import plan_input
from dlapp.storage.shards import shard
from dlapp.storage.tree import TransferRate
from dlapp.storage.values import Progress
from dlapp.values.spec import InputSpec


def section(*sources: str, unpack: bool = False, as_list: bool = False, shard: bool = False) -> InputSpec:
    return InputSpec(
        sources=tuple(file_location(source) for source in sources),
        input_path="data",
        unpack=unpack,
        as_list=as_list,
        shard=shard,
    )


def fill(top: Path, sizes: dict[str, int]) -> None:
    for name, size in sizes.items():
        (top / name).parent.mkdir(parents=True, exist_ok=True)
        (top / name).write_bytes(b"x" * size)


def fetch_input(
    one: InputSpec, into: Path, index: int = 0, total: int = 1, progress: Progress | None = None
) -> list[str]:
    planned = plan_input(one, "/not/there/yet", index, total)
    planned.fetch(str(into), FetchPlan.fetch, str(into.parent / "waiting"), progress)
    assert not (into.parent / "waiting").exists()
    return sorted(str(each.relative_to(into)) for each in into.rglob("*") if each.is_file())


def archive(path: Path, names: dict[str, bytes]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, content in names.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return path


def test_files_are_fetched_into_the_actual_workspace(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"set/a": 1, "set/deep/b": 2, "c": 3})
    into = tmp_path / "workspace/data"
    assert fetch_input(section(f"{tmp_path}/lake/set", f"{tmp_path}/lake/c*"), into) == ["c", "set/a", "set/deep/b"]


def test_files_matched_twice_are_fetched_once(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"a": 1, "b": 2})
    assert fetch_input(section(f"{tmp_path}/lake/*", f"{tmp_path}/lake/a"), tmp_path / "in") == ["a", "b"]


def test_a_conflicting_workspace_file_is_detected(tmp_path: Path) -> None:
    fill(tmp_path, {"lake/a": 1, "in/a": 5})
    planned = plan_input(section(f"{tmp_path}/lake/a"), "/not/there/yet", 0, 1)
    with pytest.raises(DlappError, match="in/a already exists"):
        planned.fetch(str(tmp_path / "in"), FetchPlan.fetch, str(tmp_path / "waiting"))
    assert (tmp_path / "in/a").stat().st_size == 5


def test_a_list_names_the_files_without_fetching_them(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"set/b": 1, "set/a b": 2, "c": 3})
    planned = plan_input(section(f"{tmp_path}/lake/*", as_list=True), "/not/there/yet", 0, 1)
    planned.fetch(str(tmp_path / "workspace/deep/train.txt"), FetchPlan.fetch, str(tmp_path / "waiting"))
    assert (tmp_path / "workspace/deep/train.txt").read_text().split("\n") == [
        f"{tmp_path}/lake/c", f"{tmp_path}/lake/set/a b", f"{tmp_path}/lake/set/b", "",
    ]  # fmt: skip


def test_a_name_that_a_list_cannot_hold_is_refused_at_the_check(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"a\nb": 1})
    with pytest.raises(DlappError, match=r"a\\nb' has a newline in its name"):
        plan_input(section(f"{tmp_path}/lake/*", as_list=True), "/x", 0, 1)


def test_archives_are_unpacked_where_they_would_land_and_do_not_stay(tmp_path: Path) -> None:
    archive(tmp_path / "lake/set/one.tgz", {"a/x": b"1"})
    archive(tmp_path / "lake/set/deep/two.tar", {"y": b"22"})
    archive(tmp_path / "lake/three", {"a/z": b"3"})
    seen: list[tuple[int, int]] = []
    one = section(f"{tmp_path}/lake/set", f"{tmp_path}/lake/three", unpack=True)
    into = tmp_path / "in"
    assert fetch_input(one, into, progress=lambda *both: seen.append(both)) == ["a/z", "set/a/x", "set/deep/y"]
    assert (
        seen[-1][0]
        == seen[-1][1]
        == sum(path.stat().st_size for path in (tmp_path / "lake").rglob("*.t*"))
        + ((tmp_path / "lake/three").stat().st_size)
    )


def test_a_refused_archive_is_named_by_its_source(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"data.csv": 10})
    with pytest.raises(DlappError, match=rf"^{tmp_path}/lake/data\.csv is neither a tar"):
        fetch_input(section(f"{tmp_path}/lake/*", unpack=True), tmp_path / "in")
    assert not (tmp_path / "waiting").exists()


def test_shards_of_a_section_make_the_whole(tmp_path: Path) -> None:
    sizes = {f"set/{number % 3}/{number}": number * 10 for number in range(20)} | {"big": 400}
    fill(tmp_path / "lake", sizes)
    parts = [fetch_input(section(f"{tmp_path}/lake/*", shard=True), tmp_path / f"in{n}", n, 4) for n in range(4)]
    assert sorted(name for part in parts for name in part) == sorted(sizes)
    loads = [sum(sizes[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= 20
    again = fetch_input(section(f"{tmp_path}/lake/set", f"{tmp_path}/lake/big", shard=True), tmp_path / "again", 2, 4)
    assert again == parts[2]


def test_a_shard_without_files_is_an_empty_directory(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"a": 1})
    assert fetch_input(section(f"{tmp_path}/lake/a", shard=True), tmp_path / "in", 1, 2) == []
    assert (tmp_path / "in").is_dir()


def test_a_source_without_files_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="none: nothing is there"):
        plan_input(section(f"{tmp_path}/none"), "/x", 0, 1)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_is_named_before_anything_is_fetched(tmp_path: Path) -> None:
    fill(tmp_path / "lake", {"set/secret": 1})
    (tmp_path / "lake/set/secret").chmod(0)
    with pytest.raises(DlappError, match="set/secret may not be read"):
        plan_input(section(f"{tmp_path}/lake/set"), "/x", 0, 1)


@given(
    files=st.dictionaries(st.text(min_size=1, max_size=5), st.integers(0, 1000), max_size=40),
    total=st.integers(1, 7),
    order=st.randoms(),
)
def test_shards_are_whole_disjoint_balanced_and_the_same_in_any_order(
    files: dict[str, int], total: int, order: Random
) -> None:
    shuffled = list(files.items())
    order.shuffle(shuffled)
    parts = [shard(files.items(), index, total) for index in range(total)]
    assert parts == [shard(shuffled, index, total) for index in range(total)]
    assert sorted(name for part in parts for name in part) == sorted(files)
    loads = [sum(files[name] for name in part) for part in parts]
    assert max(loads) - min(loads) <= max(files.values(), default=0)
    if not any(files.values()):
        assert max(map(len, parts)) - min(map(len, parts)) <= 1


def test_the_transfer_rate_is_formatted() -> None:
    now = 100.0
    pace = TransferRate(lambda: now)
    assert pace.text(0, 10 << 20) == "0 bytes of 10.0 MiB"
    now = 102.0
    assert pace.text(4 << 20, 10 << 20) == "4.0 MiB of 10.0 MiB, 2.0 MiB/s, 3 s left"
    assert pace.text(1 << 20, 1 << 30) == "1.0 MiB of 1.0 GiB, 512.0 KiB/s, 34 min left"


@pytest.mark.parametrize("by", ["a worker", "the caller"])
def test_resources_of_a_failed_transfer_are_freed(by: str) -> None:
    class Connection:
        pass

    used: list[weakref.ref[Connection]] = []

    def work(_item: int, tell: Callable[[int], None]) -> None:
        connection = Connection()
        used.append(weakref.ref(connection))
        if by == "a worker":
            raise DlappError("it fails")
        while True:
            tell(1)

    def done(_count: int) -> None:
        raise DlappError("it fails")

    gc.disable()
    try:
        with contextlib.suppress(DlappError):
            run_parallel(work, [1, 2, 3], done, parallelism=3)
        assert used
        assert [item() for item in used] == [None] * len(used)
    finally:
        gc.enable()


def test_a_transfer_that_cannot_start_its_threads_ends_those_that_run(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def limited(thread: threading.Thread) -> None:
        if thread.name == "file-2":
            raise RuntimeError("can't start new thread")
        start(thread)

    def work(_item: int, tell: Callable[[int], None]) -> None:
        while True:
            tell(1)

    monkeypatch.setattr(threading.Thread, "start", limited)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        run_parallel(work, [1, 2, 3], lambda _count: None, parallelism=3)
    assert not [item for item in threading.enumerate() if item.name.startswith("file-")]
