"""Set fs.protected_* of this machine for one test, beside other test runs, and restore them.

The values are machine-wide, so tests that want the same share a lock, and only who has it alone changes them. The
values from before the first change are kept in the lock file until they are restored. A child process restores them
when its pipe closes, so that this also happens where the test's process is killed.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import time
from collections.abc import Iterator

import pytest

NAMES = ("symlinks", "hardlinks", "fifos", "regular")
UNPROTECTED = (0, 0, 0, 0)
DEBIAN = (1, 1, 1, 2)
BOTH = pytest.mark.parametrize(
    "protected_sysctls", [UNPROTECTED, DEBIAN], ids=["unprotected", "as on Debian"], indirect=True
)
"""Mark of a test that runs with both in each tier."""

_LOCK = "/run/lock/dlapp-tests.fs-protected"
_DIRECTORY = "/proc/sys/fs"

Values = tuple[int, ...]


def current() -> Values:
    """Return the values that hold now, in the order of `NAMES`."""
    return tuple(int(_read(name)) for name in NAMES)


@contextlib.contextmanager
def protected(values: Values, *, or_those_of_the_machine: bool = False) -> Iterator[None]:
    """Run a block with these values; where they cannot be had skip the test, or run it with those that there are."""
    if not _may_write():
        if or_those_of_the_machine or current() == values:
            yield
            return
        pytest.skip(f"root may not set fs.protected_* to {values} here: /proc/sys is read-only")
    lock = os.open(_LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        _acquire(lock, values)
        guardian, pipe = _start_guardian()
        try:
            yield
        finally:
            fcntl.flock(lock, fcntl.LOCK_UN)
            os.write(pipe, b".")
            os.close(pipe)
            os.waitpid(guardian, 0)
    finally:
        os.close(lock)


def _acquire(lock: int, values: Values) -> None:
    """Return with a shared lock while the values hold."""
    while True:
        fcntl.flock(lock, fcntl.LOCK_SH)
        if current() == values and os.pread(lock, 100, 0):
            return
        # Not ours: wait until nobody uses the others. To change a lock's kind is not atomic, so look again after it.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not os.pread(lock, 100, 0):
            os.pwrite(lock, " ".join(map(str, current())).encode(), 0)
        _write(values)


def _start_guardian() -> tuple[int, int]:
    """Start the process that restores the values when this one closes the pipe or ends; return its id and the pipe."""
    read, write = os.pipe()
    pid = os.fork()
    if pid:
        os.close(read)
        return pid, write
    try:
        os.setsid()
        os.chdir("/")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        os.dup2(read, 0)
        os.closerange(1, 1 << 16)  # the shared lock and the pipe's other end among them
        # A killed process closes its pipe some moments before it gives up its lock.
        tries = 1 if os.read(0, 1) else 6000
        while not _restore() and (tries := tries - 1):
            time.sleep(0.02)
    finally:
        os._exit(0)


def _restore() -> bool:
    """Write back the values from before; return False if another test uses the present ones, and will do so."""
    lock = os.open(_LOCK, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False  # Another guardian, which is restoring, or a test, whose guardian tries after its unlock.
    if before := os.pread(lock, 100, 0):
        _write(tuple(map(int, before.split())))
        os.ftruncate(lock, 0)
    return True


def _may_write() -> bool:
    return os.access(f"{_DIRECTORY}/protected_symlinks", os.W_OK) and not _is_read_only()


def _is_read_only() -> bool:
    return bool(os.statvfs(_DIRECTORY).f_flag & os.ST_RDONLY)


def _read(name: str) -> str:
    with open(f"{_DIRECTORY}/protected_{name}") as file:
        return file.read()


def _write(values: Values) -> None:
    for name, value in zip(NAMES, values, strict=True):
        with open(f"{_DIRECTORY}/protected_{name}", "r+") as file:
            file.write(str(value))
