"""A real Hadoop for the tests that need one: started once, for the first that asks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.hadoop import Hadoop, NoHadoop, cluster_for_tests


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", "yarn: needs Java and a Hadoop, which the tests start themselves")


@pytest.fixture(scope="session")
def hadoop() -> Iterator[Hadoop]:
    """A cluster with all parts running; a test that harms one brings it back."""
    try:
        with cluster_for_tests() as cluster:
            yield cluster
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
