"""Checks of programs that use the GPU as users' programs do: submitted by dlapp-launcher to the embedded engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.gpu_run import readings
from tests.gpu_run.facts import device, opened, state_of
from tests.gpu_run.readings import Sample
from tests.gpu_run.results import OK, Failed, Result, Skipped

if TYPE_CHECKING:
    from tests.gpu_run.workplace import Application, Workplace

BUSY_S = 24.0
"""How long the measured program computes: two reports of its usage, one each ten seconds, and what is cut off [s]."""
FULL_S = 9.0
"""A report is compared if the program has computed for so long before it [s]. The stub of NVML has no slow start."""
TORCH_MEMORY = "6g"
TURN_S = 6.0
"""How long each of two applications that queue computes [s]."""
IDLE_GUARD_S = 30.0
"""The shortest window of idle_guard with one container [s]."""
SHOW = """mkdir -p output
printf '%s\\n' "$CUDA_VISIBLE_DEVICES" "$NV_GPU" "$CUDA_DEVICE_ORDER" >output/visible
"""
LOAD = {"used": 5 << 30, "utilization": 80, "milliwatts": 300_000}
"""What the stub of NVML shows of a GPU in use."""


class Window(NamedTuple):
    """Samples of the GPU, with their times."""

    at_s: list[float]
    samples: list[Sample]

    def until(self, at_s: float, seconds: float = 10.0) -> list[Sample]:
        """Return the samples of some seconds up to a time."""
        return [one for when, one in zip(self.at_s, self.samples, strict=True) if at_s - seconds <= when <= at_s]


def sample(place: Workplace) -> Sample:
    """Return how the GPU is by nvidia-smi; by NVML itself where there is no nvidia-smi that shows it."""
    if not place.stub and readings.has_smi() and place.device["mig"] < 0:
        (row,) = readings.query("gpu", readings.SAMPLE_FIELDS, f"--id={place.uuid}")
        return readings.sample_of(row)
    with opened(place) as (nvml, handle):
        found: dict[str, Any] = {}
        questions: dict[str, Callable[[], float]] = {
            "utilisation": lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100,
            "memory_mib": lambda: nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2).used / (1 << 20),
            "power_w": lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
            "temperature_c": lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU),
        }
        for name, ask in questions.items():
            with contextlib.suppress(nvml.NVMLError, AttributeError):
                found[name] = ask()
        return Sample(**{name: found.get(name) for name in Sample._fields})


def compute_pids(place: Workplace) -> list[int]:
    """Return the processes that compute on the GPU, by nvidia-smi where there is one, else by dlapp."""
    if place.stub or not readings.has_smi():
        return list(state_of(place)["pids"])
    rows = readings.query("compute-apps", ("pid", "gpu_uuid"))
    return sorted(int(row["pid"]) for row in rows if row["gpu_uuid"] == place.uuid)


def is_of_run(place: Workplace, pid: int) -> bool:
    """Return whether a pid of NVML is a process of the run: its own, or that in its innermost pid namespace."""
    mine = place.processes()
    if pid in mine:
        return True
    for item in mine:
        with contextlib.suppress(OSError):
            status = Path(f"/proc/{item}/status").read_text()
            if (match := re.search(r"^NSpid:\s*(.*)$", status, re.MULTILINE)) and str(pid) in match[1].split():
                return True
    return False


@contextlib.contextmanager
def exporter(place: Workplace) -> Iterator[str | None]:
    """Run dlapp-gpu exporter for a block; yield the URL of its metrics, None: prometheus-client is not installed."""
    if find_spec("prometheus_client") is None:
        yield None
        return
    words = [*place.tool_words, "gpu", "exporter", "--listen", "127.0.0.1:0"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        if (match := re.search(r"http://\S+/metrics", line)) is None:
            raise Failed(f"dlapp-gpu exporter: {line.strip()}")
        yield match[0]
    finally:
        process.kill()
        process.communicate()


def metrics(url: str) -> dict[str, float]:
    """Return the metrics of an exporter, each with its labels as it stands there."""
    with urllib.request.urlopen(url, timeout=20) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines if line[:1] != "#")}


def payload(place: Workplace) -> Result:
    """B07: a program on one GPU, measured beside nvidia-smi while it runs; its output is stored."""
    torch, go = find_spec("torch") is not None, place.directory / "go"
    mode = "matmul" if torch else "burn"
    last = f"while [ ! -e {go} ]; do sleep 0.1; done" if place.stub else place.cuda(mode, BUSY_S)
    output = {"output_path": "output", "hdfs": place.directory / "stored"}
    resources = {"memory": TORCH_MEMORY} if torch and not place.stub else {}
    begun_s = time.time()
    with (
        exporter(place) as url,
        place.application("payload", SHOW + last, to_hdfs=output, resources=resources) as application,
    ):
        application.running()
        values: dict[str, Any] = {"program": "sleep" if place.stub else mode}
        if place.stub:
            place.set_stub(**LOAD, pids=tuple(place.pids_of("start.sh")))
        else:
            values["first_context_s"] = round(application.wait_event("context", 60.0)["at"] - begun_s, 2)
            application.wait_event("busy", 60.0)
        wrong = _measure(place, application, url, values, seconds=12.0 if place.stub else BUSY_S - 4)
        place.set_stub()
        go.touch()
        view = application.succeeded(60.0)
    stored = (place.directory / "stored/visible").read_text().splitlines()
    if stored != [place.uuid, str(place.device["index"]), "PCI_BUS_ID"]:
        wrong.append(f"the program saw {stored}")
    receipt = view["receipt"]
    values["receipt"] = receipt
    if receipt["gpus_used"] != 1:
        wrong.append(f"gpus_used is {receipt['gpus_used']}")
    if not place.stub and receipt["energy_wh"] is not None:
        powers = values["power_w"]
        busy_s = receipt["seconds"].get("running", 0.0)
        if difference := readings.energy_difference(receipt["energy_wh"] * 3600, powers, busy_s):
            wrong.append(difference)
    ends = [event for event in application.events() if event["event"] == "end"]
    tflops = ends[0].get("tflops") if ends else None
    if wrong:
        raise Failed("; ".join(wrong), values)
    speed = f", {tflops} TFLOP/s" if tflops else ""
    shown = "the exporter shows it held" if url else "no prometheus-client for the exporter"
    return Result(
        OK,
        f"{values['program']} on {place.label}{speed}; {values['compared']} reports as measured, {shown}; its output "
        "is stored",
        values,
    )


def _measure(
    place: Workplace, application: Application, url: str | None, values: dict[str, Any], *, seconds: float
) -> list[str]:
    """Compare what dlapp reports for some seconds with what is measured beside; return in what it differs."""
    window, wrong = Window([], []), list[str]()
    reports: dict[int, list[dict[str, Any]]] = {}
    began_s, visible, pids = time.monotonic(), "", compute_pids(place)
    own = [pid for pid in pids if is_of_run(place, pid)]
    while time.monotonic() - began_s < seconds or (not reports and time.monotonic() - began_s < 2 * seconds):
        window.samples.append(sample(place))
        window.at_s.append(time.time())
        for container in application.status_of_command()["containers"]:
            if (usage := container["usage"]) and usage["devices"]:
                reports[usage["at_ms"]] = usage["devices"]
        if url and not visible:
            found = [
                name for name, value in metrics(url).items() if value == 1 and "_state{" in name and "held" in name
            ]
            lease = [name for name in metrics(url) if "_lease{" in name and application.id in name]
            visible = f"{found}" if found and lease else ""
        time.sleep(0.5)
    if url and not visible:
        wrong.append("the exporter does not show that the application holds the GPU")
    values |= {
        "samples": [item._asdict() for item in window.samples],
        "reports": [{"at_ms": at_ms, "devices": devices} for at_ms, devices in sorted(reports.items())],
        "power_w": readings.mean(item.power_w for item in window.samples),
        "pids": pids,
        "compared": 0,
    }
    for at_ms, devices in sorted(reports.items()):
        # What a report covers reaches back ten seconds; the first one also covers the start of the program.
        theirs = window.until(at_ms / 1000)
        if len(devices) != 1:
            wrong.append(f"a report has {len(devices)} GPUs")
        elif len(theirs) >= 3 and at_ms / 1000 - window.at_s[0] >= (FULL_S / 2 if place.stub else FULL_S):
            values["compared"] += 1
            wrong += readings.differences(devices[0], theirs)
            if devices[0]["processes"] not in (1, None):
                wrong.append(f"{devices[0]['processes']} processes are reported")
    if not values["compared"]:
        wrong.append("no report of usage")
    if len(pids) != 1 or own != pids:
        wrong.append(f"{pids or 'no processes'} compute, of the program are {own}")
    return wrong


def device_files(place: Workplace) -> Result:
    """B08: which processes keep device files open: dlapp's own only those of the leased GPU, and the common ones."""
    nodes = [name for name in os.listdir("/dev") if re.fullmatch(r"nvidia\d+", name)]
    minor = device(place).minor
    with place.application("files", place.cuda("hold", 20, "--mib", 64)) as application:
        at_s = application.wait_event("memory")["at"]
        found: dict[str, list[str]] = {}
        for pid in place.processes():
            files = set()
            with contextlib.suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with contextlib.suppress(OSError):
                        target = os.readlink(f"/proc/{pid}/fd/{fd}")
                        if target.startswith("/dev/nvidia"):
                            files.add(target)
            if files:
                is_nvml = b"nvml_subprocess" in Path(f"/proc/{pid}/cmdline").read_bytes()
                name = NVML_PROCESS if is_nvml else Path(f"/proc/{pid}/comm").read_text().strip()
                found[f"{pid} {name}"] = sorted(files)
    started_s = round(at_s - application.submitted_s, 2)
    values = {"open": found, "nodes": nodes, "first_context_s": started_s}
    others = {f"/dev/{name}" for name in nodes} - {f"/dev/nvidia{minor}"}
    own = (" dlapp-task", NVML_PROCESS)
    wrong = {who: sorted(others & set(files)) for who, files in found.items() if who.endswith(own)}
    if any(wrong.values()):
        raise Failed(f"a task has other GPUs open: {wrong}", values)
    text = "; ".join(f"{who}: {' '.join(name.removeprefix('/dev/') for name in files)}" for who, files in found.items())
    return Result(OK, f"{text or 'none is open'}; {started_s:.1f} s from the submission to memory on the GPU", values)


