"""Quarantine in the machine's GPU ledger: for which users a record of a device's health counts, and its writing.

Everybody can write a record. A quarantine that root set by command binds everybody. One that a program of root found
binds until this user's own inspection, when it is due, disagrees. One that this user wrote binds this user. No other
binds anybody.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dlapp.gpuid.record_json import HEALTH_TIMES, health_to_json, quarantine_from_json
from dlapp.gpuid.rules import HostRecord, Quarantine
from dlapp.gpuid.stores.device_files import HEALTH, Directory, Entry, Record, file_name
from dlapp.system.files import UntrustedFile
from dlapp.system.owners import user_text


class Health(NamedTuple):
    """Health of a device, as far as it binds a user; the fields are those of `dlapp.gpuid.rules.DeviceRecord`."""

    quarantine: Quarantine | None = None
    failures: int = 0
    failed_ms: int = 0
    healed_ms: int = 0


def health_of(directory: Directory, entries: Sequence[Entry]) -> Health:
    """Return the health of a device that binds this user."""
    said: dict[int, tuple[int, Health]] = {}
    for one in entries:
        if one.is_health and one.uid in (0, os.geteuid()):
            raw = one.record.get("quarantine")
            numbers = {name: value for name in HEALTH_TIMES if isinstance(value := one.record.get(name), int)}
            try:
                quarantine = None if raw is None else quarantine_from_json(raw)
            except ValueError as error:
                directory.problems[os.path.join(directory.path, one.name)] = str(error)
                continue
            said[one.uid] = one.written_ns, Health(quarantine, **numbers)
    of_root, mine = said.get(0), said.get(os.geteuid())
    if of_root is not None and mine is not None and of_root is not mine:
        quarantine = of_root[1].quarantine
        by_operator = quarantine is not None and quarantine.by
        return (of_root if by_operator or of_root[0] > mine[0] else mine)[1]
    return (of_root or mine or (0, Health()))[1]


def quarantines(entries: Sequence[Entry]) -> list[Entry]:
    """Return the records that put a device into quarantine, of any user."""
    return [one for one in entries if one.is_health and one.record.get("quarantine") is not None]


def report_others(directory: Directory, entries: Mapping[str, Sequence[Entry]]) -> None:
    """Record other users' findings about devices; they do not bind this one."""
    for one in (one for those in entries.values() for one in quarantines(those)):
        if one.uid not in (0, os.geteuid()):
            with contextlib.suppress(ValueError):
                quarantine, who = quarantine_from_json(one.record["quarantine"]), user_text(one.uid)
                what = f"{who} found {one.device} {quarantine}; this binds {who} alone"
                directory.report(one.name, UntrustedFile(one.name, what[:300]))


def write_health(directory: Directory, old: HostRecord, new: HostRecord) -> None:
    """Write what changed in the health of devices, as this user's word."""
    before, me = {one.uuid: one for one in old.devices}, os.geteuid()
    for one in new.devices:
        if one == before.get(one.uuid):
            continue
        name = file_name(one.uuid)
        those = [entry for entry in directory.entries({name}).get(name, ()) if entry.is_health]
        page: Record = health_to_json(one)
        # What root wrote and this user found well again stays in effect for the others; the report includes that.
        if page or any(entry.uid == 0 != me for entry in those):
            os.close(directory.publish(HEALTH, page, name)[1])
        for entry in those:
            if entry.uid == me:
                directory.remove(entry.name)
