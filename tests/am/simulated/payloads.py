"""Payloads of the simulated cluster, from the gate to the result of their task."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.values.ids import ContainerId
from dlapp.values.messages import PREEMPTED, Fault, Phase, Stop, StoredOutput, TaskResult
from dlapp.values.spec import Gang, Until
from tests.am.simulated.box import Box

if TYPE_CHECKING:
    from tests.am.simulated.world import World


class Payloads:
    """Payloads that run, and how they ended."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.running: dict[int, Box] = {}
        self.begun: dict[int, int] = {}
        self.ended: dict[int, int] = {}
        self.completions: dict[int, tuple[ContainerId, TaskResult]] = {}

    def containers(self) -> dict[int, ContainerId]:
        """Return which container of each index was the last to end well."""
        return {index: container_id for index, (container_id, _) in self.completions.items()}

    def begin(self, box: Box) -> None:
        assert box.index is not None
        self.world.checks.check_roster(box)
        if self.world.tasks.has_checkpoints(box):
            role, _ = self.world.submission.spec.role_of(box.index)
            gang = next(gang for gang in self.world.submission.spec.gangs() if role in gang)
            indexes = [index for item in gang for index in self.world.indexes[item.name]]
            self.world.checkpoints.check_start(box, gang[0].name, filter(None, map(self.running.get, indexes)))
        other = self.running.get(box.index)
        self.world.checks.check_generations(box, box.index)
        if other is not None:
            if not (other.given_up or self.world.checks.is_out_of_reach(other)):
                mine, its = box.grant.container_id, other.grant.container_id
                self.world.violated(f"index {box.index} runs in {its} and was started in {mine}")
            other.replaced = True
        box.payload = True
        box.phase = Phase.RUNNING
        self.running[box.index] = box
        self.begun[box.index] = self.begun.get(box.index, 0) + 1
        if not box.hangs:
            self.world.tasks.report(box)
        role, _ = self.world.submission.spec.role_of(box.index)
        for dependency in role.depends_on:
            satisfied = self.begun if dependency.until is Until.STARTED else self.completions
            if any(index not in satisfied for index in self.world.indexes[dependency.role]):
                self.world.violated(f"{role.name} runs, and {dependency.role} has not {dependency.until.value}")
        if self.world.trials.exist:
            self.world.trials.obey(box)
            return
        if role.service and not self.world.plan.service_ends:
            return
        run = box.run
        if self.world.tasks.has_checkpoints(box) and self.world.checkpoints.stores(box.index):
            self.world.schedule(self.world.chance.uniform(0.9, 1.1), lambda: self.world.tasks.maybe_store(box, 1, run))
        self.world.schedule(self.world.chance.uniform(*self.world.plan.payload_s), lambda: self.finish(box, run))

    def end(self, box: Box) -> None:
        if box.payload:
            assert box.index is not None
            box.payload = False
            if not box.replaced:
                del self.running[box.index]

    def finish(self, box: Box, run: int) -> None:
        if not box.payload or not box.alive or run != box.run:
            return
        assert box.index is not None
        self.end(box)
        fault = Fault.NONE
        if not box.replaced:
            before = self.ended.get(box.index, 0)
            self.ended[box.index] = before + 1
            fault = self.world.plan.failing.get((box.index, before), Fault.NONE)
        box.blamed = fault is Fault.USER
        if box.stopping is Stop.SOFT:
            fault = self.world.chance.choice((Fault.NONE, Fault.STOPPED, Fault.USER))
            if box.stop_reason == PREEMPTED:  # also if the next master does not know of it
                fault = Fault.NODE
        if (
            fault is Fault.USER
            and box.stopping is Stop.NO
            and self.world.plan.gang is not Gang.NONE
            and not box.replaced
        ):
            box.failure = TaskResult(fault=fault, exit_code=3)
            if not box.hangs:
                self.world.tasks.report(box)
            if box.orders is not None and box.orders.generation > box.generation:
                self.world.tasks.begin_generation(box, box.orders.generation)
            return
        box.phase = Phase.STORING
        if not box.hangs:
            self.world.tasks.report(box)
        self.world.schedule(self.world.chance.uniform(0, self.world.plan.step_s), lambda: self.stored(box, fault))

    def stored(self, box: Box, fault: Fault) -> None:
        if not box.alive or box.result is not None:
            return
        assert box.index is not None
        outputs: tuple[StoredOutput, ...] = ()
        if self.world.plan.outputs and fault is not Fault.DATA:
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
                self.world.tasks.report(box)
