"""Tasks of the simulated cluster: what they say, and how they obey."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.am.model import events
from dlapp.cluster.engine import ContainerEnd
from dlapp.values.messages import Assignment, Fault, Hello, Orders, Phase, Report, Stop, TaskResult
from tests.am.simulated.box import Box
from tests.am.simulated.plan import PHASES

if TYPE_CHECKING:
    from tests.am.simulated.world import World


class Tasks:
    """Behaviour of the tasks of all containers."""

    def __init__(self, world: World) -> None:
        self.world = world

    def start_task(self, box: Box) -> None:
        if box.started:
            self.world.violated(f"{box.grant.container_id} was started twice")
        if box.ended:
            return  # it died on its way to us; its end is among the news
        if self.world.plan.start_failed and self.world.chance.random() < self.world.plan.start_failed:
            box.ended = True
            self.world.engine.news_failed.append(ContainerEnd(container_id=box.grant.container_id, exit_status=1))
            return
        box.started = True
        if box.grant.container_id.attempt == self.world.attempt:
            self.world.schedule(0.02, lambda: self.world.engine.news_started.append(box.grant.container_id))
        wait = self.world.chance.uniform(0.05, 0.4)
        if self.world.plan.task_late and self.world.chance.random() < self.world.plan.task_late:
            wait = self.world.chance.uniform(20, 60)
        if self.world.plan.slow_files and self.world.chance.random() < self.world.plan.slow_files:
            wait = self.world.chance.uniform(40, 80)
            box.prepared_at = self.world.now + wait
        if self.world.plan.task_killed and self.world.chance.random() < self.world.plan.task_killed:
            self.world.schedule(self.world.chance.uniform(0, 10), lambda: self.kill_task(box))
        if self.world.plan.task_hangs and self.world.chance.random() < self.world.plan.task_hangs:
            self.world.schedule(self.world.chance.uniform(0, 10), lambda: setattr(box, "hangs", True))
        if self.world.plan.task_pauses and self.world.chance.random() < self.world.plan.task_pauses:
            self.world.schedule(self.world.chance.uniform(0, 15), lambda: self.pause_task(box))
        self.world.schedule(wait, lambda: self.talk(box))

    def pause_task(self, box: Box) -> None:
        def go_on() -> None:
            box.hangs = False
            self.talk(box)

        box.hangs = True
        self.world.schedule(self.world.chance.uniform(1, 40), go_on)

    def kill_task(self, box: Box) -> None:
        if box.alive:
            box.blamed = box.index is not None and box.result is None and not box.replaced
            self.world.engine.end_box(box, -9)

    def talk(self, box: Box) -> None:
        """The task's talking thread: it says hello until it has work, then reports in intervals."""
        if not box.alive or box.hangs or self.world.ending is not None:
            return
        self.world.schedule(self.world.plan.talk_s, lambda: self.talk(box))
        if self.world.master is None or (
            not self.world.published and box.grant.container_id.attempt < self.world.attempt
        ):
            return
        # A task that runs trials names them in its first message to a later attempt, as that of `dlapp.task.link` does.
        is_greeted = box.greeted_attempt == self.world.attempt or self.world.trials.exist
        if box.index is None or not is_greeted:
            if box.index is not None and self.world.attempt > 1 and self.world.chance.random() < 0.3:
                return  # it has not found the new address yet
            hello = Hello(
                container_id=box.grant.container_id,
                host=box.grant.node,
                pid=1,
                index=box.index,
                phase=box.phase,
                generation=box.generation,
            )
            box.asked_attempt = self.world.attempt
            self.to_master(box, hello)
        else:
            self.report(box)

    def report(self, box: Box) -> None:
        assert box.index is not None
        if box.result is None or box.number == 0 or not box.talking:
            box.number += 1
        box.talking = box.result is not None  # the last word keeps its number
        report = Report(
            container_id=box.grant.container_id,
            number=box.number,
            index=box.index,
            phase=box.phase,
            trials=tuple(box.trials.values()),
            result=box.result,
            failure=box.failure,
            generation=box.generation,
            seen=box.orders.number if box.orders else 0,
            address=box.address,
            checkpoints=box.checkpoints.found,
            restored=box.checkpoints.restored,
        )
        self.to_master(box, report)

    def to_master(self, box: Box, message: Hello | Report) -> None:
        """Say something to the attempt whose address the task knows now; another one never gets to hear it."""
        attempt = self.world.attempt
        if self.world.published or box.grant.container_id.attempt == attempt:
            self.world.message(lambda: self.arrive(box, message, attempt))

    def arrive(self, box: Box, message: Hello | Report, attempt: int) -> None:
        if self.world.master is None or self.world.ending is not None or self.world.attempt != attempt:
            return
        box.heard_at = self.world.now
        if box.replaced and box.payload:
            self.world.schedule(30.0, lambda: self.world.checks.check_replaced(box, attempt))
        if isinstance(message, Report) and (message.result is not None or message.failure is not None):
            assert box.index is not None
            box.blamed &= message.generation >= self.world.master.state.role_of_index(box.index).gate.generation
            self.world.checks.blame_user(box)
        actions = self.world.handle(message)
        if isinstance(message, Report):
            orders = self.world.master.orders_of(box.grant.container_id) if self.world.master else None
            if orders is not None:
                self.world.message(lambda: self.on_orders(box, orders))
            if message.result is not None:
                self.world.unanswered.append((self.world.recorded + len(self.world.fleeting), box))
                if not self.world.fleeting:
                    self.world.record()
        elif any(isinstance(action, events.Assign) for action in actions):
            box.greeted_attempt = attempt

    def on_assign(self, box: Box, assignment: Assignment) -> None:
        if not box.alive or box.hangs or assignment.attempt < max(box.heard_attempt, box.asked_attempt):
            return  # a task has one hello on its way at a time: the answer to an earlier one is not read any more
        box.heard_attempt = box.greeted_attempt = assignment.attempt
        if box.index is not None:
            if box.index != assignment.index:
                self.world.violated(f"{box.grant.container_id} runs {box.index} and was given {assignment.index}")
            return
        box.index, box.generation = assignment.index, assignment.generation
        box.checkpoints.is_alone = (
            self.world.master is not None and self.world.master.state.role_of_index(box.index).gate.open
        )
        self.step(box, 0, box.run)

    def step(self, box: Box, place: int, run: int) -> None:
        if not box.alive or box.result is not None or run != box.run:
            return
        box.phase = PHASES[place]
        if box.phase is Phase.WAITING:
            box.reached_gate = True
        waits = box.phase is Phase.FETCHING and self.has_checkpoints(box)
        if waits:
            self.world.checkpoints.find(box)
        if not box.hangs:
            self.report(box)
        if waits:
            self.maybe_restore(box)
        elif box.phase is Phase.WAITING:
            self.maybe_go(box)
        else:
            self.world.schedule(
                self.world.chance.uniform(0, self.world.plan.step_s), lambda: self.step(box, place + 1, run)
            )

    def has_checkpoints(self, box: Box) -> bool:
        assert box.index is not None
        role, _ = self.world.submission.spec.role_of(box.index)
        is_in_gang = any(role in gang for gang in self.world.submission.spec.gangs())
        return is_in_gang and self.world.submission.spec.checkpoint_of(role)[0] is not None

    def maybe_restore(self, box: Box) -> None:
        """Restore the checkpoint of a task that waits to hear which one, if it has heard."""
        orders, own = box.orders, box.checkpoints
        if orders is None or orders.generation != box.generation or orders.checkpoint in (None, *own.broken):
            return
        if box.phase is not Phase.FETCHING or own.found is None or own.restored is not None:
            return
        if self.world.checkpoints.restore(box):
            run = box.run
            self.world.schedule(self.world.chance.uniform(0, self.world.plan.step_s), lambda: self.step(box, 2, run))
            return
        self.world.checkpoints.find(box)
        if not box.hangs:
            self.report(box)

    def prepare_again(self, box: Box, generation: int) -> None:
        box.run += 1
        box.generation = generation
        box.checkpoints.begin()
        self.step(box, 0, box.run)

    def maybe_store(self, box: Box, step: int, run: int) -> None:
        """A payload has reached a step, and its task stores that."""
        if not box.payload or not box.alive or run != box.run:
            return
        self.world.schedule(self.world.chance.uniform(0.9, 1.1), lambda: self.maybe_store(box, step + 1, run))
        if self.world.checkpoints.store(box, step) and not box.hangs:
            self.report(box)

    def on_orders(self, box: Box, orders: Orders) -> None:
        if not box.alive or box.hangs or box.index is None:
            return
        if orders.attempt < box.heard_attempt:
            return
        if orders.attempt == box.heard_attempt and box.orders and orders.number <= box.orders.number:
            return
        box.heard_attempt, box.orders = orders.attempt, orders
        if orders.stop is not Stop.NO and box.result is None:
            self.on_stop(box, orders)
        elif orders.generation > box.generation and box.result is None and not box.storing_now:
            self.begin_generation(box, orders.generation)
        elif box.phase is Phase.FETCHING and self.has_checkpoints(box):
            self.maybe_restore(box)
        elif box.payload and self.world.trials.exist:
            self.world.trials.obey(box)
        else:
            self.maybe_go(box)

    def begin_generation(self, box: Box, generation: int) -> None:
        """End the payload of a task whose gang is restarted, and bring it to the gate again."""
        if box.failure is not None:
            box.failure, box.blamed = None, False
            self.prepare_again(box, generation)
            return
        if not box.payload and self.has_checkpoints(box):
            self.prepare_again(box, generation)
            return
        if not box.payload:
            box.generation = generation
            if box.phase is Phase.WAITING and not box.hangs:
                self.report(box)
            self.maybe_go(box)
            return
        box.run += 1
        run = box.run

        def over() -> None:
            if box.alive and box.payload and box.run == run:
                self.world.payloads.end(box)
                box.generation = max(generation, box.orders.generation if box.orders else 0)
                box.checkpoints.begin()
                self.step(box, 0, run)

        self.world.schedule(self.world.chance.uniform(0, 1.0), over)

    def on_stop(self, box: Box, orders: Orders) -> None:
        if orders.stop is Stop.SOFT and box.stopping is Stop.SOFT:
            return
        box.stopping, box.stop_reason = orders.stop, orders.reason
        if box.failure is not None:
            box.failure = None
            box.phase = Phase.STORING
            if orders.stop is Stop.SOFT:
                self.world.payloads.stored(box, Fault.USER)
                return
        if self.world.trials.exist and orders.stop is Stop.NOW:
            self.world.engine.end_box(box, 1)
        elif self.world.trials.exist and box.payload:
            self.world.trials.stop_softly(box)
        elif orders.stop is Stop.SOFT and box.payload:
            self.world.schedule(
                self.world.chance.uniform(0, orders.grace_s), lambda: self.world.payloads.finish(box, box.run)
            )
        elif orders.stop is Stop.NOW or not box.storing_now:
            self.world.payloads.end(box)
            self.world.payloads.say_result(box, TaskResult(fault=Fault.STOPPED))

    def maybe_go(self, box: Box) -> None:
        if box.orders is None or box.orders.generation != box.generation:
            return
        restored, chosen = box.checkpoints.restored, box.orders.checkpoint
        if box.phase is Phase.WAITING and not box.orders.go and None not in (restored, chosen) and chosen != restored:
            self.prepare_again(box, box.generation)
            return
        if box.phase is Phase.WAITING and box.orders and box.orders.go and box.stopping is Stop.NO and box.alive:
            if self.world.submission.spec.has_roster and not box.orders.roster:
                return
            self.world.payloads.begin(box)
