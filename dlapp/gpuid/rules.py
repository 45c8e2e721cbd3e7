"""Rules of the GPU ledger: the content of a host's record, and all permitted changes. Only values and pure functions; a
store reads a record, changes it with these functions, and writes it by compare-and-set.

One record holds all devices of one host, so a request gets all of its devices or none in one write. A record is never
deleted; a removed host is marked as forgotten. Otherwise a new record would start at version 0 again, and a writer
paused since the first version 0 would overwrite it.

Records outlive versions of dlapp. They grow by adding: fields unknown to this version are kept unchanged, and
``least_writer`` is the lowest format version that may write the record. The storage format is in
`dlapp.gpuid.record_json`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from dlapp.errors import Denied, DlappError, NotFound, RequestTooLarge, UsageError
from dlapp.gpuid import needs, selection
from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.needs import Demand, DeviceNeed
from dlapp.system.text import short_duration
from dlapp.value import Value, field, replace

FORMAT = 1
"""Version of the format that is written."""
MAX_RELEASES = 16
PROBE_FIRST_S, PROBE_LAST_S = 60.0, 6 * 3600.0
"""Minimum and maximum probe interval for a GPU in quarantine."""
NEEDS_RESET, NEEDS_REBOOT = "needs-reset", "needs-reboot"
"""Causes of a quarantine that may last until a reset of the GPU, or until a reboot of the host."""
CONDITIONS = frozenset(("foreign-process", "memory-held", "hot", "driver-hangs"))
"""Causes that are no failure of the GPU: they do not count, and each request on the host inspects the GPU."""
FADE_MS = 7 * 24 * 3600 * 1000
"""Time after which half of the failures of a GPU are forgotten [ms]: a bad connector fails more often than that, a
cosmic ray does not."""
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?", re.ASCII)

Unknown = Mapping[str, Any]


class LedgerError(DlappError):
    """An invalid ledger or record; no device is leased through it."""


class OtherMachine(LedgerError):
    """Error: another machine with the same name has leases. To each of the two machines the leases of the other would
    look like leases from before a reboot."""


class InQuarantine(LedgerError):
    """GPUs that were given to a container, and are in quarantine."""


class NotEnough(DlappError):
    """Shortage: fewer devices are free than requested.

    Args:
        reason: text without the host's name, as shown for a waiting application.
        holders: holder of each device.
    """

    def __init__(self, host: str, reason: str, requested: int, free: int, holders: Sequence[Holder] = ()) -> None:
        super().__init__(f"{host}: {reason}")
        self.host, self.reason, self.requested, self.free, self.holders = host, reason, requested, free, tuple(holders)


class Quarantine(Value):
    """Reason not to lease a device.

    Args:
        cause: one word, for programs: ``ecc``, ``lost``, ``foreign-process``, ``operator``, …
        detail: for people.
        count: how often this device has been in quarantine, including this time.
        probe_at_ms: time of the next probe [ms since 1970]; 0: an operator must heal it.
        by: the operator; empty: dlapp itself.
        boot_id: boot id of the host, if the GPU needs a reset that the driver does not ask for; empty: it does not.
        driver: identity of the load of the driver (`dlapp.gpuid.health.driver_load`), likewise; empty: not known, or
            loading the driver is not enough.
    """

    cause: str
    detail: str = ""
    since_ms: int = 0
    count: int = 1
    probe_at_ms: int = 0
    by: str = ""
    boot_id: str = ""
    driver: str = ""
    unknown: Unknown = field(default_factory=dict)

    def __str__(self) -> str:
        return f"quarantined ({self.detail or self.cause})"

    def needs_reset(self, boot_id: str, driver: str) -> bool:
        """Return whether the GPU still needs a reset of which only an operator, or the driver, can tell.

        Args:
            boot_id: the host's now.
            driver: identity of the driver's load now; empty: not known.
        """
        is_other_load = bool(self.driver) and bool(driver) and self.driver != driver
        return self.boot_id != "" and self.boot_id == boot_id and not is_other_load


class DeviceRecord(Value):
    """Device that the host has or had.

    Args:
        present: whether the host found it in its last inspection.
        failures: how often it has been in quarantine; lengthens the next wait for a probe.
        failed_ms: when ``failures`` was counted, from which it fades [ms since 1970]; 0: not known.
        healed_ms: when an operator has healed it [ms since 1970]; 0: never. Earlier inspections do not count.
    """

    device: Device
    present: bool = True
    failures: int = 0
    quarantine: Quarantine | None = None
    failed_ms: int = 0
    healed_ms: int = 0
    unknown: Unknown = field(default_factory=dict)

    @property
    def has_condition(self) -> bool:
        """Return whether it is in quarantine for what may be over at each moment, and no failure."""
        return self.quarantine is not None and self.quarantine.cause in CONDITIONS and not self.quarantine.by

    @property
    def uuid(self) -> str:
        """Return the device's identity."""
        return self.device.uuid


