"""Checkpoints of one gang: choice of the checkpoint from which a generation starts.

Each task reports which complete checkpoints it finds. When all members of a generation have reported, one number is
chosen for all: if each index has its own directory, the greatest that all of them have; otherwise the greatest that the
storing member has. Only the storing member counts, because another member may list while the preempted container is
still storing; the next storing member lists when that one is gone. If a member cannot restore the chosen checkpoint, it
reports that, and another one is chosen for all.

While payloads run, the storing tasks add to their lists. If each index has its own directory, a number is complete when
all of them have it.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.values.messages import checkpoints_after


class GangCheckpoints:
    """Checkpoints of a gang in one generation, as reported by its tasks.

    Args:
        size: number of members.
        writers: the indexes that store.
        of_every_index: each index has its own directory.

    Attributes:
        found: index -> the numbers that it reported.
        refused: chosen numbers that a member could not restore.
        number: the chosen number; 0: no checkpoint; None: not chosen yet.
        after: the numbers stored in this generation are greater.
        complete: the last number that all have stored in this generation; 0: none.
    """

    def __init__(self, size: int, writers: Iterable[int], *, of_every_index: bool) -> None:
        self._size, self.writers, self.of_every_index = size, frozenset(writers), of_every_index
        self.found: dict[int, frozenset[int]] = {}
        self.refused: set[int] = set()
        self.begin()

    def begin(self, number: int | None = None, after: int = 0) -> None:
        """Begin a generation, or continue one of an earlier attempt, which has chosen a number."""
        self.found.clear()
        self.refused.clear()
        self.number, self.after, self.complete = number, after, 0

    def choose(self, starts: int) -> bool:
        """Choose the number if all members have reported; return whether it has changed. ``starts`` is the number of
        starts of the gang's payloads, including this one.
        """
        if len(self.found) < self._size:
            return False
        number = self.common(self.found if self.of_every_index or not self.writers else self.writers)
        if number == self.number:
            return False
        self.number, self.after = number, self._after(starts)
        return True

    def choose_for_member(self, index: int, starts: int) -> tuple[int, int]:
        """Return the checkpoint from which a member restarted alone starts, and the offset of its own: its newest one
        that the storing members also have."""
        return self.common({index, *(self.writers & self.found.keys())}), self._after(starts)

    def update_complete(self) -> bool:
        """Return whether a number has become complete."""
        if not self.writers <= self.found.keys() or (number := self.common(self.writers)) <= self.complete:
            return False
        self.complete = number
        return True

    def common(self, indexes: Iterable[int]) -> int:
        """Return the greatest number that all of these have found and none has refused; 0: there is none."""
        return max(frozenset.intersection(*(self.found[index] for index in indexes)) - self.refused, default=0)

    def _after(self, starts: int) -> int:
        return checkpoints_after(max(max(numbers, default=0) for numbers in self.found.values()), starts)