NVML_PROCESS = "dlapp's process for NVML"
TURN = "date +%s.%N >output/began; {work}; date +%s.%N >output/ended"


def queue(place: Workplace) -> Result:
    """B09: of two applications for one GPU the second waits for the first, with a reason."""
    go = place.directory / "second-waits"
    work = f"while [ ! -e {go} ]; do sleep 0.1; done"
    if not place.stub:
        work = place.cuda("burn", TURN_S).removeprefix("exec ")
    script = "mkdir -p output; " + TURN.format(work=work)

    def output(name: str) -> dict[str, Any]:
        return {"output_path": "output", "hdfs": place.directory / "turns" / name}

    with place.application("first", script, to_hdfs=output("first")) as first:
        first.running()
        with place.application("second", script, to_hdfs=output("second")) as second:
            waiting = place.wait("the reason of the second", lambda: second.status()["waiting"], TURN_S + 10)
            go.touch()
            first.succeeded(60.0)
            second.succeeded(60.0)
    times = []
    for name in ("first", "second"):
        began, ended = (float((place.directory / "turns" / name / value).read_text()) for value in ("began", "ended"))
        times.append((began, ended))
    gap_s = -readings.overlap_s(times[0], times[1])
    values = {"times": times, "gap_s": round(gap_s, 2), "waiting": waiting}
    if gap_s < 0:
        raise Failed(f"both used the GPU for {-gap_s:.2f} s", values)
    if waiting is None or first.id not in json.dumps(waiting):
        raise Failed(f"the reason of the second does not name the first: {waiting}", values)
    return Result(OK, f"never at once, {gap_s:.1f} s apart; the second: {waiting['message']}", values)


