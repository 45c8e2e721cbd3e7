"""Messages on a driver that does not work, from the files of the driver and of PCI."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlapp.gpuid.health import driver

PROPRIETARY = """\
NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.95.05  Tue Sep 23 10:11:16 UTC 2025
GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)
"""
OPEN = """\
NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (dvs-builder@U22)  Sat May 24
GCC version:  gcc version 13.3.0
"""


def write(root: Path, name: str, text: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


@pytest.mark.parametrize(("text", "version"), [(PROPRIETARY, "580.95.05"), (OPEN, "575.57.08"), ("", "")])
def test_the_version_of_the_module_is_that_of_proc(tmp_path: Path, text: str, version: str) -> None:
    if text:
        write(tmp_path, "proc/driver/nvidia/version", text)
    assert driver.module_version(str(tmp_path)) == version


def test_without_proc_the_module_version_comes_from_sys(tmp_path: Path) -> None:
    write(tmp_path, "sys/module/nvidia/version", "580.95.05\n")
    assert driver.module_version(str(tmp_path)) == "580.95.05"


def test_different_versions_are_named_in_the_words_of_nvidia_smi_with_the_repair(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", PROPRIETARY)
    library = "7f00-7f01 r-xp 00000000 08:01 1 /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.126\n"
    write(tmp_path, "proc/self/maps", f"55e0-55e1 r-xp 00000000 08:01 1 /usr/bin/python3.11\n{library}")
    problem, repair = driver.problem_of(18, "RM has detected an NVML/RM version mismatch.", str(tmp_path))
    assert "Driver/library version mismatch: the loaded kernel module is 580.95.05" in problem
    assert "the library libnvidia-ml 580.126" in problem
    assert repair == (
        "reboot this machine, or end what uses its GPUs and unload and load the modules (nvidia_uvm, nvidia_drm, "
        "nvidia_modeset, nvidia)"
    )


def test_versions_that_cannot_be_read_are_called_unknown(tmp_path: Path) -> None:
    problem, _ = driver.problem_of(18, "RM has detected an NVML/RM version mismatch.", str(tmp_path))
    assert "module is of an unknown version, the library libnvidia-ml of an unknown version" in problem


def test_other_errors_have_nvml_s_text_and_where_to_look(tmp_path: Path) -> None:
    write(tmp_path, "proc/driver/nvidia/version", PROPRIETARY)
    message = driver.problem_of(999, "Unknown Error", str(tmp_path))
    assert message == ("NVML: Unknown Error (module 580.95.05)", "see nvidia-smi and dmesg, or reboot this machine")


@pytest.mark.parametrize(
    ("files", "found"),
    [
        ({}, ""),
        ({"vendor": "0x8086\n", "class": "0x030000\n"}, ""),
        ({"vendor": "0x10de\n", "class": "0x040300\n"}, ""),  # the sound of a GPU that is given to a virtual machine
        ({"vendor": "0x10de\n", "class": "0x030200\n"}, "PCI device 0000:3b:00.0"),
        ({"vendor": "0x10de\n", "class": "0x030000\n"}, "PCI device 0000:3b:00.0"),
    ],
    ids=["none", "Intel's", "audio", "3D controller", "VGA"],
)
def test_hardware_is_a_display_controller_of_nvidia(tmp_path: Path, files: dict[str, str], found: str) -> None:
    for name, text in files.items():
        write(tmp_path, f"sys/bus/pci/devices/0000:3b:00.0/{name}", text)
    assert driver.hardware(str(tmp_path)) == found


def test_device_files_are_hardware_too_where_pci_is_not_visible(tmp_path: Path) -> None:
    write(tmp_path, "dev/nvidia-caps", "")
    assert driver.hardware(str(tmp_path)) == ""
    write(tmp_path, "dev/nvidia0", "")
    assert driver.hardware(str(tmp_path)) == "/dev/nvidia0"
    problem, repair = driver.problem_of(9, "Driver Not Loaded", str(tmp_path))
    assert problem == "NVML: the driver is not loaded, and there is /dev/nvidia0"
    assert repair.startswith("load it (modprobe nvidia)")
