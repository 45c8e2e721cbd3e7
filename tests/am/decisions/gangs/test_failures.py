"""Test the decisions on failures of a gang: which are counted, and what they restart."""

from __future__ import annotations

from typing import Any

from dlapp.am.model.instance import Stage
from dlapp.am.model.records.recovered import RecoveredGate
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.spec import (
    Gang,
    RoleFailure,
    RoleSpec,
)
from tests.am.driving import Driver, result


def gang_at_work(**fields: Any) -> Driver:
    am = Driver(RoleSpec(instances=3, **fields), gang=Gang.ALL)
    am.running_gang(2, 3, 4)
    return am


def test_a_gang_that_lost_a_member_restarts_and_counts_one_failure() -> None:
    am = gang_at_work(retries=1)
    am.finished(2)
    am.finished(3, result(Fault.USER, 1))
    assert (am.stops(4), am.orders(4).generation, am.orders(4).go) == ([Stop.NO], 1, False)
    assert am.requested() == [2]
    assert [instance.user_faults for instance in am.state.instances] == [0, 1, 0]
    am.granted(5, 6)
    for number in (5, 6):
        am.hello(number)
        am.report(number, Phase.WAITING)
    am.report(4, Phase.WAITING)
    assert not am.orders(5).go, "that was for the generation before"
    am.report(4, Phase.WAITING, generation=1)
    assert [am.orders(number).go for number in (4, 5, 6)] == [True] * 3
    assert [container.generation for container in am.view().containers] == [1, 1, 1]


def test_a_payload_that_ends_after_its_gang_restarted_is_retried_uncounted() -> None:
    am = gang_at_work(retries=1)
    am.finished(3, result(Fault.USER, 1))
    am.finished(2)
    am.finished(4, result(Fault.USER, 9))
    assert am.requested() == [3]
    assert [instance.user_faults for instance in am.state.instances] == [0, 1, 0]


def test_a_storing_member_is_stopped_when_its_gang_restarts() -> None:
    am = gang_at_work(retries=1)
    am.report(2, Phase.STORING)
    am.finished(3, result(Fault.USER, 1))
    assert am.stops(2, 4) == [Stop.NOW, Stop.NO]


def test_an_attempt_without_a_journal_uses_the_highest_reported_generation() -> None:
    am = Driver(RoleSpec(instances=3), gang=Gang.ALL, attempt=2, live=tuple(Driver().grant(n) for n in (2, 3, 4)))
    for number, phase in ((2, Phase.WAITING), (3, Phase.WAITING), (4, Phase.RUNNING)):
        am.report(number, phase, index=number - 2, attempt=1, generation=3 if number == 3 else 2)
    assert [am.orders(number, attempt=1).generation for number in (2, 3, 4)] == [3] * 3
    assert not am.state.payload_ran, "what runs is of a generation that is over"
    for number in (2, 4):
        am.report(number, Phase.WAITING, attempt=1, generation=3)
    assert [am.orders(number, attempt=1).go for number in (2, 3, 4)] == [True] * 3
    assert am.journal().gates == {"worker": RecoveredGate(True, 3)}


def test_a_late_result_of_a_silent_member_does_not_count_for_the_restarted_gang() -> None:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL)
    am.granted(2, 3)
    for number in (2, 3):
        am.hello(number)
    for number in (2, 3):
        am.report(number, Phase.WAITING)
    for number in (2, 3):
        am.report(number, Phase.RUNNING)
    am.wait(40)
    am.report(2, Phase.RUNNING)
    am.wait(25)
    assert am.stops(2, 3) == [Stop.NO, Stop.NOW]
    am.finished(2, result(Fault.USER, 1))
    am.finished(3)
    assert am.requested() == [2], "a gang of one would wait at the gate for ever"


