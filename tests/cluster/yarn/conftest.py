"""Fixtures of tests on a real YARN; the cluster itself is in tests/conftest.py."""

from __future__ import annotations

import getpass
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.cluster.yarn.client.rest import YarnRest
from dlapp.login import Login
from tests.cluster.yarn.on_yarn import Attempt, submission, token_of_attempt
from tests.services.hadoop import Hadoop
from tests.services.keeper import end_all_in


@pytest.fixture
def rest(hadoop: Hadoop) -> Iterator[YarnRest]:
    with YarnRest([hadoop.rm_url], Login(getpass.getuser())) as one:
        yield one


@pytest.fixture
def attempt(hadoop: Hadoop, rest: YarnRest, tmp_path: Path) -> Iterator[Attempt]:
    """An application of at most two attempts; its ApplicationMasters are what the test makes of their tokens."""
    new = rest.new_application()
    copy = (
        f'cd {tmp_path} && echo $$ > "$CONTAINER_ID.pid" && cp "$HADOOP_TOKEN_FILE_LOCATION" new '
        '&& mv new "$CONTAINER_ID.tokens" && exec sleep 1000'
    )
    rest.submit(submission(new.application_id, ("/bin/sh", "-c", copy), attempts=2))
    try:
        yield Attempt(hadoop, new.application_id, token_of_attempt(tmp_path, 1))
    finally:
        rest.kill(new.application_id, timeout_s=120)
        # Where the test killed a NodeManager, YARN cannot.
        end_all_in(tmp_path)
