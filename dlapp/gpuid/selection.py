"""Selection of devices among the free ones. Pure: topology, holders and request in, devices out.

Packed, the chosen set is the best by these criteria, in order:

1. its slowest pair is as fast as possible, as a collective operation is as fast as its slowest link;
2. all its pairs together are as fast as possible;
3. its links to the remaining free devices are as slow as possible. The remaining devices are then as close as possible
   to each other: a single GPU is taken where it splits the least, and an isolated pair is preferred to half a quad;
4. its positions in PCI bus order are the lowest.

Spread, it is the set with the fewest and slowest links, in total, between its devices and to devices in use: each
device shares bandwidth and cooling as little as possible. Then, as above, the lowest positions.

`dlapp.gpuid.devices.closeness` rates a pair. Without known links, devices count as closer the nearer they are in PCI
bus order: GPUs behind one switch are neighbours there.

Performance: devices with equal links to all others (the four behind one switch, the parts of one GPU) are
    interchangeable, so only the number taken from each such class varies. On all machines with 8 or 16 GPUs this tries
    every distinct set. `MAX_SETS` limits unusual topologies.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

from dlapp.gpuid.needs import PLAIN

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.needs import Demand

MAX_SETS = 200_000
"""Number of sets above which the search is greedy (more than 20 GPUs with irregular links): each device is tried as the
first of a set that grows by the best next device."""
_ORDER_RANGE = 1 << 10
_MAX_KEPT = 64

Choice = tuple["Device", ...] | None
Choose = Callable[[Sequence["Device"], Collection[str], int, bool], Choice]
"""Function that chooses: all devices in PCI bus order, the uuids of the free ones, the count, whether to spread."""
Matrix = list[list[int]]
Measure = tuple[float, ...]


def choose(
    devices: Sequence[Device], free: Collection[str], count: int, spread: bool = False
) -> tuple[Device, ...] | None:
    """Choose ``count`` of the ``free`` devices: close together, or as far apart as possible.

    Args:
        devices: all devices, in PCI bus order.
        free: uuids.
        count: how many to choose.
        spread: far from each other, not close together.

    Returns:
        In PCI bus order; None: not enough.
    """
    wanted = set(free)
    places = [place for place, device in enumerate(devices) if device.uuid in wanted]
    if count > len(places):
        return None
    if count < len(places):
        places = _best(devices, places, count, spread) if count > 0 else []
    return tuple(devices[place] for place in places)


def choose_for(
    devices: Sequence[Device],
    free: Collection[str],
    demands: Sequence[Demand],
    spread: bool = False,
    *,
    choose: Choose = choose,
    least: bool = False,
) -> tuple[Device, ...] | None:
    """Choose of the ``free`` devices those that demands accept, one demand after the other.

    Args:
        devices: all devices, in PCI bus order.
        free: uuids.
        demands: the strictest first.
        spread: far from each other, not close together.
        choose: chooses among equal devices.
        least: choose those with the least memory also for plain demands: what is reserved for several roles must leave
            each its own. Other demands always get these.

    Returns:
        In PCI bus order; None: not enough.
    """
    if not least and len(demands) == 1 and demands[0].need == PLAIN:  # the usual request
        fitting = {one.uuid for one in devices if one.mig < 0 and one.uuid in free}
        return choose(devices, fitting, demands[0].gcores, spread)
    left, found = set(free), set[str]()
    for count, need in demands:
        accepted = [one for one in devices if one.uuid in left and need.accepts(one)]
        if count > len(accepted):
            return None
        certain = set[str]()
        if count and (least or need != PLAIN):
            limit_mib = sorted(one.memory_mib for one in accepted)[count - 1]
            certain = {one.uuid for one in accepted if one.memory_mib < limit_mib}
            accepted = [one for one in accepted if one.memory_mib == limit_mib]
        chosen = choose(devices, {one.uuid for one in accepted}, count - len(certain), spread)
        if chosen is None:
            return None
        taken = certain | {one.uuid for one in chosen}
        left -= taken
        found |= taken
    return tuple(one for one in devices if one.uuid in found)


class ChoiceCache:
    """Cache of `choose`: the same devices are free again and again."""

    def __init__(self, choose: Choose = choose) -> None:
        self._choose = choose
        self._devices: tuple[Device, ...] = ()
        self._kept: dict[tuple[frozenset[str], int, bool], Choice] = {}

    def __call__(self, devices: Sequence[Device], free: Collection[str], count: int, spread: bool) -> Choice:
        if len(devices) != len(self._devices) or any(map(operator.is_not, devices, self._devices)):
            self._devices, self._kept = tuple(devices), {}
        key = frozenset(free), count, spread
        if key not in self._kept:
            if len(self._kept) >= _MAX_KEPT:
                self._kept.clear()
            self._kept[key] = self._choose(devices, free, count, spread)
        return self._kept[key]


def measure(links: Matrix, free: Sequence[int], taken: Sequence[int], *, spread: bool = False) -> Measure:
    """Return the cost of a set, without the positions, which decide among equals; lower is better.

    Args:
        links: (position, position) -> closeness.
        free, taken: positions; ``taken`` is a subset of ``free``.
        spread: prefer devices far from each other.
    """
    pairs = [links[one][other] for place, one in enumerate(taken) for other in taken[:place]]
    outside = _outside(links, free, spread)
    inside, beyond = sum(pairs), sum(outside[one] for one in taken)
    if spread:
        return (inside + beyond,)
    # Each pair within counts twice in `beyond`; what remains are the links from the set to the remaining free ones.
    return (-min(pairs, default=0), -inside, beyond - 2 * inside)


def matrix(devices: Sequence[Device]) -> Matrix:
    """Return the closeness of the devices, by their positions."""
    from dlapp.gpuid.devices import closeness

    if any(device.links or device.mig >= 0 for device in devices):
        return [[closeness(one, other) for other in devices] for one in devices]
    there = range(len(devices))
    return [[_ORDER_RANGE - abs(one - other) for other in there] for one in there]


def _outside(links: Matrix, free: Sequence[int], spread: bool) -> list[int]:
    """Return by position the closeness to all relevant others: those in use, for a spread request; else the free
    ones."""
    others = set(range(len(links))) - set(free) if spread else set(free)
    return [sum(row[other] for other in others if other != one) for one, row in enumerate(links)]


def _best(devices: Sequence[Device], places: Sequence[int], count: int, spread: bool) -> list[int]:
    links = matrix(devices)
    classes = _classes(links, places, set(range(len(devices))) if spread else set(places))
    sizes = [len(one) for one in classes]
    if _number_of_splits(sizes, count) <= MAX_SETS:
        return _best_split(links, classes, _outside(links, places, spread), count, spread)
    return _grown(places, count, lambda taken: measure(links, places, taken, spread=spread))


def _classes(links: Matrix, places: Sequence[int], all_: Collection[int]) -> list[list[int]]:
    """Return ``places`` in classes of interchangeable ones: equal links to each of ``all_``.

    This is an equivalence relation: if a~b and b~c, then every d has equal links to a, b and c, and a-b, a-c and b-c
    are equal.
    """
    classes: list[list[int]] = []
    for one in places:
        for known in classes:
            first = known[0]
            if all(links[one][other] == links[first][other] for other in all_ if other not in (one, first)):
                known.append(one)
                break
        else:
            classes.append([one])
    return classes


def _number_of_splits(sizes: Sequence[int], count: int) -> int:
    """Return the number of ways to choose ``count`` from classes of these sizes."""
    ways = [1] + [0] * count
    for size in sizes:
        ways = [sum(ways[max(0, total - size) : total + 1]) for total in range(count + 1)]
    return ways[count]


def _best_split(
    links: Matrix, classes: Sequence[Sequence[int]], outside: Sequence[int], count: int, spread: bool
) -> list[int]:
    """Return the best set: try each division of ``count`` among the classes, taking the lowest positions of each."""
    best: tuple[Measure, list[int]] | None = None
    for taken, slowest, inside in _splits(links, classes, count):
        beyond = sum(outside[classes[at][0]] * number for at, number in taken)
        found: Measure = (inside + beyond,) if spread else (-slowest, -inside, beyond - 2 * inside)
        if best is not None and found > best[0]:
            continue
        places = sorted(place for at, number in taken for place in classes[at][:number])
        if best is None or (found, places) < best:
            best = found, places
    assert best is not None, "count is at most what there is"
    return best[1]


def _splits(
    links: Matrix, classes: Sequence[Sequence[int]], count: int
) -> Iterator[tuple[list[tuple[int, int]], float, int]]:
    """Yield each division: (class, number) pairs, the closeness of the slowest pair (0: none), the sum of all pairs."""
    left_from = [sum(map(len, classes[at:])) for at in range(len(classes) + 1)]
    taken: list[tuple[int, int]] = []

    def go_on(at: int, left: int, slowest: float, inside: int) -> Iterator[tuple[list[tuple[int, int]], float, int]]:
        if left == 0:
            yield taken, 0 if slowest == math.inf else slowest, inside
            return
        members = classes[at]
        row = links[members[0]]
        most = min(left, len(members))
        for number in range(most, max(0, left - left_from[at + 1]) - 1, -1):
            if number == 0:
                yield from go_on(at + 1, left, slowest, inside)
                continue
            now, sum_ = slowest, inside
            for other, others in taken:
                link = row[classes[other][0]]
                now, sum_ = min(now, link), sum_ + number * others * link
            if number > 1:
                link = row[members[1]]
                now, sum_ = min(now, link), sum_ + number * (number - 1) // 2 * link
            taken.append((at, number))
            yield from go_on(at + 1, left - number, now, sum_)
            taken.pop()

    return go_on(0, count, math.inf, 0)


def _grown(places: Sequence[int], count: int, measured: Callable[[list[int]], Measure]) -> list[int]:
    def grow(first: int) -> list[int]:
        taken = [first]
        while len(taken) < count:
            taken.append(
                min((one for one in places if one not in taken), key=lambda one: (measured([*taken, one]), one))
            )
        return sorted(taken)

    return min(map(grow, places), key=lambda one: (measured(one), one))
