"""The time of day, and the pauses of what is tried again."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator


def now_ms() -> int:
    """Return the time [ms since 1970]."""
    return time.time_ns() // 1_000_000


def date_and_time(at_s: float | None = None) -> str:
    """Return a moment [s since 1970] as local date and time, for users: ``2025-03-04 17:02:11``; None: now."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def backoff_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the pauses [s] before each further try, without end.

    Each is at most twice the one before. It is shortened at random, by up to a half: those who failed in the same
    moment do not all come again in the same moment.

    Args:
        first_s: the longest first pause.
        longest_s: the bound that the doubling reaches.
    """
    while True:
        yield random_s(first_s / 2, first_s)
        first_s = min(2 * first_s, longest_s)


def random_s(least_s: float, most_s: float) -> float:
    """Return a time between two [s], at random."""
    # Not the module random: it takes 5 ms to load, and a command waits for its first try in that time.
    return least_s + (most_s - least_s) * int.from_bytes(os.urandom(2), "big") / 65_535
