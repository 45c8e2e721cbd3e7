"""Lock files that may be removed: who holds one knows that it is the file that others will look at.

They end with the processes that inherited them, however these end (`dlapp.ofd`). Nobody waits in the kernel, so an
order to stop is heard between two tries.
"""

from __future__ import annotations

import os

from dlapp import ofd


def take(path: str, *, shared: bool) -> int | None:
    """Lock a file, which is made where it is missing: the descriptor that holds the lock; None: others are in the way.

    Raises:
        OSError: the file cannot be opened.
    """
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not ofd.try_lock(fd, shared=shared):
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
    ofd.try_lock(fd, shared=True)


def make_exclusive(fd: int) -> bool:
    """Turn the holder's lock into an exclusive one; False: others hold it too, and it stays as it was."""
    return ofd.try_lock(fd)


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
        return ofd.held(fd)
    finally:
        os.close(fd)


def _is_file(fd: int, path: str) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(fd))
    except FileNotFoundError:
        return False
