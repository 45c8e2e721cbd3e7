"""The cache of input on a node: fetched once, whole or not at all, within its limit, and never taken from a user."""

from __future__ import annotations

import fcntl  # noqa: F401  loaded now, so that its loading is not counted among the changes below
import hashlib  # noqa: F401
import json  # noqa: F401
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.storage.cache.entry import ENTRY_OVERHEAD, CacheKeySource, CacheLocation
from dlapp.storage.cache.store import CacheHold, InputCache
from dlapp.storage.local import LocalFiles
from dlapp.storage.tree import nodes_to_fetch
from dlapp.storage.values import DiskFull, MatchedEntry, Progress
from dlapp.system import lock_files
from tests.seeds import COUNT, seeds
from tests.storage.fetching import fetch_entries
from tests.tiers import FULL

DAY_S = 86400.0
PATIENCE_S = 120.0


@pytest.fixture
def no_power_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes die here, not machines: without syncing, hundreds of entries need not wait for a busy disk."""
    monkeypatch.setattr("dlapp.storage.cache.store.sync_file_system", lambda fd: None)
    monkeypatch.setattr(os, "fsync", lambda fd: None)


def place(tmp_path: Path, limit_bytes: int = 1 << 30, age_s: float = DAY_S) -> CacheLocation:
    return CacheLocation(str(tmp_path / "cache"), limit_bytes, age_s)


def source(tmp_path: Path, name: str = "train", files: int = 3, size: int = 1000) -> Path:
    made = tmp_path / "source" / name
    (made / "deep" / "empty").mkdir(parents=True)
    for number in range(files):
        (made / "deep" / f"{number}").write_bytes(bytes([number]) * size)
    return made


def wanted(path: Path) -> CacheKeySource:
    return CacheKeySource(f"file://{path}", ((path.name, nodes_to_fetch(str(path))),))


def fetch_from(path: Path, counted: list[str] | None = None) -> Callable[[str, Progress | None], object]:
    def fetch(into: str, progress: Progress | None) -> object:
        if counted is not None:
            counted.append(into)
        return fetch_entries(LocalFiles(), [MatchedEntry(f"file://{path}", True, 0)], into, progress=progress)

    return fetch


def held(cache: InputCache, path: Path, counted: list[str] | None = None) -> CacheHold:
    found = cache.hold(wanted(path), fetch_from(path, counted))
    assert found is not None
    return found


def content(top: str | Path) -> dict[str, bytes]:
    top = Path(top)
    return {
        str(path.relative_to(top)): path.read_bytes() if path.is_file() else b"/" for path in sorted(top.rglob("*"))
    }


def entries_by_kind(cache: InputCache) -> dict[str, list[str]]:
    """All that lies in the cache, by kind."""
    return {name: sorted(os.listdir(Path(cache.place.directory, name))) for name in ("entries", "locks", "parts")}


def test_an_existing_entry_is_not_fetched_again(tmp_path: Path) -> None:
    train, fetches = source(tmp_path), list[str]()
    cache = InputCache(place(tmp_path))
    first = held(cache, train, fetches)
    second = held(InputCache(place(tmp_path)), train, fetches)
    assert len(fetches) == 1
    assert (first.is_hit, second.is_hit) == (False, True)
    assert content(second.tree)["train/deep/1"] == b"\1" * 1000
    assert content(f"{second.tree}/train") == content(train)
    for item in (first, second):
        item.close()


@pytest.mark.parametrize("change", ["length", "time", "name", "another file"])
def test_a_changed_source_is_another_entry(tmp_path: Path, change: str) -> None:
    train = source(tmp_path)
    cache = InputCache(place(tmp_path))
    held(cache, train).close()
    before = wanted(train).key
    if change == "length":
        with open(train / "deep" / "1", "ab") as file:
            file.write(b"more")
    elif change == "time":
        os.utime(train / "deep" / "1", ns=(1, 1))
    elif change == "name":
        os.rename(train / "deep" / "1", train / "deep" / "01")
    else:
        (train / "new").touch()
    assert wanted(train).key != before
    now = held(cache, train)
    assert not now.is_hit
    assert content(f"{now.tree}/train") == content(train)
    now.close()


def test_the_key_of_another_authority_is_another(tmp_path: Path) -> None:
    nodes = nodes_to_fetch(str(source(tmp_path)))
    keys = {
        CacheKeySource("a", (("train", [node._replace(source=f"{place}{node.source}") for node in nodes]),)).key
        for place in ("hdfs://one", "hdfs://two", "s3://one")
    }
    assert len(keys) == 3


def test_a_source_that_changes_while_it_is_fetched_is_an_error_and_no_entry(tmp_path: Path) -> None:
    train = source(tmp_path)
    cache, was = InputCache(place(tmp_path)), wanted(train)
    (train / "deep" / "1").write_bytes(b"changed")
    with pytest.raises(DlappError, match="changed while it was fetched"):
        cache.hold(was, fetch_from(train))
    assert entries_by_kind(cache) == {"entries": [], "locks": [], "parts": []}


def test_a_failed_fetch_leaves_no_files_and_gives_the_reason(tmp_path: Path) -> None:
    cache = InputCache(place(tmp_path))

    def fails(into: str, progress: Progress | None) -> object:
        Path(into, "half").write_bytes(b"half")
        raise NotFound("/data/train is gone")

    with pytest.raises(NotFound, match="is gone"):
        cache.hold(wanted(source(tmp_path)), fails)
    assert entries_by_kind(cache) == {"entries": [], "locks": [], "parts": []}


# ---- several at once ----


def test_two_concurrent_tasks_fetch_once_and_the_waiter_sees_the_progress(tmp_path: Path) -> None:
    train, fetches, heard = source(tmp_path), list[str](), list[tuple[int, int]]()
    begun, seen = threading.Event(), threading.Event()

    def slow(into: str, progress: Progress | None) -> object:
        fetches.append(into)
        assert progress is not None
        progress(700, 3000)
        begun.set()
        assert seen.wait(PATIENCE_S)
        return fetch_from(train)(into, None)

    def tell(done: int, total: int) -> None:
        heard.append((done, total))
        seen.set()

    notes: list[str] = []
    found: list[CacheHold | None] = []
    first = threading.Thread(target=lambda: found.append(InputCache(place(tmp_path)).hold(wanted(train), slow)))
    first.start()
    assert begun.wait(PATIENCE_S)
    second = InputCache(place(tmp_path), notes.append).hold(wanted(train), fetch_from(train, fetches), progress=tell)
    first.join()
    assert len(fetches) == 1
    assert heard[0] == (700, 3000)
    assert "waiting" in notes[0]
    assert second is not None
    assert second.is_hit
    assert content(f"{second.tree}/train") == content(train)


def test_the_fetch_of_a_dead_process_is_taken_over(tmp_path: Path) -> None:
    train, fetches = source(tmp_path), list[str]()
    cache = InputCache(place(tmp_path))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover

        def forever(into: str, progress: Progress | None) -> object:
            Path(into, "half").write_bytes(b"half")
            os.write(writing, b"x")
            time.sleep(3600)
            raise AssertionError

        try:
            cache.hold(wanted(train), forever)
        finally:
            os._exit(1)
    os.read(reading, 1)
    killer = threading.Timer(0.2, os.kill, (child, signal.SIGKILL))
    killer.start()
    got = held(cache, train, fetches)
    os.waitpid(child, 0)
    killer.join()
    assert len(fetches) == 1
    assert content(f"{got.tree}/train") == content(train)
    assert entries_by_kind(cache)["parts"] == []
    got.close()
    os.close(reading)
    os.close(writing)


def test_a_stalled_fetch_is_not_waited_for_forever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train = source(tmp_path)
    notes: list[str] = []
    cache = InputCache(place(tmp_path), notes.append)
    stopped = lock_files.acquire(str(tmp_path / "cache" / "locks" / wanted(train).key), shared=False)
    assert stopped is not None
    monkeypatch.setattr("dlapp.storage.cache.store.STALLED_S", 0.3)
    assert cache.hold(wanted(train), fetch_from(train)) is None
    assert "not waiting longer" in notes[-1]
    os.close(stopped)
    deciding = lock_files.acquire(str(tmp_path / "cache" / "lock"), shared=False)
    assert deciding is not None
    monkeypatch.setattr("dlapp.storage.cache.store.EVICTION_S", 0.3)
    assert cache.hold(wanted(train), fetch_from(train)) is None
    assert "making room" in notes[-1]
    os.close(deciding)


def killed_before(count: int, action: Callable[[], object]) -> bool:
    """Run ``action`` in a child that kills itself before its ``count``-th change of a file system; whether it did."""
    child = os.fork()
    if child == 0:  # pragma: no cover
        seen = 0

        def watch(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal seen
            writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_CREAT | os.O_TRUNC)
            if writes or event in ("os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.utime", "os.chmod"):
                seen += 1
                if seen == count:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(watch)
            action()
        finally:
            os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.WIFSIGNALED(status)


@pytest.mark.slow
@pytest.mark.usefixtures("no_power_cut")
def test_killed_anywhere_it_is_whole_or_not_there_and_the_next_one_has_it(tmp_path: Path) -> None:
    train, other = source(tmp_path, files=2), source(tmp_path, "other", files=1)
    count = 0
    killed = True
    while killed:
        count += 1
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        cache = InputCache(place(tmp_path, limit_bytes=wanted(train).room_bytes + 100))
        held(cache, other).close()  # has to give way

        def fetch_and_settle(cache: InputCache = cache) -> None:
            held(cache, train).close()
            cache.sync(wanted(train).key)

        killed = killed_before(count, fetch_and_settle)
        for kept in cache.entries():
            tree = Path(cache.place.directory, "entries", kept.key, "tree")
            assert content(tree / Path(kept.source).name) == content(Path(kept.source.removeprefix("file://")))
        got = held(cache, train)
        assert content(f"{got.tree}/train") == content(train)
        assert sum(entry.room_bytes for entry in cache.entries()) <= cache.place.limit_bytes
        got.close()
        cache.sweep()
        assert entries_by_kind(cache)["parts"] == []
        assert len(entries_by_kind(cache)["locks"]) == 1
    assert count > 20


@pytest.mark.slow
@pytest.mark.usefixtures("no_power_cut")
def test_many_processes_that_fetch_use_and_evict_at_once_never_see_half_of_anything(tmp_path: Path) -> None:
    sources = [source(tmp_path, f"s{number}", files=2, size=4000 * number + 1) for number in range(6)]
    some = place(tmp_path, limit_bytes=3 * wanted(sources[3]).room_bytes)
    rounds = 400 if FULL else 60
    InputCache(some)
    children = []
    for seed in seeds("processes", max(4, COUNT)):
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                dice = random.Random(seed)
                cache = InputCache(some)
                for _ in range(rounds):
                    path = dice.choice(sources)
                    got = cache.hold(wanted(path), fetch_from(path))
                    if got is not None:
                        assert content(f"{got.tree}/{path.name}") == content(path)
                        if dice.random() < 0.2:
                            cache.sync(got.key)
                        assert content(f"{got.tree}/{path.name}") == content(path)
                        got.close()
                code = 0
            except BaseException:
                import traceback

                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
    cache = InputCache(some)
    assert entries_by_kind(cache)["parts"] == []
    assert entries_by_kind(cache)["locks"] == entries_by_kind(cache)["entries"]
    assert sum(entry.room_bytes for entry in cache.entries()) <= some.limit_bytes


# ---- what is kept ----


class Clock:
    """A clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 1_700_000_000

    def __call__(self) -> int:
        return self.now_s * 1_000_000_000


