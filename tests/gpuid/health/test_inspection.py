"""Test what keeps a GPU from being given out, and when it is looked at again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.gpuid import rules
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.driver_load import driver_load
from dlapp.gpuid.health.inspection import (
    HealthLimits,
    Inspector,
    classify_reading,
    due_for_inspection,
    inspect_devices,
    is_due,
    with_inspection,
)
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample, GpuProcess, Reading
from dlapp.gpuid.health.watch import DeviceWatch
from dlapp.gpuid.needs import PLAIN, Demand
from dlapp.gpuid.record_json import from_bytes, to_bytes
from dlapp.gpuid.rules import PROBE_FIRST_S, PROBE_LAST_S, HostRecord, LeaseRequest, Quarantine, next_probe_ms
from tests.services.polling import PATIENCE_S, wait_until

DEVICES = tuple(Device(f"GPU-{place}", place, place) for place in range(4))
MINUTE_MS = 60_000


def record() -> HostRecord:
    return rules.with_inventory(HostRecord("host03"), DEVICES, boot_id="b", now_ms=0)


def fault_of(**reading: Any) -> str:
    """The fault of a GPU that reads so, as cause and detail; empty: it is well."""
    fault = classify_reading(Reading("GPU-0", **reading))
    return "" if fault is None else f"{fault.cause}: {fault.detail}"


@pytest.mark.parametrize(
    ("reading", "message"),
    [
        ({}, ""),
        ({"error": "GPU is lost", "lost": True}, "lost: GPU is lost"),
        ({"error": "Unknown Error"}, "failing: Unknown Error"),
        ({"ecc_uncorrected": 0}, ""),
        ({"ecc_uncorrected": 1}, "ecc: an uncorrectable ECC error"),
        ({"ecc_uncorrected": 7}, "ecc: 7 uncorrectable ECC errors"),
        ({"ecc_uncorrected": 7, "reset_pending": True, "needs_no_recovery": True}, ""),
        ({"remap_failed": True, "needs_no_recovery": True}, "ecc: a memory row could not be remapped"),
        ({"remap_failed": True}, "ecc: a memory row could not be remapped"),
        ({"reset_pending": True}, "needs-reset: memory is to be retired by a reset of the GPU"),
        ({"recovery": "a reboot"}, "needs-reset: the driver asks for a reboot"),
        ({"temperature_c": 89, "slowdown_c": 90}, ""),
        ({"temperature_c": 90, "slowdown_c": 90}, "hot: 90 °C, the limit is 90 °C"),
        ({"temperature_c": 90}, ""),
        ({"prohibited": True}, "prohibited: its compute mode is prohibited"),
        ({"compute": (GpuProcess(7, "python"),)}, "foreign-process: process 7 (python) computes on it"),
        ({"compute": (GpuProcess(7, ""),)}, "foreign-process: process 7 (whose name is hidden) computes on it"),
        ({"compute": (GpuProcess(7, "nvidia-cuda-mps-server"),)}, ""),
        ({"compute": (GpuProcess(7, "nvidia-cuda-mps"),)}, ""),
        ({"compute": (GpuProcess(7, "nvidia"),)}, "foreign-process: process 7 (nvidia) computes on it"),
        ({"compute": None}, ""),
        ({"used_mib": 256}, ""),
        ({"used_mib": 257}, "memory-held: 257 MiB are in use by no known process"),
        ({"used_mib": 900, "graphics": (GpuProcess(7, "Xorg"),)}, ""),
        ({"used_mib": 900, "compute": (GpuProcess(7, "nvidia-cuda-mps-server"),)}, ""),
        ({"used_mib": 900, "reserved_is_apart": False}, ""),
        ({"used_mib": 1025, "reserved_is_apart": False}, "memory-held: 1025 MiB are in use by no known process"),
    ],
)
def test_a_devices_reading_decides_whether_it_may_be_leased(reading: dict[str, Any], message: str) -> None:
    assert fault_of(**reading) == message


def test_an_operators_temperature_limit_overrides_the_devices() -> None:
    warm = Reading("GPU-0", temperature_c=85, slowdown_c=90)
    assert classify_reading(warm, HealthLimits(temperature_c=80)) == DeviceFault("hot", "85 °C, the limit is 80 °C")
    assert classify_reading(warm, HealthLimits(temperature_c=95)) is None


def test_many_foreign_processes_are_counted_and_not_all_named() -> None:
    fault = classify_reading(Reading("GPU-0", compute=tuple(GpuProcess(pid, "a") for pid in range(1, 6))))
    assert fault is not None
    assert fault.detail == "process 1 (a), 2 (a), 3 (a) and 2 more computes on it"


class Clock:
    """A clock that goes on when somebody sleeps."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds

    def now_ms(self) -> int:
        return int(self.now_s * 1000)


