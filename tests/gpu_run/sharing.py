"""Checks of GPUs that others use, too: foreign processes, pid namespaces, and clients of MPS."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from dlapp.gpuid.health import nvml as gpus
from dlapp.gpuid.health.inspection import classify_reading
from tests.gpu_run import cuda_program
from tests.gpu_run.facts import device, opened, state_of
from tests.gpu_run.payloads import LOAD
from tests.gpu_run.results import NOTE, OK, Failed, Result, Skipped

if TYPE_CHECKING:
    from tests.gpu_run.workplace import Workplace

FOREIGN_MIB = 5 * 1024
HEALED_S = 20.0
"""In what time an application starts after a heal: the wait before was inspected again after a minute [s]."""
NOTICED_S = 30.0
"""Three reports of usage [s]."""
MPS_CONTROL = "nvidia-cuda-mps-control"
MPS_S = 5.0
LOOK = """
import json, os, sys, time
sys.path[:0] = json.loads(sys.argv[1])
from dlapp.gpuid.health import nvml
(one,) = [one for one in nvml.discover() if one.uuid == sys.argv[2]]
print(json.dumps([process.pid for process in nvml.read([one])[one.uuid].compute or ()]))
"""
"""A program that prints the pids that NVML shows it."""


def on_free_gpu(place: Workplace) -> Result:
    """B14: a foreign process on the free GPU: quarantine with its pid; after its end and a heal the GPU is leased."""
    with contextlib.ExitStack() as ended:
        with place.foreign("hold", 120, "--mib", FOREIGN_MIB) as pid:
            place.set_stub(used=FOREIGN_MIB << 20, pids=(pid,))
            application = ended.enter_context(place.application("waits", "true"))
            gpu = place.wait(
                "the GPU is in quarantine",
                lambda: now if (now := place.gpu())["quarantine"] else None,
                30.0,
                lambda: f"{place.gpu()}",
            )
        place.set_stub()
        quarantine = gpu["quarantine"]
        if quarantine["cause"] != "foreign-process" or str(pid) not in quarantine["detail"]:
            raise Failed(f"the quarantine does not name process {pid}: {quarantine}")
        healed = place.tool("gpu", "heal", place.label)
        if healed.code:
            raise Failed(f"dlapp-gpu heal: {healed.err.strip()}")
        began_s = time.monotonic()
        application.succeeded(HEALED_S)
        took_s = time.monotonic() - began_s
    values = {"quarantine": quarantine, "heal": healed.out.strip(), "seconds": round(took_s, 1)}
    return Result(OK, f"quarantine: {quarantine['detail']}; {took_s:.1f} s from the heal to the program's end", values)


def on_leased_gpu(place: Workplace) -> Result:
    """B15: a foreign process on the leased GPU is noticed while the program runs."""
    work = "exec sleep 120" if place.stub else place.cuda("burn", 120)
    with place.application("leased", work) as application:
        application.running()
        if not place.stub:
            application.wait_event("busy")
        with place.foreign("hold", 120, "--mib", FOREIGN_MIB) as pid:
            place.set_stub(**LOAD, pids=(*place.pids_of("sleep", "120"), pid))
            began_s = time.monotonic()
            noticed = place.wait(
                f"process {pid} in the status", lambda: foreign_values(application.status()), NOTICED_S
            )
            took_s = time.monotonic() - began_s
        place.set_stub()
    values = {"noticed": noticed, "pid": pid, "seconds": round(took_s, 1)}
    if (pids := pids_in(noticed)) != {pid}:
        raise Failed(f"the foreign process is {pid}, the status names {sorted(pids)}: {noticed}", values)
    return Result(OK, f"noticed after {took_s:.0f} s: {json.dumps(noticed[0])[:150]}", values)


def foreign_values(value: Any) -> list[Any]:
    """Return what a status has under keys that begin with ``foreign``, where it is not empty."""
    if isinstance(value, Mapping):
        own = [one for name, one in value.items() if name.startswith("foreign") and one]
        return own + [found for item in value.values() for found in foreign_values(item)]
    if isinstance(value, list):
        return [found for item in value for found in foreign_values(item)]
    return []


def pids_in(value: Any) -> set[int]:
    """Return the pids in a part of a status."""
    if isinstance(value, Mapping):
        own = {int(value["pid"])} if value.get("pid") is not None else set()
        return own.union(*map(pids_in, value.values()))
    return set[int]().union(*map(pids_in, value)) if isinstance(value, list) else set()


def pid_namespaces(place: Workplace) -> Result:
    """B16: which pids NVML shows in another pid namespace, and of a process in one."""
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        raise Skipped("not root, or no unshare")
    apart = ["unshare", "--pid", "--fork", "--mount-proc", "--kill-child"]
    look = [sys.executable, "-c", LOOK, json.dumps(sys.path), place.uuid]
    with place.foreign("hold", 30, "--mib", 256) as pid:
        outside = state_of(place)["pids"]
        done = subprocess.run([*apart, *look], capture_output=True, text=True, timeout=20)
        inside = json.loads(done.stdout) if done.returncode == 0 else done.stderr.strip()[-200:]
    program = [sys.executable, "-u", cuda_program.__file__, "hold", "30", "--mib", "256"]
    process = subprocess.Popen([*apart, *program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        for line in process.stdout:
            if json.loads(line)["event"] == "memory":
                break
        of_inner = state_of(place)
    finally:
        process.kill()
        process.communicate()
    values = {"pid": pid, "outside": outside, "inside": inside, "of_process_in_namespace": of_inner["pids"]}
    return Result(
        NOTE,
        f"process {pid}: outside {outside}, in another namespace {inside}; of a process in one: {of_inner['pids']}, "
        f"{of_inner['used_mib']} MiB",
        values,
    )


@contextlib.contextmanager
def mps(place: Workplace) -> Iterator[dict[str, str]]:
    """Run an MPS daemon of the run's own for a block; yield the variables of its clients. Raises Skipped."""
    if shutil.which(MPS_CONTROL) is None:
        raise Skipped(f"no {MPS_CONTROL}")
    if place.device["mig"] >= 0:
        raise Skipped("the GPU is a MIG device")
    directory = place.directory / "mps"
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "pipe"), "CUDA_MPS_LOG_DIRECTORY": str(directory / "log")}
    for path in variables.values():
        os.makedirs(path, exist_ok=True)
    server = os.environ | variables | {"CUDA_VISIBLE_DEVICES": place.uuid}
    done = subprocess.run([MPS_CONTROL, "-d"], env=server, capture_output=True, text=True, timeout=10)
    if done.returncode:
        raise Skipped(f"{MPS_CONTROL}: {(done.stdout + done.stderr).strip()}")
    try:
        yield variables
    finally:
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run([MPS_CONTROL], input="quit -t 1\n", env=server, text=True, capture_output=True, timeout=10)


