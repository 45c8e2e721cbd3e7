"""NodeManagers that run the containers of all submitters as one local user: each application is still its submitter's.

The cluster takes 15 s to start on two cores, the test 15 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.doctor.findings import PASS
from dlapp.doctor.run import diagnosis
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.executor.conftest import ALICE, CAROL, DAVE, USERS, started
from tests.services.executor.linux_executor import LinuxExecutor
from tests.services.hadoop import Hadoop

pytestmark = [pytest.mark.slow, pytest.mark.root("to run containers as another user")]


@pytest.fixture(scope="module")
def hadoop_with_users() -> Iterator[Hadoop]:
    """A cluster in place of the one whose containers run as their submitters."""
    with started(LinuxExecutor(USERS, one_user=CAROL), {}) as cluster:
        yield cluster


def test_programs_of_all_submitters_run_as_the_local_user_and_outputs_belong_to_the_submitters(
    client_of: Callable[[str], Client], hadoop_with_users: Hadoop, place: Path
) -> None:
    """A submitter with an account on the nodes, and one without."""
    clients, applications = {}, {}
    for user in ALICE, DAVE:
        script = f"id -u >{place}/{user}.uid; mkdir out; echo $USER >out/file; echo hello of $(id -u)"
        to_hdfs = {"output_path": "out", "hdfs": f"/user/{user}/out"}
        file = properties(place / user, script, name=user, application={"username": user}, to_hdfs=to_hdfs)
        clients[user] = client_of(user)
        applications[user] = clients[user].submit(str(file))
    for user in ALICE, DAVE:
        end = clients[user].wait(applications[user], timeout_s=480)
        assert end.cause is Cause.SUCCEEDED, end.diagnostics
        assert int((place / f"{user}.uid").read_text()) == USERS[CAROL]
        url = f"{hadoop_with_users.hdfs_url}/webhdfs/v1/user/{user}/out?op=LISTSTATUS&user.name={user}"
        (output,) = hadoop_with_users.get(url)["FileStatuses"]["FileStatus"]
        assert (output["pathSuffix"], output["owner"]) == ("file", user)
        text = "".join(str(line) for line in clients[user].logs(applications[user]))
        assert f"hello of {USERS[CAROL]}" in text
    found = {finding.subject: finding for finding in diagnosis(cluster="yarn", node="any")}
    assert (found["node.user"].verdict, found["node.user"].found) == (PASS, f"containers of {DAVE} run as {CAROL}")
