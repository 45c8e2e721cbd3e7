"""Sparse files need the space of their blocks, wherever dlapp compares space."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.storage.checkpoints.copies import Checkpoints
from dlapp.storage.checkpoints.store import open_store
from dlapp.storage.live_copies import LiveCopies
from dlapp.storage.local import LocalFiles
from dlapp.storage.tree import nodes_to_fetch
from dlapp.storage.values import DiskFull
from tests.services.disks import small_disk
from tests.storage.fetching import fetch_sources

FILES = LocalFiles()
SIZE = 1 << 40
DATA = os.urandom(64 << 10)
SHAPES = {
    "only a hole": [],
    "data at the beginning": [0],
    "data at the end": [SIZE - len(DATA)],
    "data between holes": [1 << 30, 1 << 35, (1 << 39) + 512],
    "data at both ends": [0, SIZE - len(DATA)],
}


def store(source: Path, target: Path) -> None:
    assert FILES.store(str(source), f"file://{target}").size_bytes > SIZE


def move_stored(source: Path, target: Path) -> None:
    FILES.move_stored(f"file://{source}", f"file://{target}")


def fetch(source: Path, target: Path) -> None:
    fetch_sources([f"file://{source}/*"], str(target))


def copy_live(source: Path, target: Path) -> None:
    copies = LiveCopies(FILES, f"file://{target}", "0", lambda _: None)
    assert copies.copy(str(source), lambda: False) == 2
    (target.parent / f"{target.name}.live/0").rename(target)


@pytest.mark.root
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("copy", [store, move_stored, fetch, copy_live])
def test_a_sparse_file_is_copied_to_a_disk_with_space_for_its_data(
    tmp_path: Path, copy: Callable[[Path, Path], None], shape: str
) -> None:
    (source := tmp_path / "source").mkdir(0o700)
    (source / "plain").write_bytes(DATA)
    with open(source / "buffer.mmap", "wb") as file:
        for place in SHAPES[shape]:
            file.seek(place)
            file.write(DATA)
        file.truncate(SIZE)
    with small_disk(tmp_path, size_mib=2) as disk:
        copy(source, target := disk / "target")
        assert (target / "plain").read_bytes() == DATA
        copied = os.stat(target / "buffer.mmap")
        assert copied.st_size == SIZE
        assert copied.st_blocks * 512 < 1 << 20
        with open(target / "buffer.mmap", "rb") as file:
            for place in SHAPES[shape]:
                assert os.pread(file.fileno(), len(DATA), place) == DATA


@pytest.mark.root
@pytest.mark.parametrize("copy", [store, fetch])
def test_too_much_data_between_holes_is_reported_with_its_size(
    tmp_path: Path, copy: Callable[[Path, Path], None]
) -> None:
    (source := tmp_path / "source").mkdir(0o700)
    with open(source / "buffer.mmap", "wb") as file:
        file.truncate(SIZE)
        os.pwrite(file.fileno(), bytes(4 << 20), 1 << 30)
    with small_disk(tmp_path, size_mib=2) as disk, pytest.raises(DiskFull, match=r" has 4\.0 MiB, more than ") as full:
        copy(source, disk / "target")
    assert re.match(r"[23]\.[0-9] MiB on ", full.value.lack), full.value.lack


@pytest.mark.root
def test_a_checkpoint_with_a_file_of_holes_is_stored_and_restored_on_disks_that_take_its_data(tmp_path: Path) -> None:
    (source := tmp_path / "source").mkdir(0o700)
    with open(source / "replay.mmap", "wb") as file:
        os.pwrite(file.fileno(), DATA, 8 << 20)
        file.truncate(64 << 20)  # its digest is that of all its bytes
    (tmp_path / "stored").mkdir()
    (tmp_path / "restored").mkdir()
    with small_disk(tmp_path / "stored", size_mib=2) as stored, small_disk(tmp_path / "restored", size_mib=2) as disk:
        with open_store(f"file://{stored}/checkpoints") as opened:
            Checkpoints(opened, 3, lambda _: None).store(str(source))
            assert Checkpoints(opened, 3, lambda _: None).restore(str(disk / "again")) == 1
        copied = disk / "again" / "replay.mmap"
        assert copied.stat().st_blocks * 512 < 1 << 20
        assert copied.read_bytes() == (source / "replay.mmap").read_bytes()


def test_no_file_needs_more_space_than_its_length(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    assert [node.space_bytes for node in nodes_to_fetch(str(tmp_path))] == [0, 1]
