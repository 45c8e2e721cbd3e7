"""The shim of a container: the process of containerd that is the parent of the container's init.

If it is killed, containerd kills the container, and dockerd tells of exit code 137, as it does if the payload kills
dlapp's wrapper. The order tells them apart. A shim outlives all processes of its container, for the kernel ends them
before the shim can learn of it. So a shim that ended while the payload still held its lifeline was killed.
"""

from __future__ import annotations

import os
import select
from typing import Any

from dlapp.runtime.lifeline import Lifeline
from dlapp.system.processes.proc import open_process, process_stat, real_uid

_SHIM = b"containerd-shim"
"""The first 15 bytes of its program's name. Source: containerd, containerd-shim-runc-v2."""


class ShimWatch:
    """A pidfd of the shim of one container, once it is open.

    Attributes:
        died_first: the shim ended before the payload did.
    """

    def __init__(self) -> None:
        self.died_first = False
        self._fd: int | None = None

    def open(self, pid: Any) -> None:
        """Watch the shim of a container, if this is the host's process number of its init and it can be seen here."""
        if not isinstance(pid, int) or pid <= 0:
            return
        init = process_stat(pid)
        shim = process_stat(init.parent) if init is not None else None
        if shim is not None and shim.program == _SHIM and (uid := real_uid(shim.pid)) is not None:
            self._fd = open_process(shim.pid, shim.started, uid)

    def watched_fds(self) -> list[tuple[int, int]]:
        """Descriptors and poll events that mean: call `check`."""
        return [] if self._fd is None else [(self._fd, select.POLLIN)]

    def check(self, lifeline: Lifeline) -> None:
        """Look whether the shim is gone, and only then whether the payload is."""
        if self._fd is None:
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(0):
            self.died_first = not lifeline.payload_gone
            self.close()

    def close(self) -> None:
        """Watch no longer. May be repeated."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
