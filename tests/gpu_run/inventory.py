"""Checks of what dlapp knows of GPUs: discovery, health, and the ledger."""

from __future__ import annotations

import json
import os
import signal
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dlapp.gpuid.health import nvml as gpus
from dlapp.gpuid.health.inspection import Inspector, classify_reading
from dlapp.gpuid.rules import LeaseRequest, NotEnough
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.text import counted
from tests.gpu_run import readings
from tests.gpu_run.facts import device, opened
from tests.gpu_run.results import OK, Failed, Result, Skipped

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from tests.gpu_run.workplace import Workplace

NOBODY = 65534
DISCOVERY_S = 1.0
"""Median of a discovery at most [s]; the first one may initialise the GPUs."""
CYCLES = 100
MODES = {
    "Default": "default",
    "Exclusive_Process": "exclusive",
    "Exclusive_Thread": "exclusive",
    "Prohibited": "prohibited",
}


def discovery(place: Workplace) -> Result:
    """B03: the GPUs are those of nvidia-smi, and a discovery is fast."""
    times_s: list[float] = []
    found: tuple[Device, ...] = ()
    for _ in range(6):
        began_s = time.monotonic()
        found = gpus.discover()
        times_s.append(time.monotonic() - began_s)
    first_s, median_s = times_s[0], statistics.median(times_s[1:])
    values = {"first_s": round(first_s, 4), "median_s": round(median_s, 4)}
    speed = f"first {first_s * 1000:.0f} ms, then {median_s * 1000:.0f} ms"
    if median_s > DISCOVERY_S:
        raise Failed(f"a discovery takes {median_s:.2f} s", values)
    if place.stub or not readings.has_smi():
        return Result(OK, f"{counted(len(found), 'GPUs')}, {speed}; not compared: no nvidia-smi for it", values)
    whole = [item for item in found if item.mig < 0]
    rows = readings.query("gpu", readings.DEVICE_FIELDS)
    rows = [row for row in rows if row["mig.mode.current"] != "Enabled"]
    if wrong := unequal(whole, rows):
        raise Failed("; ".join(wrong), values)
    if len(whole) > 1:
        links = readings.links_of(readings.ask_smi("topo", "-m"))
        mine = [tuple(item.links) for item in whole]
        if len(links) == len(mine) and mine != links:
            raise Failed(f"links are {mine}, nvidia-smi has {links}", values)
    return Result(OK, f"{counted(len(whole), 'GPUs')} as nvidia-smi has, {speed}", values)


def unequal(found: list[Device], rows: list[dict[str, str]]) -> list[str]:
    """Return in what devices differ from the rows of nvidia-smi (`readings.DEVICE_FIELDS`); empty: in nothing."""
    row_of = {row["uuid"]: row for row in rows}
    wrong = [f"{uuid}: not discovered" for uuid in sorted(row_of.keys() - {device.uuid for device in found})]
    for seen in found:
        if (row := row_of.get(seen.uuid)) is None:
            wrong.append(f"{seen.uuid}: nvidia-smi does not show it")
            continue
        theirs: dict[str, Any] = {
            "index": int(row["index"]),
            "bus id": readings.bus_id(row["pci.bus_id"]),
            "memory": int(row["memory.total"]),
            "mode": MODES.get(row["compute_mode"], row["compute_mode"]),
        }
        mine: dict[str, Any] = {
            "index": seen.index,
            "bus id": readings.bus_id(seen.pci_bus_id),
            "memory": seen.memory_mib,
            "mode": seen.compute_mode,
        }
        if (numa := _numa(seen.pci_bus_id)) >= 0:
            theirs["node"], mine["node"] = numa, seen.numa
        wrong += [
            f"{seen.label}: {name} is {mine[name]}, not {theirs[name]}" for name in mine if mine[name] != theirs[name]
        ]
    return wrong


def _numa(bus_id: str) -> int:
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{rest}/numa_node").read_text())
    except (OSError, ValueError):
        return -1


def idle_gpu(place: Workplace) -> Result:
    """B04: the idle GPU is healthy, and dlapp-doctor passes it."""
    one = gpus.read([device(place)])[place.uuid]
    values = {"used_mib": one.used_mib, "reserved_is_apart": one.reserved_is_apart, "temperature_c": one.temperature_c}
    if (fault := classify_reading(one)) is not None:
        raise Failed(f"{place.label}: {fault.cause}: {fault.detail}", values)
    answer = place.tool("doctor", "--json")
    try:
        findings = json.loads(answer.out)["findings"]
    except ValueError:
        raise Failed(f"dlapp-doctor: {answer.err.strip()}", values) from None
    subject = f"gpu.{place.label}"
    mine = [finding for finding in findings if finding["subject"] == subject]
    if [finding["verdict"] for finding in mine] != ["pass"]:
        raise Failed(f"dlapp-doctor on {subject}: {mine or 'nothing'}", values)
    apart = "apart" if one.reserved_is_apart else "not apart"
    return Result(OK, f"{one.used_mib} MiB in use, what the driver reserves is {apart}; the doctor passes it", values)


