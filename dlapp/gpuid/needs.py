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
_GIGABYTES = re.compile(r"\.(\d+)gb")
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


def may_share(one: DeviceNeed, other: DeviceNeed) -> bool:
    """Return whether a device can serve both needs, on whatever host, but for its memory."""
    if one.is_whole or other.is_whole:
        return one.is_whole and other.is_whole
    return "" in (one.profile, other.profile) or one.profile == other.profile


def other_kinds(need: DeviceNeed, devices: Iterable[Device], free: Iterable[Device]) -> list[str]:
    """Return other kinds of the free devices of a host: those with as much memory as the need's first, the nearest
    first, and last slices of whatever profile.

    Args:
        need: what is asked for; other kinds must have its least memory.
        devices: all of the host.
        free: those that are free.
    """
    own_mib = max((one.memory_mib for one in devices if need.accepts(one)), default=0)
    sizes_mib: dict[str, int] = {}
    for one in free:
        profile = profile_of(one)
        kind = WHOLE_GPU if PLAIN.accepts(one) else f"{MIG_SLICE}:{profile}" if profile else MIG_SLICE
        if not need.accepts(one) and DeviceNeed(kind, need.memory_mb).accepts(one):
            sizes_mib[kind] = max(one.memory_mib, sizes_mib.get(kind, 0))
    kinds = sorted(sizes_mib, key=lambda kind: (sizes_mib[kind] < own_mib, abs(sizes_mib[kind] - own_mib), kind))
    if any(kind != WHOLE_GPU for kind in kinds):
        kinds = [*(kind for kind in kinds if kind != MIG_SLICE), MIG_SLICE]
    return [kind for kind in kinds if kind != need.kind]


def is_within(one: DeviceNeed, other: DeviceNeed, devices: Iterable[Device]) -> bool:
    """Return whether all devices that ``one`` accepts are among those that ``other`` accepts."""
    return all(other.accepts(device) for device in devices if one.accepts(device))


def count_for(need: DeviceNeed, devices: Iterable[Device]) -> int:
    """Return how many of some devices a need accepts."""
    return sum(map(need.accepts, devices))


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
    if are_plain(demands, devices):
        return counted(sum(one.gcores for one in demands), "gcores")
    return " and ".join(map(demand_text, demands))


def are_plain(demands: Sequence[Demand], devices: Iterable[Device]) -> bool:
    """Return whether it goes without saying that GPUs are whole ones."""
    return all(one.need == PLAIN for one in demands) and all(map(PLAIN.accepts, devices))


def demand_text(demand: Demand) -> str:
    """Return a demand for users: ``2 whole GPUs``, ``1 slice 1g.10gb``, ``1 MIG slice with 20 GB``."""
    count, need = demand
    what = "whole GPU" if need.is_whole else "slice" if need.profile else "MIG slice"
    more = f" {need.profile}" if need.profile else ""
    memory = f" with {_memory_text(need.memory_mb)}" if need.memory_mb else ""
    return f"{_number_text(count, what)}{more}{memory}"


def _memory_text(memory_mb: int) -> str:
    return f"{memory_mb / 1000:g} GB"


def inventory_text(devices: Sequence[Device]) -> str:
    """Return what a host has: ``1 whole GPU (85 GB) and 3 slices (2 x 1g.10gb, 3g.40gb)``."""
    whole, slices = _by_kind(devices)
    parts = []
    if whole:
        parts.append(f"{_number_text(len(whole), 'whole GPU')}{_names_text(map(_size_text, whole))}")
    if slices:
        parts.append(f"{_number_text(len(slices), 'slice')}{_names_text(map(_slice_text, slices))}")
    return " and ".join(parts) or "no GPU"


def number_text(devices: Iterable[Device]) -> str:
    """Return how many devices there are, for many hosts: ``12 GPUs``, ``1 GPU and 7 slices``."""
    whole, slices = _by_kind(devices)
    parts = [_number_text(len(whole), "GPU")] if whole or not slices else []
    return " and ".join([*parts, *([_number_text(len(slices), "slice")] if slices else [])])


def _by_kind(devices: Iterable[Device]) -> tuple[list[Device], list[Device]]:
    """Return the whole GPUs and the slices."""
    listed = list(devices)
    return list(filter(PLAIN.accepts, listed)), [one for one in listed if not PLAIN.accepts(one)]


def _number_text(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _size_text(device: Device) -> str:
    return f"{(device.memory_mib << 20) // _MB // 1000} GB" if device.memory_mib else ""


def _slice_text(device: Device) -> str:
    """Return the profile of a slice; with its memory if that is not what the name says: ``1g.18gb of 17 GB``."""
    profile, size = profile_of(device), _size_text(device)
    named = _GIGABYTES.search(profile)
    if not size or (named and device.memory_mib << 20 >= int(named[1]) * 10**9):
        return profile
    return f"{profile} of {size}" if profile else size


def _names_text(names: Iterable[str]) -> str:
    counts = Counter(names)
    shown = [name if count == 1 else f"{count} x {name}" for name, count in sorted(counts.items()) if name]
    return f" ({', '.join(shown[:_NAMED])}{', …' if len(shown) > _NAMED else ''})" if shown else ""


class Shortage(NamedTuple):
    """Demand that a host can never meet.

    Args:
        text: what is asked for and what there is, with the key that helps.
        key: the key whose value is wrong: ``gcores``, ``gpu`` or ``gpu_memory``.
    """

    text: str
    key: str


def too_few(demands: Sequence[Demand], devices: Sequence[Device], has: str) -> Shortage | None:
    """Return why devices can never serve demands, whoever holds them; None: they can.

    Args:
        demands: what is asked for.
        devices: all of the host.
        has: what has them: ``this machine has``.
    """
    for one in demands:
        there = count_for(one.need, devices)
        if one.gcores <= there and len(demands) == 1:
            return None  # the usual request
        asked = sum(other.gcores for other in demands if other is one or is_within(other.need, one.need, devices))
        if asked > there:
            what = asked_text(demands, devices)
            if are_plain(demands, devices):
                return Shortage(f"asked for {what}, {has} {len(devices)}", "gcores")
            return Shortage(
                f"asked for {what}, {has} {inventory_text(devices)}{_hint(one, devices)}", _key(asked, one, devices)
            )
    return None


def _key(asked: int, demand: Demand, devices: Sequence[Device]) -> str:
    """Return the key because of which there are fewer devices than asked for."""
    of_kind = count_for(DeviceNeed(demand.need.kind), devices)
    if asked <= of_kind:
        return "gpu_memory"
    return "gcores" if of_kind or not devices else "gpu"


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
    whole, slices = map(len, _by_kind(others))
    kinds = {one.need.kind for one in demands}
    more = []
    if slices and kinds == {WHOLE_GPU}:
        if any(one.gcores == 1 for one in demands):  # a program sees one slice only
            more.append(f"{_number_text(slices, 'slice')} that gpu=mig would use")
    elif slices:
        more.append(_number_text(slices, "other slice"))
    if whole and WHOLE_GPU in kinds:
        more.append(f"{whole} with less memory")
    elif whole:
        more.append(f"{_number_text(whole, 'whole GPU')} that gpu=whole would use")
    return ", and ".join([f"{len(usable)} free", *more])
