"""What one attempt knows of its application, and the few ways in which it changes or says anything.

This is the lowest layer of the mind; the others are built on it, each knowing only those under it:

    master     events: from the engine, from tasks
    recovery   what an earlier attempt left
    faults     ends of containers, and what becomes of their indexes
    work       indexes bound to containers, the gate
    closing    how it ends
    books      this
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import replace
from enum import Enum
from typing import Any, NamedTuple

from dlapp.am import demand, journal
from dlapp.am.events import Action, Ending, Journal, Kill, SendOrders, Settlement, SoftKill, StopContainer
from dlapp.am.instance import Container, Instance, Stage, Why
from dlapp.cluster import Grant
from dlapp.control import Fault, Stop, TaskResult
from dlapp.ids import ApplicationId, ContainerId
from dlapp.report import OutputView
from dlapp.spec import Submission


class Timing(NamedTuple):
    """How long what may take [ms of time awake, except `report_every_s`].

    Args:
        hello_ms: from the start of a task to its first word; on a cluster its files are fetched in that time.
        silence_ms: between two reports, before the container is stopped; six report intervals.
        recovery_ms: from a new attempt's registration, or from when its address is published, until the tasks of the
            earlier one must have found it.
        unpublished_ms: how long the address may take for that; as long as what was computed waits for its file system.
        stop_ms: from `Stop.NOW` in a task's orders, which lets it clean up, to the end of its container by the engine.
        repeat_stop_ms: between two requests to end a container whose end is not known.
        exit_ms: from a task's result to the end of its process.
        soft_margin_ms: what a soft stop may take beyond its grace, before containers that are not storing are stopped.
        store_ms: how long those may take that are.
        end_ms: from the last request to end containers until the application ends without knowing their ends.
        avoid_ms: how long a node that failed a container is avoided.
    """

    hello_ms: int = 300_000
    silence_ms: int = 60_000
    recovery_ms: int = 60_000
    unpublished_ms: int = 86_400_000
    stop_ms: int = 3_000
    repeat_stop_ms: int = 5_000
    exit_ms: int = 10_000
    soft_margin_ms: int = 10_000
    store_ms: int = 3_600_000
    end_ms: int = 60_000
    avoid_ms: int = 600_000
    report_every_s: float = 10.0


class Due(Enum):
    """What a container's deadline is about."""

    HELLO = 1
    SILENCE = 2
    STOP = 3


def _no_parts(_: ContainerId) -> tuple[str, ...]:
    return ()


