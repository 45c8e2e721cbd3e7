"""Devices and the choice among them. Values and plain functions."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of this machine.

    Args:
        uuid: its identity, ``GPU-…``; the same after a restart, in another slot, and in every container.
        index: its place in PCI bus order, from 0: what NV_GPU and gpuN mean.
        minor: its device node, /dev/nvidia<minor>; it may differ from ``index``.
        memory_mib: memory of the card [MiB].
        pci_bus_id: ``00000000:3B:00.0``.
    """

    uuid: str
    index: int
    minor: int
    name: str = ""
    memory_mib: int = 0
    pci_bus_id: str = ""


@dataclass(frozen=True, slots=True)
class Holder:
    """Who holds a device.

    Args:
        index: of the device; None: the holder's record does not say.
        container: the container that uses it; empty: it is reserved for the application, no container has it yet.
        doubt: empty, or why the device is not free although its holder's processes on this machine seem to be gone.
    """

    uuid: str
    index: int | None
    application: str
    container: str = ""
    user: str = ""
    since_ms: int = 0
    doubt: str = ""

    def __str__(self) -> str:
        name = f"gpu{self.index}" if self.index is not None else self.uuid
        who = f"{name} {self.application or 'an unknown holder'}"
        if self.user:
            who += f" ({self.user})"
        return f"{who}, {self.doubt}" if self.doubt else who


def choose(devices: Sequence[Device], free: Collection[str], count: int) -> tuple[Device, ...] | None:
    """Choose ``count`` of the ``free`` devices: those that lie closest together in PCI bus order.

    Cards behind one switch are neighbours in that order, so the narrowest window keeps a group together; among equal
    ones the window with the fewest free neighbours is taken, so that larger groups stay whole.

    Args:
        devices: all, in PCI bus order.
        free: uuids.

    Returns:
        In PCI bus order; None: there are not enough.
    """
    places = [place for place, device in enumerate(devices) if device.uuid in free]
    if count > len(places):
        return None
    if count == 0:
        return ()
    taken = set(places)

    def cost(start: int) -> tuple[int, int, int]:
        window = places[start : start + count]
        neighbours = (window[0] - 1 in taken) + (window[-1] + 1 in taken)
        return window[-1] - window[0], neighbours, window[0]

    best = min(range(len(places) - count + 1), key=cost)
    return tuple(devices[place] for place in places[best : best + count])
