"""Drain of GPUs for maintenance: no new leases, and who still uses them, until when."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.gpuid.health.inspection import foreign_processes
from dlapp.gpuid.health.nvml import NO_INSTANCES, NvmlError
from dlapp.system.owners import user_text

if TYPE_CHECKING:
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import Config

DeviceView = Mapping[str, Any]
"""A device as `dlapp.client.machine.gpu_ledger` describes it."""


FOUND = "; found: "
"""Begins what dlapp found, in the reason of an operator's quarantine."""
_GPU = re.compile(r"(gpu)?\d+(:\d+)?|(GPU|MIG)-.*|[0-9A-Fa-f:]+\.\d", re.ASCII)
"""Index, uuid or PCI bus id of a GPU."""


class DeviceSelection(NamedTuple):
    """Devices of one host that an operator named.

    Args:
        is_host: the whole host was named.
        devices: their views.
        split: labels of the GPUs split by MIG that were named whole: all their slices are meant.
    """

    host: str
    is_host: bool
    devices: tuple[DeviceView, ...]
    split: tuple[str, ...] = ()

    @property
    def uuids(self) -> tuple[str, ...]:
        """Return the uuids."""
        return tuple(one["uuid"] for one in self.devices)

    @property
    def text(self) -> str:
        """Return the labels as text: ``gpu1``, ``all slices of gpu0 (gpu0:0, gpu0:1)``."""
        return ", ".join(name if name not in self.split else self._slices(name) for name in self.names)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the labels of the devices, of the slices of a GPU that was named whole the GPU's."""
        whole = ((one["label"], gpu_label(one)) for one in self.devices)
        return tuple(dict.fromkeys(gpu if gpu in self.split else label for label, gpu in whole))

    def _slices(self, gpu: str) -> str:
        labels = ", ".join(one["label"] for one in self.devices if one["mig"] >= 0 and gpu_label(one) == gpu)
        return f"all slices of {gpu} ({labels})"


class RemainingUser(NamedTuple):
    """Application that still holds devices, or a process that computes on one without a lease.

    Args:
        user: empty: not known.
        devices: their labels.
        since_ms: since when [ms since 1970]; 0: not known.
        ends_ms: when it ends at the latest [ms since 1970]; None: not known.
        doubt: why the devices are not free although the holder seems to be gone; empty: no doubt.
        pid, program: of a process without a lease; 0 and empty: it is an application.
    """

    application: str
    user: str
    devices: tuple[str, ...]
    since_ms: int
    ends_ms: int | None
    doubt: str
    pid: int = 0
    program: str = ""


def select_devices(ledger: GpuLedger, names: Sequence[str], host: str | None = None) -> DeviceSelection:
    """Return the devices that names mean: GPUs, or one host, with all its GPUs.

    Args:
        ledger: the ledger that has them.
        names: see `select_gpus`; or one host; empty: all of ``host``.
        host: None: this host.

    Raises:
        NotFound: there is no such GPU and no such host, or the host has no GPU.
        DlappError: the record of the host is not readable.
    """
    where = host or ledger.host_name
    no_gpu: NotFound | None = None
    if names:
        # A GPU of this host is meant before a host of that name.
        try:
            return select_gpus(ledger, names, host)
        except NotFound as error:
            if host is not None or len(names) > 1:
                raise
            no_gpu = error
        (where,) = names
    try:
        devices = _devices_of(ledger, where)
    except (NotFound, UsageError) as error:
        if no_gpu is not None and _GPU.fullmatch(where):
            raise no_gpu from None
        if no_gpu is None or isinstance(error, UsageError):
            raise
        raise NotFound(f"{no_gpu}; nor is it a host of the GPU ledger") from None
    if not devices:
        raise NotFound(f"{where} has no GPU")
    return DeviceSelection(where, True, devices)


