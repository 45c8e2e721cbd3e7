"""Ownership of processes: which of this host's belong to the payloads of one container.

The kernel decides. A plain payload cannot leave the task: its guardian adopts its orphans. A payload in Docker is in
the cgroups of its container.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from dlapp.system.processes.proc import process_stat, read_proc, start_time

if TYPE_CHECKING:
    from dlapp.runtime.payload import PayloadPlace

_MAX_ANCESTORS = 256
"""Maximum length of the chain of parents that is followed: a program can make it as long as it likes."""


class OwnProcesses:
    """Test whether a process belongs to a container's payloads; thread-safe if one thread calls it.

    Args:
        in_docker: whether they run in Docker.
        places: returns where they run now.
    """

    def __init__(self, *, in_docker: bool, places: Callable[[], Collection[PayloadPlace]]) -> None:
        self._in_docker, self._places = in_docker, places
        self._doubtful: set[tuple[int, int | None]] = set()

    def __call__(self, pid: int) -> bool | None:
        """Return whether a process belongs to them; None: not known, or not yet."""
        return self._is_in_docker(pid) if self._in_docker else _is_descendant(pid, os.getpid())

    def _is_in_docker(self, pid: int) -> bool | None:
        inits = [one.pid for one in self._places() if one.pid and start_time(one.pid) == one.started]
        paths, key = _cgroups(pid), (pid, start_time(pid))
        if not inits or not paths or key[1] is None:
            return None
        if any(_is_below(paths, _cgroups(init)) for init in inits):
            return True
        # A container that just starts, or ends, has no known place: a process of none is asked about once more.
        if key in self._doubtful:
            return False
        self._doubtful = {one for one in self._doubtful if start_time(one[0]) == one[1]} | {key}
        return None


def _is_descendant(pid: int, ancestor: int) -> bool | None:
    for _ in range(_MAX_ANCESTORS):
        if pid == ancestor:
            return True
        if (stat := process_stat(pid)) is None:
            return None  # a parent that has just ended: its children have another one now
        if stat.parent == 0:
            return False
        pid = stat.parent
    return None


def _cgroups(pid: int) -> dict[bytes, bytes]:
    """Return the cgroups of a process: controllers -> path. Source: cgroups(7), /proc/pid/cgroup."""
    found = {}
    for line in read_proc(pid, "cgroup").splitlines():
        _, controllers, path = line.split(b":", 2)
        found[controllers] = path
    return found


def _is_below(paths: dict[bytes, bytes], init: dict[bytes, bytes]) -> bool:
    """Return whether a process is in all cgroups of a container's first process, or below them."""
    return bool(init) and all(
        b"%s/" % paths.get(name, b"").rstrip(b"/") == b"%s/" % path.rstrip(b"/")
        or paths.get(name, b"").startswith(b"%s/" % path.rstrip(b"/"))
        for name, path in init.items()
    )
