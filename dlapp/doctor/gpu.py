"""GPUs and their ledger, for dlapp-doctor."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from dlapp.config import NO_CREDENTIALS
from dlapp.doctor.findings import FAIL, REQUEST_TIMEOUT_S, WARN, Check, CheckContext, Finding, failed, passed, warned
from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device, Holder
    from dlapp.gpuid.health.readings import Reading
    from dlapp.gpuid.rules import Quarantine

_REPAIRS = {
    "ecc": "dlapp-gpu reset {one.label} when nobody uses it",
    "needs-reset": "dlapp-gpu reset {one.label} when nobody uses it",
    "prohibited": "nvidia-smi -c 0 -i {one.index}",
    "hot": "look at its fans and the load of the machine",
    "fabric": "systemctl start nvidia-fabricmanager; its log says why it does not run",
}
"""What to do about a fault, by its cause."""
_USES = ("foreign-process", "memory-held")
MAX_PROBLEMS = 20
"""Maximum number of invalid entries of the ledger's directory in a message."""


def checks(context: CheckContext) -> list[Check]:
    """Check the GPUs of this machine if payloads run on it, and the ledger if it can be reached from here."""
    found = []
    if context.config.cluster == "local" or context.on_node:
        found.append(Check("gpu", functools.partial(_devices, context)))
    has_ensemble = context.config.gpuid.zookeeper.ensemble is not None
    if context.config.cluster == "local" and not context.on_node:
        found.append(Check("gpu.ledger", functools.partial(_files, context)))
        if has_ensemble:
            found.append(Check("gpu.zookeeper", functools.partial(_zookeeper_of_cluster, context)))
    elif has_ensemble:
        found.append(Check("gpu.ledger", functools.partial(_zookeeper, context)))
    return found


def _devices(context: CheckContext) -> Iterator[Finding]:
    from dlapp.gpuid.health import driver, nvml
    from dlapp.gpuid.health.nvml_subprocess import SHORT_ANSWER_S, NvmlProcess

    if not nvml.has_library():
        missing = "no NVML library (libnvidia-ml.so.1)"
        if what := driver.hardware():
            yield warned("gpu", f"{missing}, and there is {what}", "install NVIDIA's driver to use its GPUs")
        else:
            yield passed("gpu", f"{missing}: this machine has no NVIDIA GPUs")
        return
    process = context.nvml or NvmlProcess(SHORT_ANSWER_S)
    try:
        devices = process.discover()
        readings = process.read(devices, detailed=True) if devices else {}
        others = process.discover_unleasable({one.index for one in devices})
    except nvml.NvmlError as error:
        yield failed("gpu.driver", error.problem, error.repair)
        return
    for one, reason in others:
        repair = "nvidia-smi mig -cgi creates instances" if reason == nvml.NO_INSTANCES else "see nvidia-smi and dmesg"
        yield warned(f"gpu.{one.label}", ", ".join(filter(None, (one.name, one.pci_bus_id, reason))), repair)
    if not devices:
        if not others:
            yield warned("gpu", "NVML works, and shows no GPU", "see nvidia-smi")
        return
    yield from _conditions(context, devices, readings)
    if off := [one.label for one in devices if readings[one.uuid].persistent is False]:
        yield warned(
            "gpu.persistence",
            f"persistence mode is off on {', '.join(off)}: the driver initialises an idle GPU each time that it is "
            "inspected (1 to 3 s), and forgets its ECC errors in between",
            "start nvidia-persistenced at each boot",
        )


def _conditions(
    context: CheckContext, devices: tuple[Device, ...], readings: Mapping[str, Reading]
) -> Iterator[Finding]:
    """Yield the condition of each GPU; a machine without any that can be leased is a failure, not a warning."""
    from dlapp.gpuid.health.inspection import classify_reading, host_limits

    holders, quarantine_of = _in_ledger(context, devices)
    limits = host_limits()
    faults = {one.uuid: classify_reading(readings[one.uuid], limits) for one in devices}
    broken = [one for one, fault in faults.items() if fault is not None and fault.cause not in _USES]
    # A node of a cluster is not its only one.
    none_left = not context.on_node and {*broken, *quarantine_of} >= set(faults)
    report = failed if none_left else warned
    for one in devices:
        reading = readings[one.uuid]
        words = f"{one.name}, {one.memory_mib} MiB, {one.pci_bus_id}, {one.uuid}"
        if reading.unverified:
            words += f"; unverified: {reading.unverified}"
        if reading.unreported:
            words += f"; not reported: {', '.join(reading.unreported)}"
        words += "".join(f"; {note}" for note in reading.notes)
        holder, quarantine = holders.get(one.uuid), quarantine_of.get(one.uuid)
        if holder is not None:
            words += f"; {'held by ' if holder.application else ''}{str(holder).partition(' ')[2]}"
        if quarantine is not None:
            words += f"; {quarantine}"
        fault = faults[one.uuid]
        # The program of a holder is an ordinary process on the GPU.
        if fault is not None and not (holder and fault.cause in _USES):
            repair = _REPAIRS.get(fault.cause, "dlapp-gpu list shows its holder").format(one=one)
            yield report(f"gpu.{one.label}", f"{words}: {fault.detail}", repair)
        elif quarantine is not None:
            repair = _REPAIRS.get(quarantine.cause, "dlapp-gpu heal {one.label} leases it again").format(one=one)
            yield report(f"gpu.{one.label}", words, repair)
        else:
            yield passed(f"gpu.{one.label}", words)


