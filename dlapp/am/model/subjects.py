"""Fields of an application's state (`dlapp.am.model.state`), by subject."""

from __future__ import annotations

import heapq
import math
from collections import deque
from enum import Enum
from typing import TYPE_CHECKING, Any

from dlapp.am.model.events import Settlement
from dlapp.value import Record, field

if TYPE_CHECKING:
    from dlapp.am.model.demand import AvoidedNodes, UsableDevices
    from dlapp.am.model.events import Kill, SoftKill
    from dlapp.am.model.instance import Container, Instance
    from dlapp.am.model.records.recovered import RecoveredState
    from dlapp.cluster.engine import ContainerEnd
    from dlapp.values.ids import ContainerId
    from dlapp.values.messages import CheckpointStatus, LaunchState, MpiLaunch
    from dlapp.values.report import OutputView
    from dlapp.values.usage import Receipt


class Due(Enum):
    """The subject of a container's deadline."""

    HELLO = 1
    SILENCE = 2
    STOP = 3
    SERVICE = 4
    LATE = 5
    TRIALS = 6
    REMOVED = 7


class Deadlines:
    """Deadlines of containers.

    Attributes:
        heap: time [ms of time awake], number, subject and container of each.
    """

    def __init__(self) -> None:
        self.heap: list[tuple[int, int, Due, Container]] = []
        self._count = 0

    def add(self, at_ms: int, what: Due, container: Container) -> None:
        """Add a deadline [ms of time awake]."""
        self._count += 1
        heapq.heappush(self.heap, (at_ms, self._count, what, container))

    def pop_due(self, awake_ms: int) -> tuple[Due, Container] | None:
        """Remove and return the first deadline that has passed; None: none has."""
        if not self.heap or self.heap[0][0] > awake_ms:
            return None
        _, _, what, container = heapq.heappop(self.heap)
        return what, container


class ContainerTable(Record):
    """Containers of the application.

    Attributes:
        by_id: all that were granted and kept.
        live: those not known to have ended.
        open: those of the live ones whose task has not reported a result either.
        released: grants that were released and are not known to have ended.
        gone: containers that ended and were never kept.
    """

    by_id: dict[ContainerId, Container] = field(default_factory=dict)
    live: dict[ContainerId, Container] = field(default_factory=dict)
    open: dict[ContainerId, Container] = field(default_factory=dict)
    released: dict[ContainerId, None] = field(default_factory=dict)
    gone: set[ContainerId] = field(default_factory=set)

    def add(self, container: Container) -> None:
        """Keep a granted container; it is live and open."""
        one = container.container_id
        self.by_id[one] = self.live[one] = self.open[one] = container


class Lifetime(Record):
    """Begin and end of the application, and its limits.

    Attributes:
        started_ms, finished_ms: when its first attempt registered, and when its end was decided and all output settled
            [ms since 1970]; None: not yet.
        runtime_from_ms: begin of the time that ``max_runtime`` limits [ms of time awake].
        killed_until_ms: when the engine is going to kill it [ms of time awake]; infinity: never.
        limit_ms: time between these two [ms].
    """

    started_ms: int | None = None
    finished_ms: int | None = None
    runtime_from_ms: int = 0
    killed_until_ms: float = math.inf
    limit_ms: float = math.inf


class RecoveryProgress(Record):
    """Recovery from earlier attempts (`dlapp.am.decisions.recovery`).

    Attributes:
        unpublished_until_ms: limit for publishing the address [ms of time awake]; 0: it is published.
        former: what the journals of earlier attempts have; None: this is the first attempt, or they are not read yet.
        until_ms: until when tasks of earlier attempts may report [ms of time awake]; None: none is awaited.
        presumed_ends: ends of containers on lost nodes that block every role, until that time.
    """

    unpublished_until_ms: int
    former: RecoveredState | None = None
    until_ms: int | None = None
    presumed_ends: list[ContainerEnd] = field(default_factory=list)


class EngineProperties(Record):
    """Properties of the engine, as it reported them.

    Attributes:
        single_node: the containers run on one machine, so a retry is never elsewhere.
        lists_all: it reports every live container to the next attempt (`Registered.is_complete`).
        changes: role -> differences between what was requested and what its containers got.
    """

    single_node: bool = False
    lists_all: bool = False
    changes: dict[str, str] = field(default_factory=dict)


