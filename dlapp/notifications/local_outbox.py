"""Outbox of an application on one machine: a file in its directory, which only one process at a time may change."""

from __future__ import annotations

import contextlib
import os

from dlapp.errors import Unreachable
from dlapp.notifications.outbox import MAX_BYTES
from dlapp.system import files, locks

SETTINGS, OUTBOX, LOCK = "notify.json", "notify-outbox.json", "notify.lock"
"""Files of an application directory; the first holds secrets."""


class LocalOutbox:
    """Outbox file; `lock` or `read` takes its lock, which this process keeps.

    Args:
        application_dir: the application directory, which only its owner can write to.
    """

    def __init__(self, application_dir: str) -> None:
        self._application_dir = application_dir
        self._lock = -1

    def read(self) -> bytes | None:
        """Return its content; None if it does not exist.

        Raises:
            Unreachable: another process holds the lock.
        """
        self.lock()
        with files.closing_fd(files.open_directory(self._application_dir)) as fd:
            path, owners = f"{self._application_dir}/{OUTBOX}", {os.geteuid()}
            with contextlib.suppress(FileNotFoundError):
                return files.read_file(OUTBOX, dir_fd=fd, path=path, owners=owners, max_bytes=MAX_BYTES)
        return None

    def lock(self) -> None:
        """Take the lock. Raises Unreachable: another process holds it."""
        if self._lock >= 0:
            return
        path = f"{self._application_dir}/{LOCK}"
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if not locks.try_lock(fd):
            os.close(fd)
            raise Unreachable(f"{path} is locked: another process sends notifications of this application")
        self._lock = fd

    def write(self, data: bytes) -> None:
        """Replace it; it is synced when this returns. Raises OSError."""
        with files.closing_fd(files.open_directory(self._application_dir)) as fd:
            temporary = f".{OUTBOX}"
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with files.closing_fd(os.open(temporary, flags, 0o600, dir_fd=fd)) as written:
                files.write_all(written, data)
                os.fsync(written)
            os.rename(temporary, OUTBOX, src_dir_fd=fd, dst_dir_fd=fd)

    def remove(self) -> None:
        """Remove it, if it exists."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(f"{self._application_dir}/{OUTBOX}")
