"""YARN's GPU plug-in where the devices controller of cgroup v1 is missing, as on an operating system with cgroup v2.

The test takes 10 s on two cores.
"""

from __future__ import annotations

import pytest

from tests.cluster.yarn.executor.conftest import MINORS, SETTINGS, USERS
from tests.cluster.yarn.on_yarn import until
from tests.services.executor.linux_executor import LinuxExecutor
from tests.services.hadoop import Hadoop, NoHadoop

pytestmark = [pytest.mark.slow, pytest.mark.hadoop, pytest.mark.root("to unmount a controller for a NodeManager")]


def test_with_cgroup_v2_alone_a_nodemanager_with_the_gpu_plug_in_does_not_start() -> None:
    """The NodeManager of the tests' Hadoop, without any other server: it ends before it calls the ResourceManager."""
    executor = LinuxExecutor(USERS, minors=MINORS, has_cgroup_v1=False)
    try:
        cluster = Hadoop.start(settings=SETTINGS, executor=executor, parts=("nm1",), wait=False)
    except NoHadoop as missing:
        pytest.skip(f"no Hadoop: {missing}")
    with cluster:
        code = until(lambda: cluster.status()["nm1"]["exit"], 240)
        assert code != 0
        assert "devices" in cluster.log("nm1")
        assert "Failed to bootstrap configured resource subsystems" in cluster.log("nm1")
