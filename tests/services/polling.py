"""Wait until something is so: the loop of all tests, which leaves the processor to what they wait for."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal, TypeVar

T = TypeVar("T")

PATIENCE_S = 120.0
"""How long a wait may last: a machine that is busy with other tests is slow."""
SHORTEST_S, LONGEST_S = 0.005, 0.2
"""Of the pauses between two looks."""


def wait_until(look: Callable[[], T | Literal[False] | None], timeout_s: float = PATIENCE_S, what: str = "") -> T:
    """Look again and again until there is something to see; it is returned.

    A pause lasts twice as long as the look before it: on two cores, servers and tasks would wait for the processor if
    each worker did nothing but ask them.

    Args:
        timeout_s: after which the test fails.
        what: that is waited for, as a failure names it.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        began = time.monotonic()
        if seen := look():
            return seen
        now = time.monotonic()
        assert now < deadline, f"not in {timeout_s:g} s: {what}" if what else f"not in {timeout_s:g} s"
        time.sleep(min(max(SHORTEST_S, 2 * (now - began)), LONGEST_S))
