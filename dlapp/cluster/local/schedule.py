"""Which waiting application may start, and what the others wait for. Plain functions of plain values.

First come, first served, strictly: the first that does not fit holds up all behind it, so that one that needs much is
never starved by many that need little. All of an ask or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from dlapp.cluster.local.queue import Row


class Amounts(NamedTuple):
    """Memory [MiB], vcores and gcores that there are, or are free."""

    memory_mib: int
    vcores: int
    gcores: int

    def without(self, rows: Iterable[Row]) -> Amounts:
        """What is left when ``rows`` run; what is overdrawn is below 0."""
        memory_mib, vcores, gcores = self
        for row in rows:
            memory_mib, vcores, gcores = memory_mib - row.memory_mib, vcores - row.vcores, gcores - row.gcores
        return Amounts(memory_mib, vcores, gcores)


def too_large(asked: Amounts, capacity: Amounts) -> str | None:
    """Why an ask can never be met by ``capacity``; None: it can."""
    for name, wanted, there in _amounts(asked, capacity):
        if wanted > there:
            return f"asked for {_shown(name, wanted, there)}, this machine has {_shown(name, there, wanted)}"
    return None


def lack(asked: Amounts, free: Amounts, running: Iterable[Row] = ()) -> str | None:
    """What is missing for an ask, and who has it; None: it fits.

    >>> lack(Amounts(8192, 1, 0), Amounts(4096, 2, 0))
    'needs 8 GiB of memory, 4 GiB free'
    """
    for name, wanted, there in _amounts(asked, free):
        if wanted > there:
            there = max(there, 0)
            text = f"needs {_shown(name, wanted, there)}, {_shown(name, there, wanted, unit=False)} free"
            field = {"memory": "memory_mib"}.get(name, name)
            holders = [f"{row.id} ({row.submitter})" for row in running if getattr(row, field)]
            return f"{text}: {', '.join(holders[:3])}{' and others' if len(holders) > 3 else ''}" if holders else text
    return None


def amounts_of(row: Row) -> Amounts:
    """What all containers of an application ask for together."""
    return Amounts(row.memory_mib, row.vcores, row.gcores)


def ahead(number: int, rows: Iterable[Row]) -> str:
    """The reason of one that is not the first to wait."""
    count = sum(1 for row in rows if row.state == "waiting" and row.number < number)
    return f"waiting: {count} ahead"


def _amounts(asked: Amounts, there: Amounts) -> Iterable[tuple[str, int, int]]:
    return zip(("memory", "vcores", "gcores"), asked, there, strict=True)


def _shown(name: str, amount: int, beside: int, *, unit: bool = True) -> str:
    if name != "memory":
        return f"{amount} {name}" if unit else str(amount)
    text = shown_memory(amount)
    if amount != beside and text == shown_memory(beside):
        text = f"{amount} MiB"  # rounded, both would look the same
    return f"{text} of memory" if unit else text


def shown_memory(memory_mib: int) -> str:
    """Memory as one would say it: ``512 MiB``, ``24.1 GiB``."""
    return f"{memory_mib} MiB" if memory_mib < 1024 else f"{round(memory_mib / 1024, 1):g} GiB"
