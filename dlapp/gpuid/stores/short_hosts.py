"""The list of hosts that have a GPU in quarantine, in the ledger of a cluster.

    <root>/short            empty until the list is complete
    <root>/short/<host>     the host's record had a GPU in quarantine when it was written last

An ApplicationMaster wants to know on which of ten thousand hosts GPUs are missing. It reads this list, and then the
records of the hosts that it names, so nothing is decided on the word of the list. Whoever writes a record that has its
first GPU in quarantine, or none any more, changes the list afterwards: leases and releases cost nothing more.

The list may be wrong where a process died in between, or an earlier dlapp wrote the record. A name too many is removed
by the next reader. A host that is missing is put on it when a request there gets too few GPUs. Where there is no list,
the first reader makes it of all records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from dlapp.errors import Denied, Unreachable
from dlapp.gpuid.rules import HostRecord
from dlapp.gpuid.stores.ensemble import Ensemble, OutcomeUnknown, VersionConflict

MAX_WAIT_S = 2.0
"""Time limit for a change of the list; the record has been written before."""
_COMPLETE = b"complete"


def is_short(record: HostRecord) -> bool:
    """Return whether a host belongs on the list."""
    return not record.forgotten_ms and any(one.quarantine is not None for one in record.devices)


class ShortHosts:
    """The list below one root.

    Args:
        clock: what deadlines are of [s].
    """

    def __init__(self, ensemble: Ensemble, root: str, clock: Callable[[], float]) -> None:
        self._ensemble, self._path, self._clock = ensemble, f"{root.rstrip('/')}/short", clock

    def names(self, deadline: float) -> list[str] | None:
        """Return the hosts on the list; None: it is not complete."""
        found = self._ensemble.read(self._path, deadline)
        if found is None or found[0] != _COMPLETE:
            return None
        return self._ensemble.names(self._path, deadline)

    def begin(self, deadline: float) -> None:
        """Make the list, so that from now on those who write records change it. Raises Denied."""
        self._ensemble.make_list(self._path, deadline)

    def end(self, deadline: float) -> None:
        """Mark the list as complete."""
        with contextlib.suppress(Unreachable, Denied, VersionConflict, OutcomeUnknown):
            if (found := self._ensemble.read(self._path, deadline)) is not None:
                self._ensemble.write(self._path, _COMPLETE, found[1], deadline)

    def put(self, host: str) -> None:
        """Put a host on the list. That this fails costs a detour later and nothing else."""
        with contextlib.suppress(Unreachable, Denied, OutcomeUnknown):
            self._ensemble.put_name(f"{self._path}/{host}", self._clock() + MAX_WAIT_S)

    def remove(self, host: str, still: Callable[[], bool] = lambda: False) -> None:
        """Remove a host from the list, unless it was added again meanwhile.

        Args:
            still: asked after the name was read: whether the host belongs on it all the same.
        """
        path, deadline = f"{self._path}/{host}", self._clock() + MAX_WAIT_S
        with contextlib.suppress(Unreachable, Denied, OutcomeUnknown):
            if (found := self._ensemble.read(path, deadline, newest=True)) is not None and not still():
                self._ensemble.remove_name(path, found[1], deadline)
