"""Counts of a host's GPUs and slices. Whatever says how many there are, are free, or may be leased, counts here.

A count is always of the devices that serve some demands (`dlapp.gpuid.needs`): a slice is not a GPU.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.gpuid.health.inspection import is_due
from dlapp.gpuid.needs import eligible

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.needs import Demand
    from dlapp.gpuid.rules import HostRecord


class DeviceCounts(NamedTuple):
    """Numbers of the devices of a host that serve some demands.

    Args:
        free: those that can be leased now.
        out: those that nobody holds and that cannot be leased: in quarantine, or unavailable.
        total: all.
    """

    free: int
    out: int
    total: int


def count_devices(record: HostRecord, demands: Sequence[Demand], unavailable: Collection[str] = ()) -> DeviceCounts:
    """Return how many devices of a host serve demands.

    Args:
        record: the record of the host.
        demands: what is asked for.
        unavailable: uuids of devices that cannot be leased for a reason that is not in the record.
    """
    held = {uuid for one in record.leases for uuid in one.devices}
    there = eligible((one.device for one in record.devices if one.present), demands)
    free = sum(one.uuid not in unavailable for one in eligible(record.free(), demands))
    return DeviceCounts(free, sum(one.uuid not in held for one in there) - free, len(there))


def devices_out_of(record: HostRecord, running: Collection[str]) -> tuple[Device, ...]:
    """Return the devices of a host that applications cannot have, and do not have.

    Args:
        record: the record of the host.
        running: ids of the applications.
    """
    theirs, out = set[str](), {one.uuid for one in record.devices if one.quarantine is not None}
    for lease in record.leases:
        (theirs if lease.application in running else out).update(lease.devices)
    return tuple(one.device for one in record.devices if one.present and one.uuid in out - theirs)


def usable_devices(record: HostRecord, now_ms: int) -> tuple[Device, ...] | None:
    """Return the devices of a host that may be leased, in use or not, if not all may; None: all may.

    A GPU whose probe is due counts, as only a request on the host probes it. For the same reason a GPU that was not
    found in the host's last inspection counts, unless it was split by MIG since, or made whole: then others have its
    PCI bus id.
    """
    found = {one.device.pci_bus_id for one in record.devices if one.present} - {""}
    there = [one for one in record.devices if one.present or one.device.pci_bus_id not in found]
    usable = tuple(one.device for one in there if is_due(one.quarantine, now_ms))
    return None if record.forgotten_ms or len(usable) == len(there) else usable
