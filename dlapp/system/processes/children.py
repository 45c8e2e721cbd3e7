"""End of a process's descendants, and preparation of a process that becomes another program."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
from collections.abc import Collection, Sequence

from dlapp.system.processes.proc import descendants

_MIN_KEPT_FD = 20
"""Kept descriptors lie above those that shells use for themselves (dash 10, the wrapper 3)."""


def kill_descendants(spared: Collection[int] = ()) -> None:
    """Send SIGKILL to every descendant of this process except those with the given pids; the caller repeats it until
    none is left.

    They are stopped first, repeatedly while new ones appear, so that none forks while the others are being killed.
    """
    stopped: set[int] = set()
    for _ in range(20):
        more = [pid for pid in descendants(os.getpid()) if pid not in stopped and pid not in spared]
        if not more:
            break
        for pid in more:
            kill_process(pid, signal.SIGSTOP)
        stopped.update(more)
    for pid in stopped:
        kill_process(pid, signal.SIGKILL)


def reset_signals() -> None:
    """Reset signals to their default actions, before this process becomes a user's program."""
    signal.set_wakeup_fd(-1)
    # Python ignores some signals, and the payload would inherit that.
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # reserved by the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def keep_only_descriptors(fds: Sequence[int]) -> None:
    """Let the program that this process becomes inherit standard input, output and error, these descriptors, and no
    others."""
    kept = {fcntl.fcntl(fd, fcntl.F_DUPFD, _MIN_KEPT_FD) for fd in fds}
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the one that listed them
            os.set_inheritable(int(name), int(name) in kept or int(name) <= 2)


def kill_process(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, or to all for -1; one that is gone or may not be signalled is no error."""
    # Already gone; or we may not kill it (a setuid program): then its end is waited for.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)