class NodeConditions(Record):
    """Nodes that are not requested, or were removed.

    Attributes:
        avoided, devices: which nodes not to request.
        removed: hosts that an operator has removed, until the engine grants a container there again.
    """

    avoided: AvoidedNodes
    devices: UsableDevices
    removed: set[str] = field(default_factory=set)


class JournalProgress(Record):
    """Progress of this attempt's journal.

    Attributes:
        lines: number of lines that were written to it, durable or not.
        unrecorded: containers whose index is not yet durable in it, each with its line, in this order.
    """

    lines: int = 0
    unrecorded: deque[tuple[int, Container]] = field(default_factory=deque)


class RequestedStop(Record):
    """Stop by a user or a limit.

    Attributes:
        before_start: request of a stop before the registration.
        by: who requested a soft stop; empty: nobody.
        text: prefix of the diagnostics after a soft stop; None: there is none, or a kill has followed it.
        ends_ms: end of its grace time [ms since 1970]; ``until_ms``: the same [ms of time awake].
    """

    before_start: SoftKill | Kill | None = None
    by: str = ""
    text: str | None = None
    ends_ms: int | None = None
    until_ms: int = 0


class ClosingProgress(Record):
    """Progress of the application's end (`dlapp.am.decisions.shutdown`).

    Attributes:
        stage: 0: in the grace time; 1: containers that are storing may go on; 2: all were stopped.
        until_ms: deadline of the stage [ms of time awake].
        settlement: what to do with the outputs; ``outputs``: their results.
    """

    stage: int = 0
    until_ms: int = 0
    settlement: Settlement = Settlement.DROP
    outputs: tuple[OutputView, ...] = ()


class PayloadChecks(Record):
    """Checks of payloads for signs of life.

    Attributes:
        hangs_ms: time of the last check for hanging payloads [ms of time awake].
        idle_ms: time of the last check for idle GPUs [ms of time awake].
        idle: indexes whose GPUs are idle.
    """

    hangs_ms: int = 0
    idle_ms: int = 0
    idle: tuple[Instance, ...] = ()


class UsageTotals(Record):
    """Usage and cost of the application.

    Attributes:
        receipt, receipt_ms: the last sum of all receipts, and its time [ms of time awake]; None: not summed yet.
        former_series: container -> its usage series, in JSON form, as an earlier attempt wrote it.
    """

    receipt: Receipt | None = None
    receipt_ms: int = 0
    former_series: dict[str, Any] = field(default_factory=dict)


class CheckpointReports(Record):
    """Reports of the tasks on their checkpoints.

    Attributes:
        numbers: index -> the checkpoint numbers that its task last reported.
        newest: index -> its newest checkpoint.
    """

    numbers: dict[int, tuple[int, ...]] = field(default_factory=dict)
    newest: dict[int, CheckpointStatus] = field(default_factory=dict)


class Launches(Record):
    """Launches of processes in other containers by the task of one (`dlapp.am.decisions.gangs.launches`).

    Attributes:
        head: index of that task (`AppSpec.head`); None: there is none.
        requested: its last request.
        states: index -> the last states of launches that its task reported.
    """

    head: int | None
    requested: tuple[MpiLaunch, ...] = ()
    states: dict[int, tuple[LaunchState, ...]] = field(default_factory=dict)


class Notices(Record):
    """Record of the notifications that the user was sent (`dlapp.am.decisions.notices`).

    Attributes:
        waiting_after_ms: how long it lacks containers before the user is notified; None: no notification.
        waits_since_ms: since when it lacks containers [ms since 1970]; None: it does not.
        waiting_notified: whether the user was notified of that.
        idle_spells: how often its GPUs became idle, if the user is notified of that.
        events: kinds and keys of other notified events.
    """

    waiting_after_ms: int | None
    waits_since_ms: int | None
    waiting_notified: bool = False
    idle_spells: int = 0
    events: set[tuple[str, str]] = field(default_factory=set)
