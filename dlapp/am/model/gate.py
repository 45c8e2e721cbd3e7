"""The gate in front of the payloads of one role.

AS_GRANTED: it stands open, each payload starts when its own container is ready. GANG: it opens when every index of the
role is ready in a live container, and then for all of them together. If a member of an open gang is lost and tried
again, its peers wait for somebody who does not come back, so the whole gang is restarted: the gate closes, all members
are stopped (which counts against none of them) and it opens once more when all are ready; members that had finished run
again, since the others cannot run without them. A member lost before the gate opened is replaced, nobody else notices.
"""

from __future__ import annotations

from dlapp.spec import StartRule


class Gate:
    """Gate of a role: the indexes that are ready, and whether they may start."""

    def __init__(self, rule: StartRule, size: int) -> None:
        self.gang = rule is StartRule.GANG
        self.open = not self.gang
        self._size = size
        self._ready: set[int] = set()

    @property
    def ready(self) -> int:
        """Number of indexes that wait at the gate."""
        return len(self._ready)

    def arrive(self, index: int) -> bool:
        """An index is ready; the answer is whether this opens the gate, now."""
        if self.open:
            return False
        self._ready.add(index)
        self.open = len(self._ready) == self._size
        return self.open

    def leave(self, index: int) -> None:
        """An index is not ready any more: its container is lost."""
        self._ready.discard(index)

    def close(self) -> None:
        """Begin anew."""
        self.open = False
        self._ready.clear()

    def reopen(self) -> None:
        """Open the gate because it was open under an earlier attempt."""
        self.open = True
