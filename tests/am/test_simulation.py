"""The ApplicationMaster's mind against `simulation.World`, at many seeds; and bugs planted in it, which must be seen.

`DLAPP_FAULTS=full` runs twenty times as many seeds. A failure names its seed.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator

import pytest

from dlapp.am import verdict
from dlapp.am.demand import Role
from dlapp.am.events import SettleOutputs
from dlapp.am.instance import Container, Instance, Why
from dlapp.am.master import Master
from dlapp.cluster import Grant
from dlapp.control import Fault, TaskResult
from dlapp.ids import ContainerId
from dlapp.report import Cause, FinalStatus
from dlapp.spec import RoleSpec, StartRule
from tests.am.plan import Plan, Violation
from tests.am.simulation import World

TIMES = 20 if os.environ.get("DLAPP_FAULTS") == "full" else 1


def test_whatever_goes_wrong_it_ends_as_it_must() -> None:
    causes: Counter[Cause] = Counter()
    attempts: Counter[int] = Counter()
    for seed in range(500 * TIMES):
        world = World(Plan.of_seed(seed))
        causes[world.run().cause] += 1
        attempts[world.attempt] += 1
    assert set(causes) == set(Cause), f"the seeds should reach every end, and reach {causes}"
    assert len(attempts) >= 3, f"the seeds should reach a third attempt, and reach {attempts}"


def unlucky_in_journal(seed: int) -> Plan:
    """The ApplicationMaster dies and its journal cannot be read; faults that are only counted there do not happen."""
    plan = Plan.of_seed(seed)
    plan.journal, plan.failing, plan.task_killed, plan.commit_fails = "lost", {}, 0.0, False
    plan.soft_kill_at = plan.kill_at = plan.max_runtime_s = None
    plan.am_deaths = plan.am_deaths or (seed % 17 + 0.37,)
    return plan


def test_a_next_attempt_goes_on_without_any_journal() -> None:
    for seed in range(150 * TIMES):
        World(unlucky_in_journal(seed)).run()


def plans_that_end_one_way() -> Iterator[Plan]:
    """Plans of which the end depends on the program alone: messages are lost, nothing dies but ApplicationMasters."""
    for seed in range(100 * TIMES):
        plan = Plan.of_seed(seed)
        plan.start_failed = plan.task_killed = plan.task_hangs = plan.task_late = 0.0
        plan.node_deaths = plan.am_deaths = ()
        plan.soft_kill_at = plan.kill_at = plan.max_runtime_s = None
        plan.loss, plan.late, plan.commit_fails = min(plan.loss, 0.05), 0.0, False
        blamed = seed % plan.submission.spec.containers
        role, _ = plan.submission.spec.role_of(blamed)
        plan.failing = {(blamed, time): Fault.USER for time in range(seed % (role.retries + 2))}
        if role.start is StartRule.GANG and any(blamed == index for index, _ in plan.failing):
            plan.failing = {}  # which run of a gang's member counts as its second depends on its peers
        yield plan


def test_a_second_attempt_reaches_the_same_end() -> None:
    for plan in plans_that_end_one_way():
        alone = World(plan).run()
        for when in (0.3, 1.5, 4.0, 8.0):
            plan.am_deaths, plan.journal = (when,), "whole"
            world = World(plan)
            taken_over = world.run()
            where = f"seed {plan.seed}, the first attempt died at {when} s"
            assert taken_over == alone, where
            if alone.final_status is FinalStatus.SUCCEEDED and plan.outputs:
                assert world.swapped is not None, where


def test_ten_thousand_containers_come_to_their_end_in_seconds() -> None:
    plan = Plan(
        1,
        roles=(RoleSpec(instances=10_000),),
        nodes=100,
        loss=0.01,
        double=0.01,
        late=0.01,
        surplus=0.5,
        start_failed=0.005,
        task_hangs=0.001,
        task_late=0.001,
        node_deaths=(3.0, 7.0),
        am_deaths=(6.0,),
        talk_s=5.0,
        grants_at_once=2000,
    )
    world = World(plan)
    began = time.process_time()
    ending = world.run()
    assert ending.final_status is FinalStatus.SUCCEEDED
    assert world.swapped is not None
    assert len(world.swapped.parts) == 10_000
    # It takes 3 s. Were any event's cost to grow with the number of containers, it would be minutes.
    assert time.process_time() - began < 60


# ---- planted bugs ----


class RestartsAnIndexBeforeItsContainerHasEnded(Master):
    def _stop(self, container: Container, why: Why, *, at_once: bool = False) -> None:
        super()._stop(container, why, at_once=at_once)
        instance = container.instance
        if why in (Why.SILENT, Why.RECALLED) and instance is not None and instance.container is container:
            self._free(instance)


class KeepsSurplusContainers(Master):
    def releases(self) -> tuple[ContainerId, ...]:
        return ()


class StartsWhatItWasToldTwice(Master):
    def _is_new(self, container_id: ContainerId) -> bool:
        return True


class GivesOutIndexesThatMayRun(Master):
    def _unknown_index(self, container: Container) -> None:
        super()._unknown_index(container)
        self.roles[container.place].blockers.clear()


class TriesAgainWithoutEnd(Master):
    def _lost(self, instance: Instance, container: Container, judged: verdict.Verdict) -> None:
        super()._lost(instance, container, judged._replace(free=judged.fault is not Fault.NONE, fault=_as_node(judged)))


def _as_node(judged: verdict.Verdict) -> Fault:
    return Fault.NODE if judged.fault is Fault.USER else judged.fault


class OpensTheGateToTheFirst(Master):
    def _at_the_gate(self, instance: Instance) -> None:
        gate = self.roles[self._place(instance)].gate
        gate._size = 1
        super()._at_the_gate(instance)


class CommitsTwice(Master):
    def _settle(self) -> None:
        super()._settle()
        self._do(next(one for one in self._actions if isinstance(one, SettleOutputs)))


class AsksOnceToStop(Master):
    def _at(self, in_ms: int, what: object, container: Container) -> None:
        if getattr(what, "name", "") != "STOP":
            super()._at(in_ms, what, container)  # type: ignore[arg-type]


class DoesNotMissTheSilent(Master):
    def _look_at_deadlines(self) -> None:
        self._due = [one for one in self._due if one[2].name != "SILENCE"]
        super()._look_at_deadlines()


class ForgetsWhatWasStored(Master):
    def _take_stored(self, instance: Instance, container: Container, result: TaskResult) -> None:
        if self.attempt == 1:
            super()._take_stored(instance, container, result)


class TakesAGangForWhole(Master):
    def _restart_gang(self, role: Role) -> None:
        pass


class GivesUpTasksThatCannotFindIt(Master):
    def _look_at_recovery(self) -> None:
        self._unpublished_until_ms = 0
        super()._look_at_recovery()


class LosesSightOfAContainer(Master):
    def _on_grant(self, grant: Grant) -> None:
        super()._on_grant(grant)
        if grant.container_id.number == 3:
            self.open.pop(grant.container_id, None)
            self.live.pop(grant.container_id, None)


PLANTED = (
    RestartsAnIndexBeforeItsContainerHasEnded,
    KeepsSurplusContainers,
    StartsWhatItWasToldTwice,
    GivesOutIndexesThatMayRun,
    TriesAgainWithoutEnd,
    OpensTheGateToTheFirst,
    CommitsTwice,
    AsksOnceToStop,
    DoesNotMissTheSilent,
    ForgetsWhatWasStored,
    TakesAGangForWhole,
    GivesUpTasksThatCannotFindIt,
    LosesSightOfAContainer,
)


@pytest.mark.parametrize("mind", PLANTED, ids=lambda mind: mind.__name__)
def test_a_planted_bug_is_seen(mind: type[Master]) -> None:
    for seed in range(2000):
        silent = Plan.of_seed(seed)
        silent.task_hangs, silent.am_deaths = 0.3, ()
        for plan in (Plan.of_seed(seed), unlucky_in_journal(seed), silent):
            try:
                World(plan, mind).run(limit_s=600)
            except Violation:
                return
    pytest.fail(f"{mind.__name__} went unseen at 2000 seeds")
