from __future__ import annotations

import mmap
import os
from pathlib import Path

from dlapp.system.processes.open_files import any_open_for_writing


def test_who_writes_a_file_is_seen_and_who_reads_it_is_not(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1" * 4096)
    found = path.stat()
    files = {(found.st_dev, found.st_ino)}
    assert not any_open_for_writing(files)
    with open(path, "rb"):
        assert not any_open_for_writing(files)
    with open(path, "ab"):
        assert any_open_for_writing(files)
        assert not any_open_for_writing({(found.st_dev, found.st_ino + 1)})
    assert not any_open_for_writing(files)


def test_a_shared_mapping_counts_after_its_file_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"1" * 4096)
    found = path.stat()
    fd = os.open(path, os.O_RDWR)
    with mmap.mmap(fd, 4096):
        os.close(fd)
        assert any_open_for_writing({(found.st_dev, found.st_ino)})
