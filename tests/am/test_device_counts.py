"""Test what an ApplicationMaster learns of the hosts' GPUs, from a real ZooKeeper."""

from __future__ import annotations

from pathlib import Path
from queue import Empty, SimpleQueue

import pytest

from dlapp.am import device_counts as module
from dlapp.am.device_counts import DeviceCountReader
from dlapp.am.model.events import DeviceCountsRead
from dlapp.cluster.engine import ContainerRequest
from dlapp.gpuid.devices import Device
from dlapp.gpuid.needs import PLAIN, DeviceNeed
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.values.launch_spec import MACHINE, NODE_MANAGER, LedgerSettings
from dlapp.values.spec import Resources
from tests.services.polling import PATIENCE_S
from tests.services.processes.small_app import spec_of
from tests.services.zookeeper import ZooKeeper, ledger_settings, wait_long

DEVICES = (
    *(Device(f"GPU-{place}", place, place) for place in range(3)),
    *(Device(f"MIG-{part}", 3, 3, "NVIDIA H100 80GB HBM3 MIG 1g.10gb", 9984, mig=part) for part in range(2)),
)
SLICE = DeviceNeed("mig:1g.10gb")
SPEC = spec_of(gcores=1)
WAITS = (ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=1, gcores=1)),)
NO_GPU = (ContainerRequest(request_id=1, count=1, resources=Resources(memory_mib=1)),)
MET = (ContainerRequest(request_id=1, count=0, resources=Resources(memory_mib=1, gcores=1)),)


class Reader:
    """Cards with a clock of the test's, and what they tell."""

    def __init__(self, where: LedgerSettings) -> None:
        self.now = 0.0
        self.events: SimpleQueue[DeviceCountsRead] = SimpleQueue()
        self.devices = DeviceCountReader(where, {PLAIN, SLICE}, self.events.put, clock=lambda: self.now)

    def next(self) -> DeviceCountsRead:
        return self.events.get(timeout=PATIENCE_S)

    def has_no_event(self) -> bool:
        with pytest.raises(Empty):
            self.events.get(timeout=0.2)
        return True


def test_hosts_with_quarantined_devices_are_reported_and_the_ledger_is_read_seldom(
    zookeeper: ZooKeeper, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wait_long(monkeypatch)
    monkeypatch.setattr(module, "ANSWER_S", PATIENCE_S)
    settings = ledger_settings(
        zookeeper.ensemble, f"/{tmp_path.name}", credentials="dlapp:secret", lock_dir=str(tmp_path)
    )
    reader = Reader(settings)
    reader.devices.refresh()
    assert reader.next().usable == {}
    for host in ("node1", "node2"):
        with ZooKeeperLedger(settings, host=host, discover=lambda: DEVICES) as ledger:
            ledger.update_inventory()
            if host == "node2":
                ledger.quarantine("gpu1", cause="operator", by="root")
    reader.devices.refresh_for(WAITS)
    assert reader.has_no_event()
    reader.now += module.READ_EVERY_S + 1
    reader.devices.refresh_for(NO_GPU)
    reader.devices.refresh_for(MET)
    assert reader.has_no_event()
    reader.devices.refresh_for(WAITS)
    read = reader.next()
    assert read.serving == {PLAIN: {"node2": 2}, SLICE: {"node2": 2}}, "a slice is not a GPU"
    assert read.usable == {"node2": 4}, "YARN counts both as gcores"
    assert "hosts with GPUs in quarantine: node2 (2 GPUs and 2 slices left)" in capfd.readouterr().out


def test_an_unreachable_ensemble_is_logged_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(module, "ANSWER_S", 0.3)
    reader = Reader(ledger_settings("127.0.0.1:1", "/cards", lock_dir=str(tmp_path)))
    reader.devices.refresh()
    assert reader.next().usable == {}
    assert "the hosts with healthy GPUs are unknown: no ZooKeeper answered" in capfd.readouterr().out


def test_only_a_ledger_of_many_hosts_is_read() -> None:
    assert DeviceCountReader.of(LedgerSettings(NODE_MANAGER, web="http://n:8042"), SPEC, lambda _: None) is None
    assert DeviceCountReader.of(LedgerSettings(MACHINE, "/x"), SPEC, lambda _: None) is None
