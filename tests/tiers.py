"""The tiers: `make test-faults` runs every case, the others and pytest alone fewer of those that are many.

`make test-faults PART=2/6` runs what `make test` runs, and the second of six parts of the tests that it leaves out.
"""

from __future__ import annotations

import os
import zlib

TIER = os.environ.get("DLAPP_FAULTS", "quick")
FULL = TIER == "full"


def in_part(test: str, tier: str) -> bool:
    """Return whether a test that `make test` leaves out belongs to the part of this run; it stays in its part.

    Args:
        test: its node id.
        tier: the part and the number of parts, as in 2/6; without a slash no test belongs to it.
    """
    part, _, parts = tier.partition("/")
    return bool(parts) and zlib.crc32(test.encode()) % int(parts) == int(part) - 1


def some(count: int) -> int:
    """Return how many of ``count`` examples this tier runs: a third, and all of them in the faults tier."""
    return count if FULL else max(1, count // 3)
