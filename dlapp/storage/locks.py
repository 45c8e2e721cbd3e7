"""Lock files that may be removed: who holds one knows that it is the file that others will look at.

The locks are of open file descriptions: they end with the last descriptor of one, so with the processes that inherited
it, however these end. Nobody waits in the kernel, so an order to stop is heard between two tries.

Source: fcntl_locking(2), "Open file description locks".
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def take(path: str, *, shared: bool) -> int | None:
    """Lock a file, which is made where it is missing: the descriptor that holds the lock; None: others are in the way.

    Raises:
        OSError: the file cannot be opened.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not _set(fd, fcntl.F_RDLCK if shared else fcntl.F_WRLCK):
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
    _set(fd, fcntl.F_RDLCK)


def make_exclusive(fd: int) -> bool:
    """Turn the holder's lock into an exclusive one; False: others hold it too, and it stays as it was."""
    return _set(fd, fcntl.F_WRLCK)


def drop(fd: int, path: str) -> None:
    """Remove a lock file that the caller holds exclusively, and let it go."""
    try:
        os.unlink(path)
    finally:
        os.close(fd)


def kind_held(path: str) -> str:
    """How others hold a lock: ``exclusive``, ``shared``, or empty for not at all."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return ""
    try:
        answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    finally:
        os.close(fd)
    return {fcntl.F_RDLCK: "shared", fcntl.F_WRLCK: "exclusive"}.get(_FLOCK.unpack(answer)[0], "")


def _is_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False


def _set(fd: int, kind: int) -> bool:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True
