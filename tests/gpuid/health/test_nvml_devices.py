"""Links, MIG devices, health and the watch: real nvidia-ml-py, on a stub of NVML that changes under it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.needs import DeviceNeed
from tests.services.containers.nvml_stub import LINK_DOWN, MIB, NVSWITCH, Part, StubDevice, with_devices

PYTHON = """
import json, os, sys, time
from dlapp.gpuid.health import inspection, nvml
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.liveness import gpu_processes
from dlapp.values.serialization import to_json
for line in sys.stdin:
    try:
        answer = eval(line)
    except nvml.NvmlError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""
DISCOVER = "[to_json(one) for one in nvml.discover()]"
READ = "{uuid: one._asdict() for uuid, one in nvml.read(seen if 'seen' in globals() else nvml.discover()).items()}"


class Process:
    """A process that sees the GPUs, and evaluates a line at a time."""

    def __init__(self, directory: Path, gpus: list[StubDevice], *, old: bool = False) -> None:
        self.directory, self.gpus = directory, gpus
        variables = with_devices(directory, gpus, old=old)
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-c", PYTHON],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, line: str) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def change(self, *gpus: StubDevice, init: int = 0) -> None:
        """Show these GPUs from now on, and let the driver answer ``init``."""
        with_devices(self.directory, gpus, init=init)

    def devices(self) -> Any:
        return self.ask(DISCOVER)

    def readings(self) -> list[dict[str, Any]]:
        """Return readings of the GPUs that `remember` saw; else of all there are."""
        return list(self.ask(READ).values())

    def remember(self) -> None:
        self.ask("[globals().__setitem__('seen', nvml.discover())][0]")

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def see(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def start(*gpus: StubDevice, old: bool = False) -> Process:
        started.append(Process(tmp_path, list(gpus), old=old))
        return started[-1]

    yield start
    for item in started:
        item.close()


# ---- what there is ----


def test_links_are_named_as_in_nvidia_smi_topo(see: Any) -> None:
    gpus = [
        StubDevice(pcie=(0, 10, 30, 50), nvlinks=(1, 1, 2, LINK_DOWN)),
        StubDevice(pcie=(10, 0, 20, 50), nvlinks=(0, 0, LINK_DOWN)),
        StubDevice(pcie=(30, 20, 0, 50), nvlinks=(0,)),
        StubDevice(pcie=(50, 50, 50, 0)),
    ]
    assert [device["links"] for device in see(*gpus).devices()] == [
        ["X", "NV2", "NV1", "SYS"],
        ["NV2", "X", "PXB", "SYS"],
        ["NV1", "PXB", "X", "SYS"],
        ["SYS", "SYS", "SYS", "X"],
    ]


@pytest.mark.parametrize("old", [False, True], ids=["new driver", "old driver"])
def test_devices_on_nvswitches_reach_each_other_by_all_links_that_both_have(see: Any, old: bool) -> None:
    gpus = [
        StubDevice(nvlinks=(NVSWITCH,) * 12),
        StubDevice(nvlinks=(NVSWITCH,) * 12),
        StubDevice(nvlinks=(NVSWITCH,) * 6),
    ]
    assert [device["links"] for device in see(*gpus, old=old).devices()] == [
        ["X", "NV12", "NV6"],
        ["NV12", "X", "NV6"],
        ["NV6", "NV6", "X"],
    ]


def test_numa_node_and_compute_mode_are_known_if_the_driver_reports_them(see: Any) -> None:
    found = see(
        StubDevice(numa=1, mode=3), StubDevice(numa=0, mode=2), StubDevice(mode=None, bus_id="0000FFFE:01:00.0")
    ).devices()
    assert [(item["numa"], item["compute_mode"]) for item in found] == [(1, "exclusive"), (0, "prohibited"), (-1, "")]


def test_a_device_in_mig_mode_is_its_parts_and_they_have_its_place(see: Any) -> None:
    mig = StubDevice(
        minor=5, mig=(Part("MIG-a"), Part("MIG-b", name="NVIDIA Test Card MIG 2g.10gb", memory_bytes=10 << 30))
    )
    found = see(StubDevice(), mig, StubDevice(mig=())).devices()
    assert [(item["uuid"][:5], item["index"], item["minor"], item["mig"], item["memory_mib"]) for item in found] == [
        ("GPU-0", 0, 0, -1, 16384),
        ("MIG-a", 1, 5, 0, 5120),
        ("MIG-b", 1, 5, 1, 10240),
    ]


@pytest.mark.parametrize("errors", [(), (("nvmlDeviceGetMemoryInfo", 4),)], ids=["memory", "attributes only"])
def test_the_memory_of_a_slice_is_the_drivers_value_and_not_its_names(see: Any, errors: Any) -> None:
    part = Part("MIG-a", name="NVIDIA H200 MIG 1g.18gb", memory_bytes=16384 * MIB)
    (found,) = see(StubDevice(mig=(part,), errors=errors)).devices()
    device = Device("MIG-a", 0, 0, found["name"], found["memory_mib"], mig=0)
    assert device.memory_mib == 16384
    assert [DeviceNeed("mig:1g.18gb", memory_mb).accepts(device) for memory_mb in (17_000, 18_000)] == [True, False]


def test_the_instances_of_a_part_are_known_and_a_whole_gpu_has_none(see: Any) -> None:
    found = see(StubDevice(), StubDevice(mig=(Part("MIG-a"), Part("MIG-b")))).devices()
    assert [(item["gpu_instance"], item["compute_instance"]) for item in found] == [(-1, -1), (1, 0), (2, 0)]


def test_an_old_driver_loses_only_the_values_that_it_lacks(see: Any) -> None:
    gpus = [
        StubDevice(numa=1, pcie=(0, 10), bus_id="0000FFFE:01:00.0"),
        StubDevice(pcie=(10, 0), bus_id="0000FFFF:01:00.0"),
    ]
    found = see(*gpus, old=True).devices()
    assert [(item["links"], item["numa"]) for item in found] == [(["X", "PIX"], -1), (["PIX", "X"], -1)]


def test_a_failing_device_loses_only_itself_and_its_links(see: Any) -> None:
    gpus = [StubDevice(pcie=(0, 10, 10)), StubDevice(error=999), StubDevice(pcie=(10, 10, 0))]
    assert [(device["index"], device["links"]) for device in see(*gpus).devices()] == [
        (0, ["X", "-", "PIX"]),
        (2, ["PIX", "-", "X"]),
    ]


def test_a_driver_restart_between_two_reads_does_not_affect_a_process(see: Any) -> None:
    process = see(StubDevice(), StubDevice())
    assert len(process.devices()) == 2
    process.change(StubDevice(), StubDevice(), init=9)
    assert process.devices() == []
    process.change(StubDevice(), StubDevice(), init=18)
    assert "version mismatch" in process.devices()["error"]
    process.change(StubDevice(), StubDevice())
    assert len(process.devices()) == 2


def test_a_device_may_vanish_and_return_between_two_reads(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b"))
    process.remember()
    process.change(StubDevice(uuid="GPU-a"))
    assert [device["uuid"] for device in process.devices()] == ["GPU-a"]
    assert [reading["error"] for reading in process.readings()] == ["", "it is not there"]
    process.change(StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b"))
    assert [reading["error"] for reading in process.readings()] == ["", ""]


# ---- how they are ----


def test_reserved_memory_is_separate_from_used_memory_if_the_driver_distinguishes(see: Any) -> None:
    gpu = StubDevice(used=20 * MIB, reserved=500 * MIB)
    (new,) = see(gpu).readings()
    assert (new["used_mib"], new["reserved_is_apart"]) == (20, True)
    (old,) = see(gpu, old=True).readings()
    assert (old["used_mib"], old["reserved_is_apart"]) == (520, False)


@pytest.mark.parametrize("old", [False, True], ids=["new driver", "old driver"])
def test_processes_on_a_device_are_reported_with_program_names(see: Any, old: bool) -> None:
    process = see(StubDevice(pids=(os.getpid(),), graphics=(1,)), old=old)
    (reading,) = process.readings()
    program = Path(Path("/proc/self/cmdline").read_bytes().split(b"\0")[0].decode()).name
    assert [(pid, name) for pid, name, _ in reading["compute"]] == [(os.getpid(), program)]
    assert [pid for pid, _, _ in reading["graphics"]] == [1]


def test_a_process_that_proc_does_not_show_is_named_by_nvml_or_not_at_all(see: Any) -> None:
    hidden, unknown = 4194398, 4194399  # no pid is so high: the stub names the first
    (reading,) = see(StubDevice(pids=(hidden, unknown))).readings()
    assert [name for _, name, _ in reading["compute"]] == ["named-by-nvml", ""]


@pytest.mark.parametrize(
    ("gpu", "cause"),
    [
        (StubDevice(), None),
        (
            StubDevice(ecc=None, slowdown=None, temperature=None, recovery=None, remap_pending=None, utilization=None),
            None,
        ),
        (StubDevice(error=15), "lost"),
        (StubDevice(error=999), "failing"),
        (StubDevice(ecc=1, recovery=None), "ecc"),
        (StubDevice(remap_failed=1), "ecc"),
        (StubDevice(remap_pending=1, recovery=None), "needs-reset"),
        (StubDevice(pages_pending=1, recovery=None), "needs-reset"),
        (StubDevice(ecc=1, remap_pending=1, pages_pending=1), None),
        (StubDevice(recovery=2), "needs-reset"),
        (StubDevice(temperature=92), "hot"),
        (StubDevice(mode=2), "prohibited"),
        (StubDevice(pids=(4194399,)), "foreign-process"),
        (StubDevice(used=600 * MIB), "memory-held"),
    ],
)
def test_each_fault_that_nvml_reports_is_one(see: Any, gpu: StubDevice, cause: str | None) -> None:
    process = see(StubDevice(), StubDevice())
    process.remember()
    process.change(StubDevice(), gpu)
    limits = "inspection.HealthLimits(settle_s=0.05)"
    found = process.ask(
        f"{{u: f.cause for u, f in inspection.inspect_devices(seen, read=nvml.read, limits={limits}).items()}}"
    )
    assert list(found.values()) == ([cause] if cause else [])


def test_a_part_of_a_device_has_its_own_memory_and_processes_and_the_device_s_faults(see: Any) -> None:
    parts = (Part("MIG-a", used=900 * MIB, pids=(4194399,)), Part("MIG-b"))
    first, second = see(StubDevice(mig=parts, ecc=2, temperature=50)).readings()
    assert (first["used_mib"], len(first["compute"])) == (900, 1)
    assert (second["used_mib"], len(second["compute"])) == (0, 0)
    assert [(item["ecc_uncorrected"], item["temperature_c"]) for item in (first, second)] == [(2, 50)] * 2


def test_without_a_driver_the_state_of_a_device_is_unknown(see: Any) -> None:
    process = see(StubDevice())
    process.remember()
    process.change(StubDevice(), init=9)
    assert process.ask(READ) == {"error": "NVML: the driver is gone"}


COMPUTING = "gpu_processes.processes_on(['GPU-a', 'GPU-b'], NvmlProcess())"


@pytest.mark.parametrize(
    ("gpus", "state", "why"),
    [
        ([StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b"), StubDevice(pids=(4194399,))], "gone", ""),
        (
            [StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b", pids=(4194399,))],
            "alive",
            "process 4194399 computes on GPU-b",
        ),
        ([StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b", error=15)], "gone", ""),
        ([StubDevice(uuid="GPU-a")], "gone", ""),
        ([], "gone", ""),
    ],
    ids=["another's card", "our card", "a lost card", "a card that is away", "no card"],
)
def test_a_process_on_a_device_is_a_witness(see: Any, gpus: list[StubDevice], state: str, why: str) -> None:
    assert see(*gpus).ask(COMPUTING)[:2] == [state, why]


def test_with_a_failing_driver_remaining_processes_are_unknown(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a"))
    process.change(StubDevice(uuid="GPU-a"), init=18)
    assert process.ask(COMPUTING)[0] == "unknown"


# ---- while a payload runs ----

WATCH = "[globals().__setitem__('watched', nvml.NvmlWatch(nvml.discover()))][0]"
LOOK = "{u: f._asdict() for u, f in watched.poll().items()}"
XIDS = "watched.take_xids()"


def test_a_device_that_is_lost_while_it_is_watched_is_seen(see: Any) -> None:
    process = see(StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b"))
    process.ask(WATCH)
    assert process.ask(LOOK) == {}
    process.change(StubDevice(uuid="GPU-a"), StubDevice(uuid="GPU-b", error=15))
    assert {uuid: one["cause"] for uuid, one in process.ask(LOOK).items()} == {"GPU-b": "lost"}


def test_each_xid_of_the_device_since_the_watch_began_is_read_once(see: Any) -> None:
    gpu = StubDevice(uuid="GPU-a", xid=31)
    process = see(gpu)
    process.ask(WATCH)
    assert process.ask(XIDS) == []
    process.change(replace(gpu, xid=13))
    assert (process.ask(LOOK), process.ask(XIDS), process.ask(XIDS)) == ({}, [["GPU-a", 13]], [])
    process.change(replace(gpu, xid=79))
    assert process.ask(XIDS) == [["GPU-a", 79]]


def test_an_xid_of_one_part_of_a_device_is_no_matter_to_the_others(see: Any) -> None:
    gpu = StubDevice(mig=(Part("MIG-a"), Part("MIG-b")))
    process = see(gpu)
    process.ask(WATCH)
    process.change(replace(gpu, xid=95, xid_instance=2))
    assert process.ask(XIDS) == [["MIG-b", 95]]
    process.change(replace(gpu, xid=119))
    assert process.ask(XIDS) == [["MIG-a", 119], ["MIG-b", 119]]


def test_an_unloaded_driver_is_no_fault_of_the_devices(see: Any) -> None:
    process = see(StubDevice())
    process.ask(WATCH)
    process.change(StubDevice(), init=9)
    assert "the driver is not loaded" in process.ask(LOOK)["error"]


SAMPLE = "{u: s._asdict() for u, s in watched.sample().items()}"


def test_the_use_of_a_device_is_sampled(see: Any) -> None:
    gpu = StubDevice(uuid="GPU-a", used=2048 * MIB, pids=(7, 8), utilization=25, milliwatts=70_500, millijoules=9000)
    gpu = replace(gpu, process_mib=(64, 0))
    process = see(gpu, StubDevice(uuid="GPU-b", error=15))
    process.ask(WATCH)
    assert process.ask(SAMPLE) == {
        "GPU-a": {
            "utilisation": 0.25,
            "used_mib": 2048,
            "power_w": 70.5,
            "temperature_c": 35,
            "processes": 2,
            "energy_j": 9.0,
            "activity": None,
            "listed": [[7, 64], [8, None]],
        }
    }


def test_values_that_a_slice_or_driver_does_not_report_are_unknown(see: Any) -> None:
    gpu = StubDevice(utilization=None, milliwatts=50_000, millijoules=1, mig=(Part("MIG-a", used=MIB),))
    process = see(gpu)
    process.ask(WATCH)
    found = process.ask(SAMPLE)["MIG-a"]
    assert (found["utilisation"], found["energy_j"], found["used_mib"], found["power_w"]) == (None, None, 1, 50.0)


# ---- a real GPU ----


@pytest.mark.gpu
def test_real_devices_are_read_linked_and_watched() -> None:
    from dlapp.gpuid.health import inspection, nvml

    if not nvml.has_library() or not (devices := nvml.discover()):
        pytest.skip("no NVIDIA GPU here")
    assert all(device.pci_bus_id and device.compute_mode and device.links[device.index] == "X" for device in devices)
    readings = nvml.read(devices)
    assert all(not reading.error and reading.used_mib is not None for reading in readings.values())
    assert [inspection.classify_reading(reading) for reading in readings.values() if reading.error] == []
    watched = nvml.NvmlWatch(devices)
    try:
        assert watched.poll() == {}
        samples = watched.sample()
        assert list(samples) == [device.uuid for device in devices]
        assert all(sample.used_mib is not None and sample.temperature_c is not None for sample in samples.values())
    finally:
        watched.close()