def test_memory_of_an_ending_process_is_waited_for() -> None:
    clock = Clock()

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        return {device.uuid: Reading(device.uuid, used_mib=9000 if clock.now_s < 2 else 3) for device in devices}

    assert inspect_devices(DEVICES, read=read, clock=clock, sleep=clock.sleep) == {}
    assert 2 <= clock.now_s < 3


def test_unreleased_memory_is_a_fault_after_the_settling_time_of_that_device() -> None:
    clock, asked = Clock(), []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        asked.append(len(devices))
        return {device.uuid: Reading(device.uuid, used_mib=9000 if device.index == 2 else 3) for device in devices}

    assert set(inspect_devices(DEVICES, read=read, clock=clock, sleep=clock.sleep)) == {"GPU-2"}
    assert 5 <= clock.now_s < 6
    assert asked[0] == 4
    assert set(asked[1:]) == {1}


def test_a_fault_that_does_not_pass_is_not_waited_for() -> None:
    clock = Clock()
    lost = {device.uuid: Reading(device.uuid, error="GPU is lost", lost=True) for device in DEVICES}
    assert len(inspect_devices(DEVICES, read=lambda _: lost, clock=clock, sleep=clock.sleep)) == 4
    assert clock.now_s == 0


# ---- quarantine ----


def test_the_wait_for_a_probe_doubles_while_a_device_is_ill_and_with_each_time() -> None:
    first_ms = int(PROBE_FIRST_S * 1000)
    assert next_probe_ms(0, since_ms=0, count=1) == first_ms
    assert next_probe_ms(0, since_ms=0, count=3) == 4 * first_ms
    now_ms = 0
    waits = []
    for _ in range(12):
        after = next_probe_ms(now_ms, since_ms=0, count=1)
        waits.append(after - now_ms)
        now_ms = after
    assert waits[:4] == [first_ms, first_ms, 2 * first_ms, 4 * first_ms]
    assert waits[-1] == PROBE_LAST_S * 1000


@given(st.integers(0, 1 << 50), st.integers(-(1 << 50), 1 << 50), st.integers(-3, 10**9))
def test_a_probe_is_scheduled_within_its_bounds_for_any_clock(now_ms: int, since_ms: int, count: int) -> None:
    wait_ms = next_probe_ms(now_ms, since_ms=since_ms, count=count) - now_ms
    assert PROBE_FIRST_S * 1000 <= wait_ms <= PROBE_LAST_S * 1000


def test_a_clock_that_was_set_back_keeps_no_device_in_quarantine() -> None:
    far = Quarantine("hot", probe_at_ms=10 * int(PROBE_LAST_S * 1000))
    assert is_due(far, 0)
    assert not is_due(Quarantine("hot", probe_at_ms=1000), 999)


def test_a_fault_is_noted_with_cause_time_and_count_and_the_other_devices_are_free() -> None:
    now = with_inspection(
        record(), [device.uuid for device in DEVICES], {"GPU-2": DeviceFault("ecc", "an uncorrectable ECC error")}, 5000
    )
    assert [device.uuid for device in now.free()] == ["GPU-0", "GPU-1", "GPU-3"]
    found = now.device("gpu2").quarantine
    assert found == Quarantine("ecc", "an uncorrectable ECC error", 5000, 1, 5000 + MINUTE_MS)
    assert (
        rules.shortage_reason(now, (Demand(4, PLAIN),), 5000)
        == "asked for 4 gcores, 3 free: gpu2 quarantined (an uncorrectable ECC error)"
    )


