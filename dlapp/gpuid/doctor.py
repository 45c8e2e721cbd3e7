"""The cards and the ledger that says whose they are, for dlapp-doctor."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator

from dlapp.config import Config
from dlapp.findings import ASK_S, Check, Finding, Ground, failed, passed, warned


def checks(ground: Ground) -> list[Check]:
    """The cards of this machine where payloads run on it, and the ledger where it can be reached from here."""
    found = []
    if ground.config.cluster == "local" or ground.on_node:
        found.append(Check("gpu", _cards))
    if ground.config.gpuid.zookeeper.ensemble is not None:
        found.append(Check("gpu.ledger", functools.partial(_zookeeper, ground)))
    elif ground.config.cluster == "local":
        found.append(Check("gpu.ledger", functools.partial(_files, ground.config)))
    return found


def _cards() -> Iterator[Finding]:
    from dlapp.gpuid import nvml
    from dlapp.gpuid.health import judge, limits_here

    if not nvml.library_is_there():
        yield passed("gpu", "no NVML library (libnvidia-ml.so.1): this machine has no NVIDIA GPUs to give")
        return
    devices = nvml.discover()
    if not devices:
        yield warned("gpu", "NVML works, and shows no card", "look at nvidia-smi")
        return
    limits, readings = limits_here(), nvml.read(devices)
    for one in devices:
        words = f"{one.name}, {one.memory_mib} MiB, {one.pci_bus_id}, {one.uuid}"
        fault = judge(readings[one.uuid], limits) if one.uuid in readings else None
        if fault is None:
            yield passed(f"gpu.{one.label}", words)
        else:
            # A payload that holds it is a process on it like any other; the ledger knows which is which.
            yield warned(f"gpu.{one.label}", f"{words}: {fault.detail}", "dlapp-gpu list says whose it is")


def _files(config: Config) -> Iterator[Finding]:
    from dlapp.gpuid.machine import MachineLedger

    directory = config.gpuid.lock_dir
    try:
        there = os.stat(directory)
    except FileNotFoundError:
        yield passed("gpu.ledger", f"{directory}: is made with the first GPU that is leased")
        return
    if there.st_mode & 0o1777 != 0o1777:
        yield warned(
            "gpu.ledger",
            f"{directory} has mode {there.st_mode & 0o7777:o}",
            f"all users share it: chmod 1777 {directory}",
        )
    held = len(MachineLedger(directory).holders())
    yield passed("gpu.ledger", f"{directory}: {held} cards held or reserved")


def _zookeeper(ground: Ground) -> Iterator[Finding]:
    from dlapp.gpuid.rules import LedgerError
    from dlapp.gpuid.stores import configured, open_ledger

    zookeeper = ground.config.gpuid.zookeeper
    setting = "gpuid.zookeeper.ensemble"
    try:
        import kazoo  # noqa: F401
    except ImportError:
        yield failed("gpu.ledger", "the Python package kazoo is not installed", "pip install 'dlapp[zookeeper]'")
        return
    if zookeeper.credentials is None and ground.ledger is None:
        yield warned(
            "gpu.ledger.access",
            "the ledger is not protected: whoever reaches ZooKeeper can write it",
            "set gpuid.zookeeper.credentials",
        )
    ledger = open_ledger(ground.ledger or configured(ground.config.gpuid))
    try:
        records = list(ledger.hosts(timeout_s=ASK_S))  # type: ignore[attr-defined]
    except Exception as error:
        yield failed("gpu.ledger", str(error), f"start ZooKeeper or set {setting}")
        return
    finally:
        ledger.close()
    good = [record for _, record in records if not isinstance(record, LedgerError)]
    for name, record in records:
        if isinstance(record, LedgerError):
            yield failed("gpu.ledger.record", f"{name}: {record}")
    cards = sum(one.present for record in good if not record.forgotten_ms for one in record.devices)
    ill = sum(one.quarantine is not None for record in good if not record.forgotten_ms for one in record.devices)
    yield passed("gpu.ledger", f"{zookeeper.ensemble}{zookeeper.root}: {len(good)} hosts, {cards} cards")
    if ill:
        yield warned("gpu.quarantine", f"{ill} cards are in quarantine", "dlapp-gpu list says why")
