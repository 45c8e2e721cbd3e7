from __future__ import annotations

import mmap
import os
from pathlib import Path

from dlapp.system.processes.open_files import are_inspectable, open_for_writing


def test_writers_of_a_file_are_found_and_readers_are_not(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1" * 4096)
    found = path.stat()
    files = {(found.st_dev, found.st_ino)}
    assert open_for_writing(files) == {}
    with open(path, "rb"):
        assert open_for_writing(files) == {}
    with open(path, "ab"):
        assert list(open_for_writing(files).values()) == [True]
        assert open_for_writing({(found.st_dev, found.st_ino + 1)}) == {}
    assert open_for_writing(files) == {}


def test_a_file_is_only_appended_to_if_all_that_have_it_open_append(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with open(path, "ab"), open(path, "r+b"):
        found = path.stat()
        assert open_for_writing({(found.st_dev, found.st_ino)}) == {(found.st_dev, found.st_ino): False}


def test_a_shared_mapping_counts_after_its_file_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1" * 4096)
    found = path.stat()
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 4096):
        os.close(fd)
        assert open_for_writing({(found.st_dev, found.st_ino)}) == {(found.st_dev, found.st_ino): False}


def test_own_processes_are_inspectable_and_none_are_not() -> None:
    assert are_inspectable([os.getpid()])
    assert not are_inspectable([])
