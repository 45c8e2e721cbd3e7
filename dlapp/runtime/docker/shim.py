"""Shim of a container: the containerd process that is the parent of the container's init.

If the shim is killed, containerd kills the container, and dockerd reports exit code 137, as it does if the payload
kills dlapp's wrapper. The order distinguishes them. A shim outlives all processes of its container, because the kernel
ends them before the shim can detect it. So a shim that ended while the payload still held its lifeline was killed.
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
    """A pidfd of the shim of one container, once opened.

    Attributes:
        died_first: whether the shim ended before the payload.
    """

    def __init__(self) -> None:
        self.died_first = False
        self._fd: int | None = None

    def open(self, pid: Any) -> None:
        """Watch the shim of a container, if this is the host pid of its init and visible here."""
        if not isinstance(pid, int) or pid <= 0:
            return
        init = process_stat(pid)
        shim = process_stat(init.parent) if init is not None else None
        if shim is not None and shim.program == _SHIM and (uid := real_uid(shim.pid)) is not None:
            self._fd = open_process(shim.pid, shim.started, uid)

    def watched_fds(self) -> list[tuple[int, int]]:
        """Return the descriptors and poll events; call `check` when one is ready."""
        return [] if self._fd is None else [(self._fd, select.POLLIN)]

    def check(self, lifeline: Lifeline) -> None:
        """Check whether the shim is gone, and only then whether the payload is."""
        if self._fd is None:
            return
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        if poll.poll(0):
            self.died_first = not lifeline.is_payload_gone
            self.close()

    def close(self) -> None:
        """Stop watching. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
