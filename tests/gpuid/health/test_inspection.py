"""Test what keeps a GPU from being given out, and when it is looked at again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.gpuid import rules
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.inspection import (
    HealthLimits,
    Inspector,
    classify_reading,
    count_usable,
    inspect_devices,
    is_due,
    with_inspection,
)
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample, GpuProcess, Reading, xid_fault
from dlapp.gpuid.health.watch import DeviceWatch
from dlapp.gpuid.rules import PROBE_FIRST_S, PROBE_LAST_S, HostRecord, LeaseRequest, Quarantine, next_probe_ms
from tests.services.polling import PATIENCE_S, wait_until

CARDS = tuple(Device(f"GPU-{place}", place, place) for place in range(4))
MINUTE_MS = 60_000


def record() -> HostRecord:
    return rules.with_inventory(HostRecord("host03"), CARDS, boot_id="b", now_ms=0)


def fault_of(**reading: Any) -> str:
    """The fault of a GPU that reads so, as cause and detail; empty: it is well."""
    fault = classify_reading(Reading("GPU-0", **reading))
    return "" if fault is None else f"{fault.cause}: {fault.detail}"


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        ({}, ""),
        ({"error": "GPU is lost", "lost": True}, "lost: GPU is lost"),
        ({"error": "Unknown Error"}, "failing: Unknown Error"),
        ({"ecc_uncorrected": 0}, ""),
        ({"ecc_uncorrected": 1}, "ecc: an uncorrectable ECC error"),
        ({"ecc_uncorrected": 7}, "ecc: 7 uncorrectable ECC errors"),
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
def test_what_a_device_reads_decides_if_it_may_be_given_out(reading: dict[str, Any], said: str) -> None:
    assert fault_of(**reading) == said


def test_an_operator_s_limit_of_temperature_stands_before_the_device_s_own() -> None:
    warm = Reading("GPU-0", temperature_c=85, slowdown_c=90)
    assert classify_reading(warm, HealthLimits(temperature_c=80)) == DeviceFault("hot", "85 °C, the limit is 80 °C")
    assert classify_reading(warm, HealthLimits(temperature_c=95)) is None


def test_many_foreign_processes_are_counted_and_not_all_named() -> None:
    fault = classify_reading(Reading("GPU-0", compute=tuple(GpuProcess(pid, "a") for pid in range(1, 6))))
    assert fault is not None
    assert fault.detail == "process 1 (a), 2 (a), 3 (a) and 2 more computes on it"


def test_an_xid_of_the_program_is_no_fault_of_the_device() -> None:
    assert [xid_fault(xid) for xid in (13, 31, 43, 45)] == [None] * 4
    assert xid_fault(79) == DeviceFault("lost", "it fell off the bus (Xid 79)")
    assert xid_fault(48) == DeviceFault("ecc", "Xid 48")
    assert xid_fault(119) == DeviceFault("xid", "Xid 119")


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


def test_what_a_process_that_is_ending_leaves_is_waited_for() -> None:
    clock = Clock()

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        return {one.uuid: Reading(one.uuid, used_mib=9000 if clock.now_s < 2 else 3) for one in devices}

    assert inspect_devices(CARDS, read=read, clock=clock, sleep=clock.sleep) == {}
    assert 2 <= clock.now_s < 3


def test_memory_that_nobody_frees_is_a_fault_after_the_settling_time_and_only_that_device_was_waited_for() -> None:
    clock, asked = Clock(), []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        asked.append(len(devices))
        return {one.uuid: Reading(one.uuid, used_mib=9000 if one.index == 2 else 3) for one in devices}

    assert set(inspect_devices(CARDS, read=read, clock=clock, sleep=clock.sleep)) == {"GPU-2"}
    assert 5 <= clock.now_s < 6
    assert asked[0] == 4
    assert set(asked[1:]) == {1}


def test_a_fault_that_does_not_pass_is_not_waited_for() -> None:
    clock = Clock()
    lost = {one.uuid: Reading(one.uuid, error="GPU is lost", lost=True) for one in CARDS}
    assert len(inspect_devices(CARDS, read=lambda _: lost, clock=clock, sleep=clock.sleep)) == 4
    assert clock.now_s == 0


# ---- quarantine ----


def test_the_wait_for_a_probe_doubles_while_a_device_is_ill_and_with_each_time() -> None:
    first_ms = int(PROBE_FIRST_S * 1000)
    assert next_probe_ms(0, since_ms=0, count=1) == first_ms
    assert next_probe_ms(0, since_ms=0, count=3) == 4 * first_ms
    at = 0
    waits = []
    for _ in range(12):
        after = next_probe_ms(at, since_ms=0, count=1)
        waits.append(after - at)
        at = after
    assert waits[:4] == [first_ms, first_ms, 2 * first_ms, 4 * first_ms]
    assert waits[-1] == PROBE_LAST_S * 1000


@given(st.integers(0, 1 << 50), st.integers(-(1 << 50), 1 << 50), st.integers(-3, 10**9))
def test_a_probe_comes_in_time_whatever_the_clocks_say(now_ms: int, since_ms: int, count: int) -> None:
    wait_ms = next_probe_ms(now_ms, since_ms=since_ms, count=count) - now_ms
    assert PROBE_FIRST_S * 1000 <= wait_ms <= PROBE_LAST_S * 1000


def test_a_clock_that_was_set_back_keeps_no_device_in_quarantine() -> None:
    far = Quarantine("hot", probe_at_ms=10 * int(PROBE_LAST_S * 1000))
    assert is_due(far, 0)
    assert not is_due(Quarantine("hot", probe_at_ms=1000), 999)


def test_a_fault_is_noted_with_cause_time_and_count_and_the_other_devices_are_free() -> None:
    now = with_inspection(
        record(), [one.uuid for one in CARDS], {"GPU-2": DeviceFault("ecc", "an uncorrectable ECC error")}, 5000
    )
    assert [one.uuid for one in now.free()] == ["GPU-0", "GPU-1", "GPU-3"]
    found = now.device("gpu2").quarantine
    assert found == Quarantine("ecc", "an uncorrectable ECC error", 5000, 1, 5000 + MINUTE_MS)
    assert (
        rules.shortage_reason(now, 4, 5000)
        == "asked for 4 gcores, 3 free: gpu2 quarantined (an uncorrectable ECC error)"
    )


def test_a_probe_heals_and_the_next_time_counts_on() -> None:
    hot = {"GPU-2": DeviceFault("hot", "95 °C")}
    now = with_inspection(with_inspection(record(), ["GPU-2"], hot, 0), ["GPU-2"], {}, MINUTE_MS)
    assert now.device("gpu2").quarantine is None
    again = with_inspection(now, ["GPU-2"], hot, 2 * MINUTE_MS).device("gpu2").quarantine
    assert again is not None
    assert (again.count, again.since_ms, again.probe_at_ms) == (2, 2 * MINUTE_MS, 4 * MINUTE_MS)


def test_what_an_operator_put_into_quarantine_no_probe_takes_out() -> None:
    kept = rules.quarantine(record(), "gpu1", cause="operator", detail="fan", by="eve", now_ms=0)
    assert with_inspection(kept, ["GPU-1"], {}, MINUTE_MS) == kept
    assert with_inspection(kept, ["GPU-1"], {"GPU-1": DeviceFault("hot", "")}, MINUTE_MS) == kept
    inspect = Inspector(read=lambda devices: {one.uuid: Reading(one.uuid) for one in devices}, now_ms=lambda: 1 << 45)
    assert inspect(kept) == kept


def test_an_inspector_looks_at_free_devices_only_and_not_at_each_turn() -> None:
    clock, asked = Clock(), []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        asked.append([one.index for one in devices])
        return {one.uuid: Reading(one.uuid, error="GPU is lost" * (one.index == 3), lost=True) for one in devices}

    inspect = Inspector(read=read, clock=clock, sleep=clock.sleep, now_ms=clock.now_ms)
    held, _ = rules.lease(record(), LeaseRequest("a", "c", "tony", 1, ("GPU-1",)), token="t", now_ms=0)
    seen = inspect(held)
    assert asked == [[0, 2, 3]]
    assert [one.index for one in seen.free()] == [0, 2]
    assert inspect(seen) is seen
    clock.now_s = 2
    inspect(seen)
    assert asked[1:] == [[0, 2]]
    clock.now_s = PROBE_FIRST_S
    inspect(seen)
    assert asked[2:] == [[0, 2, 3]]


@pytest.mark.parametrize(("read_s", "age_s"), [(0.01, 1.0), (1.5, 7.5), (40.0, 10.0)])
def test_a_wait_inspects_less_often_where_the_driver_takes_long_to_open_the_gpus(read_s: float, age_s: float) -> None:
    clock, reads = Clock(), []

    def read(devices: Sequence[Device]) -> Mapping[str, Reading]:
        clock.now_s += read_s
        reads.append(clock.now_s)
        return {one.uuid: Reading(one.uuid) for one in devices}

    inspect = Inspector(read=read, clock=clock, sleep=clock.sleep, now_ms=clock.now_ms)
    inspect(record())
    clock.now_s = reads[0] + age_s - 0.01
    inspect(record())
    assert len(reads) == 1
    clock.now_s = reads[0] + age_s
    inspect(record())
    assert len(reads) == 2


def test_what_could_not_be_written_down_is_not_waited_for_again() -> None:
    clock = Clock()
    held = {one.uuid: Reading(one.uuid, used_mib=9000 * (one.index == 3)) for one in CARDS}
    inspect = Inspector(read=lambda _: held, clock=clock, sleep=clock.sleep, now_ms=clock.now_ms)
    inspect(record())
    before_s = clock.now_s
    again = inspect(record())
    assert clock.now_s == before_s
    assert [one.index for one in again.free()] == [0, 1, 2]


# ---- while a payload runs ----


class Devices:
    """Stand-in for NVML: what `poll` answers, turn by turn."""

    def __init__(self, *turns: dict[str, DeviceFault]) -> None:
        self.turns, self.closed = list(turns), False

    def poll(self) -> dict[str, DeviceFault]:
        return self.turns.pop(0) if len(self.turns) > 1 else self.turns[0]

    def sample(self) -> dict[str, DeviceSample]:
        return {}

    def close(self) -> None:
        self.closed = True


def test_a_device_that_is_lost_in_mid_run_is_told_at_once() -> None:
    import threading

    devices, told = Devices({}, {}, {"GPU-2": DeviceFault("lost", "it fell off the bus (Xid 79)")}), threading.Event()
    with DeviceWatch(CARDS, on_fault=told.set, open=lambda _: devices, every_s=0.001) as watch:
        assert told.wait(120)
        assert watch.message() == "gpu2 failed: it fell off the bus (Xid 79)"
    wait_until(lambda: devices.closed)


def test_a_payload_that_ended_is_asked_about_once_more() -> None:
    devices = Devices({}, {"GPU-0": DeviceFault("lost", "GPU is lost")})
    with DeviceWatch(CARDS, open=lambda _: devices, every_s=3600) as watch:
        watch.poll_now(PATIENCE_S)
        assert watch.poll_now(PATIENCE_S) == "gpu0 failed: GPU is lost"


def test_a_driver_that_does_not_answer_is_noted_and_says_nothing_on_the_devices() -> None:
    from dlapp.gpuid.health.nvml import NvmlError

    said: list[str] = []

    def refuse(_: Sequence[Device]) -> Any:
        raise NvmlError("NVML: Driver Not Loaded")

    with DeviceWatch(CARDS, open=refuse, note=said.append) as watch:
        assert watch.poll_now(PATIENCE_S) == ""
    assert said == ["the GPUs are not monitored: NVML: Driver Not Loaded"]


def test_the_default_of_the_configuration_is_what_is_allowed() -> None:
    from dlapp.config import load_config
    from dlapp.gpuid.health.inspection import ALLOWED

    assert load_config({}, {"HOME": "/nowhere"}, system_file="/nowhere").gpuid.allowed_processes == ALLOWED


def test_of_a_host_the_devices_count_that_may_be_given_out_or_are_due_for_a_look() -> None:
    assert count_usable(HostRecord("host03"), 0) is count_usable(record(), 0) is None
    operators = rules.quarantine(record(), "gpu0", cause="operator", by="root", now_ms=0)
    assert count_usable(operators, 0) == count_usable(operators, int(PROBE_LAST_S * 2000)) == 3
    found = rules.quarantine(operators, "gpu2", cause="ecc", now_ms=0)
    assert count_usable(found, 0) == 2
    assert count_usable(found, int(PROBE_FIRST_S * 1000)) == 3
    assert count_usable(rules.forget(found, by="root", now_ms=1), 1) is None
