"""Events of an application, and the actions that follow from them.

Events are messages that arrive at the AM, and a few internal ones; each goes to `Master.handle` with the time:

    cluster.Registered     the engine accepted the registration
    cluster.Heartbeat      news from the engine; may come twice, or repeat known facts
    control.Hello          first message of a task; answered by `Assign` or `Refuse`, at once or with a later event
    control.Report         report of a task; answered by the container's orders, held back until they are newer
    Tick                   passage of time; at least every two seconds while nothing else happens
    SoftKill, Kill         request to end; answered by `AnswerStop` in the same list
    SettlementWaits        the commit waits for space
    TrialsTakenOver        the results that a sweep continues from
    OutputsSettled         answer to `SettleOutputs`
    DeviceCountsRead       hosts that are short of healthy GPUs
    OthersEnded            other applications that this one waits for have ended
    Release                request to start; answered by `AnswerStop`
    Published              tasks of an earlier attempt can now find this one
    JournalWritten         these lines are durable
    OpenStream             request of a stream to a container; answered by its orders, or by `RefuseStream`

Requests to the engine are not actions but a state, `Master.container_requests()` and `Master.releases()`, sent with
every heartbeat: a lost or repeated heartbeat does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from dlapp.cluster.engine import Grant, Heartbeat, Registered
from dlapp.value import Value
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Assignment, Hello, Orders, Report, StopAnswer, StoredOutput, StreamOrder
from dlapp.values.report import Cause, FinalStatus, OutputView

if TYPE_CHECKING:
    from dlapp.sweep.results import TrialView

# ---- events ----


class Tick(Value):
    """Passage of time."""


class SoftKill(Value):
    """Request to end the payloads with SIGTERM and keep their stored output."""

    by: str


class Kill(Value):
    """Request to end everything now and keep nothing."""

    by: str


class ApplicationEnd(Value):
    """End of an application, as reported to the engine."""

    final_status: FinalStatus
    cause: Cause
    diagnostics: str


class DeviceCountsRead(Value):
    """Result of reading the ledger.

    Args:
        usable: number of leasable GPUs and slices, as YARN counts them, for hosts on which some are not leasable.
        serving: kind and least memory of the GPUs that containers request (`dlapp.values.spec.Placement`) -> how many
            of those serve such a request, by host.
    """

    usable: Mapping[str, int]
    serving: Mapping[tuple[str, int], Mapping[str, int]]


class OthersEnded(Value):
    """Result of checking whether other applications have ended.

    Args:
        ends: ended application -> how it ended (`dlapp.values.start_conditions`).
        unread: why the ends of the others cannot be read now; empty: they were read.
    """

    ends: Mapping[str, str]
    unread: str = ""


class Release(Value):
    """Request to let a held application start."""

    by: str


class Published(Value):
    """Publication of the address of this attempt, for the tasks of an earlier one."""


class JournalWritten(Value):
    """Durability of lines of this attempt's journal.

    Args:
        lines: number of such lines, from the first `WriteJournal` on.
    """

    lines: int


class FormerTrial(Value, kw_only=True):
    """Ended trial of the sweep that this one continues, which is not run again.

    Args:
        outputs, sources: names of its stored outputs, and their locations.
        is_committed: its output is where this sweep would commit it.
    """

    view: TrialView
    outputs: tuple[StoredOutput, ...] = ()
    sources: tuple[str, ...] = ()
    is_committed: bool = False


class TrialsTakenOver(Value):
    """Trials of the sweep that this one continues."""

    trials: tuple[FormerTrial, ...]


class TrialCommitted(Value):
    """Commit of the output of a trial, or its failure for now.

    Args:
        error: why not; the end of the application tries again. Empty: it was committed.
    """

    number: int
    error: str = ""


class OpenStream(Value, kw_only=True):
    """Request to open a stream to a container.

    Args:
        index, trial: as in `dlapp.values.access.StreamRequest`.
        pending: numbers of the streams whose requesters still wait.
    """

    index: int | None
    order: StreamOrder
    trial: int | None = None
    pending: frozenset[int] = frozenset()


class SettlementWaits(Value):
    """Wait of the commit for space or for a file system; ``lack`` is the text."""

    lack: str


class OutputsSettled(Value):
    """Settlement of the outputs, or its failure.

    Args:
        outputs: result of each output of the spec.
        error: why it failed, one line; None: it did not.
        ended: if another attempt's commit claim came first: how the application ended by that claim.
    """

    outputs: tuple[OutputView, ...] = ()
    error: str | None = None
    ended: ApplicationEnd | None = None


Event = (
    Registered
    | Heartbeat
    | Hello
    | Report
    | Tick
    | SoftKill
    | Kill
    | SettlementWaits
    | OutputsSettled
    | TrialCommitted
    | TrialsTakenOver
    | DeviceCountsRead
    | OthersEnded
    | Release
    | Published
    | JournalWritten
    | OpenStream
)

# ---- actions ----


class StartTask(Value):
    """Start a task in this container."""

    grant: Grant


class StopContainer(Value):
    """End a container and all its processes; repeated until its end is known."""

    container_id: ContainerId


class CheckStart(Value):
    """Check whether a container's node is still fetching its task's files; answered by `Heartbeat.preparing`."""

    container_id: ContainerId


class Assign(Value):
    """Answer a task's hello with its work."""

    container_id: ContainerId
    assignment: Assignment


