"""dlapp's own log of a container, and the size limit of the payload's logs."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable

from dlapp.system import lock_files, locks
from dlapp.system.logs import log
from dlapp.system.logs.log_times import LogTimesWriter
from dlapp.system.processes.kernel import watch_writes
from dlapp.value import Closeable

_LOOK_S = (0.02, 1.0)
"""Minimum and maximum time between two polls of a payload's output."""
_TIMES_EVERY_S = 0.1
"""Interval of the recorded times while the payload prints."""
_FASTEST = 4 << 30
"""Bytes/s that a payload may be expected to write at most, into memory."""
_MAX_LINES, _LINES_PER_S = 5000, 1.0
"""Limits of dlapp.log: the number of lines in a burst, and in the long run per second. A payload can cause any number
of some lines."""
_KEPT_BYTES = 1 << 20
"""Number of bytes of a replaced log that are kept: the output of Python itself while the task was loaded."""

FOR_USER = "NOTE"
"""Level of a line of dlapp.log that dlapp-shell shows to its user."""


class TaskLog:
    """``dlapp.log``: one line for each action of dlapp around the payload.

    The file is locked while the task lives, which shows others that it does (`dlapp.runtime.docker.labels`). The group
    of a shared state directory, and on a cluster the NodeManager's group, may read it, and so read-lock it.

    A line that does not fit on the disk is dropped without an error. Beyond `_MAX_LINES` at once, lines are dropped
    and counted.

    Raises:
        BlockingIOError: another task holds the lock.
        OSError: the file cannot be created.
    """

    def __init__(self, path: str) -> None:
        self._lines_left, self._noted_at, self._left_out = float(_MAX_LINES), time.monotonic(), 0
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if locks.try_lock(self._fd):
            return
        readable = self._fd
        try:
            if locks.is_write_locked(readable):
                raise BlockingIOError(errno.EAGAIN, "another task writes it", path)
            self._fd = _replaced(path, readable)
        finally:
            os.close(readable)

    def write(self, message: str, level: str = "INFO") -> None:
        """Add a line; thread-safe."""
        # Without a lock: an order may interrupt the main thread anywhere, and two threads that count one line do no
        # harm.
        now = time.monotonic()
        refill = _LINES_PER_S * (now - self._noted_at)
        self._lines_left, self._noted_at = min(_MAX_LINES, self._lines_left + refill), now
        if self._lines_left < 1:
            self._left_out += 1
            return
        self._lines_left -= 1
        left_out, self._left_out = self._left_out, 0
        with contextlib.suppress(OSError):
            if left_out:
                os.write(self._fd, log.line("WARNING", f"{left_out} lines are left out here"))
            os.write(self._fd, log.line(level, message))

    def warn(self, message: str) -> None:
        """Add a line on an error that is retried or tolerated; thread-safe."""
        self.write(message, "WARNING")

    def tell(self, message: str) -> None:
        """Add a line that dlapp-shell shows to its user; thread-safe."""
        self.write(message, FOR_USER)

    def close(self) -> None:
        """Close the file; only tests outlive their log."""
        os.close(self._fd)


def _replaced(path: str, fd: int) -> int:
    """Replace a log that a reader has locked by a new, locked one; ``fd`` is the old one.

    The output of this process also goes to the new file, through a separate open file description, which its children
    inherit.
    """
    real = os.path.realpath(path)  # on a cluster a link to the NodeManager's log directory
    old = os.fstat(fd)
    new = lock_files.replace_locked(real, stat.S_IMODE(old.st_mode), os.pread(fd, _KEPT_BYTES, 0))
    for number in (1, 2):
        if os.path.samestat(os.fstat(number), old):
            printed = os.open(real, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.dup2(printed, number)
            os.close(printed)
    return new


class LogCap(Closeable):
    """Limiter of the payload's stdout and stderr to ``limit_bytes`` each: their beginning is kept, the rest is dropped.

    The files are opened in append mode, so a payload continues at the new end. Before a cut, a file may exceed the
    limit by what is written between two checks: in 20 ms, near the limit. Measured on 2 busy cores: of 300 MB at once,
    against a limit of 1 MiB, the file had 20 MB at most. While nothing is printed, the kernel (inotify) reports the
    next write, and the files are checked once a second. The kernel watch is set up after the first check that finds
    nothing new: removing it takes some 10 ms, which a very short payload should not pay.

    Used in a ``with`` block, after the files exist.

    Args:
        paths: the paths of stdout and stderr.
        limit_bytes: for each.
        times: where to record the growth of the logs; None to not record it.
        warn: called once if cutting fails; it is retried at the next growth.
    """

    def __init__(
        self,
        paths: tuple[str, ...],
        limit_bytes: int,
        times: LogTimesWriter | None = None,
        warn: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._paths, self._limit = paths, limit_bytes
        self._times, self._warn = times, warn
        self._warned = False
        self._sizes = dict.fromkeys(paths, 0)
        self._grew = self._may_watch = True
        self._writes: int | None = None
        self.dropped = dict.fromkeys(paths, 0)

    def close(self) -> None:
        """Close the record of the times, and the kernel watch."""
        if self._writes is not None:
            os.close(self._writes)
            self._writes = None
        if self._times is not None:
            self._times.close()

    @property
    def wake_fd(self) -> int | None:
        """Return the additional descriptor to poll: readable when a check is due. None if checks are only due by
        time."""
        return None if self._grew else self._writes

    def check(self) -> float:
        """Cut logs that are too long. Return the seconds until the next check."""
        if self._writes is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._writes, 65536):
                    pass
        room = self._measure()
        if not self._grew and self._may_watch:
            self._watch()
            room = self._measure()  # written before the kernel watch was set up
        shortest, longest = _LOOK_S
        if self._grew and self._times is not None:
            self._record_times(self._times)
            longest = _TIMES_EVERY_S
        if self.wake_fd is not None:
            return longest
        return min(longest, max(shortest, room / _FASTEST))

    def finish(self) -> None:
        """Cut logs that are too long, after the payload's end."""
        self._may_watch = False
        self.check()

    def _watch(self) -> None:
        self._may_watch = False
        with contextlib.suppress(OSError):  # too many watches: polling must do
            self._writes = watch_writes(self._paths)

    def _measure(self) -> int:
        """Cut logs that are too long. Return the bytes by which the longest file may still grow."""
        self._grew = False
        room = self._limit
        for path in self._paths:
            try:
                size = os.stat(path).st_size
                self._grew |= size > self._sizes[path]
                if size > self._limit:
                    os.truncate(path, self._limit)
                    self.dropped[path] += size - self._limit
                    size = self._limit
            except FileNotFoundError:
                continue
            self._sizes[path] = size
            room = min(room, self._limit - size)
        return room

    def _record_times(self, times: LogTimesWriter) -> None:
        try:
            times.record(time.time_ns() // 1_000_000, [self._sizes[path] for path in self._paths])
        except OSError as error:
            if not self._warned:
                self._warn(f"the times of printed lines cannot be written: {error}")
            self._warned = True

    @property
    def cut_message(self) -> str:
        """Return the message on the dropped output; empty if none was dropped."""
        return ", ".join(
            f"{os.path.basename(path)} cut to {self._limit} bytes ({count} or more dropped)"
            for path, count in self.dropped.items()
            if count
        )
