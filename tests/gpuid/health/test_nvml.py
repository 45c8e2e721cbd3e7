"""Test what GPUs there are: real nvidia-ml-py, on a stub of NVML."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dlapp.gpuid.health.driver import hardware
from tests.services.containers.nvml_stub import StubDevice, with_devices

SHOW = """
import json
from dlapp.gpuid.health.nvml import NvmlError, discover
from dlapp.values.serialization import to_json
try:
    print(json.dumps([to_json(device) for device in discover()]))
except NvmlError as error:
    print(json.dumps(str(error)))
"""


def discovered(variables: dict[str, str]) -> Any:
    """Return what `discover` answers in a process that sees these GPUs."""
    done = subprocess.run(
        [sys.executable, "-I", "-c", SHOW], env=os.environ | variables, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_without_nvml_there_are_no_gpus_and_pynvml_is_not_even_loaded() -> None:
    if any(name.startswith("nvidia") for name in os.listdir("/dev")):
        pytest.skip("this machine has NVIDIA GPUs")
    code = "import sys; from dlapp.gpuid.health import nvml; assert nvml.discover() == (); "
    code += "assert 'pynvml' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-c", code], check=True)


def test_a_device_is_known_by_uuid_index_minor_number_model_memory_and_bus(tmp_path: Path) -> None:
    variables = with_devices(tmp_path, [StubDevice(uuid="GPU-a", minor=3, name="Tesla T4", memory_bytes=15 << 30)])
    (found,) = discovered(variables)
    expected = {
        "uuid": "GPU-a",
        "index": 0,
        "minor": 3,
        "name": "Tesla T4",
        "memory_mib": 15360,
        "pci_bus_id": "00000000:01:00.0",
    }
    assert found | expected == found


def test_a_lost_device_leaves_the_others_with_their_index(tmp_path: Path) -> None:
    variables = with_devices(tmp_path, [StubDevice(), StubDevice(error=15), StubDevice()])
    assert [item["index"] for item in discovered(variables)] == [0, 2]


def test_devices_are_in_pci_bus_order(tmp_path: Path) -> None:
    devices = [StubDevice(uuid="GPU-b", bus_id="00000000:AF:00.0"), StubDevice(uuid="GPU-a", bus_id="00000000:3b:00.0")]
    assert [item["uuid"] for item in discovered(with_devices(tmp_path, devices))] == ["GPU-a", "GPU-b"]


def test_a_device_that_has_no_minor_number_is_a_device_nevertheless(tmp_path: Path) -> None:
    assert [item["minor"] for item in discovered(with_devices(tmp_path, [StubDevice(minor=-1)]))] == [-1]


def test_a_library_without_a_driver_means_no_gpus(tmp_path: Path) -> None:
    if hardware():
        pytest.skip("this machine has NVIDIA hardware")
    assert discovered(with_devices(tmp_path, [StubDevice()], init=9)) == []


def test_a_driver_that_is_not_loaded_is_an_error_where_there_is_hardware(tmp_path: Path) -> None:
    code = "from dlapp.gpuid.health import driver; driver.hardware = lambda root='/': 'PCI device 0000:3b:00.0'\n"
    variables = with_devices(tmp_path, [StubDevice()], init=9)
    done = subprocess.run(
        [sys.executable, "-I", "-c", code + SHOW], env=os.environ | variables, capture_output=True, text=True
    )
    message = "NVML: the driver is not loaded, and there is PCI device 0000:3b:00.0; load it (modprobe nvidia)"
    assert json.loads(done.stdout).startswith(message), done.stderr


def test_a_driver_that_does_not_work_is_an_error_and_not_a_machine_without_gpus(tmp_path: Path) -> None:
    message = discovered(with_devices(tmp_path, [StubDevice()], init=18))
    assert message.startswith("NVML: Driver/library version mismatch: ")
    assert "; reboot this machine, or " in message


@pytest.mark.gpu
def test_real_devices_answer() -> None:
    from dlapp.gpuid.health.nvml import discover, has_library

    if not has_library():
        pytest.skip("no NVIDIA driver here")
    devices = discover()
    assert devices
    assert all(device.uuid.startswith("GPU-") and device.memory_mib > 0 for device in devices)
