"""One runner for each user: who may be it, and how it is woken.

Whoever finds work and no runner takes the runner's lock itself and hands it to the process that it starts. So of many
who come at once one starts one, and a runner that is only starting already counts.

No wake-up is lost. Work is a row, written before anybody calls here. A runner gives up its lock inside a write
transaction in which it saw no row of its user, so a row is either seen by it, or written after the lock was free.
"""

from __future__ import annotations

import contextlib
import errno
import os

from dlapp import ofd
from dlapp.cluster.local.settings import Settings
from dlapp.cluster.local.spawn import FIRST_KEPT, spawn
from dlapp.cluster.local.state import StateDir, is_locked, open_lock


def ensure_runner(state: StateDir, settings: Settings, *, wake: bool = True, stay: bool = False) -> None:
    """See to it that the caller's rows are worked off: wake the runner, or start one.

    Args:
        wake: there is news; False: a runner that is there need not look.
        stay: there will be a row in a moment; a runner that is started now waits for it a little.

    Raises:
        Unreachable, OSError: its lock or its process could not be made.
    """
    import json

    uid = os.geteuid()
    lock = open_lock(state.runner_lock(uid), 0o640)
    try:
        if not ofd.try_lock(lock):
            if wake:
                wake_runner(state, uid)
            return
        words = [*settings.program, "runner", "--state", state.path, "--lock-fd", str(FIRST_KEPT)]
        words += ["--settings", json.dumps(settings.to_json()), *(["--shared"] if state.shared else [])]
        words += ["--stay"] if stay else []
        spawn(words, keep=[lock], log=state.runner_log(uid))
    finally:
        os.close(lock)


def runner_lives(state: StateDir, uid: int) -> bool:
    """Whether a user has a runner."""
    return is_locked(state.runner_lock(uid))


def wake_runner(state: StateDir, uid: int) -> None:
    """Make a runner look at its rows. One that is not there, or not yet, will look at its start."""
    try:
        fd = os.open(state.runner_fifo(uid), os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENXIO, errno.ENOENT):
            return
        raise
    try:
        # A full FIFO wakes as well as a byte more would.
        with contextlib.suppress(BlockingIOError):
            os.write(fd, b"\0")
    finally:
        os.close(fd)


def open_fifo(state: StateDir, uid: int) -> int:
    """The FIFO of a runner, for itself: open for reading as long as it can be woken."""
    path = state.runner_fifo(uid)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
        if state.shared:
            os.chmod(path, 0o660)
    # Also open for writing, else it would report an end each time that a waker closes it.
    return os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW)
