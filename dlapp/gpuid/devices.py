"""Values: a device, the closeness of two devices, and the holder of a device."""

from __future__ import annotations

from dlapp.value import Value

_WORTH = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
_WORTH_OF_ONE_DEVICE = 6
_WORTH_OF_AN_NVLINK = 10


class Device(Value):
    """One GPU of this machine, or one MIG device: of a GPU in MIG mode only the MIG devices are listed.

    Args:
        uuid: its identity, ``GPU-…`` or ``MIG-…``; stable across reboots, slots, and containers.
        index: its GPU's position in PCI bus order, from 0, as in NV_GPU and gpuN. -1: it is absent, and the index was
            not recorded.
        minor: the GPU's device node, /dev/nvidia<minor>; it may differ from ``index``. -1: not known.
        memory_mib: memory of the device [MiB].
        pci_bus_id: ``00000000:3B:00.0``.
        compute_mode: ``default``, ``exclusive`` or ``prohibited``; empty: not known.
        numa: NUMA node of the GPU; -1: not known, or the machine has none.
        links: connection to each GPU of the machine, by index, in the terms of ``nvidia-smi topo -m``: ``X`` itself,
            ``NV4`` four NVLinks, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS`` increasing distance by PCIe; ``-`` not
            known. Empty: not known at all.
        mig: the number of a MIG device on its GPU; -1: a whole GPU.
        gpu_instance, compute_instance: the driver's numbers of a MIG device's instances; -1: a whole GPU, or not known.
    """

    uuid: str
    index: int
    minor: int
    name: str = ""
    memory_mib: int = 0
    pci_bus_id: str = ""
    compute_mode: str = ""
    numa: int = -1
    links: tuple[str, ...] = ()
    mig: int = -1
    gpu_instance: int = -1
    compute_instance: int = -1

    @property
    def label(self) -> str:
        """Return its display name: ``gpu3``, for a MIG device ``gpu3:1``; the uuid if its index is no longer known."""
        if self.index < 0:
            return self.uuid
        return f"gpu{place_of(self.index, self.mig)}"


def place_of(index: int, mig: int) -> str:
    """Return a GPU's index, and the number of a MIG device on it: ``3``, ``3:1``; as nvidia-container-cli names it."""
    return f"{index}" if mig < 0 else f"{index}:{mig}"


def closeness(one: Device, other: Device) -> int:
    """Return how fast the connection of two devices is; only the order and sums of these numbers are meaningful.

    In hundreds: 10 for each NVLink between them, 6 on one GPU, 5 to 1 by PCIe from ``PIX`` to ``SYS``, 0 if not known:
    an NVLink of the first generation has about twice the bandwidth of PCIe behind one switch. One more if both are on
    one NUMA node, which decides among equals.
    """
    if one.index == other.index:
        worth = _WORTH_OF_ONE_DEVICE
    else:
        link = one.links[other.index] if 0 <= other.index < len(one.links) else ""
        worth = _WORTH_OF_AN_NVLINK * int(link[2:]) if link[:2] == "NV" and link[2:].isdigit() else _WORTH.get(link, 0)
    return 100 * worth + (one.numa == other.numa and one.numa >= 0)


class Holder(Value):
    """Holder of a device.

    Args:
        index: index of the device; None: not in the holder's record.
        container: container that uses it; empty: it is reserved for the application, without a container.
        doubt: why the device is not free although its holder's processes on this machine seem to be gone; empty: no
            doubt.
        role, container_index: of the container in its application, as text; empty: not known.
        mig: number of a MIG device on its GPU; -1: a whole GPU, or not known.
    """

    uuid: str
    index: int | None
    application: str
    container: str = ""
    user: str = ""
    since_ms: int = 0
    doubt: str = ""
    role: str = ""
    container_index: str = ""
    mig: int = -1

    def __str__(self) -> str:
        name = self.uuid if self.index is None else f"gpu{place_of(self.index, self.mig)}"
        if not self.application and self.doubt:
            return f"{name} {self.doubt}"
        who = f"{name} {self.application or 'an unknown holder'}"
        if self.user:
            who += f" ({self.user})"
        return f"{who}, {self.doubt}" if self.doubt else who