@pytest.mark.slow
@settings(max_examples=25)
@given(data=st.data())
def test_the_least_recently_used_unpinned_entries_are_evicted(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    tmp_path = tmp_path_factory.mktemp("lru")
    sources = [source(tmp_path, f"s{number}", files=1, size=10 * number) for number in range(5)]
    rooms = {wanted(item).key: wanted(item).room_bytes for item in sources}
    limit = data.draw(st.integers(1, 4)) * max(rooms.values())
    clock = Clock()
    cache = InputCache(place(tmp_path, limit), clock_ns=clock)
    # The model: keys, those used longest ago first.
    kept: list[str] = []
    pinned: set[str] = set()
    holds: list[CacheHold] = []
    for _ in range(data.draw(st.integers(1, 12))):
        clock.now_s += 1
        match data.draw(st.sampled_from(["hold", "hold", "hold", "close", "pin", "remove"])):
            case "hold":
                path = data.draw(st.sampled_from(sources))
                key = wanted(path).key
                was_there = key in kept
                got = cache.hold(wanted(path), fetch_from(path))
                if was_there:
                    kept.remove(key)
                else:
                    used = {hold.key for hold in holds}
                    may_go = [item for item in kept if item not in used and item not in pinned]
                    must = sum(rooms[item] for item in kept) + rooms[key] - limit
                    going: list[str] = []
                    while may_go and sum(rooms[item] for item in going) < must:
                        going.append(may_go.pop(0))
                    if sum(rooms[item] for item in going) < must:
                        assert got is None
                        continue
                    kept = [item for item in kept if item not in going]
                    pinned -= set(going)
                assert got is not None
                assert got.is_hit == was_there
                kept.append(key)
                holds.append(got)
            case "close" if holds:
                one = holds.pop(data.draw(st.integers(0, len(holds) - 1)))
                one.close()
                kept.remove(one.key)
                kept.append(one.key)
            case "pin" if kept:
                key = data.draw(st.sampled_from(kept))
                cache.pin(key, key not in pinned)
                pinned ^= {key}
            case "remove" if kept:
                key = data.draw(st.sampled_from(kept))
                in_use = any(hold.key == key for hold in holds)
                assert cache.remove(key) == (not in_use)
                if not in_use:
                    kept.remove(key)
                    pinned.discard(key)
        found = cache.entries()
        assert [item.key for item in found] == kept
        assert {item.key for item in found if item.pinned} == pinned
        assert {item.key for item in found if item.use} == {hold.key for hold in holds}
        assert sum(item.room_bytes for item in found) <= limit
    for one in holds:
        one.close()
    shutil.rmtree(tmp_path)


def test_a_new_entry_evicts_expired_ones(tmp_path: Path) -> None:
    clock = Clock()
    cache = InputCache(place(tmp_path, age_s=100), clock_ns=clock)
    old, new = source(tmp_path, "old"), source(tmp_path, "new")
    held(cache, old).close()
    clock.now_s += 101
    held(cache, new).close()
    assert [entry.source for entry in cache.entries()] == [f"file://{new}"]


def test_input_larger_than_the_cache_bypasses_it_and_evicts_none(tmp_path: Path) -> None:
    small, large = source(tmp_path, "small", files=1), source(tmp_path, "large", size=100_000)
    notes: list[str] = []
    cache = InputCache(place(tmp_path, limit_bytes=100_000), notes.append)
    held(cache, small).close()
    assert cache.hold(wanted(large), fetch_from(large)) is None
    assert "exceed the limit of the cache" in notes[-1]
    assert [entry.source for entry in cache.entries()] == [f"file://{small}"]
    assert entries_by_kind(cache)["parts"] == []


def test_after_a_reboot_only_synced_entries_count(tmp_path: Path) -> None:
    settled, not_settled = source(tmp_path, "settled"), source(tmp_path, "not")
    before = InputCache(place(tmp_path), boot_id="one")
    for item in (settled, not_settled):
        held(before, item).close()
    before.sync(wanted(settled).key)
    after = InputCache(place(tmp_path), boot_id="two")
    assert [entry.source for entry in after.entries()] == [f"file://{settled}"]
    assert held(after, settled).is_hit
    assert not held(after, not_settled).is_hit


def test_a_damaged_entry_is_fetched_again_but_not_while_in_use(tmp_path: Path) -> None:
    train = source(tmp_path)
    cache = InputCache(place(tmp_path))
    first = held(cache, train)
    Path(first.tree, "train", "deep", "1").write_bytes(b"x")
    assert cache.hold(wanted(train), fetch_from(train)) is None
    first.close()
    again = held(cache, train)
    assert content(f"{again.tree}/train") == content(train)
    again.close()


@pytest.mark.parametrize("harm", ["open", "link"])
def test_a_directory_that_others_may_write_is_no_place_for_a_cache(tmp_path: Path, harm: str) -> None:
    if harm == "open":
        (tmp_path / "cache").mkdir()
        (tmp_path / "cache").chmod(0o777)
    else:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Denied, match="cannot be used as a cache"):
        InputCache(place(tmp_path))


