"""Wall-clock time, and pauses between retries."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator


def now_ms() -> int:
    """Return the time [ms since 1970]."""
    return time.time_ns() // 1_000_000


def date_and_time(at_s: float | None = None) -> str:
    """Format a time [s since 1970] as local date and time, for users: ``2025-03-04 17:02:11``; None for now."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))


def backoff_s(first_s: float, longest_s: float) -> Iterator[float]:
    """Yield the pauses [s] before retries, endlessly.

    Each is at most twice the previous one, and is shortened randomly by up to a half, so that clients that failed at
    the same moment do not all retry at the same moment.

    Args:
        first_s: maximum of the first pause.
        longest_s: maximum of all pauses.
    """
    while True:
        yield random_s(first_s / 2, first_s)
        first_s = min(2 * first_s, longest_s)


def random_s(least_s: float, most_s: float) -> float:
    """Return a random time between two [s]."""
    # The module random is not used: it takes 5 ms to load, and a command's first retry would wait for it.
    return least_s + (most_s - least_s) * int.from_bytes(os.urandom(2), "big") / 65_535
