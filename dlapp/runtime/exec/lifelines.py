"""The lifelines of commands in a container: FIFOs in a directory that the container can only read.

Whoever holds the writing end of one keeps its command alive. The words in it are names of signals, and ``end``.
"""

from __future__ import annotations

import contextlib
import os

END = "end"


def end_sessions(directory: str) -> None:
    """End all commands of a container, those that ignore SIGTERM too.

    Args:
        directory: of their lifelines; one that is not there has none.
    """
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            with contextlib.suppress(OSError):  # nobody reads: it has ended
                fd = os.open(os.path.join(directory, name), os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
                try:
                    os.write(fd, f"{END}\n".encode())
                finally:
                    os.close(fd)
