"""Kinds of GPUs that requests accept: whole GPUs or slices (MIG devices), and the least memory of each. Pure.

`DeviceNeed.accepts` alone decides whether a device serves a request. The ledgers, a machine's queue, refusals before a
submission and the reasons of a wait use it.

Slices are not GPUs: a program sees one slice, whatever it was given, so a request for two or more never gets any. Nor
does a request that does not name them: a slice has a seventh of a GPU and more, and a program that was not written for
it runs out of memory.

The sets of devices that needs accept are nested or disjoint: all slices, those of one profile, whole GPUs, and of each
those with more memory than a limit. So devices can be assigned one need after the other, the strictest first, without a
search, and demands fit together if for each of these sets no more is demanded within it than it has.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.system.text import counted

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.values.spec import AppSpec

WHOLE_GPU, MIG_SLICE = "whole", "mig"
"""Kinds of devices, as in `dlapp.values.spec.Placement.gpu`, whose module the ledger's commands need not load."""
_MB = 10**6
_PROFILE = re.compile(r"\bMIG (\d\S*)$")
_DEMAND = re.compile(r"(\d{1,9})\*([a-z0-9:.+-]{1,60})(?:@(\d{1,9}))?", re.ASCII)
_MAX_DEMANDS = 100
"""Limit of the demands in a text that another process wrote."""
_NAMED = 6


class DeviceNeed(NamedTuple):
    """Devices that a request accepts.

    Args:
        kind: as `dlapp.values.spec.Placement.gpu`.
        memory_mb: least memory of each device [MB, 10^6 bytes]; 0: any.
    """

    kind: str = WHOLE_GPU
    memory_mb: int = 0

    @property
    def is_whole(self) -> bool:
        """Return True if it accepts whole GPUs."""
        return self.kind == WHOLE_GPU

    @property
    def profile(self) -> str:
        """Return the profile of the slices; empty: any, or no slices."""
        return self.kind.partition(":")[2]

    def accepts(self, device: Device) -> bool:
        """Return whether a device serves this need. A device of unknown memory has none."""
        if self.memory_mb and device.memory_mib << 20 < self.memory_mb * _MB:
            return False
        if self.is_whole:
            return device.mig < 0
        return device.mig >= 0 and self.profile in ("", profile_of(device))


PLAIN = DeviceNeed()
"""The need of a request that says nothing: any whole GPU."""


class Demand(NamedTuple):
    """Number of devices that are needed, and which ones."""

    gcores: int
    need: DeviceNeed


def profile_of(device: Device) -> str:
    """Return the profile of a slice, ``1g.10gb``; empty: it is a whole GPU, or the driver does not say.

    Source: NVML, nvmlDeviceGetName: the name of a MIG device identifies its attributes; ``… MIG 1g.10gb``, as in
    nvidia-smi -L. MIG User Guide, "MIG Device Names".
    """
    found = _PROFILE.search(device.name) if device.mig >= 0 else None
    return found[1].lower() if found else ""


def demands_of(spec: AppSpec) -> tuple[Demand, ...]:
    """Return what all containers of an application demand together, each need once, the strictest first."""
    counts: Counter[DeviceNeed] = Counter()
    for role in spec.roles:
        place = spec.placement_of(role)
        counts[DeviceNeed(place.gpu, place.gpu_memory_mb)] += role.instances * role.resources.gcores
    return tuple(sorted((Demand(count, need) for need, count in counts.items() if count), key=strictness))


def strictness(demand: Demand) -> tuple[bool, int, str]:
    """Return the sorting key that puts the strictest demand first."""
    return not demand.need.profile, -demand.need.memory_mb, demand.need.kind


def to_text(demands: Sequence[Demand]) -> str:
    """Return demands as text without blanks and slashes: ``2*whole@40000;1*mig:1g.10gb``; empty if all are plain."""
    if all(one.need == PLAIN for one in demands):
        return ""
    return ";".join(f"{count}*{need.kind}{f'@{need.memory_mb}' if need.memory_mb else ''}" for count, need in demands)


def from_text(text: str, count: int) -> tuple[Demand, ...]:
    """Return the demands of a text; ``count`` whole GPUs if it is empty, or not from `to_text`."""
    parts = text.split(";", _MAX_DEMANDS - 1)
    found = [_DEMAND.fullmatch(part) for part in parts]
    demands = [Demand(int(one[1]), DeviceNeed(one[2], int(one[3] or 0))) for one in found if one]
    if len(demands) != len(parts):
        return (Demand(count, PLAIN),) if count else ()
    return tuple(sorted(demands, key=strictness))


