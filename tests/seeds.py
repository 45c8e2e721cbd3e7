"""Seeds of tests: others each day, printed in the head of a run; ``DLAPP_TEST_SEED=20261129`` repeats those of a day.

A test that claims a property by numbers takes them from here, so that it holds for more than the seeds that it was
written with.
"""

from __future__ import annotations

import datetime
import os
import random

import pytest

from tests.tiers import FULL

VARIABLE = "DLAPP_TEST_SEED"

FIRST = int(os.environ.get(VARIABLE) or f"{datetime.datetime.now(datetime.UTC):%Y%m%d}")
"""The seed from which all others follow: the date, or the variable's value."""

COUNT = 5 if FULL else 3
"""How many seeds a property has at least."""


def seeds(name: str, count: int = COUNT) -> list[int]:
    """Return the seeds of today.

    Args:
        name: of what they are for; each has others.
        count: how many.
    """
    return random.Random(f"{FIRST} {name}").sample(range(1 << 31), count)


def each_seed(name: str, count: int = COUNT) -> pytest.MarkDecorator:
    """Return the mark of a test that runs once for each seed, as its argument ``seed``; the names of the tests stay."""
    return pytest.mark.parametrize("seed", seeds(name, count), ids=[f"seed{number}" for number in range(count)])
