"""Locks of open file descriptions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from dlapp.system import lock_files, locks


@pytest.mark.parametrize(("shared", "expected"), [(False, True), (True, False)])
def test_only_a_foreign_write_lock_counts(tmp_path: Path, shared: bool, expected: bool) -> None:
    path = tmp_path / "lock"
    path.touch()
    holder, reader = os.open(path, os.O_RDWR), os.open(path, os.O_RDONLY)
    assert not locks.is_write_locked(reader)
    assert locks.try_lock(holder, 4, 1, shared=shared)
    assert locks.is_write_locked(reader) is expected
    assert locks.write_lock_start(reader) == (4 if expected else None)
    assert not locks.is_write_locked(reader, 5, 1)
    assert not locks.is_write_locked(holder)
    for fd in (holder, reader):
        os.close(fd)


@pytest.mark.parametrize("now", ["a file on the way", "another file", "nothing"])
def test_a_renamed_lock_file_is_released_and_no_other_removed(tmp_path: Path, now: str) -> None:
    (tmp_path / "locks").mkdir()
    path = tmp_path / "locks/key"
    lock = lock_files.acquire(str(path), shared=False)
    assert lock is not None
    (tmp_path / "locks").rename(tmp_path / "away")
    if now == "a file on the way":
        (tmp_path / "locks").write_text("other")
    elif now == "another file":
        (tmp_path / "locks").mkdir()
        path.write_text("other")
    lock_files.remove_held(lock, str(path))
    assert now != "another file" or path.read_text() == "other"
    assert lock_files.kind_held(str(tmp_path / "away/key")) == ""
