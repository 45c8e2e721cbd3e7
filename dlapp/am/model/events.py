"""Events of an application, and the actions that follow from them.

Events are the values that arrive anyway, and a few of ours; each goes to `Master.handle` with the time:

    cluster.Registered     the engine took us
    cluster.Heartbeat      what the engine has to say; it may come twice, or what it says may be known
    control.Hello          a task's first word; answered by `Assign` or `Refuse`, at once or with a later event
    control.Report         a task's news; answered by the container's orders, held back until they are newer
    Tick                   time passes; at least once in two seconds while nothing else happens
    SoftKill, Kill         somebody wants an end; answered by `AnswerStop` in the same list
    SettlementWaits        the commit waits for space
    TrialsTakenOver        what a sweep goes on from
    OutputsSettled         the answer to `SettleOutputs`
    DeviceCountsRead       hosts that are short of healthy GPUs
    OthersEnded            other applications that this one waits for have ended
    Release                somebody lets it start; answered by `AnswerStop`
    Published              tasks of an earlier attempt can find this one from now on
    JournalWritten         a next attempt would read these lines
    OpenStream             somebody wants a stream to a container; answered by its orders, or by `RefuseStream`

What is wanted of the engine is no action but a state, `Master.asks()` and `Master.releases()`, said with every
heartbeat: one that was lost or came twice does no harm.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from dlapp.cluster import Grant, Heartbeat, Registered
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
    """End the payloads with SIGTERM and keep what they stored."""

    by: str


class Kill(Value):
    """End everything now and keep nothing."""

    by: str


class ApplicationEnd(Value):
    """End of an application, as the engine is told."""

    final_status: FinalStatus
    cause: Cause
    diagnostics: str


class DeviceCountsRead(Value):
    """The ledger was read.

    Args:
        usable: how many GPUs may be given out on hosts where some may not.
    """

    usable: Mapping[str, int]


class OthersEnded(Value):
    """Ends of other applications were looked for.

    Args:
        ends: application -> how it ended (`dlapp.values.start_conditions`), for those that have.
        unread: why the ends of the others cannot be read now; empty: they were.
    """

    ends: Mapping[str, str]
    unread: str = ""


class Release(Value):
    """Let the application start, if it is held."""

    by: str


class Published(Value):
    """Publication of the address of this attempt, for the tasks of an earlier one."""


class JournalWritten(Value):
    """Lines of this attempt's journal are on record.

    Args:
        lines: how many of them, from the first `WriteJournal` on.
    """

    lines: int


class FormerTrial(Value, kw_only=True):
    """A trial of a sweep that this one goes on from, which does not run again.

    Args:
        view: what it came to.
        outputs, sources: what it stored, by the names of the outputs, and where that is.
        is_committed: it is where this sweep would commit it.
    """

    view: TrialView
    outputs: tuple[StoredOutput, ...] = ()
    sources: tuple[str, ...] = ()
    is_committed: bool = False


class TrialsTakenOver(Value):
    """The trials of the sweep that this one goes on from."""

    trials: tuple[FormerTrial, ...]


class TrialCommitted(Value):
    """The output of a trial is where it belongs, or cannot be brought there now.

    Args:
        number: of the trial.
        error: why it cannot; the end of the application tries again. Empty: it is there.
    """

    number: int
    error: str = ""


class OpenStream(Value, kw_only=True):
    """Open a stream to a container.

    Args:
        index: CONTAINER_INDEX.
        order: what its task is told.
        pending: numbers of the streams that somebody still waits for.
    """

    index: int
    order: StreamOrder
    pending: frozenset[int] = frozenset()


class SettlementWaits(Value):
    """The commit waits, for space or for a file system; ``lack`` says for what."""

    lack: str


class OutputsSettled(Value):
    """The outputs are where they belong, or it cannot be done.

    Args:
        outputs: what became of each output of the spec.
        error: why it failed, one line; None: it did not.
        ended: where another attempt's commit claim was there first: how the application ended by that claim.
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
    """End a container, whatever runs in it; said again until its end is known."""

    container_id: ContainerId


class CheckStart(Value):
    """Find out whether a container's node still brings what its task needs; answered by `Heartbeat.preparing`."""

    container_id: ContainerId


class Assign(Value):
    """Answer a task's hello: this is your work."""

    container_id: ContainerId
    assignment: Assignment


class Refuse(Value):
    """Answer a task's hello: there is no work for you, end."""

    container_id: ContainerId
    why: str


class SendOrders(Value):
    """New orders for a task: the answer to its report that is held back, or else to its next one."""

    container_id: ContainerId
    orders: Orders


class RefuseStream(Value):
    """Answer an `OpenStream`: there is none.

    Args:
        number: of its order.
        why: for the user.
        is_unknown: there is no such container, now or ever.
    """

    number: int
    why: str
    is_unknown: bool = False


class AnswerStop(Value):
    """Answer the `SoftKill` or `Kill` that was just handed in."""

    answer: StopAnswer


class Settlement(Enum):
    """Kind of settlement of the outputs."""

    COMMIT = "commit"
    """Swap the parts in under the target."""
    KEEP = "keep"
    """Put the parts aside as the target's ``.partial``, or drop them where the output's `OnFailure` says so."""
    DROP = "drop"
    """Remove all that was stored under temporary names."""


class Part(Value):
    """Complete output of one container; of each CONTAINER_INDEX at most one part counts.

    Args:
        trial: it is the output of one try of a trial (`dlapp.values.ids.trial_part`), and ``index`` is the trial's
            number.
        sources: for each of ``outputs``, where it is to be copied from; empty: it is in its place.
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
        """Name of the directory that it is stored in, beside the target."""
        return self.trial or self.container_id


def in_order(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Sort parts by CONTAINER_INDEX."""
    return tuple(sorted(parts, key=lambda part: (part.index, part.container_id)))


class SettleOutputs(Value):
    """Put the outputs where they belong; answered by `OutputsSettled`. Comes at most once with COMMIT.

    Args:
        ending: how the application ends if this succeeds; the commit claim carries it.
        parts: in the order of CONTAINER_INDEX; what was stored beside them is removed.
        failed: with COMMIT, what containers stored that failed: it is put aside.
        lost: containers whose task ended without a result after the payload ran; what they left is put aside, too.
        dead: all containers whose task ended without a result: their directories are cleared after that.
        committed: how many trials have been committed by themselves; they are not among the parts.
    """

    how: Settlement
    ending: ApplicationEnd
    parts: tuple[Part, ...]
    failed: tuple[Part, ...] = ()
    lost: tuple[Part, ...] = ()
    dead: tuple[ContainerId, ...] = ()
    committed: int = 0


class CommitTrial(Value):
    """Put the output of a trial where it belongs, which has ended on record; answered by `TrialCommitted`.

    Args:
        part: what it stored.
        again: an earlier attempt may have done it.
    """

    part: Part
    again: bool = False


class Finish(Value):
    """Tell the engine how it ended, and end."""

    ending: ApplicationEnd


class Abandon(Value):
    """The engine wants no more of this attempt: end the process, touch nothing."""

    why: str


class Notify(Value):
    """Tell the user of an event, if that was not done before.

    Args:
        event: one of `dlapp.values.notification.EVENTS`.
        key: tells events of the same kind apart; the same in every attempt that finds the same event.
        text: for people.
    """

    event: str
    key: str
    text: str


class WriteJournal(Value):
    """Write this down for a next attempt.

    Args:
        record: a JSON object (`dlapp.am.model.journal`).
        durable: it must be on the disk before the actions after it are carried out.
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