def ledger(place: Workplace) -> Result:
    """B05: a second process is refused with the name of the holder; SIGKILL of the first frees the GPU; 100 cycles."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            lease = _ledger(place).acquire(_request("application_1_0001"), timeout_s=10)
            os.write(tell, lease.devices[0].uuid.encode())
            signal.pause()
        except BaseException as error:
            os.write(tell, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(1)
    os.close(tell)
    if (answer := os.read(ready, 4096).decode()) != place.uuid:
        raise Failed(f"the first process got no lease of the GPU: {answer}")
    mine = _ledger(place)
    try:
        mine.acquire(_request("application_1_0002"))
        raise Failed("a second process leased the same GPU")
    except NotEnough as error:
        refused = str(error)
    if "application_1_0001" not in refused:
        raise Failed(f"the refusal does not name the holder: {refused}")
    os.kill(pid, signal.SIGKILL)
    killed_s = time.monotonic()
    os.waitpid(pid, 0)
    mine.acquire(_request("application_1_0002"), timeout_s=10).release()
    free_s = time.monotonic() - killed_s
    times_ms = []
    for cycle in range(CYCLES):
        began_s = time.monotonic()
        mine.acquire(_request(f"application_1_{cycle + 100:04d}"), timeout_s=10).release()
        times_ms.append((time.monotonic() - began_s) * 1000)
    times_ms.sort()
    values = {"free_after_kill_s": round(free_s, 3), "p50_ms": times_ms[CYCLES // 2], "p99_ms": times_ms[CYCLES - 2]}
    return Result(
        OK,
        f"refused ({refused}); free {free_s:.2f} s after SIGKILL; {CYCLES} leases, median {values['p50_ms']:.1f} ms, "
        f"p99 {values['p99_ms']:.1f} ms",
        values,
    )


def _ledger(place: Workplace) -> MachineLedger:
    return MachineLedger(str(place.lock_dir), docker_host="unix:///nowhere", inspect=Inspector(read=gpus.read))


def _request(application: str) -> LeaseRequest:
    container = f"{application.replace('application', 'container')}_01_000001"
    return LeaseRequest(application=application, container=container, user="test-gpu", gcores=1)


def other_user(place: Workplace) -> Result:
    """B06: NVML answers a user without privileges as it answers root."""
    if os.geteuid() != 0:
        raise Skipped("not root: it cannot become another user")

    def read_as_user() -> dict[str, Any]:
        one = device(place)
        reading = gpus.read([one])[place.uuid]
        watch = gpus.NvmlWatch([one])
        try:
            faults, samples = watch.poll(), watch.sample()
        finally:
            watch.close()
        known = sorted(name for name, value in samples[place.uuid]._asdict().items() if value is not None)
        return {
            "device": [one.uuid, one.index, one.minor, one.name, one.pci_bus_id, one.compute_mode, one.numa],
            "error": reading.error,
            "reported": sorted(name for name, value in reading._asdict().items() if value is not None),
            "faults": sorted(faults),
            "sampled": known,
            "xids": _xid_code(place),
        }

    theirs = as_nobody(read_as_user)  # first: a fork of a process that has not opened NVML
    mine = read_as_user()
    if mine != theirs:
        differ = {name: (mine[name], theirs.get(name)) for name in mine if mine[name] != theirs.get(name)}
        raise Failed(f"root and uid {NOBODY} get different answers: {differ}", {"root": mine, "nobody": theirs})
    return Result(OK, f"the same answers; registration for Xids: code {mine['xids']}", {"xids": mine["xids"]})


def _xid_code(place: Workplace) -> int:
    """Return NVML's answer to a registration for Xids."""
    with opened(place) as (nvml, handle):
        events = nvml.nvmlEventSetCreate()
        try:
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            return int(error.value)
        finally:
            nvml.nvmlEventSetFree(events)
    return 0


def as_nobody(ask: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return what a function returns in a fork that has become a user without privileges. Raises Failed."""
    end, mine = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            answer = ask()
        except BaseException as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        os.write(mine, json.dumps(answer).encode())
        os._exit(0)
    os.close(mine)
    with open(end, "rb") as file:
        data = file.read()
    os.waitpid(pid, 0)
    if not data:
        raise Failed(f"the process of uid {NOBODY} died", {"python": sys.version})
    return dict(json.loads(data))