class Books:
    """One attempt of one application.

    Args:
        former: what the journals of earlier attempts say (`journal.replay`); None: this is the first.
        parts_of: for each output of the spec, where this container's part goes while it is not committed.
        cards_wait_ms: how long asks for GPUs wait for the first `CardsSeen`; 0: none comes.
        published: whether tasks of an earlier attempt can find this one from the first moment; else `Published` comes.

    Attributes (for looking at; only `Master.handle` changes them):
        stage: see `dlapp.am.master`.
        instances: by CONTAINER_INDEX.
        containers: all that were granted and kept; `live`: those whose end is not known; `open`: those of them whose
            task said no result either.
        now_ms, awake_ms: the two clocks of `dlapp.am.master`.
        payload_ran: whether any payload has begun, ever.
        ending: how it ends, once that is decided; `outputs`: what became of them.
        soft_by, soft_ends_ms: who asked for a soft stop, and when its grace is over.
    """

    def __init__(
        self,
        submission: Submission,
        application_id: ApplicationId,
        attempt: int,
        *,
        former: journal.Former | None = None,
        parts_of: Callable[[ContainerId], tuple[str, ...]] = _no_parts,
        timing: Timing = Timing(),  # noqa: B008 - a tuple, it cannot change
        cards_wait_ms: int = 0,
        published: bool = True,
    ) -> None:
        self.submission, self.spec = submission, submission.spec
        self.application_id, self.attempt = application_id, attempt
        self.timing = timing
        self._former, self._parts_of = former, parts_of
        self.stage = Stage.STARTING
        self.instances: list[Instance] = []
        self.roles: list[demand.Role] = []
        for place, role in enumerate(self.spec.roles):
            first = len(self.instances)
            self.roles.append(demand.Role(place, role, first))
            self.instances.extend(Instance(first + n, role, n) for n in range(role.instances))
        every_role_serves = all(role.service for role in self.spec.roles)
        self._undecided = {one.index for one in self.instances if every_role_serves or not one.role.service}
        self._deciding = frozenset(self._undecided)
        self.containers: dict[ContainerId, Container] = {}
        self.live: dict[ContainerId, Container] = {}
        self.open: dict[ContainerId, Container] = {}
        self._released: dict[ContainerId, None] = {}
        self._gone: set[ContainerId] = set()
        self._avoided = demand.AvoidedNodes(timing.avoid_ms)
        self._cards = demand.KnownCards(cards_wait_ms)
        self._due: list[tuple[int, int, Due, Container]] = []
        self._due_count = 0

        self.now_ms = self.awake_ms = 0
        self.started_ms: int | None = None
        self.finished_ms: int | None = None
        self._runtime_from_ms = 0
        self._recovery_until_ms: int | None = None
        self._unpublished_until_ms = 0 if published else timing.unpublished_ms
        self.payload_ran = False
        self._stop_before_start: SoftKill | Kill | None = None

        self.ending: Ending | None = None
        self._how = Settlement.DROP
        self._soft_words: str | None = None
        self.soft_by = ""
        self.soft_ends_ms: int | None = None
        self._soft_ends_awake_ms = 0
        self._closing_stage = 0
        self._closing_until_ms = 0
        self.outputs: tuple[OutputView, ...] = ()
        self._actions: list[Action] = []

    @property
    def commits(self) -> bool:
        """Whether its output is to be committed."""
        return self._how is Settlement.COMMIT

    def _do(self, action: Action) -> None:
        self._actions.append(action)

    def _note(self, kind: str, durable: bool = False, **fields: Any) -> None:
        self._do(Journal({"kind": kind, "t": self.now_ms, **fields}, durable))

    def _at(self, in_ms: int, what: Due, container: Container) -> None:
        self._due_count += 1
        heapq.heappush(self._due, (self.awake_ms + in_ms, self._due_count, what, container))

    def _role(self, request_id: int) -> demand.Role | None:
        return self.roles[request_id - 1] if 1 <= request_id <= len(self.roles) else None

    def _place(self, instance: Instance) -> int:
        assert instance.last is not None
        return instance.last.place

    def _place_of_index(self, index: int) -> int:
        return next(role.place for role in self.roles if index in role.indexes)

    def _is_new(self, container_id: ContainerId) -> bool:
        return not (container_id in self.containers or container_id in self._gone or container_id in self._released)

    def _order(self, container: Container, *, number: int | None = None, **change: Any) -> None:
        """Change a task's orders; their number grows, beyond ``number`` where that is given."""
        assert container.orders is not None
        last = max(container.orders.number, number or 0)
        container.orders = replace(container.orders, number=last + 1, **change)
        self._do(SendOrders(container.container_id, container.orders))

    def _words(self, why: Why) -> str:
        """What a task is told of its stop."""
        return (self.ending.diagnostics if self.ending and why is Why.ENDING else "") or why.value

    def _stop(self, container: Container, why: Why, *, at_once: bool = False) -> None:
        """End a container: by its orders first, so that its task can clean up, where it listens; then by the engine."""
        if container.end is not None:
            return
        container.why = container.why or why
        container.view = None
        self.roles[container.place].unbound.pop(container.container_id, None)
        self.roles[container.place].held.pop(container.container_id, None)
        listens = container.orders is not None and container.hello
        if listens and container.orders and container.orders.stop is not Stop.NOW:
            self._order(container, stop=Stop.NOW, why=self._words(why), go=False)
        if listens and not at_once:
            self._at(self.timing.stop_ms, Due.STOP, container)
        else:
            self._do(StopContainer(container.container_id))
            self._at(self.timing.repeat_stop_ms, Due.STOP, container)

    def _stop_all(self) -> None:
        for container in list(self.open.values()):
            self._stop(container, Why.ENDING)

    def _done(self, instance: Instance) -> None:
        instance.done = True
        self._undecided.discard(instance.index)

    def _take_stored(self, instance: Instance, container: Container, result: TaskResult) -> None:
        if result.fault is Fault.NONE or result.outputs:
            instance.stored = (container.container_id, result.outputs)

    def _keep(self, grant: Grant, role: demand.Role) -> Container:
        container = Container(grant, role.place, self.now_ms)
        container.heard_ms = self.awake_ms
        container_id = grant.container_id
        self.containers[container_id] = self.live[container_id] = self.open[container_id] = container
        self._note(
            "grant", container=str(container_id), request_id=role.request_id, node=grant.node, log_url=grant.log_url
        )
        return container
