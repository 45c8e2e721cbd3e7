"""All that one attempt knows of its application, as one value.

Everything that is decided on an event is a change of this value and a list of actions. The functions that decide are in
`dlapp.am.decisions`; the methods here only keep together what must change together.
"""

from __future__ import annotations

import heapq
import math
import random
from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any

from dlapp.am.model import demand, journal
from dlapp.am.model.checkpoints import GangCheckpoints
from dlapp.am.model.events import (
    Action,
    ApplicationEnd,
    Kill,
    Notify,
    SendOrders,
    Settlement,
    SoftKill,
    WriteJournal,
)
from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container, Instance, Stage
from dlapp.am.model.roster import RosterState
from dlapp.am.model.start_gate import StartGate
from dlapp.cluster import ContainerEnd, Grant
from dlapp.value import Value, replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import LaunchState, MpiLaunch
from dlapp.values.report import OutputView
from dlapp.values.spec import Submission
from dlapp.values.usage import Receipt

if TYPE_CHECKING:
    from dlapp.am.model.trials import SweepState

MAX_GAP_MS = 10_000
_STARTS_APART, _MOST_APART = 1_000, 100_000


class Timing(Value):
    """Time limits and intervals [ms of time awake, except those of reports].

    Args:
        hello_ms: from when a node has a task to its first word; if its files are still fetched then, again.
        check_ms: for the node's answer whether they are.
        prepare_ms: how long they may be fetched in all.
        silence_ms: between two reports, before the container is stopped; three report intervals at least.
        recovery_ms: from a new attempt's registration, or from when its address is published, until the tasks of the
            earlier one must have found it: twice the longest pause between two of their looks
            (`dlapp.task.link.am_address`).
        unpublished_ms: how long the address may take for that; as long as what was computed waits for its file system.
        stop_ms: from `Stop.NOW` in a task's orders, which lets it clean up, to the end of its container by the engine.
        repeat_stop_ms: between two requests to end a container whose end is not known.
        exit_ms: from a task's result to the end of its process.
        soft_margin_ms: what a soft stop may take beyond its grace, before containers that are not storing are stopped.
        store_ms: how long those may take that are, besides the application's patience with a file system.
        least_store_ms, most_store_ms: how long before the end of an application's lifetime its grace is over; between
            them a tenth of the lifetime.
        end_ms: from the last request to end containers until the application ends without knowing their ends.
        avoid_ms: how long a node that failed containers is avoided.
        report_every_s: between two reports of a task without news [s]; `most_report_every_s`: in a large application.
        reports_per_s: so many of these come in a second, at most, before they come less often.
    """

    hello_ms: int = 300_000
    check_ms: int = 10_000
    prepare_ms: int = 3_600_000
    silence_ms: int = 60_000
    recovery_ms: int = 120_000
    unpublished_ms: int = 86_400_000
    stop_ms: int = 3_000
    repeat_stop_ms: int = 5_000
    exit_ms: int = 10_000
    soft_margin_ms: int = 10_000
    store_ms: int = 3_600_000
    least_store_ms: int = 10_000
    most_store_ms: int = 600_000
    end_ms: int = 60_000
    avoid_ms: int = 600_000
    report_every_s: float = 10.0
    most_report_every_s: float = 20.0
    reports_per_s: float = 500.0

    def report_interval_s(self, containers: int) -> float:
        """Return the longest silence of a task between two reports, by how many containers there are [s]."""
        return min(max(self.report_every_s, containers / self.reports_per_s), self.most_report_every_s)


class Due(Enum):
    """The subject of a container's deadline."""

    HELLO = 1
    SILENCE = 2
    STOP = 3
    SERVICE = 4
    LATE = 5


def _no_parts(_: ContainerId) -> tuple[str, ...]:
    return ()


class Notices:
    """Part of the state of an application: what it was told that its user is notified of.

    Attributes:
        waits_since_ms: since when it lacks containers [ms since 1970]; None: it does not.
        waiting_told: whether that was said.
        idle_spells: how often its GPUs became idle, where its user is told of that.
        events: kinds and keys of other events that were said.
    """

    def __init__(self, waits_since_ms: int | None) -> None:
        self.waits_since_ms = waits_since_ms
        self.waiting_told = False
        self.idle_spells = 0
        self.events: set[tuple[str, str]] = set()


