"""Test what becomes of containers that the engine is going to take for others."""

from __future__ import annotations

import pytest

from dlapp.am.model.events import SoftKill
from dlapp.cluster.engine import AnnouncedEnd, Heartbeat
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import Gang, RoleFailure, RoleSpec
from tests.am.driving import Driver, result


def notice(am: Driver, *numbers: int, wait_s: float = 15.0, is_decommissioned: bool = False) -> None:
    ids = map(am.id, numbers)
    ends = (AnnouncedEnd(container_id=id_, wait_s=wait_s, is_decommissioned=is_decommissioned) for id_ in ids)
    am.do(Heartbeat(announced=tuple(ends)))


def faults(am: Driver) -> list[tuple[int, int]]:
    return [(instance.user_faults, instance.node_faults) for instance in am.state.instances]


def test_the_payload_of_a_preempted_container_gets_sigterm_and_its_index_waits_again_uncounted() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=30.0)
    am.running(2, 3)
    notice(am, 2)
    orders = am.orders(2)
    assert (orders.stop, orders.reason, orders.grace_s) == (Stop.SOFT, "preempted", 10.0)
    assert am.orders(3).stop is Stop.NO
    assert "1 preempted" in am.phase()
    notice(am, 2, 99)
    assert am.orders(2) == orders, "it is ordered once"
    am.finished(2, result(Fault.NODE, 1, None, lost=True, message="the container was preempted"))
    found = am.view().containers[0]
    assert (found.message, found.diagnosis and found.diagnosis.rule) == (
        "exit code 1: the container was preempted",
        "preempted",
    )
    am.wait(2)
    assert (am.requested(), faults(am)) == ([1], [(0, 0)] * 2)
    am.running(4)
    for number in (3, 4):
        am.finished(number)
    assert am.settlement().ending.final_status is FinalStatus.SUCCEEDED


def test_a_payload_on_a_decommissioned_node_gets_sigterm_and_restarts_elsewhere_uncounted() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=30.0)
    am.running(2, 3)
    notice(am, 2, wait_s=30.0, is_decommissioned=True)
    orders = am.orders(2)
    assert (orders.stop, orders.reason, orders.grace_s) == (Stop.SOFT, "decommissioned", 20.0)
    assert am.orders(3).stop is Stop.NO
    assert "1 on nodes that are decommissioned" in am.phase()
    am.finished(2, result(Fault.USER, 1, None))
    found = am.view().containers[0]
    assert found.diagnosis is not None
    assert (found.diagnosis.rule, found.diagnosis.cause) == (
        "node_decommissioned",
        "the node of the container was decommissioned",
    )
    am.wait(2)
    assert (am.requested(), faults(am)) == ([1], [(0, 0)] * 2)


def test_a_short_grace_of_the_application_stays_as_it_is() -> None:
    am = Driver(kill_grace_s=4.0)
    am.running(2)
    notice(am, 2)
    assert am.orders(2).grace_s == 4.0


@pytest.mark.parametrize("fault", [Fault.USER, Fault.STOPPED])
def test_a_preempted_payload_is_retried_uncounted_whatever_its_exit(fault: Fault) -> None:
    am = Driver(RoleSpec(retries=0))
    for number in range(2, 8):
        am.wait(61)
        am.running(number)
        notice(am, number)
        am.finished(number, result(fault, 1, None))
    am.wait(61)
    assert (am.requested(), faults(am)) == ([1], [(0, 0)])


def test_a_preempted_payload_that_succeeds_first_is_done() -> None:
    am = Driver()
    am.running(2)
    notice(am, 2)
    am.finished(2)
    assert am.settlement().ending.final_status is FinalStatus.SUCCEEDED


def test_a_container_preempted_before_its_task_ends_is_not_counted() -> None:
    am = Driver()
    am.running(2)
    notice(am, 2)
    am.ended(2, -102, node_fault=True)
    am.wait(2)
    assert (am.requested(), faults(am)) == ([1], [(0, 0)])


@pytest.mark.parametrize("phase", [Phase.STORING, Phase.RELEASING])
def test_a_storing_container_continues_until_it_is_preempted(phase: Phase) -> None:
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL)
    am.running_gang(2, 3)
    am.report(2, phase)
    notice(am, 2)
    assert am.stops(2, 3) == [Stop.NO] * 2
    assert am.state.gates[0].generation == 0