def test_a_probe_heals_and_the_next_time_counts_on() -> None:
    ill = {"GPU-2": DeviceFault("ecc", "an uncorrectable ECC error")}
    now = with_inspection(with_inspection(record(), ["GPU-2"], ill, 0), ["GPU-2"], {}, MINUTE_MS)
    assert now.device("gpu2").quarantine is None
    again = with_inspection(now, ["GPU-2"], ill, 2 * MINUTE_MS).device("gpu2").quarantine
    assert again is not None
    assert (again.count, again.since_ms, again.probe_at_ms) == (2, 2 * MINUTE_MS, 4 * MINUTE_MS)


def test_a_condition_never_counts_and_does_not_lengthen_the_wait_for_a_probe() -> None:
    now, at_ms = record(), 0
    for _ in range(10):
        now = with_inspection(now, ["GPU-2"], {"GPU-2": DeviceFault("foreign-process", "process 7", True)}, at_ms)
        found = now.device("gpu2").quarantine
        assert found is not None
        assert (found.count, found.probe_at_ms - at_ms, now.device("gpu2").failures) == (1, MINUTE_MS, 0)
        now = with_inspection(now, ["GPU-2"], {}, at_ms + MINUTE_MS)
        at_ms += 7 * 24 * 60 * MINUTE_MS


def test_a_failure_under_a_condition_counts_and_a_condition_under_a_failure_keeps_its_count() -> None:
    hot, ill = {"GPU-2": DeviceFault("hot", "95 °C")}, {"GPU-2": DeviceFault("ecc", "an uncorrectable ECC error")}
    now = with_inspection(with_inspection(record(), ["GPU-2"], hot, 0), ["GPU-2"], ill, 1000)
    found = now.device("gpu2")
    assert (found.failures, found.failed_ms, found.quarantine and found.quarantine.since_ms) == (1, 1000, 1000)
    now = with_inspection(now, ["GPU-2"], hot, 2000)
    assert (now.device("gpu2").failures, now.device("gpu2").quarantine) == (
        1,
        Quarantine("hot", "95 °C", since_ms=1000, count=1, probe_at_ms=2000 + MINUTE_MS),
    )


def test_half_of_the_failures_are_forgotten_after_each_week() -> None:
    week_ms, now = rules.FADE_MS, record()
    for at_ms in range(8):
        now = rules.heal(rules.quarantine(now, "gpu2", cause="ecc", now_ms=1000 + at_ms), "gpu2")
    assert now.device("gpu2").failures == 8

    def count_after(wait_ms: int) -> int:
        found = rules.quarantine(now, "gpu2", cause="ecc", now_ms=1007 + wait_ms).device("gpu2").quarantine
        assert found is not None
        return found.count

    assert [count_after(wait) for wait in (0, week_ms - 1, week_ms, 3 * week_ms, 500 * week_ms, -5)] == [
        9,
        9,
        5,
        2,
        1,
        9,
    ]


def test_a_failure_count_without_a_time_does_not_decay_until_it_is_rewritten() -> None:
    old = rules.HostRecord("host03", (rules.DeviceRecord(DEVICES[0], failures=4),), boot_id="b")
    found = rules.quarantine(old, "gpu0", cause="ecc", now_ms=rules.FADE_MS * 99).device("gpu0")
    assert (found.failures, found.failed_ms) == (5, rules.FADE_MS * 99)


# ---- until a reset ----

LOAD, OTHER_LOAD = "4711", "5000"


def needs_reset(until: str = "needs-reset") -> HostRecord:
    return rules.quarantine(
        record(), "gpu2", cause=until, detail="a context switch timed out (Xid 109)", now_ms=0, until=until, driver=LOAD
    )


