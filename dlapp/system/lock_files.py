"""Lock files that may be removed: the holder of a lock is certain that other processes will open the same file.

Locks end with the processes that inherited them, even if killed (`dlapp.system.locks`). No call blocks in the kernel,
so a stop order is handled between two tries.
"""

from __future__ import annotations

import contextlib
import os

from dlapp.errors import Denied
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, closing_on_error, open_file, write_all

_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def acquire(path: str, *, shared: bool) -> int | None:
    """Lock a file, created if missing; return the descriptor that holds the lock, or None if another process holds it.

    Raises:
        Denied, OSError: the file cannot be opened or created.
        UntrustedFile: it is not a regular file, is another user's, or has several names.
    """
    while True:
        try:
            fd = _open(path, write=True)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, _MAKE, 0o600))
            continue
        with closing_on_error(fd):
            is_locked = locks.try_lock(fd, shared=shared)
            # It may have been removed between the two calls; then others lock a new file of its name.
            if is_locked and _is_file(fd, path):
                return fd
        os.close(fd)
        if not is_locked:
            return None


def make_shared(fd: int) -> None:
    """Downgrade the holder's exclusive lock to a shared one atomically."""
    locks.try_lock(fd, shared=True)


def make_exclusive(fd: int) -> bool:
    """Upgrade the holder's lock to an exclusive one; return False, with the lock unchanged, if others hold it too."""
    return locks.try_lock(fd)


def remove_held(fd: int, path: str) -> None:
    """Remove a lock file that the caller holds exclusively, and release it.

    If it cannot be removed, it stays: it is empty, and the next holder removes it. If others can rename entries, a
    different file of its name is not removed.
    """
    try:
        with contextlib.suppress(OSError):
            if _is_file(fd, path):
                os.unlink(path)
    finally:
        os.close(fd)


def replace_locked(path: str, mode: int, content: bytes = b"") -> int:
    """Replace a file by a new one that is already locked; return the descriptor, for appending, that holds the lock.

    For files that others can read: their read lock can block a write lock for any time, but they cannot place one
    before the new file is locked.

    Args:
        path: the path of the file; not a link.

    Raises:
        OSError: it cannot be created.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, _MAKE | os.O_NOFOLLOW | os.O_APPEND, 0o600)
    with closing_on_error(fd):
        locks.try_lock(fd)
        write_all(fd, content)
        os.fchmod(fd, mode)
        os.rename(temporary, path)
    return fd


def kind_held(path: str) -> str:
    """Return how other processes hold a lock: ``exclusive``, ``shared``, or empty. Raises UntrustedFile."""
    try:
        fd = _open(path)
    except FileNotFoundError:
        return ""
    with closing_fd(fd):
        return locks.held(fd)


def _open(path: str, *, write: bool = False) -> int:
    try:
        fd = open_file(path, owners=(os.geteuid(),), write=write)
    except PermissionError as error:
        raise Denied(f"{path!r} cannot be locked: {error.strerror}") from error
    if os.fstat(fd).st_nlink > 1:  # a lock file is written to, which would change the file of the other name
        os.close(fd)
        raise UntrustedFile(path, "has other names, by hard links")
    return fd


def _is_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
