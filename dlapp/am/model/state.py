"""State of one attempt of an application, as one value.

Each decision on an event is a change of this value and a list of actions. The decision functions are in
`dlapp.am.decisions`; the methods here only keep related fields consistent.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlapp.am.model import demand
from dlapp.am.model.checkpoints import GangCheckpoints
from dlapp.am.model.events import (
    Action,
    ApplicationEnd,
    Notify,
    SendOrders,
    Settlement,
    WriteJournal,
)
from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container, Instance, Stage
from dlapp.am.model.records.containers import GrantRecord
from dlapp.am.model.records.indexes import FaultsRecord, FreeRecord
from dlapp.am.model.roster_state import RosterState
from dlapp.am.model.start_gate import StartGate
from dlapp.am.model.subjects import (
    CheckpointReports,
    ClosingProgress,
    ContainerTable,
    Deadlines,
    Due,
    EngineProperties,
    JournalProgress,
    Launches,
    Lifetime,
    NodeConditions,
    Notices,
    PayloadChecks,
    RecoveryProgress,
    RequestedStop,
    UsageTotals,
)
from dlapp.cluster.engine import Grant
from dlapp.value import Value, replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import AppSpec, Submission

if TYPE_CHECKING:
    from dlapp.am.model.records.record import JournalRecord
    from dlapp.am.model.records.recovered import RecoveredState
    from dlapp.am.model.trials import SweepState

MAX_GAP_MS = 10_000
_STARTS_APART, _MAX_APART = 1_000, 100_000


class Timing(Value):
    """Time limits and intervals [ms of time awake, except those of reports].

    Args:
        hello_ms: from the node's acceptance of a task to the task's first message; restarted if its files are still
            being fetched.
        check_ms: for the node's answer to that question.
        prepare_ms: limit of the whole fetch.
        silence_ms: between two reports, before the container is stopped; at least three report intervals.
        recovery_ms: from the registration of a new attempt, or from the publication of its address, until the tasks of
            the earlier attempt must have found it: twice their longest poll interval (`dlapp.task.link.am_address`).
        unpublished_ms: limit for publishing the address; the same as for output that waits for its file system.
        stop_ms: from `Stop.NOW` in a task's orders, which lets it clean up, until the engine ends its container.
        repeat_stop_ms: between two requests to end a container whose end is not known.
        exit_ms: from a task's result to the end of its process.
        soft_margin_ms: allowance of a soft stop beyond its grace time, before containers that are not storing are
            stopped.
        store_ms: allowance for those that are storing, in addition to the application's patience with a file system.
        least_store_ms, most_store_ms: bounds of the time between the end of the grace time and the end of the
            application's lifetime; between the bounds it is a tenth of the lifetime.
        end_ms: from the last request to end containers until the application ends without knowing their ends.
        avoid_ms: how long a node that failed containers is avoided.
        report_every_s: between two reports of a task without news [s]; `most_report_every_s`: in a large application.
        reports_per_s: limit of such reports per second; above it the interval grows.
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
        """Return the longest interval between two reports of a task, by the number of containers [s]."""
        return min(max(self.report_every_s, containers / self.reports_per_s), self.most_report_every_s)