def of_inspection(before: HostRecord, fault: DeviceFault | None = None, driver: str = LOAD) -> Quarantine | None:
    faults = {} if fault is None else {"GPU-2": fault}
    return with_inspection(before, ["GPU-2"], faults, MINUTE_MS, driver).device("gpu2").quarantine


def test_a_device_that_needs_a_reset_is_not_healed_by_an_inspection_without_findings() -> None:
    found = of_inspection(needs_reset())
    assert found is not None
    assert (found.cause, found.since_ms, found.probe_at_ms) == ("needs-reset", 0, 2 * MINUTE_MS)


def test_with_an_unknown_driver_a_device_that_needs_a_reset_stays_in_quarantine() -> None:
    assert of_inspection(needs_reset(), driver="") is not None


def test_another_load_of_the_driver_is_a_reset_and_is_no_reboot() -> None:
    assert of_inspection(needs_reset(), driver=OTHER_LOAD) is None
    assert of_inspection(needs_reset("needs-reboot"), driver=OTHER_LOAD) is not None


@pytest.mark.parametrize("until", ["needs-reset", "needs-reboot"])
def test_a_reboot_is_a_reset(until: str) -> None:
    booted = rules.with_inventory(needs_reset(until), DEVICES, boot_id="c", now_ms=MINUTE_MS)
    assert of_inspection(booted) is None


def test_a_requested_reset_is_done_when_the_driver_no_longer_requests_it() -> None:
    asked = DeviceFault("needs-reset", "the driver asks for a reset of the GPU")
    now = with_inspection(needs_reset(), ["GPU-2"], {"GPU-2": asked}, MINUTE_MS, LOAD)
    found = now.device("gpu2").quarantine
    assert found is not None
    assert (found.detail, found.count) == (asked.detail, 1)
    assert of_inspection(now) is None


def test_another_fault_does_not_hide_the_need_of_a_reset() -> None:
    found = of_inspection(needs_reset(), DeviceFault("foreign-process", "process 7 (python) computes on it", True))
    assert found is not None
    assert found.cause == "needs-reset"
    assert of_inspection(needs_reset("needs-reboot"), DeviceFault("needs-reset", "the driver asks for a drain"))
    lesser = rules.quarantine(
        needs_reset("needs-reboot"), "gpu2", cause="needs-reset", now_ms=9, until="needs-reset", driver=OTHER_LOAD
    )
    assert (
        lesser.device("gpu2").quarantine
        == rules.delay_probe(needs_reset("needs-reboot"), "gpu2", 9).device("gpu2").quarantine
    )


def test_an_operator_ends_the_need_of_a_reset() -> None:
    assert rules.heal(needs_reset(), "gpu2", forgive=True, now_ms=5).device("gpu2").quarantine is None


def test_values_compared_after_a_reset_are_stored_in_the_record() -> None:
    stored = rules.heal(needs_reset("needs-reset"), "gpu1", forgive=True, now_ms=77)
    assert from_bytes(to_bytes(stored), "host03") == stored
    found = stored.device("gpu2").quarantine
    assert found is not None
    assert (found.boot_id, found.driver, stored.device("gpu1").healed_ms) == ("b", LOAD, 77)


def test_after_a_reset_a_device_is_inspected_at_once() -> None:
    assert DEVICES[2] not in due_for_inspection(needs_reset(), 1, LOAD)
    assert DEVICES[2] in due_for_inspection(needs_reset(), 1, OTHER_LOAD)
    booted = rules.with_inventory(needs_reset(), DEVICES, boot_id="c", now_ms=1)
    assert DEVICES[2] in due_for_inspection(booted, 1, LOAD)


def test_the_identity_of_the_drivers_load_is_the_modules_directory(tmp_path: Path) -> None:
    module = tmp_path / "nvidia"
    assert driver_load(str(module)) == ""
    module.mkdir()
    assert driver_load(str(module)) == str(module.stat().st_ino)


