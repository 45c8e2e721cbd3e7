"""Contents of the machine's GPU ledger at one moment: the holder and the health of each device."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.rules import DeviceRecord, HostRecord, LeaseRecord
from dlapp.gpuid.stores.device_files import HELD, LEASED, Directory, Entry, file_name, text_of
from dlapp.gpuid.stores.device_health import Health, health_of, report_others
from dlapp.gpuid.stores.record_liveness import RecordLiveness, uuid_of
from dlapp.system import clock
from dlapp.system.owners import user_text

RECLAIM_S = 5.0
"""Time limit for the liveness probes of all leases of the machine; the state of leases beyond it is unknown."""
_DEVICE = re.compile(r"(GPU|MIG)-[A-Za-z0-9_.-]+", re.ASCII)
_UNKNOWN_PROCESS = "locked by an unknown process"

Entries = Mapping[str, Sequence[Entry]]


class MachineReader:
    """The ledger's open directory, with the liveness of what it records."""

    def __init__(self, directory: Directory, liveness: RecordLiveness) -> None:
        self.directory, self.liveness = directory, liveness

    def entries(
        self,
        devices: Collection[str] | None = None,
        *,
        but: Collection[str] = (),
        names: list[str] | None = None,
        patience_s: float = RECLAIM_S,
    ) -> Entries:
        """Return the valid records; checking them takes at most ``patience_s`` [s].

        Args:
            devices, but, names: see `Directory.entries`.
            patience_s: for the checks of the records that are returned.
        """
        self.liveness.begin(patience_s)
        return self.directory.entries(devices, but=but, names=names)

    def health(self, entries: Sequence[Entry]) -> Health:
        """Return the health of a device that binds this user."""
        return health_of(self.directory, entries)

    def holder(self, name: str, entries: Sequence[Entry], device: Device | None = None) -> Holder | None:
        """Return the holder of a device, as the kernel's locks and owners show it; None if it is free."""
        locked = self.directory.locked(name)
        if not entries and locked == (False, False):
            return None
        live = [one for one in entries if one.is_live and one.kind in HELD]
        of_lease = [one for one in live if one.is_lease]
        doubt = ""
        if not of_lease and not locked[LEASED]:
            in_doubt = [(one, why) for one in entries if (why := self.liveness.doubt(one))]
            of_lease, doubt = [one for one, _ in in_doubt], in_doubt[0][1] if in_doubt else ""
        shown = of_lease or ([] if locked[LEASED] else live)
        if not shown:
            if not any(locked):
                return None
            if device is None:
                return Holder(name, None, "", doubt=_UNKNOWN_PROCESS)
            return Holder(device.uuid, device.index, "", doubt=_UNKNOWN_PROCESS, mig=device.mig)
        first, users = shown[0], sorted({user_text(one.uid) for one in shown})
        index = first.record.get("index") if device is None else device.index
        return Holder(
            uuid=uuid_of(first) if device is None else device.uuid,
            index=index if isinstance(index, int) else None,
            application=text_of(first.record, "application"),
            container=text_of(first.record, "container"),
            user=", ".join(users),
            since_ms=first.changed_ns // 1_000_000,
            doubt=doubt or ("several users claim it" if len(users) > 1 else ""),
            role=text_of(first.record, "role"),
            container_index=text_of(first.record, "container_index"),
            mig=-1 if device is None else device.mig,
        )

    def holders(self) -> dict[str, Holder]:
        """Return the holders of all devices that the directory names, by uuid."""
        names = self.directory.names()
        entries = self.entries(names=names)
        of_all = (self.holder(name, entries.get(name, ())) for name in sorted({*entries, *_devices_in(names)}))
        return {one.uuid: one for one in of_all if one is not None}

    def holders_of(self, devices: Sequence[Device]) -> dict[str, Holder]:
        """Return the holders of devices by uuid; a device that is not named is free."""
        entries = self.entries()
        named = ((one, file_name(one.uuid)) for one in devices)
        of_all = ((one.uuid, self.holder(name, entries.get(name, ()), one)) for one, name in named)
        return {uuid: holder for uuid, holder in of_all if holder is not None}

    def usable(self, devices: Sequence[Device], names: list[str]) -> tuple[set[str], list[Holder], dict[str, str]]:
        """Return which devices are free, who holds the others, and by uuid as text which are in quarantine."""
        free, held, out = set[str](), list[Holder](), dict[str, str]()
        entries = self.entries(names=names)
        for device in devices:
            name = file_name(device.uuid)
            those = entries.get(name, ())
            if (holder := self.holder(name, those, device)) is not None:
                held.append(holder)
            elif (quarantine := self.health(those).quarantine) is not None:
                out[device.uuid] = f"{device.label} {quarantine}"
            else:
                free.add(device.uuid)
        return free, held, out

    def record(self, host: str, devices: Sequence[Device]) -> HostRecord:
        """Return the record of this host. A device that is only reserved is shown as a lease without a container.

        Args:
            host: its name.
            devices: those that the driver knows; what the directory has besides is shown as not there.
        """
        there = {file_name(one.uuid): one for one in devices}
        names = self.directory.names()
        entries = self.entries(names=names)
        report_others(self.directory, entries)
        records: list[DeviceRecord] = []
        leases: dict[tuple[str, str, str], LeaseRecord] = {}
        for name in (*there, *sorted({*entries, *_devices_in(names)} - there.keys())):
            those = entries.get(name, ())
            holder = self.holder(name, those, there.get(name))
            health = self.health(those)
            device = there.get(name)
            if device is None:
                if holder is None and health.quarantine is None:
                    continue
                index = holder.index if holder is not None and holder.index is not None else -1
                device = Device(holder.uuid if holder else name, index, -1)
            records.append(DeviceRecord(device, name in there, **health._asdict()))
            if holder is not None:
                key = holder.application, holder.container, holder.user
                old = leases.get(key)
                leases[key] = LeaseRecord(
                    container=holder.container,
                    application=holder.application,
                    user=holder.user,
                    devices=(*(old.devices if old else ()), device.uuid),
                    since_ms=holder.since_ms,
                    boot_id=self.liveness.boot_id,
                    evidence=_evidence_of(those, holder),
                    doubt=holder.doubt,
                    role=holder.role,
                    container_index=holder.container_index,
                )
        boot_id, now_ms = self.liveness.boot_id, clock.now_ms()
        return HostRecord(host, tuple(records), tuple(leases.values()), boot_id=boot_id, seen_ms=now_ms)


def _devices_in(names: Collection[str]) -> set[str]:
    return set(filter(_DEVICE.fullmatch, names))


def _evidence_of(entries: Sequence[Entry], holder: Holder) -> dict[str, Any]:
    for one in entries:
        evidence = one.record.get("evidence")
        if one.is_lease and one.record.get("container") == holder.container and isinstance(evidence, dict):
            return evidence
    return {}
