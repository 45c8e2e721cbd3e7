"""Programs in Docker under the LinuxContainerExecutor: the user's own number, and the GPUs that YARN gave.

The test takes 30 s on two cores, beside the start of the cluster and of dockerd.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.executor.conftest import ALICE, BOB, GPUS, MINORS, USERS, assigned
from tests.cluster.yarn.on_yarn import until
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import Hadoop

pytestmark = [pytest.mark.slow, pytest.mark.root("to run containers as other users")]
SHOWS = """echo "seen $(id -u) $NVIDIA_VISIBLE_DEVICES" $(ls /dev | grep '^nvidia[0-9]')
until [ -e go ]; do sleep 1; done
"""


def test_containers_in_docker_have_their_users_number_and_only_the_gpus_that_yarn_assigned(
    client_of: Callable[[str], Client],
    hadoop_with_users: Hadoop,
    dockerd: Dockerd,
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two users with two containers each, on four GPUs of two nodes."""
    # As an operator does by the group docker.
    dockerd.directory.chmod(0o711)
    dockerd.socket.chmod(0o666)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_GPU_MODE", "runtime")
    minors = [minor for of_node in MINORS.values() for minor in of_node]
    # The stand-in of NVIDIA's hook makes the device whose number is in the uuid.
    uuids = [f"GPU-{minor:08d}-aaaa-bbbb-cccc-000000000000" for minor in minors]
    with_devices(place, [StubDevice(uuid=uuid, minor=minor) for uuid, minor in zip(uuids, minors, strict=True)])
    clients, applications = {}, {}
    for user in ALICE, BOB:
        clients[user] = client_of(user)
        of = {"username": user, "docker_image": IMAGE, "network": "none"}
        file = properties(place / user, SHOWS, application=of, resources={"gcores": 1, "containers": GPUS})
        applications[user] = clients[user].submit(str(file))
    until(lambda: assigned(hadoop_with_users) == minors, 480)
    until(lambda: len(dockerd.containers("status=running")) == len(minors), 480)
    for name in dockerd.containers():
        done = dockerd.docker("exec", name, "touch", "go", check=False)
        assert done.returncode == 0, done.stderr
    given = []
    for user in ALICE, BOB:
        end = clients[user].wait(applications[user], timeout_s=480)
        assert end.cause is Cause.SUCCEEDED, end.diagnostics
        text = "".join(str(line) for line in clients[user].logs(applications[user]))
        seen = re.findall(r"seen (\d+) (GPU-[0-9a-f-]+) (nvidia\d+(?: nvidia\d+)*)", text)
        assert len(seen) == GPUS
        for uid, visible, devices in seen:
            assert int(uid) == USERS[user]
            assert devices == f"nvidia{minors[uuids.index(visible)]}"
            given.append(visible)
    assert sorted(given) == uuids
    until(lambda: assigned(hadoop_with_users) == [])
