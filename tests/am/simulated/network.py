"""Time and messages of the simulated cluster."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable

from tests.am.simulated.plan import Plan, Violation


class Network:
    """Clock, the events that are ahead, and messages that are late, doubled or lost, all out of the plan's seed."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = random.Random(f"world {plan.seed}")
        self.now = 0.0
        self.ahead: list[tuple[float, int, Callable[[], object]]] = []
        self.count = 0

    def schedule(self, in_s: float, what: Callable[[], object]) -> None:
        self.count += 1
        heapq.heappush(self.ahead, (self.now + in_s, self.count, what))

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
