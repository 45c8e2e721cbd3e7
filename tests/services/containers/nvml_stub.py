"""GPUs that are not there: a library in the place of libnvidia-ml.so.1, which nvidia-ml-py loads as the real one.

    with_cards(directory, [GPU(), GPU(minor=7)]) -> environment for processes that are to see two GPUs

It is compiled from nvml_stub.c once per run. `dlopen` looks at LD_LIBRARY_PATH as it was when a process started, so
only processes started with that environment see the GPUs. They see at once what a later `with_devices` for the same
directory changes: a GPU that is lost, memory that is freed, a driver that is gone.
"""

from __future__ import annotations

import atexit
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from tests.services.install import required

SOURCE = Path(__file__).with_suffix(".c")
NVSWITCH, LINK_DOWN = 99, 98
HANGS = 7777
MIB = 1 << 20


@dataclass(frozen=True)
class Part:
    """A MIG device: ``used`` bytes of its memory, ``pids`` of the processes that compute on it."""

    uuid: str
    name: str = "NVIDIA Test Card MIG 1g.5gb"
    memory_bytes: int = 5 << 30
    used: int = 0
    pids: tuple[int, ...] = ()


@dataclass(frozen=True)
class StubDevice:
    """One GPU. What is None is answered with "not supported".

    Args:
        error: NVML's answer to all questions about it (15: it is lost).
        used, reserved: memory [bytes].
        pids, graphics: processes that compute on it, and those that draw.
        mode: compute mode (0 default, 2 prohibited, 3 exclusive).
        pcie: NVML's topology level to each GPU (10 one switch, 20, 30, 40, 50 another socket).
        nvlinks: link by link the index of the GPU at the other end, or `NVSWITCH`, or `LINK_DOWN`.
        mig: its parts; None: it is not in MIG mode.
        milliwatts, millijoules: power, and energy since the driver was loaded.
        slowdown: the temperature at which it slows down.
        ecc: uncorrectable errors since the driver was loaded.
        xid: the last Xid; ``xid_instance`` the part that it concerns.
        errors: answers of single functions, by their names without a version (999; 3: not supported).
        mps: processes that compute on it through an MPS server.
        fabric: state of its NVLink fabric (0 none, 1 not started, 2 in progress, 3 complete), with the status of the
            last registration (NVML's error), and the mask of its health.
        memory_node: its memory is this NUMA node of the machine (GH200).
        margin, slowdown_margin: degrees to its maximum now, and when it slows down (Ada and later).
        clock_reasons: NVML's mask.
        process_mib: memory of each of ``pids`` [MiB]; 64 for those that are missing, 0: not reported.
        gpm: share of busy multiprocessors, in percent, by GPM; ``gpm_parts`` those of its parts. None: no GPM.
        hang: the begin of a question's name (nvmlDeviceGetMemoryInfo): it is not answered as long as this is set.
    """

    uuid: str = ""
    minor: int | None = None
    name: str = "NVIDIA Test Card"
    memory_bytes: int = 16 << 30
    bus_id: str = ""
    error: int = 0
    used: int | None = 0
    reserved: int | None = 300 * MIB
    pids: tuple[int, ...] = ()
    graphics: tuple[int, ...] = ()
    mode: int | None = 0
    numa: int | None = None
    pcie: tuple[int, ...] = ()
    nvlinks: tuple[int, ...] = ()
    mig: tuple[Part, ...] | None = None
    temperature: int | None = 35
    slowdown: int | None = 90
    utilization: int | None = 0
    milliwatts: int | None = None
    millijoules: int | None = None
    ecc: int | None = 0
    pages_pending: int | None = None
    remap_pending: int | None = 0
    remap_failed: int | None = 0
    recovery: int | None = 0
    xid: int | None = None
    xid_instance: int | None = None
    errors: tuple[tuple[str, int], ...] = ()
    mps: tuple[int, ...] = ()
    fabric: int | None = None
    fabric_status: int | None = None
    fabric_health: int | None = None
    memory_node: int | None = None
    margin: int | None = None
    slowdown_margin: int | None = None
    clock_reasons: int | None = None
    persistence: int | None = 1
    pcie_width: int | None = None
    pcie_max_width: int | None = None
    pcie_generation: int | None = None
    pcie_max_generation: int | None = None
    process_mib: tuple[int, ...] = ()
    gpm: int | None = None
    gpm_parts: tuple[int, ...] = ()
    hang: str | None = None


