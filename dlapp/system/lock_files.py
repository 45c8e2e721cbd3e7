"""Lock files that may be removed: who holds one knows that it is the file that others will look at.

They end with the processes that inherited them, however these end (`dlapp.system.locks`). Nobody waits in the kernel,
so an order to stop is heard between two tries.
"""

from __future__ import annotations

import contextlib
import os

from dlapp.errors import Denied
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, open_file, write_all

_MAKE = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC


def take(path: str, *, shared: bool) -> int | None:
    """Lock a file, which is made where it is missing: the descriptor that holds the lock; None: others are in the way.

    Raises:
        Denied, OSError: the file cannot be opened or made.
        UntrustedFile: what lies there is no regular file, another user's, or has other names.
    """
    while True:
        try:
            fd = _open(path, write=True)
        except FileNotFoundError:
            with contextlib.suppress(FileExistsError):
                os.close(os.open(path, _MAKE, 0o600))
            continue
        try:
            if not locks.try_lock(fd, shared=shared):
                os.close(fd)
                return None
            # It may have been removed between the two calls; then others lock the next one of its name.
            if _is_file(fd, path):
                return fd
        except BaseException:
            os.close(fd)
            raise
        os.close(fd)


def share(fd: int) -> None:
    """Turn the holder's exclusive lock into a shared one; nobody gets in between."""
    locks.try_lock(fd, shared=True)


def make_exclusive(fd: int) -> bool:
    """Turn the holder's lock into an exclusive one; False: others hold it too, and it stays as it was."""
    return locks.try_lock(fd)


def drop(fd: int, path: str) -> None:
    """Remove a lock file that the caller holds exclusively, and let it go.

    One that cannot be removed stays: it is empty, and the next who holds it removes it. What has its name by now, where
    others can change names, is not removed.
    """
    try:
        with contextlib.suppress(OSError):
            if _is_file(fd, path):
                os.unlink(path)
    finally:
        os.close(fd)


def replace_locked(path: str, mode: int, content: bytes = b"") -> int:
    """Put a new file that is locked already in the place of one: the descriptor, for appending, that holds the lock.

    It is for files that others can read: a read lock of theirs keeps a write lock away for as long as they want, and
    they find no moment for one before the new file is locked.

    Args:
        path: of the file; no link.
        mode: of the new file.
        content: of the new file.

    Raises:
        OSError: it cannot be made.
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f".{name}.{os.getpid()}")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(temporary)
    fd = os.open(temporary, _MAKE | os.O_NOFOLLOW | os.O_APPEND, 0o600)
    try:
        locks.try_lock(fd)
        write_all(fd, content)
        os.fchmod(fd, mode)
        os.rename(temporary, path)
    except BaseException:
        os.close(fd)
        raise
    return fd


def kind_held(path: str) -> str:
    """Return how others hold a lock: ``exclusive``, ``shared``, or empty. Raises UntrustedFile."""
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
    if os.fstat(fd).st_nlink > 1:  # a lock file is written to, and so would be that of the other name
        os.close(fd)
        raise UntrustedFile(path, "has other names, by hard links")
    return fd


def _is_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.lstat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
