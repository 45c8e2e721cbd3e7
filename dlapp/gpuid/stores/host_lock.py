"""Serialization of one machine's writers of its record in a cluster's ledger.

A record is changed by compare-and-set, and of several simultaneous writers only one succeeds; each failed write costs
the ensemble as much. Most writers are tasks of one host. So a writer of the host locks a file meanwhile, which contains
the last written version: a writer with an older one need not try.

This is only an optimization: compare-and-set guarantees that no write is lost and no GPU is given twice. A writer that
sees no progress for `STILL_S` continues without the lock, as its holder may be stopped, or wait for the ensemble; so
does one that cannot use the file (another user's, or in a directory that is not writable).

`waiting_lock` is a second such lock, for a question that all tasks of a machine ask and that is slow.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator

from dlapp.gpuid.stores.device_files import Directory
from dlapp.system import locks
from dlapp.system.clock import backoff_s
from dlapp.system.files import closing_fd
from dlapp.system.shared_directory import open_shared_directory

NAME = "turn"
STILL_S, MAX_WAIT_S = 0.1, 1.0
"""How long a writer waits without progress of the others, and its total wait, before it continues without the lock."""
_POLL_S = (0.005, 0.03)
"""Poll intervals, first and later. Not shorter: the waiting processes would slow down the holder."""
_TURN_POLL_S = (0.05, 0.5)
"""The same for `waiting_lock`, whose holders keep it for seconds."""
_MAX_DIGITS = 32


class HostWriteLock:
    """Lock of one machine, as used by one process."""

    def __init__(self, directory: str, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._directory, self._clock, self._sleep = directory, clock, sleep
        self._fd: int | None = None

    @contextlib.contextmanager
    def acquire(self) -> Iterator[HostWriteLockHold]:
        """Hold the lock during a block, or run it without the lock."""
        if self._fd is None:
            self._fd = _open(self._directory, NAME)
        if (fd := self._fd) is None or not self._wait(fd):
            yield HostWriteLockHold()
            return
        try:
            yield HostWriteLockHold(fd)
        finally:
            # Unlock instead of closing: a process forked meanwhile has it open, too.
            with contextlib.suppress(OSError):
                locks.unlock(fd)

    def close(self) -> None:
        """Use the lock no more."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _wait(self, fd: int) -> bool:
        said = _read_version(fd)
        now_s = self._clock()
        until_s, end_s = now_s + STILL_S, now_s + MAX_WAIT_S
        for pause_s in backoff_s(*_POLL_S):
            try:
                if locks.try_lock(fd):
                    return True
            except OSError:
                return False
            now_s = self._clock()
            if (new := _read_version(fd)) != said:
                said, until_s = new, now_s + STILL_S
            if now_s >= min(until_s, end_s):
                return False
            self._sleep(pause_s)
        raise AssertionError


@contextlib.contextmanager
def waiting_lock(
    directory: str, name: str, *, timeout_s: float, sleep: Callable[[float], None] = time.sleep
) -> Iterator[bool]:
    """Hold another lock of this machine during the block, for which all its processes wait.

    It is a courtesy like the others: the block also runs, with False, if the lock is not free in time, because any user
    can hold it, or if its file cannot be used.

    Args:
        directory: shared by all users; created if missing.
        name: of its file.
        timeout_s: how long to wait [s].
        sleep: waits between tries.
    """
    fd = _open(directory, name)
    if fd is None:
        yield False
        return
    with closing_fd(fd):
        is_held = _take(fd, timeout_s, sleep)
        try:
            yield is_held
        finally:
            if is_held:
                with contextlib.suppress(OSError):
                    locks.unlock(fd)


def _open(directory: str, name: str) -> int | None:
    try:
        opened = open_shared_directory(directory, make=True)
    except OSError:
        return None
    with closing_fd(opened):
        return Directory(opened, directory, {}).open_device(name)


def _take(fd: int, timeout_s: float, sleep: Callable[[float], None]) -> bool:
    deadline = time.monotonic() + timeout_s
    for pause_s in backoff_s(*_TURN_POLL_S):
        try:
            if locks.try_lock(fd):
                return True
        except OSError:
            return False
        if time.monotonic() >= deadline:
            return False
        sleep(pause_s)
    raise AssertionError


class HostWriteLockHold:
    """One hold of the lock, or none."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    def is_stale(self, version: int) -> bool:
        """Return True if a process of this machine has written a later version; False also if not known."""
        if self._fd is None:
            return False
        said = _read_version(self._fd)
        return said.isdigit() and int(said) > version

    def record_version(self, version: int) -> None:
        """Record the newest version."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, str(version).encode().ljust(_MAX_DIGITS), 0)


def _read_version(fd: int) -> bytes:
    try:
        return os.pread(fd, _MAX_DIGITS, 0).strip()
    except OSError:
        return b""