def test_entries_are_found_by_their_source_and_by_the_beginning_of_their_key(tmp_path: Path) -> None:
    train, other = source(tmp_path), source(tmp_path, "other")
    cache = InputCache(place(tmp_path))
    key = held(cache, train).key
    held(cache, other).close()
    assert cache.find(f"file://{train}")[0].key == key
    assert cache.find(key[:12])[0].source == f"file://{train}"
    with pytest.raises(NotFound, match="dlapp-cache list"):
        cache.find("zzz")
    numbers = iter(range(100))
    while len({entry.key[0] for entry in cache.entries()}) == len(cache.entries()):
        held(cache, source(tmp_path, f"more{next(numbers)}")).close()
    twice = [entry.key[0] for entry in cache.entries()]
    with pytest.raises(UsageError, match="2 entries begin with"):
        cache.find(next(item for item in twice if twice.count(item) == 2))


# ---- a full disk ----


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    words = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "dlapp-test", str(disk)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("root may mount a small file system; this user may not")
    yield disk
    subprocess.run(["umount", "-l", str(disk)], check=True)


def test_a_full_disk_evicts_entries_or_bypasses_the_cache(tmp_path: Path, small_disk: Path) -> None:
    one, two = source(tmp_path, "one", files=1, size=1_200_000), source(tmp_path, "two", files=1, size=1_300_000)
    cache = InputCache(CacheLocation(str(small_disk / "cache"), 1 << 30, DAY_S))
    first = held(cache, one)
    assert cache.hold(wanted(two), fetch_from(two)) is None  # what is there is in use
    first.close()
    second = held(cache, two)
    assert [kept.source for kept in cache.entries()] == [f"file://{two}"]
    second.close()
    cache.evict_for(str(small_disk), 1_000_000)
    assert cache.entries() == []


