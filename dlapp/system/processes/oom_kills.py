"""Processes of any user that the kernel has killed on this machine for lack of memory.

Only root can see which processes these were; their number is public. Source: proc(5), /proc/vmstat.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

WINDOW_S = 10.0
"""Time before the end of a process in which a kill is attributed to it; samples are at most 5 s apart."""


def kill_count() -> int | None:
    """Return how many processes the kernel has killed for lack of memory since boot; None if unknown."""
    try:
        with open("/proc/vmstat", "rb") as file:
            lines = file.read(65536)
    except OSError:
        return None
    _, name, rest = lines.partition(b"\noom_kill ")
    return int(rest.split(b"\n", 1)[0]) if name else None


class OomKills:
    """Sampling monitor of such kills.

    Args:
        count: returns their number so far.
        clock: [s].
    """

    def __init__(
        self, count: Callable[[], int | None] = kill_count, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._count, self._clock = count, clock
        self._samples: deque[tuple[float, int]] = deque()

    def sample(self) -> None:
        """Record the current number."""
        if (count := self._count()) is not None:
            now_s = self._clock()
            self._samples.append((now_s, count))
            while len(self._samples) > 1 and self._samples[1][0] <= now_s - WINDOW_S:
                self._samples.popleft()

    def happened(self) -> bool:
        """Return whether one happened in the last `WINDOW_S`, or since the last sample before that."""
        self.sample()
        return bool(self._samples) and self._samples[-1][1] > self._samples[0][1]
