"""One CONTAINER_INDEX and one container, as the ApplicationMaster knows them.

An index is waiting (no container), bound to one container, done, or given up. A container is granted, its task says
hello and is bound to an index for life, reports, says its result, ends. It is *open* until its result or its end is
known, and *live* until its end is known. An index is never bound while a container that it was bound to is open: that
is the whole of the promise that no index runs twice at a time.
"""

from __future__ import annotations

from enum import Enum

from dlapp.am.model.usage_series import UsageSeries
from dlapp.cluster import ContainerEnd, Grant
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
    """Reason for stopping a container."""

    ENDING = "the application is ending"
    SURPLUS = "there is no work left for this container"
    RECALLED = "the whole gang is restarted"
    PREEMPTED = "the container was preempted"
    WINDOW = "its gang was not complete within gang_window"
    LATE = "its task did not start in time"
    SILENT = "its task stopped reporting"
    UNVOUCHED = "its task did not find the new ApplicationMaster in time"
    CONFLICT = "its index runs in another container"
    SERVICE = "it waited for a service that does not answer"


MOST_EARLIER = 20
"""How many tries of an index, besides its last one, are shown; after a thousand preemptions a view stays small."""


class Instance:
    """One CONTAINER_INDEX.

    Attributes:
        container: what it is bound to; None: it waits, or `done` is of a container that is no more.
        last: the last container it was bound to, for those who look.
        earlier: those before it, the latest `MOST_EARLIER` of them, oldest first.
        tries: how often it was started.
        user_faults, node_faults: its ends so far, by fault.
        late: a container did not come up for it, which is counted from the second time on.
        pauses: how often it had to wait before a next try, since it last ran well.
        good_since_ms: since when its container has not waited for a service [ms of time awake].
        waits_since_ms: service -> when it first waited for it, since it last ran well [ms of time awake].
        spent: what its containers before the last one have cost; None: there are none, or it is not known.
        stored: what its last accepted result left, and from which container.
        given_up: it is not tried again, and the application goes on without it.
        failed: the failure by which an index that decides was given up, for the user; empty: it was not.
    """

    __slots__ = (
        "container",
        "done",
        "earlier",
        "failed",
        "given_up",
        "good_since_ms",
        "index",
        "last",
        "late",
        "node_faults",
        "pauses",
        "role",
        "role_index",
        "spent",
        "stored",
        "tries",
        "user_faults",
        "waits_since_ms",
    )

    def __init__(self, index: int, role: RoleSpec, role_index: int) -> None:
        self.index, self.role, self.role_index = index, role, role_index
        self.container: Container | None = None
        self.last: Container | None = None
        self.earlier: list[Container] = []
        self.tries = self.user_faults = self.node_faults = self.pauses = self.good_since_ms = 0
        self.waits_since_ms: dict[str, int] = {}
        self.done = self.given_up = self.late = False
        self.failed = ""
        self.spent: Receipt | None = None
        self.stored: tuple[ContainerId, tuple[StoredOutput, ...]] | None = None

    def add_earlier(self, container: Container) -> None:
        """Keep a container that it was bound to for those who look, if it is among the latest or left output."""
        self.earlier.append(container)
        self.earlier.sort(key=lambda one: one.try_number)
        if len(self.earlier) > MOST_EARLIER:
            self.earlier.remove(next((one for one in self.earlier if not one.has_output), self.earlier[0]))

    def tries_with_output(self) -> tuple[list[Container], list[Container]]:
        """Return the containers whose output is kept if this index does not succeed, each list oldest first.

        Returns:
            Those that stored a file; and later ones that ended without a result while their payload ran: what they
            left is not known.
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


class Container:
    """One container that was granted to us, or that an earlier attempt left.

    Attributes:
        place: its role's place in the spec.
        heard_ms: when its task last spoke, in time that the ApplicationMaster was awake.
        hello: its task has spoken to this attempt.
        node_has_it_ms: since when its node has it [ms of time awake]; None: the node was not reached yet.
        is_preparing: its node said a moment ago that it still fetches its files.
        unvouched: an earlier attempt left it; it may run an index, and this attempt has not heard which.
        listed: the engine says that it lives; False: only a journal does.
        renumber: its task may have seen orders of an earlier attempt with higher numbers than ours.
        is_recorded: the index that it is bound to is on record, where a next attempt depends on that.
        preempted: the engine has said that it will take the container away.
        presumed_end: its node is lost; this is its end as soon as its task has said its result or fallen silent.
        generation: of its gang: that of the last report, and before the first one that of its work.
        restored: number of the checkpoint that it has restored for its generation (`dlapp.values.messages.Report`).
        ran: its payload of this generation has begun.
        payload_ended_ms: when its task first said that its payload of this generation had ended [ms since 1970]; None:
            it has not, or that was not said.
        payload: what its payload has said; None: nothing. ``reported_ms``: when it said something new last [ms of time
            awake].
        idle_since_ms: since when its payload has used neither CPU nor GPU [ms of time awake]; None: it does, or that is
            not known.
        gpus_idle_ms: the first and the last report of those since which its GPUs are idle (`dlapp.values.idle_guard`)
            [ms of time awake]; None: they are not, or that is not known.
        board: the TensorBoard beside its payload; None: there is none.
        kept_until_ms: its payload has failed, and it is kept until then [ms since 1970]; None: it is not kept.
        keep_ends_ms: the same in time awake [ms].
        usage, receipt: as its task reported them last; None: not yet.
        series: its use over time; None: none was reported.
        waits_since_ms: since when its task waits for a service [ms of time awake]; None: it does not.
        view: the last view made of it; None: something changed.
    """

    __slots__ = (
        "address",
        "board",
        "detail",
        "end",
        "finished_ms",
        "generation",
        "gpus",
        "gpus_idle_ms",
        "grant",
        "heard_ms",
        "hello",
        "host",
        "idle_since_ms",
        "image",
        "instance",
        "is_preparing",
        "is_recorded",
        "keep_ends_ms",
        "kept_until_ms",
        "listed",
        "node_has_it_ms",
        "orders",
        "payload",
        "payload_ended_ms",
        "phase",
        "place",
        "preempted",
        "presumed_end",
        "progress",
        "ran",
        "receipt",
        "renumber",
        "report_number",
        "reported_ms",
        "restored",
        "result",
        "series",
        "started_ms",
        "stop_reason",
        "try_number",
        "unvouched",
        "usage",
        "view",
        "waits_since_ms",
    )

    def __init__(self, grant: Grant, place: int, started_ms: int) -> None:
        self.grant, self.place, self.started_ms = grant, place, started_ms
        self.host = grant.node
        self.instance: Instance | None = None
        self.orders: Orders | None = None
        self.phase = Phase.STARTING
        self.progress: float | None = None
        self.payload: PayloadStatus | None = None
        self.reported_ms: int | None = None
        self.idle_since_ms: int | None = None
        self.gpus_idle_ms: tuple[int, int] | None = None
        self.detail = ""
        self.gpus: tuple[int, ...] = ()
        self.image = ""
        self.restored: int | None = None
        self.address: str | None = None
        self.board: BoardStatus | None = None
        self.result: TaskResult | None = None
        self.end: ContainerEnd | None = None
        self.presumed_end: ContainerEnd | None = None
        self.stop_reason: StopReason | None = None
        self.view: ContainerView | None = None
        self.usage: Usage | None = None
        self.receipt: Receipt | None = None
        self.series: UsageSeries | None = None
        self.finished_ms: int | None = None
        self.payload_ended_ms: int | None = None
        self.waits_since_ms: int | None = None
        self.kept_until_ms: int | None = None
        self.keep_ends_ms = 0
        self.node_has_it_ms: int | None = None
        self.heard_ms = self.report_number = self.try_number = self.generation = 0
        self.hello = self.ran = self.unvouched = self.renumber = self.is_preparing = self.is_recorded = False
        self.preempted = False
        self.listed = True

    @property
    def container_id(self) -> ContainerId:
        """Id of the container."""
        return self.grant.container_id

    @property
    def cost(self) -> Receipt | None:
        """Receipt of it, as far as its task has said; None: nothing was said."""
        return self.receipt if self.result is None or self.result.receipt is None else self.result.receipt

    @property
    def stored_files(self) -> int:
        """Number of files that its task stored."""
        return sum(one.files for one in self.result.outputs) if self.result is not None else 0

    @property
    def has_output(self) -> bool:
        """True if its task stored files, or left some that it could not store."""
        return self.stored_files > 0 or (self.result is not None and bool(self.result.unstored))

    @property
    def is_kept(self) -> bool:
        """True if its payload has failed, and it is kept for those who want to look into it."""
        return self.kept_until_ms is not None and self.result is None and self.end is None

    @property
    def storing(self) -> bool:
        """True if the payload has ended and its output is being stored."""
        return self.phase in (Phase.STORING, Phase.RELEASING)
