"""A node whose GPUs are in quarantine, on a real YARN that does not know it; the ledger is on a real ZooKeeper."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.client import Client
from dlapp.config import load_config
from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.launch_spec import LedgerSettings
from dlapp.report import ApplicationView, Cause
from tests.applications import properties
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.hadoop import NODES, Hadoop
from tests.services.zookeeper import ZooKeeper, ledger_settings

FIRST, SECOND = NODES.values()
DEVICES = tuple(Device(f"GPU-{place}", place, place) for place in range(4))


class Place:
    """A cluster with a ledger, in which this machine is both nodes; each has a record of its own, too."""

    def __init__(self, directory: Path, client: Client, settings: LedgerSettings) -> None:
        self.directory, self.client, self._settings = directory, client, settings

    def ill(self, host: str) -> None:
        """Three of the four GPUs of a node are in quarantine."""
        with ZooKeeperLedger(self._settings, host=host, discover=lambda: DEVICES) as ledger:
            ledger.look()
            for number in range(3):
                ledger.quarantine(f"gpu{number}", cause="operator", by="root")

    def run(self) -> ApplicationView:
        """Two containers of two GPUs each: both nodes have room for them, as YARN counts."""
        file = properties(self.directory, "true", resources={"gcores": 2, "containers": 2, "memory": 256})
        return self.client.wait(self.client.submit(str(file)), timeout_s=120)


@pytest.fixture
def place(hadoop: Hadoop, zookeeper: ZooKeeper, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    monkeypatch.setenv("HADOOP_USER_NAME", getpass.getuser())
    tmp_path.chmod(0o755)
    python = tmp_path / "python3"
    exports = "".join(
        f"export {n}='{v}'\n" for n, v in with_devices(tmp_path, [StubDevice() for _ in range(4)]).items()
    )
    python.write_text(f'#!/bin/sh\n{exports}exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    credentials = tmp_path / "credentials"
    credentials.write_text("dlapp:secret\n")
    credentials.chmod(0o600)
    options = {
        "cluster": "yarn",
        "yarn.conf_dir": str(hadoop.configuration),
        "yarn.python": str(python),
        "gpuid.zookeeper.ensemble": zookeeper.ensemble,
        "gpuid.zookeeper.root": f"/{tmp_path.name}",
        "gpuid.zookeeper.credentials": str(credentials),
        "gpuid.lock_dir": str(tmp_path / "locks"),
    }
    settings = ledger_settings(
        zookeeper.ensemble,
        options["gpuid.zookeeper.root"],
        credentials="dlapp:secret",
        lock_dir=options["gpuid.lock_dir"],
    )
    with Client(load_config(options, environ={})) as client:
        yield Place(tmp_path, client, settings)


@pytest.mark.slow
def test_no_container_goes_where_too_few_devices_are_healthy(place: Place) -> None:
    place.ill(FIRST)
    end = place.run()
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
    # Each log's page at the history server names the node that it is of.
    assert [SECOND in one.log_url and FIRST not in one.log_url for one in end.containers] == [True] * 2, end.containers


@pytest.mark.slow
def test_where_no_node_has_enough_they_are_tried_all_the_same(place: Place) -> None:
    for host in (FIRST, SECOND):
        place.ill(host)
    end = place.run()
    assert end.cause is Cause.SUCCEEDED, end.diagnostics
