"""GPUs that fail while a payload runs, and what is found when they are given back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.readings import DeviceFault, Reading
from dlapp.gpuid.health.watch import DeviceWatch
from dlapp.gpuid.rules import NEEDS_RESET
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.task.gpu_health import LeasedDevices
from dlapp.values.messages import Fault
from dlapp.values.spec import Resources
from tests.services.containers.nvml_stub import MIB, StubDevice, with_devices
from tests.task.fake_am import FakeAm, ledger_of, workspace_archive

STUBS = (StubDevice(uuid="GPU-0"), StubDevice(uuid="GPU-1"))
NEVER_ENDS = "echo ready; while :; do sleep 0.02; done"
DEVICES = tuple(Device(device.uuid, place, place) for place, device in enumerate(STUBS))


def ledger(place: Path) -> MachineLedger:
    return MachineLedger(str(place / "locks"), discover=lambda: DEVICES)


def quarantines(place: Path) -> dict[str, str]:
    found = {device.uuid: device.quarantine for device in ledger(place).record().devices}
    return {uuid: f"{one.cause}: {one.detail}" for uuid, one in found.items() if one is not None}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "message", "expected"),
    [
        ({"error": 15}, "gpu1 failed: GPU is lost", {"GPU-1": "lost: GPU is lost"}),
        (
            {"xid": 119},
            "gpu1 failed: the GPU system processor (GSP) did not answer (Xid 119)",
            {"GPU-1": "needs-reset: the GPU system processor (GSP) did not answer (Xid 119)"},
        ),
    ],
    ids=["lost", "Xid"],
)
def test_a_device_lost_in_mid_run_ends_the_payload_as_the_nodes_fault(
    place: Path, fault: dict[str, Any], message: str, expected: dict[str, str]
) -> None:
    env = with_devices(place, STUBS)
    packed = workspace_archive(place, {"run.sh": NEVER_ENDS})
    with (
        ledger(place).reserve("the application", 2),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=2)) as am,
    ):
        am.start(process_env=env, ledger=ledger_of(place))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.wait_until(lambda: "the GPUs are monitored" in (am.home / "dlapp.log").read_text())
        with_devices(place, [STUBS[0], StubDevice(uuid="GPU-1", **fault)])
        result = am.result()
        assert (result.fault, result.message) == (Fault.NODE, message)
        assert result.diagnosis is not None
        assert (result.diagnosis.rule, result.diagnosis.fault) == ("gpu_failed", Fault.NODE)
        assert result.diagnosis.cause == message.replace("gpu1 failed", "gpu1 of the node failed")
    assert quarantines(place) == expected


def test_a_failure_on_healthy_devices_is_the_programs(place: Path) -> None:
    packed = workspace_archive(place, {"run.sh": "exit 3"})
    with (
        ledger(place).reserve("the application", 2),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=2)) as am,
    ):
        where = ledger_of(place)
        am.start(process_env=with_devices(place, STUBS), ledger=where)
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.USER, 3)
    assert quarantines(place) == {}


@pytest.mark.slow
def test_a_driver_hang_at_the_end_quarantines_the_device_and_keeps_the_result(place: Path) -> None:
    env = with_devices(place, STUBS)
    packed = workspace_archive(place, {"run.sh": "echo ready; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done"})
    with (
        ledger(place).reserve("the application", 1, uuids=("GPU-0",)),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=1)) as am,
    ):
        am.start(process_env=env, ledger=ledger_of(place))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.wait_until(lambda: "the GPUs are monitored" in (am.home / "dlapp.log").read_text())
        with_devices(place, [StubDevice(uuid="GPU-0", hang="nvml"), STUBS[1]])
        (am.home / "tmp" / "finish").touch()
        result = am.result()
        assert (result.fault, result.exit_code) == (Fault.NONE, 0)
        assert result.receipt is not None
    log = am.log()
    message = "NVML: no answer in 10 s: the driver hangs"
    assert f"all GPUs of this host are in quarantine: {message}" in log
    assert log.index("ended: well") < log.index("all GPUs of this host")
    # Also those that this container did not have.
    assert quarantines(place) == dict.fromkeys(("GPU-0", "GPU-1"), f"driver-hangs: {message}")


@pytest.mark.slow
def test_a_temporarily_hanging_driver_is_watched_again_and_ends_no_payload(place: Path) -> None:
    env = with_devices(place, STUBS)
    packed = workspace_archive(place, {"run.sh": NEVER_ENDS})
    with (
        ledger(place).reserve("the application", 2),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=2)) as am,
    ):
        am.start(process_env=env, ledger=ledger_of(place))
        text = (am.home / "dlapp.log").read_text
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        am.wait_until(lambda: "the GPUs are monitored" in text())
        with_devices(place, [STUBS[0], StubDevice(uuid="GPU-1", hang="nvmlDeviceGetMemoryInfo")])
        am.wait_until(lambda: "the GPUs are not monitored at present: NVML: no answer in 10 s" in text())
        with_devices(place, STUBS)
        am.wait_until(lambda: "the GPUs are monitored again" in text())
        with_devices(place, [STUBS[0], StubDevice(uuid="GPU-1", error=15)])
        assert am.result().message == "gpu1 failed: GPU is lost"


@pytest.mark.slow
def test_a_released_device_with_memory_in_use_is_quarantined(place: Path) -> None:
    env = with_devices(place, STUBS)
    packed = workspace_archive(place, {"run.sh": "echo ready; while [ ! -e $TMPDIR/finish ]; do sleep 0.02; done"})
    with (
        ledger(place).reserve("the application", 1, uuids=("GPU-0",)),
        FakeAm(place / "containers", **packed, resources=Resources(gcores=1)) as am,
    ):
        am.start(process_env=env, ledger=ledger_of(place))
        am.wait_until(lambda: (am.home / "stdout").exists() and am.printed() == b"ready\n")
        with_devices(place, [StubDevice(uuid="GPU-0", used=700 * MIB), STUBS[1]])
        (am.home / "tmp" / "finish").touch()
        assert am.result().fault is Fault.NONE
    assert quarantines(place) == {"GPU-0": "memory-held: 700 MiB are in use by no known process"}


def test_a_fault_that_needs_a_reset_closes_all_slices_of_the_gpu(place: Path) -> None:
    slices = tuple(
        Device(f"MIG-{number}{part}", number, number, pci_bus_id=f"00000000:0{number}:00.0", mig=part)
        for number in (0, 1)
        for part in (0, 1)
    )
    ledger = MachineLedger(str(place / "locks"), discover=lambda: slices)
    nvml: Any = SimpleNamespace(read=lambda devices: {device.uuid: Reading(device.uuid) for device in devices})
    nvml.try_again = lambda: None
    leased = LeasedDevices(ledger, nvml, slices[:1], print, print)
    fault = DeviceFault("needs-reset", "Xid 95", until=NEEDS_RESET)
    leased._watch = cast(DeviceWatch, SimpleNamespace(failed={"MIG-00": fault}, use={}))
    assert leased.quarantine_failed()
    assert [device.uuid for device in ledger.record().devices if device.quarantine is not None] == ["MIG-00", "MIG-01"]
