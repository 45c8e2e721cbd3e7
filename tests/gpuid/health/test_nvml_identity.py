"""Identity of GPUs, by PCI bus id and uuid and never by NVML's number, and which of them are opened."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid import rules
from dlapp.gpuid.devices import Device
from dlapp.values.serialization import to_json
from tests.gpuid.health.test_nvml_devices import LOOK, SAMPLE, Process
from tests.services.containers.nvml_stub import Part, StubDevice, calls, opened, record_calls

EIGHT = tuple(StubDevice(uuid=f"GPU-{place}") for place in range(8))


@pytest.fixture
def see(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*gpus: StubDevice, old: bool = False) -> Process:
        started.append(Process(tmp_path, list(gpus), old=old))
        return started[-1]

    yield start
    for item in started:
        item.close()


def device(uuid: str, index: int, place: int | None, mig: int = -1) -> Device:
    """Return a leased device at the place of a GPU of the stub; None: its bus id is not known."""
    bus_id = "" if place is None else f"00000000:{place + 1:02X}:00.0"
    return Device(uuid, index, index, pci_bus_id=bus_id, mig=mig)


def these(*devices: Device) -> str:
    """Return an expression for devices."""
    names = ("uuid", "index", "minor", "pci_bus_id", "mig")
    fields = [{name: value for name, value in to_json(device).items() if name in names} for device in devices]
    return f"[nvml.Device(**device) for device in {fields}]"


def watch(process: Process, *devices: Device) -> None:
    process.ask(f"[globals().__setitem__('watched', nvml.NvmlWatch({these(*devices)}))][0]")


def read(process: Process, *devices: Device, detailed: bool = False) -> dict[str, Any]:
    asked = f"nvml.read({these(*devices)}, detailed={detailed})"
    return dict(process.ask(f"{{uuid: one._asdict() for uuid, one in {asked}.items()}}"))


# ---- which GPU ----


def test_a_gpu_with_the_number_of_its_node_is_watched_where_nvml_numbers_only_the_visible_ones(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-3333", minor=3))
    watch(process, device("GPU-3333", index=3, place=0))
    assert process.ask(LOOK) == {}
    assert list(process.ask(SAMPLE)) == ["GPU-3333"]


@pytest.mark.parametrize("known", [True, False], ids=["bus id", "uuid only"])
def test_the_leased_one_of_two_visible_gpus_is_watched_with_any_index(see: Any, known: bool) -> None:
    process = see(StubDevice(uuid="GPU-a", used=1 << 30), StubDevice(uuid="GPU-b", error=15))
    watch(process, device("GPU-a", index=1, place=0 if known else None))  # NVML's number 1 is the lost one
    assert process.ask(LOOK) == {}
    assert process.ask(SAMPLE)["GPU-a"]["used_mib"] == 1024
    process.change(StubDevice(uuid="GPU-a", error=15), StubDevice(uuid="GPU-b"))
    assert process.ask(LOOK)["GPU-a"]["cause"] == "lost"


def test_a_mig_device_is_found_on_its_gpu_with_any_indexes(see: Any) -> None:
    split = StubDevice(uuid="GPU-b", mig=(Part("MIG-x"), Part("MIG-y", used=3 << 30)), temperature=61)
    process = see(StubDevice(uuid="GPU-a"), split)
    leased = device("MIG-y", index=7, place=1, mig=0)
    watch(process, leased)
    sample = process.ask(SAMPLE)["MIG-y"]
    assert (sample["used_mib"], sample["temperature_c"]) == (3072, 61)
    reading = read(process, leased)["MIG-y"]
    assert (reading["used_mib"], reading["temperature_c"]) == (3072, 61)


def test_a_mig_device_without_a_known_place_is_found_by_its_uuid_also_in_the_old_form(see: Any) -> None:
    uuid = "MIG-GPU-5555/1/0"
    process = see(
        StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-5555", mig=(Part(uuid, used=1 << 30),), temperature=55)
    )
    assert [item["uuid"] for item in process.devices()] == ["GPU-a", uuid]
    for leased in (device(uuid, index=0, place=None, mig=0), device(uuid, index=0, place=0, mig=0)):
        reading = read(process, leased)[uuid]
        assert (reading["error"], reading["used_mib"], reading["temperature_c"]) == ("", 1024, 55)


def test_a_gpu_whose_place_another_one_has_taken_is_found_by_its_uuid(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-new", temperature=80), StubDevice(uuid="GPU-moved", temperature=40))
    assert read(process, device("GPU-moved", index=0, place=0))["GPU-moved"]["temperature_c"] == 40


@pytest.mark.parametrize("code", [2, 3, 13])
def test_a_gpu_is_found_by_its_uuid_without_bus_ids(see: Any, code: int) -> None:
    process = see(StubDevice(uuid="GPU-a", temperature=40, errors=(("nvmlDeviceGetHandleByPciBusId", code),)))
    assert read(process, device("GPU-a", index=0, place=0))["GPU-a"]["temperature_c"] == 40


def test_a_gpu_that_is_not_there_is_lost_to_a_reading_and_to_a_watch(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a"))
    gone = device("GPU-b", index=0, place=1)
    reading = read(process, gone)["GPU-b"]
    assert (reading["error"], reading["lost"]) == ("it is not there", True)
    watch(process, gone)
    assert process.ask(LOOK)["GPU-b"] == {"cause": "lost", "detail": "it is not there", "passing": False, "until": ""}


def test_a_name_that_is_no_uuid_is_that_of_no_gpu(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a", errors=(("nvmlDeviceGetHandleByUUID", 2),)))
    assert read(process, device("no uuid", index=0, place=None))["no uuid"]["error"] == "it is not there"
    assert process.ask("gpu_processes.processes_on(['no uuid'], nvml)")[0] == "gone"


def test_a_gpu_that_cannot_be_opened_for_now_is_not_lost_and_is_watched_as_soon_as_it_can(see: Any) -> None:
    gpu = StubDevice(uuid="GPU-a", errors=(("nvmlDeviceGetHandleByPciBusId", 999),))
    process = see(gpu)
    watch(process, device("GPU-a", index=0, place=0))
    assert (process.ask(LOOK), process.ask(SAMPLE)) == ({}, {})
    process.change(StubDevice(uuid="GPU-a"))
    assert process.ask(LOOK) == {}
    assert list(process.ask(SAMPLE)) == ["GPU-a"]
    process.change(StubDevice(uuid="GPU-a", error=15))
    assert process.ask(LOOK)["GPU-a"]["cause"] == "lost"


# ---- which are opened ----


def test_a_watch_opens_the_leased_gpus_and_no_other_so_that_an_operator_can_reset_those(
    see: Any, tmp_path: Path
) -> None:
    process = see(*EIGHT)
    record_calls(tmp_path)
    watch(process, device("GPU-1", index=1, place=1), device("GPU-6", index=6, place=6))
    process.ask(LOOK)
    process.ask(SAMPLE)
    assert opened(tmp_path) == {1, 6}


def test_a_reading_opens_each_requested_device_once_and_no_other(see: Any, tmp_path: Path) -> None:
    process = see(*EIGHT)
    record_calls(tmp_path)
    read(process, device("GPU-5", index=5, place=5))
    asked = Counter(function for _, function, _ in calls(tmp_path))
    assert {place for _, _, place in calls(tmp_path)} == {-1, 5}
    assert asked["nvmlDeviceGetHandleByPciBusId_v2"] == asked["nvmlInitWithFlags"] == asked["nvmlShutdown"] == 1
    # What only an operator reads costs a lease nothing.
    shown = ("NvLinkState", "Pcie", "Clocks", "Persistence")
    assert not [item for item in asked if any(word in item for word in shown)]
    assert sum(asked.values()) <= 24


def test_a_mig_device_is_opened_through_its_gpu_alone(see: Any, tmp_path: Path) -> None:
    process = see(StubDevice(uuid="GPU-0"), StubDevice(uuid="GPU-1", mig=(Part("MIG-a"),)), StubDevice(uuid="GPU-2"))
    record_calls(tmp_path)
    watch(process, device("MIG-a", index=1, place=1, mig=0))
    read(process, device("MIG-a", index=1, place=1, mig=0))
    assert opened(tmp_path) == {1}


def test_a_lost_gpu_does_not_make_nvml_search_the_others(see: Any, tmp_path: Path) -> None:
    process = see(StubDevice(uuid="GPU-0"), StubDevice(uuid="GPU-1", error=15), StubDevice(uuid="GPU-2"))
    record_calls(tmp_path)
    assert read(process, device("GPU-1", index=1, place=1))["GPU-1"]["lost"]
    assert opened(tmp_path) == {1}


def test_discovery_opens_all_gpus_and_closes_them_before_it_returns(see: Any, tmp_path: Path) -> None:
    process = see(*EIGHT[:3])
    record_calls(tmp_path)
    process.devices()
    assert opened(tmp_path) == {0, 1, 2}
    assert calls(tmp_path)[-1][1] == "nvmlShutdown"


def test_evidence_of_a_payload_opens_only_the_gpus_of_its_lease(see: Any, tmp_path: Path) -> None:
    process = see(*EIGHT)
    record_calls(tmp_path)
    assert process.ask("gpu_processes.processes_on(['GPU-0'], nvml)")[0] == "gone"
    assert opened(tmp_path) == {0}


def test_a_gpu_closed_by_an_operator_is_not_opened_by_list_or_exporter(see: Any, tmp_path: Path) -> None:
    process = see(*EIGHT[:3])
    devices = (rules.DeviceRecord(device(f"GPU-{place}", place, place)) for place in range(3))
    record = rules.HostRecord("box", tuple(devices))
    record = rules.quarantine(record, "GPU-1", cause="operator", detail="reset", by="ann", now_ms=1)
    record = rules.quarantine(record, "GPU-2", cause="ecc", detail="an error", now_ms=1)
    ledger = "__import__('dlapp.client.machine.gpu_ledger', fromlist=['GpuLedger']).GpuLedger"
    of_nvml = "__import__('types').SimpleNamespace(_nvml=nvml)"
    record_calls(tmp_path)
    pickled = f"__import__('pickle').loads({pickle.dumps(record)!r})"
    assert process.ask(f"sorted({ledger}._readings({of_nvml}, {pickled})[0])") == ["GPU-0", "GPU-2"]
    assert opened(tmp_path) == {0, 2}
