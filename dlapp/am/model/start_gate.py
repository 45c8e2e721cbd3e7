"""Gate before an application's first request for containers: ends of other applications, or a release."""

from __future__ import annotations

from dlapp.value import Record
from dlapp.values.start_conditions import After


class StartGate(Record):
    """State of the wait of an application before it requests containers; on one machine the runner does this.

    Attributes:
        pending: the ends of other applications that are not known yet.
        is_held: nobody has released it.
        unread: why the ends cannot be read now; empty: they can.
    """

    pending: tuple[After, ...] = ()
    is_held: bool = False
    unread: str = ""

    @property
    def is_open(self) -> bool:
        """Return True if nothing is waited for any more."""
        return not self.pending and not self.is_held