def test_a_gang_without_retries_fails_with_its_first_member() -> None:
    am = gang_at_work()
    am.finished(3, result(Fault.USER, 1))
    am.finished(2, result(Fault.STOPPED, None, None))
    am.finished(4, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics() == "container 1 (worker 1) failed: exit code 1"


FAILED = result(Fault.USER, 1)
NODE_GONE = {"node_fault": True}


def test_a_member_whose_payload_fails_keeps_its_container_for_the_next_generation() -> None:
    am = gang_at_work(retries=1)
    am.report(3, Phase.RUNNING, failure=FAILED)
    am.report(4, Phase.RUNNING, failure=FAILED)
    assert [(am.orders(n).generation, am.orders(n).go, am.orders(n).stop) for n in (2, 3, 4)] == [
        (1, False, Stop.NO)
    ] * 3
    assert am.requested() == [0]
    assert am.journal().faults == {1: (1, 0)}, "once for the generation"
    for number in (2, 3, 4):
        am.report(number, Phase.WAITING, generation=1)
    for number in (2, 3, 4):
        assert am.orders(number).go
        am.report(number, Phase.RUNNING)
    am.report(2, Phase.RUNNING, failure=FAILED)
    assert am.stops(2, 3, 4) == [Stop.SOFT, Stop.NO, Stop.NO], "it ends, and has used up the retries of the role"


def test_the_last_failure_of_a_gang_ends_it_after_the_others_stored_their_output() -> None:
    am = gang_at_work()
    am.report(3, Phase.RUNNING, failure=FAILED)
    am.finished(3, FAILED)
    assert am.stops(2, 4) == [Stop.SOFT] * 2
    assert "waiting for the end of the gang of container 1, which failed" in am.phase()
    am.finished(2, result(Fault.STOPPED, None))
    assert am.state.stage is Stage.ACTIVE
    am.finished(4, result(Fault.USER, 1))
    am.settled()
    assert am.diagnostics() == "container 1 (worker 1) failed: exit code 1"
    assert len(am.settlement().parts) == 3


def test_a_failure_caused_by_a_lost_node_is_not_counted() -> None:
    am = gang_at_work()
    am.finished(3, FAILED)
    am.finished(2, result(Fault.STOPPED, None, None))
    am.ended(4, -100, **NODE_GONE)
    assert am.state.stage is Stage.ACTIVE
    assert [(instance.user_faults, instance.node_faults) for instance in am.state.instances] == [(0, 0)] * 3
    am.wait(1)
    assert am.requested() == [3]
    assert am.state.gates[0].generation == 1


def test_a_gang_that_was_restarted_for_a_failure_learns_later_that_it_was_a_node() -> None:
    am = gang_at_work(retries=1)
    am.report(3, Phase.RUNNING, failure=FAILED)
    assert am.state.instances[1].user_faults == 1
    am.ended(4, -100, **NODE_GONE)
    assert am.state.instances[1].user_faults == 0
    assert am.journal().faults[1] == (0, 0)


def test_a_member_lost_in_the_next_generation_does_not_excuse_the_failure_before() -> None:
    am = gang_at_work(retries=1)
    am.report(3, Phase.RUNNING, failure=FAILED)
    am.report(4, Phase.WAITING, generation=1)
    am.ended(4, -100, **NODE_GONE)
    assert am.state.instances[1].user_faults == 1


def test_a_failure_waits_for_members_that_hang_for_a_time() -> None:
    am = gang_at_work()
    am.finished(3, FAILED)
    for _ in range(3):
        am.wait(9)
        am.report(2, Phase.RUNNING)
        am.report(4, Phase.RUNNING)
    assert am.state.ending is None
    am.wait(5)
    assert am.state.ending is not None


def test_a_failure_waits_for_silent_members_until_they_are_lost() -> None:
    am = gang_at_work()
    am.finished(3, FAILED)
    am.finished(2, result(Fault.STOPPED, None, None))
    am.wait(50)
    assert am.state.stage is Stage.ACTIVE
    am.wait(15)
    am.ended(4, -105)
    assert [instance.user_faults for instance in am.state.instances] == [0] * 3
    assert am.state.gates[0].generation == 1


def test_a_failure_caused_by_a_lost_node_restarts_the_gang_despite_restart_alone() -> None:
    am = gang_at_work(on_failure=RoleFailure.RESTART)
    am.finished(3, FAILED)
    am.finished(2, result(Fault.STOPPED, None, None))
    am.ended(4, -100, **NODE_GONE)
    assert am.state.gates[0].generation == 1
    am.wait(1)
    assert am.requested() == [3]
