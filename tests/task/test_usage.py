"""The use of a container as its task measures it, and the receipt of real tasks."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.attribution import Attributed, UnleasedProcess
from dlapp.gpuid.health.readings import DeviceSample
from dlapp.gpuid.health.watch import DeviceUse
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.processes.resource_counters import ResourceCounters
from dlapp.task.usage import SAMPLE_EVERY_S, UsageMeter
from dlapp.value import replace
from dlapp.values.messages import Phase
from dlapp.values.spec import Resources
from dlapp.values.usage import DeviceUsage, ForeignProcess, GpuHours, GpuMemory, Receipt
from tests.services.containers.nvml_stub import StubDevice, with_devices
from tests.services.users import interpreter_for_everybody
from tests.task.fake_am import FakeAm, ledger_of, workspace_archive

DEVICES = (Device("GPU-0", 2, 2), Device("GPU-1", 5, 5))
MIB = 1 << 20


class World:
    """A meter whose clock and counters the test sets."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.counters = ResourceCounters()
        self.use: dict[str, DeviceUse] = {}
        self.meter = UsageMeter(2048, clock=lambda: self.now_s, now_ms=lambda: int(self.now_s * 1000))

    def pass_time(self, seconds: float, **counters: Any) -> None:
        self.now_s += seconds
        self.counters = self.counters._replace(**counters)

    def run(self) -> None:
        self.meter.begin_run(lambda: self.counters)
        self.meter.set_phase(Phase.RUNNING)


def test_seconds_of_a_repeated_phase_are_added() -> None:
    world = World()
    for phase, seconds in ((Phase.UNPACKING, 2.0), (Phase.RUNNING, 3.0), (Phase.UNPACKING, 4.0), (Phase.RUNNING, 5.0)):
        world.meter.set_phase(phase)
        world.pass_time(seconds)
    assert world.meter.receipt().seconds == {"starting": 0.0, "unpacking": 6.0, "running": 8.0}


def test_cores_are_the_mean_since_the_report_before() -> None:
    world = World()
    world.run()
    world.pass_time(10.0, cpu_s=5.0)
    world.meter.sample()
    first = world.meter.measured().usage
    world.pass_time(5.0, cpu_s=15.0)
    world.meter.sample()
    second = world.meter.measured().usage
    assert first is not None
    assert second is not None
    assert (first.cpu_cores, second.cpu_cores) == (0.5, 2.0)
    assert second.at_ms == 115_000


def test_samples_are_rare_and_early_ones_are_not() -> None:
    world = World()
    world.run()
    pauses_s = []
    for _ in range(8):
        pauses_s.append(world.meter.sample())
        world.now_s += pauses_s[-1]
    assert pauses_s[:4] == pytest.approx([0.25, 0.25, 0.5, 1.0], rel=0.5)
    assert pauses_s[-1] >= SAMPLE_EVERY_S


def test_generations_are_added_and_the_peak_is_that_of_the_largest() -> None:
    world = World()
    for cpu_s, memory in ((3600.0, 300 * MIB), (1800.0, 100 * MIB)):
        world.counters = ResourceCounters(cpu_s=0.0)
        world.run()
        world.pass_time(1.0, cpu_s=cpu_s, memory_bytes=memory, written_bytes=7)
        world.meter.end_run()
    receipt = world.meter.receipt()
    assert (receipt.cpu_hours, receipt.bytes.written) == (1.5, 14)
    assert (receipt.memory.asked_mib, receipt.memory.peak_mib, receipt.memory.is_exact) == (2048, 300, False)


def test_a_peak_that_the_kernel_kept_is_exact() -> None:
    world = World()
    world.run()
    world.pass_time(1.0, memory_bytes=10 * MIB, peak_bytes=500 * MIB)
    world.meter.end_run()
    assert (world.meter.receipt().memory.peak_mib, world.meter.receipt().memory.is_exact) == (500, True)


def test_unreported_values_are_unknown() -> None:
    world = World()
    world.run()
    world.pass_time(5.0)
    world.meter.sample()
    usage, receipt = world.meter.measured()
    assert usage is not None
    assert (usage.cpu_cores, usage.memory_mib, usage.received_bytes) == (None, None, None)
    assert (receipt.cpu_hours, receipt.memory.peak_mib, receipt.bytes.read, receipt.energy_wh) == (None,) * 4


