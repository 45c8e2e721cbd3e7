"""A cluster for the ApplicationMaster of a sweep, out of one seed: containers, their tasks and trials, a network.

Tasks behave as `dlapp.task.sweep.worker` does. Messages are late, lost and doubled; containers are killed, and the
ApplicationMaster, with what of its journal was not written yet. What must hold of each trial is checked while it
happens: two containers never run it at a time, and what is on record as ended never runs again.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from dlapp.am.decisions.master import Master
from dlapp.am.model import events, journal
from dlapp.am.model.state import ApplicationState, Timing
from dlapp.cluster.engine import ContainerEnd, Grant, Heartbeat, Registered, ResourceLimits
from dlapp.sweep.spec import SweepSpec
from dlapp.value import replace
from dlapp.values.ids import ContainerId, trial_part
from dlapp.values.messages import (
    Assignment,
    Fault,
    Hello,
    Orders,
    Phase,
    Report,
    Stop,
    StoredOutput,
    TaskResult,
    TrialReport,
)
from dlapp.values.spec import RoleSpec
from tests.am.driving import APPLICATION, START_MS, submission

Key = tuple[int, int]
Outcome = Callable[[int, int], tuple[TaskResult, tuple[tuple[float, float], ...]]]


def stored(number: int, try_number: int) -> StoredOutput:
    """Return what a try of a trial stores."""
    place = f"file:///results/run.{APPLICATION}.tmp/{trial_part(number, try_number)}"
    return StoredOutput(name="", part=place, files=1, size_bytes=1)


def well(number: int, try_number: int) -> tuple[TaskResult, tuple[tuple[float, float], ...]]:
    """Return the outcome of a trial whose program ends well, with one report of the metric."""
    result = TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored(number, try_number),))
    return result, ((1.0, float(number)),)


class Worker:
    """A container with its task."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
        self.alive, self.index, self.number = True, -1, 0
        self.attempt_heard = 0
        self.orders: Orders | None = None
        self.trials: dict[Key, TrialReport] = {}
        self.unnamed: set[Key] = set()
        self.result: TaskResult | None = None


