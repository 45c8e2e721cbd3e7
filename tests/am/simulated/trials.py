"""Trials in the simulated cluster: tasks run them as `dlapp.task.sweep.worker` does.

What must hold of each trial is checked while it happens: two containers never run it at a time, what is on record as
ended never runs again, and its output is committed once.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

from dlapp.am.model import events, journal
from dlapp.value import replace
from dlapp.values.ids import trial_part
from dlapp.values.messages import Fault, StoredOutput, TaskResult, TrialReport
from tests.am.simulated.plan import APPLICATION, SweepPlan, TrialOutcome

if TYPE_CHECKING:
    from tests.am.simulated.box import Box, TrialKey
    from tests.am.simulated.world import World

MOST_DEATHS = 3
"""Kills of one index: its fourth failure that its program did not cause would end the sweep."""
KILLED_AT_COMMIT = 0.1
"""Share of the commits of trials after which the ApplicationMaster is killed before it hears of them."""


def stored(number: int, try_number: int) -> StoredOutput:
    """Return what a try of a trial stores."""
    place = f"file:///results/run.{APPLICATION}.tmp/{trial_part(number, try_number)}"
    return StoredOutput(name="", part=place, files=1, size_bytes=1)


def well(number: int, try_number: int) -> TrialOutcome:
    """Return the outcome of a trial whose program ends well, with one report of the metric."""
    result = TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored(number, try_number),))
    return result, ((1.0, float(number)),)


class SimulatedTrials:
    """Trials of all containers, if the plan has a sweep."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.exist = world.plan.sweep is not None
        self.on_record: dict[int, str] = {}
        self.starts: dict[int, int] = {}
        self.committed: dict[int, str] = {}
        self.begun_commits: set[int] = set()
        self.most_running = 0
        self._learned = 0
        self._deaths = Counter[int]()
        self._unknown_deaths = 0
        """Kills of containers that had not heard of their index."""

    @property
    def plan(self) -> SweepPlan:
        """Return what is planned of them."""
        assert self.world.plan.sweep is not None
        return self.world.plan.sweep

    # ---- the tasks ----

    def obey(self, box: Box) -> None:
        """Begin and stop the trials that a task's orders name, and end the task when there are no more."""
        orders = box.orders
        if orders is None or orders.trials is None or not orders.go or box.result is not None:
            return
        named = {(trial.number, trial.try_number): trial for trial in orders.trials}
        for key, one in list(box.trials.items()):
            if key not in named:
                del box.trials[key]
            elif named[key].stop and one.result is None:
                self._stop(box, key, exit_code=-15)
                self.world.tasks.report(box)
        for key in named:
            if key not in box.trials:
                self._begin(box, key)
        if not box.trials and orders.trials_are_over:
            self._finish(box, Fault.NONE)

    def stop_softly(self, box: Box) -> None:
        """End all trials of a task, and the task."""
        for key, one in list(box.trials.items()):
            if one.result is None:
                self._stop(box, key, exit_code=1)
        self._finish(box, Fault.STOPPED)

    def _stop(self, box: Box, key: TrialKey, *, exit_code: int) -> None:
        result = TaskResult(fault=Fault.STOPPED, exit_code=exit_code, outputs=(stored(*key),))
        box.trials[key] = replace(box.trials[key], result=result)

    def _finish(self, box: Box, fault: Fault) -> None:
        self.world.payloads.end(box)
        self.world.payloads.say_result(box, TaskResult(fault=fault))

    def _begin(self, box: Box, key: TrialKey) -> None:
        number = key[0]
        if number in self.on_record:
            self.world.violated(f"trial {number} runs again, it {self.on_record[number]}")
        for other in self.world.engine.boxes.values():
            if other.alive and any(n == number and one.result is None for (n, _), one in other.trials.items()):
                self.world.violated(f"trial {number} runs twice")
        busy = sum(trial.result is None for trial in box.trials.values())
        if busy >= self.plan.spec.trials_per_container:
            self.world.violated(f"{box.grant.container_id} has no room for trial {number}")
        self.starts[number] = self.starts.get(number, 0) + 1
        box.trials[key] = TrialReport(number=number, try_number=key[1])
        result, points = self.plan.outcome(*key)
        chance, trial_s = self.world.chance, self.plan.trial_s
        for count in range(1, len(points) + 1):
            self.world.schedule(chance.uniform(*trial_s) * 0.9, partial(self._step, box, key, points[:count]))
        self.world.schedule(chance.uniform(*trial_s), partial(self._step, box, key, points, result))

    def _step(
        self, box: Box, key: TrialKey, points: tuple[tuple[float, float], ...], result: TaskResult | None = None
    ) -> None:
        """Let a trial report points, and end if it has a result."""
        one = box.trials.get(key)
        if not box.alive or one is None or one.result is not None:
            return
        if result is not None or len(points) > len(one.points):
            box.trials[key] = replace(one, points=points, reports=len(points), result=result)
            self.world.tasks.report(box)

    def kill_worker(self) -> None:
        """Kill a container that has not been killed too often."""
        alive = [
            box
            for box in self.world.engine.boxes.values()
            if box.alive and self._unknown_deaths + self._most_deaths(box.index) < MOST_DEATHS
        ]
        if alive and self.world.ending is None:
            victim = self.world.chance.choice(alive)
            if victim.index is None:
                self._unknown_deaths += 1
            else:
                self._deaths[victim.index] += 1
            self.world.engine.end_box(victim, -9)

    def _most_deaths(self, index: int | None) -> int:
        return max(self._deaths.values(), default=0) if index is None else self._deaths[index]

    # ---- the ApplicationMaster ----

    def learn(self) -> None:
        """Learn what the durable journal says of trials that have ended."""
        for record in journal.records(self.world.durable[self._learned :]):
            if record["kind"] == "trial_end" and record["state"] != "killed":
                is_taken = "sources" in record  # written again where an attempt died while it did that
                if not is_taken and record["number"] in self.on_record:
                    self.world.violated(f"{record} ended twice")
                self.on_record[record["number"]] = f"{record['state']} {record['try']}"
        self._learned = len(self.world.durable)

    def commit(self, part: events.Part, attempt: int, *, again: bool) -> None:
        """Commit the output of one trial."""
        world = self.world
        if attempt != world.attempt or world.master is None or world.outputs.last is not None:
            return
        if part.index not in self.on_record:
            world.violated(f"{part} is committed before its end is on record")
        before = self.committed.setdefault(part.index, part.trial)
        if before != part.trial:
            world.violated(f"{part} is committed after {before}")
        if part.index in self.begun_commits and not again:
            world.violated(f"{part} is committed twice")
        self.begun_commits.add(part.index)
        if world.chance.random() < KILLED_AT_COMMIT:
            world.kill_master()

        def committed() -> None:
            # A thread of the same process says so: that is never lost, but with the process.
            if attempt == world.attempt:
                world.handle(events.TrialCommitted(part.index))

        world.schedule(0.001, committed)
