"""Rules for all fuzzing."""

from __future__ import annotations

import os

import pytest

from tests.tiers import in_part


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """A failing case may be large; that it takes a while to print is no failure of its own.

    `make fuzz PART=2/16` runs the second of sixteen parts of the tests.
    """
    if part := os.environ.get("DLAPP_FUZZ_PART"):
        left_out = [one for one in items if not in_part(one.nodeid, part)]
        items[:] = [one for one in items if one not in left_out]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        if "tests/fuzz/" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:Generating overly large repr"))
