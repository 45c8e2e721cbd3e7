"""The tiers: `make test-faults` runs every case, the others and pytest alone fewer of those that are many."""

from __future__ import annotations

import os

FULL = os.environ.get("DLAPP_FAULTS") == "full"


def some(count: int) -> int:
    """Return how many of ``count`` examples this tier runs: a third, and all of them in the faults tier."""
    return count if FULL else max(1, count // 3)
