"""Simulated cluster for many gangs: each has an ApplicationMaster with the real decisions, all share one scheduler.

Nodes are all alike, and a member of a gang takes one. The scheduler knows nothing of gangs. It gives each node that is
free to one that asks, in one of the orders of `Order`. The oracle knows the runtimes of all gangs, and
starts a gang only where all of its members have a node.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from enum import Enum
from typing import NamedTuple

from dlapp.am.model.events import SettleOutputs, Tick
from dlapp.am.model.state import Timing
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.spec import Gang, RoleSpec
from tests.am.driving import Driver, result

STEP_S, LONGEST_STEP_S = 1, 10
"""While nodes are given; and the most that an ApplicationMaster's own clock advances at once."""
PREPARE_S = (5, 60)
"""From a container to a task that is ready: the image is pulled, the workspace unpacked."""
END_S = 2
"""From an order to stop to a node that is free."""


class Order(Enum):
    """Order in which a scheduler gives what is free."""

    FIRST_COME = "first come"
    """To those who came first, as the CapacityScheduler does within a queue."""
    FAIR = "fair"
    """To those who have least, node by node; so all of them get a part of what they need."""
    RANDOM = "random"


class Job(NamedTuple):
    """Size and runtime [s] of one gang."""

    members: int
    runtime_s: int

    @property
    def work(self) -> int:
        """Node-seconds."""
        return self.members * self.runtime_s


