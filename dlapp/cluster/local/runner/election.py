"""Election of one runner per user, and how it is woken.

A process that finds work and no runner takes the runner's lock itself and passes it to the process that it starts. So
of many simultaneous ones only one starts a runner, and a runner that is still starting already counts.

No wake-up is lost. Work is a row, written before this module is called. A runner releases its lock inside a write
transaction in which it saw no row of its user, so a row is either seen by it, or written after the lock was free.

In a shared state directory the runner also holds a second lock, on a file that the group can read. Any reader of a file
can block a write lock on it, so that lock is not used for the election.
"""

from __future__ import annotations

import contextlib
import os
import stat

from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import StateDir, acquire_lock, is_locked, open_lock
from dlapp.system import files, locks
from dlapp.system.processes.spawn import FIRST_KEPT, spawn


def ensure_runner(state: StateDir, settings: RunnerSettings, *, wake: bool = True, stay: bool = False) -> None:
    """Wake the caller's runner, or start one.

    Args:
        state: the state directory.
        settings: settings of a started runner.
        wake: there is news; False: an existing runner need not check.
        stay: a row follows soon; a runner that is started now waits for it briefly.

    Raises:
        Unreachable, OSError: its lock or its process could not be created.
    """
    import json

    uid = os.geteuid()
    lock = open_lock(state.runner_lock(uid))
    sign = None
    try:
        if not locks.try_lock(lock):
            if wake:
                wake_runner(state, uid)
            return
        arguments = [*settings.program, "runner", "--state", state.path, "--lock-fd", str(FIRST_KEPT)]
        arguments += ["--settings", json.dumps(settings.to_json()), *(["--shared"] if state.shared else [])]
        arguments += ["--stay"] if stay else []
        keep = [lock]
        if state.shared and (sign := acquire_lock(state.runner_sign(uid), 0o640)) is not None:
            arguments += ["--sign-fd", str(FIRST_KEPT + 1)]
            keep.append(sign)
        spawn(arguments, keep=keep, log=state.runner_log(uid))
    finally:
        os.close(lock)
        if sign is not None:
            os.close(sign)


def is_runner_alive(state: StateDir, uid: int) -> bool:
    """Return whether a user has a runner."""
    return is_locked(state.runner_lock(uid))


def wake_runner(state: StateDir, uid: int) -> None:
    """Wake a runner. One that does not exist, or is starting, checks its rows at its start."""
    try:
        fd = _open_fifo(state.runner_fifo(uid), uid)
    except FileNotFoundError:
        return
    try:
        # A full FIFO wakes the runner as well as another byte.
        with contextlib.suppress(BlockingIOError):
            os.write(fd, b"\0")
    finally:
        os.close(fd)


def open_fifo(state: StateDir, uid: int) -> int:
    """Return the runner's own end of its FIFO: open for reading while it can be woken."""
    path = state.runner_fifo(uid)
    with contextlib.suppress(FileExistsError):
        os.mkfifo(path, 0o600)
    return _open_fifo(path, uid)


def _open_fifo(path: str, uid: int) -> int:
    # Also open for writing; otherwise it would report an end whenever a waker closes it.
    return files.open_file(path, owners={uid}, write=True, kind=stat.S_IFIFO)
