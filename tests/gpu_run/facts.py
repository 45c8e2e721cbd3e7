"""Checks that record how a machine and its GPU are, and that the run has left nothing behind."""

from __future__ import annotations

import contextlib
import os
import platform
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlapp.gpuid.health import nvml as gpus
from tests.gpu_run import readings
from tests.gpu_run.nvml_answers import answers, handle_of, unusual
from tests.gpu_run.results import NOTE, OK, Failed, Result

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from tests.gpu_run.workplace import Workplace

MEMORY_BACK_MIB = 300
"""How much more memory may be in use after a program than before it [MiB]: drivers keep some of a first context."""
RUNNER_S = 20.0
"""How long the runner of the embedded engine may stay without an application [s]."""
INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Source: Linux, include/linux/proc_ns.h, PROC_PID_INIT_INO."""
LSM, CGROUPS = Path("/sys/kernel/security/lsm"), Path("/sys/fs/cgroup/cgroup.controllers")


@contextlib.contextmanager
def opened(place: Workplace) -> Iterator[tuple[Any, Any]]:
    """Yield pynvml, and the handle of the GPU of the run."""
    import pynvml

    pynvml.nvmlInit()
    try:
        yield pynvml, handle_of(pynvml, place.uuid)
    finally:
        pynvml.nvmlShutdown()


def device(place: Workplace) -> Device:
    """Return the GPU of the run as dlapp sees it now. Raises Failed: it does not see it."""
    found = next((item for item in gpus.discover() if item.uuid == place.uuid), None)
    if found is None:
        raise Failed(f"dlapp does not discover {place.uuid}")
    return found


def state_of(place: Workplace) -> dict[str, Any]:
    """Return the memory in use and the processes on the GPU, in one reading of dlapp."""
    one = gpus.read([device(place)])[place.uuid]
    if one.error:
        raise Failed(f"{place.label}: {one.error}")
    return {"used_mib": one.used_mib, "pids": sorted(process.pid for process in one.compute or ())}


def modes(nvml: Any, handle: Any) -> dict[str, Any]:
    """Return what the run must not change; None: not reported."""
    questions = {
        "persistence": "nvmlDeviceGetPersistenceMode",
        "compute": "nvmlDeviceGetComputeMode",
        "mig": "nvmlDeviceGetMigMode",
        "ecc": "nvmlDeviceGetEccMode",
        "power_limit_mw": "nvmlDeviceGetPowerManagementLimit",
    }
    found: dict[str, Any] = {}
    for name, question in questions.items():
        found[name] = None
        with contextlib.suppress(nvml.NVMLError, AttributeError):
            value = getattr(nvml, question)(handle)
            found[name] = list(value) if isinstance(value, (list, tuple)) else value
    return found


def facts(place: Workplace) -> Result:
    """B01: what the machine is, and how the GPU is before all else."""
    with opened(place) as (nvml, handle):
        found: dict[str, Any] = {
            "driver": _text(nvml.nvmlSystemGetDriverVersion()),
            "modes": modes(nvml, handle),
        }
    nodes = sorted(name for name in os.listdir("/dev") if name.startswith("nvidia"))
    found |= {
        "card": place.device["name"],
        "gpus": place.device["count"],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "root": os.geteuid() == 0,
        "cores": os.cpu_count(),
        "lsm": _read(LSM),
        "cgroup": "v2" if CGROUPS.exists() else "v1",
        "dmem": "dmem" in _read(CGROUPS).split(),
        "nodes": {name: f"{os.stat(f'/dev/{name}').st_mode:o}" for name in nodes},
        "smi": readings.has_smi(),
        "torch": find_spec("torch") is not None,
        "initial_pid_namespace": os.readlink("/proc/self/ns/pid") == f"pid:[{INITIAL_PID_NAMESPACE}]",
        "before": state_of(place),
    }
    used = found["before"]["used_mib"]
    return Result(
        NOTE,
        f"driver {found['driver']}, Linux {found['kernel']}, Python {found['python']}, {len(nodes)} device files, "
        f"{used} MiB in use, torch {'installed' if found['torch'] else 'not installed'}",
        found,
    )


def questions(place: Workplace) -> Result:
    """B02: each question of NVML. An unusual code must cost that answer only, and neither the GPU nor its reading."""
    with opened(place) as (nvml, handle):
        found = answers(nvml, handle)
    codes = unusual(found)
    one = gpus.read([device(place)])[place.uuid]
    values = {"answers": {name: {"code": one["code"], "ms": one["ms"]} for name, one in found.items()}}
    if one.error:
        raise Failed(f"unusual codes: {codes or 'none'}; dlapp's reading: {one.error}", values)
    answered = sum(answer["code"] == 0 for answer in found.values())
    slowest = max(found, key=lambda name: found[name]["ms"])
    total_ms = sum(answer["ms"] for answer in found.values())
    return Result(
        OK,
        f"{answered} of {len(found)} answered, unusual codes {codes or 'none'}; together {total_ms:.1f} ms, "
        f"the slowest {slowest} {found[slowest]['ms']:.1f} ms",
        values,
    )


def mig(place: Workplace) -> Result:
    """B24: MIG as it is."""
    with opened(place) as (nvml, handle):
        mode = modes(nvml, handle)["mig"]
        profiles = []
        for profile in range(getattr(nvml, "NVML_GPU_INSTANCE_PROFILE_COUNT", 0)):
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                info = nvml.nvmlDeviceGetGpuInstanceProfileInfo(handle, profile)
                profiles.append({"profile": profile, "slices": info.sliceCount, "memory_mib": info.memorySizeMB})
    parts = [device.label for device in gpus.discover() if device.mig >= 0]
    values = {"mode": mode, "profiles": profiles, "parts": parts}
    return Result(NOTE, f"mode {mode}, {len(profiles)} profiles, instances: {', '.join(parts) or 'none'}", values)


def nothing_left(place: Workplace) -> Result:
    """B26: no process, memory or lease of the run is left, and no mode has changed. The last check; it always runs."""
    left = place.end_applications()
    if left:
        raise Failed(f"applications had not ended: {', '.join(left)}")
    before = place.values.get("B01", {})
    # The runner of the embedded engine waits for the next application, and then ends by itself with all its processes.
    place.wait(
        "the end of all processes of the run",
        lambda: not place.processes(),
        RUNNER_S,
        lambda: ", ".join(f"{pid} ({_name(pid)})" for pid in place.processes()),
    )
    gpu = place.gpu()
    if gpu["state"] != "free":
        raise Failed(f"{place.label} is {gpu['state']}: {gpu['application'] or gpu['quarantine'] or gpu['problem']}")
    began_s = time.monotonic()
    if "before" in before:
        most_mib = (before["before"]["used_mib"] or 0) + MEMORY_BACK_MIB

        def is_back() -> bool:
            now = state_of(place)
            return (now["used_mib"] or 0) <= most_mib and set(now["pids"]) <= set(before["before"]["pids"])

        place.wait(f"memory and processes as before: {before['before']}", is_back, 5.0, lambda: str(state_of(place)))
        with opened(place) as (nvml, handle):
            now = modes(nvml, handle)
        if now != before["modes"]:
            raise Failed(f"modes have changed: {before['modes']} -> {now}")
    now_mib = state_of(place)["used_mib"]
    return Result(
        OK,
        f"no process, no lease, {now_mib} MiB in use, modes as before",
        {"used_mib": now_mib, "seconds": round(time.monotonic() - began_s, 2)},
    )


def _name(pid: int) -> str:
    return _read(Path(f"/proc/{pid}/comm")).strip() or "gone"


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
