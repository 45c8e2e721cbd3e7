"""Processes in /proc. A process that has ended, or is hidden, has no result.

A pid may be reused: a process is identified by its pid and its start time, or by a pidfd.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from dlapp.value import NamedTuple

_PF_EXITING = 0x4
"""Source: Linux, include/linux/sched.h."""


class ProcessStat(NamedTuple):
    """A process as the kernel counts it. Source: proc(5), /proc/pid/stat.

    Args:
        program: the first 15 bytes of its program's name.
        state: one letter, as b"R"; b"Z" and b"X" are dead.
        parent: pid of its parent.
        terminal: number of its controlling terminal; 0 if none.
        threads: number of threads; a zombie with more than one has only lost its first thread.
        started: when it started [clock ticks since boot].
        flags: of the kernel.
    """

    pid: int
    program: bytes
    state: bytes
    parent: int
    terminal: int
    threads: int
    started: int
    flags: int = 0

    @property
    def is_dead(self) -> bool:
        """Return whether it is a zombie."""
        return self.state in (b"Z", b"X")

    @property
    def is_exiting(self) -> bool:
        """Return whether its first thread is in exit(2), where it has already closed its files or is about to."""
        return bool(self.flags & _PF_EXITING)


def process_stat(pid: int) -> ProcessStat | None:
    """Return the status of a process."""
    # The second field is the program's name in brackets, and may itself contain brackets and blanks.
    head, _, rest = read_proc(pid, "stat").rpartition(b") ")
    fields = rest.split()
    if len(fields) < 20:
        return None
    numbers = (int(fields[place]) for place in (1, 4, 17, 19, 6))
    return ProcessStat(pid, head.partition(b"(")[2], fields[0], *numbers)


def all_processes() -> Iterator[ProcessStat]:
    """Yield all visible processes, including zombies."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := process_stat(int(name))) is not None:
            yield found


def start_time(pid: int) -> int | None:
    """Return when a process started [clock ticks since boot]; None if it is not alive."""
    found = process_stat(pid)
    return None if found is None or found.is_dead else found.started


def real_uid(pid: int) -> int | None:
    """Return the user who started a process."""
    # The owner of /proc/pid is root if a program changed its user; this line has the real user.
    words = status_fields(pid, "Uid")
    return int(words[0]) if words else None


def status_fields(pid: int | str, name: str) -> list[bytes]:
    """Return the words of one line of /proc/pid/status; empty if it is missing. Source: proc(5)."""
    after = read_proc(pid, "status").partition(b"\n%s:" % name.encode())[2]
    return after.partition(b"\n")[0].split()


def command_line(pid: int) -> list[bytes]:
    """Return the arguments of a process, which it may have changed itself."""
    return read_proc(pid, "cmdline").split(b"\0")


def read_proc(pid: int | str, name: str) -> bytes:
    """Return the content of a file of a process (``self``: our own); empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def set_name(name: str) -> None:
    """Set the name of this process that ps, top and killall see; the kernel keeps 15 bytes of it.

    Source: proc(5), /proc/pid/comm. prctl(2) would need ctypes, which takes 1 ms to load.
    """
    with contextlib.suppress(OSError), open("/proc/self/comm", "wb", buffering=0) as file:
        file.write(name.encode())


def descendants(of: int) -> list[int]:
    """Return the pids of all descendants of a process, parents before children, without zombies."""
    return [one.pid for one in descendant_processes(of)]


def descendant_processes(of: int) -> list[ProcessStat]:
    """Return all descendants of a process, parents before children, without zombies."""
    children: dict[int, list[ProcessStat]] = {}
    for one in all_processes():
        # A zombie's children are already reparented, so omitting it hides none of them.
        if one.state != b"Z":
            children.setdefault(one.parent, []).append(one)
    found: list[ProcessStat] = []
    todo = [of]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += [one.pid for one in below]
    return found


def open_process(pid: int, started: int, uid: int) -> int | None:
    """Return a pidfd of a process of user ``uid`` with this start time; None if it has ended or is another user's."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError, OverflowError):
        return None
    # Checked after the open: from here on the descriptor refers to this process, even if the pid is reused.
    if start_time(pid) != started or real_uid(pid) != uid:
        os.close(pidfd)
        return None
    return pidfd
