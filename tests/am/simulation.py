"""A world for `dlapp.am.decisions.master.Master`: an engine, nodes, tasks and a network, all out of one seed.

Everything that can go wrong goes wrong at some seed: messages are lost, doubled and late, heartbeats are answered and
the answer is lost, more containers are granted than asked for, nodes die with all that runs on them, or are lost to
the engine alone, tasks are killed, hang or come up late, the ApplicationMaster dies (with the tail of its journal)
and another attempt takes over, people kill and soft-kill. What must hold is checked while it happens; a `Violation`
names the seed, so `World(Plan.of_seed(seed)).run()` shows it again.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from functools import partial

from dlapp.am.decisions.master import Master
from dlapp.am.model import events, journal
from dlapp.am.model.instance import StopReason
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.am.model.records.recovered import RecoveredContainer, RecoveredState
from dlapp.am.model.roster import roster_of
from dlapp.am.model.state import ApplicationState
from dlapp.am.view import of as view_of
from dlapp.am.view import phase_of
from dlapp.cluster.engine import AnnouncedEnd, ContainerEnd, Grant, Heartbeat, Registered, ResourceLimits
from dlapp.values.ids import ContainerId
from dlapp.values.messages import (
    PREEMPTED,
    Assignment,
    Fault,
    Hello,
    Orders,
    Phase,
    Report,
    Stop,
    StoredOutput,
    TaskResult,
)
from dlapp.values.report import Cause, FinalStatus, OutputView
from dlapp.values.spec import ContainerFailure, Gang, Resources, RoleFailure, Until
from tests.am.plan import APPLICATION, EPOCH_MS, PHASES, PREEMPTION_WAIT_S, TIMING, Plan, Violation
from tests.am.simulated_checkpoints import BoxCheckpoints, SimulatedCheckpoints


def add_completion(
    former: RecoveredState, container_id: ContainerId, index: int, result: TaskResult, finished_ms: int
) -> None:
    """Put into recovered state what a lost part of the journal said: a task's result, if no later container has its
    index."""
    if former.bound.get(index, container_id) != container_id or index in former.given_up:
        return
    if index not in former.bound and former.last.get(index) == container_id:
        return  # the journal has it, and what was decided on it
    container = former.containers.get(container_id)
    if container is None:
        grant = Grant(container_id=container_id, request_id=0, node="", resources=Resources())
        container = former.containers[container_id] = RecoveredContainer(grant, 0)
    container.index, container.try_number = index, max(1, former.tries.get(index, 0))
    if container.result is None:
        container.result, container.finished_ms, container.ran = result, finished_ms, True
    former.bound[index] = former.last[index] = container_id
    former.tries[index] = container.try_number


class Box:
    """A container as the engine knows it, with the task in it."""

    def __init__(self, world: World, grant: Grant) -> None:
        self.world, self.grant = world, grant
        self.is_reported = False
        self.released = self.started = self.ended = False
        self.on_lost_node = False
        self.prepared_at = 0.0
        self.hangs = self.talking = False
        self.index: int | None = None
        self.phase = Phase.STARTING
        self.payload = False
        self.generation = self.run = 0
        self.failure: TaskResult | None = None
        self.orders: Orders | None = None
        self.heard_attempt = 0
        self.greeted_attempt = self.asked_attempt = 0
        self.number = 0
        self.result: TaskResult | None = None
        self.stopping, self.stop_reason = Stop.NO, ""
        self.reached_gate = False
        self.blamed = self.stop_ordered = False
        self.heard_at = 0.0
        self.given_up = self.replaced = False
        self.checkpoints = BoxCheckpoints()

    @property
    def alive(self) -> bool:
        return self.started and not self.ended

    @property
    def address(self) -> str:
        """An address of its own, not of its host: so it is seen which container of an index a roster has."""
        number = self.grant.container_id.number
        return f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"

    @property
    def storing_now(self) -> bool:
        """Return whether its task is between its payload's end and its result."""
        return self.phase is Phase.STORING


