"""Test how many GPUs and slices of a host are counted, for whom."""

from __future__ import annotations

from dlapp.gpuid import rules
from dlapp.gpuid.counts import count_devices, devices_out_of, usable_devices
from dlapp.gpuid.needs import MIG_SLICE, PLAIN, Demand, DeviceNeed, number_text
from dlapp.gpuid.rules import PROBE_FIRST_S, PROBE_LAST_S, HostRecord
from dlapp.value import replace
from tests.gpuid.test_needs import LARGE, MIXED, SMALL, leased, record_of, whole_gpu

GPU, SLICE = (Demand(1, PLAIN),), (Demand(1, DeviceNeed(MIG_SLICE)),)
FOUR = tuple(map(whole_gpu, range(4)))


def uuids_of(record: HostRecord, now_ms: int) -> list[str] | None:
    found = usable_devices(record, now_ms)
    return None if found is None else [device.uuid for device in found]


def test_slices_do_not_count_as_gpus_and_gpus_not_as_slices() -> None:
    record = record_of(MIXED)
    assert count_devices(record, GPU) == (3, 0, 3)
    assert count_devices(record, SLICE) == (2, 0, 2)
    assert count_devices(record, (*GPU, *SLICE)) == (5, 0, 5)
    assert count_devices(record, (Demand(1, DeviceNeed(MIG_SLICE, 20_000)),)) == (1, 0, 1)


def test_leased_quarantined_absent_or_unavailable_devices_are_not_free() -> None:
    record, taken = leased(record_of(MIXED), "container_1", 1)
    assert taken == ["GPU-1"]
    record = rules.quarantine(record, "gpu2", cause="operator", by="root", now_ms=1)
    assert count_devices(record, GPU) == (1, 1, 3)
    assert count_devices(record, GPU, {"GPU-3", "GPU-2", SMALL.uuid}) == (0, 2, 3), "each counts once"
    assert count_devices(record, SLICE, {SMALL.uuid}) == (1, 1, 2)
    gone = rules.with_inventory(
        record, [device for device in MIXED if device.uuid != "GPU-2"], boot_id="boot", now_ms=2
    )
    assert count_devices(gone, GPU) == (1, 0, 2)


def test_a_gpu_in_quarantine_that_an_application_has_counts_as_that_application_s_only() -> None:
    record, _ = leased(record_of(MIXED), "container_1", 1)
    for name in ("gpu1", "gpu0:1"):
        record = rules.quarantine(record, name, cause="ecc", now_ms=1)
    running = {lease.application for lease in record.leases}
    assert devices_out_of(record, running) == (LARGE,)
    assert [device.uuid for device in devices_out_of(record, ())] == [LARGE.uuid, "GPU-1"]


def test_a_hosts_leasable_devices_and_those_due_for_inspection_count() -> None:
    record = record_of(FOUR)
    assert uuids_of(HostRecord("host03"), 0) is uuids_of(record, 0) is None
    operators = rules.quarantine(record, "gpu0", cause="operator", by="root", now_ms=0)
    three = ["GPU-1", "GPU-2", "GPU-3"]
    assert uuids_of(operators, 0) == uuids_of(operators, int(PROBE_LAST_S * 2000)) == three
    found = rules.quarantine(operators, "gpu2", cause="ecc", now_ms=0)
    assert uuids_of(found, 0) == ["GPU-1", "GPU-3"]
    assert uuids_of(found, int(PROBE_FIRST_S * 1000)) == three
    assert uuids_of(rules.forget(found, by="root", now_ms=1), 1) is None


def test_a_gpu_that_was_split_since_counts_as_its_slices_only() -> None:
    bus_id = "00000000:01:00.0"
    gpu, slices = replace(FOUR[0], pci_bus_id=bus_id), [replace(item, pci_bus_id=bus_id) for item in (SMALL, LARGE)]
    failed = rules.quarantine(record_of([gpu, *FOUR[1:]]), "gpu0", cause="ecc", now_ms=0)
    split = rules.with_inventory(failed, [*slices, *FOUR[1:]], boot_id="boot", now_ms=1)
    assert [device.device.uuid for device in split.devices if not device.present] == ["GPU-0"]
    assert uuids_of(split, int(PROBE_FIRST_S * 1000)) is None
    closed = rules.quarantine(split, "gpu1", cause="operator", by="root", now_ms=1)
    uuids = [SMALL.uuid, LARGE.uuid, "GPU-2", "GPU-3"]
    assert uuids_of(closed, 1) == uuids_of(closed, int(PROBE_FIRST_S * 1000)) == uuids
    lost = rules.with_inventory(failed, FOUR[1:], boot_id="boot", now_ms=1)
    assert uuids_of(lost, int(PROBE_FIRST_S * 1000)) is None, "nothing is in its place"
    assert uuids_of(lost, 1) == ["GPU-1", "GPU-2", "GPU-3"]


def test_numbers_of_gpus_and_slices_are_shown_separately() -> None:
    assert [number_text(item) for item in ((), FOUR, FOUR[:1], MIXED, (SMALL,))] == [
        "0 GPUs",
        "4 GPUs",
        "1 GPU",
        "3 GPUs and 2 slices",
        "1 slice",
    ]