def test_no_probe_ends_an_operators_quarantine() -> None:
    stored = rules.quarantine(record(), "gpu1", cause="operator", detail="fan", by="eve", now_ms=0)
    assert with_inspection(stored, ["GPU-1"], {}, MINUTE_MS) == stored
    assert with_inspection(stored, ["GPU-1"], {"GPU-1": DeviceFault("hot", "")}, MINUTE_MS) == stored
    inspect = Inspector(
        read=lambda devices: {device.uuid: Reading(device.uuid) for device in devices}, now_ms=lambda: 1 << 45
    )
    assert inspect(stored) == stored


def test_an_inspector_reads_free_devices_only_and_not_each_time() -> None:
    clock, asked = Clock(), []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        asked.append([device.index for device in devices])
        return {
            device.uuid: Reading(device.uuid, error="GPU is lost" * (device.index == 3), lost=True)
            for device in devices
        }

    inspect = Inspector(read=read, clock=clock, sleep=clock.sleep, now_ms=clock.now_ms, driver=lambda: LOAD)
    held, _ = rules.lease(record(), LeaseRequest("a", "c", "tony", 1, ("GPU-1",)), token="t", now_ms=0)
    seen = inspect(held)
    assert asked == [[0, 2, 3]]
    assert [item.index for item in seen.free()] == [0, 2]
    assert inspect(seen) is seen
    clock.now_s = 2
    inspect(seen)
    assert asked[1:] == [[0, 2]]
    clock.now_s = PROBE_FIRST_S
    inspect(seen)
    assert asked[2:] == [[0, 2, 3]]


@pytest.mark.parametrize(("read_s", "age_s"), [(0.01, 1.0), (1.5, 7.5), (40.0, 10.0)])
def test_a_wait_inspects_less_often_with_a_slow_driver(read_s: float, age_s: float) -> None:
    clock, reads = Clock(), []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        clock.now_s += read_s
        reads.append(clock.now_s)
        return {device.uuid: Reading(device.uuid) for device in devices}

    inspect = Inspector(read=read, clock=clock, sleep=clock.sleep, now_ms=clock.now_ms)
    inspect(record())
    clock.now_s = reads[0] + age_s - 0.01
    inspect(record())
    assert len(reads) == 1
    clock.now_s = reads[0] + age_s
    inspect(record())
    assert len(reads) == 2


def test_a_finding_that_could_not_be_stored_causes_no_second_wait() -> None:
    clock = Clock()
    held = {device.uuid: Reading(device.uuid, used_mib=9000 * (device.index == 3)) for device in DEVICES}
    inspect = Inspector(read=lambda _: held, clock=clock, sleep=clock.sleep, now_ms=clock.now_ms)
    inspect(record())
    before_s = clock.now_s
    again = inspect(record())
    assert clock.now_s == before_s
    assert [item.index for item in again.free()] == [0, 1, 2]


class Occupied:
    """Devices of which the last has a foreign process, until ``ends_s``."""

    def __init__(self) -> None:
        self.clock, self.ends_s, self.reads = Clock(), 1e9, list[float]()
        self.inspect = Inspector(
            read=self.read,
            clock=self.clock,
            sleep=self.clock.sleep,
            now_ms=lambda: 1_000_000 + self.clock.now_ms(),
            driver=lambda: LOAD,
        )

    def read(self, devices: Sequence[Device]) -> Mapping[str, Reading]:
        if any(device.index == 3 for device in devices):
            self.reads.append(self.clock.now_s)
        is_there = self.clock.now_s < self.ends_s
        process = (GpuProcess(7, "python"),)
        return {
            device.uuid: Reading(device.uuid, compute=process if is_there and device.index == 3 else ())
            for device in devices
        }


def test_a_heal_counts_against_every_verdict_from_before_it() -> None:
    """1. A waiting request finds a process on a GPU. 2. The operator ends it, and heals. 3. The request asks again."""
    one = Occupied()
    ill = one.inspect(record())
    assert ill.device("gpu3").quarantine is not None
    one.ends_s = one.clock.now_s
    healed = rules.heal(ill, "gpu3", forgive=True, now_ms=1)
    assert one.inspect(healed).device("gpu3").quarantine is None


