"""Checkpoints in the simulated cluster: their places, and what tasks find, restore and store there.

Payloads store in steps that all members of a gang reach at about the same time; some copies are missed, some
checkpoints cannot be restored, and payloads on lost nodes go on storing.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from dlapp.values.messages import are_of_a_later_start
from dlapp.values.spec import EVERY_INDEX

if TYPE_CHECKING:
    from tests.am.simulated.box import Box
    from tests.am.simulated.plan import Plan

KEEP = 2


class Stored(NamedTuple):
    """A checkpoint at a place: of which generation of which try it is, and whether it can be restored."""

    start: tuple[int, int]
    is_whole: bool


class BoxCheckpoints:
    """Checkpoints of the task in one box, in its generation."""

    def __init__(self) -> None:
        self.found: tuple[int, ...] | None = None
        self.restored: int | None = None
        self.after = 0
        self.broken: set[int] = set()
        self.is_alone = False

    def begin(self) -> None:
        """Begin a generation, or prepare once more for one."""
        self.found = self.restored = None
        self.is_alone = False


class SimulatedCheckpoints:
    """Places of the checkpoints of one application.

    Args:
        plan: of the run.
        writer: index that stores, where not every one does.
        violated: called with each violation.
    """

    def __init__(self, plan: Plan, writer: int, violated: Callable[[str], None]) -> None:
        self.exist = plan.checkpoint is not None and bool(plan.submission.spec.gangs())
        self._every_index, self._writer, self._violated = plan.checkpoint == EVERY_INDEX, writer, violated
        self._chance, self._broken = random.Random(f"checkpoints {plan.seed}"), plan.broken_checkpoints
        self._may_count_again = plan.journal == "lost"  # who counts generations may not know of the earlier ones
        self._places: dict[int, dict[int, Stored]] = {}
        self._resumed: dict[tuple[str, int], int] = {}
        self.numbers: set[int] = set()
        """Numbers with which gangs began."""

    def stores(self, index: int) -> bool:
        """Return whether the task of an index stores."""
        return self._every_index or index == self._writer

    def _place(self, index: int) -> dict[int, Stored]:
        return self._places.setdefault(index if self._every_index else self._writer, {})

    def find(self, box: Box) -> None:
        """Let a task look at its place."""
        assert box.index is not None
        found = sorted(self._place(box.index).keys() - box.checkpoints.broken)
        box.checkpoints.found, box.checkpoints.restored = tuple(found), None

    def restore(self, box: Box) -> bool:
        """Let a task restore what its orders name; return False if that is not whole."""
        assert box.index is not None
        assert box.orders is not None
        number, own = box.orders.checkpoint, box.checkpoints
        assert number is not None
        if number:
            stored = self._place(box.index).get(number)
            if stored is None or not stored.is_whole:
                own.broken.add(number)
                return False
        own.restored, own.after = number, box.orders.checkpoints_after
        return True

    def store(self, box: Box, step: int) -> bool:
        """Let a task store a step of its payload; return False if it does not."""
        assert box.index is not None
        place, own = self._place(box.index), box.checkpoints
        if self._chance.random() < 0.2 or any(are_of_a_later_start(number, own.after) for number in place):
            return False
        number = own.after + step if self._every_index else max(own.after, *place, 0) + 1
        if number in place:
            if place[number].start != self._start(box):
                self._violated(f"{box.grant.container_id} stores {number}, which another start has stored")
            return False
        place[number] = Stored(self._start(box), self._chance.random() >= self._broken)
        spared = (box.orders.checkpoint or 0) if box.orders is not None and self._every_index else 0
        for old in sorted(place)[:-KEEP]:
            if old != spared:
                del place[old]
        own.found = tuple(sorted(place.keys() - own.broken))
        return True

    @staticmethod
    def _start(box: Box) -> tuple[int, int]:
        return box.generation, box.grant.container_id.number

    def check_start(self, box: Box, gang: str, others: Iterable[Box]) -> None:
        """Check that a payload begins with what the others of its generation begin with.

        Args:
            box: with the payload.
            gang: names its gang.
            others: those of its gang whose payloads run.
        """
        assert box.index is not None
        own = box.checkpoints
        if own.restored is None:
            self._violated(f"index {box.index} begins, and its checkpoint is not restored")
            return
        if own.is_alone:
            return
        self.numbers.add(own.restored)
        if self._may_count_again and all(other.checkpoints.restored == own.restored for other in others):
            self._resumed[gang, box.generation] = own.restored
        restored = self._resumed.setdefault((gang, box.generation), own.restored)
        if restored != own.restored:
            what = f"index {box.index} begins generation {box.generation} with checkpoint {own.restored}"
            self._violated(f"{what}, others began it with {restored}")
