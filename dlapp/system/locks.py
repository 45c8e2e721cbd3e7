"""Locks of open file descriptions: held by every process that inherited the descriptor, and released when the last of
them has closed it or died. So they need no pids and do not survive a reboot.

No call blocks, and a check does not take the lock: `held` and `is_write_locked` only query it. A write lock proves that
its holder could open the file for writing; a read lock proves nothing, since any reader of the file can place one. A
length of 0 means up to the end of the file, even if it grows.

Source: fcntl_locking(2), "Open file description locks".
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct

# struct flock on 64-bit Linux: type, whence, start, length, pid.
_FLOCK = struct.Struct("hhqqi4x")


def try_lock(fd: int, start: int = 0, length: int = 0, *, shared: bool = False) -> bool:
    """Lock a range of an open file, or convert the held lock to the other kind.

    Args:
        fd: the open file.
        start: the first byte of the range.
        length: the length of the range [bytes]; 0 for up to the end, even if the file grows.
        shared: True for a read lock; False for a write lock.

    Returns:
        False if others hold a conflicting lock; nothing is changed then.

    Raises:
        OSError: this file system has no locks, or the descriptor does not allow one.
    """
    kind = fcntl.F_RDLCK if shared else fcntl.F_WRLCK
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(kind, os.SEEK_SET, start, length, 0))
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            return False
        raise
    return True


def unlock(fd: int, start: int = 0, length: int = 0) -> None:
    """Release a range, also for all processes that inherited the description. Raises OSError."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def held(fd: int, start: int = 0, length: int = 0) -> str:
    """Return how other open file descriptions have locked the range: ``exclusive``, ``shared``, or empty if not at
    all."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    return {fcntl.F_RDLCK: "shared", fcntl.F_WRLCK: "exclusive"}.get(_FLOCK.unpack(answer)[0], "")


def is_write_locked(fd: int, start: int = 0, length: int = 0) -> bool:
    """Return whether another open file description has a write lock in the range; read locks do not count.

    For files that users other than the holder can read: their read locks cannot be mistaken for the holder's lock.
    """
    return write_lock_start(fd, start, length) is not None


def write_lock_start(fd: int, start: int = 0, length: int = 0) -> int | None:
    """Return the start of another open file description's write lock in the range; None if there is none."""
    # A read lock conflicts with write locks only. Source: fcntl(2), F_GETLK.
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, start, length, 0))
    kind, _, begin, _, _ = _FLOCK.unpack(answer)
    return None if kind == fcntl.F_UNLCK else int(begin)
