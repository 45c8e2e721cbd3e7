"""Refusals of container-executor: dlapp-doctor and an application give the same reason, the doctor also the repair.

Each case takes 10 to 15 s on two cores, beside the start of the cluster.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.doctor.findings import FAIL, PASS
from dlapp.doctor.run import diagnosis
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.executor.conftest import ALICE, DAVE, REFUSED

pytestmark = [pytest.mark.slow, pytest.mark.root("to run containers as other users")]


@pytest.mark.usefixtures("hadoop_with_users")
@pytest.mark.parametrize(
    ("user", "reason", "repair"),
    [
        (DAVE, rf"User {DAVE} not found", "give the submitter an account on each node"),
        *((user, reason, "min.user.id") for user, reason in REFUSED.items()),
    ],
)
def test_a_user_refused_by_the_executor_is_a_node_failure_with_a_repair(
    client_of: Callable[[str], Client], place: Path, user: str, reason: str, repair: str
) -> None:
    client = client_of(user)
    (found,) = [finding for finding in diagnosis(cluster="yarn", node="any") if finding.verdict == FAIL]
    application = client.submit(str(properties(place / "app", "true", application={"username": user})))
    end = client.wait(application, timeout_s=240)
    assert end.cause is Cause.FAILED
    assert found.subject == "node"
    assert re.search(rf"container-executor failed \(exit code 255\): .*{reason}", found.found)
    assert found.found == end.diagnostics
    assert repair in found.repair


@pytest.mark.usefixtures("hadoop_with_users")
def test_for_a_user_with_an_account_the_doctor_finds_the_own_user_and_no_health_script(
    client_of: Callable[[str], Client],
) -> None:
    client_of(ALICE)
    found = {finding.subject: finding for finding in diagnosis(cluster="yarn", node="any")}
    assert [finding for finding in found.values() if finding.verdict == FAIL] == []
    assert (found["node.user"].verdict, found["node.user"].found) == (PASS, f"containers run as {ALICE}")
    assert "yarn.io/gpu without a health script" in found["node.health"].found