class SweepCluster:
    """Runs a sweep to its end.

    Args:
        seed: of all that happens by chance.
        sweep: what runs.
        workers: containers.
        outcome: how a try of a trial ends.
        worker_kills, master_kills: how often each is killed, at times between 0 and ``span_s``.
        loss: share of messages that are lost.
        trial_s: how long a trial runs, from and to [s].
        retries: of the containers.
        takes: the trials of a sweep before.
    """

    def __init__(
        self,
        seed: int,
        sweep: SweepSpec,
        *,
        workers: int = 2,
        outcome: Outcome = well,
        worker_kills: int = 0,
        master_kills: int = 0,
        span_s: float = 30.0,
        loss: float = 0.0,
        trial_s: tuple[float, float] = (0.1, 2.0),
        retries: int = 0,
        takes: events.TrialsTakenOver | None = None,
    ) -> None:
        self.seed, self.sweep, self.outcome, self.loss, self.trial_s = seed, sweep, outcome, loss, trial_s
        self.takes = takes
        self.chance = random.Random(f"sweep {seed}")
        self.submission = submission(RoleSpec(instances=workers, retries=retries), sweep=sweep)
        self.now, self.count, self.attempt = 0.0, 0, 0
        self.ahead: list[tuple[float, int, Callable[[], None]]] = []
        self.workers: dict[ContainerId, Worker] = {}
        self.durable: list[str] = []
        self.fleeting: list[str] = []
        self.written = 0
        self.master: Master | None = None
        self.ended: list[ContainerEnd] = []
        self.on_record: dict[int, str] = {}
        self.starts: dict[int, int] = {}
        self.settled: events.SettleOutputs | None = None
        self.committed: dict[int, str] = {}
        self.begun_commits: set[int] = set()
        self.ending: events.ApplicationEnd | None = None
        self.most_running = 0
        self._containers = 0
        self._deaths = Counter[int]()
        self._kills = [(self.chance.uniform(0, span_s), self.kill_worker) for _ in range(worker_kills)]
        self._kills += [(self.chance.uniform(0, span_s), self.kill_master) for _ in range(master_kills)]

    # ---- time and messages ----

    def schedule(self, in_s: float, what: Callable[[], None]) -> None:
        self.count += 1
        heapq.heappush(self.ahead, (self.now + in_s, self.count, what))

    def send(self, what: Callable[[], None]) -> None:
        if self.chance.random() >= self.loss:
            self.schedule(self.chance.uniform(0.001, 0.05), what)
            if self.chance.random() < self.loss:
                self.schedule(self.chance.uniform(0.001, 0.5), what)

    def run(self, limit_s: float = 1e6) -> events.ApplicationEnd:
        self.start_master()
        for when, kill in self._kills:
            self.schedule(when, kill)
        while self.ending is None:
            self.now, _, what = heapq.heappop(self.ahead)
            assert self.now < limit_s, f"seed {self.seed}: it does not end"
            what()
        return self.ending

    # ---- the ApplicationMaster ----

    def start_master(self) -> None:
        self.attempt += 1
        former = journal.replay(journal.records(self.durable)) if self.attempt > 1 else None
        self.written, self.fleeting = 0, []
        state = ApplicationState(self.submission, APPLICATION, self.attempt, former=former, timing=Timing())
        self.master = Master(state)
        if self.takes is not None and not (former is not None and former.has_taken_over):
            self.handle(self.takes)
        live = tuple(worker.grant for worker in self.workers.values() if worker.alive)
        self.handle(Registered(limits=ResourceLimits(), live=live, is_complete=True, single_node=True))
        self.handle(events.Published())
        self.beat(self.attempt)

    def kill_master(self) -> None:
        if self.master is not None and self.ending is None:
            self.master = None
            self.durable += self.fleeting[: self.chance.randint(0, len(self.fleeting))]
            self._learn_record()
            self.schedule(self.chance.uniform(0.1, 2), self.start_master)

    def handle(self, event: events.Event) -> None:
        if self.master is None or self.ending is not None:
            return
        for action in self.master.handle(event, START_MS + int(self.now * 1000)):
            self.carry_out(action)
        if self.master is not None and self.master.state.sweep is not None:
            self.most_running = max(self.most_running, self.master.state.sweep.running)

    def carry_out(self, action: events.Action) -> None:
        match action:
            case events.StartTask(grant):
                worker = self.workers[grant.container_id]
                self.schedule(0.05, lambda: self.hello(worker))
            case events.StopContainer(container_id):
                self.end(self.workers[container_id], -105)
            case events.Assign(container_id, assignment):
                self.send(lambda: self.on_assign(self.workers[container_id], assignment))
            case events.Refuse(container_id, _):
                self.end(self.workers[container_id], 1)
            case events.SendOrders(container_id, orders):
                self.send(lambda: self.on_orders(self.workers[container_id], orders))
            case events.WriteJournal(record, durable):
                self.fleeting.append(journal.line(record))
                if durable:
                    self.write()
                else:
                    mine = self.attempt
                    self.schedule(self.chance.uniform(0, 0.1), lambda: self.write_later(mine))
            case events.CommitTrial(part, again):
                mine = self.attempt
                self.schedule(self.chance.uniform(0.001, 0.5), lambda: self.commit_trial(part, mine, again=again))
            case events.SettleOutputs():
                self.settled = action
                self.schedule(0.01, lambda: self.handle(events.OutputsSettled()))
            case events.Finish(ending):
                self.ending = ending

    def commit_trial(self, part: events.Part, attempt: int, *, again: bool) -> None:
        if attempt != self.attempt or self.master is None or self.settled is not None:
            return
        assert part.index in self.on_record, f"seed {self.seed}: {part} is committed before its end is on record"
        before = self.committed.setdefault(part.index, part.trial)
        assert before == part.trial, f"seed {self.seed}: {part} is committed after {before}"
        assert again or part.index not in self.begun_commits, f"seed {self.seed}: {part} is committed twice"
        self.begun_commits.add(part.index)
        if self.chance.random() < 0.1:
            self.kill_master()
        # A thread of the same process says so: that is never lost, but with the process.
        self.schedule(
            0.001, lambda: self.handle(events.TrialCommitted(part.index)) if attempt == self.attempt else None
        )

    def write(self) -> None:
        self.durable += self.fleeting
        self.written += len(self.fleeting)
        self.fleeting = []
        self._learn_record()

    def _learn_record(self) -> None:
        for record in journal.records(self.durable[self._learned :]):
            if record["kind"] == "trial_end" and record["state"] != "killed":
                is_taken = "sources" in record  # written again where an attempt died while it did that
                assert is_taken or record["number"] not in self.on_record, f"seed {self.seed}: {record} ended twice"
                self.on_record[record["number"]] = f"{record['state']} {record['try']}"
        self._learned = len(self.durable)

    _learned = 0

    def write_later(self, attempt: int) -> None:
        if self.master is not None and self.attempt == attempt and self.fleeting:
            self.write()
            self.handle(events.JournalWritten(self.written))

    def beat(self, attempt: int) -> None:
        if self.master is None or attempt != self.attempt or self.ending is not None:
            return
        ended, self.ended = tuple(self.ended), []
        granted = []
        for ask in self.master.container_requests():
            open_now = sum(worker.alive for worker in self.workers.values())
            for _ in range(min(ask.count, self.submission.spec.containers - open_now)):
                self._containers += 1
                number = self._containers + 1
                grant = Grant(
                    container_id=ContainerId(APPLICATION, self.attempt, number),
                    request_id=ask.request_id,
                    node="here",
                    resources=ask.resources,
                )
                self.workers[grant.container_id] = Worker(grant)
                granted.append(grant)
        started = tuple(container.container_id for container in granted)
        self.handle(Heartbeat(granted=tuple(granted), started=started, ended=ended))
        self.handle(events.Tick())
        self.schedule(0.5, lambda: self.beat(attempt))

    # ---- the tasks ----

    def hello(self, worker: Worker) -> None:
        if worker.alive and worker.index < 0:
            self.handle(Hello(container_id=worker.grant.container_id, host="here", pid=1))
            self.schedule(1.0, lambda: self.hello(worker))

    def on_assign(self, worker: Worker, assignment: Assignment) -> None:
        if worker.alive and worker.index < 0:
            assert assignment.sweep is not None
            worker.index = assignment.index
            self.send_report(worker)
            self.poll(worker)

    def phase(self, worker: Worker) -> Phase:
        if worker.result is not None:
            return Phase.ENDED
        return Phase.RUNNING if worker.orders is not None and worker.orders.go else Phase.WAITING

    def poll(self, worker: Worker) -> None:
        """Repeat the last report, as long as the task lives."""
        if worker.alive:
            self.report_trials(worker)
            self.schedule(self.chance.uniform(0.5, 1.5), lambda: self.poll(worker))

    def send_report(self, worker: Worker) -> None:
        """Report news."""
        worker.number += 1
        self.report_trials(worker)

    def report_trials(self, worker: Worker) -> None:
        report = Report(
            container_id=worker.grant.container_id,
            number=worker.number,
            index=worker.index,
            phase=self.phase(worker),
            trials=tuple(one for key, one in worker.trials.items() if key not in worker.unnamed),
            result=worker.result,
            seen=worker.orders.number if worker.orders is not None else 0,
        )

        mine = self.attempt

        def deliver() -> None:
            # A report goes over a connection to one process: it never reaches the next attempt, however late it is.
            if self.master is None or self.attempt != mine:
                return
            self.handle(report)
            orders = self.master.orders_of(report.container_id)
            if orders is not None:
                self.send(lambda: self.on_orders(worker, orders))

        self.send(deliver)

    def on_orders(self, worker: Worker, orders: Orders) -> None:
        known = worker.orders
        if not worker.alive or worker.result is not None or worker.index < 0 or orders.attempt < worker.attempt_heard:
            return
        if known is not None and known.attempt == orders.attempt and orders.number <= known.number:
            return
        had_gone = known is not None and known.go
        worker.orders, worker.attempt_heard = orders, orders.attempt
        if orders.stop is Stop.NOW:
            self.end(worker, 1)
            return
        if orders.go and not had_gone:
            self.send_report(worker)
        if orders.stop is Stop.SOFT:
            for key, one in list(worker.trials.items()):
                if one.result is None:
                    result = TaskResult(fault=Fault.STOPPED, exit_code=1, outputs=(stored(*key),))
                    worker.trials[key] = self.changed(one, result=result)
            self.finish(worker, TaskResult(fault=Fault.STOPPED))
            return
        if orders.trials is not None and orders.go:
            self.obey(worker, orders)

    def obey(self, worker: Worker, orders: Orders) -> None:
        named = {(trial.number, trial.try_number): trial for trial in orders.trials or ()}
        for key, one in list(worker.trials.items()):
            if key in named:
                if named[key].stop and one.result is None:
                    result = TaskResult(fault=Fault.STOPPED, exit_code=-15, outputs=(stored(*key),))
                    worker.trials[key] = self.changed(one, result=result)
                    self.send_report(worker)
            else:
                del worker.trials[key]
        for key in named:
            if key not in worker.trials:
                self.begin_trial(worker, key)
        if not worker.trials and orders.trials_are_over:
            self.finish(worker, TaskResult(fault=Fault.NONE))

    def begin_trial(self, worker: Worker, key: Key) -> None:
        number = key[0]
        assert number not in self.on_record, f"seed {self.seed}: trial {number} runs again, it {self.on_record[number]}"
        for other in self.workers.values():
            running = [one for (n, _), one in other.trials.items() if n == number and one.result is None]
            assert not (other.alive and running), f"seed {self.seed}: trial {number} runs twice"
        busy = sum(trial.result is None for trial in worker.trials.values())
        assert busy < self.sweep.trials_per_container, f"seed {self.seed}: {worker.grant.container_id} has no room"
        self.starts[number] = self.starts.get(number, 0) + 1
        worker.trials[key] = TrialReport(number=number, try_number=key[1])
        result, points = self.outcome(*key)
        for count in range(1, len(points) + 1):
            when = self.chance.uniform(*self.trial_s) * 0.9
            self.schedule(when, partial(self.step, worker, key, points[:count]))
        self.schedule(self.chance.uniform(*self.trial_s), lambda: self.end_trial(worker, key, result, points))

    def step(self, worker: Worker, key: Key, points: tuple[tuple[float, float], ...]) -> None:
        one = worker.trials.get(key)
        if worker.alive and one is not None and one.result is None and len(points) > len(one.points):
            worker.trials[key] = self.changed(one, points=points, reports=len(points))
            self.send_report(worker)

    def end_trial(self, worker: Worker, key: Key, result: TaskResult, points: tuple[tuple[float, float], ...]) -> None:
        one = worker.trials.get(key)
        if worker.alive and one is not None and one.result is None:
            worker.trials[key] = self.changed(one, result=result, points=points, reports=len(points))
            self.send_report(worker)

    def changed(self, one: TrialReport, **fields: Any) -> TrialReport:
        return replace(one, **fields)

    def finish(self, worker: Worker, result: TaskResult) -> None:
        worker.result = result
        self.send_report(worker)
        self.schedule(1.0, lambda: self.end(worker, 0))

    def kill_worker(self) -> None:
        # The fourth failure of one index that its program did not cause would end the sweep.
        alive = [worker for worker in self.workers.values() if worker.alive and self._deaths[worker.index] < 3]
        if alive:
            victim = self.chance.choice(alive)
            self._deaths[victim.index] += victim.index >= 0
            self.end(victim, -9)

    def end(self, worker: Worker, status: int) -> None:
        if worker.alive:
            worker.alive = False
            self.ended.append(ContainerEnd(container_id=worker.grant.container_id, exit_status=status))
