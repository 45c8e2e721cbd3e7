"""A cluster for `dlapp.am.decisions.master.Master`: an engine, nodes, tasks and a network, all out of one seed.

Everything that can go wrong goes wrong at some seed: messages are lost, doubled and late, heartbeats are answered and
the answer is lost, more containers are granted than asked for, nodes die with all that runs on them, or are lost to
the engine alone, tasks are killed, hang or come up late, the ApplicationMaster dies (with the tail of its journal)
and another attempt takes over, people kill and soft-kill. With a sweep in its plan, tasks run trials. What must hold is
checked while it happens; a `Violation` names the seed, so `World(Plan.of_seed(seed)).run()` shows it again.
"""

from __future__ import annotations

import heapq
import random
from functools import partial

from dlapp.am.decisions.master import Master
from dlapp.am.model import events, journal
from dlapp.am.model.journal_compaction import JournalCompaction
from dlapp.am.model.records.recovered import RecoveredContainer, RecoveredState
from dlapp.am.model.state import ApplicationState
from dlapp.am.view import phase_of
from dlapp.cluster.engine import Grant, Registered, ResourceLimits
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Stop, TaskResult
from dlapp.values.spec import Gang, Resources
from tests.am.simulated.box import Box
from tests.am.simulated.checkpoints import SimulatedCheckpoints
from tests.am.simulated.checks import Checks
from tests.am.simulated.engine import SimulatedEngine
from tests.am.simulated.network import Network
from tests.am.simulated.outputs import Outputs
from tests.am.simulated.payloads import Payloads
from tests.am.simulated.plan import APPLICATION, EPOCH_MS, Plan
from tests.am.simulated.tasks import Tasks
from tests.am.simulated.trials import SimulatedTrials


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


