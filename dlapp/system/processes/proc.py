"""Processes as /proc shows them. Nothing is told of a process that is gone, or that the kernel does not show.

A pid alone names nothing for long: a process is meant by its pid and its start time, or by a pidfd.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import NamedTuple


class ProcessStat(NamedTuple):
    """A process as the kernel counts it. Source: proc(5), /proc/pid/stat.

    Args:
        program: the first 15 bytes of its program's name.
        state: one letter, as b"R"; b"Z" and b"X" are dead.
        parent: pid of its parent.
        terminal: number of its controlling terminal; 0: none.
        threads: how many it has; of a zombie more than one, if only its first thread has ended.
        started: when it started [clock ticks since boot].
    """

    pid: int
    program: bytes
    state: bytes
    parent: int
    terminal: int
    threads: int
    started: int

    @property
    def is_dead(self) -> bool:
        """Return whether it has ended and only its entry is left."""
        return self.state in (b"Z", b"X")


def process_stat(pid: int) -> ProcessStat | None:
    """Return what the kernel says of a process."""
    # The second field is the program's name in brackets, and may hold brackets and blanks itself.
    head, _, rest = read_proc(pid, "stat").rpartition(b") ")
    fields = rest.split()
    if len(fields) < 20:
        return None
    numbers = (int(fields[place]) for place in (1, 4, 17, 19))
    return ProcessStat(pid, head.partition(b"(")[2], fields[0], *numbers)


def all_processes() -> Iterator[ProcessStat]:
    """Yield all processes that this one can see, dead ones too."""
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := process_stat(int(name))) is not None:
            yield found


def start_time(pid: int) -> int | None:
    """Return when a process started [clock ticks since boot]; None if it is not alive."""
    found = process_stat(pid)
    return None if found is None or found.is_dead else found.started


def real_uid(pid: int) -> int | None:
    """Return the user who started a process."""
    # The owner of /proc/pid is root's where a program changed its user; this line says who it really is.
    words = status_words(pid, "Uid")
    return int(words[0]) if words else None


def status_words(pid: int | str, name: str) -> list[bytes]:
    """Return the words of one line of /proc/pid/status; none if it is not there. Source: proc(5)."""
    after = read_proc(pid, "status").partition(b"\n%s:" % name.encode())[2]
    return after.partition(b"\n")[0].split()


def command_line(pid: int) -> list[bytes]:
    """Return the arguments of a process, as it may have changed them itself."""
    return read_proc(pid, "cmdline").split(b"\0")


def read_proc(pid: int | str, name: str) -> bytes:
    """Return what is in a file of a process's directory (``self``: our own); empty if it cannot be read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""


def descendants(of: int) -> list[int]:
    """Return the process ids of all descendants of a process, parents before their children, zombies left out."""
    children: dict[int, list[int]] = {}
    for one in all_processes():
        # A zombie's children have been given away already, so leaving it out hides nobody.
        if one.state != b"Z":
            children.setdefault(one.parent, []).append(one.pid)
    found: list[int] = []
    todo = [of]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def open_process(pid: int, started: int, uid: int) -> int | None:
    """Return a pidfd of a process of user ``uid`` with this start time; None if it is gone or another user's."""
    try:
        pidfd = os.pidfd_open(pid)
    except (OSError, ValueError, OverflowError):
        return None
    # Checked after the open: from here on the descriptor means this one, whoever gets the pid later.
    if start_time(pid) != started or real_uid(pid) != uid:
        os.close(pidfd)
        return None
    return pidfd
