"""The gate in front of the payloads of one gang.

Where there are no gangs it stands open: each payload starts when its own container is ready. The gate of a gang opens
when every index of all its roles is ready in a live container, and then for all of them together. If a member of an
open gang is lost and tried again, its peers wait for somebody who does not come back, so the whole gang is restarted:
the gate closes, the next *generation* begins, and the gate opens once more when all are ready for that. Members whose
tasks live keep their containers: the task ends its payload, which counts against nobody, and prepares the next one.
Members that had finished run again in another container, since the others cannot run without them. A member lost before
the gate opened is replaced, nobody else notices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from dlapp.am.model.checkpoints import GangCheckpoints
    from dlapp.values.report import RestartView

MAX_RESTARTS = 5
"""Of a gang, the latest: their causes are kept."""


class GangFailure(NamedTuple):
    """Failure of a member that ends its application, unless its generation proves to have failed for another reason.

    Args:
        member: its CONTAINER_INDEX.
        text: the failure, for the user.
        until_ms: when it counts, if no member is silent then [ms of time awake].
    """

    member: int
    text: str
    until_ms: int


class Gate:
    """Gate of some roles: the indexes that are ready, and whether they may start.

    Args:
        name: of the first role; the journal has it.
        size: how many indexes have to be ready; 0: there is no gang, and the gate stands open.

    Attributes:
        generation: how often the gang was restarted.
        roster_version: how often the roster has changed in this generation; -1: there was none yet.
        held_ms: for how long it has had some of what it needs, and lacked the rest [ms of time awake].
        checked_ms: when that was counted last [ms of time awake]; `waits`: whether it lacked something then.
        paused_until_ms: it gave all back, and asks for nothing before that [ms of time awake].
        releases: how often it did so, since it was open.
        failure: what ends the application once the other members have ended; None: nothing.
        checkpoints: those of its members; None: they have none.
        charged: index of the member whose failure restarted it and counts against its retries; None: another reason.
        restarts: the latest ones, oldest first; a restart that only an earlier attempt knew the reason of is left out.
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
        self.checkpoints: GangCheckpoints | None = None
        self._size = size
        self.roster_version = -1
        self._ready: set[int] = set()

    @property
    def size(self) -> int:
        """Number of indexes behind it, where it is that of a gang."""
        return self._size

    @property
    def ready(self) -> int:
        """Number of indexes that wait at the gate."""
        return len(self._ready)

    def arrive(self, index: int, generation: int) -> bool:
        """An index is ready for a generation; the answer is whether this opens the gate, now."""
        if self.open or generation != self.generation:
            return False
        self._ready.add(index)
        self.open = len(self._ready) == self._size
        return self.open

    def leave(self, index: int) -> None:
        """An index is not ready any more: its container is lost."""
        self._ready.discard(index)
        if self.checkpoints is not None:
            self.checkpoints.found.pop(index, None)

    def let_none_wait(self) -> None:
        """Forget who is ready: all have to prepare something else."""
        self._ready.clear()

    def close(self, generation: int) -> None:
        """Begin a generation."""
        self.open = False
        self.failure = self.charged = None
        self.generation = generation
        self._ready.clear()
        if self.checkpoints is not None:
            self.checkpoints.begin()

    def reopen(self) -> None:
        """Open the gate because it was open under an earlier attempt."""
        self.open = True
