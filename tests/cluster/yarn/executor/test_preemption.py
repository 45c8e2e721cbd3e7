"""Containers that YARN preempts by container-executor, with a notice of 1 s.

The test takes 30 s on two cores, beside the start of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.executor.conftest import ALICE, BOB
from tests.cluster.yarn.on_yarn import until
from tests.services.hadoop import NODES, Hadoop

pytestmark = [pytest.mark.slow, pytest.mark.root("to run containers as other users")]
ENDED = re.compile(r"Exit code from container container_\S+ is : (137|143)\b")
IGNORES = """trap '' TERM
echo x >>{place}/starts
touch {place}/up-$CONTAINER_INDEX
until [ -e {place}/go ]; do sleep 0.05; done
"""


def test_a_preemption_kill_by_the_executor_uses_no_retry(
    client_of: Callable[[str], Client], hadoop_with_users: Hadoop, place: Path
) -> None:
    """Two containers of 2560 MiB use more than their queue's half of 8 GiB; the other queue asks for 3 GiB.

    The programs ignore SIGTERM and have no retries.
    """
    client = client_of(ALICE)
    amounts = {"memory": 2560, "containers": 2, "retries": 0}
    file = properties(place / ALICE, IGNORES.format(place=place), application={"username": ALICE}, resources=amounts)
    application = client.submit(str(file))
    until(lambda: all((place / f"up-{index}").exists() for index in range(2)), 480)
    before = sum(len(ENDED.findall(hadoop_with_users.log(part))) for part in NODES)
    rival = client_of(BOB)
    waits = f"touch {place}/rival; until [ -e {place}/enough ]; do sleep 0.05; done"
    other = {"username": BOB, "queue": "research"}
    file = properties(place / BOB, waits, application=other, resources={"memory": 3072, "retries": 0})
    taker = rival.submit(str(file))
    until((place / "rival").exists, 480)
    until(lambda: sum(len(ENDED.findall(hadoop_with_users.log(part))) for part in NODES) > before, 120)
    (place / "enough").touch()
    assert rival.wait(taker, timeout_s=480).cause is Cause.SUCCEEDED
    until(lambda: len((place / "starts").read_text().split()) == 3, 480)
    (place / "go").touch()
    end = client.wait(application, timeout_s=480)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
