"""Base class of the records of a journal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.am.model.records.fields import JournalFields

if TYPE_CHECKING:
    from dlapp.am.model.records.recovered import RecoveredState


class JournalRecord(JournalFields):
    """Record of one kind.

    Attributes:
        kind: the kind, as in JSON.
    """

    kind = ""

    def as_json(self, at_ms: int) -> dict[str, Any]:
        """Return the record's JSON form, with the time at which it is written [ms since 1970]."""
        found = {"kind": self.kind, "t": at_ms}
        self.write_fields(found)
        return found

    @classmethod
    def latest_keys(cls, _data: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """Return the keys for which a record, in its JSON form, may be the latest one; empty: each one is needed.

        Of the records with a key only the latest is needed, of those whose key begins with ``first`` only the first. A
        record is dropped if it is not needed for any of its keys (`dlapp.am.model.journal_compaction`).
        """
        return ()

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Apply the record to what is recovered.

        Args:
            former: what the records before it have given; it is changed.
            at_ms: when the record was written [ms since 1970].

        Raises:
            LookupError: no record before it was about this container.
        """
        raise NotImplementedError