class World:
    """Runs one plan to its end; `ending` is how it went."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(f"world {plan.seed}")
        self.submission = plan.submission
        self.total = self.submission.spec.containers
        self.indexes: dict[str, list[int]] = {}
        for index in range(self.total):
            self.indexes.setdefault(self.submission.spec.role_of(index)[0].name, []).append(index)
        self.now = 0.0
        self.ahead: list[tuple[float, int, Callable[[], None]]] = []
        self.count = self.handled = 0
        # the engine
        self.nodes = [f"node{n}" for n in range(plan.nodes)]
        self.dead: set[str] = set()
        self.boxes: dict[ContainerId, Box] = {}
        self.numbers: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        self.granted_since: dict[int, int] = {}
        self.news_granted: list[Grant] = []
        self.news_started: list[ContainerId] = []
        self.news_preparing: list[ContainerId] = []
        self.news_ended: list[ContainerEnd] = []
        self.news_ending: list[ContainerId] = []
        self.news_failed: list[ContainerEnd] = []
        self.news_preempted: list[ContainerId] = []
        self.unsaid: Heartbeat | None = None
        # the ApplicationMaster
        self.attempt = 0
        self.published = True
        self.master: Master | None = None
        self.durable: list[str] = []
        self.fleeting: list[str] = []
        self.recorded = 0
        self.writes_journal = self.ended_softly = False
        self.unanswered: list[tuple[int, Box]] = []
        self.reachable_at = 0.0
        self.ending: events.ApplicationEnd | None = None
        # the outputs
        self.claim: events.SettleOutputs | None = None
        self.swapped: events.SettleOutputs | None = None
        self.settled: set[tuple[int, events.Settlement]] = set()
        # what is checked
        self.payloads: dict[int, Box] = {}
        self.begun: dict[int, int] = {}
        self.ended_payloads: dict[int, int] = {}
        self.user_faults: dict[int, int] = {}
        self.forgiven = 0  # for a node was to blame, as was heard later
        self.charged: dict[int, int] = {}
        self.completions: dict[int, tuple[ContainerId, TaskResult]] = {}
        self.on_record: dict[int, ContainerId] = {}
        self.at_claim: dict[int, ContainerId] = {}
        self.stop_answers: list[str] = []
        writer = min(self.indexes.get(plan.checkpoint or "", [0]))
        self.checkpoints = SimulatedCheckpoints(plan, writer, self.violated)

    # ---- time ----

    def schedule(self, in_s: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.ahead, (self.now + in_s, self.count, what))

    def run(self, limit_s: float = 3600.0) -> events.ApplicationEnd:
        """Run to the end; raises Violation."""
        plan = self.plan
        self.start_attempt()
        for when in plan.node_deaths:
            self.schedule(when, self.kill_node)
        for when in plan.node_losses:
            self.schedule(when, self.lose_node)
        for when in plan.preemptions:
            self.schedule(when, self.preempt)
        for when in plan.am_deaths:
            self.schedule(when, self.kill_master)
        if plan.soft_kill_at is not None:
            self.schedule(plan.soft_kill_at, lambda: self.stop_request(events.SoftKill("tony")))
            self.schedule(plan.soft_kill_at + 2, lambda: self.stop_request(events.SoftKill("tina")))
        if plan.kill_at is not None:
            self.schedule(plan.kill_at, lambda: self.stop_request(events.Kill("tony")))
        while self.ending is None:
            self.now, _, what = heapq.heappop(self.ahead)
            if self.now > limit_s:
                self.violated(f"it does not end: {self.master and phase_of(self.master.state)}")
            what()
        self.check_the_end()
        return self.ending

    def violated(self, what: str) -> None:
        raise Violation(f"seed {self.plan.seed}, {self.now:.3f} s: {what}")

    def latency(self) -> float:
        if self.plan.late and self.chance.random() < self.plan.late:
            return self.chance.uniform(0.5, 6)
        return self.chance.uniform(0.001, 0.05)

    def is_lost(self) -> bool:
        return self.plan.loss > 0 and self.chance.random() < self.plan.loss

    def message(self, deliver: Callable[[], None]) -> None:
        """Bring something over the network: late, twice, or not at all."""
        if self.is_lost():
            return
        self.schedule(self.latency(), deliver)
        if self.plan.double and self.chance.random() < self.plan.double:
            self.schedule(self.latency(), deliver)

    # ---- the ApplicationMaster and its loop ----

    def _compacted(self, lines: list[str]) -> list[str]:
        """Leave out what is not needed of the journal's first pieces, as an attempt that dies before it has all."""
        compaction = JournalCompaction(most_runs=self.chance.choice((1, 50_000)))
        compaction.process(lines)
        size = self.chance.randint(1, 1 + len(lines))
        pieces = [lines[index : index + size] for index in range(0, len(lines), size)]
        done = self.chance.randint(0, len(pieces))
        return [
            line
            for index, piece in enumerate(pieces)
            for line in (compaction.needed_lines(piece) if index < done else piece)
        ]

    def start_attempt(self) -> None:
        self.attempt += 1
        former = None
        if self.attempt > 1:
            lines = self._compacted(self.durable) if self.plan.journal != "lost" else []
            former = journal.replay(journal.records(lines))
            if self.plan.journal == "lost":
                self.on_record = {index: container_id for index, (container_id, _) in self.completions.items()}
                for index, (container_id, result) in self.completions.items():
                    add_completion(former, container_id, index, result, int(self.now * 1000))
        self.fleeting, self.recorded, self.writes_journal, self.unanswered = [], 0, False, []
        self.unsaid = None
        self.published = self.attempt == 1 or not self.plan.unpublished_s
        chance = random.Random(f"gang window {self.plan.seed} {self.attempt}")
        state = ApplicationState(
            self.submission, APPLICATION, self.attempt, former=former, timing=TIMING, chance=chance
        )
        self.master = Master(state)
        live = tuple(box.grant for box in self.boxes.values() if box.alive and not box.on_lost_node)
        for box in self.boxes.values():
            if not box.started and not box.ended:
                box.ended = True  # never started: the engine takes it back with its attempt
        self.news_granted, self.news_started, self.news_preparing, self.wanted = [], [], [], {}
        self.handle(Registered(limits=ResourceLimits(), live=live, single_node=self.plan.seed % 2 == 1))
        mine = self.attempt
        self.schedule(0.05, lambda: self.beat(mine))
        self.reachable_at = self.now
        if self.published:
            self.handle(events.Published())
        else:
            self.schedule(self.plan.unpublished_s, lambda: self.publish(mine))

    def publish(self, attempt: int) -> None:
        if self.attempt == attempt:
            self.published, self.reachable_at = True, self.now
            self.handle(events.Published())

    def kill_master(self) -> None:
        if self.master is None or self.ending is not None:
            return
        self.master = None
        if self.plan.journal == "tail lost":
            kept_count = self.chance.randint(0, len(self.fleeting))
            self.durable += self.fleeting[:kept_count]
        else:
            self.durable += self.fleeting
        self.fleeting = []
        self.schedule(self.chance.uniform(0.1, 3), self.start_attempt)

    def handle(self, event: events.Event) -> list[events.Action]:
        if self.master is None or self.ending is not None:
            return []
        self.handled += 1
        actions = self.master.handle(event, EPOCH_MS + int(self.now * 1000))
        for action in actions:
            self.carry_out(action)
        return actions

    def carry_out(self, action: events.Action) -> None:
        match action:
            case events.StartTask(grant):
                self.start_task(self.boxes[grant.container_id])
            case events.StopContainer(container_id):
                box = self.boxes[container_id]
                box.stop_ordered = True
                self.check_stop(container_id)
                if not self.is_lost() and not box.on_lost_node:
                    self.schedule(self.latency(), lambda: self.end_box(box, -105))
            case events.CheckStart(container_id):
                if self.now < self.boxes[container_id].prepared_at and not self.is_lost():
                    self.schedule(self.latency(), lambda: self.news_preparing.append(container_id))
            case events.Assign(container_id, assignment):
                self.message(lambda: self.on_assign(self.boxes[container_id], assignment))
            case events.Refuse(container_id, _):
                if (refused := self.boxes.get(container_id)) is not None:
                    self.message(lambda: self.end_box(refused, 1))
            case events.SendOrders(container_id, orders):
                self.check_orders(self.boxes[container_id], orders)
                self.boxes[container_id].stop_ordered |= orders.stop is not Stop.NO
                self.message(lambda: self.on_orders(self.boxes[container_id], orders))
            case events.AnswerStop(answer):
                self.stop_answers.append(answer.state)
            case events.SettleOutputs():
                self.settle(action)
            case events.Finish(ending):
                self.ending = ending
            case events.WriteJournal(record, durable):
                self.ended_softly |= record["kind"] == "soft"
                if record["kind"] == "end":
                    box = self.boxes[ContainerId.from_text(record["container"])]
                    box.given_up = box.given_up or self.is_out_of_reach(box)
                if "user_faults" in record:
                    self.forgiven += record["user_faults"] < self.charged.get(record["index"], 0)
                    self.charged[record["index"]] = record["user_faults"]
                self.fleeting.append(journal.line(record))
                if durable:
                    self.record()
                elif not self.writes_journal:
                    self.writes_journal = True
                    mine = self.attempt
                    self.schedule(self.chance.uniform(*self.plan.journal_s), lambda: self.write_journal(mine))

    def write_journal(self, attempt: int) -> None:
        """A group of the journal is written."""
        if self.master is None or self.attempt != attempt:
            return
        self.writes_journal = False
        self.record()
        self.handle(events.JournalWritten(self.recorded))

    def record(self) -> None:
        self.durable += self.fleeting
        self.recorded += len(self.fleeting)
        self.fleeting = []
        while self.unanswered and self.unanswered[0][0] <= self.recorded:
            _, box = self.unanswered.pop(0)
            if not self.is_lost():
                self.schedule(self.latency(), partial(self.end_box, box, 0))  # heard: the task may go

    def beat(self, attempt: int) -> None:
        if self.master is None or self.attempt != attempt or self.ending is not None:
            return
        self.schedule(self.chance.choice((0.2, 1.0)), lambda: self.beat(attempt))
        if not self.is_lost():
            answer = self.engine_heartbeat()
            if self.is_lost():
                self.unsaid = answer  # the answer is lost; the engine repeats it
            else:
                self.unsaid = None
                killed = [self.boxes[end.container_id] for end in answer.ended if end.exit_status == -9]
                for box in killed:
                    self.blame_user(box)
                    if self.plan.gang is not Gang.NONE:
                        break  # it restarts the gang, or ends all
                for grant in answer.granted:
                    self.boxes[grant.container_id].is_reported = True
                self.handle(answer)
                if self.plan.double and self.chance.random() < self.plan.double:
                    self.handle(answer)
        self.handle(events.Tick())

    def stop_request(self, event: events.SoftKill | events.Kill) -> None:
        if self.master is None:
            self.schedule(0.5, lambda: self.stop_request(event))
        else:
            self.handle(event)

    # ---- the outputs ----

    def settle(self, wanted: events.SettleOutputs) -> None:
        mine = self.attempt
        committing = wanted.how is events.Settlement.COMMIT
        if (mine, wanted.how) in self.settled:
            self.violated(f"asked twice to {wanted.how.value} the output")
        self.settled.add((mine, wanted.how))

        def work() -> None:
            if self.attempt != mine or self.master is None:
                return
            ended = None
            if committing and self.plan.commit_fails:
                self.schedule(0.1, lambda: answer(events.OutputsSettled(error="the disk is full")))
                return
            if committing:
                if self.claim is None:
                    self.claim = wanted
                    self.at_claim = {index: container_id for index, (container_id, _) in self.completions.items()}
                else:
                    ended = self.claim.ending
                if self.chance.random() < 0.5 and self.swapped is None:
                    self.schedule(0.2, swap)
                    return
                swap()
                return
            view = OutputView(name="", target="file:///results/run")
            self.schedule(0.1, lambda: answer(events.OutputsSettled((view,), None, ended)))

        def swap() -> None:
            if self.attempt != mine or self.master is None:
                return
            if self.swapped is None:
                self.swapped = self.claim
            ended = self.claim.ending if self.claim is not wanted and self.claim else None
            view = OutputView(name="", target="file:///results/run", committed=True)
            self.schedule(self.latency(), lambda: answer(events.OutputsSettled((view,), None, ended)))

        def answer(settled: events.OutputsSettled) -> None:
            if self.attempt == mine:
                self.handle(settled)

        self.schedule(self.latency(), work)

    def check_stop(self, container_id: ContainerId) -> None:
        container = self.master and self.master.state.containers.by_id.get(container_id)
        if container and container.stop_reason is StopReason.UNCONFIRMED and not self.published:
            self.violated(f"{container_id} was stopped because its task was silent, which could not speak")

    # ---- the engine ----

    def engine_heartbeat(self) -> Heartbeat:
        assert self.master is not None
        if self.unsaid is not None:
            return self.unsaid
        for ask in self.master.container_requests():
            if ask.count < 0:
                self.violated(f"asked for {ask.count} containers")
            self.wanted[ask.request_id] = ask.count
        for container_id in self.master.releases():
            box = self.boxes[container_id]
            if box.started:
                self.violated(f"{container_id} was released after its task was started")
            if not box.released:
                box.released = True
                self.schedule(self.latency(), partial(self.end_box, box, -100))
        granted, self.news_granted = tuple(self.news_granted), []
        started, self.news_started = tuple(self.news_started), []
        preparing, self.news_preparing = tuple(self.news_preparing), []
        ended, self.news_ended = tuple(self.news_ended), []
        failed, self.news_failed = tuple(self.news_failed), []
        ending, self.news_ending = tuple(self.news_ending), []
        preempted, self.news_preempted = tuple(self.news_preempted), []
        if preempted:  # what ended in the same moment may be a consequence
            self.forgiven += sum(self.boxes[container.container_id].blamed for container in ended)
        mine = self.attempt
        self.schedule(self.latency(), lambda: self.grant_some(mine))
        return Heartbeat(
            granted=granted,
            started=started,
            preparing=preparing,
            ended=ended,
            start_failed=failed,
            ending=ending,
            announced=tuple(AnnouncedEnd(container_id=item, wait_s=PREEMPTION_WAIT_S) for item in preempted),
        )

    def grant_some(self, attempt: int) -> None:
        if self.master is None or self.attempt != attempt or self.ending is not None:
            return
        usable = [node for node in self.nodes if node not in self.dead]
        if not usable:
            self.dead.clear()  # somebody repairs the last node
            usable = self.nodes
        for request_id, count in list(self.wanted.items()):
            extra = count and self.plan.surplus and self.chance.random() < self.plan.surplus
            now = min(count, self.plan.grants_at_once)
            for _ in range(now + (1 if extra else 0)):
                number = self.numbers.get(attempt, 1) + 1
                self.numbers[attempt] = number
                role = self.submission.spec.roles[request_id - 1]
                grant = Grant(
                    container_id=ContainerId(APPLICATION, attempt, number),
                    request_id=request_id,
                    node=self.chance.choice(usable),
                    resources=role.resources,
                )
                self.boxes[grant.container_id] = Box(self, grant)
                self.news_granted.append(grant)
            self.wanted[request_id] -= now

    def kill_node(self) -> None:
        alive = [node for node in self.nodes if node not in self.dead]
        if not alive or self.ending is not None:
            return
        node = self.chance.choice(alive)
        self.dead.add(node)
        for box in self.boxes.values():
            if box.grant.node == node and not box.ended:
                # All that ran there is gone now; the engine finds out later.
                self.end_box(box, -100, node_fault=True, reported_in_s=self.chance.uniform(0.5, 10))

    def lose_node(self) -> None:
        alive = [node for node in self.nodes if node not in self.dead]
        if not alive or self.ending is not None:
            return
        node = self.chance.choice(alive)
        self.dead.add(node)
        for box in self.boxes.values():
            if box.grant.node == node and box.alive:
                box.on_lost_node = True
                self.news_ending.append(box.grant.container_id)
                container_id = box.grant.container_id
                end = ContainerEnd(container_id=container_id, exit_status=-100, node_fault=True, presumed=True)
                self.schedule(self.chance.uniform(0, 10), lambda end=end: self.news_ended.append(end))  # type: ignore[misc]

    def preempt(self) -> None:
        boxes = [box for box in self.boxes.values() if box.alive and not box.on_lost_node]
        if not boxes or self.ending is not None:
            return
        box = self.chance.choice(boxes)
        self.news_preempted.append(box.grant.container_id)
        self.schedule(PREEMPTION_WAIT_S, lambda: self.end_box(box, -102, node_fault=True))

    def end_box(self, box: Box, status: int, *, node_fault: bool = False, reported_in_s: float = 0.0) -> None:
        if box.ended:
            return
        box.ended = True
        self.payload_over(box)
        end = ContainerEnd(container_id=box.grant.container_id, exit_status=status, node_fault=node_fault)
        if reported_in_s:
            self.schedule(reported_in_s, lambda: self.news_ended.append(end))
        else:
            self.news_ended.append(end)

    # ---- tasks ----

    def start_task(self, box: Box) -> None:
        if box.started:
            self.violated(f"{box.grant.container_id} was started twice")
        if box.ended:
            return  # it died on its way to us; its end is among the news
        if self.plan.start_failed and self.chance.random() < self.plan.start_failed:
            box.ended = True
            self.news_failed.append(ContainerEnd(container_id=box.grant.container_id, exit_status=1))
            return
        box.started = True
        if box.grant.container_id.attempt == self.attempt:
            self.schedule(0.02, lambda: self.news_started.append(box.grant.container_id))
        wait = self.chance.uniform(0.05, 0.4)
        if self.plan.task_late and self.chance.random() < self.plan.task_late:
            wait = self.chance.uniform(20, 60)
        if self.plan.slow_files and self.chance.random() < self.plan.slow_files:
            wait = self.chance.uniform(40, 80)
            box.prepared_at = self.now + wait
        if self.plan.task_killed and self.chance.random() < self.plan.task_killed:
            self.schedule(self.chance.uniform(0, 10), lambda: self.kill_task(box))
        if self.plan.task_hangs and self.chance.random() < self.plan.task_hangs:
            self.schedule(self.chance.uniform(0, 10), lambda: setattr(box, "hangs", True))
        if self.plan.task_pauses and self.chance.random() < self.plan.task_pauses:
            self.schedule(self.chance.uniform(0, 15), lambda: self.pause_task(box))
        self.schedule(wait, lambda: self.talk(box))

    def pause_task(self, box: Box) -> None:
        def go_on() -> None:
            box.hangs = False
            self.talk(box)

        box.hangs = True
        self.schedule(self.chance.uniform(1, 40), go_on)

    def kill_task(self, box: Box) -> None:
        if box.alive:
            box.blamed = box.index is not None and box.result is None and not box.replaced
            self.end_box(box, -9)

    def blame_user(self, box: Box) -> None:
        """The ApplicationMaster hears that a payload failed by itself, or was killed with its task."""
        if box.blamed and not box.stop_ordered:
            assert box.index is not None
            box.blamed = False
            self.user_faults[box.index] = self.user_faults.get(box.index, 0) + 1

    def talk(self, box: Box) -> None:
        """The task's talking thread: it says hello until it has work, then reports in intervals."""
        if not box.alive or box.hangs or self.ending is not None:
            return
        self.schedule(self.plan.talk_s, lambda: self.talk(box))
        if self.master is None or (not self.published and box.grant.container_id.attempt < self.attempt):
            return
        if box.index is None or box.greeted_attempt != self.attempt:
            if box.index is not None and self.attempt > 1 and self.chance.random() < 0.3:
                return  # it has not found the new address yet
            hello = Hello(
                container_id=box.grant.container_id,
                host=box.grant.node,
                pid=1,
                index=box.index,
                phase=box.phase,
                generation=box.generation,
            )
            box.asked_attempt = self.attempt
            self.to_master(box, hello)
        else:
            self.report(box)

    def report(self, box: Box) -> None:
        assert box.index is not None
        if box.result is None or box.number == 0 or not box.talking:
            box.number += 1
        box.talking = box.result is not None  # the last word keeps its number
        report = Report(
            container_id=box.grant.container_id,
            number=box.number,
            index=box.index,
            phase=box.phase,
            result=box.result,
            failure=box.failure,
            generation=box.generation,
            seen=box.orders.number if box.orders else 0,
            address=box.address,
            checkpoints=box.checkpoints.found,
            restored=box.checkpoints.restored,
        )
        self.to_master(box, report)

    def to_master(self, box: Box, message: Hello | Report) -> None:
        """Say something to the attempt whose address the task knows now; another one never gets to hear it."""
        attempt = self.attempt
        if self.published or box.grant.container_id.attempt == attempt:
            self.message(lambda: self.arrive(box, message, attempt))

    def arrive(self, box: Box, message: Hello | Report, attempt: int) -> None:
        if self.master is None or self.ending is not None or self.attempt != attempt:
            return
        box.heard_at = self.now
        if box.replaced and box.payload:
            self.schedule(30.0, lambda: self.check_replaced(box, attempt))
        if isinstance(message, Report) and (message.result is not None or message.failure is not None):
            assert box.index is not None
            box.blamed &= message.generation >= self.master.state.role_of_index(box.index).gate.generation
            self.blame_user(box)
        actions = self.handle(message)
        if isinstance(message, Report):
            orders = self.master.orders_of(box.grant.container_id) if self.master else None
            if orders is not None:
                self.message(lambda: self.on_orders(box, orders))
            if message.result is not None:
                self.unanswered.append((self.recorded + len(self.fleeting), box))
                if not self.fleeting:
                    self.record()
        elif any(isinstance(action, events.Assign) for action in actions):
            box.greeted_attempt = attempt

    def on_assign(self, box: Box, assignment: Assignment) -> None:
        if not box.alive or box.hangs or assignment.attempt < max(box.heard_attempt, box.asked_attempt):
            return  # a task has one hello on its way at a time: the answer to an earlier one is not read any more
        box.heard_attempt = box.greeted_attempt = assignment.attempt
        if box.index is not None:
            if box.index != assignment.index:
                self.violated(f"{box.grant.container_id} runs {box.index} and was given {assignment.index}")
            return
        box.index, box.generation = assignment.index, assignment.generation
        box.checkpoints.is_alone = self.master is not None and self.master.state.role_of_index(box.index).gate.open
        self.step(box, 0, box.run)

    def step(self, box: Box, place: int, run: int) -> None:
        if not box.alive or box.result is not None or run != box.run:
            return
        box.phase = PHASES[place]
        if box.phase is Phase.WAITING:
            box.reached_gate = True
        waits = box.phase is Phase.FETCHING and self.has_checkpoints(box)
        if waits:
            self.checkpoints.find(box)
        if not box.hangs:
            self.report(box)
        if waits:
            self.maybe_restore(box)
        elif box.phase is Phase.WAITING:
            self.maybe_go(box)
        else:
            self.schedule(self.chance.uniform(0, self.plan.step_s), lambda: self.step(box, place + 1, run))

    def has_checkpoints(self, box: Box) -> bool:
        assert box.index is not None
        role, _ = self.submission.spec.role_of(box.index)
        is_in_gang = any(role in gang for gang in self.submission.spec.gangs())
        return is_in_gang and self.submission.spec.checkpoint_of(role)[0] is not None

    def maybe_restore(self, box: Box) -> None:
        """Restore the checkpoint of a task that waits to hear which one, if it has heard."""
        orders, own = box.orders, box.checkpoints
        if orders is None or orders.generation != box.generation or orders.checkpoint in (None, *own.broken):
            return
        if box.phase is not Phase.FETCHING or own.found is None or own.restored is not None:
            return
        if self.checkpoints.restore(box):
            run = box.run
            self.schedule(self.chance.uniform(0, self.plan.step_s), lambda: self.step(box, 2, run))
            return
        self.checkpoints.find(box)
        if not box.hangs:
            self.report(box)

    def prepare_again(self, box: Box, generation: int) -> None:
        box.run += 1
        box.generation = generation
        box.checkpoints.begin()
        self.step(box, 0, box.run)

    def maybe_store(self, box: Box, step: int, run: int) -> None:
        """A payload has reached a step, and its task stores that."""
        if not box.payload or not box.alive or run != box.run:
            return
        self.schedule(self.chance.uniform(0.9, 1.1), lambda: self.maybe_store(box, step + 1, run))
        if self.checkpoints.store(box, step) and not box.hangs:
            self.report(box)

    def on_orders(self, box: Box, orders: Orders) -> None:
        if not box.alive or box.hangs or box.index is None:
            return
        if orders.attempt < box.heard_attempt:
            return
        if orders.attempt == box.heard_attempt and box.orders and orders.number <= box.orders.number:
            return
        box.heard_attempt, box.orders = orders.attempt, orders
        if orders.stop is not Stop.NO and box.result is None:
            self.on_stop(box, orders)
        elif orders.generation > box.generation and box.result is None and not box.storing_now:
            self.begin_generation(box, orders.generation)
        elif box.phase is Phase.FETCHING and self.has_checkpoints(box):
            self.maybe_restore(box)
        else:
            self.maybe_go(box)

    def begin_generation(self, box: Box, generation: int) -> None:
        """End the payload of a task whose gang is restarted, and bring it to the gate again."""
        if box.failure is not None:
            box.failure, box.blamed = None, False
            self.prepare_again(box, generation)
            return
        if not box.payload and self.has_checkpoints(box):
            self.prepare_again(box, generation)
            return
        if not box.payload:
            box.generation = generation
            if box.phase is Phase.WAITING and not box.hangs:
                self.report(box)
            self.maybe_go(box)
            return
        box.run += 1
        run = box.run

        def over() -> None:
            if box.alive and box.payload and box.run == run:
                self.payload_over(box)
                box.generation = max(generation, box.orders.generation if box.orders else 0)
                box.checkpoints.begin()
                self.step(box, 0, run)

        self.schedule(self.chance.uniform(0, 1.0), over)

    def on_stop(self, box: Box, orders: Orders) -> None:
        if orders.stop is Stop.SOFT and box.stopping is Stop.SOFT:
            return
        box.stopping, box.stop_reason = orders.stop, orders.reason
        if box.failure is not None:
            box.failure = None
            box.phase = Phase.STORING
            if orders.stop is Stop.SOFT:
                self.stored(box, Fault.USER)
                return
        if orders.stop is Stop.SOFT and box.payload:
            self.schedule(self.chance.uniform(0, orders.grace_s), lambda: self.payload_ends(box, box.run))
        elif orders.stop is Stop.NOW or not box.storing_now:
            self.payload_over(box)
            self.say_result(box, TaskResult(fault=Fault.STOPPED))

    def maybe_go(self, box: Box) -> None:
        if box.orders is None or box.orders.generation != box.generation:
            return
        restored, chosen = box.checkpoints.restored, box.orders.checkpoint
        if box.phase is Phase.WAITING and not box.orders.go and None not in (restored, chosen) and chosen != restored:
            self.prepare_again(box, box.generation)
            return
        if box.phase is Phase.WAITING and box.orders and box.orders.go and box.stopping is Stop.NO and box.alive:
            if self.submission.spec.has_roster and not box.orders.roster:
                return
            self.payload_begins(box)

    # ---- payloads ----

    def payload_begins(self, box: Box) -> None:
        assert box.index is not None
        self.check_roster(box)
        if self.has_checkpoints(box):
            role, _ = self.submission.spec.role_of(box.index)
            gang = next(gang for gang in self.submission.spec.gangs() if role in gang)
            indexes = [index for item in gang for index in self.indexes[item.name]]
            self.checkpoints.check_start(box, gang[0].name, filter(None, map(self.payloads.get, indexes)))
        other = self.payloads.get(box.index)
        self.check_generations(box, box.index)
        if other is not None:
            if not (other.given_up or self.is_out_of_reach(other)):
                mine, its = box.grant.container_id, other.grant.container_id
                self.violated(f"index {box.index} runs in {its} and was started in {mine}")
            other.replaced = True
        box.payload = True
        box.phase = Phase.RUNNING
        self.payloads[box.index] = box
        self.begun[box.index] = self.begun.get(box.index, 0) + 1
        if not box.hangs:
            self.report(box)
        role, _ = self.submission.spec.role_of(box.index)
        for dependency in role.depends_on:
            satisfied = self.begun if dependency.until is Until.STARTED else self.completions
            if any(index not in satisfied for index in self.indexes[dependency.role]):
                self.violated(f"{role.name} runs, and {dependency.role} has not {dependency.until.value}")
        if role.service and not self.plan.service_ends:
            return
        run = box.run
        if self.has_checkpoints(box) and self.checkpoints.stores(box.index):
            self.schedule(self.chance.uniform(0.9, 1.1), lambda: self.maybe_store(box, 1, run))
        self.schedule(self.chance.uniform(*self.plan.payload_s), lambda: self.payload_ends(box, run))

    def payload_over(self, box: Box) -> None:
        if box.payload:
            assert box.index is not None
            box.payload = False
            if not box.replaced:
                del self.payloads[box.index]

    def payload_ends(self, box: Box, run: int) -> None:
        if not box.payload or not box.alive or run != box.run:
            return
        assert box.index is not None
        self.payload_over(box)
        fault = Fault.NONE
        if not box.replaced:
            before = self.ended_payloads.get(box.index, 0)
            self.ended_payloads[box.index] = before + 1
            fault = self.plan.failing.get((box.index, before), Fault.NONE)
        box.blamed = fault is Fault.USER
        if box.stopping is Stop.SOFT:
            fault = self.chance.choice((Fault.NONE, Fault.STOPPED, Fault.USER))
            if box.stop_reason == PREEMPTED:  # also if the next master does not know of it
                fault = Fault.NODE
        if fault is Fault.USER and box.stopping is Stop.NO and self.plan.gang is not Gang.NONE and not box.replaced:
            box.failure = TaskResult(fault=fault, exit_code=3)
            if not box.hangs:
                self.report(box)
            if box.orders is not None and box.orders.generation > box.generation:
                self.begin_generation(box, box.orders.generation)
            return
        box.phase = Phase.STORING
        if not box.hangs:
            self.report(box)
        self.schedule(self.chance.uniform(0, self.plan.step_s), lambda: self.stored(box, fault))

    def stored(self, box: Box, fault: Fault) -> None:
        if not box.alive or box.result is not None:
            return
        assert box.index is not None
        outputs: tuple[StoredOutput, ...] = ()
        if self.plan.outputs and fault is not Fault.DATA:
            outputs = (StoredOutput(name="", part=f"part of {box.grant.container_id}", files=1, size_bytes=1),)
        code = {Fault.NONE: 0, Fault.USER: 3}.get(fault)
        is_preempted = fault is Fault.NODE and box.stop_reason == PREEMPTED
        result = TaskResult(fault=fault, exit_code=code, outputs=outputs, lost=is_preempted)
        if fault is Fault.NONE and not box.replaced:
            self.completions[box.index] = (box.grant.container_id, result)
        self.say_result(box, result)

    def say_result(self, box: Box, result: TaskResult) -> None:
        if box.result is None:
            box.result, box.phase, box.talking = result, Phase.ENDED, False
            if not box.hangs:
                self.report(box)

    # ---- what must hold ----

    def is_out_of_reach(self, box: Box) -> bool:
        """Return whether an index may run elsewhere though a container runs it: the engine has lost its node, which
        cannot be ordered to end it, and its task has been silent for as long as it may.
        """
        reachable_at = 0.0 if box.grant.container_id.attempt == self.attempt else self.reachable_at
        was_heard = box.heard_at > reachable_at
        silent_s = self.now - max(box.heard_at, reachable_at)
        least_ms = TIMING.silence_ms if was_heard else TIMING.recovery_ms
        return box.on_lost_node and silent_s * 1000 >= least_ms

    def check_replaced(self, box: Box, attempt: int) -> None:
        """Check that a task which was heard again has ended its payload, for its index runs elsewhere."""
        if box.payload and not box.hangs and self.ending is None and self.attempt == attempt and self.published:
            self.violated(f"{box.grant.container_id} was heard, and runs on though index {box.index} runs elsewhere")

    def check_generations(self, box: Box, index: int) -> None:
        """Check that no payload of an earlier generation runs when one of its gang begins."""
        role, _ = self.submission.spec.role_of(index)
        gang = next((gang for gang in self.submission.spec.gangs() if role in gang), ())
        for item in gang:
            for other in filter(None, map(self.payloads.get, self.indexes[item.name])):
                if other.generation != box.generation and not (other.given_up or self.is_out_of_reach(other)):
                    mine, its = f"{index} in generation {box.generation}", f"{other.index} in {other.generation}"
                    self.violated(f"index {mine} begins while {its} runs")

    def check_roster(self, box: Box) -> None:
        """Check that a payload starts with a roster that has itself, and all members of its gang."""
        if not self.submission.spec.has_roster or self.master is None or not self.master.state.roster.number:
            return
        assert box.index is not None
        state = self.master.state
        role = state.role_of_index(box.index)
        members = {member.index: member for member in roster_of(state, role.gate).members}
        if box.index not in members or members[box.index].address != box.address:
            self.violated(f"index {box.index} starts with the roster {members.get(box.index)} of itself")
        gang = [index for item in state.roles_of(role.gate) for index in item.indexes] if role.gate.gang else []
        # Who ended or was lost before this attempt is not known to it, nor one that is only about to replace another.
        running = {
            item.instance.index for item in state.containers.open.values() if item.instance is not None and item.ran
        }
        lacking = [index for index in gang if index not in members and (self.attempt == 1 or index in running)]
        if lacking:
            self.violated(f"index {box.index} starts with a roster without {lacking}")

    def check_orders(self, box: Box, orders: Orders) -> None:
        if not orders.go or box.index is None:
            return
        if orders.attempt > 1:
            return
        role, _ = self.submission.spec.role_of(box.index)
        gang = next((gang for gang in self.submission.spec.gangs() if role in gang), ())
        for index in [index for item in gang for index in self.indexes[item.name]]:
            if not any(item.index == index and item.reached_gate for item in self.boxes.values()):
                self.violated(f"the gang of {role.name} may go, index {index} was never at the gate")

    def check_the_end(self) -> None:
        assert self.ending is not None
        assert self.master is not None
        plan, ending = self.plan, self.ending
        for box in self.boxes.values():
            if box.alive and not box.on_lost_node:
                self.violated(f"{box.grant.container_id} is left running after the end: {ending.diagnostics}")
            known = box.is_reported and box.grant.container_id.attempt == self.attempt
            given_back = box.ended or box.released or box.grant.container_id in self.master.releases()
            if known and not box.started and not given_back:
                self.violated(f"{box.grant.container_id} was granted and never given back")
        for index, faults in self.user_faults.items():
            role, _ = self.submission.spec.role_of(index)
            if role.keep_running:
                continue
            # An end that the journal lost with its attempt is counted against nobody: there is no other witness.
            forgotten = self.forgiven + (0 if plan.journal == "whole" else self.attempt - 1)
            # A service that failed for good is there again when its gang is restarted, and may fail again.
            again = self.master.state.role_of_index(index).gate.generation if role.service else 0
            if faults > role.retries + 1 + forgotten + again:
                self.violated(f"index {index} failed {faults} times, {role.retries} retries are allowed")
            if faults > 1 + forgotten and role.on_failure is RoleFailure.FAIL:
                self.violated(f"index {index} failed {faults} times, and its first failure is to end the application")
        spec = self.submission.spec
        deciding = [i for i in range(self.total) if spec.decides(spec.role_of(i)[0])]
        if ending.final_status is FinalStatus.SUCCEEDED:
            for index in deciding or range(self.total):
                if index not in self.completions:
                    self.violated(f"it succeeded, and index {index} never did")
            self.check_parts(deciding)
        goes_on = plan.on_container_failure is ContainerFailure.CONTINUE
        no_commit = (Cause.KILLED,) if goes_on else (Cause.KILLED, Cause.FAILED)
        if ending.cause in no_commit and self.swapped is not None and not plan.commit_fails:
            self.violated(f"{ending.diagnostics}, and its output was committed")
        # A commit that fails after a soft stop makes it FAILED, too.
        if ending.cause is Cause.FAILED and goes_on and not self.ended_softly:
            self.check_others_went_on(deciding or list(range(self.total)))
        view = view_of(self.master.state, "")
        if not view.state.ended or view.cause is not ending.cause:
            self.violated(f"the view says {view.state}, {view.cause}")

    def check_others_went_on(self, deciding: list[int]) -> None:
        """Every index has ended by itself, and what was committed is of those that ended well."""
        assert self.master is not None
        failed = {instance.index for instance in self.master.state.instances if instance.failed}
        for index in deciding:
            if index not in self.completions and index not in failed:
                self.violated(f"index {index} neither succeeded nor failed, and the application has ended")
        parts = self.swapped.parts if self.swapped is not None else ()
        for part in parts:
            if part.index in failed:
                self.violated(f"part {part.index} is of a container that failed, and was committed")

    def check_parts(self, deciding: list[int]) -> None:
        if not self.plan.outputs:
            return
        if self.swapped is None:
            self.violated("it succeeded, and nothing was committed")
            return
        parts = {part.index: part.container_id for part in self.swapped.parts}
        for index in deciding:
            # An attempt that knows no more than the records takes a part that is there, and not one of whose making it
            # hears afterwards. Without a journal it may run all again before it finds the claim of an earlier one.
            right = (self.completions[index][0], self.on_record.get(index), self.at_claim.get(index))
            if parts.get(index) not in right:
                self.violated(f"part {index} is of {parts.get(index)}, not of {self.completions[index][0]}")
