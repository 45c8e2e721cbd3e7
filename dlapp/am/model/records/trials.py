"""Records of the trials of a sweep. Only the ApplicationMaster of a sweep loads this module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from dlapp.am.model.records.record import JournalRecord
from dlapp.am.model.records.recovered import RecoveredTrial
from dlapp.am.model.records.trial_end import ENDED_WITH_SWEEP, TrialEnd
from dlapp.sweep.asha import RungDecision
from dlapp.sweep.results import TrialState
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.serialization import from_json, to_json

if TYPE_CHECKING:
    from dlapp.am.model.records.recovered import RecoveredState


class TrialStartRecord(JournalRecord):
    """Assignment of a trial to a container.

    Args:
        try_number: number of this start, from 1.
        holder, index: the container, and its CONTAINER_INDEX.
        parameters: the values that Optuna chose, durable before the container gets them; None: Optuna is not used.
    """

    kind = "trial"

    number: int
    try_number: int
    holder: ContainerId
    index: int
    parameters: dict[str, str] | None = None

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record that the trial runs there."""
        trial = _assigned(former, self)
        trial.end, trial.runs = None, True


class TrialEndRecord(JournalRecord):
    """End of a trial; its container keeps the result until this is durable.

    Args:
        holder, index: container of its last try, and its CONTAINER_INDEX.
        end: the end; its fields are among those of the record.
        parameters: the values that Optuna chose; None: Optuna is not used.
    """

    kind = "trial_end"

    number: int
    try_number: int
    user_faults: int
    node_faults: int
    holder: ContainerId
    index: int
    end: TrialEnd
    parameters: dict[str, str] | None = None

    def write_fields(self, data: dict[str, Any]) -> None:
        """Add the fields."""
        super().write_fields(data)
        del data["end"]
        self.end.write_fields(data)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of a JSON form, as the base class does."""
        end = TrialEnd.read(data)
        if end.state != ENDED_WITH_SWEEP:
            TrialState(end.state)
        return super().read({**data, "end": end})

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record that the trial has ended."""
        trial = _assigned(former, self)
        trial.user_faults, trial.node_faults = self.user_faults, self.node_faults
        trial.end, trial.ended_ms, trial.runs = self.end, at_ms, False


class TrialRetryRecord(JournalRecord):
    """Trial that waits again, with its counted failures."""

    kind = "trial_back"

    number: int
    user_faults: int
    node_faults: int

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Make the trial wait."""
        trial = former.trials.setdefault(self.number, RecoveredTrial())
        trial.user_faults, trial.node_faults = self.user_faults, self.node_faults
        trial.runs = False


class TrialCommitRecord(JournalRecord):
    """Separate commit of an ended trial's output."""

    kind = "trial_committed"

    number: int

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record that the output is committed."""
        if (trial := former.trials.get(self.number)) is not None and trial.end is not None:
            trial.end = replace(trial.end, committed=True)


class TakenOverRecord(JournalRecord):
    """Takeover of the trials that had ended in another application.

    Args:
        of: id of that application.
    """

    kind = "taken"

    of: str = ""

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Record that they are not taken over again."""
        former.has_taken_over = True


class RungRecord(JournalRecord):
    """Decision of early stopping on a trial."""

    kind = "rung"

    decision: RungDecision

    def write_fields(self, data: dict[str, Any]) -> None:
        """Add the fields of the decision."""
        data |= to_json(self.decision)

    @classmethod
    def read(cls, data: Mapping[str, Any]) -> Self:
        """Return the record of a JSON form, as the base class does."""
        return cls(from_json(RungDecision, data))

    def replay(self, former: RecoveredState, at_ms: int) -> None:
        """Add the decision."""
        former.rungs.append(self.decision)


def _assigned(former: RecoveredState, record: TrialStartRecord | TrialEndRecord) -> RecoveredTrial:
    """Return the trial of a record, with the container of that."""
    trial = former.trials.setdefault(record.number, RecoveredTrial())
    trial.holder, trial.index, trial.tries = record.holder, record.index, record.try_number
    if record.parameters is not None:
        trial.parameters = record.parameters
    return trial


TRIAL_RECORDS = (
    TrialStartRecord,
    TrialEndRecord,
    TrialRetryRecord,
    TrialCommitRecord,
    TakenOverRecord,
    RungRecord,
)
