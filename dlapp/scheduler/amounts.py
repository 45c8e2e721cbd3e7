"""Amounts of a machine: memory, vcores and gcores. Commands load this; it imports nothing of dlapp."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol


class HasAmounts(Protocol):
    """Something that has amounts of a machine."""

    memory_mib: int
    vcores: int
    gcores: int


class Amounts(NamedTuple):
    """Memory [MiB], vcores and gcores: a capacity, free amounts, or a request."""

    memory_mib: int
    vcores: int
    gcores: int

    def without(self, rows: Iterable[HasAmounts]) -> Amounts:
        """Return the amounts that remain while ``rows`` run; overdrawn ones are below 0."""
        memory_mib, vcores, gcores = self
        for row in rows:
            memory_mib, vcores, gcores = memory_mib - row.memory_mib, vcores - row.vcores, gcores - row.gcores
        return Amounts(memory_mib, vcores, gcores)

    def minus(self, other: Amounts) -> Amounts:
        """Return the difference; what is overdrawn is below 0."""
        return Amounts(self[0] - other[0], self[1] - other[1], self[2] - other[2])

    def plus(self, other: Amounts) -> Amounts:
        """Return the sum."""
        return Amounts(self[0] + other[0], self[1] + other[1], self[2] + other[2])

    def fits(self, free: Amounts) -> bool:
        """Return whether this fits ``free``; amounts that are not requested may be negative there."""
        return (
            (self[0] <= free[0] or not self[0])
            and (self[1] <= free[1] or not self[1])
            and (self[2] <= free[2] or not self[2])
        )
