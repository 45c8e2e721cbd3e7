"""State of a CONTAINER_INDEX and of a container in the ApplicationMaster.

An index is waiting (no container), bound to one container, done, or given up. A container is granted; its task says
hello and is bound to one index for life; it reports, sends its result, ends. It is *open* until its result or its end
is known, and *live* until its end is known. An index is never bound while a container to which it was bound is open:
this guarantees that no index runs twice at a time.
"""

from __future__ import annotations

from enum import Enum

from dlapp.am.model.usage_series import UsageSeries
from dlapp.cluster.engine import ContainerEnd, Grant
from dlapp.value import Record, field
from dlapp.values.ids import ContainerId
from dlapp.values.messages import BoardStatus, Orders, PayloadStatus, Phase, StoredOutput, TaskResult
from dlapp.values.report import ContainerView
from dlapp.values.spec import RoleSpec
from dlapp.values.usage import Receipt, Usage


class Stage(Enum):
    """Stage of the application; see `dlapp.am.decisions.master`."""

    STARTING = "starting"
    ACTIVE = "active"
    CLOSING = "closing"
    SETTLING = "settling"
    LEAVING = "leaving"
    ENDED = "ended"


class StopReason(Enum):
    """Reason to stop a container."""

    ENDING = "the application is ending"
    SURPLUS = "there is no work left for this container"
    GANG_RESTARTED = "the whole gang is restarted"
    PREEMPTED = "the container was preempted"
    DECOMMISSIONED = "the node of the container was decommissioned"
    WINDOW = "its gang was not complete within gang_window"
    LATE = "its task did not start in time"
    SILENT = "its task stopped reporting"
    UNCONFIRMED = "its task did not find the new ApplicationMaster in time"
    CONFLICT = "its index runs in another container"
    SERVICE = "it waited for a service that does not answer"


MAX_EARLIER_CONTAINERS = 20
"""Limit of the earlier tries shown per index, so that a view stays small after a thousand preemptions."""


class Instance(Record):
    """State of one CONTAINER_INDEX.

    Attributes:
        container: the container that it is bound to; None: it waits, or `done` is of a container that no longer exists.
        last: the last container it was bound to, for display.
        earlier: the containers before that, the latest `MAX_EARLIER_CONTAINERS` of them, oldest first.
        tries: number of its starts.
        user_faults, node_faults: its ends so far, by responsibility.
        late: a container did not come up for it; counted from the second time on.
        pauses: number of waits before a next try, since its last good run.
        good_since_ms: since when its container has not waited for a service [ms of time awake].
        waits_since_ms: service -> when it first waited for it since its last good run [ms of time awake].
        spent: cost of its containers before the last one; None: there are none, or it is not known.
        stored: outputs of its last accepted result, and their container.
        given_up: it is not retried, and the application continues without it.
        failed: failure by which a deciding index was given up, as text for the user; empty: it was not.
    """

    index: int
    role: RoleSpec
    role_index: int
    container: Container | None = field(default=None, repr=False)
    last: Container | None = field(default=None, repr=False)
    earlier: list[Container] = field(default_factory=list, repr=False)
    tries: int = 0
    user_faults: int = 0
    node_faults: int = 0
    late: bool = False
    pauses: int = 0
    good_since_ms: int = 0
    waits_since_ms: dict[str, int] = field(default_factory=dict)
    spent: Receipt | None = None
    stored: tuple[ContainerId, tuple[StoredOutput, ...]] | None = None
    done: bool = False
    given_up: bool = False
    failed: str = ""

    def add_earlier(self, container: Container) -> None:
        """Keep a former container for display, if it is among the latest or left output."""
        self.earlier.append(container)
        self.earlier.sort(key=lambda one: one.try_number)
        if len(self.earlier) > MAX_EARLIER_CONTAINERS:
            self.earlier.remove(next((one for one in self.earlier if not one.has_output), self.earlier[0]))

    def tries_with_output(self) -> tuple[list[Container], list[Container]]:
        """Return the containers whose output is kept if this index does not succeed, each list oldest first.

        Returns:
            First those that stored a file; then later ones that ended without a result while their payload ran: their
            leftovers are not known.
        """
        stored: list[Container] = []
        lost: list[Container] = []
        for one in filter(None, (*self.earlier, self.last)):
            if one.stored_files:
                stored.append(one)
                lost.clear()
            elif one.ran and one.result is None and one.end is not None:
                lost.append(one)
        return stored, lost


