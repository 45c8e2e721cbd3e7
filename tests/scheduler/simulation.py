"""Simulation of a machine whose queue makes its decisions with `dlapp.scheduler`: events in order, no sleeping."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.decisions import decide
from dlapp.scheduler.usage import HOUR_S, Use, decayed_hours
from dlapp.scheduler.values import Policy, QueueState, RunningJob, Schedule, WaitingJob


class Task(NamedTuple):
    """A job, and how long it runs if nobody ends it."""

    job: WaitingJob
    runtime_s: float


class Run(NamedTuple):
    """A task that was started."""

    task: Task
    started_s: float
    ends_s: float


def task(
    number: int,
    user: int,
    gcores: int,
    arrived_s: float,
    runtime_s: float,
    *,
    priority: int = 0,
    max_runtime_s: float | None = None,
) -> Task:
    """Return a task that asks for GPUs, and for a vcore and 1 GiB with each."""
    amounts = Amounts(1024 * max(1, gcores), max(1, gcores), gcores)
    place = (int(arrived_s * 1e9), user, f"application_1_{number:06d}")
    job = WaitingJob(place[2], user, amounts, arrived_s, place, priority, max_runtime_s)
    return Task(job, runtime_s if max_runtime_s is None else min(runtime_s, max_runtime_s))


Decide = Callable[[QueueState, Policy, float], Schedule]


class Machine:
    """A machine, its queue and its users.

    Args:
        capacity: of the machine.
        policy: the operator's.
        tasks: all that come.
        following: called with a task that starts; it returns those that its user submits for that.
        make_decisions: the scheduler.
    """

    def __init__(
        self,
        capacity: Amounts,
        policy: Policy,
        tasks: Iterable[Task],
        *,
        following: Callable[[Task, float], Iterable[Task]] = lambda *_: (),
        make_decisions: Decide = decide,
    ) -> None:
        self.capacity, self.policy, self.now_s = capacity, policy, 0.0
        self.runs: list[Run] = []
        self.absent: set[int] = set()
        self.last: tuple[QueueState, Schedule] | None = None
        self._following, self._decide = following, make_decisions
        self._coming = [(task.job.arrived_s, task.job.id, task) for task in tasks]
        heapq.heapify(self._coming)
        self._tasks: dict[str, Task] = {}  # that wait, by id
        self._running: dict[str, Run] = {}
        self._ends: list[tuple[float, str]] = []
        self._ended_hours: dict[int, float] = {}  # decayed, as of `_decayed_s`
        self._decayed_s = 0.0
        self._starts: dict[int, list[tuple[float, float]]] = {}

    @property
    def waiting(self) -> list[Task]:
        """Tasks that wait."""
        return list(self._tasks.values())

    def run(self, until_s: float) -> None:
        """Let time pass."""
        while (at_s := self.next_s()) is not None and at_s <= until_s:
            self.step(at_s)
        self.now_s = until_s

    def step(self, at_s: float) -> None:
        """Let all happen that happens at the next moment, and decide."""
        self.now_s = at_s
        while self._ends and self._ends[0][0] <= at_s:
            run = self._running.pop(heapq.heappop(self._ends)[1])
            self._decay(at_s)
            user, amount = run.task.job.user, self.policy.charged(run.task.job.amounts)
            use = Use(user, amount, run.started_s, run.ends_s)
            self._ended_hours[user] = self._ended_hours.get(user, 0.0) + decayed_hours(
                use, at_s, self.policy.half_life_s
            )
        while self._coming and self._coming[0][0] <= at_s:
            one = heapq.heappop(self._coming)[2]
            self._tasks[one.job.id] = one
        state = self.state()
        schedule = self._decide(state, self.policy, at_s)
        self.last = state, schedule
        for decision in schedule.decisions:
            if decision.starts:
                self._start(decision.job)

    def state(self) -> QueueState:
        """Return the queue as the scheduler sees it now."""
        running, hours = list[RunningJob](), self._hours()
        for run in self._running.values():
            job = run.task.job
            ends_s = None if job.max_runtime_s is None else run.started_s + job.max_runtime_s
            running.append(RunningJob(job.user, job.amounts, ends_s, run.started_s))
        waiting = [task.job for task in self._tasks.values()]
        return QueueState(self.capacity, running, waiting, hours, self._starts, frozenset(self.absent))

    def hours(self, user: int, until_s: float) -> float:
        """Return the hours that a user's tasks had until a time, none of them decayed."""
        return sum(
            self.policy.charged(run.task.job.amounts) * (min(run.ends_s, until_s) - run.started_s) / HOUR_S
            for run in self.runs
            if run.task.job.user == user and run.started_s < until_s
        )

    def _hours(self) -> dict[int, float]:
        self._decay(self.now_s)
        hours = dict(self._ended_hours)
        for run in self._running.values():
            use = Use(run.task.job.user, self.policy.charged(run.task.job.amounts), run.started_s)
            hours[use.user] = hours.get(use.user, 0.0) + decayed_hours(use, self.now_s, self.policy.half_life_s)
        return hours

    def _decay(self, now_s: float) -> None:
        factor = 0.5 ** ((now_s - self._decayed_s) / self.policy.half_life_s)
        self._ended_hours = {user: hours * factor for user, hours in self._ended_hours.items()}
        self._decayed_s = now_s

    def _start(self, job: WaitingJob) -> None:
        one = self._tasks.pop(job.id)
        run = Run(one, self.now_s, self.now_s + one.runtime_s)
        self._running[job.id] = run
        self.runs.append(run)
        heapq.heappush(self._ends, (run.ends_s, job.id))
        recent = [(came_s, at_s) for came_s, at_s in self._starts.get(job.user, ()) if at_s > self.now_s - 30 * 86400]
        self._starts[job.user] = [*recent[-500:], (job.arrived_s, self.now_s)]
        used = self.capacity
        for run in self._running.values():
            used = used.minus(run.task.job.amounts)
        assert min(used[:3]) >= 0, "more runs than there is"
        for more in self._following(one, self.now_s):
            heapq.heappush(self._coming, (more.job.arrived_s, more.job.id, more))

    def next_s(self) -> float | None:
        """Return when something happens next; None: never."""
        times = [heap[0][0] for heap in (self._ends, self._coming) if heap]
        return min(times, default=None)