def select_gpus(ledger: GpuLedger, names: Sequence[str], host: str | None = None) -> DeviceSelection:
    """Return the devices of one host that names of GPUs mean; a GPU that is split by MIG means all its slices.

    Args:
        ledger: the ledger that has them.
        names: each an index, ``gpu0``, a uuid or a PCI bus id.
        host: None: this host.

    Raises:
        NotFound: there is no such GPU, or no such host.
        DlappError: the record of the host is not readable.
    """
    where = host or ledger.host_name
    devices = _devices_of(ledger, where)
    uuids: set[str] = set()
    split: list[str] = []
    for name in names:
        found = [one for one in devices if name in _names_of(one)]
        if not any(one["present"] for one in found):  # nor where it was split since
            found += [one for one in devices if one["present"] and name in _names_of_gpu(one)]
        if not found and _GPU.fullmatch(name) and where == ledger.host_name:
            found = _slices_of_unleasable(ledger, name, devices)
        if not found:
            known = ", ".join(one["label"] for one in devices) or "none"
            raise NotFound(f"{where}: there is no GPU {name!r}; it has {known}")
        uuids |= {one["uuid"] for one in found}
        split += [gpu_label(one) for one in found if one["mig"] >= 0 and name not in _names_of(one)]
    return DeviceSelection(where, False, tuple(one for one in devices if one["uuid"] in uuids), tuple(split))


def _slices_of_unleasable(ledger: GpuLedger, name: str, devices: Sequence[DeviceView]) -> list[DeviceView]:
    """Return the slices of a GPU of this host that is not in the ledger itself; none: there is no such GPU.

    Raises:
        NotFound: it has no slices either.
    """
    for gpu, reason in ledger.unleasable():
        if name in {gpu.uuid, gpu.pci_bus_id, gpu.label, str(gpu.index)}:
            if found := [one for one in devices if gpu.pci_bus_id and one["pci_bus_id"] == gpu.pci_bus_id]:
                return found
            repair = (
                f"nvidia-smi mig -i {gpu.index} -cgi PROFILE -C creates slices, nvidia-smi -i {gpu.index} -mig 0 makes "
                "it whole"
                if reason == NO_INSTANCES
                else "a restart of the host may repair it"
            )
            raise NotFound(f"{ledger.host_name}: {name} is not leased anyway: {reason}; {repair}")
    return []


def _devices_of(ledger: GpuLedger, host: str) -> tuple[DeviceView, ...]:
    for view in ledger.hosts(host, is_read=False):
        if view["error"] and not view["devices"]:
            raise DlappError(view["error"])
        return tuple(view["devices"])  # also while the driver does not work
    return ()


def gpu_label(device: DeviceView) -> str:
    """Return the label of a device's GPU: of the slice ``gpu0:1`` it is ``gpu0``."""
    label: str = device["label"]
    return label.partition(":")[0] if device["mig"] >= 0 else label


def _names_of(device: DeviceView) -> Collection[str]:
    label = device["label"]
    # The PCI bus id of a slice is that of its GPU.
    bus_id = device["pci_bus_id"] if device["mig"] < 0 else ""
    return {device["uuid"], bus_id, label, label.removeprefix("gpu")} - {""}


def _names_of_gpu(device: DeviceView) -> Collection[str]:
    label = gpu_label(device)
    return {device["pci_bus_id"], label, label.removeprefix("gpu")} - {""}


def close_devices(
    ledger: GpuLedger, selection: DeviceSelection, *, reason: str, by: str, replaces: bool = False
) -> tuple[str, ...]:
    """Put devices into quarantine. What dlapp has found stays in the reason.

    Args:
        ledger: the ledger that has them.
        selection: the devices.
        reason: one line for other operators; empty: the name of the operator.
        by: name of the operator.
        replaces: also those that an operator has put there already, if there is a reason.

    Returns:
        The uuids of those that were put there now.
    """
    closed = []
    for one in selection.devices:
        old = one["quarantine"]
        if (replaces and reason) or not (old and old.get("by")):
            text = with_finding(reason or f"by {by}", finding_of(old))
            ledger.quarantine(one["uuid"], host=selection.host, reason=text, by=by)
            closed.append(one["uuid"])
    return tuple(closed)


