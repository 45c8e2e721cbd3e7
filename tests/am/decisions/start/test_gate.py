"""Test the gate of gangs of one or several roles, and restarts of gangs through it."""

from __future__ import annotations

import pytest

from dlapp.am.model import events
from dlapp.value import replace
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.spec import (
    ContainerFailure,
    Gang,
    RoleFailure,
    RoleSpec,
)
from tests.am.decisions.situations import TEAM, four, pause_s, second, team_at_work
from tests.am.driving import Driver, result

GANG = RoleSpec(instances=3)


def test_a_gang_starts_together() -> None:
    am = Driver(GANG, gang=Gang.ALL)
    am.granted(2, 3, 4)
    for number in (2, 3, 4):
        am.hello(number)
    for number in (2, 3):
        am.report(number, Phase.WAITING)
        assert not am.orders(number).go
    assert am.phase() == "2 of 3 at the gate, 1 starting"
    am.report(4, Phase.WAITING)
    assert [am.orders(number).go for number in (2, 3, 4)] == [True] * 3
    (record,) = am.of(events.WriteJournal)
    assert record.durable


def test_without_a_gang_each_container_starts_with_its_first_orders() -> None:
    am = Driver(four())
    am.granted(2)
    am.hello(2)
    assert am.orders(2).go


def test_a_member_lost_before_the_gate_opens_is_replaced_without_a_restart() -> None:
    am = Driver(GANG, gang=Gang.ALL)
    am.granted(2, 3, 4)
    for number in (2, 3, 4):
        am.hello(number)
    am.report(2, Phase.WAITING)
    am.report(3, Phase.WAITING)
    am.ended(3, -100, node_fault=True)
    assert am.stops(2) == [Stop.NO]
    assert pause_s(am) == 1
    am.granted(5)
    am.hello(5)
    am.report(4, Phase.WAITING)
    assert not am.orders(2).go
    am.report(5, Phase.WAITING)
    assert am.orders(2).go


def test_a_gang_of_roles_starts_when_every_role_is_ready() -> None:
    am = Driver(*TEAM, gang=Gang.ALL)
    am.granted(3, 4, request_id=2)
    for number in (3, 4):
        am.hello(number)
        am.report(number, Phase.WAITING)
    assert not am.orders(3).go
    am.granted(2)
    am.hello(2)
    am.report(2, Phase.WAITING)
    assert [am.orders(number).go for number in (2, 3, 4)] == [True] * 3


def test_with_a_gang_for_each_role_none_waits_for_another_role() -> None:
    am = Driver(*TEAM, gang=Gang.ROLE)
    am.granted(3, 4, request_id=2)
    for number in (3, 4):
        am.hello(number)
        am.report(number, Phase.WAITING)
    assert am.orders(3).go


def test_the_failures_of_all_instances_of_a_role_count_against_the_restarts_of_its_gang() -> None:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL)
    am.running_gang(2, 3)
    am.finished(2, result(Fault.USER, 3))
    am.granted(4)
    am.hello(4)
    for number in (3, 4):
        am.report(number, Phase.WAITING, generation=1)
    for number in (3, 4):
        am.report(number, Phase.RUNNING)
    am.finished(3, result(Fault.USER, 3))
    am.finished(4, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics() == "container 1 (worker 1) failed: exit code 3 (role worker failed 2 times in all)"


@pytest.mark.parametrize("failure", list(ContainerFailure))
@pytest.mark.parametrize("role", [RoleSpec(name="ps", service=True), RoleSpec(name="ps", retries=3)])
def test_a_role_may_fail_its_application_with_its_first_failure(role: RoleSpec, failure: ContainerFailure) -> None:
    roles = (replace(role, on_failure=RoleFailure.FAIL), RoleSpec(name="worker"))
    am = Driver(*roles, gang=Gang.NONE, on_container_failure=failure)
    am.granted(2)
    am.granted(3, request_id=2)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.RUNNING)
    am.finished(2, result(Fault.USER, 3))
    assert am.stops(3) == [Stop.SOFT]
    am.finished(3, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics() == "container 0 (ps 0) failed: exit code 3"


def test_a_critical_role_is_retried_after_a_node_fault() -> None:
    am = Driver(RoleSpec(on_failure=RoleFailure.FAIL))
    am.granted(2)
    am.hello(2)
    am.report(2, Phase.RUNNING)
    am.finished(2, result(Fault.NODE, None, None))
    am.ended(2)
    assert am.requested() == [1]


def test_a_lost_member_restarts_every_role_of_its_gang() -> None:
    am = team_at_work()
    am.finished(3, result(Fault.USER, 1))
    assert am.stops(2, 4) == [Stop.NO] * 2
    assert [am.orders(number).generation for number in (2, 4)] == [1, 1]
    assert not am.orders(2).go
    assert am.requested() == [0, 1]


def test_a_role_may_have_its_instances_restarted_alone() -> None:
    am = team_at_work(TEAM[0], replace(TEAM[1], on_failure=RoleFailure.RESTART))
    am.finished(3, result(Fault.USER, 1))
    assert am.stops(2, 4) == [Stop.NO] * 2
    am.granted(5, request_id=2)
    am.hello(5)
    assert am.orders(5).go
    later = second(am, 2, 4)
    later.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    later.hello(4, index=2, phase=Phase.RUNNING, attempt=1)
    for _ in range(13):  # then container 5, which the engine does not name, is gone
        later.wait(10)
        for number in (2, 4):
            later.report(number, Phase.RUNNING, attempt=1)
    assert later.requested() == [0, 1]
    assert [later.orders(number, attempt=1).stop for number in (2, 4)] == [Stop.NO] * 2


def test_a_failed_service_restarts_with_its_gang() -> None:
    am = team_at_work()
    am.finished(2, result(Fault.USER, 1))
    assert (am.requested(), am.stops(3, 4)) == ([0, 0], [Stop.NO] * 2)
    am.finished(3, result(Fault.USER, 1))
    am.ended(4, -100, node_fault=True)
    am.wait(1)
    assert am.requested() == [1, 2]
    assert am.journal().given_up == {}


def test_a_gang_that_cannot_be_complete_fails_also_by_a_service() -> None:
    am = Driver(*TEAM, gang=Gang.ALL)
    am.granted(2)
    am.hello(2)
    am.report(2, Phase.ENDED, result(Fault.DATA, None, None, message="input data is missing"))
    am.ended(2)
    am.settled()
    assert am.diagnostics() == "container 0 (ps 0) failed: input data is missing"


def test_the_gate_of_several_roles_is_open_for_the_next_attempt() -> None:
    am = second(team_at_work(), 2, 3, 4)
    for number in (2, 3, 4):
        am.hello(number, index=number - 2, phase=Phase.RUNNING, attempt=1)
    assert [am.orders(number, attempt=1).stop for number in (2, 3, 4)] == [Stop.NO] * 3
    am.ended(3, -100, attempt=1, node_fault=True)
    assert [am.orders(number, attempt=1).generation for number in (2, 4)] == [1] * 2
