"""Engine of the simulated cluster: it grants and ends containers, and its nodes die or are lost."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from dlapp.cluster.engine import AnnouncedEnd, ContainerEnd, Grant, Heartbeat
from dlapp.values.ids import ContainerId
from tests.am.simulated.box import Box
from tests.am.simulated.plan import APPLICATION, PREEMPTION_WAIT_S

if TYPE_CHECKING:
    from tests.am.simulated.world import World


class SimulatedEngine:
    """Nodes and containers, and the news of them for the next heartbeat."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.nodes = [f"node{n}" for n in range(world.plan.nodes)]
        self.dead: set[str] = set()
        self.boxes: dict[ContainerId, Box] = {}
        self.numbers: dict[int, int] = {}
        self.wanted: dict[int, int] = {}
        self.news_granted: list[Grant] = []
        self.news_started: list[ContainerId] = []
        self.news_preparing: list[ContainerId] = []
        self.news_ended: list[ContainerEnd] = []
        self.news_ending: list[ContainerId] = []
        self.news_failed: list[ContainerEnd] = []
        self.news_preempted: list[ContainerId] = []
        self.unsaid: Heartbeat | None = None

    def forget_attempt(self) -> None:
        """Take back what was granted to an attempt and not started, and forget what it asked for."""
        for box in self.boxes.values():
            if not box.started and not box.ended:
                box.ended = True
        self.news_granted, self.news_started, self.news_preparing, self.wanted = [], [], [], {}

    def heartbeat(self) -> Heartbeat:
        assert self.world.master is not None
        if self.unsaid is not None:
            return self.unsaid
        for ask in self.world.master.container_requests():
            if ask.count < 0:
                self.world.violated(f"asked for {ask.count} containers")
            self.wanted[ask.request_id] = ask.count
        for container_id in self.world.master.releases():
            box = self.boxes[container_id]
            if box.started:
                self.world.violated(f"{container_id} was released after its task was started")
            if not box.released:
                box.released = True
                self.world.schedule(self.world.latency(), partial(self.end_box, box, -100))
        granted, self.news_granted = tuple(self.news_granted), []
        started, self.news_started = tuple(self.news_started), []
        preparing, self.news_preparing = tuple(self.news_preparing), []
        ended, self.news_ended = tuple(self.news_ended), []
        failed, self.news_failed = tuple(self.news_failed), []
        ending, self.news_ending = tuple(self.news_ending), []
        preempted, self.news_preempted = tuple(self.news_preempted), []
        if preempted:  # what ended in the same moment may be a consequence
            self.world.checks.forgiven += sum(self.boxes[container.container_id].blamed for container in ended)
        mine = self.world.attempt
        self.world.schedule(self.world.latency(), lambda: self.grant_some(mine))
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
        if self.world.master is None or self.world.attempt != attempt or self.world.ending is not None:
            return
        usable = [node for node in self.nodes if node not in self.dead]
        if not usable:
            self.dead.clear()  # somebody repairs the last node
            usable = self.nodes
        for request_id, count in list(self.wanted.items()):
            extra = count and self.world.plan.surplus and self.world.chance.random() < self.world.plan.surplus
            now = min(count, self.world.plan.grants_at_once)
            for _ in range(now + (1 if extra else 0)):
                number = self.numbers.get(attempt, 1) + 1
                self.numbers[attempt] = number
                role = self.world.submission.spec.roles[request_id - 1]
                grant = Grant(
                    container_id=ContainerId(APPLICATION, attempt, number),
                    request_id=request_id,
                    node=self.world.chance.choice(usable),
                    resources=role.resources,
                )
                self.boxes[grant.container_id] = Box(grant)
                self.news_granted.append(grant)
            self.wanted[request_id] -= now

    def kill_node(self) -> None:
        alive = [node for node in self.nodes if node not in self.dead]
        if not alive or self.world.ending is not None:
            return
        node = self.world.chance.choice(alive)
        self.dead.add(node)
        for box in self.boxes.values():
            if box.grant.node == node and not box.ended:
                # All that ran there is gone now; the engine finds out later.
                self.end_box(box, -100, node_fault=True, reported_in_s=self.world.chance.uniform(0.5, 10))

    def lose_node(self) -> None:
        alive = [node for node in self.nodes if node not in self.dead]
        if not alive or self.world.ending is not None:
            return
        node = self.world.chance.choice(alive)
        self.dead.add(node)
        for box in self.boxes.values():
            if box.grant.node == node and box.alive:
                box.on_lost_node = True
                self.news_ending.append(box.grant.container_id)
                container_id = box.grant.container_id
                end = ContainerEnd(container_id=container_id, exit_status=-100, node_fault=True, presumed=True)
                self.world.schedule(self.world.chance.uniform(0, 10), lambda end=end: self.news_ended.append(end))  # type: ignore[misc]

    def preempt(self) -> None:
        boxes = [box for box in self.boxes.values() if box.alive and not box.on_lost_node]
        if not boxes or self.world.ending is not None:
            return
        box = self.world.chance.choice(boxes)
        self.news_preempted.append(box.grant.container_id)
        self.world.schedule(PREEMPTION_WAIT_S, lambda: self.end_box(box, -102, node_fault=True))

    def end_box(self, box: Box, status: int, *, node_fault: bool = False, reported_in_s: float = 0.0) -> None:
        if box.ended:
            return
        box.ended = True
        self.world.payloads.end(box)
        end = ContainerEnd(container_id=box.grant.container_id, exit_status=status, node_fault=node_fault)
        if reported_in_s:
            self.world.schedule(reported_in_s, lambda: self.news_ended.append(end))
        else:
            self.news_ended.append(end)