def _in_ledger(
    context: CheckContext, devices: tuple[Device, ...]
) -> tuple[Mapping[str, Holder], Mapping[str, Quarantine]]:
    """Return who holds GPUs of this machine, and which of them its files have in quarantine, by uuid."""
    from dlapp.gpuid.rules import LedgerError
    from dlapp.gpuid.stores.machine import MachineLedger

    gpuid, docker_host = context.config.gpuid, context.config.runtime.docker.host
    try:
        record = MachineLedger(gpuid.lock_dir, docker_host=docker_host, discover=lambda: devices).record()
    except LedgerError:
        return {}, {}  # the check of the ledger reports it
    return record.holder_by_uuid(), {one.uuid: one.quarantine for one in record.devices if one.quarantine is not None}


def _files(context: CheckContext) -> Iterator[Finding]:
    from dlapp.gpuid.rules import LedgerError
    from dlapp.gpuid.stores.machine import MachineLedger
    from dlapp.system.owners import user_text
    from dlapp.system.shared_directory import remedy

    config = context.config
    directory = config.gpuid.lock_dir
    try:
        there = os.lstat(directory)
    except FileNotFoundError:
        yield passed("gpu.ledger", f"{directory}: not found; the first lease of a GPU creates it")
        if os.geteuid() != 0:
            yield warned("gpu.ledger.shared", "it will belong to you and serve no other user", remedy(directory))
        return
    if there.st_uid != 0 or there.st_mode & 0o1777 != 0o1777:
        yield warned(
            "gpu.ledger.shared",
            f"{directory} belongs to {user_text(there.st_uid)}, with mode {there.st_mode & 0o7777:o}: "
            "it does not serve all users",
            remedy(directory),
        )
    ledger = MachineLedger(directory, docker_host=config.runtime.docker.host, nvml=context.nvml)
    try:
        held = len(ledger.holders())
    except LedgerError as error:
        yield failed("gpu.ledger", str(error), remedy(directory))
        return
    for path, problem in sorted(ledger.problems.items())[:MAX_PROBLEMS]:
        yield warned("gpu.ledger.entry", f"{path}: {problem}", "its owner or root removes it")
    yield passed("gpu.ledger", f"{directory}: {held} GPUs and slices leased or reserved")


def _zookeeper_of_cluster(context: CheckContext) -> Iterator[Finding]:
    """Yield the findings on a cluster's ledger where this engine's own is in files: no application here needs it."""
    needed = "only dlapp-gpu and applications of a cluster use it"
    try:
        for one in _zookeeper(context):
            verdict, subject = (
                WARN if one.verdict == FAIL else one.verdict,
                one.subject.replace(".ledger", ".zookeeper"),
            )
            repair = one.repair and f"{one.repair}; {needed}"
            yield one._replace(verdict=verdict, subject=subject, repair=repair)
    except DlappError as error:
        yield warned("gpu.zookeeper", str(error), needed)


def _zookeeper(context: CheckContext) -> Iterator[Finding]:
    from dlapp.gpuid.factory import OPEN, configured, open_cluster_ledger
    from dlapp.gpuid.needs import number_text
    from dlapp.gpuid.rules import LedgerError

    zookeeper = context.config.gpuid.zookeeper
    setting = "gpuid.zookeeper.ensemble"
    if zookeeper.credentials is None and context.ledger is None:
        yield failed("gpu.ledger.access", "gpuid.zookeeper.credentials is not set", NO_CREDENTIALS)
        return
    if zookeeper.credentials == OPEN:
        yield warned(
            "gpu.ledger.access",
            "the ledger is not protected: whoever reaches ZooKeeper can write it",
            "set gpuid.zookeeper.credentials to a file with user:password",
        )
    settings = context.ledger or configured(context.config)
    ledger = open_cluster_ledger(settings)
    try:
        records = list(ledger.hosts(timeout_s=REQUEST_TIMEOUT_S))
    except Exception as error:
        yield failed("gpu.ledger", str(error), f"start ZooKeeper or set {setting}")
        return
    finally:
        ledger.close()
    good = [record for _, record in records if not isinstance(record, LedgerError)]
    for name, record in records:
        if isinstance(record, LedgerError):
            yield failed("gpu.ledger.record", f"{name}: {record}")
    devices = [one for record in good if not record.forgotten_ms for one in record.devices]
    there = number_text(one.device for one in devices if one.present)
    yield passed("gpu.ledger", f"{settings.ensemble}{settings.root}: {len(good)} hosts, {there}")
    if ill := [one.device for one in devices if one.quarantine is not None]:
        here = [
            f"{one.device.label} {one.quarantine}"
            for record in good
            if record.host == ledger.host
            for one in record.devices
            if one.quarantine is not None
        ]
        usable = any(one.present and one.quarantine is None for one in devices)
        text = f"{number_text(ill)} {'is' if len(ill) == 1 else 'are'} in quarantine"
        text += "" if usable else ", and no other GPU is there"
        text += f"; of this host {', '.join(here)}" if here else ""
        yield (warned if usable else failed)("gpu.quarantine", text, "dlapp-gpu list says why")
