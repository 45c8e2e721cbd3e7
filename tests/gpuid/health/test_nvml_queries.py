"""Queries that a driver or a GPU does not answer, and those of newer drivers: what is unknown does not judge a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.health.inspection import classify_reading
from dlapp.gpuid.health.readings import DeviceFault, GpuProcess, Reading
from tests.gpuid.health.test_nvml_devices import LOOK, SAMPLE, WATCH, Process
from tests.services.containers.nvml_stub import LINK_DOWN, MIB, NVSWITCH, Part, StubDevice

STRANGE = (2, 20, 21, 27, 999)
"""Invalid argument, memory, no data, not ready, unknown error."""
HIDDEN = 4194399
"""A pid above what the kernel gives."""


@pytest.fixture
def see(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*gpus: StubDevice, old: bool = False) -> Process:
        started.append(Process(tmp_path, list(gpus), old=old))
        return started[-1]

    yield start
    for item in started:
        item.close()


def reading_of(process: Process) -> Reading:
    """Return the reading of the only GPU, with all that is read on request."""
    (found,) = process.ask("[one._asdict() for one in nvml.read(nvml.discover(), detailed=True).values()]")
    for name in ("compute", "graphics", "mps_clients"):
        if found[name] is not None:
            found[name] = tuple(GpuProcess(*item) for item in found[name])
    values: dict[str, Any] = {name: tuple(one) if isinstance(one, list) else one for name, one in found.items()}
    return Reading(**values)


def verdict(process: Process) -> DeviceFault | None:
    return classify_reading(reading_of(process))


# ---- errors ----


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetPciInfo",
        "nvmlDeviceGetMinorNumber",
        "nvmlDeviceGetMemoryAffinity",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetMigMode",
        "nvmlDeviceGetName",
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetNvLinkState",
        "nvmlDeviceGetNvLinkRemoteDeviceType",
        "nvmlDeviceGetTopologyCommonAncestor",
    ],
)
def test_no_error_of_a_query_that_only_describes_a_gpu_hides_the_gpu(see: Any, function: str) -> None:
    process = see()
    for code in STRANGE:
        gpu = StubDevice(uuid="GPU-a", pcie=(0, 10), nvlinks=(NVSWITCH,), errors=((function, code),))
        process.change(gpu, StubDevice(uuid="GPU-b", pcie=(10, 0)))
        assert [device["uuid"] for device in process.devices()] == ["GPU-a", "GPU-b"], code


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetMemoryInfo",
        "nvmlDeviceGetComputeRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetMPSComputeRunningProcesses",
        "nvmlDeviceGetRemappedRows",
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetTemperatureThreshold",
        "nvmlDeviceGetTotalEccErrors",
        "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetComputeMode",
        "nvmlDeviceGetFieldValues",
        "nvmlDeviceGetGpuFabricInfoV",
        "nvmlDeviceGetCurrentClocksEventReasons",
        "nvmlDeviceGetPersistenceMode",
    ],
)
def test_no_error_of_a_single_query_makes_a_gpu_ill_and_an_unusual_one_is_noted(see: Any, function: str) -> None:
    process = see()
    for code in STRANGE:
        process.change(StubDevice(errors=((function, code),)))
        reading = reading_of(process)
        assert (classify_reading(reading), reading.error) == (None, ""), code
        # Such a code is what NVML says for the link after the last.
        assert [note.partition(":")[0] for note in reading.notes] == [function] * (code != 2), code


def test_an_unsupported_query_is_shown_as_not_reported_without_a_note(see: Any) -> None:
    gpu = StubDevice(ecc=None, temperature=None, slowdown=None, utilization=None, persistence=None, mode=None)
    reading = reading_of(see(gpu))
    assert reading.notes == ()
    assert reading.unreported == ("temperature", "slowdown temperature", "ECC errors", "utilisation")


@pytest.mark.parametrize(
    "function",
    [
        "nvmlDeviceGetUtilizationRates",
        "nvmlDeviceGetPowerUsage",
        "nvmlDeviceGetTemperatureV",
        "nvmlDeviceGetMemoryInfo",
    ],
)
def test_an_error_of_a_single_query_keeps_the_rest_of_a_sample(see: Any, function: str) -> None:
    gpu = StubDevice(uuid="GPU-a", used=MIB, milliwatts=1000, pids=(HIDDEN,))
    process = see(gpu)
    process.ask(WATCH)
    full = process.ask(SAMPLE)["GPU-a"]
    process.change(StubDevice(uuid="GPU-a", used=MIB, milliwatts=1000, pids=(HIDDEN,), errors=((function, 999),)))
    found = process.ask(SAMPLE)["GPU-a"]
    # The temperature is asked for with the older function, too.
    unlike = [name for name in full if found[name] != full[name]]
    assert len(unlike) == (function != "nvmlDeviceGetTemperatureV")
    assert all(found[name] is None for name in unlike)


@pytest.mark.parametrize(
    ("code", "cause", "detail"),
    [(15, "lost", "GPU is lost"), (16, "needs-reset", "the driver asks for a reset of the GPU")],
)
def test_a_lost_or_reset_required_answer_of_any_query_counts(see: Any, code: int, cause: str, detail: str) -> None:
    process = see(StubDevice(uuid="GPU-a"))
    process.remember()
    process.change(StubDevice(uuid="GPU-a", errors=(("nvmlDeviceGetRetiredPagesPendingStatus", code),)))
    found = process.ask("[inspection.classify_reading(one)._asdict() for one in nvml.read(seen).values()]")
    assert found == [{"cause": cause, "detail": detail, "passing": False, "until": ""}]


def test_a_watched_gpu_that_must_be_reset_has_failed(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a"))
    process.ask(WATCH)
    process.change(StubDevice(uuid="GPU-a", errors=(("nvmlDeviceGetMemoryInfo", 16),)))
    assert process.ask(LOOK)["GPU-a"]["cause"] == "needs-reset"


# ---- who uses it ----


def test_memory_in_use_is_no_fault_where_the_driver_lists_no_processes(see: Any) -> None:
    gpu = StubDevice(used=1079 * MIB, errors=(("nvmlDeviceGetComputeRunningProcesses", 3),))
    reading = reading_of(see(gpu))
    assert classify_reading(reading) is None
    assert reading.unverified == "the driver does not list processes"
    assert reading.unreported == ("processes",)


def test_under_wsl_an_empty_process_list_proves_no_idleness(see: Any, tmp_path: Path) -> None:
    gpu = StubDevice(used=1079 * MIB)
    process = see(gpu)
    fault = verdict(process)
    assert fault is not None
    assert fault.cause == "memory-held"
    process.ask(f"setattr(nvml, '_WSL', {str(tmp_path)!r})")
    assert verdict(process) is None
    assert reading_of(process).unverified == "the driver does not list processes"
    process.ask(WATCH)
    assert [item["processes"] for item in process.ask(SAMPLE).values()] == [None]


def test_memory_that_is_a_numa_node_of_the_machine_may_be_in_use_by_its_kernel(see: Any) -> None:
    reading = reading_of(see(StubDevice(used=900 * MIB, memory_node=1)))
    assert classify_reading(reading) is None
    assert reading.unverified == "its memory is NUMA node 1 of the machine"
    busy = reading_of(see(StubDevice(used=900 * MIB, memory_node=1, pids=(HIDDEN,))))
    fault = classify_reading(busy)
    assert (fault and fault.cause, busy.unverified) == ("foreign-process", "")


@pytest.mark.parametrize("old", [False, True], ids=["new driver", "old driver"])
def test_an_mps_server_with_clients_occupies_a_gpu_and_one_without_does_not(see: Any, old: bool) -> None:
    server = GpuProcess(7, "nvidia-cuda-mps-server", 4000)
    process = see(StubDevice(mps=(HIDDEN, HIDDEN)), old=old)
    reading = reading_of(process)
    assert [client.pid for client in reading.mps_clients] == [HIDDEN, HIDDEN]
    fault = classify_reading(reading._replace(compute=(server,)))
    assert fault is not None
    who = f"{HIDDEN} (whose name is hidden)"
    assert (fault.cause, fault.detail) == ("foreign-process", f"process {who}, {who} computes on it")
    process.change(StubDevice())
    assert classify_reading(reading_of(process)._replace(compute=(server,), used_mib=4000)) is None


COMPUTING = "gpu_processes.processes_on(['GPU-a'], nvml, is_apart={})"


def test_a_client_of_an_mps_server_is_evidence_that_a_payload_lives(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a", mps=(HIDDEN,)))
    assert process.ask(COMPUTING.format(False))[:2] == ["alive", f"process {HIDDEN} computes on GPU-a"]


@pytest.mark.parametrize(
    ("used", "is_apart", "state"),
    [(0, True, "gone"), (500 * MIB, True, "unknown"), (None, True, "unknown"), (500 * MIB, False, "gone")],
)
def test_in_a_pid_namespace_of_its_own_an_empty_list_counts_only_for_a_gpu_without_used_memory(
    see: Any, used: int | None, is_apart: bool, state: str
) -> None:
    errors = (("nvmlDeviceGetMemoryInfo", 3),) if used is None else ()
    process = see(StubDevice(uuid="GPU-a", used=used or 0, errors=errors))
    found = process.ask(COMPUTING.format(is_apart))
    assert found[0] == state
    assert state == "gone" or "hides processes of other pid namespaces" in found[1]


@pytest.mark.parametrize(("used", "state"), [(0, "gone"), (9000 * MIB, "unknown")])
def test_without_a_process_list_memory_does_not_prove_idleness(see: Any, used: int, state: str) -> None:
    errors = tuple((f"nvmlDeviceGet{kind}RunningProcesses", 3) for kind in ("Compute", "Graphics", "MPSCompute"))
    process = see(StubDevice(uuid="GPU-a", used=used, errors=errors))
    found = process.ask(COMPUTING.format(False))
    assert found[0] == state
    assert state == "gone" or "does not list processes" in found[1]


def test_without_a_driver_no_process_computes(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a"))
    process.change(StubDevice(uuid="GPU-a"), init=9)
    assert process.ask(COMPUTING.format(True))[0] == "gone"


# ---- newer and older functions ----


def test_errors_of_memory_are_counted_place_by_place_where_there_is_no_total(see: Any) -> None:
    gone = (("nvmlDeviceGetTotalEccErrors", 13),)
    process = see(StubDevice(ecc=3, errors=gone))
    assert reading_of(process).ecc_uncorrected == 3
    process.change(StubDevice(ecc=None, errors=gone))
    assert reading_of(process).ecc_uncorrected is None


@pytest.mark.parametrize("gone", ["nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"])
def test_the_temperature_is_known_with_either_function(see: Any, gone: str) -> None:
    process = see(StubDevice(uuid="GPU-a", temperature=44, errors=((gone, 13),)))
    assert reading_of(process).temperature_c == 44
    process.ask(WATCH)
    assert process.ask(SAMPLE)["GPU-a"]["temperature_c"] == 44


def test_the_slowdown_temperature_follows_from_the_distance_to_it_on_newer_gpus(see: Any) -> None:
    # Like an H200: at 35 °C it is 50 from its maximum, and slows down 2 above that.
    process = see(StubDevice(temperature=35, slowdown=None, margin=50, slowdown_margin=-2))
    assert reading_of(process).slowdown_c == 87
    process.change(StubDevice(temperature=87, slowdown=None, margin=-2, slowdown_margin=-2))
    fault = verdict(process)
    assert (fault and fault.cause, fault and fault.detail) == ("hot", "87 °C, the limit is 87 °C")


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (0, ""),
        (1, "a reset of the GPU"),
        (5, "a recovery of its IMEX domain"),
        (6, "a reset of its bus"),
        (7, "a reboot of the system"),
        (8, "recovery action 8"),
    ],
)
def test_each_action_requested_by_the_driver_has_its_message(see: Any, action: int, text: str) -> None:
    assert reading_of(see(StubDevice(recovery=action))).recovery == text


# ---- links, clocks, PCIe ----


@pytest.mark.parametrize(
    ("state", "status", "cause", "message"),
    [
        (0, 0, "", ""),
        (1, 0, "fabric", "has not started"),
        (2, 0, "fabric", "is in progress"),
        (3, 0, "", ""),
        (3, 999, "fabric", "failed with error 999"),
    ],
)
def test_a_gpu_that_is_not_registered_in_its_nvlink_fabric_is_not_leased(
    see: Any, state: int, status: int, cause: str, message: str
) -> None:
    fault = verdict(see(StubDevice(fabric=state, fabric_status=status)))
    assert (fault.cause if fault else "") == cause
    if fault is not None:
        assert message in fault.detail
        assert "fabric manager (nvidia-fabricmanager)" in fault.detail
        assert fault.passing is (state == 2)


def test_a_mig_device_needs_no_fabric(see: Any) -> None:
    assert verdict(see(StubDevice(fabric=2, mig=(Part("MIG-a"),)))) is None


@pytest.mark.parametrize(
    ("gpu", "notes"),
    [
        (StubDevice(nvlinks=(NVSWITCH,) * 17 + (LINK_DOWN,)), ["17 of 18 NVLinks are active"]),
        (StubDevice(nvlinks=(LINK_DOWN,) * 4), []),
        (StubDevice(nvlinks=(NVSWITCH,) * 18), []),
        (StubDevice(pcie_width=8, pcie_max_width=16), ["PCIe has 8 of 16 lanes"]),
        (StubDevice(pcie_generation=1, pcie_max_generation=4), []),
        (
            StubDevice(pcie_generation=1, pcie_max_generation=4, utilization=80),
            ["PCIe runs as generation 1 of 4"],
        ),
        (StubDevice(clock_reasons=0x1), []),
        (StubDevice(clock_reasons=0x8), ["its clocks are lowered by the hardware (HW slowdown)"]),
        (
            StubDevice(clock_reasons=0x88),
            ["its clocks are lowered by the power brake: the power supply is overloaded or has failed"],
        ),
        (StubDevice(clock_reasons=0x48), ["its clocks are lowered by the hardware, as it is too hot"]),
        (StubDevice(clock_reasons=0x20), ["its clocks are lowered by the driver, as it is hot"]),
        (StubDevice(fabric=3, fabric_health=0x1), ["its NVLink fabric runs with reduced bandwidth"]),
        (StubDevice(fabric=3, fabric_health=0x12), ["a route of its NVLink fabric is unhealthy"]),
        (StubDevice(fabric=3, fabric_health=0x2A), []),
    ],
)
def test_throttling_is_a_note_and_not_a_fault(see: Any, gpu: StubDevice, notes: list[str]) -> None:
    reading = reading_of(see(gpu))
    assert list(reading.notes) == notes
    assert classify_reading(reading) is None


def test_the_reasons_of_slow_clocks_are_known_from_an_old_driver_too(see: Any) -> None:
    assert len(reading_of(see(StubDevice(clock_reasons=0x88), old=True)).notes) == 1


@pytest.mark.parametrize(("mode", "is_persistent"), [(1, True), (0, False), (None, None)])
def test_persistence_mode_is_read_where_there_is_one(see: Any, mode: int | None, is_persistent: bool | None) -> None:
    assert reading_of(see(StubDevice(persistence=mode))).persistent is is_persistent
