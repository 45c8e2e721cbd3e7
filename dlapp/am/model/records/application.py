"""Records of the application as a whole: its attempts, its start conditions, its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from dlapp.am.model.events import ApplicationEnd, Settlement
from dlapp.am.model.records.record import JournalRecord
from dlapp.values.report import Cause, OutputView
from dlapp.values.start_conditions import After, read_after

if TYPE_CHECKING:
    from dlapp.am.model.records.recovered import RecoveredState

VERSION = 1
"""Version of the journal's format."""


class BeginRecord(JournalRecord):
    """Registration of an attempt.

    Args:
        started_ms: when the first attempt registered [ms since 1970].
        version: `VERSION`; 0: not known.
        boot: boot id of the machine; empty: its containers outlive a boot.
    """

    kind = "begin"

    attempt: int
    started_ms: int
    version: int = 0
    boot: str = ""

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Begin the attempt, perhaps after a reboot of the machine."""
        former.pass_boot(self.boot)
        if former.started_ms is None:
            former.started_ms = self.started_ms


class StartRecord(JournalRecord):
    """Remaining conditions before containers are requested.

    Args:
        after: ends of other applications.
        held: nobody has released it.
    """

    kind = "start"

    after: tuple[After, ...]
    held: bool

    def write_fields(self, data: dict[str, Any]) -> None:
        """Add the fields; the ends have the form of a properties file."""
        data["after"], data["held"] = [str(one) for one in self.after], self.held

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of a JSON form, as the base class does."""
        return cls(read_after(", ".join(map(str, data["after"]))), bool(data["held"]))

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set what is waited for."""
        former.start = self.after, self.held, at_ms


class ChangeRecord(JournalRecord):
    """Difference between what was requested for the containers of a role and what the engine gives them.

    Args:
        what: the difference, for the user.
    """

    kind = "change"

    role: str
    what: str

    @classmethod
    def latest_keys(cls, data: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
        """Return the kind with the role."""
        return [(cls.kind, str(data["role"]))]

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the difference."""
        former.changes[self.role] = self.what


class SoftRecord(JournalRecord):
    """Begin of a soft stop.

    Args:
        by: who requested it, or the reached limit.
        ends_ms: end of the grace time [ms since 1970].
    """

    kind = "soft"

    by: str
    cause: Cause
    ends_ms: int

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the soft stop."""
        former.soft = self.by, self.cause, self.ends_ms


class EndingRecord(JournalRecord):
    """Decision how the application ends.

    Args:
        how: what to do with the outputs.
    """

    kind = "ending"

    ending: ApplicationEnd
    how: Settlement

    def write_fields(self, data: dict[str, Any]) -> None:
        """Add the fields; the end is an array of its final status, its cause and its diagnostics."""
        super().write_fields(data)
        end = self.ending
        data["ending"] = [end.final_status.value, end.cause.value, end.diagnostics]

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of a JSON form, as the base class does."""
        final, cause, diagnostics = data["ending"]
        end = {"final_status": final, "cause": cause, "diagnostics": diagnostics}
        return super().read({**data, "ending": end})

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the end."""
        former.ending = self.ending, self.how


class SettledRecord(EndingRecord):
    """Settlement of the outputs; a failed commit changes the end."""

    kind = "settled"

    outputs: tuple[OutputView, ...]

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Set the end and the outputs."""
        super().replay(former, at_ms)
        former.outputs = self.outputs


class FinishRecord(JournalRecord):
    """Report of the end to the engine."""

    kind = "finish"

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record that the application has ended."""
        former.finished = True
