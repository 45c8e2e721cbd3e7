"""The time of day, and the pauses of what is tried again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator


def now_ms() -> int:
    """Return the time [ms since 1970]."""
    return time.time_ns() // 1_000_000


def backoff_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the pauses [s] before each further try, without end.

    Each is at most twice the one before. It is shortened at random, by up to a half: those who failed in the same
    moment do not all come again in the same moment.

    Args:
        first_s: the longest first pause.
        longest_s: the bound that the doubling reaches.
    """
    while True:
        # Not the module random: it takes 5 ms to load, and a command waits for its first try in that time.
        yield first_s * (0.5 + int.from_bytes(os.urandom(2), "big") / 131_070)
        first_s = min(2 * first_s, longest_s)
