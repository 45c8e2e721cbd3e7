"""The task's end of a payload's lifeline: a FIFO that shows, without pids and without dockerd, which side still lives.

The payload holds the reading end, the task the writing end.

1. If the task dies, the kernel closes the writing end and the payload ends.
2. If the payload is gone, there is no reader, which the task can see.
3. The FIFO contains the message ``go`` from the start; it is lost when the last process closes the FIFO. So a wrapper
   that opens the FIFO of a dead task waits for a writer and, if another process opens it to check, finds no message and
   starts nothing.
"""

from __future__ import annotations

import array
import contextlib
import fcntl
import os
import select
import termios
import time
from collections.abc import Callable

_NOTICE_EVERY_S = 1.0


class Lifeline:
    """A new FIFO at ``path``, held open for writing until `close`."""

    def __init__(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # Opening for writing needs a reader: for that moment, and until "go" is read, we are one.
        self._reader: int | None = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._writer: int | None = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        os.write(self._writer, b"go\n")
        self._sent_bytes = 0

    @property
    def is_held_by_payload(self) -> bool:
        """Return True if the payload has read its ``go``; from then on it holds the other end."""
        if self._reader is not None:
            left = array.array("i", [0])
            fcntl.ioctl(self._reader, termios.FIONREAD, left)
            # Later messages may stay unread: a payload can have killed their reader.
            if left[0] > self._sent_bytes:
                return False
            os.close(self._reader)
            self._reader = None
        return True

    def watched_fds(self) -> list[tuple[int, int]]:
        """Return the descriptors to poll for the payload's end."""
        return [] if self._writer is None else [(self._writer, select.POLLERR)]

    @property
    def is_payload_gone(self) -> bool:
        """Return True if the payload opened its end and no process holds it any more."""
        if self._writer is None or not self.is_held_by_payload:
            return False
        poll = select.poll()
        poll.register(self._writer, 0)
        return any(event & select.POLLERR for _, event in poll.poll(0))

    def send(self, word: str) -> None:
        """Send the wrapper a message; do nothing if it is gone."""
        if self._writer is not None:
            with contextlib.suppress(BrokenPipeError, BlockingIOError):
                self._sent_bytes += os.write(self._writer, word.encode() + b"\n")

    def close(self) -> None:
        """Close the writing end, which ends the processes that hold the other one. Idempotent."""
        for fd in (self._reader, self._writer):
            if fd is not None:
                os.close(fd)
        self._reader = self._writer = None


class EndNotice:
    """A new FIFO at ``path`` by which the wrapper reports that its payload has ended, and that it waits for "done".

    The payload can write there, too, any number of times. So messages are read at a limited rate.
    """

    def __init__(self, path: str, clock: Callable[[], float] = time.monotonic) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.mkfifo(path, 0o600)
        # With our own writing end open, it is never seen as closed.
        self._fd: int | None = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._clock, self._next_s = clock, 0.0

    def watched_fds(self) -> list[tuple[int, int]]:
        """Return the descriptors to poll for a notice."""
        return [] if self._fd is None or self._clock() < self._next_s else [(self._fd, select.POLLIN)]

    def poll(self) -> bool:
        """Return whether a notice has arrived since the last call."""
        if self._fd is None or self._clock() < self._next_s:
            return False
        try:
            os.read(self._fd, 4096)
        except BlockingIOError:
            return False
        self._next_s = self._clock() + _NOTICE_EVERY_S
        return True

    def close(self) -> None:
        """Close the FIFO. Idempotent."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
