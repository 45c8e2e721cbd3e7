"""Reset of a GPU of this machine by root, when nobody uses it.

1. All GPUs that the same reset touches are locked in the machine's ledger, so that no ledger can lease them: with
   NVLinks the GPUs at their ends, on a machine with NVSwitches every GPU.
2. Nothing may use them: no lease of the configured ledger, no process that NVML or /proc shows.
3. They are put into an operator's quarantine, which stays if this program dies.
4. ``nvidia-smi --gpu-reset`` resets them.
5. They are inspected; the healthy ones leave quarantine.

Source: nvidia-smi(1), ``--gpu-reset``: no other program may have such a GPU open; GPUs with NVLinks are reset together.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.client.machine.drain import (
    DeviceSelection,
    DeviceView,
    close_devices,
    select_devices,
    select_gpus,
    with_finding,
)
from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.gpuid.devices import Device
from dlapp.gpuid.health.inspection import inspect_devices, limits_in
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.rules import LeaseRequest
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system.clock import backoff_s
from dlapp.system.owners import user_text
from dlapp.system.waits import Wait

if TYPE_CHECKING:
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import Config

PROGRAM = "nvidia-smi"
REASON = "dlapp-gpu reset"
"""Holder of the GPUs while they are reset, and reason of their quarantine."""
RESET_S = 300.0
"""Time limit of nvidia-smi. A reset of the eight GPUs of a machine with NVSwitches takes one to two minutes."""
SETTLE_S = 8.0
"""How long to wait for programs that just end: a query of nvidia-smi or of a monitor, or dlapp's own process for NVML,
which ends after five idle seconds."""
MAX_NAMED = 5
"""Maximum number of processes in a message."""
_MAX_OUTPUT, _MAX_NAME = 2000, 64
_FACTS = ("index", "minor", "pci_bus_id", "links", "mig")
_SWITCHES = re.compile(r"nvidia-nvswitch\d+", re.ASCII)
_NODE = re.compile(r"/dev/nvidia(\d+)", re.ASCII)


class ResetResult(NamedTuple):
    """Result of a reset.

    Args:
        devices: labels of the GPUs that it touched.
        problem: why it failed; empty: it did not.
        healed: labels of the GPUs that can be leased now.
        faults: what the inspection found afterwards, by label.
    """

    host: str
    devices: tuple[str, ...]
    problem: str
    healed: tuple[str, ...]
    faults: Mapping[str, str]


def reset_gpu(ledger: GpuLedger, config: Config, name: str, *, by: str) -> ResetResult:
    """Reset a GPU of this machine, and those that are reset with it.

    Args:
        ledger: the configured ledger.
        config: the configuration of this machine: the ledger's directory, the limits of health.
        name: of the GPU: index, ``gpu0``, uuid or PCI bus id.
        by: name of the operator.

    Raises:
        Denied: the caller is not root, or a GPU is in use; nothing was changed.
        NotFound: there is no such GPU, or no nvidia-smi.
        UsageError: a GPU is in MIG mode.
        DlappError: the ledger or NVML does not work.
    """
    if os.geteuid() != 0:
        raise Denied("a reset of a GPU needs root")
    with NvmlProcess() as nvml:
        return _reset(ledger, config, name, nvml, by)


def _reset(ledger: GpuLedger, config: Config, name: str, nvml: NvmlProcess, by: str) -> ResetResult:
    everything = _as_found(select_devices(ledger, ()), nvml)
    named = select_gpus(ledger, (name,))
    device = next(one for one in everything if one["uuid"] == named.uuids[0])
    touched = DeviceSelection(named.host, False, touched_devices(device, everything, has_switches()))
    if split := [one["label"] for one in touched.devices if one["mig"] >= 0]:
        raise UsageError(f"{', '.join(split)}: a reset removes MIG devices, so dlapp does not reset their GPUs")
    program = shutil.which(PROGRAM)
    if program is None:
        raise NotFound(f"{PROGRAM} is not on the PATH: install NVIDIA's tools, or set PATH (sudo replaces it)")
    if held := [one for one in touched.devices if one["state"] == "held"]:
        until = f"dlapp-gpu drain {held[0]['label']} shows until when"
        raise Denied(f"{_not_reset(named, touched)}: {'; '.join(map(_holder_text, held))} ({until})")
    devices = [_device(one) for one in touched.devices]
    machine = MachineLedger(config.gpuid.lock_dir, docker_host=config.runtime.docker.host)
    request = LeaseRequest(application=REASON, container="", user=by, gcores=len(devices))
    lock = machine.hold(devices, request, token=secrets.token_hex(16))
    if isinstance(lock, dict):
        holders = [str(one) for uuid, one in lock.items() if uuid in touched.uuids]
        raise Denied(f"{_not_reset(named, touched)}: {'; '.join(holders)}")
    try:
        if users := _settled_users(devices, nvml):
            more = f" and {len(users) - MAX_NAMED} more" if len(users) > MAX_NAMED else ""
            who = f"in use by {', '.join(users[:MAX_NAMED])}{more}"
            raise Denied(f"{_not_reset(named, touched)}: {who}; end them first, also monitors and daemons")
        closed = close_devices(ledger, touched, reason=REASON, by=by)
        nvml.close()  # it must have no GPU open
        problem = _run([program, "--gpu-reset", "-i", ",".join(dict.fromkeys(map(_id, devices)))])
        faults = _inspected(devices, config, nvml)
        healed = _reopen(ledger, named, touched, faults, closed, is_reset=not problem, by=by)
    finally:
        lock.release()
    return ResetResult(
        named.host, tuple(one["label"] for one in touched.devices), problem, healed, _by_label(touched, faults)
    )


# ---- what a reset touches ----


def _as_found(selection: DeviceSelection, nvml: NvmlProcess) -> tuple[DeviceView, ...]:
    """Return the devices of the ledger with NVML's present facts: numbers and links may be others since their record.

    Raises:
        DlappError: NVML shows a GPU that the ledger does not have, so it could not be closed for the reset of another.
    """
    there = {one.uuid: one for one in nvml.discover()}
    if unknown := there.keys() - set(selection.uuids):
        raise DlappError(
            f"{selection.host}: the GPU ledger does not know {', '.join(sorted(unknown))}; it does after the next "
            "lease of a GPU on this host"
        )
    return tuple(
        {**one, **{name: getattr(there[one["uuid"]], name) for name in _FACTS}, "present": True}
        if one["uuid"] in there
        else {**one, "present": False}
        for one in selection.devices
    )


def has_switches(directory: str = "/dev") -> bool:
    """Return whether this machine has NVSwitches."""
    return any(_SWITCHES.fullmatch(name) for name in os.listdir(directory))


def touched_devices(device: DeviceView, everything: Sequence[DeviceView], has_switches: bool) -> tuple[DeviceView, ...]:
    """Return the devices of a host that are reset with one of them.

    The links of a GPU that is lost are not known; then it counts as linked if any GPU of the host is.

    Args:
        device: the device.
        everything: all devices of the host.
        has_switches: whether it has NVSwitches, which connect all of them.
    """
    links = {one["index"]: _nvlinks(one) for one in everything}
    if has_switches or (any(links.values()) and not (device["links"] and device["present"])):
        return tuple(everything)
    found, new = set(), {device["index"]}
    while new:
        found |= new
        new = {other for index in new for other in links.get(index, ())} - found
    return tuple(one for one in everything if one["index"] in found)


def _nvlinks(device: DeviceView) -> set[int]:
    return {index for index, link in enumerate(device["links"]) if link.startswith("NV")}


# ---- who uses it ----


def _settled_users(devices: Sequence[Device], nvml: NvmlProcess) -> list[str]:
    deadline = time.monotonic() + SETTLE_S
    shown = _nvml_users(devices, nvml)
    nvml.close()
    with Wait("the programs that have the GPU open", SETTLE_S):
        for pause_s in backoff_s(0.1, 1.0):
            users = device_users({one.minor for one in devices}) | shown
            if not users or time.monotonic() >= deadline:
                return [f"process {pid} ({users[pid]})" for pid in sorted(users)]
            time.sleep(pause_s)
            shown = shown and _nvml_users(devices, nvml)  # a needless query would open the GPUs itself
    raise AssertionError


def device_users(minors: Collection[int], proc: str = "/proc") -> dict[int, str]:
    """Return the processes that have GPUs open: pid -> program and user.

    Args:
        minors: numbers of the GPUs' nodes, /dev/nvidia<minor>; -1, not known: of any GPU.
        proc: path of procfs.
    """
    found = {}
    for name in filter(str.isdigit, os.listdir(proc)):
        if any(-1 in minors or minor in minors for minor in _open_minors(f"{proc}/{name}/fd")):
            found[int(name)] = _program_and_user(int(name), proc)
    return found


def _open_minors(directory: str) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it has just ended
        for fd in os.listdir(directory):
            with contextlib.suppress(OSError):
                if match := _NODE.fullmatch(os.readlink(f"{directory}/{fd}")):
                    yield int(match[1])


def _program_and_user(pid: int, proc: str = "/proc") -> str:
    try:
        with open(f"{proc}/{pid}/comm", encoding="utf-8", errors="replace") as file:
            # Every program chooses its name.
            program = re.sub(r"[^ -~]", "?", file.read(_MAX_NAME).strip())
        return f"{program}, {user_text(os.stat(f'{proc}/{pid}').st_uid)}"
    except OSError:
        return "unknown program"


def _nvml_users(devices: Sequence[Device], nvml: NvmlProcess) -> dict[int, str]:
    """Return the processes that NVML shows, as nvidia-smi does; a GPU that does not answer shows none."""
    readings = nvml.read(devices)
    processes = (one for reading in readings.values() for one in (*(reading.compute or ()), *reading.graphics))
    return {one.pid: one.name or _program_and_user(one.pid) for one in processes}


# ---- the reset ----


def _run(command: Sequence[str]) -> str:
    """Run nvidia-smi to its end; return why it failed, empty: it did not.

    It goes on if this program is interrupted, and is abandoned after `RESET_S`: a hanging driver does not let it die.
    """
    with tempfile.TemporaryFile() as output, Wait(f"{PROGRAM} --gpu-reset", RESET_S):
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            code = process.wait(RESET_S)
        except subprocess.TimeoutExpired:
            process.kill()
            return f"{PROGRAM} (process {process.pid}) has not ended after {RESET_S:g} s"
        output.seek(0)
        text = " ".join(output.read(_MAX_OUTPUT).decode(errors="replace").split())
    return "" if code == 0 else f"{PROGRAM} ended with exit code {code}: {text or 'it printed nothing'}"


def _inspected(devices: Sequence[Device], config: Config, nvml: NvmlProcess) -> dict[str, str]:
    """Return what is wrong with the GPUs now, by uuid."""
    limits = limits_in(config.gpuid)
    try:
        there = {one.uuid: one for one in nvml.discover()}
        known = [there[one.uuid] for one in devices if one.uuid in there]
        faults = inspect_devices(known, read=nvml.read, limits=limits) if known else {}
    except NvmlError as error:
        return dict.fromkeys((one.uuid for one in devices), str(error))
    missing = {one.uuid: "NVML does not find it" for one in devices if one.uuid not in there}
    return missing | {uuid: fault.detail for uuid, fault in faults.items()}


def _reopen(
    ledger: GpuLedger,
    named: DeviceSelection,
    touched: DeviceSelection,
    faults: Mapping[str, str],
    closed: Collection[str],
    *,
    is_reset: bool,
    by: str,
) -> tuple[str, ...]:
    """End the quarantine of healthy devices, and add what was found to that of the others; return the labels of the
    healthy ones.

    After a reset these are the named one and those that were closed for it, also if dlapp had found a fault before.
    After a failure they are those that had no quarantine before.
    """
    healed = []
    for one in touched.devices:
        uuid, had_quarantine = one["uuid"], one["quarantine"] is not None
        is_meant = (uuid in closed or uuid in named.uuids) if is_reset else (uuid in closed and not had_quarantine)
        if is_meant and uuid not in faults:
            ledger.heal(uuid, host=touched.host)
            healed.append(one["label"])
        elif uuid in closed and had_quarantine and not is_reset:
            ledger.restore(uuid, one["quarantine"], host=touched.host)
        elif uuid in faults:
            own = REASON if uuid in closed else one["quarantine"].get("detail") or REASON
            ledger.quarantine(uuid, host=touched.host, reason=with_finding(own, faults[uuid]), by=by)
    return tuple(healed)


# ---- text ----


def _not_reset(named: DeviceSelection, touched: DeviceSelection) -> str:
    others = [one["label"] for one in touched.devices if one["uuid"] not in named.uuids]
    more = f", and the same reset touches {', '.join(others)}" if others else ""
    return f"{named.host}: {named.text} is not reset{more}"


def _holder_text(one: DeviceView) -> str:
    user = f" ({one['user']})" if one["user"] else ""
    return f"{one['application'] or 'an unknown holder'}{user} holds {one['label']}"


def _by_label(selection: DeviceSelection, faults: Mapping[str, str]) -> dict[str, str]:
    return {one["label"]: faults[one["uuid"]] for one in selection.devices if one["uuid"] in faults}


def _device(view: DeviceView) -> Device:
    return Device(
        uuid=view["uuid"], index=view["index"], minor=view["minor"], pci_bus_id=view["pci_bus_id"], mig=view["mig"]
    )


def _id(device: Device) -> str:
    return device.pci_bus_id or device.uuid