def finding_of(quarantine: Mapping[str, Any] | None) -> str:
    """Return what dlapp has found on a GPU, also if an operator has closed it since; empty: nothing."""
    if quarantine is None:
        return ""
    detail: str = quarantine.get("detail") or quarantine["cause"]
    return detail.partition(FOUND)[2] if quarantine.get("by") else detail


def with_finding(reason: str, finding: str) -> str:
    """Return the reason of an operator's quarantine with what dlapp has found, in place of an earlier finding."""
    return f"{reason.partition(FOUND)[0]}{FOUND}{finding}" if finding else reason


def remaining_users(
    ledger: GpuLedger, selection: DeviceSelection, ends_ms: Callable[[str], int | None]
) -> list[RemainingUser]:
    """Return who holds devices now, one for each application, in the order of the devices.

    Args:
        ledger: the ledger that has them.
        selection: the devices.
        ends_ms: returns when an application ends at the latest [ms since 1970]; None: not known.
    """
    devices = _devices_of(ledger, selection.host)
    held: dict[tuple[str, str], list[DeviceView]] = {}
    for one in devices:
        if one["uuid"] in selection.uuids and one["state"] == "held":
            held.setdefault((one["application"], one["user"]), []).append(one)
    return [
        RemainingUser(
            application=application,
            user=user,
            devices=tuple(one["label"] for one in those),
            since_ms=min(one["since_ms"] for one in those),
            ends_ms=ends_ms(application) if application else None,
            doubt=next((one["doubt"] for one in those if one["doubt"]), ""),
        )
        for (application, user), those in held.items()
    ]


def latest_ends(config: Config) -> Callable[[str], int | None]:
    """Return a function that estimates when an application ends at the latest [ms since 1970], from its max_runtime and
    kill_grace; None: it has no limit, or is not known here."""
    from dlapp.client import Client
    from dlapp.values.ids import ApplicationId

    known: dict[str, int | None] = {}

    def ends_ms(application: str) -> int | None:
        if application not in known:
            known[application] = None
            try:
                with Client(config) as client:
                    one = ApplicationId.from_text(application)
                    spec, started_ms = client.submission(one).spec, client.status(one).started_ms
            except (DlappError, ValueError, OSError):
                return None
            if spec.max_runtime_s is not None and started_ms is not None:
                known[application] = started_ms + int((spec.max_runtime_s + spec.kill_grace_s) * 1000)
        return known[application]

    return ends_ms


def foreign_users(
    ledger: GpuLedger, selection: DeviceSelection, note: Callable[[str], None]
) -> tuple[Sequence[RemainingUser], str]:
    """Return the processes that compute without a lease on devices of this host that nobody holds, and why they are not
    known if NVML does not work.

    Args:
        ledger: the ledger that has them.
        selection: the devices; those of another host have none that are known here.
        note: takes why those of one device are not known although NVML works.
    """
    if selection.host != ledger.host_name:
        return (), ""
    uuids = set(selection.uuids)
    free = [one for one in _devices_of(ledger, selection.host) if one["uuid"] in uuids and one["state"] != "held"]
    try:
        readings = ledger.read({one["uuid"] for one in free})
    except NvmlError as error:
        return (), str(error)
    left = []
    for one in free:
        if (reading := readings.get(one["uuid"])) is None:
            continue
        if problem := reading.error or reading.unverified:
            note(f"{one['label']}: processes without a lease are not known: {problem}")
        for process in foreign_processes(reading, ledger.allowed_programs):
            user, labels = _owner_of(process.pid), (one["label"],)
            left.append(RemainingUser("", user, labels, 0, None, "", process.pid, process.name))
    return left, ""


def _owner_of(pid: int) -> str:
    try:
        return user_text(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return ""  # it has ended, or is of another pid namespace