class ApplicationState:
    """One attempt of one application.

    Args:
        former: what the journals of earlier attempts say (`journal.replay`); None: this is the first.
        parts_of: for each output of the spec, where this container's part goes while it is not committed.
        devices_wait_ms: how long asks for GPUs wait for the first `DeviceCountsRead`; 0: none comes.
        waiting_after_ms: how long it lacks containers before its user is told; None: that is no event.
        chance: for what has to differ between applications; None: a generator of its own.
        start_gate: what it waits for before it asks for containers; None: nothing.

    Attributes:
        stage: see `dlapp.am.decisions.master`.
        instances: by CONTAINER_INDEX; `roles`: in the order of the spec; `conditions`: of those that depend on others.
        gates: those of gangs.
        deciding: the indexes that decide how the application ends; `undecided`: those of them that are not done.
        containers: all that were granted and kept; `live`: those whose end is not known; `open`: those of them whose
            task said no result either.
        released: grants that are given back and whose end is not known; `gone`: containers that ended and were never
            kept.
        presumed_ends: of containers of lost nodes that block every role, until the recovery's deadline.
        journal_lines: how many lines this attempt has written to the journal, on record or not yet.
        unrecorded: containers whose index is not on record yet, each with the line that says it, in this order.
        avoided, devices: which nodes not to ask for.
        roster: where the containers are.
        checkpoints: index -> the numbers of the checkpoints that its task has said last.
        head: `AppSpec.head`; `launches`: what its task last asked for; `launch_states`: index -> what its task last
            said of launches.
        now_ms, awake_ms: the two clocks of `dlapp.am.decisions.master`; names that end in ``until_ms`` are of the
            second one.
        deadlines: a heap of (awake_ms, number, what, container).
        payload_ran: whether any payload has begun, ever.
        stop_before_start: who asked for an end before the engine took us.
        killed_until_ms: when the engine is going to kill it; `lifetime_ms`: how long it may run then; infinity: at no
            time.
        ending: how it ends, once that is decided; `settlement`: what is to become of the outputs then; `outputs`: what
            became of them.
        soft_by, soft_ends_ms: who asked for a soft stop, and when its grace is over; `soft_text`: what the diagnostics
            begin with then.
        single_node: its containers run on one machine, so a next try is never elsewhere.
        engine_lists_all: the engine tells a next attempt of every container that lives (`Registered.is_complete`).
        sweep: its trials; None: it is no sweep.
        service_waits: index -> the service that it waits for now, with a container or without one.
        changes: role -> what its containers got otherwise than was asked for.
        notices: what of the notifications of `dlapp.am.decisions.notices` was said.
        former_series: container -> its use over time, in JSON form, as an earlier attempt wrote it.
        receipt, receipt_ms: the last sum of all receipts, and when it was made [ms of time awake].
        hangs_checked_ms: when it was last looked whether a payload hangs [ms of time awake].
        idle: the indexes whose GPUs are idle; `idle_checked_ms`: when that was last looked at [ms of time awake].
        closing_stage: 0: in the grace time; 1: those that store may go on; 2: all were stopped.
    """

    def __init__(
        self,
        submission: Submission,
        application_id: ApplicationId,
        attempt: int,
        *,
        former: journal.RecoveredState | None = None,
        parts_of: Callable[[ContainerId], tuple[str, ...]] = _no_parts,
        timing: Timing = Timing(),  # noqa: B008 - a tuple, it cannot change
        devices_wait_ms: int = 0,
        waiting_after_ms: int | None = None,
        chance: random.Random | None = None,
        start_gate: StartGate | None = None,
    ) -> None:
        self.submission, self.spec = submission, submission.spec
        self.application_id, self.attempt = application_id, attempt
        self.timing, self.parts_of = timing, parts_of
        self.waiting_after_ms = waiting_after_ms
        self.chance = chance or random.Random()
        self.start_gate = start_gate or StartGate()
        self.stage = Stage.STARTING
        self.instances: list[Instance] = []
        self.roles: list[demand.Role] = []
        gates: dict[str, Gate] = {}
        for gang in self.spec.gangs():
            gate = Gate(gang[0].name, sum(role.instances for role in gang))
            gates |= dict.fromkeys((role.name for role in gang), gate)
        for place, role in enumerate(self.spec.roles):
            first = len(self.instances)
            self.roles.append(demand.Role(place, role, first, gates.get(role.name) or Gate(role.name, 0)))
            self.instances.extend(Instance(first + n, role, n) for n in range(role.instances))
        self.gates = tuple(dict.fromkeys(gates.values()))
        for gate in self.gates:
            gate.checkpoints = self._checkpoints_of(gate)
        by_name = {role.spec.name: role for role in self.roles}
        self.conditions = {
            role: [(by_name[one.role], one.until) for one in role.spec.depends_on]
            for role in self.roles
            if role.spec.depends_on
        }
        self.head = self.spec.head
        self.undecided = {one.index for one in self.instances if self.spec.decides(one.role)}
        if self.head is not None:
            self.undecided = {self.head}
        self.deciding = frozenset(self.undecided)
        self.containers: dict[ContainerId, Container] = {}
        self.live: dict[ContainerId, Container] = {}
        self.open: dict[ContainerId, Container] = {}
        self.released: dict[ContainerId, None] = {}
        self.gone: set[ContainerId] = set()
        self.presumed_ends: list[ContainerEnd] = []
        self.journal_lines = 0
        self.unrecorded: deque[tuple[int, Container]] = deque()
        self.service_waits: dict[int, str] = {}
        self.sweep: SweepState | None = None
        if self.spec.sweep is not None:
            from dlapp.am.model.trials import SweepState  # few applications need it

            self.sweep = SweepState(self.spec.sweep, self.spec.containers)
        self.avoided = demand.AvoidedNodes(timing.avoid_ms)
        self.roster = RosterState(exists=self.spec.has_roster, is_known=attempt == 1)
        self.checkpoints: dict[int, tuple[int, ...]] = {}
        self.launches: tuple[MpiLaunch, ...] = ()
        self.launch_states: dict[int, tuple[LaunchState, ...]] = {}
        self.devices = demand.UsableDevices(devices_wait_ms)
        self.deadlines: list[tuple[int, int, Due, Container]] = []
        self._deadlines_set = 0

        self.now_ms = self.awake_ms = 0
        self.started_ms: int | None = None
        self.finished_ms: int | None = None
        self.runtime_from_ms = 0
        self.killed_until_ms = self.lifetime_ms = math.inf
        self.recovery_until_ms: int | None = None
        self.unpublished_until_ms = timing.unpublished_ms
        self.payload_ran = self.single_node = self.engine_lists_all = False
        self.stop_before_start: SoftKill | Kill | None = None

        self.ending: ApplicationEnd | None = None
        self.settlement = Settlement.DROP
        self.soft_text: str | None = None
        self.soft_by = ""
        self.soft_ends_ms: int | None = None
        self.soft_until_ms = 0
        self.hangs_checked_ms = self.idle_checked_ms = 0
        self.idle: tuple[Instance, ...] = ()
        self.notices = Notices(self.submission.submitted_ms if attempt == 1 else None)
        self.former_series: dict[str, Any] = {}
        self.receipt: Receipt | None = None
        self.receipt_ms = 0
        self.closing_stage = 0
        self.closing_until_ms = 0
        self.outputs: tuple[OutputView, ...] = ()
        self.lack = ""  # what the start or the commit waits for
        self.changes: dict[str, str] = {}
        self.actions: list[Action] = []
        self.former: journal.RecoveredState | None = None
        if former is not None:
            self.recall(former)

    def checkpoint_starts(self, count: int) -> int:
        """Return the number of a start, for the numbers of its checkpoints (`dlapp.values.messages.checkpoints_after`).

        Two applications that go on from the same checkpoint have numbers apart from each other.

        Args:
            count: which start of this application's payload it is, from 1.
        """
        others = self.application_id.number % _MOST_APART if self.submission.checkpoints_of else 0
        return others * _STARTS_APART + count

    def _checkpoints_of(self, gate: Gate) -> GangCheckpoints | None:
        """Return the checkpoints of the members of a gang; None: they have none."""
        roles = [(role, *self.spec.checkpoint_of(role.spec)) for role in self.roles_of(gate)]
        if self.spec.checkpoint is None or roles[0][1] is None:
            return None
        of_every_index = self.spec.checkpoint.is_of_every_index
        stores = [role.indexes if of_every_index else role.indexes[:1] for role, _, stores in roles if stores]
        writers = [index for indexes in stores for index in indexes]
        return GangCheckpoints(gate.size, writers, of_every_index=of_every_index)

    @property
    def awaits_journal(self) -> bool:
        """True if something waits until lines of the journal are on record."""
        return bool(self.unrecorded) or (self.sweep is not None and bool(self.sweep.unrecorded))

    @property
    def commits(self) -> bool:
        """True if its output is to be committed."""
        return self.settlement is Settlement.COMMIT

    def recall(self, former: journal.RecoveredState) -> None:
        """Take what the journals of earlier attempts say; at the latest before the engine's `Registered` is taken."""
        self.former, self.changes = former, dict(former.changes)

    def pass_time(self, now_ms: int) -> None:
        """Set both clocks; however far the first one steps, the second gains at most `MAX_GAP_MS`."""
        if self.now_ms:
            self.awake_ms += min(max(now_ms - self.now_ms, 0), MAX_GAP_MS)
        self.now_ms = now_ms

    def do(self, action: Action) -> None:
        """Decide on an action; `take_actions` returns them in this order."""
        self.actions.append(action)

    def take_actions(self) -> list[Action]:
        """Return what was decided since the last call."""
        actions, self.actions = self.actions, []
        return actions

    def notify(self, event: str, key: str, text: str) -> None:
        """Tell the user of an event (`dlapp.values.notification.EVENTS`).

        Args:
            event: what it is.
            key: tells events of the same kind apart; the same in every attempt that finds the same event.
            text: for people.
        """
        self.do(Notify(event, key, text))

    def note(self, kind: str, durable: bool = False, **fields: Any) -> None:
        """Write a record to the journal (`dlapp.am.model.journal`)."""
        self.journal_lines += 1
        self.do(WriteJournal({"kind": kind, "t": self.now_ms, **fields}, durable))

    def at(self, in_ms: int, what: Due, container: Container) -> None:
        """Set a deadline of a container, so many ms from now."""
        self._deadlines_set += 1
        heapq.heappush(self.deadlines, (self.awake_ms + in_ms, self._deadlines_set, what, container))

    def order(self, container: Container, *, number: int | None = None, **change: Any) -> None:
        """Change a task's orders; their number grows, beyond ``number`` where that is given."""
        assert container.orders is not None
        last = max(container.orders.number, number or 0)
        container.orders = replace(container.orders, number=last + 1, **change)
        self.do(SendOrders(container.container_id, container.orders))

    def role_of(self, container: Container) -> demand.Role:
        """Return a container's role."""
        return self.roles[container.place]

    def role_of_index(self, index: int) -> demand.Role:
        """Return the role of a CONTAINER_INDEX that there is."""
        return next(role for role in self.roles if index in role.indexes)

    def role_of_request(self, request_id: int) -> demand.Role | None:
        """Return the role that a request is of; None: no role has this id."""
        return self.roles[request_id - 1] if 1 <= request_id <= len(self.roles) else None

    def roles_of(self, gate: Gate) -> list[demand.Role]:
        """Return the roles behind a gate."""
        return [role for role in self.roles if role.gate is gate]

    def is_new(self, container_id: ContainerId) -> bool:
        """Return whether nothing is known of this container, not even that it is gone."""
        return not (container_id in self.containers or container_id in self.gone or container_id in self.released)

    def add_container(self, grant: Grant, role: demand.Role) -> Container:
        """Keep a container that was granted; it is live and open."""
        container = Container(grant, role.place, self.now_ms)
        container.heard_ms = self.awake_ms
        container_id = grant.container_id
        self.containers[container_id] = self.live[container_id] = self.open[container_id] = container
        self.note(
            "grant", container=str(container_id), request_id=role.request_id, node=grant.node, log_url=grant.log_url
        )
        return container

    def mark_done(self, instance: Instance) -> None:
        """Record that an index ended well."""
        instance.done = True
        role = self.role_of_index(instance.index)
        role.done.add(instance.index)
        role.begun.add(instance.index)
        role.ready.add(instance.index)
        self.undecided.discard(instance.index)
        self.service_waits.pop(instance.index, None)

    def give_up(self, instance: Instance, failure: str) -> None:
        """Record that an index is not tried again.

        Args:
            instance: the index.
            failure: why, for the user, where the index decides; empty where it does not.
        """
        instance.given_up, instance.failed = True, failure
        self.undecided.discard(instance.index)
        self.service_waits.pop(instance.index, None)
        role = self.role_of_index(instance.index)
        role.take(instance.index)
        role.lost.add(instance.index)

    def take_back(self, instance: Instance) -> None:
        """Record that an index that was given up is tried again, with the rest of its gang."""
        instance.given_up, instance.failed = False, ""
        if instance.index in self.deciding:
            self.undecided.add(instance.index)
        role = self.role_of_index(instance.index)
        role.lost.discard(instance.index)
        role.begun.discard(instance.index)
        role.ready.discard(instance.index)
        role.wait(instance.index)
        self.note_free(instance)

    def note_free(self, instance: Instance, durable: bool = False) -> None:
        """Write down that an index is bound no more and waits."""
        self.note(
            "free",
            durable,
            index=instance.index,
            user_faults=instance.user_faults,
            node_faults=instance.node_faults,
        )

    def note_faults(self, instance: Instance) -> None:
        """Write down how many ends of an index count."""
        faults = {"user_faults": instance.user_faults, "node_faults": instance.node_faults}
        self.note("faults", True, index=instance.index, **faults)

    def mark_not_done(self, instance: Instance) -> None:
        """Record that an index is to run again; what it stored before does not count."""
        role = self.role_of_index(instance.index)
        role.begun.discard(instance.index)
        role.ready.discard(instance.index)
        role.done.discard(instance.index)
        if instance.done:
            instance.done, instance.stored = False, None
            if instance.index in self.deciding:
                self.undecided.add(instance.index)