class World(Network):
    """Runs one plan to its end; `ending` is how it went."""

    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        self.submission = plan.submission
        self.total = self.submission.spec.containers
        self.indexes: dict[str, list[int]] = {}
        for index in range(self.total):
            self.indexes.setdefault(self.submission.spec.role_of(index)[0].name, []).append(index)
        self.handled = 0
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
        self.stop_answers: list[str] = []
        self.engine, self.tasks, self.payloads = SimulatedEngine(self), Tasks(self), Payloads(self)
        self.outputs, self.checks, self.trials = Outputs(self), Checks(self), SimulatedTrials(self)
        writer = min(self.indexes.get(plan.checkpoint or "", [0]))
        self.checkpoints = SimulatedCheckpoints(plan, writer, self.violated)

    def run(self, limit_s: float | None = None) -> events.ApplicationEnd:
        """Run to the end; raises Violation."""
        plan = self.plan
        self.start_attempt()
        for when in plan.node_deaths:
            self.schedule(when, self.engine.kill_node)
        for when in plan.node_losses:
            self.schedule(when, self.engine.lose_node)
        for when in plan.preemptions:
            self.schedule(when, self.engine.preempt)
        for when in plan.sweep.worker_deaths if plan.sweep is not None else ():
            self.schedule(when, self.trials.kill_worker)
        for when in plan.am_deaths:
            self.schedule(when, self.kill_master)
        if plan.soft_kill_at is not None:
            self.schedule(plan.soft_kill_at, lambda: self.stop_request(events.SoftKill("tony")))
            self.schedule(plan.soft_kill_at + 2, lambda: self.stop_request(events.SoftKill("tina")))
        if plan.kill_at is not None:
            self.schedule(plan.kill_at, lambda: self.stop_request(events.Kill("tony")))
        while self.ending is None:
            self.now, _, what = heapq.heappop(self.ahead)
            if self.now > (limit_s or plan.limit_s):
                self.violated(f"it does not end: {self.master and phase_of(self.master.state)}")
            what()
        self.checks.check_the_end()
        return self.ending

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
                self.checks.on_record = self.payloads.containers()
                for index, (container_id, result) in self.payloads.completions.items():
                    add_completion(former, container_id, index, result, int(self.now * 1000))
        self.fleeting, self.recorded, self.writes_journal, self.unanswered = [], 0, False, []
        self.engine.unsaid = None
        self.published = self.attempt == 1 or not self.plan.unpublished_s
        chance = random.Random(f"gang window {self.plan.seed} {self.attempt}")
        state = ApplicationState(
            self.submission, APPLICATION, self.attempt, former=former, timing=self.plan.timing, chance=chance
        )
        self.master = Master(state)
        sweep = self.plan.sweep
        if sweep is not None and sweep.takes is not None and not (former is not None and former.has_taken_over):
            self.handle(sweep.takes)
        live = tuple(box.grant for box in self.engine.boxes.values() if box.alive and not box.on_lost_node)
        self.engine.forget_attempt()
        is_alone = sweep is not None or self.plan.seed % 2 == 1
        self.handle(Registered(limits=ResourceLimits(), live=live, is_complete=sweep is not None, single_node=is_alone))
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
        if self.trials.exist:
            self.trials.learn()
        self.schedule(self.chance.uniform(0.1, 3), self.start_attempt)

    def handle(self, event: events.Event) -> list[events.Action]:
        if self.master is None or self.ending is not None:
            return []
        self.handled += 1
        actions = self.master.handle(event, EPOCH_MS + int(self.now * 1000))
        for action in actions:
            self.carry_out(action)
        if self.master is not None and self.master.state.sweep is not None:
            self.trials.most_running = max(self.trials.most_running, self.master.state.sweep.running)
        return actions

    def carry_out(self, action: events.Action) -> None:
        match action:
            case events.StartTask(grant):
                self.tasks.start_task(self.engine.boxes[grant.container_id])
            case events.StopContainer(container_id):
                box = self.engine.boxes[container_id]
                box.stop_ordered = True
                self.checks.check_stop(container_id)
                if not self.is_lost() and not box.on_lost_node:
                    self.schedule(self.latency(), lambda: self.engine.end_box(box, -105))
            case events.CheckStart(container_id):
                if self.now < self.engine.boxes[container_id].prepared_at and not self.is_lost():
                    self.schedule(self.latency(), lambda: self.engine.news_preparing.append(container_id))
            case events.Assign(container_id, assignment):
                self.message(lambda: self.tasks.on_assign(self.engine.boxes[container_id], assignment))
            case events.Refuse(container_id, _):
                if (refused := self.engine.boxes.get(container_id)) is not None:
                    self.message(lambda: self.engine.end_box(refused, 1))
            case events.SendOrders(container_id, orders):
                self.checks.check_orders(self.engine.boxes[container_id], orders)
                self.engine.boxes[container_id].stop_ordered |= orders.stop is not Stop.NO
                self.message(lambda: self.tasks.on_orders(self.engine.boxes[container_id], orders))
            case events.AnswerStop(answer):
                self.stop_answers.append(answer.state)
            case events.CommitTrial(part, again):
                self.schedule(
                    self.chance.uniform(0.001, 0.5), partial(self.trials.commit, part, self.attempt, again=again)
                )
            case events.SettleOutputs():
                self.outputs.settle(action)
            case events.Finish(ending):
                self.ending = ending
            case events.WriteJournal(record, durable):
                self.ended_softly |= record["kind"] == "soft"
                if record["kind"] == "end":
                    box = self.engine.boxes[ContainerId.from_text(record["container"])]
                    box.given_up = box.given_up or self.checks.is_out_of_reach(box)
                if "user_faults" in record and record["kind"] != "trial_back":
                    self.checks.forgiven += record["user_faults"] < self.checks.charged.get(record["index"], 0)
                    self.checks.charged[record["index"]] = record["user_faults"]
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
        if self.trials.exist:
            self.trials.learn()
        while self.unanswered and self.unanswered[0][0] <= self.recorded:
            _, box = self.unanswered.pop(0)
            if not self.is_lost():
                self.schedule(self.latency(), partial(self.engine.end_box, box, 0))  # heard: the task may go

    def beat(self, attempt: int) -> None:
        if self.master is None or self.attempt != attempt or self.ending is not None:
            return
        self.schedule(self.chance.choice((0.2, 1.0)), lambda: self.beat(attempt))
        if not self.is_lost():
            answer = self.engine.heartbeat()
            if self.is_lost():
                self.engine.unsaid = answer  # the answer is lost; the engine repeats it
            else:
                self.engine.unsaid = None
                killed = [self.engine.boxes[end.container_id] for end in answer.ended if end.exit_status == -9]
                for box in killed:
                    self.checks.blame_user(box)
                    if self.plan.gang is not Gang.NONE:
                        break  # it restarts the gang, or ends all
                for grant in answer.granted:
                    self.engine.boxes[grant.container_id].is_reported = True
                self.handle(answer)
                if self.plan.double and self.chance.random() < self.plan.double:
                    self.handle(answer)
        self.handle(events.Tick())

    def stop_request(self, event: events.SoftKill | events.Kill) -> None:
        if self.master is None:
            self.schedule(0.5, lambda: self.stop_request(event))
        else:
            self.handle(event)
