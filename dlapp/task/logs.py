"""dlapp's own log of a container, and the cap on what a payload prints."""

from __future__ import annotations

import fcntl
import os
import struct
import time

_LOOK_EVERY_S = 1.0
_LOOK_OFTEN_S = 0.05
"""Once half of the cap is used: a payload that writes 1 GiB/s is some 50 MiB over it at most."""


class TaskLog:
    """``dlapp.log``: a line for each thing that dlapp did around the payload.

    The file is locked as long as the task lives, which is how others see that it does (`dlapp.runtime.docker`).
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        fcntl.fcntl(self._fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0))

    def note(self, line: str) -> None:
        """Add a line; from any thread."""
        now = time.time()
        stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(now))
        text = f"{stamp}.{int(now * 1e6) % 1_000_000:06d} {line}".replace("\n", "\n    ")
        os.write(self._fd, text.encode("utf-8", "backslashreplace") + b"\n")

    def close(self) -> None:
        """Let go of the file; only tests outlive their log."""
        os.close(self._fd)


class LogCap:
    """Keeps the payload's stdout and stderr at ``limit_bytes`` each: their beginning stays, the rest is dropped.

    They are opened for appending, so a payload that writes on does so at the new end.
    """

    def __init__(self, paths: tuple[str, ...], limit_bytes: int) -> None:
        self._paths, self._limit = paths, limit_bytes
        self.dropped = dict.fromkeys(paths, 0)

    def check(self) -> float:
        """Cut what is too long. Returns after how many seconds to look again."""
        longest = 0
        for path in self._paths:
            try:
                size = os.stat(path).st_size
                if size > self._limit:
                    os.truncate(path, self._limit)
                    self.dropped[path] += size - self._limit
            except FileNotFoundError:
                continue
            longest = max(longest, size)
        return _LOOK_OFTEN_S if longest > self._limit // 2 else _LOOK_EVERY_S

    @property
    def told(self) -> str:
        """What was dropped, in words; empty if nothing was."""
        return ", ".join(
            f"{os.path.basename(path)} cut to {self._limit} bytes ({count} or more dropped)"
            for path, count in self.dropped.items()
            if count
        )
