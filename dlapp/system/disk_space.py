"""Space on the disk of a path."""

from __future__ import annotations

import errno
import os

from dlapp.system.text import human_size

SMALLEST_BYTES = 64 << 10
"""Free space below which a disk counts as full: SQLite's shared memory takes half of it."""
_PLENTY_BYTES = 4 << 20
"""Free space from which the quotas of the disk are not checked."""
FULL = errno.ENOSPC, errno.EDQUOT


def free_bytes(path: str) -> int:
    """Return the free bytes on the disk where ``path`` is or would be."""
    room = os.statvfs(existing_above(path))
    return room.f_bavail * room.f_frsize


def size_bytes(path: str) -> int:
    """Return the size of the disk that ``path`` is or would be on [bytes]."""
    disk = os.statvfs(existing_above(path))
    return disk.f_blocks * disk.f_frsize


def is_noexec(path: str) -> bool:
    """Return whether the mount of an existing path allows no execution of files."""
    return bool(os.statvfs(path).f_flag & os.ST_NOEXEC)


def free_space_text(path: str) -> str:
    """Return a text on the free space where ``path`` is or would be."""
    return f"{_free(path)} are free on {mount_point(path)}"


def _free(path: str) -> str:
    room = os.statvfs(existing_above(path))
    return human_size(room.f_bavail * room.f_frsize) if room.f_favail or not room.f_files else "no inodes"


def mount_point(path: str) -> str:
    """Return the mount point of the disk where ``path`` is or would be."""
    there = os.path.realpath(existing_above(path))
    while there != "/" and os.lstat(os.path.dirname(there)).st_dev == os.lstat(there).st_dev:
        there = os.path.dirname(there)
    return there


def existing_above(path: str) -> str:
    """Return ``path`` or its nearest existing parent directory."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def disk_full(path: str) -> str:
    """Return the message for a file that cannot be written because its disk is full."""
    return f"disk full: {path} cannot be written; {_free(path)} are free on {mount_point(path)}"


def full_disk(path: str, *, failed: bool = False) -> str:
    """Return `disk_full` if the disk of ``path`` is full now; otherwise an empty text.

    Args:
        failed: whether a write just failed; then quotas are checked, too, which the disk's free space does not show.
    """
    room = os.statvfs(existing_above(path))
    if not failed and room.f_bavail * room.f_frsize >= _PLENTY_BYTES and (room.f_favail or not room.f_files):
        return ""
    return "" if _takes_more(os.path.dirname(path)) else disk_full(path)


def _takes_more(directory: str) -> bool:
    """Return whether a small file can be written; the file is unnamed, so it leaves nothing behind."""
    try:
        fd = os.open(existing_above(directory), os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        return error.errno not in FULL
    try:
        os.posix_fallocate(fd, 0, SMALLEST_BYTES)
    except OSError as error:
        return error.errno not in FULL
    finally:
        os.close(fd)
    return True
