"""A device, how close two of them are, and who holds one. Values."""

from __future__ import annotations

from dlapp.value import Value

_WORTH = {"SYS": 1, "NODE": 2, "PHB": 3, "PXB": 4, "PIX": 5}
_WORTH_OF_ONE_CARD = 6
_WORTH_OF_AN_NVLINK = 10


class Device(Value):
    """One GPU of this machine, or one MIG device: a GPU that is in MIG mode is not listed itself, its parts are.

    Args:
        uuid: its identity, ``GPU-…`` or ``MIG-…``; the same after a restart, in another slot, and in every container.
        index: its GPU's place in PCI bus order, from 0: what NV_GPU and gpuN mean. -1: it is away, and that was not
            written down.
        minor: the GPU's device node, /dev/nvidia<minor>; it may differ from ``index``. -1: not known.
        memory_mib: memory of the device [MiB].
        pci_bus_id: ``00000000:3B:00.0``.
        compute_mode: ``default``, ``exclusive`` or ``prohibited``; empty: not known.
        numa: the NUMA node that the GPU hangs on; -1: not known, or the machine has none.
        links: how each GPU of the machine is reached, by index, in the words of ``nvidia-smi topo -m``: ``X`` itself,
            ``NV4`` by four NVLinks, ``PIX``, ``PXB``, ``PHB``, ``NODE``, ``SYS`` farther and farther away by PCIe;
            ``-`` not known. Empty: nothing is known.
        mig: the number of a MIG device on its GPU; -1: a whole GPU.
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

    @property
    def label(self) -> str:
        """Name for people: ``gpu3``, a MIG device ``gpu3:1``; the uuid if its place is not known any more."""
        if self.index < 0:
            return self.uuid
        return f"gpu{self.index}" if self.mig < 0 else f"gpu{self.index}:{self.mig}"


def closeness(one: Device, other: Device) -> int:
    """Return how fast two devices reach each other; only the order of such numbers and sums of them mean something.

    In hundreds: 10 for each NVLink between them, 6 on one GPU, 5 to 1 by PCIe from ``PIX`` to ``SYS``, 0 where it is
    not known: an NVLink of the first generation has about twice what PCIe has behind one switch. One more where both
    hang on one NUMA node, which decides among equals.
    """
    if one.index == other.index:
        worth = _WORTH_OF_ONE_CARD
    else:
        link = one.links[other.index] if 0 <= other.index < len(one.links) else ""
        worth = _WORTH_OF_AN_NVLINK * int(link[2:]) if link[:2] == "NV" and link[2:].isdigit() else _WORTH.get(link, 0)
    return 100 * worth + (one.numa == other.numa and one.numa >= 0)


class Holder(Value):
    """Holder of a device.

    Args:
        index: of the device; None: the holder's record does not say.
        container: the container that uses it; empty: it is reserved for the application, no container has it yet.
        doubt: empty, or why the device is not free although its holder's processes on this machine seem to be gone.
        role, container_index: of the container in its application, as text; empty: not known.
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

    def __str__(self) -> str:
        name = f"gpu{self.index}" if self.index is not None else self.uuid
        if not self.application and self.doubt:
            return f"{name} {self.doubt}"
        who = f"{name} {self.application or 'an unknown holder'}"
        if self.user:
            who += f" ({self.user})"
        return f"{who}, {self.doubt}" if self.doubt else who
