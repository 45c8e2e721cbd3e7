"""Open files of processes, from /proc: files open for writing, and sockets."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection

from dlapp.system.processes.proc import read_proc

_SOCKET = re.compile(r"socket:\[([0-9]+)\]")
_FLAGS = re.compile(rb"^flags:\s*([0-7]+)$", re.MULTILINE)
_SHARED_AND_WRITABLE = re.compile(rb"^\S+ .w.s [0-9a-f]+ ([0-9a-f]+):([0-9a-f]+) ([0-9]+)", re.MULTILINE)


def any_open_for_writing(files: Collection[tuple[int, int]]) -> bool:
    """Return whether a process has one of some files open for writing, or mapped writable and shared.

    Processes that the caller may not inspect are skipped.

    Args:
        files: device and inode number of each.

    Source: proc(5), /proc/pid/fd, /proc/pid/fdinfo, /proc/pid/maps.
    """
    return any(_writes(int(name), files) for name in os.listdir("/proc") if name.isdigit())


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


def _writes(pid: int, files: Collection[tuple[int, int]]) -> bool:
    try:
        descriptors = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return False
    for name in descriptors:
        try:
            found = os.stat(f"/proc/{pid}/fd/{name}")
        except OSError:
            continue
        if (found.st_dev, found.st_ino) in files:
            flags = _FLAGS.search(read_proc(pid, f"fdinfo/{name}"))
            if flags and int(flags[1], 8) & os.O_ACCMODE != os.O_RDONLY:
                return True
    return any(
        (os.makedev(int(major, 16), int(minor, 16)), int(inode)) in files
        for major, minor, inode in _SHARED_AND_WRITABLE.findall(read_proc(pid, "maps"))
    )
