"""Lifelines of commands in a container: FIFOs in a directory that is read-only in the container.

The holder of a FIFO's writing end keeps its command alive. Messages are names of signals, and ``end``.
"""

from __future__ import annotations

import contextlib
import os

END = "end"


def end_sessions(directory: str) -> None:
    """End all commands whose lifelines are in a directory, which may be missing; also those that ignore SIGTERM."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):  # no reader: it has ended
                fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.write(fd, f"{END}\n".encode())
                finally:
                    os.close(fd)
