"""Checks of activity by NVML's GPM, of what closes a GPU to a program, and the tests of this tree that need a GPU."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from tests.gpu_run import cuda_program
from tests.gpu_run.facts import device, opened
from tests.gpu_run.inventory import as_nobody
from tests.gpu_run.results import NOTE, OK, Failed, Result, Skipped

if TYPE_CHECKING:
    from tests.gpu_run.workplace import Workplace

GPM_S = 1.0
"""Time between two samples of GPM [s]."""
GPM = {"graphics": 1, "sm": 2, "occupancy": 3}
"""Numbers of metrics. Source: nvml.h, nvmlGpmMetricId_t."""
LANDLOCK_CREATE, LANDLOCK_ADD, LANDLOCK_RESTRICT = 444, 445, 446
"""System calls, the same on all architectures. Source: Linux, Documentation/userspace-api/landlock.rst."""
WRITE_FILE, READ_FILE = 1 << 1, 1 << 2
PATH_BENEATH = 1
NO_NEW_PRIVILEGES = 38
CLOSED = """
import json, sys
sys.path[:0] = json.loads(sys.argv[1])
import pynvml
found = {"init": 0, "count": None, "handles": [], "dlapp": None}
try:
    pynvml.nvmlInit()
    found["count"] = pynvml.nvmlDeviceGetCount()
    for index in range(found["count"]):
        try: pynvml.nvmlDeviceGetHandleByIndex(index); found["handles"].append(0)
        except pynvml.NVMLError as error: found["handles"].append(error.value)
except pynvml.NVMLError as error: found["init"] = error.value
from dlapp.gpuid.health import nvml
try: found["dlapp"] = len(nvml.discover())
except nvml.NvmlError as error: found["dlapp"] = str(error)
print(json.dumps(found))
"""
"""A program that prints how NVML and dlapp count the GPUs."""


def activity(place: Workplace) -> Result:
    """B21: GPM's activity of a kernel on the whole GPU and of one of one thread, as this user and as nobody."""
    found: dict[str, Any] = {}
    for name, options in (("whole", ()), ("one thread", ("--one-thread",))):
        with place.foreign("burn", 30, *options):
            time.sleep(GPM_S)
            if os.geteuid() == 0:  # first: a fork of a process that has not opened NVML
                found[f"{name}, nobody"] = as_nobody(lambda: _gpm(place))
            found[name] = _gpm(place)
    return Result(NOTE, "; ".join(f"{name}: {value}" for name, value in found.items()), {"activity": found})


def _gpm(place: Workplace) -> dict[str, Any]:
    """Return GPM's metrics and NVML's utilisation now [percent]. Raises Skipped: the GPU has no GPM."""
    with opened(place) as (nvml, handle):
        try:
            if not nvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
                raise Skipped("this GPU has no GPM")
        except (nvml.NVMLError, AttributeError) as error:
            raise Skipped(f"no GPM: {error}") from None
        samples = [nvml.nvmlGpmSampleAlloc() for _ in range(2)]
        try:
            for sample, pause_s in zip(samples, (GPM_S, 0.0), strict=True):
                nvml.nvmlGpmSampleGet(handle, sample)
                time.sleep(pause_s)
            ask = nvml.c_nvmlGpmMetricsGet_t()
            ask.version = nvml.NVML_GPM_METRICS_GET_VERSION
            ask.numMetrics = len(GPM)
            ask.sample1, ask.sample2 = samples
            for place_of, number in enumerate(GPM.values()):
                ask.metrics[place_of].metricId = number
            nvml.nvmlGpmMetricsGet(ask)
            metrics = dict(zip(GPM, ask.metrics, strict=False))
            found: dict[str, Any] = {
                name: None if one.nvmlReturn else round(one.value, 1) for name, one in metrics.items()
            }
        finally:
            for sample in samples:
                nvml.nvmlGpmSampleFree(sample)
        with contextlib.suppress(nvml.NVMLError):
            found["utilisation"] = nvml.nvmlDeviceGetUtilizationRates(handle).gpu
        return found