def test_a_heal_that_no_request_has_seen_between_two_of_its_inspections_counts_too() -> None:
    one = Occupied()
    ill = one.inspect(record())
    one.ends_s = one.clock.now_s
    again = rules.heal(
        rules.quarantine(rules.heal(ill, "gpu3", forgive=True, now_ms=1), "gpu3", cause="hot", now_ms=2), "gpu3"
    )
    assert one.inspect(again).device("gpu3").quarantine is None


def test_a_condition_is_inspected_at_each_request_at_most_every_five_seconds_without_settling() -> None:
    one = Occupied()
    now = one.inspect(record())
    began_s, settled = one.clock.now_s, len(one.reads)
    while one.clock.now_s < began_s + 20:
        one.clock.sleep(1.0)
        now = one.inspect(now)
    looks = one.reads[settled - 1 :]
    assert all(4.9 < after - before < 6.1 for before, after in pairwise(looks))
    assert len(looks) in (4, 5)
    assert now.device("gpu3").quarantine is not None
    one.ends_s = one.clock.now_s
    one.clock.sleep(5.0)
    assert one.inspect(now).device("gpu3").quarantine is None


def test_another_request_inspects_a_condition_at_once() -> None:
    one, other = Occupied(), Occupied()
    other.ends_s = 0
    assert other.inspect(one.inspect(record())).device("gpu3").quarantine is None


def test_a_condition_that_lasts_is_not_written_at_each_inspection() -> None:
    one = Occupied()
    now = one.inspect(record())
    one.clock.sleep(6.0)
    assert one.inspect(now) is now


# ---- while a payload runs ----


class Devices:
    """Stand-in for NVML: what `poll` answers, turn by turn."""

    def __init__(self, *turns: dict[str, DeviceFault]) -> None:
        self.turns, self.closed = list(turns), False

    def poll(self) -> dict[str, DeviceFault]:
        return self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]

    def take_xids(self) -> list[tuple[str, int]]:
        return []

    def sample(self) -> dict[str, DeviceSample]:
        return {}

    def close(self) -> None:
        self.closed = True


def test_a_device_lost_during_a_run_is_reported_at_once() -> None:
    import threading

    devices, notified = (
        Devices({}, {}, {"GPU-2": DeviceFault("lost", "it fell off the bus (Xid 79)")}),
        threading.Event(),
    )
    with DeviceWatch(DEVICES, on_fault=notified.set, open=lambda _: devices, every_s=0.001) as watch:
        assert notified.wait(120)
        assert watch.message() == "gpu2 failed: it fell off the bus (Xid 79)"
    wait_until(lambda: devices.closed)


def test_devices_of_an_ended_payload_are_read_once_more() -> None:
    devices = Devices({}, {"GPU-0": DeviceFault("lost", "GPU is lost")})
    with DeviceWatch(DEVICES, open=lambda _: devices, every_s=3600) as watch:
        watch.poll_now(PATIENCE_S)
        assert watch.poll_now(PATIENCE_S) == "gpu0 failed: GPU is lost"


def test_an_unresponsive_driver_is_noted_and_is_no_fault_of_the_devices() -> None:
    from dlapp.gpuid.health.nvml import NvmlError

    messages: list[str] = []

    def refuse(_: Sequence[Device]) -> Any:
        raise NvmlError("NVML: Driver Not Loaded")

    with DeviceWatch(DEVICES, open=refuse, note=messages.append) as watch:
        assert watch.poll_now(PATIENCE_S) == ""
    assert messages == ["the GPUs are not monitored: NVML: Driver Not Loaded"]


def test_the_default_of_the_configuration_is_the_allowed_set() -> None:
    from dlapp.config import load_config
    from dlapp.gpuid.health.inspection import ALLOWED

    assert load_config({}, {"HOME": "/nowhere"}, system_file="/nowhere").gpuid.allowed_processes == ALLOWED