def test_a_container_without_a_payload_is_given_back_at_once() -> None:
    am = Driver(RoleSpec(instances=2))
    am.granted(2)
    notice(am, 2)
    assert am.stopped(am.all) == [2]
    am.ended(2, -105)
    am.wait(2)
    assert (am.requested(), faults(am)) == ([2], [(0, 0)] * 2)


def test_a_gang_is_restarted_at_the_notice_and_the_preempted_member_keeps_its_time() -> None:
    am = Driver(RoleSpec(instances=3), gang=Gang.ALL)
    am.running_gang(2, 3, 4)
    notice(am, 2)
    assert am.stops(2, 3, 4) == [Stop.SOFT, Stop.NO, Stop.NO]
    assert [am.orders(number).generation for number in (2, 3, 4)] == [0, 1, 1]
    # Its peers exit by themselves, because it is gone: a consequence.
    am.report(3, Phase.RUNNING, failure=result(Fault.USER, 1, None), generation=0)
    for number in (3, 4):
        am.report(number, Phase.WAITING, generation=1)
    assert am.stops(2, 3, 4) == [Stop.SOFT, Stop.NO, Stop.NO]
    assert not am.state.gates[0].open
    am.finished(2, result(Fault.NODE, 0, None, lost=True))
    am.wait(2)
    assert (am.requested(), faults(am)) == ([1], [(0, 0)] * 3)
    am.granted(5)
    am.hello(5)
    am.report(5, Phase.WAITING, generation=1)
    assert am.state.gates[0].open
    assert am.state.gates[0].generation == 1


def test_a_failure_in_a_gang_is_the_preemptions_if_one_follows_before_the_gang_has_ended() -> None:
    am = Driver(RoleSpec(instances=3), gang=Gang.ALL)
    am.running_gang(2, 3, 4)
    am.finished(3, result(Fault.USER, 1, None))
    assert am.stops(2, 4) == [Stop.SOFT] * 2, "the failure would end the application"
    notice(am, 2)
    assert am.state.gates[0].generation == 1
    for number in (2, 4):
        am.finished(number, result(Fault.STOPPED, 1, None))
    am.wait(3)
    assert (am.requested(), faults(am)) == ([3], [(0, 0)] * 3)


def test_a_gang_failure_before_its_preemption_notice_counts_as_the_preemption() -> None:
    am = Driver(RoleSpec(instances=2, retries=3), gang=Gang.ALL)
    am.running_gang(2, 3)
    am.report(3, Phase.RUNNING, failure=result(Fault.USER, 1, None))
    assert faults(am) == [(0, 0), (1, 0)]
    notice(am, 2)
    am.finished(2, result(Fault.NODE, 1, None, lost=True))
    assert faults(am) == [(0, 0)] * 2


def test_a_member_that_is_preempted_before_the_gate_is_replaced_and_the_others_wait() -> None:
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL)
    am.granted(2, 3)
    for number in (2, 3):
        am.hello(number)
    am.report(2, Phase.WAITING)
    notice(am, 2)
    am.report(3, Phase.WAITING)
    assert not am.state.gates[0].open
    am.finished(2, result(Fault.STOPPED, None, None))
    am.wait(2)
    assert (am.requested(), am.orders(3).stop, am.state.gates[0].generation) == ([1], Stop.NO, 0)


def test_only_its_own_instance_is_restarted_where_a_member_is_independent() -> None:
    am = Driver(RoleSpec(instances=2, on_failure=RoleFailure.RESTART), gang=Gang.ALL)
    am.running_gang(2, 3)
    notice(am, 2)
    assert (am.stops(2, 3), am.state.gates[0].generation) == ([Stop.SOFT, Stop.NO], 0)


def test_a_soft_kill_leaves_a_preempted_container_its_time() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    notice(am, 2)
    am.do(SoftKill("tony"))
    assert am.stops(2, 3) == [Stop.SOFT] * 2
    for number in (2, 3):
        am.finished(number, result(Fault.STOPPED, 1))
    am.settled()
    assert am.ending().cause is Cause.SOFT_KILLED


def test_a_preemption_notice_during_the_end_changes_nothing() -> None:
    am = Driver()
    am.running(2)
    am.do(SoftKill("tony"))
    before = am.orders(2)
    notice(am, 2)
    assert am.orders(2) == before