def landlock(place: Workplace) -> Result:
    """B22: Landlock without the device files shows a program no GPU, and with them one, without privileges."""
    if not _has_landlock():
        raise Skipped("the kernel has no Landlock, or it is not enabled")
    counts = {allowed: _count_under(place, allowed) for allowed in (False, True)}
    values = {"without": counts[False], "with": counts[True]}
    if counts[False] or counts[True] != 1:
        raise Failed(f"GPUs under Landlock: {values}", values)
    return Result(OK, "no GPU without the device files, one with them", values)


def _has_landlock() -> bool:
    libc = ctypes.CDLL(None, use_errno=True)
    version = 1
    return bool(libc.syscall(LANDLOCK_CREATE, None, ctypes.c_size_t(0), version) > 0)


def _count_under(place: Workplace, with_nodes: bool) -> int:
    """Return how many GPUs a CUDA program sees whose files are restricted; an error of CUDA counts as none."""
    done = subprocess.run(
        [sys.executable, cuda_program.__file__, "devices"],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": place.uuid},
        capture_output=True,
        text=True,
        timeout=20,
        preexec_fn=lambda: restrict(with_nodes),
    )
    if "Traceback" in done.stderr:
        raise Failed(f"the program under Landlock: {done.stderr.strip()[-300:]}")
    return int(json.loads(done.stdout)["count"]) if done.returncode == 0 else 0


def restrict(with_nodes: bool) -> None:
    """Restrict this process to all files but the device files of NVIDIA; with ``with_nodes`` to all files."""
    libc = ctypes.CDLL(None, use_errno=True)
    handled = ctypes.c_uint64(WRITE_FILE | READ_FILE)
    rules = libc.syscall(LANDLOCK_CREATE, ctypes.byref(handled), ctypes.c_size_t(8), 0)
    paths = [f"/{name}" for name in os.listdir("/") if name != "dev"]
    paths += [f"/dev/{name}" for name in os.listdir("/dev") if with_nodes or not name.startswith("nvidia")]
    for path in paths:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # a link to nothing
        # struct landlock_path_beneath_attr is packed: 8 and 4 bytes.
        rule = handled.value.to_bytes(8, sys.byteorder) + fd.to_bytes(4, sys.byteorder)
        libc.syscall(LANDLOCK_ADD, rules, PATH_BENEATH, rule, 0)
        os.close(fd)
    libc.prctl(NO_NEW_PRIVILEGES, 1, 0, 0, 0)
    if libc.syscall(LANDLOCK_RESTRICT, rules, 0):
        raise OSError(ctypes.get_errno(), "landlock_restrict_self")


def closed_node(place: Workplace) -> Result:
    """B23: what NVML and dlapp say of a GPU whose device file is hidden by a bind mount in a mount namespace."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skipped("not root, or no unshare")
    node = f"/dev/nvidia{device(place).minor}"
    program = [sys.executable, "-c", CLOSED, json.dumps(sys.path)]
    hidden = ["unshare", "--mount", "sh", "-c", f'mount --bind /dev/null {node} && exec "$@"', "sh", *program]
    found = {}
    for name, command in (("open", program), ("hidden", hidden)):
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
        found[name] = json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()[-200:]
    return Result(NOTE, f"{node} hidden: {found['hidden']}; open: {found['open']}", found)


def own_tests(place: Workplace) -> Result:
    """B25: the tests of this tree with the mark gpu."""
    if find_spec("pytest") is None or find_spec("hypothesis") is None:
        raise Skipped("pytest or hypothesis is not installed")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-p", "no:cacheprovider", "tests/gpuid/health"]
    unmarked = {name: value for name, value in os.environ.items() if name not in ("PYTHONSAFEPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(command, cwd=place.root, env=unmarked, capture_output=True, text=True, timeout=50)
    last = done.stdout.strip().splitlines()[-1:] or [done.stderr.strip()[-200:]]
    if done.returncode != 0 or "passed" not in last[0] or "skipped" in last[0]:
        raise Failed(f"{last[0]}", {"output": done.stdout[-3000:]})
    return Result(OK, last[0].strip("= "))
