"""Start gate of the payloads of one gang.

Without gangs it is always open: each payload starts when its own container is ready. The gate of a gang opens when
every index of all its roles is ready in a live container, for all of them together. If a member of an open gang is lost
and retried, its peers would wait for it in vain, so the whole gang is restarted: the gate closes, the next *generation*
begins, and the gate opens again when all are ready for that. Members with live tasks keep their containers: the task
ends its payload, which is not counted, and prepares the next one. Finished members run again in another container,
since the others cannot run without them. A member lost before the gate opened is replaced without effect on the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlapp.am.model.checkpoints import GangCheckpoints
    from dlapp.values.report import RestartView

MAX_RESTARTS = 5
"""Number of a gang's latest restarts whose causes are kept."""


class GangFailure(NamedTuple):
    """Failure of a member that ends its application, unless its generation turns out to have failed for another reason.

    Args:
        member: CONTAINER_INDEX of the member.
        text: the failure, for the user.
        until_ms: when it takes effect, if no member is silent then [ms of time awake].
    """

    member: int
    text: str
    until_ms: int


class Gate:
    """Gate of some roles: the ready indexes, and whether they may start.

    Args:
        name: name of the first role, as in the journal.
        size: number of indexes behind it, which must be ready; 0: no gang, and the gate is always open.

    Attributes:
        generation: number of restarts of the gang.
        roster_version: number of changes of the roster in this generation; -1: no roster yet.
        held_ms: how long it has had only a part of what it needs [ms of time awake].
        checked_ms: when that was last updated [ms of time awake]; `waits`: whether it lacked something then.
        paused_until_ms: it released everything, and requests nothing before that [ms of time awake].
        releases: how often it did so since it was last open.
        failure: failure that ends the application once the other members have ended; None: none.
        checkpoints: checkpoints of its members; None: none.
        charged: index of the member whose failure restarted it and counts against its retries; None: another reason.
        restarts: the latest restarts, oldest first, without those whose reason only an earlier attempt knew.
        node_faults: number of generations that ended by failures that no program caused; see
            `dlapp.am.decisions.gangs.gang.count_node_fault`.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.gang = name, size > 0
        self.open = not self.gang
        self.generation = self.held_ms = self.releases = 0
        self.checked_ms: int | None = None
        self.paused_until_ms: int | None = None
        self.waits = False
        self.failure: GangFailure | None = None
        self.charged: int | None = None
        self.restarts: tuple[RestartView, ...] = ()
        self.node_faults = 0
        self.checkpoints: GangCheckpoints | None = None
        self.size = size
        self.roster_version = -1
        self._ready: set[int] = set()

    @property
    def ready(self) -> int:
        """Return the number of indexes that wait at the gate."""
        return len(self._ready)

    def mark_ready(self, index: int, generation: int) -> bool:
        """Record that an index is ready for a generation; return whether this opens the gate."""
        if self.open or generation != self.generation:
            return False
        self._ready.add(index)
        self.open = len(self._ready) == self.size
        return self.open

    def mark_not_ready(self, index: int) -> None:
        """Record that an index is no longer ready: its container is lost."""
        self._ready.discard(index)
        if self.checkpoints is not None:
            self.checkpoints.found.pop(index, None)

    def clear_ready(self) -> None:
        """Forget the ready indexes: all must prepare another generation or checkpoint."""
        self._ready.clear()

    def close(self, generation: int) -> None:
        """Begin a generation."""
        self.open = False
        self.failure = self.charged = None
        self.generation = generation
        self._ready.clear()
        if self.checkpoints is not None:
            self.checkpoints.begin()
