"""Selection of devices among those that are free. Pure: topology, holders and request in, devices out.

Packed, the chosen set is the best by this measure, compared from left to right:

1. its slowest pair is as fast as possible, for a collective operation is as fast as its slowest link;
2. all its pairs together are as fast as possible;
3. it is linked to the free devices that it leaves as little as possible. What is left to others then is as close as it
   can be, so a single GPU is taken where it breaks up the least, and a pair that stands alone goes before half a quad;
4. its places in PCI bus order are the lowest.

Spread, it is the set whose pairs, and links to devices in use, are the fewest and slowest together: each of its devices
has bandwidth and cooling as much to itself as can be. Then, as above, the lowest places.

How fast a pair is says `dlapp.gpuid.devices.closeness`. Where no links are known, devices are the closer the nearer
they are in PCI bus order: GPUs behind one switch are neighbours there.

How it stays fast: devices that are linked alike to all others (the four behind one switch, the parts of one GPU) are
interchangeable, so what is tried is only how many to take of each such class. On all machines with 8 or 16 GPUs this
tries every set that makes a difference. `MOST_SETS` is for machines that nobody has built.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlapp.gpuid.devices import Device

MOST_SETS = 200_000
"""With more sets than this to try (more than 20 GPUs, linked without any regularity), each device is tried as the first
of a set that grows by the best next one."""
_ORDER_RANGE = 1 << 10
_MOST_KEPT = 64

Choice = tuple["Device", ...] | None
Matrix = list[list[int]]
Measure = tuple[float, ...]


def choose(
    devices: Sequence[Device], free: Collection[str], count: int, spread: bool = False
) -> tuple[Device, ...] | None:
    """Choose ``count`` of the ``free`` devices: close together, or as far apart as can be.

    Args:
        devices: all, in PCI bus order.
        free: uuids.
        count: how many to choose.
        spread: far from each other, not close together.

    Returns:
        In PCI bus order; None: there are not enough.
    """
    wanted = set(free)
    places = [place for place, device in enumerate(devices) if device.uuid in wanted]
    if count > len(places):
        return None
    if count < len(places):
        places = _best(devices, places, count, spread) if count > 0 else []
    return tuple(devices[place] for place in places)


class ChoiceCache:
    """Keeps choices of `choose`: the same devices are free again and again.

    Args:
        choose: what is asked where a choice is not kept.
    """

    def __init__(self, choose: Callable[[Sequence[Device], Collection[str], int, bool], Choice] = choose) -> None:
        self._choose = choose
        self._devices: tuple[Device, ...] = ()
        self._kept: dict[tuple[frozenset[str], int, bool], Choice] = {}

    def __call__(self, devices: Sequence[Device], free: Collection[str], count: int, spread: bool) -> Choice:
        """See `choose`."""
        if len(devices) != len(self._devices) or any(map(operator.is_not, devices, self._devices)):
            self._devices, self._kept = tuple(devices), {}
        key = frozenset(free), count, spread
        if key not in self._kept:
            if len(self._kept) >= _MOST_KEPT:
                self._kept.clear()
            self._kept[key] = self._choose(devices, free, count, spread)
        return self._kept[key]


def measure(links: Matrix, free: Sequence[int], taken: Sequence[int], *, spread: bool = False) -> Measure:
    """Return the measure of a set, smaller is better; without the places, which decide among equals.

    Args:
        links: place, place -> closeness.
        free, taken: places; ``taken`` are some of ``free``.
        spread: far from each other is better.
    """
    pairs = [links[one][other] for place, one in enumerate(taken) for other in taken[:place]]
    outside = _outside(links, free, spread)
    inside, beyond = sum(pairs), sum(outside[one] for one in taken)
    if spread:
        return (inside + beyond,)
    # Each pair within counts twice in `beyond`; what remains is the links from the set to the free ones left.
    return (-min(pairs, default=0), -inside, beyond - 2 * inside)


def matrix(devices: Sequence[Device]) -> Matrix:
    """Return how close the devices are, by their places."""
    from dlapp.gpuid.devices import closeness

    if any(device.links or device.mig >= 0 for device in devices):
        return [[closeness(one, other) for other in devices] for one in devices]
    there = range(len(devices))
    return [[_ORDER_RANGE - abs(one - other) for other in there] for one in there]


def _outside(links: Matrix, free: Sequence[int], spread: bool) -> list[int]:
    """Place -> how close it is to all others that matter: those in use, for a spread ask; else the free ones."""
    others = set(range(len(links))) - set(free) if spread else set(free)
    return [sum(row[other] for other in others if other != one) for one, row in enumerate(links)]


def _best(devices: Sequence[Device], places: Sequence[int], count: int, spread: bool) -> list[int]:
    links = matrix(devices)
    classes = _classes(links, places, set(range(len(devices))) if spread else set(places))
    sizes = [len(one) for one in classes]
    if _number_of_splits(sizes, count) <= MOST_SETS:
        return _best_split(links, classes, _outside(links, places, spread), count, spread)
    return _grown(places, count, lambda taken: measure(links, places, taken, spread=spread))


def _classes(links: Matrix, places: Sequence[int], all_: Collection[int]) -> list[list[int]]:
    """``places`` in classes of interchangeable ones: linked alike to each of ``all_``.

    That is an equivalence: with a like b and b like c, every d sees a as it sees b as it sees c, and a-b, a-c and b-c
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
    """Return the number of ways to take ``count`` from classes of these sizes."""
    ways = [1] + [0] * count
    for size in sizes:
        ways = [sum(ways[max(0, total - size) : total + 1]) for total in range(count + 1)]
    return ways[count]


def _best_split(
    links: Matrix, classes: Sequence[Sequence[int]], outside: Sequence[int], count: int, spread: bool
) -> list[int]:
    """The best set: tried is each way to divide ``count`` among the classes, of which the lowest places are taken."""
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
    """Each way: (class, how many) pairs, the closeness of the slowest pair (0: there is none), that of all pairs."""
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
