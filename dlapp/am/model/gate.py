"""The gate in front of the payloads of one gang.

Where there are no gangs it stands open: each payload starts when its own container is ready. The gate of a gang opens
when every index of all its roles is ready in a live container, and then for all of them together. If a member of an
open gang is lost and tried again, its peers wait for somebody who does not come back, so the whole gang is restarted:
the gate closes, all members are stopped (which counts against none of them) and it opens once more when all are ready;
members that had finished run again, since the others cannot run without them. A member lost before the gate opened is
replaced, nobody else notices.
"""

from __future__ import annotations


class Gate:
    """Gate of some roles: the indexes that are ready, and whether they may start.

    Args:
        name: of the first role; the journal has it.
        size: how many indexes have to be ready; 0: there is no gang, and the gate stands open.
    """

    def __init__(self, name: str, size: int) -> None:
        self.name, self.gang = name, size > 0
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