_FIRST = ("uuid", "minor", "name", "memory_bytes", "bus_id", "error", "mig")


@cache
def library(*, old: bool = False) -> Path:
    """The directory with the compiled library; skips the test where there is no compiler.

    Args:
        old: that of a driver from before memory v2, MIG and affinity.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        import pytest  # make test-gpu runs without it

        assert not required(), "no C compiler: the stub of NVML cannot be made (CI or DLAPP_REQUIRE is set)"
        pytest.skip("no C compiler: the stub of NVML cannot be made")
    directory = Path(tempfile.mkdtemp(prefix="dlapp-nvml-stub-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    directory.chmod(0o755)
    target = directory / "libnvidia-ml.so.1"
    flags = ["-shared", "-fPIC", "-Wall", "-Werror", *(["-DOLD", "-Wno-unused"] if old else [])]
    subprocess.run([compiler, *flags, "-o", target, SOURCE], check=True)
    return directory


def with_devices(directory: Path, devices: Sequence[StubDevice], *, init: int = 0, old: bool = False) -> dict[str, str]:
    """Variables that make a process see ``GPUs`` in this order; call it again to change them.

    Args:
        directory: where the description is kept.
        init: the answer of nvmlInit (0: it works, 9: driver not loaded, 18: version mismatch, `HANGS`: none, ever).
        old: see `library`.
    """
    lines = [str(init)]
    for place, device in enumerate(devices):
        uuid = device.uuid or f"GPU-{place:08d}-aaaa-bbbb-cccc-000000000000"
        minor = place if device.minor is None else device.minor
        bus_id = device.bus_id or f"00000000:{place + 1:02X}:00.0"
        keys = {field.name: getattr(device, field.name) for field in fields(device) if field.name not in _FIRST}
        keys["mig"] = None if device.mig is None else 1
        texts = " ".join(f"{name}={_text(value)}" for name, value in keys.items() if value not in (None, ()))
        lines.append(f"{device.error}|{uuid}|{minor}|{device.name}|{device.memory_bytes}|{bus_id}|{texts}")
        for part in device.mig or ():
            lines.append(f"MIG|{part.uuid}|{part.name}|{part.memory_bytes}|{part.used}|{_text(part.pids)}")
    description = directory / "cards"
    fresh = directory / ".cards"
    fresh.write_text("\n".join(lines) + "\n")
    fresh.rename(description)
    return {"NVML_STUB": str(description), "LD_LIBRARY_PATH": str(library(old=old))}


def seen_by_all(directory: Path, devices: Sequence[StubDevice]) -> dict[str, str]:
    """The same for whole applications: dlapp passes this variable on to all of its processes."""
    with_devices(directory, devices)
    shutil.copy2(library() / "libnvidia-ml.so.1", directory)
    return {"LD_LIBRARY_PATH": str(directory)}


def record_calls(directory: Path) -> None:
    """Record from now on what is asked of the GPUs of `with_devices`; forget what was recorded."""
    calls = directory / "cards.calls"
    calls.write_text("")
    calls.chmod(0o666)


def calls(directory: Path) -> list[tuple[int, str, int]]:
    """Return what was asked since `record_calls`: process, function of NVML, place of the GPU (-1: of the driver)."""
    lines = (line.split() for line in (directory / "cards.calls").read_text().splitlines())
    return [(int(pid), function, int(place)) for pid, function, place in lines]


def opened(directory: Path) -> set[int]:
    """Return the places of the GPUs that a process has opened since `record_calls`."""
    return {place for _, function, place in calls(directory) if function.startswith("nvmlDeviceGetHandleBy")}


def _text(value: int | str | tuple[int | tuple[str, int], ...]) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return ",".join(":".join(map(str, item)) if isinstance(item, tuple) else str(item) for item in value)
