"""Test what becomes of a gang of which one rank is killed: each phase, each way to be killed, each policy.

The tasks do what they are ordered to, so that each case runs to its end: all ranks succeed, or the application fails.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from dlapp.am.decisions.assessment import NODE_RETRIES
from dlapp.am.model.events import SettleOutputs
from dlapp.am.model.instance import Stage
from dlapp.value import replace
from dlapp.values.messages import Diagnosis, Fault, Phase, Stop
from dlapp.values.report import FinalStatus
from dlapp.values.spec import Gang, RoleFailure, RoleSpec
from tests.am.driving import Driver, result

VICTIM = 1
GRANTED = "granted"
BEFORE_GATE = (Phase.STARTING, Phase.PULLING, Phase.UNPACKING, Phase.FETCHING, Phase.LEASING, Phase.WAITING)
AFTER_GATE = (Phase.RUNNING, Phase.STORING, Phase.RELEASING)
HOW = ("payload", "task", "node", "preempted")


class Ranks(Driver):
    """A gang of three, and its tasks."""

    def __init__(self, policy: RoleFailure, retries: int) -> None:
        role = RoleSpec(instances=3, retries=retries, on_failure=policy)
        super().__init__(role, gang=Gang.ALL, failure_settle_s=5.0)
        self.next = 2

    def number_of(self, index: int) -> int:
        container = self.state.instances[index].container
        assert container is not None
        return container.container_id.number

    def come(self, *, but: tuple[int, ...] = ()) -> None:
        """All that is asked for comes and says hello, and waits at the gate, but the containers of some indexes."""
        for _ in range(self.requested()[0]):
            self.granted(self.next)
            self.hello(self.next)
            number, self.next = self.next, self.next + 1
            instance = self.state.containers.by_id[self.id(number)].instance
            if instance is not None and instance.index not in but:
                self.report(number, Phase.WAITING)

    def obey(self) -> None:
        """Let all tasks do what they are ordered, until there is nothing more to do."""
        for _ in range(200):
            self.come()
            for container in list(self.state.containers.open.values()):
                number, orders = container.container_id.number, container.orders
                if orders is None:
                    continue
                if orders.stop is not Stop.NO:
                    self.finished(number, result(Fault.STOPPED, None, None))
                elif orders.generation > container.generation or container.phase in BEFORE_GATE[:-1]:
                    self.report(number, Phase.WAITING, generation=orders.generation)
                elif orders.go and container.phase is Phase.WAITING:
                    self.report(number, Phase.RUNNING)
            is_running = all(item.phase is Phase.RUNNING for item in self.state.containers.open.values())
            if self.state.stage is not Stage.ACTIVE or (is_running and len(self.state.containers.open) == 3):
                return
            self.wait(1)
        raise AssertionError(self.phase())

    def kill(self, how: str, number: int) -> None:
        match how:
            case "payload":
                killed = result(Fault.USER, None, None, signal=9)
                self.report(number, Phase.RUNNING, failure=killed)
                orders = self.orders(number)
                if orders.stop is not Stop.NO:  # that was its last word then
                    self.finished(number, killed)
            case "task":
                self.ended(number, -9)
            case "node":
                self.ended(number, -100, node_fault=True)
            case _:
                self.ended(number, -102, node_fault=True)


class Outcome(NamedTuple):
    """State of a gang when all is over."""

    succeeds: bool
    generation: int
    user_faults: int


def expected(how: str, phase: Phase | str, policy: RoleFailure, retries: int) -> Outcome:
    """Return what the documentation says (docs/properties.md, Gangs)."""
    is_users = how in ("payload", "task") and phase != GRANTED
    if is_users and (retries == 0 or policy is RoleFailure.FAIL):
        return Outcome(False, 0, 1)
    is_restarted = phase in AFTER_GATE and policy is not RoleFailure.RESTART
    return Outcome(True, int(is_restarted), int(is_users))


def cases() -> list[tuple[str, Phase | str, RoleFailure, int]]:
    return [
        (how, phase, policy, retries)
        for how in HOW
        for phase in (GRANTED, *BEFORE_GATE, *AFTER_GATE)
        for policy in (RoleFailure.RESTART_GANG, RoleFailure.RESTART, RoleFailure.FAIL)
        for retries in (0, 1)
        if how != "payload" or phase is Phase.RUNNING
    ]


def names(value: object) -> str:
    return str(getattr(value, "value", value))


@pytest.mark.parametrize(("how", "phase", "policy", "retries"), cases(), ids=names)
def test_one_rank_is_killed(how: str, phase: Phase | str, policy: RoleFailure, retries: int) -> None:
    am = Ranks(policy, retries)
    if phase == GRANTED:
        am.granted(2)
        am.next, victim = 3, 2
    else:
        am.come(but=(VICTIM, 2))  # so that the gate stays closed
        victim = am.number_of(VICTIM)
        assert isinstance(phase, Phase)
        if phase in AFTER_GATE:
            am.obey()
        if phase is not Phase.RUNNING:
            am.report(victim, phase)
    others = [
        item.container_id.number for item in am.state.containers.open.values() if item.container_id.number != victim
    ]
    am.kill(how, victim)
    am.obey()
    wanted = expected(how, phase, policy, retries)
    faults = sum(instance.user_faults for instance in am.state.instances)
    assert (am.state.stage is Stage.ACTIVE, am.state.gates[0].generation, faults) == wanted
    if not wanted.succeeds:
        assert "container 1 (worker 1) failed: " in am.phase() + str(am.state.ending)
        return
    assert {item.container_id.number for item in am.state.containers.open.values()} >= set(others), (
        "who lives keeps its container"
    )
    for container in list(am.state.containers.open.values()):
        am.finished(container.container_id.number)
    (settle,) = am.of(SettleOutputs, am.all)
    assert settle.ending.final_status is FinalStatus.SUCCEEDED


@pytest.mark.parametrize("how", ["node", "preempted"])
@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("comes_first", [True, False], ids=["before", "after"])
def test_failures_caused_by_a_lost_peer_are_not_counted(how: str, retries: int, comes_first: bool) -> None:
    am = Ranks(RoleFailure.RESTART_GANG, retries)
    am.come()
    am.obey()
    lost, peers = am.number_of(0), [am.number_of(1), am.number_of(2)]
    if comes_first:
        am.kill(how, lost)
    for peer in peers:
        am.report(peer, Phase.RUNNING, failure=result(Fault.USER, 1, None))
    if not comes_first:
        am.kill(how, lost)
    am.obey()
    assert am.state.stage is Stage.ACTIVE
    assert am.state.gates[0].generation == 1
    assert [instance.user_faults for instance in am.state.instances] == [0, 0, 0]


@pytest.mark.parametrize("retries", [0, 1])
def test_one_of_several_ranks_that_exit_at_once_is_charged(retries: int) -> None:
    am = Ranks(RoleFailure.RESTART_GANG, retries)
    for generation in range(retries + 1):
        am.come()
        am.obey()
        assert am.state.gates[0].generation == generation
        numbers = [am.number_of(index) for index in range(3)]
        for number in numbers:
            am.report(number, Phase.RUNNING, failure=result(Fault.USER, 1, None), generation=generation)
        for number in numbers:
            if am.orders(number).stop is not Stop.NO:
                am.finished(number, result(Fault.USER, 1, None))
        assert sum(instance.user_faults for instance in am.state.instances) == generation + 1
    am.obey()
    assert am.state.ending is not None
    assert am.state.ending.diagnostics.startswith("container 0 (worker 0) failed")


def test_a_rank_that_never_becomes_ready_is_replaced_and_finally_fails_the_application() -> None:
    am = Ranks(RoleFailure.RESTART_GANG, 0)
    am.come(but=(VICTIM,))
    for replaced in range(NODE_RETRIES + 1):
        victim = am.number_of(VICTIM)
        assert victim == (3 if replaced == 0 else 4 + replaced)
        for _ in range(7):
            am.wait(10)
            for container in list(am.state.containers.open.values()):
                if container.container_id.number != victim:
                    am.report(container.container_id.number, Phase.WAITING)
        assert am.stopped(am.all)[-1] == victim
        am.ended(victim, -105)
        if replaced < NODE_RETRIES:
            am.come(but=(VICTIM,))
    assert am.state.ending is not None
    text = "container 1 (worker 1) failed 4 times for reasons other than its program, the last time: its task stopped"
    assert am.state.ending.diagnostics.startswith(text)


def node_fault(am: Ranks, index: int) -> None:
    """Let the program of a running rank fail for a reason that a retry may help against, as its log says."""
    retried = Diagnosis(rule="any", cause="the port is in use", fault=Fault.NODE, next_step="x", retry=True)
    failed = replace(result(Fault.USER, 1, None), diagnosis=retried)
    number = am.number_of(index)
    am.report(number, Phase.RUNNING, failure=failed, generation=am.state.gates[0].generation)
    assert am.orders(number).stop is not Stop.NO
    am.finished(number, failed)


def test_node_failures_of_a_gang_are_counted_per_generation_and_not_per_rank() -> None:
    am = Ranks(RoleFailure.RESTART_GANG, 0)
    am.come()
    am.obey()
    for generation in range(NODE_RETRIES):
        node_fault(am, generation % 3)
        assert am.state.gates[0].generation == generation + 1
        am.obey()
        assert am.state.stage is Stage.ACTIVE
    node_fault(am, 0)
    am.obey()
    assert am.state.ending is not None
    assert am.state.ending.diagnostics == (
        "container 0 (worker 0) failed 2 times for reasons other than its program, the last time: exit code 1: the "
        "port is in use (its gang failed 4 times in all)"
    )


def test_an_hour_without_a_failure_forgives_a_gang_a_generation() -> None:
    am = Ranks(RoleFailure.RESTART_GANG, 0)
    am.come()
    am.obey()
    for _ in range(2 * NODE_RETRIES):
        node_fault(am, 1)
        am.obey()
        am.wait(3601)
        assert (am.state.stage, am.state.gates[0].node_faults) == (Stage.ACTIVE, 1)


def test_a_preempted_container_is_not_a_failed_generation() -> None:
    am = Ranks(RoleFailure.RESTART_GANG, 0)
    am.come()
    am.obey()
    for _ in range(2 * NODE_RETRIES):
        am.kill("preempted", am.number_of(VICTIM))
        am.obey()
    assert (am.state.stage, am.state.gates[0].node_faults) == (Stage.ACTIVE, 0)


def test_the_next_attempt_restores_the_number_of_failed_generations() -> None:
    am = Ranks(RoleFailure.RESTART_GANG, 0)
    am.come()
    am.obey()
    node_fault(am, 1)
    (known,) = am.journal().gates.values()
    assert known.node_faults == 1


def test_the_first_restart_has_no_pause() -> None:
    am = Ranks(RoleFailure.RESTART_GANG, 1)
    am.come()
    am.obey()
    before = am.state.awake_ms
    am.kill("task", am.number_of(VICTIM))
    assert am.requested() == [1]
    assert am.state.awake_ms - before < 100
