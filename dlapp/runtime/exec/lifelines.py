"""Lifelines of commands in a container: FIFOs in a directory that is read-only in the container.

The holder of a FIFO's writing end keeps its command alive. Messages are names of signals, and ``end``.
"""

from __future__ import annotations

import contextlib
import os

from dlapp.system.files import closing_fd

END = "end"


def end_sessions(directory: str) -> None:
    """End all commands whose lifelines are in a directory, which may be missing; also those that ignore SIGTERM."""
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):  # no reader: it has ended
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
                with closing_fd(os.open(os.path.join(directory, name), flags)) as fd:
                    os.write(fd, f"{END}\n".encode())