class Refuse(Value):
    """Answer a task's hello: there is no work, the task ends."""

    container_id: ContainerId
    why: str


class SendOrders(Value):
    """Send new orders to a task: as the answer to its held report, or else to its next one."""

    container_id: ContainerId
    orders: Orders


class RefuseStream(Value):
    """Reject an `OpenStream`.

    Args:
        number: the number of its order.
        why: for the user.
        is_unknown: there is no such container, and never will be.
    """

    number: int
    why: str
    is_unknown: bool = False


class AnswerStop(Value):
    """Answer the `SoftKill` or `Kill` that was just handled."""

    answer: StopAnswer


class Settlement(Enum):
    """Kind of settlement of the outputs."""

    COMMIT = "commit"
    """Move the parts to the target."""
    KEEP = "keep"
    """Move the parts to the target's ``.partial``, or drop them, by the output's `OnFailure`."""
    DROP = "drop"
    """Remove everything stored under temporary names; keep only the given parts, as `KEEP` does."""


class Part(Value):
    """Complete output of one container; at most one part of each CONTAINER_INDEX counts.

    Args:
        trial: it is the output of one try of a trial (`dlapp.values.ids.trial_part`), and ``index`` is the trial's
            number.
        sources: for each of ``outputs``, the location to copy it from; empty: it is already in place.
    """

    index: int
    role: str
    role_index: int
    container_id: ContainerId
    outputs: tuple[StoredOutput, ...]
    trial: str = ""
    sources: tuple[str, ...] = ()

    @property
    def place(self) -> ContainerId | str:
        """Return the name of the directory that stores it, beside the target."""
        return self.trial or self.container_id


def in_order(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Sort parts by CONTAINER_INDEX."""
    return tuple(sorted(parts, key=lambda part: (part.index, part.container_id)))


class SettleOutputs(Value):
    """Settle the outputs; answered by `OutputsSettled`. Comes at most once with COMMIT.

    Args:
        ending: how the application ends if this succeeds; recorded in the commit claim.
        parts: in the order of CONTAINER_INDEX; anything else that was stored is removed.
        failed: with COMMIT, parts of failed containers: they are kept apart.
        lost: containers whose task ended without a result after the payload ran; their leftovers are also kept apart.
        dead: all containers whose task ended without a result: their directories are removed afterwards.
        committed: number of trials that were committed separately; they are not among the parts.
    """

    how: Settlement
    ending: ApplicationEnd
    parts: tuple[Part, ...]
    failed: tuple[Part, ...] = ()
    lost: tuple[Part, ...] = ()
    dead: tuple[ContainerId, ...] = ()
    committed: int = 0


class CommitTrial(Value):
    """Commit the output of a trial whose end is recorded; answered by `TrialCommitted`.

    ``again``: an earlier attempt may have committed it.
    """

    part: Part
    again: bool = False


class Finish(Value):
    """Report the end to the engine, and exit."""

    ending: ApplicationEnd


class Abandon(Value):
    """Exit without touching anything: the engine has abandoned this attempt."""

    why: str


class Notify(Value):
    """Notify the user of an event, unless already done.

    Args:
        event: one of `dlapp.values.notification.EVENTS`.
        key: distinguishes events of one kind; the same in every attempt that finds the same event.
        text: for people.
    """

    event: str
    key: str
    text: str


class WriteJournal(Value):
    """Write a record for a next attempt.

    Args:
        record: a JSON object (`dlapp.am.model.journal`).
        durable: it must be durable before later actions are carried out.
    """

    record: dict[str, Any]
    durable: bool = False


Action = (
    StartTask
    | StopContainer
    | CheckStart
    | Assign
    | Refuse
    | SendOrders
    | RefuseStream
    | AnswerStop
    | SettleOutputs
    | CommitTrial
    | Finish
    | Abandon
    | Notify
    | WriteJournal
)
