"""Test what holds of a ledger wherever it is kept: the same tests on the machine's files and on a real ZooKeeper."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dlapp.errors import DlappError, NotFound, RequestTooLarge, UsageError
from dlapp.gpuid import rules
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import Liveness
from dlapp.gpuid.rules import HostRecord, LeaseRequest, NotEnough
from dlapp.value import replace
from tests.gpuid import layouts
from tests.services.processes.ledger_process import fake_devices

APP, OTHER = "application_1700000000000_0001", "application_1700000000000_0002"
Open = Callable[..., Any]


def ask(container: str, gcores: int, application: str = APP, **more: Any) -> LeaseRequest:
    return LeaseRequest(application, container, "tony", gcores, **more)


def test_an_ask_gets_all_its_devices_or_none(store: Open) -> None:
    ledger = store()
    with ledger.acquire(ask("c1", 3)) as lease:
        assert len({device.uuid for device in lease.devices}) == 3
        with pytest.raises(
            NotEnough, match=r"asked for 2 gcores, 1 free: gpu0 application_\d+_0001 \(\w+, \d+ s\), gpu1"
        ):
            store().acquire(ask("c2", 2, OTHER))
        assert store().acquire(ask("c3", 1, OTHER)).devices[0].index == 3
        lease.release()


def test_a_released_device_can_be_had_at_once(store: Open) -> None:
    ledger = store()
    for number in range(5):
        assert ledger.acquire(ask(f"c{number}", 4)).release() is True
    assert ledger.record().leases == ()


def test_a_lease_names_its_container(store: Open) -> None:
    with store().acquire(ask("c1", 2, role="worker", container_index="3")) as lease:
        holders = list(store().record().holder_by_uuid().values())
        assert [(holder.role, holder.container_index) for holder in holders] == [("worker", "3")] * 2
        lease.release()


def test_a_release_may_be_repeated(store: Open) -> None:
    lease = store().acquire(ask("c1", 1))
    lease.release()
    again = store().acquire(ask("c2", 4))
    lease.release()
    lease.close()
    assert [item.container for item in store().record().leases] == ["c2"]
    again.release()


def test_a_repeated_request_of_a_container_returns_its_lease(store: Open) -> None:
    ledger = store()
    first = ledger.acquire(ask("c1", 2))
    assert ledger.acquire(ask("c1", 2)).devices == first.devices
    assert len(ledger.record().leases[0].devices) == 2
    with pytest.raises(rules.LedgerError, match="c1 holds 2 gcores already"):
        ledger.acquire(ask("c1", 3))
    first.release()


@pytest.mark.parametrize(
    ("gcores", "kind", "message"),
    [
        (0, UsageError, "asked for 0 gcores, the minimum is 1"),
        (-1, UsageError, "asked for -1 gcores, the minimum is 1"),
        (10**9, RequestTooLarge, "asked for 1000000000 gcores, it has 4"),
    ],
)
def test_an_impossible_request_is_refused_without_a_write(
    store: Open, gcores: int, kind: type[DlappError], message: str
) -> None:
    ledger = store()
    with pytest.raises(kind, match=message):
        ledger.acquire(ask("c1", gcores), timeout_s=60)
    assert ledger.record().leases == ()


def test_a_host_without_devices_has_its_own_error(store: Open) -> None:
    with pytest.raises(RequestTooLarge, match="asked for 1 gcore, it has 0"):
        store(devices=()).acquire(ask("c1", 1))


def test_an_ask_may_name_its_devices(store: Open) -> None:
    ledger = store()
    lease = ledger.acquire(ask("c1", 2, uuids=("GPU-3", "GPU-1")))
    assert {device.index for device in lease.devices} == {1, 3}
    with pytest.raises(NotEnough, match="gpu1 application"):
        store().acquire(ask("c2", 1, OTHER, uuids=("GPU-1",)))
    with pytest.raises(NotFound, match=r"there is no GPU 'GPU-9'; it has gpu0, gpu1, gpu2, gpu3"):
        store().acquire(ask("c2", 1, OTHER, uuids=("GPU-9",)))
    assert len(ledger.record().leases) == 1
    lease.release()


@pytest.mark.parametrize(("spread", "expected"), [(False, {4, 5}), (True, {2, 6})])
def test_devices_are_close_together_unless_they_are_to_be_spread(store: Open, spread: bool, expected: set[int]) -> None:
    devices = layouts.machine("two sockets, a switch for each two")
    ledger = store(devices=devices)
    other = ledger.acquire(ask("c0", 2, uuids=("GPU-4", "GPU-0")) if spread else ask("c0", 1, uuids=("GPU-7",)))
    lease = store(devices=devices).acquire(ask("c1", 2, spread=spread))
    assert {device.index for device in lease.devices} == expected
    for item in (lease, other):
        item.release()


def test_a_quarantined_device_is_not_leased_until_healed(store: Open) -> None:
    ledger = store()
    ledger.acquire(ask("c0", 1)).release()
    ledger.quarantine("gpu2", cause="ecc", detail="ECC", by="root")
    with pytest.raises(NotEnough, match=r"asked for 4 gcores, 3 free: gpu2 quarantined \(ECC\)"):
        store().acquire(ask("c1", 4))
    [bad] = [device for device in store().record().devices if device.quarantine]
    assert (bad.uuid, bad.quarantine.cause, bad.quarantine.count, bad.quarantine.by) == ("GPU-2", "ecc", 1, "root")
    with store().acquire(ask("c1", 3)) as lease:
        assert {device.index for device in lease.devices} == {0, 1, 3}
        lease.release()
    ledger.heal("GPU-2")
    store().acquire(ask("c2", 4)).release()


def test_a_quarantine_leaves_the_device_to_its_holder(store: Open) -> None:
    ledger = store()
    lease = ledger.acquire(ask("c1", 4))
    ledger.quarantine("0", cause="operator", by="root")
    assert len(ledger.record().leases[0].devices) == 4
    lease.release()
    with pytest.raises(NotEnough, match="3 free"):
        store().acquire(ask("c2", 4))


def test_the_probe_interval_grows_with_each_failure_of_a_device(store: Open) -> None:
    ledger = store()
    ledger.acquire(ask("c1", 1)).release()
    for wait_s in (60, 120, 240):
        ledger.quarantine("GPU-1", cause="lost", detail="it fell off the bus")
        [found] = [device.quarantine for device in store().record().devices if device.quarantine]
        assert found.probe_at_ms - found.since_ms == wait_s * 1000
        ledger.heal("GPU-1", forgive=False)  # as a look does that finds it well
    ledger.quarantine("GPU-1", cause="operator", by="root")
    [found] = [device.quarantine for device in store().record().devices if device.quarantine]
    assert found.probe_at_ms == 0


def test_a_quarantine_of_a_device_that_is_not_there_is_refused(store: Open) -> None:
    ledger = store()
    ledger.acquire(ask("c1", 1)).release()
    for name in ("gpu9", "GPU-x", "", "../../etc"):
        with pytest.raises(NotFound, match="there is no GPU"):
            ledger.quarantine(name, cause="operator")
        with pytest.raises(NotFound, match="there is no GPU"):
            ledger.heal(name)


def test_devices_are_inspected_before_they_are_leased(store: Open) -> None:
    def inspect(record: HostRecord) -> HostRecord:
        return rules.quarantine(record, "gpu0", cause="lost", now_ms=1)

    lease = store(inspect=inspect).acquire(ask("c1", 3))
    assert {device.index for device in lease.devices} == {1, 2, 3}
    assert [device.quarantine.cause for device in store().record().devices if device.quarantine] == ["lost"]
    lease.release()


def test_a_device_may_vanish_and_return(store: Open) -> None:
    lease = store().acquire(ask("c1", 4))
    fewer = tuple(device for device in fake_devices(4) if device.index != 1)
    gone = {device.uuid: device.present for device in store(devices=fewer).record().devices}
    if gone.get("GPU-1"):  # ZooKeeper hears of it with the next acquire
        with pytest.raises(NotEnough):
            store(devices=fewer).acquire(ask("c2", 1))
        lease.release()
        store(devices=fewer).acquire(ask("c2", 3)).release()
    else:
        lease.release()
    with pytest.raises(RequestTooLarge, match="it has 3"):
        store(devices=fewer).acquire(ask("c2", 4))
    store().acquire(ask("c3", 4)).release()


def test_a_device_whose_index_changed_is_the_same_device(store: Open) -> None:
    lease = store().acquire(ask("c1", 1, uuids=("GPU-0",)))
    turned = tuple(replace(device, index=3 - device.index) for device in reversed(fake_devices(4)))
    other = store(devices=turned).acquire(ask("c2", 3, OTHER))
    assert {device.uuid for device in other.devices} == {"GPU-1", "GPU-2", "GPU-3"}
    for item in (lease, other):
        item.release()


# ---- evidence ----


@pytest.fixture
def lifeline(tmp_path: Path) -> str:
    path = str(tmp_path / "life")
    os.mkfifo(path)
    return path


def leave(store: Open, evidence: dict[str, Any]) -> None:
    """A lease whose task is dead: acquired by a process that ended without a release."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            store().acquire(ask("c1", 4, evidence=evidence))
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.filterwarnings("ignore:This process")
def test_devices_of_a_dead_task_are_free_at_the_next_request(store: Open) -> None:
    leave(store, {})
    ledger = store()
    ledger.acquire(ask("c2", 4, OTHER)).release()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_payload_that_outlived_its_task_keeps_its_devices(store: Open, lifeline: str) -> None:
    payload = os.open(lifeline, os.O_RDONLY | os.O_NONBLOCK)
    leave(store, {"fifo": lifeline})
    ledger = store()
    with pytest.raises(NotEnough, match="its payload is still running"):
        ledger.acquire(ask("c2", 1, OTHER))
    assert [(reclaimed.container, reclaimed.state) for reclaimed in ledger.reclaim()] == [("c1", "alive")]
    os.close(payload)
    ledger.acquire(ask("c2", 4, OTHER)).release()


