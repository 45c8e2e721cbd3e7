"""dlapp's own log of a container, and the cap on what a payload prints."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from collections.abc import Callable
from types import TracebackType

from dlapp.system import lock_files, locks
from dlapp.system.logs import log
from dlapp.system.logs.log_times import LogTimesWriter
from dlapp.system.processes.kernel import watch_writes

_LOOK_S = (0.02, 1.0)
"""The shortest and the longest time between two looks at what a payload prints."""
_TIMES_EVERY_S = 0.1
"""While it prints and times are kept."""
_FASTEST = 4 << 30
"""Bytes/s that a payload may be expected to write at most, into memory."""
_MOST_LINES, _LINES_PER_S = 5000, 1.0
"""Of dlapp.log: so many at once, and so many in the long run. A payload can cause any number of some of them."""
_KEPT_BYTES = 1 << 20
"""Of a log that is replaced: what Python itself printed while the task was loaded."""


class TaskLog:
    """``dlapp.log``: a line for each thing that dlapp did around the payload.

    The file is locked as long as the task lives, which is how others see that it does (`dlapp.runtime.docker.labels`).
    It can be read, and so read-locked, by the group of a shared state directory, and on a cluster by the NodeManager's
    group.

    A line that does not fit on the disk is lost, and nothing fails for that. Beyond `_MOST_LINES` at once, lines are
    left out and counted.

    Raises:
        BlockingIOError: another task has it.
        OSError: it cannot be made.
    """

    def __init__(self, path: str) -> None:
        self._lines_left, self._noted_at, self._left_out = float(_MOST_LINES), time.monotonic(), 0
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

    def note(self, message: str, level: str = "INFO") -> None:
        """Add a line; from any thread."""
        # Without a lock: an order cuts the main thread off anywhere, and it is no harm if two threads count one line.
        now = time.monotonic()
        refill = _LINES_PER_S * (now - self._noted_at)
        self._lines_left, self._noted_at = min(_MOST_LINES, self._lines_left + refill), now
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
        """Add a line on what went wrong and is tried again, or done without; from any thread."""
        self.note(message, "WARNING")

    def close(self) -> None:
        """Let go of the file; only tests outlive their log."""
        os.close(self._fd)


def _replaced(path: str, fd: int) -> int:
    """Put a new log, locked, in the place of one on which a reader has a lock; ``fd`` is the old one.

    What this process prints goes to the new one, too, by a description of its own: its children inherit that.
    """
    real = os.path.realpath(path)  # on a cluster a link to the NodeManager's directory of logs
    old = os.fstat(fd)
    new = lock_files.replace_locked(real, stat.S_IMODE(old.st_mode), os.pread(fd, _KEPT_BYTES, 0))
    for number in (1, 2):
        if os.path.samestat(os.fstat(number), old):
            printed = os.open(real, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.dup2(printed, number)
            os.close(printed)
    return new


class LogCap:
    """Keeps the payload's stdout and stderr at ``limit_bytes`` each: their beginning stays, the rest is dropped.

    They are opened for appending, so a payload that writes on does so at the new end. Until it is cut, a file may be
    over the limit by what is written between two looks: in 20 ms, near the limit. Measured on 2 busy cores: of 300 MB
    at once, against a limit of 1 MiB, the file had 20 MB at most. While nothing is printed the kernel tells of the next
    write, and the files are looked at once a second. It is asked to after the first look that finds nothing new: to
    end that again takes it some 10 ms, which a payload that is over before does not cost.

    Used in a ``with`` block, once the files are there.

    Args:
        paths: of stdout and stderr.
        limit_bytes: for each.
        times: where to note how long they are; None: nowhere.
        warn: told once if that is not possible; it is tried again at the next growth.
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

    def __enter__(self) -> LogCap:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._writes is not None:
            os.close(self._writes)
            self._writes = None
        if self._times is not None:
            self._times.close()

    @property
    def wake_fd(self) -> int | None:
        """Descriptor to poll besides: it is readable when it is time for a look. None while only time tells."""
        return None if self._grew else self._writes

    def check(self) -> float:
        """Cut what is too long. Returns after how many seconds to look again."""
        if self._writes is not None:
            with contextlib.suppress(BlockingIOError):
                while os.read(self._writes, 65536):
                    pass
        room = self._measure()
        if not self._grew and self._may_watch:
            self._watch()
            room = self._measure()  # what was written before the kernel watched
        shortest, longest = _LOOK_S
        if self._grew and self._times is not None:
            self._note_times(self._times)
            longest = _TIMES_EVERY_S
        if self.wake_fd is not None:
            return longest
        return min(longest, max(shortest, room / _FASTEST))

    def finish(self) -> None:
        """Cut what is too long, after the payload's end."""
        self._may_watch = False
        self.check()

    def _watch(self) -> None:
        self._may_watch = False
        with contextlib.suppress(OSError):  # too many are watched: then looking often must do
            self._writes = watch_writes(self._paths)

    def _measure(self) -> int:
        """Cut what is too long. Return how many bytes the longest file may still grow."""
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

    def _note_times(self, times: LogTimesWriter) -> None:
        try:
            times.note(time.time_ns() // 1_000_000, [self._sizes[path] for path in self._paths])
        except OSError as error:
            if not self._warned:
                self._warn(f"the times of what is printed cannot be written: {error}")
            self._warned = True

    @property
    def told(self) -> str:
        """Message on what was dropped; empty if nothing was."""
        return ", ".join(
            f"{os.path.basename(path)} cut to {self._limit} bytes ({count} or more dropped)"
            for path, count in self.dropped.items()
            if count
        )