def test_a_disk_full_during_a_fetch_is_reported_after_one_eviction(tmp_path: Path, small_disk: Path) -> None:
    old, new = source(tmp_path, "old", files=1, size=600_000), source(tmp_path, "new", files=1, size=1_000_000)
    notes: list[str] = []
    cache = InputCache(CacheLocation(str(small_disk / "cache"), 1 << 30, DAY_S), notes.append)
    held(cache, old).close()

    def others_write(into: str, progress: Progress | None) -> object:
        (small_disk / "others").write_bytes(bytes(700_000))
        return fetch_from(new)(into, progress)

    got = cache.hold(wanted(new), others_write)
    assert got is not None
    assert [kept.source for kept in cache.entries()] == [f"file://{new}"]
    assert any("cannot be cached here" in line for line in notes)
    got.close()


def test_a_disk_that_stays_full_leaves_no_partial_entry_and_bypasses_the_cache(
    tmp_path: Path, small_disk: Path
) -> None:
    new = source(tmp_path, "new", files=1, size=1_000_000)
    cache = InputCache(CacheLocation(str(small_disk / "cache"), 1 << 30, DAY_S))

    def never_fits(into: str, progress: Progress | None) -> object:
        Path(into, "half").write_bytes(bytes(500_000))
        raise DiskFull("no space left on device")

    assert cache.hold(wanted(new), never_fits) is None
    assert entries_by_kind(cache) == {"entries": [], "locks": [], "parts": []}