class Container(Record):
    """State of one container that was granted to this attempt, or that an earlier attempt left.

    Attributes:
        place: position of its role in the spec.
        last_contact_ms: time of its task's last message [ms of time awake].
        hello: its task has sent a message to this attempt.
        node_has_it_ms: when its node accepted it [ms of time awake]; None: the node was not reached yet.
        is_preparing: its node has just reported that it is still fetching its files.
        unconfirmed: an earlier attempt left it; it may run an index not yet known to this attempt.
        listed: the engine reports it as live; False: only a journal does.
        renumber: its task may have seen orders of an earlier attempt with higher numbers than ours.
        is_recorded: its index is durable in the journal, if a next attempt depends on that.
        announced: reason for which the engine has announced its end; None: it has not.
        trials_wait_ms: when a trial last failed for a service that is away [ms since 1970]; None: none does.
        presumed_end: its node is lost; it counts as ended once its task has sent its result or is silent for too long.
        generation: gang generation of its last report, and before the first one that of its assignment.
        restored: number of the checkpoint that it restored for its generation (`dlapp.values.messages.Report`).
        ran: its payload of this generation has started.
        payload_ended_ms: when its task first reported the end of its payload of this generation [ms since 1970]; None:
            not reported.
        payload: its payload's last report; None: none. ``reported_ms``: time of the last new report [ms of time awake].
        idle_since_ms: since when its payload has used neither CPU nor GPU [ms of time awake]; None: it uses them, or
            not known.
        gpus_idle_ms: times of the first and the last report with idle GPUs (`dlapp.values.idle_guard`) [ms of time
            awake]; None: they are not idle, or not known.
        board: the TensorBoard beside its payload; None: no TensorBoard.
        kept_until_ms: its payload has failed, and it is kept until then [ms since 1970]; None: it is not kept.
        keep_ends_ms: the same in time awake [ms].
        usage, receipt: last report of its task; None: none yet.
        series: its usage history; None: none was reported.
        waits_since_ms: since when its task waits for a service [ms of time awake]; None: it does not.
        view: cached view of it; None: something changed.
    """

    grant: Grant
    place: int
    started_ms: int
    host: str = ""
    instance: Instance | None = None
    try_number: int = 0
    orders: Orders | None = None
    last_contact_ms: int = 0
    report_number: int = 0
    hello: bool = False
    node_has_it_ms: int | None = None
    is_preparing: bool = False
    unconfirmed: bool = False
    listed: bool = True
    renumber: bool = False
    is_recorded: bool = False
    announced: StopReason | None = None
    presumed_end: ContainerEnd | None = None
    stop_reason: StopReason | None = None
    result: TaskResult | None = None
    end: ContainerEnd | None = None
    finished_ms: int | None = None
    phase: Phase = Phase.STARTING
    progress: float | None = None
    detail: str = ""
    gpus: tuple[int, ...] = ()
    image: str = ""
    address: str | None = None
    generation: int = 0
    restored: int | None = None
    ran: bool = False
    payload_ended_ms: int | None = None
    payload: PayloadStatus | None = None
    reported_ms: int | None = None
    idle_since_ms: int | None = None
    gpus_idle_ms: tuple[int, int] | None = None
    board: BoardStatus | None = None
    kept_until_ms: int | None = None
    keep_ends_ms: int = 0
    usage: Usage | None = None
    receipt: Receipt | None = None
    series: UsageSeries | None = None
    waits_since_ms: int | None = None
    trials_wait_ms: int | None = None
    view: ContainerView | None = None

    def __post_init__(self) -> None:
        self.host = self.host or self.grant.node

    @property
    def container_id(self) -> ContainerId:
        """Return the id of the container."""
        return self.grant.container_id

    @property
    def bound_instance(self) -> Instance:
        """Return the index that it is bound to, of a container that is known to be bound."""
        assert self.instance is not None
        return self.instance

    @property
    def cost(self) -> Receipt | None:
        """Return its receipt, as far as reported by its task; None: nothing was reported."""
        return self.receipt if self.result is None or self.result.receipt is None else self.result.receipt

    @property
    def stored_files(self) -> int:
        """Return the number of files that its task stored."""
        return sum(one.files for one in self.result.outputs) if self.result is not None else 0

    @property
    def has_output(self) -> bool:
        """Return True if its task stored files, or left some that it could not store."""
        return self.stored_files > 0 or (self.result is not None and bool(self.result.unstored))

    @property
    def is_kept(self) -> bool:
        """Return True if its payload has failed, and it is kept for inspection."""
        return self.kept_until_ms is not None and self.result is None and self.end is None

    @property
    def storing(self) -> bool:
        """Return True if the payload has ended and its output is being stored."""
        return self.phase in (Phase.STORING, Phase.RELEASING)
