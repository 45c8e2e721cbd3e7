"""Outputs of the simulated cluster: they are committed or dropped once."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.am.model import events
from dlapp.values.ids import ContainerId
from dlapp.values.report import OutputView

if TYPE_CHECKING:
    from tests.am.simulated.world import World


class Outputs:
    """Outputs that the ApplicationMaster had settled."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.claim: events.SettleOutputs | None = None
        self.swapped: events.SettleOutputs | None = None
        self.last: events.SettleOutputs | None = None
        self.settled: set[tuple[int, events.Settlement]] = set()
        self.at_claim: dict[int, ContainerId] = {}

    def settle(self, wanted: events.SettleOutputs) -> None:
        mine = self.world.attempt
        self.last = wanted
        committing = wanted.how is events.Settlement.COMMIT
        if (mine, wanted.how) in self.settled:
            self.world.violated(f"asked twice to {wanted.how.value} the output")
        self.settled.add((mine, wanted.how))

        def work() -> None:
            if self.world.attempt != mine or self.world.master is None:
                return
            ended = None
            if committing and self.world.plan.commit_fails:
                self.world.schedule(0.1, lambda: answer(events.OutputsSettled(error="the disk is full")))
                return
            if committing:
                if self.claim is None:
                    self.claim = wanted
                    self.at_claim = self.world.payloads.containers()
                else:
                    ended = self.claim.ending
                if self.world.chance.random() < 0.5 and self.swapped is None:
                    self.world.schedule(0.2, swap)
                    return
                swap()
                return
            view = OutputView(name="", target="file:///results/run")
            self.world.schedule(0.1, lambda: answer(events.OutputsSettled((view,), None, ended)))

        def swap() -> None:
            if self.world.attempt != mine or self.world.master is None:
                return
            if self.swapped is None:
                self.swapped = self.claim
            ended = self.claim.ending if self.claim is not wanted and self.claim else None
            view = OutputView(name="", target="file:///results/run", committed=True)
            self.world.schedule(self.world.latency(), lambda: answer(events.OutputsSettled((view,), None, ended)))

        def answer(settled: events.OutputsSettled) -> None:
            if self.world.attempt == mine:
                self.world.handle(settled)

        self.world.schedule(self.world.latency(), work)