class LeaseRecord(Value):
    """A container's hold on devices.

    Args:
        devices: uuids.
        token: distinguishes this lease from an earlier one of the same container, so that a late release of the earlier
            one has no effect on this one.
        boot_id: boot id of the host at the time of the lease; no payload survives a reboot.
        evidence: how to check whether the payload is gone (`dlapp.gpuid.liveness.probes`).
        doubt: why the devices are not free although the task seems to be gone; empty: no doubt.
        role, container_index: of the container in its application, as text; empty: not known.
    """

    container: str
    application: str
    user: str
    devices: tuple[str, ...]
    since_ms: int = 0
    token: str = ""
    boot_id: str = ""
    evidence: Mapping[str, Any] = field(default_factory=dict)
    doubt: str = ""
    role: str = ""
    container_index: str = ""
    unknown: Unknown = field(default_factory=dict)


class ForcedRelease(Value):
    """Lease ended by an operator without evidence that its payload is gone.

    Args:
        devices: uuids.
        by: the operator.
        at_ms: when [ms since 1970].
    """

    container: str
    application: str
    devices: tuple[str, ...]
    by: str
    at_ms: int
    unknown: Unknown = field(default_factory=dict)


class HostRecord(Value):
    """Record of one host.

    Args:
        devices: in PCI bus order.
        machine: id that distinguishes this host from another with the same name; empty: not known.
        boot_id: boot id of the host at its last inspection, ``seen_ms`` [ms since 1970].
        forgotten_ms: when an operator marked the host as removed, 0: never. Its leases stay recorded: if the host comes
            back, evidence decides on them.
        releases: leases ended by operators, the last `MAX_RELEASES` of them.
        full_name: fully qualified name, as in YARN; empty: not known.
        least_writer: lowest format version that may write this record.
    """

    host: str
    devices: tuple[DeviceRecord, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    machine: str = ""
    boot_id: str = ""
    seen_ms: int = 0
    forgotten_ms: int = 0
    forgotten_by: str = ""
    releases: tuple[ForcedRelease, ...] = ()
    full_name: str = ""
    format: int = FORMAT
    least_writer: int = 1
    unknown: Unknown = field(default_factory=dict)

    def device(self, name: str) -> DeviceRecord:
        """Return a device by uuid, index (``gpu0``, ``0``) or PCI bus id. Raises NotFound."""
        for one in self.devices:
            if name and name in (one.uuid, one.device.pci_bus_id, one.device.label, one.device.label[3:]):
                return one
        known = ", ".join(one.device.label for one in self.devices) or "none"
        raise NotFound(f"{self.host}: there is no GPU {name!r}; it has {known}")

    def lease_of(self, container: str) -> LeaseRecord | None:
        """Return the lease of a container."""
        return next((one for one in self.leases if one.container == container), None)

    def lease_on(self, name: str) -> LeaseRecord:
        """Return the lease of a device by uuid, index or PCI bus id. Raises NotFound."""
        device = self.device(name).device
        for one in self.leases:
            if device.uuid in one.devices:
                return one
        raise NotFound(f"{self.host}: nobody holds {device.label}")

    def holder_by_uuid(self) -> dict[str, Holder]:
        """Return the holder by device; a device without an entry is not leased."""
        device = {one.uuid: one.device for one in self.devices}
        return {
            uuid: Holder(
                uuid=uuid,
                index=device[uuid].index if uuid in device else None,
                mig=device[uuid].mig if uuid in device else -1,
                application=one.application,
                container=one.container,
                user=one.user,
                since_ms=one.since_ms,
                doubt=one.doubt,
                role=one.role,
                container_index=one.container_index,
            )
            for one in self.leases
            for uuid in one.devices
        }

    def free(self) -> tuple[Device, ...]:
        """Return the devices that can be leased now: present, healthy and not leased."""
        held = {uuid for one in self.leases for uuid in one.devices}
        return tuple(
            one.device for one in self.devices if one.present and one.quarantine is None and one.uuid not in held
        )


class LeaseRequest(Value):
    """Request of a container for devices.

    Args:
        uuids: exactly these devices (chosen by the caller); empty: any ``gcores``.
        evidence: how to check whether the payload is gone.
        spread: far from each other and from those in use, not close together.
        role, container_index: of the container in its application, for display; empty: not known.
        need: which devices it accepts, unless ``uuids`` names them.
    """

    application: str
    container: str
    user: str
    gcores: int
    uuids: tuple[str, ...] = ()
    evidence: Mapping[str, Any] = field(default_factory=dict)
    spread: bool = False
    role: str = ""
    container_index: str = ""
    need: DeviceNeed = needs.PLAIN

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Return what it demands of the free devices."""
        return (Demand(self.gcores, self.need),)


# ---- changes ----


def is_of_other_machine(record: HostRecord, *, boot_id: str, machine: str, full_name: str = "") -> bool:
    """Return whether a record belongs to another machine with this host's name.

    Cloned machines have one machine id, and hosts of two domains can have one short name.

    Args:
        record: the record of the host.
        boot_id: boot id of this host; the same boot id means the same machine.
        machine: id of this machine; empty: not known.
        full_name: the full name of this host, with its domain; empty: not known.
    """
    if record.forgotten_ms or (boot_id and record.boot_id == boot_id):
        return False
    pairs = ((record.machine, machine), (record.full_name, full_name))
    return any(one and other and one != other for one, other in pairs)


def with_inventory(
    record: HostRecord,
    found: Sequence[Device],
    *,
    boot_id: str,
    now_ms: int,
    machine: str = "",
    full_name: str = "",
) -> HostRecord:
    """Update the record with the devices that the host finds now, and clear its forgotten mark.

    A device that is not found stays in the record while it is leased or in quarantine, and is not leased again.

    Args:
        record: the record of the host.
        found: devices found on the host.
        boot_id: the boot id of its kernel.
        now_ms: the time [ms since 1970].
        machine: its machine id; empty: not known.
        full_name: its name with its domain; empty: not known.

    Raises:
        OtherMachine: another machine with this name has leases. If there are no leases, the host was reinstalled.
    """
    if _is_unchanged(record, found, boot_id, full_name):
        return record
    if record.leases and is_of_other_machine(record, boot_id=boot_id, machine=machine, full_name=full_name):
        raise OtherMachine(
            f"{record.host}: the GPU ledger knows another machine of this name, with leases; give one another name, or "
            f"if it was installed anew: dlapp-gpu release GPU --host {record.host}"
        )
    known = {one.uuid: one for one in record.devices}
    held = {uuid for one in record.leases for uuid in one.devices}
    now = [replace(known.get(one.uuid) or DeviceRecord(one), device=one, present=True) for one in found]
    there = {one.uuid for one in found}
    gone = [
        replace(one, present=False)
        for one in record.devices
        if one.uuid not in there and (one.uuid in held or one.quarantine or one.failures)
    ]
    changed = replace(
        record,
        devices=(*now, *gone),
        # In a container of the same host, the machine id is that of the image.
        machine=(record.boot_id == boot_id and record.machine) or machine or record.machine,
        full_name=full_name or record.full_name,
        boot_id=boot_id,
        forgotten_ms=0,
        forgotten_by="",
    )
    # Write only if an inspection found something new.
    return record if changed == record else replace(changed, seen_ms=now_ms)


def _is_unchanged(record: HostRecord, found: Sequence[Device], boot_id: str, full_name: str) -> bool:
    """Return True if nothing changed: the usual case, and fast if the values are the same objects."""
    return (
        record.boot_id == boot_id
        and record.full_name == (full_name or record.full_name)
        and not record.forgotten_ms
        and len(record.devices) == len(found)
        and all(
            one.present and (one.device is device or one.device == device)
            for one, device in zip(record.devices, found, strict=True)
        )
    )


def lease(
    record: HostRecord,
    request: LeaseRequest,
    *,
    token: str,
    now_ms: int,
    choose: selection.Choose = selection.choose,
    unrecorded_holders: Mapping[str, Holder] = MappingProxyType({}),
) -> tuple[HostRecord, LeaseRecord]:
    """Lease all requested devices or none.

    A container that has its lease already gets the same lease, so a request whose answer was lost may be repeated.

    Args:
        record: the record of the host.
        request: the request.
        token: distinguishes this holder from an earlier one.
        now_ms: the time [ms since 1970].
        choose: chooses among the free devices.
        unrecorded_holders: uuid -> holder that is not in the record.

    Raises:
        NotEnough: not now; names the holders.
        RequestTooLarge: the host has fewer such devices.
        NotFound: a device requested by name does not exist.
        UsageError: fewer than one device was requested, or several slices.
        LedgerError: the container already holds other devices.
    """
    present = [one.device for one in record.devices if one.present]
    check_request(record.host, request, present)
    if (mine := record.lease_of(request.container)) is not None:
        if mine.application != request.application:
            raise LedgerError(f"{record.host}: {request.container} is a container of {mine.application}")
        if len(mine.devices) != request.gcores or (request.uuids and set(request.uuids) != set(mine.devices)):
            raise LedgerError(
                f"{record.host}: {request.container} holds {len(mine.devices)} gcores, asks for {request.gcores}"
            )
        return record, mine
    free = {one.uuid for one in record.free()} - unrecorded_holders.keys()
    if request.uuids:
        wanted = [record.device(name).device for name in request.uuids]
        chosen = tuple(wanted) if all(one.uuid in free for one in wanted) else None
    else:
        chosen = selection.choose_for(present, free, request.demands, request.spread, choose=choose)
    if chosen is None:
        holders = {**unrecorded_holders, **record.holder_by_uuid()}
        held = [one for uuid, one in holders.items() if not request.uuids or uuid in request.uuids]
        usable = [one for one in present if one.uuid in free and request.need.accepts(one)]
        raise NotEnough(
            record.host,
            shortage_reason(record, request.demands, now_ms, unrecorded_holders),
            request.gcores,
            len(usable),
            held,
        )
    given = LeaseRecord(
        container=request.container,
        application=request.application,
        user=request.user,
        devices=tuple(one.uuid for one in chosen),
        since_ms=now_ms,
        token=token,
        boot_id=record.boot_id,
        evidence=dict(request.evidence),
        role=request.role,
        container_index=request.container_index,
    )
    return replace(record, leases=(*record.leases, given)), given


def release(record: HostRecord, container: str, *, application: str, token: str = "") -> HostRecord:
    """End a container's lease. No error if it has already ended: a release may be repeated.

    Args:
        record: the record of the host.
        container: container whose lease ends.
        application: application of the container.
        token: end only the lease with this token; empty: any lease of the container.

    Raises:
        Denied: the lease belongs to another application.
    """
    mine = record.lease_of(container)
    if mine is None or (token and mine.token != token):
        return record
    if mine.application != application:
        raise Denied(f"{record.host}: the lease of {container} belongs to {mine.application}, not to {application}")
    return replace(record, leases=tuple(one for one in record.leases if one is not mine))


def force_release(record: HostRecord, name: str, *, by: str, now_ms: int) -> HostRecord:
    """End the lease of a device on an operator's order, and record the operator.

    Args:
        record: the record of the host.
        name: uuid, ``gpu0`` or PCI bus id of one of its devices; the lease ends with all of them.
        by: the operator.
        now_ms: the time [ms since 1970].

    Raises:
        NotFound: there is no such device, or it is not leased.
    """
    one = record.lease_on(name)
    noted = ForcedRelease(one.container, one.application, one.devices, by, now_ms)
    return replace(
        record,
        leases=tuple(other for other in record.leases if other is not one),
        releases=(*record.releases, noted)[-MAX_RELEASES:],
    )


def adopt(record: HostRecord, container: str, *, token: str, evidence: Mapping[str, Any]) -> HostRecord:
    """Set ``token`` and ``evidence`` of a container's lease: either the same task repeats its request, or the earlier
    task is known to be gone.

    Args:
        record: the record of the host.
        container: container of the lease.
        token: distinguishes this holder from an earlier one.
        evidence: how to check that it is alive.
    """
    return replace(
        record,
        leases=tuple(
            replace(one, token=token, evidence=dict(evidence), boot_id=record.boot_id, doubt="")
            if one.container == container
            else one
            for one in record.leases
        ),
    )


def doubt(record: HostRecord, container: str, why: str) -> HostRecord:
    """Record why a lease is in doubt; empty: it is not. This frees no device."""
    return replace(
        record,
        leases=tuple(
            replace(one, doubt=why) if one.container == container and one.doubt != why else one for one in record.leases
        ),
    )


def reclaim(record: HostRecord, gone: Collection[tuple[str, str]], doubts: Mapping[str, str]) -> HostRecord:
    """End the leases whose payloads are proven gone; only the host itself can prove it.

    Args:
        gone: (container, token) of these leases.
        doubts: container -> why its state is not known; empty: it is alive.
    """
    kept = tuple(one for one in record.leases if (one.container, one.token) not in gone)
    record = record if len(kept) == len(record.leases) else replace(record, leases=kept)
    for container, why in doubts.items():
        if (one := record.lease_of(container)) is not None and one.doubt != why:
            record = doubt(record, container, why)
    return record


def quarantine(
    record: HostRecord,
    name: str,
    *,
    cause: str,
    detail: str = "",
    now_ms: int,
    by: str = "",
    until: str = "",
    driver: str = "",
) -> HostRecord:
    """Put a device into quarantine; its current holder keeps it.

    A device already in quarantine keeps its time and count. An operator's reason takes precedence over one that dlapp
    found, and the need of a reset over all but the driver's own request for one. A condition does not count.

    Args:
        record: the record of the host.
        name: uuid, ``gpu0`` or PCI bus id.
        cause: one word, for programs.
        detail: one line, for people.
        now_ms: the time [ms since 1970].
        by: the operator, who alone can end the quarantine; empty: dlapp found it and probes it again.
        until: `NEEDS_RESET`, `NEEDS_REBOOT`: an inspection ends it only after that; empty: any does.
        driver: identity of the driver's load now; empty: not known.

    Raises:
        NotFound: there is no such device.
    """
    one = record.device(name)
    old = one.quarantine
    if old is not None and not by:
        if old.by:
            return record
        if old.needs_reset(record.boot_id, driver) and until != NEEDS_REBOOT:
            is_requested = cause == NEEDS_RESET and old.cause != NEEDS_REBOOT
            if not is_requested:
                return delay_probe(record, name, now_ms)
    is_condition = cause in CONDITIONS and not by
    failures, failed_ms = one.failures, one.failed_ms
    if old is not None and (is_condition or old.cause not in CONDITIONS):
        since_ms, count = old.since_ms, old.count
    elif is_condition:
        since_ms, count = now_ms, 1
    else:
        since_ms, count = now_ms, remembered_failures(one, now_ms) + 1
        failures, failed_ms = count, now_ms
    if is_condition and old is not None and (old.cause, old.detail) == (cause, detail) and now_ms < old.probe_at_ms:
        return record  # inspected at each request: nothing new to write
    new = Quarantine(
        cause=cause,
        detail=detail,
        since_ms=since_ms,
        count=count,
        probe_at_ms=0 if by else next_probe_ms(now_ms, since_ms=since_ms, count=1 if is_condition else count),
        by=by,
        boot_id=record.boot_id if until and not by else "",
        driver=driver if until == NEEDS_RESET and not by else "",
        unknown=old.unknown if old else {},
    )
    return _with_device(record, replace(one, quarantine=new, failures=failures, failed_ms=failed_ms))


def remembered_failures(one: DeviceRecord, now_ms: int) -> int:
    """Return how many failures of a device count now [ms since 1970]: half of them after each `FADE_MS`."""
    halvings = max(0, now_ms - one.failed_ms) // FADE_MS if one.failed_ms else 0
    return one.failures >> min(halvings, 64)


def delay_probe(record: HostRecord, name: str, now_ms: int) -> HostRecord:
    """Set the time of the next probe of a device that stays in quarantine. Raises NotFound.

    Args:
        record: the record of the host.
        name: uuid, ``gpu0`` or PCI bus id.
        now_ms: the time [ms since 1970].
    """
    one = record.device(name)
    if (old := one.quarantine) is None or not old.probe_at_ms:
        return record
    at_ms = next_probe_ms(now_ms, since_ms=old.since_ms, count=old.count)
    return _with_device(record, replace(one, quarantine=replace(old, probe_at_ms=at_ms)))


def quarantine_all(record: HostRecord, *, cause: str, detail: str = "", now_ms: int) -> HostRecord:
    """Put all devices of a host into quarantine that are not in it already.

    Args:
        record, cause, detail, now_ms: see `quarantine`.
    """
    for one in record.devices:
        if one.quarantine is None:
            record = quarantine(record, one.uuid, cause=cause, detail=detail, now_ms=now_ms)
    return record


def next_probe_ms(now_ms: int, *, since_ms: int, count: int) -> int:
    """Return the time of the next inspection of a GPU, in quarantine since ``since_ms`` for the ``count``-th time [ms
    since 1970].

    The wait equals the time in quarantine so far, at least `PROBE_FIRST_S`, doubled for each earlier quarantine, at
    most `PROBE_LAST_S`.
    """
    first_s = PROBE_FIRST_S * 2.0 ** min(max(count, 1) - 1, 16)
    wait_s = min(max(first_s, (now_ms - since_ms) / 1000), PROBE_LAST_S)
    return now_ms + int(wait_s * 1000)


def heal(record: HostRecord, name: str, *, forgive: bool = False, now_ms: int = 0) -> HostRecord:
    """End the quarantine of a device.

    Args:
        record: the record of the host.
        name: uuid, ``gpu0`` or PCI bus id.
        forgive: an operator repaired it, so earlier failures and inspections no longer count.
        now_ms: the time, if ``forgive`` [ms since 1970].

    Raises:
        NotFound: there is no such device.
    """
    one = record.device(name)
    if forgive:
        return _with_device(record, replace(one, quarantine=None, failures=0, failed_ms=0, healed_ms=now_ms))
    return record if one.quarantine is None else _with_device(record, replace(one, quarantine=None))


def forget(record: HostRecord, *, by: str, now_ms: int) -> HostRecord:
    """Mark a host as removed: it is no longer listed. Its leases stay, as it might come back."""
    return replace(record, forgotten_ms=now_ms, forgotten_by=by)


def _with_device(record: HostRecord, changed: DeviceRecord) -> HostRecord:
    return replace(record, devices=tuple(changed if one.uuid == changed.uuid else one for one in record.devices))


# ---- messages ----


def check_request(host: str, request: LeaseRequest, devices: Sequence[Device]) -> None:
    """Reject a request that can never be satisfied.

    Args:
        host: name of the host.
        request: the request.
        devices: all devices of the host.

    Raises:
        UsageError: fewer than one device is requested, or several slices.
        RequestTooLarge: the host has fewer such devices.
    """
    count, need = request.gcores, request.need
    if count < 1:
        raise UsageError(f"{host}: asked for {count} gcores, the minimum is 1")
    if count > 1 and not need.is_whole:
        raise UsageError(f"{host}: asked for {count} slices (gpu={need.kind}), and a program sees one slice only")
    if request.uuids:
        return
    if shortage := needs.too_few(request.demands, devices, "it has"):
        raise RequestTooLarge(f"{host}: {shortage.text}", f"resources.{shortage.key}")


def check_indexes(record: HostRecord) -> None:
    """Refuse indexes on a host where CUDA may count otherwise than NVML: it leaves out GPUs in MIG mode.

    Raises:
        LedgerError: a GPU of the host is in MIG mode.
    """
    for one in record.devices:
        if one.present and one.device.mig >= 0:
            text = f"gpu{one.device.index} is split by MIG, so CUDA's indexes are not those of the driver"
            raise LedgerError(f"{record.host}: {text}: cuda_visible_devices=index needs another host, or uuid")


def check_host(host: str) -> str:
    """Reject an invalid host name. Raises UsageError."""
    if not _HOST.fullmatch(host):
        raise UsageError(f"{host!r} is not a host name: letters, digits, dots and dashes, at most 253")
    return host


def shortage_reason(
    record: HostRecord,
    demands: Sequence[Demand],
    now_ms: int,
    unrecorded_holders: Mapping[str, Holder] = MappingProxyType({}),
    faults: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return why a request is not satisfied, as one line without the host's name.

    Args:
        record: the record of the host.
        demands: what is asked for; only devices that serve it are named.
        now_ms: the time [ms since 1970].
        unrecorded_holders: holders that are not in the record, by uuid.
        faults: why devices cannot be leased although the record does not say so, by uuid.
    """
    holders = {**unrecorded_holders, **record.holder_by_uuid()}
    parts = []
    wanted = {one.uuid for one in needs.eligible((one.device for one in record.devices), demands)}
    for one in record.devices:
        if one.uuid not in wanted:
            continue
        if (holder := holders.get(one.uuid)) is not None:
            held_s = max(0, now_ms - holder.since_ms) // 1000 if holder.since_ms else None
            who = ", ".join(filter(None, (holder.user, "" if held_s is None else short_duration(held_s))))
            said = f"{one.device.label} {holder.application}" + (f" ({who})" if who else "")
            parts.append(f"{said}, {holder.doubt}" if holder.doubt else said)
        elif one.quarantine is not None:
            parts.append(f"{one.device.label} {one.quarantine}")
        elif not one.present:
            parts.append(f"{one.device.label} is not there now")
        elif one.uuid in faults:
            parts.append(f"{one.device.label} unavailable ({faults[one.uuid]})")
    free = [one for one in record.free() if one.uuid not in unrecorded_holders and one.uuid not in faults]
    there = [one.device for one in record.devices if one.present]
    text = f"asked for {needs.asked_text(demands, there)}, {needs.free_text(demands, free)}"
    return f"{text}: {', '.join(parts)}" if parts else text


def original_map(records: Iterable[HostRecord]) -> dict[str, dict[str, str]]:
    """Return the holders in the form of the original's map: ``{"host01": {"gpu0": "application_…"}}``."""
    shown: dict[str, dict[str, str]] = {}
    for record in records:
        label = {one.uuid: one.device.label for one in record.devices}
        held = {label.get(uuid, uuid): one.application for uuid, one in record.holder_by_uuid().items()}
        if held:
            shown[record.host] = dict(sorted(held.items(), key=lambda item: (len(item[0]), item[0])))
    return shown
