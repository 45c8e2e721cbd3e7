"""State of an NVIDIA driver that does not work, from files: versions and hardware; and the message for users.

Source: NVML API Reference, nvmlReturn_t; /proc/driver/nvidia/version and the names of the library's files are those of
NVIDIA's Linux driver; PCI Code and ID Assignment Specification, class 03 (display controller).
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator

_VENDOR, _DISPLAY = "0x10de", "0x03"
_NUMBER = r"\d+\.\d+(?:\.\d+)?"
_MAX_BYTES = 1 << 20
"""More than the maps of a process that has loaded NVML; the other files are of a line."""
_NOT_LOADED, _VERSIONS_DIFFER = 9, 18
REBOOT = "reboot this machine"
_RELOAD = (
    f"{REBOOT}, or end what uses its GPUs and unload and load the modules (nvidia_uvm, nvidia_drm, nvidia_modeset, "
    "nvidia)"
)
HANGS = f"dmesg shows why (Xid 119 and 120: the GPU's firmware); if it does not recover, {REBOOT}"
"""What helps against a driver that hangs."""


def module_version(root: str = "/") -> str:
    """Return the version of the loaded kernel module; empty: none is loaded, or it is not visible here."""
    for line in _read(root, "proc/driver/nvidia/version").splitlines():
        if line.startswith("NVRM version:") and (found := re.search(rf"\s({_NUMBER})\s", line)):
            return found[1]
    return _read(root, "sys/module/nvidia/version").strip()


def library_version(root: str = "/") -> str:
    """Return the version of the library that this process has loaded, from its file's name; empty: not known."""
    found = re.search(rf"/libnvidia-ml\.so\.({_NUMBER})$", _read(root, "proc/self/maps"), re.MULTILINE)
    return found[1] if found else ""


def hardware(root: str = "/") -> str:
    """Return what shows that this machine has NVIDIA GPUs, without the driver: a PCI device, else a device file; empty:
    nothing does."""
    return next(_hardware(root), "")


def _hardware(root: str) -> Iterator[str]:
    devices = os.path.join(root, "sys/bus/pci/devices")
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(devices)):
            of_nvidia = _read(devices, name, "vendor").strip() == _VENDOR
            if of_nvidia and _read(devices, name, "class").startswith(_DISPLAY):
                yield f"PCI device {name}"
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(os.path.join(root, "dev"))):
            if re.fullmatch(r"nvidia(\d+|ctl)", name):
                yield f"/dev/{name}"


def problem_of(code: int, text: str, root: str = "/") -> tuple[str, str]:
    """Return why NVML does not work, and what repairs it.

    Args:
        code: the answer of nvmlInit, or of another call that failed for all GPUs.
        text: NVML's text for it.
        root: directory with /dev, /proc and /sys.
    """
    module, library = module_version(root), library_version(root)
    if code == _VERSIONS_DIFFER:
        # In the words of nvidia-smi, which people search for.
        versions = f"the loaded kernel module is {module or 'of an unknown version'}"
        versions += f", the library libnvidia-ml {library or 'of an unknown version'}"
        return f"NVML: Driver/library version mismatch: {versions}: the driver was updated under this machine", _RELOAD
    if code == _NOT_LOADED:
        what = hardware(root)
        seen = f", and there is {what}" if what else ""
        return (
            f"NVML: the driver is not loaded{seen}",
            "load it (modprobe nvidia) and see dmesg; in a container, give it the GPUs' device files",
        )
    which = f" (module {module})" if module else ""
    return f"NVML: {text.rstrip('.')}{which}", f"see nvidia-smi and dmesg, or {REBOOT}"


def _read(*path: str) -> str:
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.read(_MAX_BYTES)
    except OSError:
        return ""
