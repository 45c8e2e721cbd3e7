"""A real Hadoop for the tests that need one: started once, for the first that asks."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.cluster.yarn.rest import YarnRest
from dlapp.cluster.yarn.tokens import AM_RM_KIND, Credentials
from tests.cluster_yarn.on_yarn import Attempt, submission, until
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


@pytest.fixture
def rest(hadoop: Hadoop) -> Iterator[YarnRest]:
    with YarnRest([hadoop.rm_url], getpass.getuser()) as one:
        yield one


@pytest.fixture
def attempt(hadoop: Hadoop, rest: YarnRest, tmp_path: Path) -> Iterator[Attempt]:
    new = rest.new_application()
    copy = f'cp "$HADOOP_TOKEN_FILE_LOCATION" {tmp_path}/new && mv {tmp_path}/new {tmp_path}/tokens && exec sleep 1000'
    rest.submit(submission(new.application_id, ("/bin/sh", "-c", copy), attempts=1))
    until(lambda: (tmp_path / "tokens").exists())
    token = Credentials.decode((tmp_path / "tokens").read_bytes()).of_kind(AM_RM_KIND)
    assert token is not None
    yield Attempt(hadoop, new.application_id, token)
    rest.kill(new.application_id, timeout_s=30)
