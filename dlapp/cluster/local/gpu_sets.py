"""Sets of this machine's GPUs by which the scheduler counts them: those that one of the waiting applications accepts.

Without slices of MIG, and without requests for GPUs of a size, all GPUs serve all requests, and there are no sets.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from dlapp.cluster.local.row import ApplicationRow
from dlapp.gpuid.counts import devices_out_of
from dlapp.gpuid.devices import Device
from dlapp.gpuid.needs import PLAIN, Demand, DeviceNeed, from_text, is_within
from dlapp.gpuid.rules import HostRecord


class GpuSets(NamedTuple):
    """Sets of GPUs, and who has them.

    Args:
        needs: each defines the set of the GPUs that it accepts.
        devices: all GPUs of the machine.
        held: GPUs of the applications in this queue, by id.
        unavailable: GPUs in quarantine, or held outside of this queue.
    """

    needs: tuple[DeviceNeed, ...]
    devices: tuple[Device, ...]
    held: Mapping[str, Sequence[Device]]
    unavailable: tuple[Device, ...]

    def count_in(self, devices: Iterable[Device]) -> tuple[int, ...]:
        """Return how many of some GPUs are in each set."""
        listed = list(devices)
        return tuple(sum(map(need.accepts, listed)) for need in self.needs)

    def count_held(self, application_id: str) -> tuple[int, ...]:
        """Return how many GPUs of each set an application has."""
        return self.count_in(self.held.get(application_id, ()))

    def count_asked(self, row: ApplicationRow) -> tuple[int, ...]:
        """Return how many GPUs of each set an application needs in any case."""
        demands = demands_of_row(row)
        return tuple(
            sum(one.gcores for one in demands if is_within(one.need, need, self.devices)) for need in self.needs
        )


def demands_of_row(row: ApplicationRow) -> tuple[Demand, ...]:
    """Return what an application of the queue demands."""
    return from_text(row.gpus, row.gcores)


def gpu_sets(record: HostRecord, waiting: Iterable[ApplicationRow], running: Collection[str]) -> GpuSets | None:
    """Return the sets that the scheduler has to count.

    Args:
        record: record of this machine.
        waiting: rows of all users.
        running: ids of the applications that run.

    Returns:
        None: all GPUs serve all requests.
    """
    devices = tuple(one.device for one in record.devices if one.present)
    needs = {one.need for row in waiting for one in demands_of_row(row)}
    if needs <= {PLAIN} and all(device.mig < 0 for device in devices):
        return None
    by_uuid = {device.uuid: device for device in devices}
    held: dict[str, list[Device]] = {}
    for lease in record.leases:
        if lease.application in running:
            own = held.setdefault(lease.application, [])
            own += [by_uuid[uuid] for uuid in lease.devices if uuid in by_uuid]
    return GpuSets(tuple(sorted(needs)), devices, held, devices_out_of(record, running))