def is_within(one: DeviceNeed, other: DeviceNeed, devices: Iterable[Device]) -> bool:
    """Return whether all devices that ``one`` accepts are among those that ``other`` accepts."""
    return all(other.accepts(device) for device in devices if one.accepts(device))


def eligible(devices: Iterable[Device], demands: Iterable[Demand]) -> list[Device]:
    """Return the devices that at least one of the demands accepts."""
    needs = [one.need for one in demands]
    return [device for device in devices if any(need.accepts(device) for need in needs)]


# ---- messages ----


def asked_text(demands: Sequence[Demand], devices: Iterable[Device]) -> str:
    """Return demands for users: ``2 gcores``; where it matters ``2 whole GPUs`` or ``1 slice 1g.10gb``.

    Args:
        demands: what is asked for.
        devices: all of the host.
    """
    if all(one.need == PLAIN for one in demands) and all(one.mig < 0 for one in devices):
        return counted(sum(one.gcores for one in demands), "gcores")
    return " and ".join(map(_demand_text, demands))


def _demand_text(demand: Demand) -> str:
    count, need = demand
    what = "whole GPU" if need.is_whole else "slice" if need.profile else "MIG slice"
    more = f" {need.profile}" if need.profile else ""
    memory = f" with {_memory_text(need.memory_mb)}" if need.memory_mb else ""
    return f"{count} {what}{'' if count == 1 else 's'}{more}{memory}"


def _memory_text(memory_mb: int) -> str:
    return f"{memory_mb / 1000:g} GB"


def inventory_text(devices: Sequence[Device]) -> str:
    """Return what a host has: ``1 whole GPU (85 GB) and 3 slices (2 x 1g.10gb, 3g.40gb)``."""
    whole, slices = [one for one in devices if one.mig < 0], [one for one in devices if one.mig >= 0]
    parts = []
    if whole:
        sizes = (f"{(one.memory_mib << 20) // 10**9} GB" if one.memory_mib else "" for one in whole)
        parts.append(f"{len(whole)} whole GPU{'' if len(whole) == 1 else 's'}{_names_text(sizes)}")
    if slices:
        parts.append(f"{len(slices)} slice{'' if len(slices) == 1 else 's'}{_names_text(map(profile_of, slices))}")
    return " and ".join(parts) or "no GPU"


def _names_text(names: Iterable[str]) -> str:
    counts = Counter(names)
    shown = [name if count == 1 else f"{count} x {name}" for name, count in sorted(counts.items()) if name]
    return f" ({', '.join(shown[:_NAMED])}{', …' if len(shown) > _NAMED else ''})" if shown else ""


def too_few_text(demands: Sequence[Demand], devices: Sequence[Device], has: str) -> str:
    """Return why devices can never serve demands, whoever holds them, with the key that helps; empty: they can.

    Args:
        demands: what is asked for.
        devices: all of the host.
        has: what has them: ``this machine has``.
    """
    for one in demands:
        within = [device for device in devices if one.need.accepts(device)]
        asked = sum(other.gcores for other in demands if other is one or is_within(other.need, one.need, devices))
        if asked > len(within):
            return f"asked for {asked_text(demands, devices)}, {has} {inventory_text(devices)}{_hint(one, devices)}"
    return ""


def _hint(demand: Demand, devices: Sequence[Device]) -> str:
    """Return the key with which a host could serve a demand."""
    count, need = demand
    if need.is_whole and count == 1 and any(DeviceNeed(MIG_SLICE, need.memory_mb).accepts(d) for d in devices):
        return "; gpu=mig takes a slice"
    if not need.is_whole and any(DeviceNeed(WHOLE_GPU, need.memory_mb).accepts(device) for device in devices):
        return "; gpu=whole takes a whole GPU"
    return ""


def free_text(demands: Sequence[Demand], free: Collection[Device]) -> str:
    """Return how many of the free devices serve demands, and what another key would use: ``1 free, and 3 slices that
    gpu=mig would use``."""
    usable = eligible(free, demands)
    others = [one for one in free if one not in usable]
    slices, whole = sum(one.mig >= 0 for one in others), sum(one.mig < 0 for one in others)
    kinds = {one.need.kind for one in demands}
    more = []
    if slices and kinds == {WHOLE_GPU}:
        more.append(f"{slices} slice{'' if slices == 1 else 's'} that gpu=mig would use")
    elif slices:
        more.append(f"{slices} other slice{'' if slices == 1 else 's'}")
    if whole and WHOLE_GPU in kinds:
        more.append(f"{whole} with less memory")
    elif whole:
        more.append(f"{whole} whole GPU{'' if whole == 1 else 's'} that gpu=whole would use")
    return ", and ".join([f"{len(usable)} free", *more])
