"""Rules for all fuzzing."""

from __future__ import annotations

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A failing case may be large; that it takes a while to print is no failure of its own."""
    for item in items:
        if "tests/fuzz/" in item.nodeid:
            item.add_marker(pytest.mark.filterwarnings("ignore:Generating overly large repr"))