def mps_memory(place: Workplace) -> Result:
    """B19: clients of MPS with a limit of memory; a GPU with clients is occupied for dlapp."""
    with mps(place) as variables:
        limited = variables | {"CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G", "CUDA_VISIBLE_DEVICES": "0"}
        with (
            place.foreign("hold", 60, "--mib", 1024, env=limited) as one,
            place.foreign("hold", 60, "--mib", 1024, env=limited) as other,
        ):
            third = _client(place, limited, "hold", "1", "--mib", "3072")
            reading = gpus.read([device(place)])[place.uuid]
            lists = {}
            with opened(place) as (nvml, handle):
                for name in ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"):
                    with contextlib.suppress(nvml.NVMLError, AttributeError):
                        lists[name] = [process.pid for process in getattr(nvml, name)(handle)]
    fault = classify_reading(reading)
    values = {
        "clients": [one, other],
        "lists": lists,
        "third": third.stderr[-300:],
        "fault": None if fault is None else fault._asdict(),
    }
    if third.returncode == 0 or "OUT_OF_MEMORY" not in third.stderr:
        raise Failed(f"3 GiB under a limit of 2 GiB: exit {third.returncode}, {third.stderr.strip()[-200:]}", values)
    if fault is None:
        raise Failed(f"a GPU with two clients of MPS is healthy and free for dlapp; NVML's lists: {lists}", values)
    return Result(OK, f"3 GiB refused; dlapp: {fault.detail}; NVML's lists {lists}", values)


def mps_fault(place: Workplace) -> Result:
    """B20: what a fault of one client of MPS does to another."""
    with mps(place) as variables:
        client = variables | {"CUDA_VISIBLE_DEVICES": "0"}
        command = [sys.executable, "-u", cuda_program.__file__, "burn", "12"]
        other = subprocess.Popen(
            command, env=os.environ | client, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        assert other.stdout is not None
        try:
            for line in other.stdout:
                if json.loads(line)["event"] == "busy":
                    break
            bad = _client(place, client, "store")
            try:
                code: int | None = other.wait(MPS_S)
            except subprocess.TimeoutExpired:
                code = None
        finally:
            other.kill()
            error = other.communicate()[1]
        log = place.directory / "mps/log/server.log"
        lines = log.read_text(errors="replace").splitlines()[-5:] if log.exists() else []
    values = {"bad": bad.stderr.strip()[-300:], "other_exit": code, "other": error.strip()[-300:], "log": lines}
    ended = "goes on" if code is None else f"ended with exit code {code}: {error.strip()[-120:]}"
    return Result(NOTE, f"the other client {ended}; the server's log: {lines[-1] if lines else 'nothing'}", values)


def _client(place: Workplace, variables: Mapping[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run the CUDA program as a client of MPS to its end."""
    command = [sys.executable, "-u", cuda_program.__file__, *words]
    return subprocess.run(command, env=os.environ | variables, capture_output=True, text=True, timeout=15)
