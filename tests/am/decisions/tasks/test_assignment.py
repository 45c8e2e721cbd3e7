"""Test the decisions on containers: requests, assignment of indexes, and tasks that are late or silent."""

from __future__ import annotations

import pytest

from dlapp.am.model import events
from dlapp.am.model.instance import StopReason
from dlapp.am.model.state import Timing
from dlapp.cluster.engine import Heartbeat
from dlapp.values.messages import Phase, Stop
from dlapp.values.spec import (
    RoleSpec,
)
from tests.am.decisions.situations import four
from tests.am.driving import START_MS, Driver


def test_only_missing_containers_are_requested() -> None:
    am = Driver(four())
    assert am.requested() == [4]
    am.granted(2, 3)
    assert am.requested() == [2]
    am.granted(4, 5)
    assert am.requested() == [0]


def test_a_surplus_allocation_is_released_and_never_started() -> None:
    am = Driver(RoleSpec(instances=1))
    am.granted(2, 3)
    assert [action.grant.container_id.number for action in am.of(events.StartTask)] == [2]
    assert am.master.releases() == (am.id(3),)
    am.ended(3, -100)
    assert am.master.releases() == ()


def test_a_repeated_heartbeat_changes_nothing() -> None:
    am = Driver(four())
    am.granted(2, 3)
    am.granted(2, 3)
    assert am.last == []
    assert am.requested() == [2]


def test_an_index_is_assigned_when_its_task_requests_work() -> None:
    am = Driver(four(), args=("-gpu", "all"))
    am.granted(2, 3)
    (assign,) = am.of(events.Assign, am.hello(3))
    given = assign.assignment
    assert (given.index, given.total, given.role, given.role_index, given.role_size) == (0, 4, "worker", 0, 4)
    assert given.args == ("-gpu", "all")
    (again,) = am.of(events.Assign, am.hello(3))
    assert again == assign


def test_roles_count_their_indexes_in_the_order_of_the_file() -> None:
    am = Driver(RoleSpec(name="chief"), RoleSpec(name="worker", instances=2, script="work.sh"))
    am.granted(2, request_id=2)
    (assign,) = am.of(events.Assign, am.hello(2))
    given = assign.assignment
    assert (given.index, given.role, given.role_index, given.script, given.total) == (1, "worker", 0, "work.sh", 3)


def test_a_stranger_is_refused_and_stopped() -> None:
    am = Driver(four())
    am.hello(99)
    assert [action.why for action in am.of(events.Refuse)] == ["this container is not one of this application's"]
    assert am.stopped() == [99]


def test_a_report_on_another_index_is_answered_with_stop_now() -> None:
    am = Driver(four())
    am.granted(2)
    am.hello(2)
    am.report(2, Phase.RUNNING, index=3)
    assert am.stops(2) == [Stop.NOW]


def test_a_late_report_changes_nothing() -> None:
    am = Driver(four())
    am.running(2)
    am.report(2, Phase.LEASING, nth=1)
    assert am.view().containers[0].phase is Phase.RUNNING


def test_a_task_that_never_reports_is_stopped_and_replaced() -> None:
    am = Driver(RoleSpec(instances=1), timing=Timing(hello_ms=20_000))
    am.granted(2)
    assert am.stopped(am.wait(31)) == [2]
    am.ended(2, -105)
    am.wait(1)
    assert am.requested() == [1]


def test_the_start_deadline_of_a_task_runs_from_its_start_on_the_node() -> None:
    am = Driver(RoleSpec(instances=1), timing=Timing(hello_ms=20_000))
    am.do(Heartbeat(granted=(am.grant(2),)))
    assert am.stopped(am.wait(600)) == []
    am.do(Heartbeat(started=(am.id(2),)))
    assert am.stopped(am.wait(29)) == []
    assert am.stopped(am.wait(2)) == [2]


def test_a_container_may_localize_files_for_an_hour() -> None:
    am = Driver(RoleSpec(instances=1))
    am.granted(2)
    checked = 0
    while not am.stopped(am.all):
        if am.of(events.CheckStart, am.wait(1)):
            am.do(Heartbeat(preparing=(am.id(2),)))
            checked += 1
        assert am.now_ms - START_MS < 5_000_000
    assert am.now_ms - START_MS > 3_600_000
    assert checked == 12


def test_a_localized_container_that_does_not_report_is_late() -> None:
    am = Driver(RoleSpec(instances=1), timing=Timing(hello_ms=20_000))
    am.granted(2)
    am.wait(21)
    am.do(Heartbeat(preparing=(am.id(2),)))
    assert am.stopped(am.wait(30)) == []
    assert am.stopped(am.wait(10)) == [2]


def test_one_late_start_per_index_is_tolerated() -> None:
    am = Driver(RoleSpec(instances=3), timing=Timing(hello_ms=20_000))
    faults = []
    for turn in range(3):
        numbers = range(3 * turn + 2, 3 * turn + 5)
        am.wait(61)
        assert am.requested() == [3]
        am.granted(*numbers, node=f"node{turn}")
        am.wait(31)
        for number in numbers:
            assert am.state.containers.by_id[am.id(number)].stop_reason is StopReason.LATE
            am.ended(number, -105)
        faults.append([instance.node_faults for instance in am.state.instances])
    assert faults == [[0, 0, 0], [1, 1, 1], [2, 2, 2]]


def test_a_silent_task_is_stopped_and_its_index_waits_for_the_end_of_its_container() -> None:
    am = Driver(RoleSpec(instances=1))
    am.running(2)
    assert 2 in am.stopped(am.wait(62))
    assert am.requested() == [0]
    am.ended(2, -105)
    assert am.requested() == [1]


@pytest.mark.parametrize(("containers", "interval_s"), [(1, 10.0), (5000, 10.0), (7500, 15.0), (20_000, 20.0)])
def test_tasks_of_a_large_application_report_less_often_and_three_times_before_they_are_silent(
    containers: int, interval_s: float
) -> None:
    timing = Timing()
    assert timing.report_interval_s(containers) == interval_s
    assert timing.silence_ms >= 3 * interval_s * 1000
    am = Driver(RoleSpec(instances=2), timing=Timing(reports_per_s=0.1, most_report_every_s=20.0))
    am.running(2)
    assert am.orders(2).report_every_s == 20.0


def test_a_stop_is_repeated_until_the_end_is_known() -> None:
    am = Driver(RoleSpec(instances=1))
    am.running(2)
    assert len(am.stopped(am.wait(90))) >= 4


def test_a_suspend_of_a_day_makes_no_task_silent() -> None:
    am = Driver(RoleSpec(instances=1))
    am.running(2)
    am.do(events.Tick(), after_s=86_400)
    assert am.last == []
    am.do(events.Tick(), after_s=-86_400)
    assert am.last == []
