"""Open files of processes, from /proc: files open for writing, and sockets."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Iterator

from dlapp.system.processes.proc import read_proc

_SOCKET = re.compile(r"socket:\[([0-9]+)\]")
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_SHARED_AND_WRITABLE = re.compile(rb"^\S+ .w.s [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) ([0-9]+)", re.MULTILINE)


def open_for_writing(files: Collection[tuple[int, int]]) -> dict[tuple[int, int], bool]:
    """Return which of some files a process has open for writing, or mapped writable and shared, each with whether all
    that have it open only append to it.

    Processes that the caller may not inspect are skipped.

    Args:
        files: device and inode number of each.

    Source: proc(5), /proc/pid/fd, /proc/pid/fdinfo, /proc/pid/maps.
    """
    found: dict[tuple[int, int], bool] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            for file, appends in _written_by(int(name), files):
                found[file] = appends and found.get(file, True)
    return found


def are_inspectable(pids: Collection[int]) -> bool:
    """Return whether the open files of some processes can be seen; True for one that has ended, False for none."""
    for pid in pids:
        try:
            os.listdir(f"/proc/{pid}/fd")
        except PermissionError:
            return False
        except OSError:
            continue
    return bool(pids)


def socket_inodes(pid: int) -> set[int]:
    """Return the inode numbers of a process's sockets; empty if it has ended.

    Raises:
        PermissionError: the caller may not inspect it.
    """
    found: set[int] = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                if match := _SOCKET.fullmatch(os.readlink(f"/proc/{pid}/fd/{name}")):
                    found.add(int(match[1]))
    except (FileNotFoundError, ProcessLookupError):
        return set()
    return found


def _written_by(pid: int, files: Collection[tuple[int, int]]) -> Iterator[tuple[tuple[int, int], bool]]:
    """Yield the files that a process has open for writing, each with whether it appends."""
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for name in descriptors:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if (file := (found.st_dev, found.st_ino)) in files:
            match = _FLAGS.search(read_proc(pid, f"fdinfo/{name}"))
            flags = int(match[1], 8) if match else os.O_RDONLY
            if flags & os.O_ACCMODE != os.O_RDONLY:
                yield file, bool(flags & os.O_APPEND)
    for major, minor, inode in _SHARED_AND_WRITABLE.findall(read_proc(pid, "maps")):
        if (file := (os.makedev(int(major, 16), int(minor, 16)), int(inode))) in files:
            yield file, False
