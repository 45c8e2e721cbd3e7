"""Published layouts of machines with 8 GPUs, as ``nvidia-smi topo -m`` prints them."""

from __future__ import annotations

from dlapp.gpuid.devices import Device

# NVIDIA DGX-1 with V100: the hybrid cube mesh. Source: NVIDIA DGX-1 With Tesla V100 System Architecture (WP-08437),
# figure 5, and nvidia-smi topo -m of such a machine.
_CUBE_MESH = """
X    NV1  NV1  NV2  NV2  SYS  SYS  SYS
NV1  X    NV2  NV1  SYS  NV2  SYS  SYS
NV1  NV2  X    NV2  SYS  SYS  NV1  SYS
NV2  NV1  NV2  X    SYS  SYS  SYS  NV1
NV2  SYS  SYS  SYS  X    NV1  NV1  NV2
SYS  NV2  SYS  SYS  NV1  X    NV2  NV1
SYS  SYS  NV1  SYS  NV1  NV2  X    NV2
SYS  SYS  SYS  NV1  NV2  NV1  NV2  X
"""


def _tree(quad: str) -> str:
    """Two sockets; under each two pairs behind a switch each, and ``quad`` between the pairs."""

    def link(one: int, other: int) -> str:
        if one == other:
            return "X"
        return "PIX" if one // 2 == other // 2 else quad if one // 4 == other // 4 else "SYS"

    return "\n".join(" ".join(link(number, other) for other in range(8)) for number in range(8))


_TABLES = {
    "DGX-1": _CUBE_MESH,
    # Six NVSwitches join all GPUs alike.
    "DGX A100": "\n".join(" ".join("X" if number == other else "NV12" for other in range(8)) for number in range(8)),
    "two sockets, a switch for each four": _tree("PXB"),
    "two sockets, a switch for each two": _tree("NODE"),
}


def machine(name: str) -> tuple[Device, ...]:
    """The devices of a layout."""
    rows = [line.split() for line in _TABLES[name].strip().splitlines()]
    return tuple(
        Device(f"GPU-{place}", place, place, name=name, numa=place // 4, links=tuple(row))
        for place, row in enumerate(rows)
    )


NAMES = tuple(_TABLES)
