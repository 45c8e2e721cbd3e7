"""Any tree arrives as it left: packed and unpacked, stored and fetched."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from dlapp.launcher.workspace.pack import pack, scan_workspace
from dlapp.launcher.workspace.tar import MTIME
from dlapp.locations import file_location
from dlapp.storage.local import LocalFiles
from dlapp.storage.values import MatchedEntry
from dlapp.task.data.unpack import unpack
from tests.storage.fetching import fetch_entries
from tests.tiers import some

NAMES = st.one_of(
    st.sampled_from(
        ["a", "b", "data", "with space", "50%25", "#1", "a+b", "*", "[x]", "{a,b}", "\\", "new\nline", "한글"]
    ),
    st.binary(min_size=1, max_size=12).map(lambda raw: os.fsdecode(raw.replace(b"/", b"|").replace(b"\0", b"0"))),
    st.integers(90, 255).map(lambda length: "n" * length),
).filter(lambda name: name not in (".", ".."))
FILES = st.tuples(
    st.just("file"),
    st.sampled_from([0o600, 0o644, 0o755, 0o664]),
    st.one_of(st.binary(max_size=40), st.integers(500, 1030).map(lambda size: b"x" * size)),
)
LINKS = st.tuples(st.just("link"), st.lists(NAMES, min_size=1, max_size=3).map("/".join).filter(lambda t: t[0] != "/"))
TREES = st.recursive(
    st.dictionaries(NAMES, FILES | LINKS, max_size=4),
    lambda inner: st.dictionaries(
        NAMES, FILES | LINKS | st.tuples(st.just("dir"), st.sampled_from([0o700, 0o755, 0o775]), inner), max_size=4
    ),
    max_leaves=12,
)


def build(root: str, tree: dict[str, Any]) -> None:
    for name, what in tree.items():
        path = os.path.join(root, name)
        if what[0] == "file":
            Path(path).write_bytes(what[2])
            os.chmod(path, what[1])
        elif what[0] == "link":
            os.symlink(what[1], path)
        else:
            os.mkdir(path)
            build(path, what[2])
            os.chmod(path, what[1])


def described(root: str, *, times: bool) -> dict[str, tuple[object, ...]]:
    """Names to kind, permissions, content, and if asked for the modification time [ns]."""
    found: dict[str, tuple[object, ...]] = {}
    for here, directories, files in os.walk(root):
        for name in [*directories, *files]:
            path = os.path.join(here, name)
            status = os.lstat(path)
            mode = stat.S_IMODE(status.st_mode)
            time = (status.st_mtime_ns,) if times else ()
            if stat.S_ISLNK(status.st_mode):
                found[os.path.relpath(path, root)] = ("link", os.readlink(path), *time)
            elif stat.S_ISDIR(status.st_mode):
                found[os.path.relpath(path, root)] = ("dir", mode, *time)
            else:
                found[os.path.relpath(path, root)] = ("file", mode, Path(path).read_bytes(), *time)
    return found


@contextmanager
def places(tree: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The tree, and an empty directory."""
    with tempfile.TemporaryDirectory() as root:
        stored_at = os.path.join(root, "tree of 100%")
        os.mkdir(stored_at)
        build(stored_at, tree)
        other = os.path.join(root, "other")
        os.mkdir(other)
        yield stored_at, other


@settings(max_examples=some(60), deadline=None)
@given(tree=TREES)
def test_a_packed_tree_is_unpacked_as_it_was(tree: dict[str, Any]) -> None:
    with places(tree) as (stored_at, other):
        packed = pack(scan_workspace(stored_at), f"{other}/cache", limit_bytes=1 << 30)
        unpack(packed.archive, f"{other}/unpacked", digest=packed.digest)
        assert described(f"{other}/unpacked", times=False) == described(stored_at, times=False)
        files = [path for path in Path(f"{other}/unpacked").rglob("*") if not path.is_symlink()]
        assert {file.stat().st_mtime for file in files} <= {MTIME}


@settings(max_examples=some(30), deadline=None)
@given(tree=TREES)
def test_a_copy_of_a_tree_has_the_same_archive(tree: dict[str, Any]) -> None:
    with places(tree) as (stored_at, other):
        first = pack(scan_workspace(stored_at), f"{other}/one", limit_bytes=1 << 30)
        shutil.copytree(stored_at, f"{other}/copy", symlinks=True)
        for item in [stored_at, *(os.path.join(here, name) for here, _, names in os.walk(stored_at) for name in names)]:
            os.utime(item, (12345, 67890), follow_symlinks=False)
        for source in (f"{other}/copy", stored_at):
            second = pack(scan_workspace(source), f"{other}/two", limit_bytes=1 << 30)
            assert second.digest == first.digest
            assert Path(second.archive).read_bytes() == Path(first.archive).read_bytes()


@settings(max_examples=some(60), deadline=None)
@given(tree=TREES)
def test_a_stored_tree_is_fetched_as_it_was(tree: dict[str, Any]) -> None:
    for move in (False, True):
        with places(tree) as (stored_at, other):
            before = described(stored_at, times=True)
            files = LocalFiles()
            notes: list[str] = []
            location = file_location(f"{other}/far/part 1")
            stored = files.store(stored_at, location, move=move, note=notes.append)
            assert notes == []
            assert described(f"{other}/far/part 1", times=True) == before
            assert stored.files == sum(1 for item in before.values() if item[0] == "file")
            fetched = fetch_entries(files, [MatchedEntry(location, True, 0)], f"{other}/workspace/in put")
            assert fetched == stored
            assert described(f"{other}/workspace/in put/part 1", times=True) == before