def without_gpu(place: Workplace) -> Result:
    """B10: a program without a GPU sees none; what is not guaranteed (docs/gpu.md) is recorded."""
    keys = {"gcores": 0, "memory": "1g"}
    if place.stub:
        output = {"output_path": "output", "hdfs": place.directory / "none"}
        with place.application("none", SHOW, resources=keys, to_hdfs=output) as application:
            application.succeeded(60.0)
        seen = (place.directory / "none/visible").read_text().splitlines()
        if seen[0]:
            raise Failed(f"CUDA_VISIBLE_DEVICES is {seen[0]}")
        return Result(OK, "CUDA_VISIBLE_DEVICES is empty; no CUDA to see nothing with")
    counts = []
    for name, before in (("none", ""), ("unset", "unset CUDA_VISIBLE_DEVICES\n")):
        with place.application(name, before + place.cuda("devices"), resources=keys) as application:
            application.succeeded(60.0)
            counts += [event["count"] for event in application.events() if event["event"] == "devices"]
    values = {"with": counts[0], "unset": counts[1]}
    if counts[0]:
        raise Failed(f"a program without a GPU sees {counts[0]}", values)
    return Result(OK, f"it sees none; with the variable unset {counts[1]}, as documented", values)


def idle_guard(place: Workplace) -> Result:
    """B17: a program that holds memory and computes nothing is stopped by idle_guard."""
    work = "exec sleep 120" if place.stub else place.cuda("hold", 120, "--mib", 4096)
    keys = {"idle_guard": f"5%, {IDLE_GUARD_S:.0f}s, stop", "kill_grace": "2s"}
    with place.application("idle", work, application=keys) as application:
        application.running()
        began_s = time.monotonic()
        view = application.ended(70.0)
    took_s = time.monotonic() - began_s
    rule = rule_of(view)
    values = {"seconds": round(took_s, 1), "rule": rule, "diagnostics": view["diagnostics"]}
    if rule != "idle_guard":
        raise Failed(f"it ended otherwise: {view['diagnostics']}", values)
    return Result(OK, f"stopped after {took_s:.0f} s: {view['diagnostics']}", values)