class ApplicationState:
    """One attempt of one application.

    Args:
        former: replayed journals of earlier attempts (`dlapp.am.model.journal`); None: this is the first attempt.
        parts_of: for each output of the spec, the location of this container's part until it is committed.
        devices_wait_ms: how long requests for GPUs wait for the first `DeviceCountsRead`; 0: none follows.
        waiting_after_ms: how long it lacks containers before the user is notified; None: no notification.
        chance: random generator for values that differ between applications; None: a new generator.
        start_gate: what it waits for before it requests containers; None: nothing.

    Attributes:
        stage: see `dlapp.am.decisions.master`.
        now_ms, awake_ms: the two clocks of `dlapp.am.decisions.master`; names that end in ``until_ms`` use the second
            one.
        roles: in the order of the spec; `instances`: by CONTAINER_INDEX.
        gates: start gates of the gangs; `conditions`: of roles that depend on others.
        deciding: the indexes that decide how the application ends; `undecided`: those of them that are not done.
        sweep: its trials; None: not a sweep.
        service_waits: index -> the service that it waits for now, with or without a container.
        payload_ran: whether any payload has started.
        waiting_for: what the start or the commit waits for; empty: nothing.
        ending: how it ends, once decided.

    The others are described by their classes (`dlapp.am.model.subjects`, `RosterState`, `StartGate`).
    """

    def __init__(
        self,
        submission: Submission,
        application_id: ApplicationId,
        attempt: int,
        *,
        former: RecoveredState | None = None,
        parts_of: Callable[[ContainerId], tuple[str, ...]] = lambda _: (),
        timing: Timing = Timing(),  # noqa: B008 - a tuple, it cannot change
        devices_wait_ms: int = 0,
        waiting_after_ms: int | None = None,
        chance: random.Random | None = None,
        start_gate: StartGate | None = None,
    ) -> None:
        self.submission, self.spec = submission, submission.spec
        self.application_id, self.attempt = application_id, attempt
        self.timing, self.parts_of = timing, parts_of
        self.chance = chance or random.Random()
        self.stage = Stage.STARTING
        self.now_ms = self.awake_ms = 0
        self.lifetime = Lifetime()
        self.start_gate = start_gate or StartGate()

        self.roles = _roles_of(self.spec)
        self.instances = [
            Instance(index, role.spec, number) for role in self.roles for number, index in enumerate(role.indexes)
        ]
        self.gates = tuple(dict.fromkeys(role.gate for role in self.roles if role.gate.gang))
        for gate in self.gates:
            gate.checkpoints = self._checkpoints_of(gate)
        by_name = {role.spec.name: role for role in self.roles}
        self.conditions = {
            role: [(by_name[one.role], one.until) for one in role.spec.depends_on]
            for role in self.roles
            if role.spec.depends_on
        }
        deciding = (one.index for one in self.instances if self.spec.decides(one.role))
        self.undecided = set(deciding) if self.spec.head is None else {self.spec.head}
        self.deciding = frozenset(self.undecided)

        self.containers = ContainerTable()
        self.engine = EngineProperties()
        self.nodes = NodeConditions(demand.AvoidedNodes(timing.avoid_ms), demand.UsableDevices(devices_wait_ms))
        self.deadlines = Deadlines()
        self.recovery = RecoveryProgress(timing.unpublished_ms)
        self.journal = JournalProgress()

        self.sweep = _sweep_of(self.spec)
        self.roster = RosterState(exists=self.spec.has_roster, is_known=attempt == 1)
        self.checkpoints = CheckpointReports()
        self.launches = Launches(self.spec.head)
        self.service_waits: dict[int, str] = {}
        self.checks = PayloadChecks()
        self.usage = UsageTotals()
        self.notices = Notices(waiting_after_ms, submission.submitted_ms if attempt == 1 else None)
        self.payload_ran = False

        self.stop = RequestedStop()
        self.ending: ApplicationEnd | None = None
        self.closing = ClosingProgress()
        self.waiting_for = ""
        self.actions: list[Action] = []
        if former is not None:
            self.apply_journals(former)

    def checkpoint_starts(self, count: int) -> int:
        """Return the number of a start for its checkpoint numbers (`dlapp.values.messages.checkpoints_after`); the
        first start of this application's payload has the ``count`` 1.

        Two applications that resume from the same checkpoint have distinct numbers.
        """
        others = self.application_id.number % _MAX_APART if self.submission.checkpoints_of else 0
        return others * _STARTS_APART + count

    def _checkpoints_of(self, gate: Gate) -> GangCheckpoints | None:
        """Return the checkpoints of the members of a gang; None: no checkpoints."""
        roles = [(role, *self.spec.checkpoint_of(role.spec)) for role in self.roles_of(gate)]
        if self.spec.checkpoint is None or roles[0][1] is None:
            return None
        of_every_index = self.spec.checkpoint.is_of_every_index
        stores = [role.indexes if of_every_index else role.indexes[:1] for role, _, stores in roles if stores]
        writers = [index for indexes in stores for index in indexes]
        return GangCheckpoints(gate.size, writers, of_every_index=of_every_index)

    @property
    def sweep_state(self) -> SweepState:
        """Return the trials of an application that is a sweep."""
        assert self.sweep is not None
        return self.sweep

    @property
    def awaits_journal(self) -> bool:
        """Return True if something waits for lines of the journal to be durable."""
        return bool(self.journal.unrecorded) or (self.sweep is not None and bool(self.sweep.unrecorded))

    @property
    def commits(self) -> bool:
        """Return True if its output is to be committed."""
        return self.closing.settlement is Settlement.COMMIT

    def apply_journals(self, former: RecoveredState) -> None:
        """Apply the journals of earlier attempts; must precede the engine's `Registered`."""
        self.recovery.former, self.engine.changes = former, dict(former.changes)

    def pass_time(self, now_ms: int) -> None:
        """Set both clocks; a jump of the first one advances the second by at most `MAX_GAP_MS`."""
        if self.now_ms:
            self.awake_ms += min(max(now_ms - self.now_ms, 0), MAX_GAP_MS)
        self.now_ms = now_ms

    def add_action(self, action: Action) -> None:
        """Queue an action; `pop_actions` returns them in this order."""
        self.actions.append(action)

    def pop_actions(self) -> list[Action]:
        """Return the actions queued since the last call."""
        actions, self.actions = self.actions, []
        return actions

    def notify(self, event: str, key: str, text: str) -> None:
        """Notify the user of an event; the arguments are those of `Notify`."""
        self.add_action(Notify(event, key, text))

    def record(self, record: JournalRecord, *, durable: bool = False) -> None:
        """Write a record to the journal (`dlapp.am.model.journal`)."""
        self.journal.lines += 1
        self.add_action(WriteJournal(record.as_json(self.now_ms), durable))

    def set_deadline(self, in_ms: int, what: Due, container: Container) -> None:
        """Set a deadline of a container, in ms from now."""
        self.deadlines.add(self.awake_ms + in_ms, what, container)

    def order(self, container: Container, *, number: int | None = None, **change: Any) -> None:
        """Change a task's orders and increment their number, beyond ``number`` if given."""
        assert container.orders is not None
        last = max(container.orders.number, number or 0)
        container.orders = replace(container.orders, number=last + 1, **change)
        self.add_action(SendOrders(container.container_id, container.orders))

    def role_of(self, container: Container) -> demand.Role:
        """Return a container's role."""
        return self.roles[container.place]

    def role_of_index(self, index: int) -> demand.Role:
        """Return the role of an existing CONTAINER_INDEX."""
        return next(role for role in self.roles if index in role.indexes)

    def role_of_request(self, request_id: int) -> demand.Role | None:
        """Return the role of a request; None: no role has this id."""
        return self.roles[request_id - 1] if 1 <= request_id <= len(self.roles) else None

    def roles_of(self, gate: Gate) -> list[demand.Role]:
        """Return the roles behind a gate."""
        return [role for role in self.roles if role.gate is gate]

    def members_of(self, gate: Gate) -> list[Instance]:
        """Return the indexes behind a gate."""
        return [self.instances[index] for role in self.roles_of(gate) for index in role.indexes]

    def is_new(self, container_id: ContainerId) -> bool:
        """Return whether this container is unknown, also as an ended one."""
        known = self.containers
        return not (container_id in known.by_id or container_id in known.gone or container_id in known.released)

    def add_container(self, grant: Grant, role: demand.Role) -> Container:
        """Keep a granted container; it is live and open."""
        container = Container(grant, role.place, self.now_ms)
        container.last_contact_ms = self.awake_ms
        self.containers.add(container)
        self.record(GrantRecord(grant.container_id, role.request_id, grant.node, grant.log_url))
        return container

    def mark_done(self, instance: Instance) -> None:
        """Record that an index succeeded."""
        instance.done = True
        role = self.role_of_index(instance.index)
        role.done.add(instance.index)
        role.begun.add(instance.index)
        role.ready.add(instance.index)
        self.undecided.discard(instance.index)
        self.service_waits.pop(instance.index, None)

    def give_up(self, instance: Instance, failure: str) -> None:
        """Record that an index is not retried; ``failure`` is the reason for the user, if it is a deciding one."""
        instance.given_up, instance.failed = True, failure
        self.undecided.discard(instance.index)
        self.service_waits.pop(instance.index, None)
        role = self.role_of_index(instance.index)
        role.remove_waiting(instance.index)
        role.lost.add(instance.index)

    def reinstate(self, instance: Instance) -> None:
        """Record that a given-up index is retried, with the rest of its gang."""
        instance.given_up, instance.failed = False, ""
        if instance.index in self.deciding:
            self.undecided.add(instance.index)
        role = self.role_of_index(instance.index)
        role.lost.discard(instance.index)
        role.begun.discard(instance.index)
        role.ready.discard(instance.index)
        role.wait(instance.index)
        self.record(FreeRecord(instance.index, instance.user_faults, instance.node_faults))

    def record_faults(self, instance: Instance) -> None:
        """Record how many ends of an index count."""
        self.record(FaultsRecord(instance.index, instance.user_faults, instance.node_faults), durable=True)

    def mark_not_done(self, instance: Instance) -> None:
        """Record that an index is to run again; its earlier output does not count."""
        role = self.role_of_index(instance.index)
        role.begun.discard(instance.index)
        role.ready.discard(instance.index)
        role.done.discard(instance.index)
        if instance.done:
            instance.done, instance.stored = False, None
            if instance.index in self.deciding:
                self.undecided.add(instance.index)


def _roles_of(spec: AppSpec) -> list[demand.Role]:
    """Return the roles of an application; those of a gang share a gate."""
    gates: dict[str, Gate] = {}
    for gang in spec.gangs():
        gate = Gate(gang[0].name, sum(role.instances for role in gang))
        gates |= dict.fromkeys((role.name for role in gang), gate)
    roles: list[demand.Role] = []
    first = 0
    for place, role in enumerate(spec.roles):
        roles.append(demand.Role(place, role, first, gates.get(role.name) or Gate(role.name, 0)))
        first += role.instances
    return roles


def _sweep_of(spec: AppSpec) -> SweepState | None:
    """Return the trials of an application; None: it is not a sweep."""
    if spec.sweep is None:
        return None
    from dlapp.am.model.trials import SweepState  # few applications need it

    return SweepState(spec.sweep, spec.containers)
