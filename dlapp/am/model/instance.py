"""One CONTAINER_INDEX and one container, as the ApplicationMaster knows them.

An index is waiting (no container), bound to one container, done, or given up. A container is granted, its task says
hello and is bound to an index for life, reports, says its result, ends. It is *open* until its result or its end is
known, and *live* until its end is known. An index is never bound while a container that it was bound to is open: that
is the whole of the promise that no index runs twice at a time.
"""

from __future__ import annotations

from enum import Enum

from dlapp.cluster import ContainerEnd, Grant
from dlapp.ids import ContainerId
from dlapp.messages import Orders, Phase, StoredOutput, TaskResult
from dlapp.report import ContainerView
from dlapp.spec import RoleSpec


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
    LATE = "its task did not start in time"
    SILENT = "its task stopped reporting"
    UNVOUCHED = "its task did not find the new ApplicationMaster in time"
    CONFLICT = "its index runs in another container"


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
        pauses: how often it had to wait before a next try.
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
        "index",
        "last",
        "node_faults",
        "pauses",
        "role",
        "role_index",
        "stored",
        "tries",
        "user_faults",
    )

    def __init__(self, index: int, role: RoleSpec, role_index: int) -> None:
        self.index, self.role, self.role_index = index, role, role_index
        self.container: Container | None = None
        self.last: Container | None = None
        self.earlier: list[Container] = []
        self.tries = self.user_faults = self.node_faults = self.pauses = 0
        self.done = self.given_up = False
        self.failed = ""
        self.stored: tuple[ContainerId, tuple[StoredOutput, ...]] | None = None

    def add_earlier(self, container: Container) -> None:
        """Keep a container that it was bound to for those who look, if it is among the latest."""
        self.earlier.append(container)
        self.earlier.sort(key=lambda one: one.try_number)
        del self.earlier[:-MOST_EARLIER]


class Container:
    """One container that was granted to us, or that an earlier attempt left.

    Attributes:
        place: its role's place in the spec.
        heard_ms: when its task last spoke, in time that the ApplicationMaster was awake.
        hello: its task has spoken to this attempt.
        unvouched: an earlier attempt left it; it may run an index, and this attempt has not heard which.
        listed: the engine says that it lives; False: only a journal does.
        renumber: its task may have seen orders of an earlier attempt with higher numbers than ours.
        presumed_end: its node is lost; this is its end as soon as its task has said its result or fallen silent.
        ran: its payload has begun.
        view: the last view made of it; None: something changed.
    """

    __slots__ = (
        "address",
        "detail",
        "end",
        "finished_ms",
        "gpus",
        "grant",
        "heard_ms",
        "hello",
        "host",
        "image",
        "instance",
        "listed",
        "orders",
        "phase",
        "place",
        "presumed_end",
        "progress",
        "ran",
        "renumber",
        "report_number",
        "result",
        "started_ms",
        "stop_reason",
        "try_number",
        "unvouched",
        "view",
    )

    def __init__(self, grant: Grant, place: int, started_ms: int) -> None:
        self.grant, self.place, self.started_ms = grant, place, started_ms
        self.host = grant.node
        self.instance: Instance | None = None
        self.orders: Orders | None = None
        self.phase = Phase.STARTING
        self.progress: float | None = None
        self.detail = ""
        self.gpus: tuple[int, ...] = ()
        self.image = ""
        self.address: str | None = None
        self.result: TaskResult | None = None
        self.end: ContainerEnd | None = None
        self.presumed_end: ContainerEnd | None = None
        self.stop_reason: StopReason | None = None
        self.view: ContainerView | None = None
        self.finished_ms: int | None = None
        self.heard_ms = self.report_number = self.try_number = 0
        self.hello = self.ran = self.unvouched = self.renumber = False
        self.listed = True

    @property
    def container_id(self) -> ContainerId:
        """Id of the container."""
        return self.grant.container_id

    @property
    def storing(self) -> bool:
        """True if the payload has ended and its output is being stored."""
        return self.phase in (Phase.STORING, Phase.RELEASING)