def test_a_disk_without_space_for_a_lock_bypasses_the_cache(tmp_path: Path, small_disk: Path) -> None:
    train = source(tmp_path)
    cache = InputCache(CacheLocation(str(small_disk / "cache"), 1 << 30, DAY_S))
    with open(small_disk / "filler", "wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    assert cache.hold(wanted(train), fetch_from(train)) is None


def test_the_share_of_the_disk_that_is_to_stay_free_stays_free(tmp_path: Path, small_disk: Path) -> None:
    train = source(tmp_path, files=1, size=1_000_000)
    for share, fits in ((0.2, True), (0.6, False)):
        cache = InputCache(CacheLocation(str(small_disk / f"cache{share}"), 1 << 30, DAY_S, keep_free=share))
        got = cache.hold(wanted(train), fetch_from(train))
        assert (got is not None) == fits
        if got is not None:
            got.close()
            cache.remove(got.key)


# ---- locks ----


def test_a_lock_file_that_is_removed_and_made_again_is_held_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / "lock")
    first = lock_files.acquire(path, shared=False)
    assert first is not None
    assert lock_files.acquire(path, shared=True) is None
    assert lock_files.kind_held(path) == "exclusive"
    lock_files.remove_held(first, path)
    assert lock_files.kind_held(path) == ""
    second, third = lock_files.acquire(path, shared=True), lock_files.acquire(path, shared=True)
    assert second is not None
    assert third is not None
    assert lock_files.kind_held(path) == "shared"
    assert not lock_files.make_exclusive(second)
    os.close(third)
    assert lock_files.make_exclusive(second)
    os.close(second)


def test_an_entry_counts_with_the_overhead_of_its_files(tmp_path: Path) -> None:
    train = source(tmp_path, files=3, size=1000)
    assert wanted(train).size_bytes == 3000
    assert wanted(train).files == 3
    assert wanted(train).room_bytes == 3000 + 6 * ENTRY_OVERHEAD
