"""Cards are looked at before they are given, in both stores."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.inspection import HealthLimits, Inspector
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.readings import GpuProcess, Reading
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.system import clock
from tests.services.processes.ledger_process import fake_devices

Store = Callable[..., Any]


class Nvml:
    """Values that NVML would read of the GPUs."""

    def __init__(self) -> None:
        self.ill: dict[str, dict[str, Any]] = {}
        self.now_ms = 10**12

    def read(self, devices: Sequence[Device]) -> Mapping[str, Reading]:
        return {device.uuid: Reading(device.uuid, **self.ill.get(device.uuid, {})) for device in devices}

    def inspector(self) -> Inspector:
        inspect = Inspector(HealthLimits(settle_s=0.05), read=self.read, now_ms=lambda: self.now_ms)
        inspect.MAX_HEALTHY_AGE_S = inspect.MAX_FAILED_AGE_S = 0.0
        return inspect


@pytest.fixture
def nvml() -> Nvml:
    return Nvml()


def ask(count: int, container: str = "container_1") -> LeaseRequest:
    return LeaseRequest("application_1_0042", container, "tony", count)


def quarantined(ledger: Any) -> dict[int, str]:
    return {device.device.index: device.quarantine.cause for device in ledger.record().devices if device.quarantine}


@pytest.mark.parametrize(
    ("ill", "cause", "message"),
    [
        ({"error": "GPU is lost", "lost": True}, "lost", "GPU is lost"),
        ({"ecc_uncorrected": 1}, "ecc", "an uncorrectable ECC error"),
        ({"compute": (GpuProcess(7, "python"),)}, "foreign-process", r"process 7 \(python\) computes on it"),
        ({"used_mib": 5000}, "memory-held", "5000 MiB are in use by no known process"),
    ],
)
def test_a_faulty_device_is_not_leased_and_the_error_has_the_reason(
    store: Store, nvml: Nvml, ill: dict[str, Any], cause: str, message: str
) -> None:
    ledger = store(inspect=nvml.inspector())
    nvml.ill["GPU-2"] = ill
    with ledger.acquire(ask(3)) as lease:
        assert [device.index for device in lease.devices] == [0, 1, 3]
        lease.release()
    with pytest.raises(NotEnough, match=rf"asked for 4 gcores, 3 free: gpu2 quarantined \({message}\)"):
        ledger.acquire(ask(4, "container_2"))
    assert quarantined(ledger) == {2: cause}


def test_an_ask_that_fails_for_an_ill_device_leaves_written_that_it_is_ill(store: Store, nvml: Nvml) -> None:
    ledger = store(inspect=nvml.inspector())
    nvml.ill["GPU-2"] = {"ecc_uncorrected": 1}
    with pytest.raises(NotEnough):
        ledger.acquire(ask(4))
    assert quarantined(store()) == {2: "ecc"}


def test_a_probe_heals_a_recovered_device_but_not_before_its_time(store: Store, nvml: Nvml) -> None:
    ledger = store(inspect=nvml.inspector())
    nvml.ill["GPU-2"] = {"ecc_uncorrected": 1}
    with pytest.raises(NotEnough):
        ledger.acquire(ask(4))
    nvml.ill.clear()
    nvml.now_ms += 30_000
    with pytest.raises(NotEnough):
        ledger.acquire(ask(4))
    nvml.now_ms += 31_000
    with ledger.acquire(ask(4)) as lease:
        lease.release()
    assert quarantined(ledger) == {}
    nvml.ill["GPU-2"] = {"ecc_uncorrected": 1}
    with pytest.raises(NotEnough):
        ledger.acquire(ask(4, "container_3"))
    assert [device.quarantine.count for device in ledger.record().devices if device.quarantine] == [2]


def test_a_heal_during_an_inspection_counts_against_its_result(store: Store, nvml: Nvml) -> None:
    """1. A request reads that a GPU is ill. 2. An operator repairs and heals it. 3. The request writes what it read."""
    store().acquire(ask(1)).release()
    nvml.ill["GPU-2"] = {"ecc_uncorrected": 1}
    inspect = nvml.inspector()

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        found = nvml.read(devices)
        if nvml.ill:
            nvml.ill.clear()
            store().heal("gpu2")
        return found

    inspect._read = read
    with store(inspect=inspect).acquire(ask(4)) as lease:
        lease.release()
    assert quarantined(store()) == {}


def test_a_drain_during_an_inspection_survives_its_result(store: Store, nvml: Nvml) -> None:
    """1. A request reads that a GPU is well, which was ill. 2. An operator closes it. 3. It writes what it read."""
    store().acquire(ask(1)).release()
    store().quarantine("gpu2", cause="ecc")
    nvml.now_ms = clock.now_ms() + 61_000
    inspect = nvml.inspector()
    drained: list[str] = []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        if not drained:
            drained.append("gpu2")
            store().quarantine("gpu2", cause="operator", detail="new fan", by="eve")
        return nvml.read(devices)

    inspect._read = read
    with pytest.raises(NotEnough, match="new fan"):
        store(inspect=inspect).acquire(ask(4))
    assert quarantined(store()) == {2: "operator"}


def test_a_condition_that_is_over_is_seen_by_the_next_request(store: Store, nvml: Nvml) -> None:
    ledger = store(inspect=nvml.inspector())
    nvml.ill["GPU-2"] = {"temperature_c": 95, "slowdown_c": 90}
    with pytest.raises(NotEnough):
        ledger.acquire(ask(4))
    nvml.ill.clear()
    with store(inspect=nvml.inspector()).acquire(ask(4)) as lease:
        lease.release()
    assert quarantined(ledger) == {}


def test_a_device_that_needs_a_reset_stays_in_quarantine_until_an_operator_heals_it(store: Store, nvml: Nvml) -> None:
    ledger = store(inspect=nvml.inspector())
    ledger.acquire(ask(1)).release()
    ledger.quarantine("GPU-2", cause="needs-reset", detail="a context switch timed out (Xid 109)", until="needs-reset")
    nvml.now_ms += 7 * 24 * 3_600_000
    with pytest.raises(NotEnough, match=r"gpu2 quarantined \(a context switch timed out \(Xid 109\)\)"):
        ledger.acquire(ask(4, "container_2"))
    assert store(inspect=nvml.inspector()).heal("gpu2")
    assert not ledger.heal("gpu2")
    with ledger.acquire(ask(4, "container_3")) as lease:
        lease.release()


def test_processes_on_a_leased_device_belong_to_its_holder(store: Store, nvml: Nvml) -> None:
    ledger = store(inspect=nvml.inspector())
    with ledger.acquire(ask(1)) as mine:
        nvml.ill[mine.devices[0].uuid] = {"compute": (GpuProcess(7, "python"),), "used_mib": 9000}
        with ledger.acquire(ask(3, "container_2")) as other:
            other.release()
        assert quarantined(ledger) == {}
        mine.release()
    with pytest.raises(NotEnough, match="quarantined"):
        ledger.acquire(ask(4, "container_3"))


def test_without_device_readings_no_device_is_leased(store: Store) -> None:
    def broken(_: Sequence[Device]) -> Mapping[str, Reading]:
        raise NvmlError("NVML: version mismatch")

    ledger = store(inspect=Inspector(read=broken))
    with pytest.raises(NvmlError, match="version mismatch"):
        ledger.acquire(ask(1))
    assert store().record().leases == ()


def test_a_hang_quarantines_all_devices_until_the_next_inspection(store: Store, nvml: Nvml) -> None:
    hangs: list[str] = []

    def discover() -> tuple[Device, ...]:
        if hangs:
            raise NvmlError(hangs[0])
        return fake_devices(4)

    ledger, nvml.now_ms = store(inspect=nvml.inspector(), discover=discover), clock.now_ms()
    with ledger.acquire(ask(1)) as lease:
        ledger.quarantine("gpu3", cause="operator", detail="fan", by="eve")
        hangs.append("NVML: the driver hangs")
        ledger.quarantine_all(cause="driver-hangs", detail=hangs[0])
        hangs.clear()
        assert quarantined(ledger) == {0: "driver-hangs", 1: "driver-hangs", 2: "driver-hangs", 3: "operator"}
        assert lease.release()
    with ledger.acquire(ask(3, "container_2")) as lease:
        assert lease.release()
    assert quarantined(ledger) == {3: "operator"}