def rule_of(view: dict[str, Any]) -> str | None:
    """Return the rule of the cause of an application's failure; None: it has none."""
    diagnosis = (view["diagnosis"] or {}).get("diagnosis")
    return diagnosis["rule"] if diagnosis else None


def ranks(place: Workplace) -> Result:
    """B18: framework=torchrun with NCCL, one rank on the one GPU."""
    if find_spec("torch") is None:
        raise Skipped("torch is not installed")
    script = f"exec '{sys.executable}' -m torch.distributed.run cuda_program.py rank"
    keys = {"framework": "torchrun"}
    with place.application("ranks", script, application=keys, resources={"memory": TORCH_MEMORY}) as application:
        application.succeeded(80.0)
        ends = [event for event in application.events() if event["event"] == "end"]
    if [(end["sum"], end["ranks"]) for end in ends] != [(1.0, 1)]:
        raise Failed(f"the ranks printed {ends}")
    return Result(OK, "one rank, the sum is 1, three steps in DistributedDataParallel", {"ends": ends})


def refusal(place: Workplace) -> Result:
    """B18b: more GPUs than the machine has are refused at once, with both amounts."""
    count = int(place.device["count"])
    try:
        application = place.submit("toomany", "true", resources={"gcores": count + 1})
    except Failed as error:
        text = str(error)
        if str(count + 1) not in text or str(count) not in text:
            raise Failed(f"the refusal has no amounts: {text}") from None
        return Result(OK, text)
    application.kill()
    raise Failed(f"{count + 1} GPUs of {count} were not refused")