def test_leased_devices_are_idle_without_a_payload_and_unknown_without_nvml() -> None:
    world = World()
    world.meter.begin_lease(DEVICES, lambda: world.use)
    world.pass_time(900.0)  # at the gate
    world.use = {
        "GPU-0": DeviceUse(busy_s=1350.0, idle_s=450.0, energy_j=3600.0),
        "GPU-1": DeviceUse(unknown_s=1800.0),
    }
    world.pass_time(1800.0)
    world.meter.end_lease()
    world.pass_time(7200.0)
    receipt = world.meter.receipt()
    assert receipt.gpu_hours == GpuHours(granted=1.5, busy=0.375, idle=0.625, unknown=0.5)
    assert (receipt.gpus_asked, receipt.gpus_used) == (2, None)
    assert receipt.energy_wh is None, "one of the devices does not tell"


def test_devices_that_were_never_busy_are_not_used() -> None:
    world = World()
    world.use = {"GPU-0": DeviceUse(busy_s=50.0, idle_s=50.0, energy_j=3600.0), "GPU-1": DeviceUse(0.5, 99.5, 0.0, 0.0)}
    world.meter.begin_lease(DEVICES, lambda: world.use)
    world.pass_time(100.0)
    receipt = world.meter.receipt()
    assert (receipt.gpus_asked, receipt.gpus_used, receipt.energy_wh) == (2, 1, 1.0)


def test_a_report_has_the_devices_by_their_indexes() -> None:
    world = World()
    world.meter.begin_lease(DEVICES, lambda: world.use)
    world.run()
    sample = DeviceSample(utilisation=1.0, used_mib=5, power_w=70.5, temperature_c=40, processes=1)
    world.use = {"GPU-0": DeviceUse(busy_s=3.0, idle_s=1.0, last=sample), "GPU-1": DeviceUse(unknown_s=4.0)}
    world.pass_time(4.0)
    usage = world.meter.measured().usage
    assert usage is not None
    assert usage.devices[0] == DeviceUsage(
        index=2, utilisation=0.75, memory_mib=5, power_w=70.5, temperature_c=40, processes=1, uuid="GPU-0"
    )
    assert usage.devices[1] == DeviceUsage(index=5, uuid="GPU-1")


def test_the_activity_is_the_mean_since_the_report_before_and_a_mig_device_has_no_utilisation() -> None:
    world = World()
    device = Device("MIG-a", 0, 0, name="NVIDIA A100-SXM4-40GB MIG 1g.5gb", memory_mib=4864, mig=1)
    world.meter.begin_lease((device,), lambda: world.use)
    world.run()
    use = DeviceUse()
    for activity, expected in ((0.8, 0.8), (0.2, 0.2)):
        use = use.after(DeviceSample(activity=activity), 10.0)
        world.use = {"MIG-a": use}
        world.pass_time(10.0)
        usage = world.meter.measured().usage
        assert usage is not None
        (found,) = usage.devices
        assert (found.activity, found.utilisation, found.uuid, found.mig) == (expected, None, "MIG-a", "1g.5gb")
    assert world.meter.receipt().gpu_hours.unknown == 0.0


def test_the_receipt_has_the_peak_and_foreign_processes_of_each_gpu() -> None:
    world = World()
    devices = (Device("GPU-0", 0, 0, memory_mib=81_920), Device("GPU-1", 1, 1, memory_mib=81_920))
    world.meter.begin_lease(devices, lambda: world.use, host="node1")
    sizes = (300, 11_000, 500)
    use = DeviceUse()
    for own_mib in sizes:
        other = UnleasedProcess(21547, 1, "python", "ann", 5018, 5018)
        use = use.after(DeviceSample(utilisation=1.0), 4.0, Attributed((other,), own_mib))
    world.use = {"GPU-0": use, "GPU-1": DeviceUse(unknown_s=12.0)}
    world.meter.end_lease()
    receipt = world.meter.receipt()
    assert receipt.gpu_memory == (
        GpuMemory(index=0, uuid="GPU-0", memory_mib=81_920, peak_mib=11_000),
        GpuMemory(index=1, uuid="GPU-1", memory_mib=81_920, peak_mib=None),
    )
    assert receipt.gpu_memory_peak_mib is None, "that of one GPU is not known"
    assert receipt.foreign_processes == (
        ForeignProcess(gpu="0", uuid="GPU-0", pid=21547, host="node1", program="python", user="ann", peak_mib=5018),
    )


