"""A machine on which the embedded engine and a cluster both give out GPUs: no GPU is ever both's."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.liveness.probes import this_task
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.values.launch_spec import LedgerSettings
from tests.services.processes.ledger_process import fake_devices

OURS, THEIRS = "application_1700000000000_0001", "application_1700000000000_0002"
DEAD = this_task() | {"start_time": 1}
Open = Callable[..., Any]


def of_cluster(container: str, gcores: int, **more: Any) -> LeaseRequest:
    return LeaseRequest(THEIRS, container, "ann", gcores, **more)


def of_machine(container: str, gcores: int, **more: Any) -> LeaseRequest:
    return LeaseRequest(OURS, container, "tony", gcores, **more)


@pytest.fixture
def machine(settings: LedgerSettings) -> MachineLedger:
    return MachineLedger(settings.lock_dir, discover=lambda: fake_devices(4))


@pytest.fixture
def lifeline(tmp_path: Path) -> str:
    path = str(tmp_path / "life")
    os.mkfifo(path)
    return path


def test_a_device_of_the_embedded_engine_is_not_leased_by_the_cluster(
    machine: MachineLedger, on_zookeeper: Open
) -> None:
    mine = machine.acquire(of_machine("m1", 3))
    ledger = on_zookeeper()
    theirs = ledger.acquire(of_cluster("c1", 1))
    assert {device.uuid for device in (*mine.devices, *theirs.devices)} == {device.uuid for device in fake_devices(4)}
    with pytest.raises(NotEnough, match=rf"asked for 2 gcores, 0 free: .*{OURS} \(\w+, \d+ s\)") as refused:
        ledger.acquire(of_cluster("c2", 2))
    assert str(refused.value).count(OURS) == 3
    assert [lease.container for lease in ledger.record().leases] == ["c1"]
    mine.release()
    assert ledger.acquire(of_cluster("c2", 3)).release()
    theirs.release()


def test_a_device_of_the_cluster_is_not_leased_by_the_embedded_engine(
    machine: MachineLedger, on_zookeeper: Open
) -> None:
    theirs = on_zookeeper().acquire(of_cluster("c1", 3))
    assert {holder.application for holder in machine.holders().values()} == {THEIRS}
    with pytest.raises(NotEnough, match=rf"needs 2 gcores, 1 free: .*{THEIRS} \(\w+\)"):
        machine.reserve(OURS, 2)
    theirs.release()
    assert machine.holders() == {}
    machine.acquire(of_machine("m1", 4)).release()


def test_a_reserved_device_is_not_leased_either(machine: MachineLedger, on_zookeeper: Open) -> None:
    with machine.reserve(OURS, 4), pytest.raises(NotEnough, match=OURS):
        on_zookeeper().acquire(of_cluster("c1", 1))
    on_zookeeper().acquire(of_cluster("c1", 4)).release()


def test_a_device_requested_by_name_that_is_in_use_is_refused(machine: MachineLedger, on_zookeeper: Open) -> None:
    mine = machine.acquire(of_machine("m1", 1, uuids=("GPU-2",)))
    with pytest.raises(NotEnough, match=f"gpu2 {OURS}"):
        on_zookeeper().acquire(of_cluster("c1", 2, uuids=("GPU-1", "GPU-2")))
    mine.release()


def test_a_plain_payload_of_the_cluster_keeps_its_devices_from_the_machine(
    machine: MachineLedger, on_zookeeper: Open
) -> None:
    ledger = on_zookeeper()
    lease = ledger.acquire(of_cluster("c1", 4, evidence={"task": DEAD}))
    payload = subprocess.Popen(["sleep", "60"], pass_fds=lease.fds)
    lease.close()  # its task is gone, without a word
    with pytest.raises(NotEnough):
        machine.acquire(of_machine("m1", 1))
    with pytest.raises(NotEnough, match="a process of it still holds its lock"):
        ledger.acquire(of_cluster("c2", 1))
    payload.kill()
    payload.wait()
    machine.acquire(of_machine("m1", 4)).release()
    ledger.acquire(of_cluster("c2", 4)).release()


def test_a_payload_in_docker_of_the_cluster_keeps_its_devices_from_the_machine(
    machine: MachineLedger, on_zookeeper: Open, lifeline: str
) -> None:
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    on_zookeeper().acquire(of_cluster("c1", 4, evidence={"task": DEAD, "fifo": lifeline})).close()
    with pytest.raises(NotEnough, match="its payload is still running"):
        machine.acquire(of_machine("m1", 1))
    os.close(reader)
    machine.acquire(of_machine("m1", 4)).release()


def test_a_payload_in_docker_of_the_embedded_engine_keeps_its_devices_from_the_cluster(
    machine: MachineLedger, on_zookeeper: Open, lifeline: str
) -> None:
    reader = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    machine.acquire(of_machine("m1", 4, evidence={"fifo": lifeline})).close()
    ledger = on_zookeeper()
    with pytest.raises(NotEnough, match="its payload is still running"):
        ledger.acquire(of_cluster("c1", 1))
    assert [(reclaimed.container, reclaimed.state) for reclaimed in ledger.reclaim()] == [("m1", "alive")]
    os.close(reader)
    assert [(reclaimed.container, reclaimed.state) for reclaimed in ledger.reclaim()] == [("m1", "gone")]
    ledger.acquire(of_cluster("c1", 4)).release()


def test_a_waiter_gets_devices_released_by_the_other_ledger(machine: MachineLedger, on_zookeeper: Open) -> None:
    mine = machine.acquire(of_machine("m1", 4))
    threading.Timer(0.3, mine.release).start()
    theirs = on_zookeeper().acquire(of_cluster("c1", 4), timeout_s=120)
    threading.Timer(0.3, theirs.release).start()
    machine.acquire(of_machine("m2", 4), timeout_s=120).release()
