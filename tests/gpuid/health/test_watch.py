"""The use of GPUs during a watch: busy, idle or not known."""

from __future__ import annotations

import getpass
import os
import subprocess
import threading
from collections.abc import Sequence

import pytest

from dlapp.errors import DlappError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.attribution import ProcessAttribution
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.nvml_subprocess import DriverHangs
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample, ListedProcess
from dlapp.gpuid.health.watch import DeviceUse, DeviceWatch

DEVICES = (Device("GPU-0", 0, 0), Device("GPU-1", 1, 1))


def test_time_is_busy_by_utilisation_and_idle_for_the_rest() -> None:
    use = DeviceUse().after(DeviceSample(utilisation=0.25), 4.0).after(DeviceSample(utilisation=1.0), 1.0)
    assert (use.busy_s, use.idle_s, use.unknown_s) == (2.0, 3.0, 0.0)
    assert use.is_used


def test_unknown_time_is_never_idle() -> None:
    use = DeviceUse().after(DeviceSample(temperature_c=40), 4.0).after(None, 6.0)
    assert (use.busy_s, use.idle_s, use.unknown_s) == (0.0, 0.0, 10.0)
    assert use.is_used is None
    assert use.energy_j is None


@pytest.mark.parametrize(
    ("known_s", "unknown_s", "expected"), [(9.0, 1.0, False), (1.0, 9.0, None)], ids=["mostly known", "mostly unknown"]
)
def test_a_device_is_unused_only_if_most_of_its_time_is_known(
    known_s: float, unknown_s: float, expected: bool | None
) -> None:
    use = DeviceUse().after(DeviceSample(utilisation=0.0), known_s).after(None, unknown_s)
    assert use.is_used is expected


def test_energy_is_the_growth_of_the_counter_and_survives_a_counter_reset() -> None:
    use = DeviceUse()
    for energy_j in (1000.0, 1500.0, 20.0, 30.0):
        use = use.after(DeviceSample(utilisation=0.0, energy_j=energy_j), 1.0)
    assert use.energy_j == 510.0


def test_without_utilisation_the_activity_decides_busy_time() -> None:
    use = DeviceUse().after(DeviceSample(activity=0.25), 4.0)
    assert (use.busy_s, use.idle_s, use.unknown_s, use.is_used) == (1.0, 3.0, 0.0, True)


def test_a_kernel_that_waits_is_busy_and_not_active() -> None:
    use = DeviceUse().after(DeviceSample(utilisation=1.0, activity=0.01), 4.0)
    assert (use.busy_s, use.active_s, use.measured_s) == (4.0, 0.04, 4.0)


@pytest.mark.parametrize(
    ("utilisation", "power_w", "expected"), [(1.0, 70.0, True), (1.0, 300.0, False), (0.5, 70.0, False)]
)
def test_a_utilised_device_with_the_power_of_an_idle_one_hardly_computes(
    utilisation: float, power_w: float, expected: bool
) -> None:
    use = DeviceUse().after(DeviceSample(utilisation=utilisation, power_w=power_w), 4.0)
    assert not use.is_at_idle_power, "the power of an idle one is not known yet"
    for idle_w in (90.0, 60.0, 75.0):
        use = use.after(DeviceSample(utilisation=0.0, power_w=idle_w), 4.0)
    assert use.after(DeviceSample(utilisation=utilisation, power_w=power_w), 4.0).is_at_idle_power is expected


class Sampled:
    """Devices that are well. The first is busy, the second does not tell; after some looks the driver fails."""

    def __init__(self, polls: int) -> None:
        self.left, self.enough = polls, threading.Event()

    def poll(self) -> dict[str, DeviceFault]:
        self.left -= 1
        if self.left == 0:
            self.enough.set()
            raise NvmlError("gone")
        return {}

    def take_xids(self) -> list[tuple[str, int]]:
        return []

    def sample(self) -> dict[str, DeviceSample]:
        return {"GPU-0": DeviceSample(utilisation=1.0), "GPU-1": DeviceSample()}

    def close(self) -> None:
        pass


def test_a_watch_adds_up_the_use_of_its_devices() -> None:
    sampled = Sampled(polls=9)
    with DeviceWatch(DEVICES, open=lambda _: sampled, every_s=0.001) as watch:
        assert sampled.enough.wait(120)
    first, second = watch.use["GPU-0"], watch.use["GPU-1"]
    assert first.busy_s > 0.0
    assert first.idle_s == 0.0
    assert first.unknown_s > 0.0, "the time after the driver failed"
    assert (second.busy_s, second.idle_s) == (0.0, 0.0)
    assert second.unknown_s == pytest.approx(first.busy_s + first.unknown_s)


class Hanging(Sampled):
    """A device with an Xid error, and a driver that hangs in the next query: the firmware does not answer."""

    def poll(self) -> dict[str, DeviceFault]:
        raise DriverHangs("NVML: no answer in 10 s: the driver hangs")

    def take_xids(self) -> list[tuple[str, int]]:
        return [("GPU-0", 119)]


def test_an_xid_error_is_read_before_the_query_in_which_the_driver_hangs() -> None:
    failed = threading.Event()
    with DeviceWatch(DEVICES, open=lambda _: Hanging(1), on_fault=failed.set, every_s=0.001) as watch:
        assert failed.wait(120)
    assert {uuid: one.until for uuid, one in watch.failed.items()} == {"GPU-0": "needs-reset"}


def test_without_nvml_the_use_of_devices_is_not_known() -> None:
    def refuse(_: Sequence[Device]) -> None:
        raise DlappError("no NVML")

    with DeviceWatch(DEVICES, open=refuse) as watch:
        pass
    assert all(item.unknown_s > 0.0 and item.idle_s == 0.0 and item.is_used is None for item in watch.use.values())


class Shared:
    """Device on which a process of somebody else uses memory, and then this one's own."""

    def __init__(self, foreign: int) -> None:
        self.foreign, self.noticed = foreign, threading.Event()

    def poll(self) -> dict[str, DeviceFault]:
        return {}

    def take_xids(self) -> list[tuple[str, int]]:
        return []

    def sample(self) -> dict[str, DeviceSample]:
        listed = (ListedProcess(os.getpid(), 11_000), ListedProcess(self.foreign, 5000))
        return {"GPU-0": DeviceSample(utilisation=1.0, used_mib=16_000, listed=listed)}

    def close(self) -> None:
        pass


def test_a_foreign_process_is_noted_once_and_blamed_while_present() -> None:
    notes: list[str] = []
    with subprocess.Popen(["/bin/sleep", "600"]) as foreign:
        shared = Shared(foreign.pid)
        attribution = ProcessAttribution(lambda pid: pid == os.getpid(), ())
        with DeviceWatch(
            DEVICES[:1], note=notes.append, open=lambda _: shared, every_s=0.001, attribution=attribution
        ) as watch:
            for _ in range(3):
                watch.poll_now(120.0)
        foreign.kill()
    assert notes[1:] == [f"process {foreign.pid} (sleep, user {getpass.getuser()}) uses gpu0 without a lease"]
    ((device, one),) = watch.foreign_now()
    assert (device.uuid, one.pid, one.used_mib) == ("GPU-0", foreign.pid, 5000)
    assert watch.use["GPU-0"].peak_mib == 11_000