class GangRun:
    """One gang: its ApplicationMaster and its tasks."""

    def __init__(self, job: Job, place: int, seed: str, window_s: float) -> None:
        self.job, self.place = job, place
        self.chance = random.Random(seed)
        self.am = Driver(
            RoleSpec(instances=job.members),
            gang=Gang.ALL,
            gang_window_s=window_s,
            timing=Timing(silence_ms=1 << 40, hello_ms=1 << 40),
        )
        self.am.state.chance = self.chance
        self.now_s = self.held = 0
        self.ready: list[tuple[int, int]] = []
        self.ending: deque[tuple[int, int]] = deque()
        self.ends_s: int | None = None
        self.runs_since_s = 0
        self.is_done = False
        self.releases = 0
        self._next = 2

    @property
    def requested(self) -> int:
        """Number of nodes that it wants now."""
        if self.is_done or self.ends_s is not None:
            return 0
        return max(0, self.am.state.roles[0].missing)

    def take(self, count: int) -> None:
        """Take nodes that were given."""
        numbers = range(self._next, self._next + count)
        self._next += count
        self.held += count
        self.am.granted(*numbers)
        for number in numbers:
            self.am.hello(number)
            heapq.heappush(self.ready, (self.now_s + self.chance.randint(*PREPARE_S), number))

    def step(self, now_s: int) -> int:
        """Live until a moment; return how many nodes came free."""
        passed_s, self.now_s = now_s - self.now_s, now_s
        if self.is_done:
            return 0
        if self.ends_s is not None:
            return self._end() if now_s >= self.ends_s else 0
        before = self.am.state.gates[0].releases
        self.am.do(Tick(), passed_s)
        self.releases += max(0, self.am.state.gates[0].releases - before)
        self._obey()
        freed = 0
        while self.ending and self.ending[0][0] <= now_s:
            self.am.finished(self.ending.popleft()[1], result(Fault.STOPPED, None, None))
            freed += 1
        while self.ready and self.ready[0][0] <= now_s:
            number = heapq.heappop(self.ready)[1]
            if self.am.orders(number).stop is Stop.NO:
                self.am.report(number, Phase.WAITING)
        if self.am.state.gates[0].open:
            for container in list(self.am.state.containers.open):
                self.am.report(container.number, Phase.RUNNING)
            self.runs_since_s, self.ends_s = now_s, now_s + self.job.runtime_s
        self.held -= freed
        return freed

    def _obey(self) -> None:
        on_their_way = {number for _, number in self.ending}
        for container_id, container in self.am.state.containers.open.items():
            is_stopped = container.orders is not None and container.orders.stop is not Stop.NO
            if is_stopped and container_id.number not in on_their_way:
                self.ending.append((self.now_s + END_S, container_id.number))

    def _end(self) -> int:
        for container in list(self.am.state.containers.open):
            self.am.finished(container.number)
        assert self.am.of(SettleOutputs, self.am.all)
        freed, self.held, self.is_done = self.held, 0, True
        return freed

    def next_s(self) -> int:
        """Return when it has something to do."""
        if self.ends_s is not None:
            return self.ends_s
        times = [self.now_s + LONGEST_STEP_S, *(item[0][0] for item in (self.ready, self.ending) if item)]
        paused_ms = self.am.state.gates[0].paused_until_ms
        if paused_ms is not None and not self.ending:
            times.append(self.now_s + max(1, -(-(paused_ms - self.am.state.awake_ms) // 1000)))
        return min(times)

    def work_until(self, at_s: int) -> int:
        """Return the node-seconds in which its payloads had run by a moment."""
        if self.ends_s is None:
            return 0
        return self.job.members * max(0, min(at_s, self.ends_s) - self.runs_since_s)


def run(jobs: list[Job], nodes: int, order: Order, seed: int, *, window_s: float = 600.0) -> list[GangRun]:
    """Run all gangs to their ends.

    Raises:
        AssertionError: they do not end.
    """
    chance = random.Random(f"scheduler {seed}")
    gangs = [GangRun(job, place, f"{seed} {place}", window_s) for place, job in enumerate(jobs)]
    limit_s = 20 * sum(job.runtime_s for job in jobs) + 100_000
    free, now_s = nodes, 0
    left = list(gangs)
    while left:
        for item in left:
            if item.next_s() <= now_s:
                free += item.step(now_s)
        left = [item for item in left if not item.is_done]
        asking = [item for item in left if free and item.requested]
        if asking:
            for item in asking:
                free += item.step(now_s)
            free -= _give(asking, free, order, chance)
        assert free >= 0
        assert now_s < limit_s, f"seed {seed}: {len(left)} of {len(gangs)} gangs do not end"
        due_s = min((item.next_s() for item in left), default=now_s)
        now_s = max(now_s + STEP_S, due_s if not (free and any(item.requested for item in left)) else now_s + STEP_S)
    assert free == nodes, f"seed {seed}"
    return gangs


def _give(asking: list[GangRun], free: int, order: Order, chance: random.Random) -> int:
    """Give free nodes to those that ask; return how many."""
    asking = [item for item in asking if item.requested]
    wanted = {item.place: item.requested for item in asking}
    given = dict.fromkeys(wanted, 0)
    if order is Order.FIRST_COME:
        for item in sorted(asking, key=lambda one: one.place):
            given[item.place] = min(wanted[item.place], free - sum(given.values()))
    else:
        heap = [(item.held if order is Order.FAIR else chance.random(), item.place) for item in asking]
        heapq.heapify(heap)
        for _ in range(min(free, sum(wanted.values()))):
            key, place = heapq.heappop(heap)
            given[place] += 1
            if given[place] < wanted[place]:
                heapq.heappush(heap, (key + 1 if order is Order.FAIR else chance.random(), place))
    for item in asking:
        if given[item.place]:
            item.take(given[item.place])
    return sum(given.values())


def oracle_s(jobs: list[Job], nodes: int) -> int:
    """Return when a scheduler has run all gangs that knows all of them, and starts each as a whole [s]."""
    orders = (
        lambda job: -job.runtime_s,
        lambda job: -job.work,
        lambda job: (-job.members, -job.runtime_s),
    )
    return min(_listed_s(sorted(jobs, key=order), nodes) for order in orders)


def _listed_s(jobs: list[Job], nodes: int) -> int:
    prepare_s = max(PREPARE_S)
    left, free, now_s = list(jobs), nodes, 0
    running: list[tuple[int, int]] = []
    while left or running:
        for job in list(left):
            if job.members <= free:
                left.remove(job)
                free -= job.members
                heapq.heappush(running, (now_s + prepare_s + job.runtime_s, job.members))
        now_s, members = heapq.heappop(running)
        free += members
    return now_s


def share_of_oracle(gangs: list[GangRun], until_s: int) -> float:
    """Return which share of all work is done when the oracle has done all of it."""
    return sum(gang.work_until(until_s) for gang in gangs) / sum(gang.job.work for gang in gangs)
