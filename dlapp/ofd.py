"""Locks of open file descriptions: held by whoever inherited the descriptor, free when the last of them has closed it
or died, so that they need no pids and survive no reboot.

Nobody waits in the kernel, and nobody learns if a lock is held by taking it: `held` asks without disturbing anything.
A length of 0 means: to the file's end, however it grows.

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
    """Take the lock on a range of an open file, or turn the one that is held into the other kind.

    Returns:
        False: others are in the way, and all is as it was.

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
    """Let go of a range, also for all who inherited the description. Raises OSError."""
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def held(fd: int, start: int = 0, length: int = 0) -> str:
    """How anybody but the holders of this very description has the range locked: ``exclusive``, ``shared``, or empty
    for not at all."""
    answer = fcntl.fcntl(fd, fcntl.F_OFD_GETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    return {fcntl.F_RDLCK: "shared", fcntl.F_WRLCK: "exclusive"}.get(_FLOCK.unpack(answer)[0], "")
