"""The tiers: `make test-faults` runs every case, the others and pytest alone fewer of those that are many.

`make test-faults PART=2/6` runs what `make test` runs, and the second of six parts of the tests that it leaves out.
`make test-faults FULL=2/8` runs the second of eight parts of `make test-faults`, with all its cases.
"""

from __future__ import annotations

import os
import re
import zlib

TIER = os.environ.get("DLAPP_FAULTS", "quick")
FULL = TIER.split()[0] == "full"


def in_part(test: str, tier: str) -> bool:
    """Return whether a test belongs to the part of this run; it stays in its part.

    The seeds of a test (`tests.seeds.each_seed`) are in one part, as each part runs on another day. The parts of all
    cases run in one night, and they share the seeds, so that no part gets all cases of a long test.

    Args:
        test: its node id.
        tier: the part and the number of parts, as in ``2/6`` or ``full 2/8``; without a slash no test belongs to it.
    """
    part, _, parts = tier.split()[-1].partition("/")
    if tier.split()[0] != "full":
        test = re.sub(r"(?<=[\[-])seed\d+(?=[\]-])", "seed", test)
    return bool(parts) and zlib.crc32(test.encode()) % int(parts) == int(part) - 1


def some(count: int) -> int:
    """Return how many of ``count`` examples this tier runs: a third, and all of them in the faults tier."""
    return count if FULL else max(1, count // 3)
