"""Processes of one machine take turns at its record in the ledger of a cluster.

A record is changed by compare-and-set, and of several who try at once one wins; the write of each other costs the
ensemble as much and does nothing. Most of them are tasks of one host. So there whoever changes the record has a file
locked meanwhile, in which the version stands that was written last: who has an older one need not try it.

That makes it quicker and nothing else: that no write is lost and no GPU given twice the compare-and-set sees to. Who
waits and sees nobody write for `STILL_S` goes without a turn, for its holder may be stopped, or wait for the ensemble;
and so does who cannot have the file (another user's, a directory that may not be written).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

from dlapp.gpuid.stores.device_files import Directory
from dlapp.system import locks
from dlapp.system.clock import backoff_s
from dlapp.system.shared_directory import open_shared_directory

NAME = "turn"
STILL_S, MOST_WAIT_S = 0.1, 1.0
"""How long who waits for a turn sees nobody write, and how long it waits at all, before it goes without."""
_LOOK_S = (0.005, 0.03)
"""Between two looks, first and later. Not less: those who wait would take the processor from who has the turn."""
_MOST_DIGITS = 32


class HostWriteLock:
    """The turns of one machine, as one process takes them.

    Args:
        directory: of the machine's ledger.
        clock, sleep: of the waits for a turn.
    """

    def __init__(self, directory: str, *, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self._directory, self._clock, self._sleep = directory, clock, sleep
        self._fd: int | None = None

    @contextlib.contextmanager
    def take(self) -> Iterator[HostWriteLockHold]:
        """Have a turn for a block, or have none of it."""
        if self._fd is None:
            self._fd = self._open()
        if (fd := self._fd) is None or not self._wait(fd):
            yield HostWriteLockHold()
            return
        try:
            yield HostWriteLockHold(fd)
        finally:
            # Not by closing: what was forked meanwhile has it open, too.
            with contextlib.suppress(OSError):
                locks.unlock(fd)

    def close(self) -> None:
        """Take no more turns."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> int | None:
        try:
            directory = open_shared_directory(self._directory, make=True)
        except OSError:
            return None
        try:
            return Directory(directory, self._directory, {}).open_device(NAME, create=True)
        finally:
            os.close(directory)

    def _wait(self, fd: int) -> bool:
        said = _said(fd)
        now_s = self._clock()
        until_s, end_s = now_s + STILL_S, now_s + MOST_WAIT_S
        for pause_s in backoff_s(*_LOOK_S):
            try:
                if locks.try_lock(fd):
                    return True
            except OSError:
                return False
            now_s = self._clock()
            if (new := _said(fd)) != said:
                said, until_s = new, now_s + STILL_S
            if now_s >= min(until_s, end_s):
                return False
            self._sleep(pause_s)
        raise AssertionError


class HostWriteLockHold:
    """One turn, or none."""

    def __init__(self, fd: int | None = None) -> None:
        self._fd = fd

    def is_stale(self, version: int) -> bool:
        """Return True if a process of this machine has written a later version; False also if that is not known."""
        if self._fd is None:
            return False
        said = _said(self._fd)
        return said.isdigit() and int(said) > version

    def wrote(self, version: int) -> None:
        """Say which version is the newest."""
        if self._fd is not None:
            with contextlib.suppress(OSError):
                os.pwrite(self._fd, str(version).encode().ljust(_MOST_DIGITS), 0)


def _said(fd: int) -> bytes:
    try:
        return os.pread(fd, _MOST_DIGITS, 0).strip()
    except OSError:
        return b""
