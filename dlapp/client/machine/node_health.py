"""Health of this machine's GPUs, for the health script of a NodeManager (``dlapp-gpu health``).

With ``yarn.io/gpu`` YARN assigns GPUs without knowing their state. Its ResourceManager schedules nothing on a node
whose health script prints a line that begins with ERROR. It also ends all containers of that node, so only a machine on
which nobody uses a GPU is reported; until then the quarantine of its GPUs keeps new programs away from them.

Only failures of the hardware and an operator's quarantine count. A process without a lease may belong to another
framework's container, and a hot GPU becomes cool.

Source: NodeHealthScriptRunner (a line that begins with ERROR; another exit code than 0 counts as healthy);
CapacityScheduler.removeNode (ends the containers of a node that is unhealthy), Hadoop 2.7 to 3.5.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.gpuid.health import nvml
from dlapp.gpuid.health.driver_load import driver_load
from dlapp.gpuid.health.inspection import classify_reading, foreign_processes, is_closed, limits_in
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.rules import CONDITIONS
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.system import clock

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.health.readings import Reading

DRIVER_GPUS = "/proc/driver/nvidia/gpus"
"""One directory for each GPU of the driver, also for one that NVML has lost."""
_EXCLUDED = re.compile(r"^GPU (?:Excluded|Blacklisted):\s*Yes", re.M)
_MAX_FILE_BYTES = 4096


class MachineHealth(NamedTuple):
    """State of this machine's GPUs.

    Args:
        problems: a line for each GPU that must not be used, or one for NVML.
        users: who uses GPUs, a line for each; empty: nobody.
    """

    problems: tuple[str, ...]
    users: tuple[str, ...]


def machine_health(config: Config, driver_gpus: str = DRIVER_GPUS) -> MachineHealth:
    """Return the state of this machine's GPUs, in about a minute at most, also if the driver hangs.

    Args:
        config: the configuration of this machine.
        driver_gpus: see `DRIVER_GPUS`.

    Raises:
        LedgerError: the machine's ledger is invalid.
    """
    with NvmlProcess() as process:
        return _machine_health(config, process, driver_gpus)


def _machine_health(config: Config, process: NvmlProcess, driver_gpus: str) -> MachineHealth:
    ledger = MachineLedger(config.gpuid.lock_dir, docker_host=config.runtime.docker.host, nvml=process)
    users = [str(one) for one in ledger.holders().values()]  # from files only
    if not nvml.has_library():
        return MachineHealth((), tuple(users))
    try:
        record = ledger.record()
        devices = [one.device for one in record.devices if one.present]
        # One that an operator took out of use is not opened: it may be reset just now.
        opened = [one.device for one in record.devices if one.present and not (one.quarantine and one.quarantine.by)]
        readings = process.read(opened) if opened else {}
        # A GPU in MIG mode is there, also without instances.
        split = [one for one, _ in process.discover_unleasable({one.index for one in devices}) if one.pci_bus_id]
    except NvmlError as error:
        return MachineHealth((str(error),), tuple(users))
    limits = limits_in(config.gpuid)
    problems = [f"{bus_id} is not found by NVML" for bus_id in missing_gpus([*devices, *split], driver_gpus)]
    now_ms, driver = clock.now_ms(), driver_load()
    for one in record.devices:
        quarantine, reading = one.quarantine, readings.get(one.uuid)
        fault = None if reading is None else classify_reading(reading, limits)
        # No program starts on a node that is reported, so nobody inspects a GPU when that is due: its reading decides.
        waits = quarantine is not None and quarantine.needs_reset(record.boot_id, driver)
        if waits or is_closed(one, record.boot_id, now_ms, driver):
            problems.append(f"{one.device.label} ({one.uuid}) is {quarantine}")
        elif fault is not None and fault.cause not in CONDITIONS:
            problems.append(f"{one.device.label} ({one.uuid}): {fault.detail}")
    return MachineHealth(tuple(problems), (*users, *_processes(opened, readings, limits.allowed)))


def _processes(devices: Sequence[Device], readings: Mapping[str, Reading], allowed: Collection[str]) -> list[str]:
    return [
        f"{device.label} process {process.pid} ({process.name or 'whose name is hidden'})"
        for device in devices
        for process in foreign_processes(readings[device.uuid], allowed)
    ]


def missing_gpus(devices: Sequence[Device], driver_gpus: str) -> list[str]:
    """Return the PCI bus ids of the driver's GPUs that NVML does not show; those that the operator excluded are not.

    Args:
        devices: GPUs that NVML shows; if the bus id of one is not known, nothing is missing.
        driver_gpus: see `DRIVER_GPUS`.
    """
    shown = {_bus_id(one.pci_bus_id) for one in devices}
    if "" in shown:
        return []
    try:
        names = os.listdir(driver_gpus)
    except OSError:
        return []
    missing = sorted(name for name in names if _bus_id(name) not in shown)
    return [name for name in missing if not _is_excluded(os.path.join(driver_gpus, name, "information"))]


def _bus_id(text: str) -> str:
    # NVML writes a PCI domain with eight digits in upper case, the kernel with four in lower case.
    return text.lower()[-len("0000:3b:00.0") :]


def _is_excluded(path: str) -> bool:
    with contextlib.suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        return _EXCLUDED.search(file.read(_MAX_FILE_BYTES)) is not None
    return False
