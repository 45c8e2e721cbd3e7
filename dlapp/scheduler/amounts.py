"""Amounts of a machine: memory, vcores and gcores. Commands load this; it imports nothing of dlapp.

Not every GPU serves every request: whole GPUs and slices of MIG are different things, and so are GPUs of less memory.
The sets of GPUs that requests accept are nested or disjoint, so it suffices to count by set, as the caller defines
them: a request fits if of each set as much is free as is asked for within it. Running applications count with the
GPUs that they hold.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class HasAmounts(Protocol):
    """Something that has amounts of a machine."""

    memory_mib: int
    vcores: int
    gcores: int


class Amounts(NamedTuple):
    """Memory [MiB], vcores and gcores: a capacity, free amounts, or a request.

    Args:
        by_set: gcores of each set of GPUs that is counted; empty: all GPUs serve all requests, or it is not known which
            do.
    """

    memory_mib: int
    vcores: int
    gcores: int
    by_set: tuple[int, ...] = ()

    def without(self, rows: Iterable[HasAmounts]) -> Amounts:
        """Return the amounts that remain while ``rows`` run; overdrawn ones are below 0. Rows know no sets of GPUs."""
        memory_mib, vcores, gcores, by_set = self
        for row in rows:
            memory_mib, vcores, gcores = memory_mib - row.memory_mib, vcores - row.vcores, gcores - row.gcores
        return Amounts(memory_mib, vcores, gcores, by_set)

    def minus(self, other: Amounts) -> Amounts:
        """Return the difference; what is overdrawn is below 0."""
        sets = _by_set(self, other, -1) if self[3] else ()
        return Amounts(self[0] - other[0], self[1] - other[1], self[2] - other[2], sets)

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum."""
        sets = _by_set(self, other, 1) if self[3] else ()
        return Amounts(self[0] + other[0], self[1] + other[1], self[2] + other[2], sets)

    def remaining(self, taken: Amounts) -> Amounts:
        """Return the difference; what is overdrawn is 0."""
        memory_mib, vcores, gcores, by_set = self.minus(taken)
        return Amounts(max(0, memory_mib), max(0, vcores), max(0, gcores), tuple(max(0, one) for one in by_set))

    def fits(self, free: Amounts) -> bool:
        """Return whether this fits ``free``; amounts that are not requested may be negative there."""
        return (
            (self[0] <= free[0] or not self[0])
            and (self[1] <= free[1] or not self[1])
            and (self[2] <= free[2] or not self[2])
            and (not free[3] or all(one <= left or not one for one, left in zip(self[3], free[3], strict=False)))
        )

    def is_behind(self, earlier: Amounts, free: Amounts, extra: Amounts) -> bool:
        """Return whether a request waits because of an earlier one that does not fit.

        It does if both wait for the same, or if it must leave what is free to the earlier one.

        Args:
            earlier: the earlier request.
            free: free amounts now.
            extra: what remains of them for others than the earlier request.
        """
        asked = zip(_flat(self), _flat(earlier), _flat(free), _flat(extra), strict=True)
        return any((one > left if one <= there else first > 0) for one, first, there, left in asked if one)


def _flat(one: Amounts) -> tuple[int, ...]:
    return one[0], one[1], one[2], *one[3]


def _by_set(one: Amounts, other: Amounts, sign: int) -> tuple[int, ...]:
    """Return the sums of the sets of GPUs; amounts without sets change nothing."""
    if not other.by_set:
        return one.by_set
    return tuple(first + sign * second for first, second in zip(one.by_set, other.by_set, strict=True))
