"""Records of indexes and gangs: counted ends, waits, gates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.am.model.records.record import JournalRecord
from dlapp.am.model.records.recovered import RecoveredGate, RecoveredWait
from dlapp.values.report import RestartView

if TYPE_CHECKING:
    from dlapp.am.model.records.recovered import RecoveredState


class FaultsRecord(JournalRecord):
    """Number of ends of an index that count, by responsibility."""

    kind = "faults"

    index: int
    user_faults: int
    node_faults: int

    @classmethod
    def latest_keys(cls, data: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """Return the kind with the index: the counts are absolute."""
        return [(cls.kind, str(data["index"]))]

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the counts."""
        former.faults[self.index] = self.user_faults, self.node_faults


class FreeRecord(FaultsRecord):
    """Index that is no longer bound, or no longer given up, and waits."""

    kind = "free"

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the counts, and make the index wait."""
        super().replay(former, at_ms)
        former.bound.pop(self.index, None)
        former.given_up.pop(self.index, None)


class GiveUpRecord(FaultsRecord):
    """Index that is not tried again.

    Args:
        why: the failure, for the user, if the index is a deciding one.
    """

    kind = "give_up"

    why: str = ""

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the counts, and give the index up."""
        super().replay(former, at_ms)
        if not self.why:
            former.bound.pop(self.index, None)
        former.given_up[self.index] = self.why


class WaitRecord(JournalRecord):
    """Wait of an index for a service, or its end.

    Args:
        service: the service; empty: it waits for none.
        since_ms: service -> when it first waited for it since its last good run [ms since 1970].
    """

    kind = "wait"

    index: int
    service: str
    since_ms: dict[str, int]

    @classmethod
    def latest_keys(cls, data: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """Return keys for the first one, which starts the recording of times, the latest one, and the latest one
        without a service, which resets the times.
        """
        index = str(data["index"])
        return [("first wait", index), (cls.kind, index), *([] if data["service"] else [("no wait", index)])]

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the service and the times."""
        wait = former.waits.setdefault(self.index, RecoveredWait())
        wait.service, wait.since_ms = self.service if self.service in self.since_ms else "", self.since_ms
        if not self.service:
            wait.good_since_ms = at_ms


class GateRecord(JournalRecord):
    """Gate of a gang; durable before a payload may start, or is stopped for it.

    Args:
        role: first role of the gang.
        checkpoint: the checkpoint that the generation starts from; None: not chosen yet, or no checkpoints.
        after: numbers of checkpoints that the generation stores are greater.
        restarts: the latest restarts.
        node_faults: number of generations that failed for reasons other than a program.
    """

    kind = "gate"

    role: str
    open: bool
    generation: int = 0
    checkpoint: int | None = None
    after: int = 0
    restarts: tuple[RestartView, ...] = ()
    node_faults: int = 0

    @classmethod
    def latest_keys(cls, data: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """Return the kind with the role."""
        return [(cls.kind, str(data["role"]))]

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the state of the gate."""
        former.gates[self.role] = RecoveredGate(
            self.open, self.generation, self.checkpoint, self.after, self.restarts, self.node_faults
        )