@pytest.mark.filterwarnings("ignore:This process")
def test_unknown_liveness_frees_no_device(store: Open, lifeline: str) -> None:
    leave(store, {"fifo": lifeline})
    os.unlink(lifeline)
    ledger = store()
    with pytest.raises(NotEnough, match="0 free"):
        ledger.acquire(ask("c2", 1, OTHER), timeout_s=0.2)
    [looked] = ledger.reclaim()
    assert (looked.state, looked.container, len(looked.devices)) == ("unknown", "c1", 4)
    assert ledger.record().leases[0].doubt


@pytest.mark.filterwarnings("ignore:This process")
def test_a_device_with_a_computing_process_stays_leased(store: Open, lifeline: str) -> None:
    leave(store, {"fifo": lifeline})
    busy = LivenessProbes(devices=lambda uuids: Liveness("alive", f"process 4711 computes on {min(uuids)}"))
    with pytest.raises(NotEnough):
        store(probes=busy).acquire(ask("c2", 1, OTHER))
    failing = LivenessProbes(devices=lambda uuids: Liveness("unknown", "NVML: GPU is lost"))
    with pytest.raises(NotEnough):
        store(probes=failing).acquire(ask("c2", 1, OTHER))
    store().acquire(ask("c2", 4, OTHER)).release()


@pytest.mark.filterwarnings("ignore:This process")
def test_no_lease_outlives_a_reboot(store: Open, lifeline: str) -> None:
    leave(store, {"fifo": lifeline})
    os.unlink(lifeline)
    store(probes=LivenessProbes(boot_id="another boot")).acquire(ask("c2", 4, OTHER)).release()


@pytest.mark.filterwarnings("ignore:This process")
def test_a_reclaim_frees_leases_of_gone_tasks(store: Open, lifeline: str) -> None:
    leave(store, {"fifo": lifeline})
    ledger = store()
    assert [(reclaimed.container, reclaimed.state) for reclaimed in ledger.reclaim()] == [("c1", "gone")]
    assert ledger.record().leases == ()
    assert ledger.reclaim() == []


def test_the_original_map_shows_the_holder_of_each_device(store: Open) -> None:
    ledger = store()
    lease = ledger.acquire(ask("c1", 2))
    assert rules.original_map([ledger.record()]) == {ledger.host: {"gpu0": APP, "gpu1": APP}}
    lease.release()
    assert rules.original_map([ledger.record()]) == {}
