"""ZooKeeper is away while containers with GPUs start on a real YARN: they wait for it, and nothing is counted."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.values.report import Cause
from tests.applications import properties
from tests.cluster.yarn.on_yarn import until
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import Hadoop
from tests.services.zookeeper import ZooKeeper, zookeeper_for_tests

CONTAINERS = 4


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    """One server, which the test may harm."""
    with zookeeper_for_tests() as server:
        yield server


@pytest.fixture
def client(hadoop: Hadoop, zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    python, credentials = tmp_path / "python3", tmp_path / "credentials"
    devices = with_devices(tmp_path, [StubDevice() for _ in range(CONTAINERS)])
    exports = "".join(f"export {name}='{value}'\n" for name, value in devices.items())
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": str(python),
        "gpuid.zookeeper.ensemble": zookeeper.ensemble,
        "gpuid.zookeeper.credentials": str(credentials),
        "gpuid.lock_dir": str(tmp_path / "locks"),
    }
    with Client(load_config(options, environ={})) as one:
        yield one


@pytest.mark.slow
def test_containers_with_gpus_wait_for_zookeeper_and_the_status_says_so(
    client: Client, zookeeper: ZooKeeper, tmp_path: Path
) -> None:
    zookeeper.kill_server("zk1")
    file = properties(tmp_path, "true", resources={"gcores": 1, "containers": CONTAINERS, "memory": 256})
    application_id = client.submit(str(file))
    words = f"{CONTAINERS} waiting for ZooKeeper at {zookeeper.ensemble} since "
    until(lambda: words in client.status(application_id).phase)
    zookeeper.start_server("zk1")
    end = client.wait(application_id, timeout_s=240)
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    assert [(one.attempt, len(one.gpus)) for one in end.containers] == [(1, 1)] * CONTAINERS
