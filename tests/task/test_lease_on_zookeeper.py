"""A whole task whose GPUs are in the ledger of a cluster."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger
from dlapp.values.launch_spec import ZOOKEEPER, LedgerSettings
from dlapp.values.messages import Fault, Phase
from dlapp.values.spec import Resources
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.zookeeper import ZooKeeper, ledger_settings, wait_long, zookeeper_for_tests
from tests.task.fake_am import FakeAm, workspace_archive

DEVICES = tuple(Device(f"GPU-{place}", place, place) for place in range(2))
SCRIPT = "echo $CUDA_VISIBLE_DEVICES; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done"


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    """One server, which the test may harm."""
    with zookeeper_for_tests() as server:
        yield server


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server that is slow."""
    wait_long(monkeypatch)


def zookeeper_settings(zookeeper: ZooKeeper, place: Path) -> LedgerSettings:
    return LedgerSettings(
        ZOOKEEPER,
        str(place / "locks"),
        ensemble=zookeeper.ensemble,
        credentials="dlapp:secret",
        host="node7",
    )


def ledger(zookeeper: ZooKeeper, place: Path) -> ZooKeeperLedger:
    settings = ledger_settings(zookeeper.ensemble, "/dlapp", "dlapp:secret", lock_dir=str(place / "locks"))
    return ZooKeeperLedger(settings, host="node7", discover=lambda: DEVICES)


def task_with_gpus(place: Path, gcores: int) -> FakeAm:
    packed = workspace_archive(place, {"run.sh": SCRIPT})
    return FakeAm(place / "containers", **packed, resources=Resources(gcores=gcores))


def test_gpus_are_leased_on_zookeeper_for_the_payload_and_given_back(zookeeper: ZooKeeper, place: Path) -> None:
    env = with_devices(place, [StubDevice(uuid=device.uuid) for device in DEVICES])
    with task_with_gpus(place, 2) as am, ledger(zookeeper, place) as other:
        am.start(process_env=env, ledger=zookeeper_settings(zookeeper, place))
        am.wait_until(lambda: (am.home / "stdout").exists() and bool(am.printed()))
        assert am.printed().split() == [b"GPU-0,GPU-1"]
        # The task has no session while its payload runs: what is connected is who asks for this number.
        am.wait_until(lambda: zookeeper.connections("zk1") == 1)
        with pytest.raises(NotEnough, match="asked for 1 gcore, 0 free: gpu0 application_"):
            other.acquire(LeaseRequest("application_2", "next", "ann", 1))
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE
        other.acquire(LeaseRequest("application_2", "next", "ann", 2)).release()


@pytest.mark.slow
def test_an_outage_of_zookeeper_stops_no_payload_and_loses_no_gpu(zookeeper: ZooKeeper, place: Path) -> None:
    env = with_devices(place, [StubDevice(uuid=device.uuid) for device in DEVICES])
    with task_with_gpus(place, 2) as am:
        am.start(process_env=env, ledger=zookeeper_settings(zookeeper, place))
        am.wait_until(lambda: (am.home / "stdout").exists() and bool(am.printed()))
        zookeeper.kill_server("zk1")
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE
        assert "the GPUs are free when others detect this task's end" in am.log()
        zookeeper.start_server("zk1")
        zookeeper.wait_until_ready()
        with ledger(zookeeper, place) as other:
            other.acquire(LeaseRequest("application_2", "next", "ann", 2), timeout_s=120).release()


@pytest.mark.slow
def test_a_task_with_gpus_waits_for_zookeeper_with_a_message(zookeeper: ZooKeeper, place: Path) -> None:
    env = with_devices(place, [StubDevice(uuid=device.uuid) for device in DEVICES])
    zookeeper.kill_server("zk1")
    with task_with_gpus(place, 2) as am:
        am.start(process_env=env, ledger=zookeeper_settings(zookeeper, place))
        am.wait_until(lambda: any(report.waits_for for report in am.reports))
        waiting = am.last
        assert (waiting.phase, waiting.waits_for) == (Phase.LEASING, f"ZooKeeper at {zookeeper.ensemble}")
        assert "no ZooKeeper answered in time" in waiting.detail
        zookeeper.start_server("zk1")
        am.wait_until(lambda: (am.home / "stdout").exists() and bool(am.printed()))
        am.wait_until(lambda: am.last.waits_for == "")
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE


def test_gpus_of_a_killed_task_are_free_when_its_payload_has_ended(zookeeper: ZooKeeper, place: Path) -> None:
    env = with_devices(place, [StubDevice(uuid=device.uuid) for device in DEVICES])
    with task_with_gpus(place, 2) as am, ledger(zookeeper, place) as other:
        am.start(process_env=env, ledger=zookeeper_settings(zookeeper, place))
        am.wait_until(lambda: (am.home / "stdout").exists() and bool(am.printed()))
        assert am.task is not None
        am.task.send_signal(signal.SIGKILL)
        other.acquire(LeaseRequest("application_2", "next", "ann", 2), timeout_s=120).release()
