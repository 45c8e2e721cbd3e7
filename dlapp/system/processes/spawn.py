"""Starting detached processes: own session, empty standard input, output to a log, chosen descriptors.

posix_spawn is one call, so no second thread can leak a descriptor into the child: the passed descriptors are duplicated
to fixed numbers in the child itself, and all others are close-on-exec.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import sys
from collections.abc import Sequence

from dlapp.system import files

FIRST_KEPT = 3


_OPTIONS = ("-I", "-S")
"""Options by which no directory and no PYTHONPATH of a user changes what dlapp's processes run. They start without
site-packages, which are added when needed (`dlapp.system.processes.late_site`)."""
PROGRAM = (sys.executable, *_OPTIONS, os.path.abspath(f"{__file__}/../../../..") + "/dlapp/__main__.py")
"""Command line by which dlapp's own processes are started; in a bundle this file may be ``spawn.pyc``."""
_KEPT_VARIABLES = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


def spawn(argv: Sequence[str], *, keep: Sequence[int] = (), log: str) -> int:
    """Start a process that outlives us and our terminal; return its pid.

    Args:
        keep: descriptors to inherit; in the child they have the numbers 3, 4, ... in this order.
        log: file to which its output and errors are appended.

    Raises:
        OSError: it could not be started, or the log is not a regular file.
    """
    # High duplicates first: a target number must not be one that is still to be copied.
    high: list[int] = []
    try:
        opened = _open_log(log)
        try:
            for fd in (*keep, opened):
                high.append(fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, FIRST_KEPT + len(keep)))
        finally:
            os.close(opened)
        actions: list[tuple[object, ...]] = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, high[-1], 1),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        actions += [(os.POSIX_SPAWN_DUP2, fd, FIRST_KEPT + place) for place, fd in enumerate(high[:-1])]
        return os.posix_spawn(
            argv[0],
            list(argv),
            environment(),
            file_actions=actions,
            setsid=True,
            setsigmask=(),
            # The user's program must not inherit ignored signals, of a shell's nohup or Python's SIGPIPE, through us.
            setsigdef=(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ),
        )
    finally:
        for fd in high:
            os.close(fd)


def _open_log(path: str) -> int:
    """Open a log for appending, created if missing; never block on a FIFO."""
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        fd = files.open_file(path, owners={os.geteuid()}, write=True)
    fcntl.fcntl(fd, fcntl.F_SETFL, os.O_APPEND)
    return fd


def close_all_but(kept: Sequence[int]) -> None:
    """Close accidentally inherited descriptors: otherwise we would hold a lock or a pipe of the caller's shell for
    hours.

    For the first of our processes; those that it starts inherit only chosen descriptors.
    """
    for name in os.listdir("/proc/self/fd"):
        if (fd := int(name)) > 2 and fd not in kept:
            with contextlib.suppress(OSError):  # the descriptor of the listing itself
                os.close(fd)


def environment() -> dict[str, str]:
    """Return the environment for our own processes: without variables that configure Python, and without secrets of a
    user's shell.
    """
    return {name: value for name in _KEPT_VARIABLES if (value := os.environ.get(name)) is not None}
