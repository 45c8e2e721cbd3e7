"""Caches of payloads: kept between runs, one user's alone, removed by least recent use and never while in use."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.errors import Denied, DlappError
from dlapp.storage.cache import payload
from dlapp.storage.cache.entry import CacheLocation
from dlapp.storage.cache.payload import PayloadCaches
from dlapp.system import lock_files
from dlapp.system.files import remove_tree
from tests.services.users import ONLY_ROOT, place_for_everybody

DAY_S = 86_400.0


def caches(
    directory: Path, limit_bytes: int = 1 << 30, *, age_s: float = DAY_S, messages: list[str] | None = None
) -> PayloadCaches:
    return PayloadCaches(
        CacheLocation(str(directory), limit_bytes, age_s), (messages if messages is not None else []).append
    )


def fill(directory: Path, name: str, size: int, used_s: int | None = None) -> Path:
    """Use a cache once, so that it has a file."""
    one = caches(directory)
    path = Path(one.hold(name))
    (path / "model").write_bytes(b"x" * size)
    one.close()
    if used_s is not None:
        os.utime(directory / "locks" / name, (used_s, used_s))
    return path


def test_files_written_by_a_payload_are_available_next_time(tmp_path: Path) -> None:
    fill(tmp_path / "c", "models", 10)
    again = caches(tmp_path / "c")
    path = Path(again.hold("models"))
    assert (path / "model").stat().st_size == 10
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert again.hold("pip") != str(path)
    again.close()
    again.close()


def test_the_caches_used_longest_ago_make_room_and_none_that_is_in_use(tmp_path: Path) -> None:
    top, messages = tmp_path / "c", list[str]()
    size = 1 << 20
    for number, name in enumerate(("oldest", "old", "new")):
        fill(top, name, size, int(time.time()) - 1000 + number)
    user = caches(top)
    user.hold("oldest")
    os.utime(top / "locks" / "oldest", (time.time() - 1000,) * 2)
    other = caches(top, 2 * size + size // 2, messages=messages)
    other.hold("mine")
    other.close()
    assert sorted(os.listdir(top / "caches")) == ["mine", "new", "oldest"]
    assert sorted(os.listdir(top / "locks")) == ["mine", "new", "oldest"]
    assert os.listdir(top / "removed") == []
    (line,) = messages
    assert line.startswith("the cache old (1.0 MiB) is removed: all have 3.0 MiB, the limit is 2.5 MiB")
    user.close()


def test_a_cache_that_is_too_large_is_removed_when_unused(tmp_path: Path) -> None:
    top = tmp_path / "c"
    first, second = caches(top, 1000), caches(top, 1000)
    path = Path(first.hold("models"))
    second.hold("models")
    (path / "model").write_bytes(b"x" * 100_000)
    first.close()
    assert (path / "model").exists()
    second.close()
    assert not path.exists()


def test_a_cache_unused_for_too_long_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "c"
    fill(top, "models", 10, 1000)
    fill(top, "pip", 10)
    assert os.listdir(top / "caches") == ["pip"]


def test_rarely_measured_caches_are_evicted_at_most_once_per_interval(tmp_path: Path) -> None:
    top, messages = tmp_path / "c", list[str]()
    fill(top, "models", 1 << 20)

    def end(evict_every_s: float) -> bool:
        one = PayloadCaches(CacheLocation(str(top), 1000, DAY_S), messages.append, evict_every_s)
        one.hold("pip")
        one.close()
        return (top / "caches/models").exists()

    assert end(3600.0)  # it was measured when models was used
    os.utime(top / "lock", (time.time() - 3601, time.time() - 3601))
    assert not end(3600.0)
    fill(top, "models", 1 << 20)
    os.utime(top / "lock", (time.time() + 10_000, time.time() + 10_000))  # the clock was set back
    assert not end(3600.0)
    fill(top, "models", 1 << 20)
    assert not end(0.0)


def test_a_cache_that_the_payload_may_create_is_held_before_it_exists(tmp_path: Path) -> None:
    one = caches(tmp_path / "c")
    path = Path(one.hold("frameworks", create=False))
    assert not path.exists()
    path.mkdir(0o777)
    assert not caches(tmp_path / "c").remove("frameworks")
    one.close()
    again = caches(tmp_path / "c")
    assert again.hold("frameworks", create=False) == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    again.close()
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(Denied):
        caches(tmp_path / "c").hold("frameworks", create=False)


def test_a_cache_that_is_held_twice_is_one(tmp_path: Path) -> None:
    one = caches(tmp_path / "c")
    assert one.hold("models") == one.hold("models")
    assert len(one.lock_fds) == 1
    one.close()
    assert caches(tmp_path / "c").remove("models")


def test_any_process_with_the_descriptor_holds_the_lock_of_a_cache(tmp_path: Path) -> None:
    one = caches(tmp_path / "c")
    one.hold("models")
    (fd,) = one.lock_fds
    inherited = os.dup(fd)
    one.close()
    assert lock_files.acquire(str(tmp_path / "c" / "locks" / "models"), shared=False) is None
    os.close(inherited)


def test_a_cache_with_directories_of_any_depth_is_measured_and_removed(tmp_path: Path) -> None:
    top = tmp_path / "c"
    fill(top, "models", 10_000)
    fill(top, "beside", 10_000)
    with contextlib.ExitStack() as stack:
        stack.callback(remove_tree, str(top))  # pytest cannot
        depth, name = 3000, "d" * 20
        above = os.open(top / "caches" / "models", os.O_RDONLY)
        for _ in range(depth):
            os.mkdir(name, dir_fd=above)
            below = os.open(name, os.O_RDONLY, dir_fd=above)
            os.close(above)
            above = below
        with open(os.open("model", os.O_WRONLY | os.O_CREAT, dir_fd=above), "wb") as file:
            file.write(b"x" * 1_000_000)
        os.close(above)
        (top / "caches" / "models" / "closed").mkdir(mode=0o400)
        (top / "caches" / "models" / "link").symlink_to(top)
        one = caches(top)
        sizes = {cache.name: cache.size_bytes for cache in one.entries()}
        assert 1_000_000 < sizes["models"] < 1_100_000 + depth * 4096
        assert sizes["beside"] < 100_000
        assert one.remove("models")


def test_all_caches_are_listed_and_unused_ones_can_be_removed(tmp_path: Path) -> None:
    top = tmp_path / "c"
    fill(top, "models", 10_000, 1_700_000_000)
    user = caches(top)
    user.hold("pip")
    one = caches(top)
    assert [cache.name for cache in one.entries(["pip"])] == ["pip"]
    models, pip = one.entries()
    assert (models.name, models.used_ms, models.in_use, pip.name, pip.in_use) == (
        "models",
        1_700_000_000_000,
        False,
        "pip",
        True,
    )
    assert models.size_bytes >= 10_000
    assert (one.remove("models"), one.remove("pip")) == (True, False)
    assert [cache.name for cache in one.entries()] == ["pip"]
    assert os.listdir(top / "removed") == []
    user.close()


def test_a_request_during_a_removal_waits_and_gets_a_new_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = tmp_path / "c"
    path = fill(top, "models", 10)
    lock = lock_files.acquire(str(top / "locks" / "models"), shared=False)
    assert lock is not None
    monkeypatch.setattr(payload, "WAIT_S", 0.05)
    with pytest.raises(DlappError, match=r"locks/models has been locked by another process"):
        caches(top).hold("models")
    monkeypatch.setattr(payload, "WAIT_S", 60.0)
    os.rename(path, top / "removed" / "models.1")
    threading.Timer(0.1, lock_files.remove_held, (lock, str(top / "locks" / "models"))).start()
    one = caches(top)
    assert os.listdir(one.hold("models")) == []
    one.close()
    assert os.listdir(top / "removed") == [], "what a killed removal left goes"


def _link(path: Path) -> None:
    path.symlink_to("/etc")


def _file(path: Path) -> None:
    path.write_text("")


def _of_another(path: Path) -> None:
    path.mkdir()
    os.chown(path, 12345, 12345)


@pytest.mark.parametrize("kind", [_link, _file, pytest.param(_of_another, marks=ONLY_ROOT)])
def test_something_else_of_its_name_is_not_used(tmp_path: Path, kind: Callable[[Path], None]) -> None:
    fill(tmp_path / "c", "pip", 1)
    kind(tmp_path / "c" / "caches" / "models")
    with pytest.raises(Denied, match="caches/models: "):
        caches(tmp_path / "c").hold("models")


def test_a_directory_that_a_payload_opened_to_others_is_closed_again(tmp_path: Path) -> None:
    fill(tmp_path / "c", "models", 1).chmod(0o777)
    one = caches(tmp_path / "c")
    assert stat.S_IMODE(os.stat(one.hold("models")).st_mode) == 0o700
    one.close()


@pytest.mark.proves("cache-payload")
def test_a_directory_that_others_can_replace_has_no_caches(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(Denied, match="can be replaced by everybody"):
        caches(tmp_path / "c")
    tmp_path.chmod(0o1777)
    (tmp_path / "c").mkdir()
    (tmp_path / "c").chmod(0o770)
    with pytest.raises(Denied, match="others may write there"):
        caches(tmp_path / "c")


def as_user(uid: int, action: Callable[[], str]) -> str:
    """Run ``action`` in a child with another uid; return its answer, or the text of its error."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            answer = action()
        except (DlappError, OSError) as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writing, answer.encode())
        os._exit(0)
    os.close(writing)
    with open(reading, "rb") as file:
        answer = file.read().decode()
    os.waitpid(child, 0)
    return answer


@pytest.mark.proves("cache-payload")
@ONLY_ROOT
def test_two_users_have_caches_of_their_own_and_reach_no_other(tmp_path: Path) -> None:
    with place_for_everybody("caches", 0o1777) as top:

        def use(name: str) -> str:
            one = caches(top / name)
            path = Path(one.hold("models"))
            (path / "who").touch()
            one.close()
            return str(sorted(os.listdir(path)))

        def make(path: Path) -> str:
            path.mkdir()
            return "made"

        assert as_user(12345, lambda: use("12345")) == "['who']"
        assert as_user(12346, lambda: use("12346")) == "['who']"
        assert (top / "12345" / "caches" / "models" / "who").stat().st_uid == 12345
        assert "Permission denied" in as_user(12346, lambda: use("12345"))
        assert "Permission" in as_user(12346, lambda: str(os.listdir(top / "12345" / "caches")))
        # A name that another user took before is not used.
        assert as_user(12346, lambda: make(top / "12347")) == "made"
        assert "belongs to uid 12346" in as_user(12347, lambda: use("12347"))