def test_the_utilisation_is_not_known_while_the_driver_does_not_answer() -> None:
    world = World()
    world.meter.begin_lease(DEVICES[:1], lambda: world.use)
    world.run()
    world.use = {"GPU-0": DeviceUse(busy_s=0.0, idle_s=9.0, last=DeviceSample(utilisation=0.0))}
    found = []
    for _ in range(2):
        world.pass_time(10.0)
        usage = world.meter.measured().usage
        assert usage is not None
        found.append(usage.devices[0].utilisation)
    assert found == [0.0, None]


# ---- real tasks ----

BURN = """
import os, subprocess, sys
held = bytearray(96 << 20)
if len(sys.argv) == 1:
    subprocess.run([sys.executable, "-I", "burn.py", "child"])
while sum(os.times()[:2]) < 0.4: pass
"""


def test_the_receipt_of_a_task_equals_usr_bin_time(place: Path) -> None:
    command = f"/usr/bin/time -f '%U %S' {interpreter_for_everybody()} -I burn.py"
    packed = workspace_archive(place, {"run.sh": command, "burn.py": BURN})
    with FakeAm(place / "containers", **packed) as am:
        am.start()
        receipt = am.result().receipt
        counted_s = sum(map(float, (am.home / "stderr").read_text().split()))
    assert receipt is not None
    assert receipt.cpu_hours is not None
    assert 0.98 * counted_s <= receipt.cpu_hours * 3600 <= 1.02 * counted_s + 0.05
    assert receipt.memory.peak_mib is not None
    assert 96 <= receipt.memory.peak_mib < 400
    assert {"starting", "unpacking", "running", "releasing"} <= set(receipt.seconds)
    assert receipt.bytes.received is None


@pytest.mark.slow
def test_usage_is_reported_at_the_ordered_interval(place: Path) -> None:
    packed = workspace_archive(place, {"run.sh": "echo ready; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done"})
    with FakeAm(place / "containers", **packed) as am:
        am.orders = replace(am.orders, usage_every_s=0.0, report_every_s=0.05)
        am.start()
        am.wait_until(lambda: any(report.usage and report.usage.memory_mib for report in am.reports))
        (am.home / "tmp/finish").touch()
        am.result()
        usages = [report.usage for report in am.reports if report.usage]
        receipts = [report.receipt for report in am.reports if report.receipt]
    assert abs(usages[-1].at_ms - time.time() * 1000) < 60_000
    assert isinstance(receipts[-1], Receipt)


@pytest.mark.parametrize(("utilization", "shares"), [(50, (0.5, 0.5, 0.0)), (None, (0.0, 0.0, 1.0))])
def test_gpus_are_busy_idle_or_unknown_by_nvml(
    place: Path, utilization: int | None, shares: tuple[float, float, float]
) -> None:
    stubs = (StubDevice(uuid="GPU-0", utilization=utilization, millijoules=5),)
    devices = (Device("GPU-0", 0, 0),)
    env = with_devices(place, stubs)
    packed = workspace_archive(place, {"run.sh": "echo ready; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done"})
    ledger = MachineLedger(str(place / "locks"), discover=lambda: devices)
    with (
        ledger.reserve("the application", 1),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=1)) as am,
    ):
        am.orders = replace(am.orders, usage_every_s=0.0, report_every_s=0.05)
        am.start(process_env=env, ledger=ledger_of(place))
        am.wait_until(lambda: any(report.usage and report.usage.devices for report in am.reports))
        (am.home / "tmp/finish").touch()
        receipt = am.result().receipt
    assert receipt is not None
    hours, running = receipt.gpu_hours, receipt.seconds["running"] / 3600
    assert hours.granted == pytest.approx(hours.busy + hours.idle + hours.unknown, abs=1e-5)
    assert (receipt.gpus_asked, receipt.gpus_used) == (1, None if utilization is None else 1)
    assert hours.busy <= running * shares[0] * 1.5 + 1e-5
    assert (hours.busy > 0, hours.unknown > 0) == (shares[0] > 0, shares[2] > 0)
    assert receipt.energy_wh == 0.0
