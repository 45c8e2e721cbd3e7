"""Checkpoints of one gang: with which one the payloads of a generation begin.

Each task says which whole checkpoints it finds. When all members of a generation have said so, one number is chosen for
all: the greatest that all of them have where each index has a directory of its own, else the greatest that the one has
that stores. For a member that goes on may look while the container that stored is still being preempted, and stores;
who stores next looks when that one is gone. If a member cannot restore the one that was chosen, it says so, and another
one is chosen for all.

While payloads run, the tasks that store add to their lists. Where each index has a directory of its own, a number is
complete when all of them have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.values.messages import checkpoints_after


class GangCheckpoints:
    """Checkpoints of a gang in one generation, as far as its tasks have said.

    Args:
        size: how many members it has.
        writers: the indexes that store.
        of_every_index: each index has a directory of its own.

    Attributes:
        found: index -> the numbers that it has said.
        refused: numbers that were chosen and that a member could not restore.
        number: the one that was chosen; 0: there is none; None: not chosen yet.
        after: the numbers of those that are stored in this generation are greater.
        complete: the last one that all have stored in this generation; 0: none.
    """

    def __init__(self, size: int, writers: Iterable[int], *, of_every_index: bool) -> None:
        self._size, self.writers, self.of_every_index = size, frozenset(writers), of_every_index
        self.found: dict[int, frozenset[int]] = {}
        self.refused: set[int] = set()
        self.begin()

    def begin(self, number: int | None = None, after: int = 0) -> None:
        """Begin a generation, or go on with one of an earlier attempt, which has chosen a number."""
        self.found.clear()
        self.refused.clear()
        self.number, self.after, self.complete = number, after, 0

    def choose(self, starts: int) -> bool:
        """Choose the number if all members have said what they found. Return whether it is another one than before.

        Args:
            starts: how often payloads of the gang were started, this time included.
        """
        if len(self.found) < self._size:
            return False
        number = self.common(self.found if self.of_every_index or not self.writers else self.writers)
        if number == self.number:
            return False
        self.number, self.after = number, self._after(starts)
        return True

    def choose_alone(self, index: int, starts: int) -> tuple[int, int]:
        """Return with which checkpoint a member begins that is started again alone, and after which it stores: its
        newest one that those who store have, too."""
        return self.common({index, *(self.writers & self.found.keys())}), self._after(starts)

    def complete_now(self) -> bool:
        """Return whether a number is complete now that was not before."""
        if not self.writers <= self.found.keys() or (number := self.common(self.writers)) <= self.complete:
            return False
        self.complete = number
        return True

    def common(self, indexes: Iterable[int]) -> int:
        """Return the greatest number that all of these have found and nobody has refused; 0: there is none."""
        return max(frozenset.intersection(*(self.found[index] for index in indexes)) - self.refused, default=0)

    def _after(self, starts: int) -> int:
        return checkpoints_after(max(max(numbers, default=0) for numbers in self.found.values()), starts)
