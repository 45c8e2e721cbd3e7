"""A container of the simulated cluster."""

from __future__ import annotations

from dlapp.cluster.engine import Grant
from dlapp.values.messages import Orders, Phase, Stop, TaskResult, TrialReport
from tests.am.simulated.checkpoints import BoxCheckpoints

TrialKey = tuple[int, int]
"""Number of a trial, and of its try."""


class Box:
    """A container as the engine knows it, with the task in it."""

    def __init__(self, grant: Grant) -> None:
        self.grant = grant
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
        self.trials: dict[TrialKey, TrialReport] = {}

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
