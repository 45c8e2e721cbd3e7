"""Small file systems of their own, which are full soon. Only root may mount them."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

KINDS = ("tmpfs", "ext4")


@contextlib.contextmanager
def small_disk(directory: Path, *, kind: str = "tmpfs", size_mib: int = 4, names: int = 0) -> Iterator[Path]:
    """Mount a disk at ``directory``/disk; an ext4 lies in a file and keeps no space for root.

    Args:
        directory: where it is mounted.
        kind: its file system.
        size_mib: its size.
        names: how many files and directories a tmpfs takes, its root included; 0: any number.
    """
    disk = directory / "disk"
    disk.mkdir()
    words = ["-t", "tmpfs", "-o", f"size={size_mib}m,nr_inodes={names},mode=700", "dlapp-test"]
    if kind == "ext4":
        image = directory / "disk.image"
        with image.open("wb") as file:
            file.truncate(size_mib << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        words = ["-o", "loop", str(image)]
    if subprocess.run(["mount", *words, disk], capture_output=True).returncode:
        pytest.skip(f"a small {kind} cannot be mounted: only root may, and an ext4 needs a loop device")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "-l", disk], check=True)


def allow_names(disk: Path) -> None:
    """Let a tmpfs take any number of names."""
    subprocess.run(["mount", "-o", "remount,nr_inodes=0", disk], check=True)


def fill(disk: Path) -> Path:
    """Leave no byte free; return the file that takes the space."""
    ballast = disk / "ballast"
    with ballast.open("wb", buffering=0) as file:
        size = 1 << 16
        while size:
            try:
                file.write(bytes(size))
            except OSError:
                size //= 2
    return ballast
