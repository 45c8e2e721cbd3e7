"""The ApplicationMaster's decisions, one at a time."""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import pytest

from dlapp.am.decisions.assessment import NODE_RETRIES
from dlapp.am.model import events, journal
from dlapp.am.model.events import Settlement
from dlapp.am.model.instance import Stage, StopReason
from dlapp.am.model.records.recovered import RecoveredGate
from dlapp.am.model.state import Timing
from dlapp.cluster.engine import ContainerEnd, Heartbeat, Registered, ResourceLimits
from dlapp.cluster.yarn.am.resource_requests import ResourceRequestTable
from dlapp.value import replace
from dlapp.values.messages import Fault, PayloadStatus, Phase, Stop, StoredOutput, TaskResult
from dlapp.values.report import Cause, FinalStatus, State
from dlapp.values.spec import (
    ContainerFailure,
    Dependency,
    Gang,
    OutputSpec,
    Placement,
    Resources,
    RoleFailure,
    RoleSpec,
    Until,
)
from dlapp.values.usage import DeviceUsage, Usage
from tests.am.driving import START_MS, Driver, result

GANG = RoleSpec(instances=3)


def four() -> RoleSpec:
    return RoleSpec(instances=4)


# ---- containers and indexes ----


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


# ---- success ----


def test_an_application_succeeds_when_every_index_succeeded_and_commits_once() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.finished(2)
    am.finished(3)
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts]) == (Settlement.COMMIT, [0, 1])
    am.settled()
    assert am.ending() == events.ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
    assert am.view().state is State.FINISHED


def test_a_result_is_enough_to_commit_and_the_end_is_waited_for_before_it_finishes() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.report(2, Phase.ENDED, result())
    am.settled()
    assert not am.of(events.Finish, am.all)
    am.ended(2)
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_container_that_stays_after_its_result_is_stopped_and_named() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.report(2, Phase.ENDED, result())
    am.settled()
    assert 2 in am.stopped(am.wait(70))
    assert am.diagnostics() == f"the end of {am.id(2)} on node1 is not known"
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_commit_that_fails_fails_the_application() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2)
    am.settled("file:///results/run: no space left on device")
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.FAILED, Cause.FAILED, "file:///results/run: no space left on device"
    )


def test_a_service_is_ended_softly_when_the_others_are_done() -> None:
    am = Driver(RoleSpec(), RoleSpec(name="ps", service=True))
    am.running(2)
    am.running(3, request_id=2)
    am.finished(2)
    assert am.stops(3) == [Stop.SOFT]
    assert not am.of(events.SettleOutputs, am.all)
    am.finished(3, result(Fault.STOPPED, None))
    assert [part.role for part in am.settlement().parts] == ["worker", "ps"]
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_a_failed_service_does_not_decide_the_result() -> None:
    am = Driver(RoleSpec(), RoleSpec(name="ps", service=True))
    am.running(2)
    am.running(3, request_id=2)
    am.finished(3, result(Fault.USER, 1))
    assert am.requested() == [0, 0]
    am.finished(2)
    assert [part.role for part in am.settlement().parts] == ["worker"]
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


# ---- failure ----


def test_a_failed_payload_fails_the_application_by_name_and_the_others_have_their_grace() -> None:
    am = Driver(four(), kill_grace_s=20.0)
    am.running(2, 3, 4, 5)
    am.report(4, Phase.ENDED, result(Fault.USER, 3))
    assert am.stops(2, 3, 5) == [Stop.SOFT] * 3
    assert {am.orders(value).grace_s for value in (2, 3, 5)} == {20.0}
    am.wait(19)
    assert am.stops(2, 3, 5) == [Stop.SOFT] * 3
    assert {am.orders(value).why for value in (2, 3, 5)} == {"container 2 (worker 2) failed: exit code 3"}
    assert am.requested() == [0]
    am.finished(2, result(Fault.STOPPED, None))
    for number in (3, 5):
        am.finished(number, result(Fault.STOPPED, None, None))
    am.ended(4, 3)
    assert am.settlement().how is Settlement.KEEP
    assert [part.index for part in am.settlement().parts] == [0, 2]
    am.settled()
    assert am.diagnostics() == "container 2 (worker 2) failed: exit code 3"


def test_without_output_the_others_of_a_failed_payload_have_their_grace_too() -> None:
    am = Driver(RoleSpec(instances=2), outputs=(), kill_grace_s=20.0)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3, None))
    assert (am.orders(3).stop, am.orders(3).grace_s) == (Stop.SOFT, 20.0)


def test_a_kill_cuts_the_grace_after_a_failure_short() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=20.0)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3))
    am.do(events.SoftKill("tina"))
    assert (
        am.of(events.AnswerStop)[0].answer.message == "it is already ending: container 0 (worker 0) failed: exit code 3"
    )
    am.do(events.Kill("tony"))
    assert am.stops(3) == [Stop.NOW]
    am.finished(3, result(Fault.STOPPED, None, None))
    assert (am.settlement().how, [part.index for part in am.settlement().parts]) == (Settlement.DROP, [0])
    am.settled()
    message = "killed by tony, the complete output of container 0 (worker 0) kept as partial"
    assert (am.ending().cause, am.diagnostics()) == (Cause.KILLED, message)


def test_a_task_that_died_with_a_running_payload_is_named_as_having_leftovers() -> None:
    am = Driver(RoleSpec(instances=3))
    am.granted(2, 3, 4)
    for number in (2, 3, 4):
        am.hello(number)
    am.report(2, Phase.RUNNING)
    am.report(3, Phase.RUNNING)
    am.ended(2, -9)
    am.finished(3, result(Fault.STOPPED, None))
    am.ended(4, -9)  # its payload had not begun
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts], [item.index for item in wanted.lost]) == (
        Settlement.KEEP,
        [1],
        [0],
    )


def independent(count: int, **fields: Any) -> Driver:
    return Driver(RoleSpec(instances=count), on_container_failure=ContainerFailure.CONTINUE, **fields)


def test_independent_containers_continue_after_a_failure_and_are_committed() -> None:
    am = independent(5)
    am.running(2, 3, 4, 5, 6)
    am.finished(3, result(Fault.USER, 3, "half"))
    am.finished(4, result(Fault.DATA, None, None, message="no input"))
    am.ended(5, -9)
    assert am.stops(2, 6) == [Stop.NO] * 2
    assert am.requested() == [0]
    assert am.phase() == "running 2 of 5, 3 failed"
    am.finished(2)
    assert am.phase() == "running 1 of 5, 1 done, 3 failed"
    am.finished(6)
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts], [item.index for item in wanted.failed]) == (
        Settlement.COMMIT,
        [0, 4],
        [1],
    )
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.FAILED,
        Cause.FAILED,
        "3 of 5 containers failed: 1-3; the first of them: container 1 (worker 1) failed: exit code 3",
    )


def test_independent_containers_are_tried_again_before_one_counts_as_failed() -> None:
    am = Driver(RoleSpec(instances=2, retries=1), on_container_failure=ContainerFailure.CONTINUE)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3))
    assert am.requested() == [1]
    am.running(4)
    am.finished(4, result(Fault.USER, 3))
    assert am.requested() == [0]
    am.finished(3)
    am.settled("the disk is full")
    assert am.diagnostics() == ("container 0 (worker 0) failed 2 times, the last time: exit code 3; the disk is full")


def test_if_all_independent_containers_fail_nothing_is_committed() -> None:
    am = independent(2)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3))
    am.finished(3, result(Fault.USER, 4))
    assert am.settlement().how is Settlement.KEEP
    assert [part.index for part in am.settlement().parts] == [0, 1]
    am.settled()
    assert am.diagnostics().startswith("2 of 2 containers failed: 0-1; the first of them: container 0")


def test_a_soft_kill_commits_no_output_of_a_failed_independent_container() -> None:
    am = independent(2)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3))
    am.do(events.SoftKill("tina"))
    am.finished(3, result(Fault.STOPPED, 0))
    assert [part.index for part in am.settlement().parts] == [1]
    assert [part.index for part in am.settlement().failed] == [0]
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed; container 0 (worker 0) failed: exit code 3"


def test_the_next_attempt_restores_failed_independent_containers() -> None:
    first = independent(3)
    first.running(2, 3, 4)
    first.finished(2, result(Fault.USER, 3, "half"))
    live = tuple(first.grant(number) for number in (3, 4))
    am = Driver(
        RoleSpec(instances=3),
        on_container_failure=ContainerFailure.CONTINUE,
        attempt=2,
        former=first.journal(),
        live=live,
    )
    for number in (3, 4):
        am.hello(number, index=number - 2, phase=Phase.RUNNING, attempt=1)
    assert am.requested() == [0]
    for number in (3, 4):
        am.report(number, Phase.ENDED, result(), attempt=1)
        am.ended(number, attempt=1)
    assert [part.index for part in am.settlement().parts] == [1, 2]
    assert [item.index for item in am.settlement().failed] == [0]
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed: exit code 3"


def test_retries_are_counted_and_the_last_failure_says_how_many() -> None:
    am = Driver(RoleSpec(retries=1))
    am.running(2)
    am.finished(2, result(Fault.USER, 3))
    assert am.requested() == [1]
    am.running(3)
    assert am.view().containers[0].attempt == 2
    am.finished(3, result(Fault.USER, 4))
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed 2 times, the last time: exit code 4"


def test_a_task_that_was_killed_fails_the_application_with_the_signal() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.ended(3, -9)
    am.finished(2, result(Fault.STOPPED, None))
    am.settled()
    assert am.diagnostics() == "container 1 (worker 1) failed: the task was killed by signal 9"


def test_missing_data_is_not_tried_again() -> None:
    am = Driver(RoleSpec(retries=5))
    am.running(2)
    am.finished(2, result(Fault.DATA, None, None, message="file:///data/train is not there"))
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed: file:///data/train is not there"


def test_a_node_fault_is_retried_elsewhere_and_not_charged_to_the_program() -> None:
    am = Driver(RoleSpec())
    for number in (2, 3):
        am.running(number)
        (ask,) = am.master.container_requests()
        assert ask.avoid == (), "once is not enough"
        am.finished(number, result(Fault.NODE, None, None, message="GPU 0 is held by another program"))
    (ask,) = am.master.container_requests()
    assert (ask.count, ask.placement, ask.avoid) == (1, Placement(), ("node1",))
    am.do(Heartbeat(resync=True))
    assert am.state.nodes.avoided.names(am.state.awake_ms) == (), "a restarted ResourceManager knows other nodes"


def test_without_other_nodes_repeated_node_faults_end_the_application() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 3 + NODE_RETRIES):
        assert am.requested() == [1]
        am.running(number)
        am.finished(number, result(Fault.NODE, None, None, message="no GPU is free"))
    am.settled()
    assert am.diagnostics() == (
        f"container 0 (worker 0) failed {NODE_RETRIES + 1} times for reasons other than its program, the last time: "
        "no GPU is free"
    )


def test_repeated_start_failures_end_the_application() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 3 + NODE_RETRIES):
        am.granted(number)
        end = ContainerEnd(container_id=am.id(number), exit_status=1, diagnostics="fork: Resource unavailable")
        am.do(Heartbeat(start_failed=(end,)))
    am.settled()
    assert am.diagnostics().endswith("the last time: fork: Resource unavailable")


DOCKER_AWAY = result(Fault.NODE, None, None, message="Docker does not answer", service="Docker")


def pause_s(am: Driver) -> int:
    """Let time pass until a container is wanted again; how long that took [s]."""
    waited_s = 0
    while am.requested() == [0]:
        am.wait(1)
        waited_s += 1
    return waited_s


def test_on_a_single_node_an_outage_is_waited_out_with_growing_pauses() -> None:
    am = Driver(RoleSpec(), single_node=True)
    pauses = []
    for number in range(2, 12):
        am.running(number)
        am.finished(number, DOCKER_AWAY)
        pauses.append(pause_s(am))
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    am.running(12)
    am.finished(12)
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_on_a_single_node_other_faults_of_the_node_are_counted_with_pauses_between_the_tries() -> None:
    am = Driver(RoleSpec(), single_node=True)
    pauses = []
    for number in range(2, 3 + NODE_RETRIES):
        am.running(number)
        am.finished(number, result(Fault.NODE, None, None, message="no GPU mode"))
        if number < 2 + NODE_RETRIES:
            pauses.append(pause_s(am))
    am.settled()
    assert pauses == [1, 2, 4]
    assert "failed 4 times" in am.diagnostics()
    assert am.diagnostics().endswith("the last time: no GPU mode")


def test_a_start_failure_on_a_single_node_is_retried_after_a_pause() -> None:
    am = Driver(RoleSpec(), single_node=True)
    am.granted(2)
    am.do(Heartbeat(start_failed=(ContainerEnd(container_id=am.id(2), exit_status=1, diagnostics="fork"),)))
    assert am.requested() == [0]
    assert pause_s(am) == 1


def test_with_other_nodes_an_outage_is_counted_and_retried_at_once() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 3 + NODE_RETRIES):
        assert am.requested() == [1]
        am.running(number)
        am.finished(number, DOCKER_AWAY)
    am.settled()
    assert am.diagnostics().endswith("the last time: Docker does not answer")


def test_a_pause_delays_no_other_index_and_the_phase_shows_its_end() -> None:
    am = Driver(RoleSpec(instances=2), single_node=True)
    am.running(2)
    am.finished(2, DOCKER_AWAY)
    assert am.requested() == [1]
    times = (am.now_ms / 1000 - 0.02, am.now_ms / 1000 + 3599.98, am.now_ms / 1000 + 0.98)
    since, until, at = (time.strftime("%H:%M:%S", time.localtime(time_)) for time_ in times)
    waits = f"1 waiting for Docker since {since}, until {until}"
    assert am.phase() == f"{waits}, 1 container tried again at {at}, waiting for 1 container"
    am.running(3)
    instance = am.state.containers.by_id[am.id(3)].instance
    assert instance is not None
    assert instance.index == 1
    am.wait(1)
    assert am.requested() == [1]


def test_a_gang_on_a_single_node_restarts_after_the_pause_of_its_lost_member() -> None:
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL, single_node=True)
    am.granted(2, 3)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.WAITING)
    am.report(2, Phase.RUNNING)
    am.report(3, Phase.RUNNING)
    am.finished(2, DOCKER_AWAY)
    assert (am.stops(3), am.orders(3).generation) == ([Stop.NO], 1)
    assert am.requested() == [0]
    am.wait(1)
    assert am.requested() == [1]


@pytest.mark.parametrize("status", [-100, -101, -102, -106, -108])
def test_preempted_containers_are_retried_uncounted_after_growing_pauses(status: int) -> None:
    am = Driver(RoleSpec())
    pauses = []
    for number in range(2, 12):
        am.running(number)
        am.ended(number, status, node_fault=True)
        pauses.append(pause_s(am))
        assert am.state.nodes.avoided.names(am.state.awake_ms) == ()
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert am.requested() == [1]


def test_pauses_are_reset_after_a_container_ran_for_ten_minutes() -> None:
    am = Driver(RoleSpec(), timing=PATIENT)
    pauses = []
    for number in range(2, 6):
        am.running(number)
        am.wait(601 if number == 4 else 1)
        am.ended(number, -100, node_fault=True)
        pauses.append(pause_s(am))
    assert pauses == [1, 2, 1, 2]


def test_containers_that_are_refused_before_they_run_for_an_index_pause_too() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 30):
        am.granted(number)
        end = ContainerEnd(container_id=am.id(number), exit_status=-100, diagnostics="a previous RM", node_fault=True)
        am.do(Heartbeat(start_failed=(end,)))
        assert pause_s(am) >= 1
    assert am.state.nodes.avoided.names(am.state.awake_ms) == ()


def test_a_fault_of_the_node_is_forgiven_for_each_hour_that_a_container_ran() -> None:
    am = Driver(RoleSpec(), timing=PATIENT)
    for number in range(2, 12):
        am.running(number)
        am.wait(3600)
        am.finished(number, result(Fault.NODE, None, None, message="the GPU fell off the bus"))
        assert am.requested() == [1]
        assert am.state.instances[0].node_faults == 1


def test_a_container_removed_by_its_node_is_not_counted() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 12):
        am.running(number)
        am.finished(number, result(Fault.NODE, None, None, message="its directory was removed", lost=True))
        assert pause_s(am) >= 1
        assert am.state.nodes.avoided.names(am.state.awake_ms) == ()
    assert am.state.instances[0].node_faults == 0


PATIENT = Timing(silence_ms=10**9)
AWAY = result(Fault.SERVICE, None, None, message="no ZooKeeper answered", service="ZooKeeper at zk1")


def test_an_unreachable_service_is_retried_with_pauses_and_not_counted() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 12):
        am.running(number)
        am.finished(number, AWAY)
        assert pause_s(am) >= 1
    instance = am.state.instances[0]
    assert (instance.user_faults, instance.node_faults) == (0, 0)
    assert am.state.nodes.avoided.names(am.state.awake_ms) == ()


def test_the_phase_names_the_awaited_service_with_start_and_deadline() -> None:
    am = Driver(RoleSpec(instances=2))
    am.granted(2, 3)
    am.hello(2)
    am.hello(3)
    am.report(2, Phase.LEASING, waits_for="ZooKeeper at zk1")
    since_ms = am.now_ms
    am.wait(30)
    am.report(3, Phase.LEASING, waits_for="ZooKeeper at zk1")
    since, until = (time.strftime("%H:%M:%S", time.localtime(ms / 1000)) for ms in (since_ms, since_ms + 3_600_000))
    assert am.phase() == f"leasing, 2 waiting for ZooKeeper at zk1 since {since}, until {until}"
    am.report(2, Phase.UNPACKING)
    am.report(3, Phase.UNPACKING)
    assert am.phase() == "unpacking"


def waits(am: Driver, number: int, seconds: int, service: str = "ZooKeeper at zk1") -> None:
    """A task waits for a service, and reports that it does."""
    for _ in range(seconds // 10):
        am.report(number, Phase.LEASING, waits_for=service)
        am.wait(10)


def test_a_container_that_waits_for_a_service_is_given_back_after_ten_minutes_and_not_counted() -> None:
    am = Driver(RoleSpec())
    am.granted(2)
    am.hello(2)
    waits(am, 2, 590)
    assert am.stops(2) == [Stop.NO]
    waits(am, 2, 20)
    assert am.stops(2) == [Stop.NOW]
    am.finished(2, result(Fault.STOPPED, None, None))
    assert am.requested() == [0]
    assert "1 waiting for ZooKeeper at zk1 since" in am.phase()
    assert pause_s(am) == 1
    assert am.state.instances[0].node_faults == 0


def test_on_a_single_node_a_container_that_waits_for_a_service_keeps_its_resources() -> None:
    am = Driver(RoleSpec(), single_node=True)
    am.granted(2)
    am.hello(2)
    waits(am, 2, 3_500)
    assert am.stops(2) == [Stop.NO]
    waits(am, 2, 110)
    assert am.stops(2) == [Stop.NOW]
    am.report(2, Phase.RELEASING)  # it removes its workspace, and waits for nothing any more
    am.finished(2, result(Fault.STOPPED, None, None))
    am.settled()
    assert (
        am.diagnostics()
        == "container 0 (worker 0) failed: waited 3600 s (service_patience) for ZooKeeper at zk1: it does not answer"
    )


def test_an_application_fails_after_the_service_patience_for_any_number_of_containers() -> None:
    am = Driver(RoleSpec(), service_patience_s=120.0)
    number = 2
    while am.requested() != [0] or pause_s(am) < 200:
        am.running(number)
        am.finished(number, AWAY)
        if am.state.ending is not None:
            break
        pause_s(am)
        number += 1
    am.settled()
    assert (
        am.diagnostics()
        == "container 0 (worker 0) failed: waited 120 s (service_patience) for ZooKeeper at zk1: no ZooKeeper answered"
    )
    assert am.ending().final_status is FinalStatus.FAILED


def test_the_service_patience_is_reset_after_ten_good_minutes() -> None:
    am = Driver(RoleSpec(), timing=PATIENT, service_patience_s=120.0)
    for number in range(2, 6):
        am.running(number)
        am.wait(601)
        am.finished(number, AWAY)
        pause_s(am)
    assert am.state.instances[0].waits_since_ms.keys() == {"ZooKeeper at zk1"}
    assert am.requested() == [1]


def test_each_service_has_its_own_patience() -> None:
    am = Driver(RoleSpec(), service_patience_s=120.0)
    am.granted(2)
    am.hello(2)
    waits(am, 2, 100)
    for _ in range(10):
        am.report(2, Phase.UNPACKING, waits_for="HDFS")
        am.wait(10)
    assert am.stops(2) == [Stop.NO]
    waits(am, 2, 10)
    assert am.stops(2) == [Stop.NOW]
    am.finished(2, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics().startswith(
        "container 0 (worker 0) failed: waited 120 s (service_patience) for ZooKeeper at zk1"
    )


def test_max_runtime_counts_on_while_a_service_is_waited_for() -> None:
    am = Driver(RoleSpec(), max_runtime_s=300.0)
    am.granted(2)
    am.hello(2)
    waits(am, 2, 310)
    am.finished(2, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics() == "timed out after 300 s before a payload ran"


def next_attempt(am: Driver) -> Driver:
    """Return the next attempt, at the same moment."""
    later = Driver(
        RoleSpec(),
        attempt=2,
        former=am.journal(),
        registered=False,
        published=False,
        service_patience_s=am.state.spec.service_patience_s,
    )
    later.now_ms = am.now_ms
    later.do(Registered(limits=ResourceLimits(), live=(am.grant(2),)))
    return later


@pytest.mark.parametrize("lasts_s", [90, 130])
def test_the_next_attempt_continues_the_service_patience(lasts_s: int) -> None:
    am = Driver(RoleSpec(), service_patience_s=120.0)
    am.granted(2)
    am.hello(2)
    waits(am, 2, 60)
    later = next_attempt(am)
    later.hello(2, index=0, phase=Phase.LEASING, attempt=1)
    assert later.phase().partition(", ")[2] == am.phase().partition(", ")[2]
    for _ in range(60, lasts_s, 10):
        later.report(2, Phase.LEASING, waits_for="ZooKeeper at zk1", attempt=1)
        later.wait(10)
    assert later.orders(2, 1).stop is (Stop.NO if lasts_s < 120 else Stop.NOW)


def test_the_next_attempt_restores_good_minutes_after_a_wait() -> None:
    am = Driver(RoleSpec(), timing=PATIENT, service_patience_s=120.0)
    am.granted(2)
    am.hello(2)
    waits(am, 2, 110)
    am.report(2, Phase.RUNNING)
    am.wait(601)
    later = next_attempt(am)
    later.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    later.report(2, Phase.ENDED, AWAY, attempt=1)
    later.ended(2, attempt=1)
    assert pause_s(later) == 1
    assert later.state.ending is None


NOT_LISTENING: dict[str, Any] = {
    "node_fault": True,
    "diagnostics": "node1:8041: refused",
    "service": "the NodeManager on node1",
}


def not_started(am: Driver, number: int) -> None:
    am.granted(number)
    am.do(Heartbeat(start_failed=(ContainerEnd(container_id=am.id(number), exit_status=-1, **NOT_LISTENING),)))


def test_a_nodemanager_that_does_not_listen_is_an_unreachable_service() -> None:
    am = Driver(RoleSpec())
    not_started(am, 2)
    assert "1 waiting for the NodeManager on node1 since" in am.phase()
    assert pause_s(am) == 1
    not_started(am, 3)
    pause_s(am)
    not_started(am, 4)
    pause_s(am)
    assert am.state.nodes.avoided.names(am.state.awake_ms) == ()
    instance = am.state.instances[0]
    assert (instance.user_faults, instance.node_faults) == (0, 0)
    am.running(5)
    assert am.phase() == "running 1 of 1"
    am.finished(5)
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_node_that_refuses_a_container_for_a_quarantine_is_avoided_at_once() -> None:
    am = Driver(RoleSpec())
    for number, node in enumerate(("node1", "node2", "node3"), 2):
        am.granted(number, node=node)
        am.hello(number)
        message = f"GPUs could not be leased: {node}: YARN gave GPUs that must not be used: gpu1 is quarantined (fan)"
        am.finished(number, result(Fault.NODE, None, None, message=message, is_closed=True))
        (ask,) = am.master.container_requests()
        assert ask.avoid[-1] == node
    assert ask.avoid == ("node1", "node2", "node3")


def test_a_node_whose_nodemanager_does_not_report_gpus_is_avoided_and_not_counted() -> None:
    am = Driver(RoleSpec())
    for number in (2, 3):
        am.granted(number, node="node1")
        am.hello(number)
        waits(am, number, 620, "the NodeManager on node1")
        assert am.stops(number) == [Stop.NOW]
        am.finished(number, result(Fault.STOPPED, None, None))
        am.wait(pause_s(am))
    (ask,) = am.master.container_requests()
    assert (ask.avoid, am.state.instances[0].node_faults) == (("node1",), 0)


def test_an_unresponsive_rack_is_avoided_and_not_counted() -> None:
    am = Driver(RoleSpec())
    rack = [f"node{number}" for number in range(6)]
    for number, node in enumerate(2 * rack, 2):
        am.granted(number, node=node)
        end = ContainerEnd(
            container_id=am.id(number),
            exit_status=-1,
            node_fault=True,
            diagnostics=f"{node}:8041: timed out",
            service=f"the NodeManager on {node}",
            is_silent=True,
        )
        am.do(Heartbeat(start_failed=(end,)))
        assert pause_s(am) >= 1
    (ask,) = am.master.container_requests()
    assert ask.avoid == tuple(rack)
    assert am.state.instances[0].node_faults == 0
    nodes = ResourceRequestTable()
    nodes.node_count = 12
    nodes.set_requests([ask], Counter())
    assert nodes.avoid() == (["node2", "node3", "node4", "node5"], []), "a third of all, those that failed last"
    am.running(20)
    am.finished(20)
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_nodemanager_that_never_listens_again_fails_the_application_after_the_patience() -> None:
    am = Driver(RoleSpec(), service_patience_s=120.0)
    for number in range(2, 20):
        not_started(am, number)
        if am.state.ending is not None:
            break
        pause_s(am)
    am.settled()
    message = "waited 120 s (service_patience) for the NodeManager on node1: node1:8041: refused"
    assert am.diagnostics() == f"container 0 (worker 0) failed: {message}"


def test_a_task_that_never_reports_is_late_even_during_an_outage() -> None:
    am = Driver(RoleSpec(instances=2), single_node=True, service_patience_s=10_000.0)
    am.granted(2, 3)
    am.hello(2)
    waits(am, 2, 9_900)
    assert am.state.containers.by_id[am.id(3)].stop_reason is None
    am = Driver(RoleSpec(), timing=PATIENT, service_patience_s=120.0)
    am.running(2)
    am.finished(2, AWAY)
    pause_s(am)
    am.granted(3)
    am.wait(400)
    assert am.state.containers.by_id[am.id(3)].stop_reason is None
    am.wait(30)
    assert am.state.containers.by_id[am.id(3)].stop_reason is StopReason.LATE


def test_no_task_is_late_while_others_wait_for_a_service() -> None:
    am = Driver(RoleSpec(instances=2))
    am.granted(2, 3)
    am.hello(2)
    waits(am, 2, 400)
    assert am.state.containers.by_id[am.id(3)].stop_reason is None
    am.report(2, Phase.UNPACKING)
    am.wait(16)
    assert am.state.containers.by_id[am.id(3)].stop_reason is StopReason.LATE


def test_an_ask_that_can_never_be_met_fails_it_at_once() -> None:
    am = Driver(RoleSpec())
    am.do(Heartbeat(refused=((1, "asked for 9 gcores, the largest node has 8"),)))
    am.settled()
    assert am.diagnostics() == "asked for 9 gcores, the largest node has 8"


def test_an_application_ends_even_if_a_container_never_does() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 1))
    am.wait(105)
    am.settled()
    am.wait(65)
    assert (
        am.diagnostics() == f"container 0 (worker 0) failed: exit code 1; the end of {am.id(3)} on node1 is not known"
    )


def test_an_attempt_shut_down_by_the_engine_changes_nothing() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(Heartbeat(shut_down="another attempt has registered"))
    assert am.last == [events.Abandon("another attempt has registered")]
    am.do(events.Tick())
    assert am.last == []


# ---- the gate ----


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


TEAM = (RoleSpec(name="ps", service=True), RoleSpec(name="worker", instances=2, retries=1))


def team_at_work(*roles: RoleSpec, **fields: Any) -> Driver:
    """A gang of two roles at work: containers 2 (ps) and 3, 4 (worker)."""
    am = Driver(*(roles or TEAM), gang=Gang.ALL, **fields)
    am.granted(2)
    am.granted(3, 4, request_id=2)
    for number in (2, 3, 4):
        am.hello(number)
        am.report(number, Phase.WAITING)
    for number in (2, 3, 4):
        am.report(number, Phase.RUNNING)
    return am


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


# ---- roles that depend on others ----


def dependent_role(name: str, *conditions: tuple[str, Until], **fields: Any) -> RoleSpec:
    return RoleSpec(name=name, depends_on=tuple(Dependency(*condition) for condition in conditions), **fields)


def test_a_role_that_waits_for_another_to_be_done_is_requested_only_then() -> None:
    am = Driver(RoleSpec(name="train"), dependent_role("eval", ("train", Until.DONE), instances=2))
    assert (am.requested(), am.phase()) == ([1, 0], "waiting for 1 container, eval waits for train (done)")
    am.running(2)
    assert am.requested() == [0, 0]
    am.finished(2)
    assert am.requested() == [0, 2]
    am.running(3, 4, request_id=2)
    assert am.orders(3).go
    am.finished(3)
    am.finished(4)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_without_a_gang_a_role_is_requested_once_its_dependency_has_started() -> None:
    am = Driver(RoleSpec(name="db", instances=2, service=True), dependent_role("web", ("db", Until.STARTED)))
    am.running(2)
    assert am.requested() == [1, 0]
    am.running(3)
    assert am.requested() == [0, 1]


def test_in_a_gang_a_role_starts_after_the_gate_once_its_dependency_has_started() -> None:
    am = Driver(TEAM[0], dependent_role("worker", ("ps", Until.STARTED)), gang=Gang.ALL)
    assert am.requested() == [1, 1]
    am.granted(2)
    am.granted(3, request_id=2)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.WAITING)
    assert (am.orders(2).go, am.orders(3).go) == (True, False)
    assert am.phase() == "1 of 2 at the gate, 1 starting, worker waits for ps"
    am.report(2, Phase.RUNNING)
    assert am.orders(3).go


def test_a_role_starts_once_each_payload_of_its_dependency_is_ready() -> None:
    am = Driver(
        RoleSpec(name="ps", instances=2, service=True), dependent_role("worker", ("ps", Until.READY)), gang=Gang.ALL
    )
    am.granted(2, 3)
    am.granted(4, request_id=2)
    for number in (2, 3, 4):
        am.hello(number)
        am.report(number, Phase.WAITING)
    am.report(2, Phase.RUNNING, payload=PayloadStatus(ready=True))
    am.report(3, Phase.RUNNING, payload=PayloadStatus(progress=0.5))
    assert (am.orders(4).go, am.phase()) == (False, "running 2 of 3, 1 of 3 at the gate, worker waits for ps (ready)")
    am.report(3, Phase.RUNNING, payload=PayloadStatus(ready=True))
    assert am.orders(4).go


def test_a_succeeded_payload_counts_as_ready_and_a_lost_container_does_not() -> None:
    am = Driver(RoleSpec(name="db", instances=2, retries=1), dependent_role("web", ("db", Until.READY)))
    am.running(2, 3)
    am.report(2, Phase.RUNNING, payload=PayloadStatus(ready=True))
    am.finished(2, result(Fault.USER, 1))
    am.finished(3)
    assert am.requested() == [1, 0]
    am.running(4)
    am.report(4, Phase.RUNNING, payload=PayloadStatus(ready=True))
    assert am.requested() == [0, 1]


def test_a_task_probes_its_port_only_if_a_role_waits_for_readiness() -> None:
    roles = (RoleSpec(name="db", ports=1), RoleSpec(name="old", ports=1), RoleSpec(name="none"))
    am = Driver(*roles, dependent_role("web", ("db", Until.READY), ("old", Until.STARTED), ("none", Until.READY)))
    for number, request_id in ((2, 1), (3, 2), (4, 3)):
        am.granted(number, request_id=request_id)
        am.hello(number)
    assert [action.assignment.ready_by_port for action in am.of(events.Assign, am.all)] == [True, False, False]


def test_an_impossible_start_condition_fails_the_application_naming_both_roles() -> None:
    am = Driver(
        RoleSpec(name="prepare"),
        dependent_role("train", ("prepare", Until.DONE)),
        RoleSpec(name="log"),
        success=("train", "log"),
    )
    am.running(4, request_id=3)
    am.running(2)
    am.finished(2, result(Fault.USER, 1))
    am.finished(4)
    am.settled()
    assert am.diagnostics() == "role train cannot start: it depends on role prepare, and container 0 (prepare 0) failed"


def test_with_continue_only_the_role_that_cannot_start_fails() -> None:
    am = Driver(
        RoleSpec(name="prepare"),
        dependent_role("train", ("prepare", Until.DONE)),
        RoleSpec(name="other"),
        on_container_failure=ContainerFailure.CONTINUE,
    )
    am.running(2)
    am.running(3, request_id=3)
    am.finished(2, result(Fault.USER, 1))
    am.finished(3)
    assert [part.role for part in am.settlement().parts] == ["other"]
    am.settled()
    assert am.diagnostics().startswith(
        "2 of 3 containers failed: 0-1; the first of them: container 0 (prepare 0) failed"
    )


def test_an_impossible_start_condition_names_the_container_that_never_started() -> None:
    am = Driver(
        RoleSpec(name="db", instances=2),
        dependent_role("web", ("db", Until.STARTED)),
        RoleSpec(name="other"),
        on_container_failure=ContainerFailure.CONTINUE,
    )
    am.running(4, request_id=3)
    am.running(2)
    am.finished(2, result(Fault.USER, 1))  # it had started
    am.granted(3)
    am.hello(3)
    am.finished(3, result(Fault.USER, None, None))
    assert am.state.instances[2].failed.endswith("it depends on role db, and container 1 (db 1) failed")
    assert "web waits" not in am.phase()


def test_with_continue_a_role_that_can_never_start_releases_its_containers() -> None:
    roles = (RoleSpec(name="db"), dependent_role("web", ("db", Until.STARTED)), RoleSpec(name="other"))
    first = Driver(*roles, on_container_failure=ContainerFailure.CONTINUE)
    first.running(2)
    first.granted(3, request_id=2)
    first.hello(3)  # its payload has not begun
    first.running(4, request_id=3)
    grants = tuple(first.grant(number) for number in (3, 4))
    going_on = ContainerFailure.CONTINUE
    am = Driver(*roles, attempt=2, former=first.journal(), live=grants, on_container_failure=going_on)
    am.hello(3, index=1, phase=Phase.UNPACKING, attempt=1)
    am.hello(4, index=2, phase=Phase.RUNNING, attempt=1)
    am.ended(2, -100, attempt=1, node_fault=True)
    am.wait(20)
    am.granted(5)
    am.hello(5)
    am.finished(5, result(Fault.USER, None, None))  # before its payload began
    assert (am.orders(3, attempt=1).stop, am.orders(4, attempt=1).stop) == (Stop.NOW, Stop.NO)
    am.report(3, Phase.ENDED, result(Fault.STOPPED, None, None), attempt=1)
    am.report(4, Phase.ENDED, result(), attempt=1)
    assert [part.role for part in am.settlement().parts] == ["other"]
    am.settled()
    am.ended(3, attempt=1)
    am.ended(4, attempt=1)
    assert am.diagnostics().startswith("2 of 3 containers failed: 0-1; the first of them: container 0 (db 0) ")


def test_the_next_attempt_restores_started_and_failed_roles() -> None:
    roles = (RoleSpec(name="db", service=True), dependent_role("web", ("db", Until.STARTED)))
    first = Driver(*roles)
    first.running(2)
    first.running(3, request_id=2)
    first.finished(2, result(Fault.USER, 1))
    am = second(first, 3)
    am.hello(3, index=1, phase=Phase.RUNNING, attempt=1)
    am.wait(2)
    assert am.orders(3, attempt=1).stop is Stop.NO
    assert "waits" not in am.phase()


def test_the_roles_that_decide_end_the_others_softly() -> None:
    am = Driver(RoleSpec(name="chief"), RoleSpec(name="worker", instances=2), success=("chief",), kill_grace_s=20.0)
    am.running(2)
    am.running(3, 4, request_id=2)
    am.finished(3, result(Fault.USER, 1))
    am.finished(2)
    assert am.stops(4) == [Stop.SOFT]
    am.finished(4, result(Fault.STOPPED, None))
    assert am.settlement().how is events.Settlement.COMMIT
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


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


# ---- stopping ----


def test_a_soft_kill_gives_payloads_their_grace_and_commits_stored_output() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=20.0)
    am.running(2, 3)
    am.finished(2)
    am.do(events.SoftKill("tina"))
    (answer,) = am.of(events.AnswerStop)
    assert (answer.answer.state, answer.answer.left_s) == ("stopping", 20.0)
    assert (am.orders(3).stop, am.orders(3).grace_s) == (Stop.SOFT, 20.0)
    assert am.orders(3).why == "soft-killed by tina"
    am.finished(3, result(Fault.USER, 143))
    assert am.settlement().how is Settlement.COMMIT
    assert [part.index for part in am.settlement().parts] == [0, 1]
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.KILLED, Cause.SOFT_KILLED, "soft-killed by tina, output committed"
    )
    assert am.view().state is State.FINISHED


def test_a_second_soft_kill_only_reports_the_time_left() -> None:
    am = Driver(RoleSpec(), kill_grace_s=20.0)
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.wait(5)
    am.do(events.SoftKill("tony"))
    (answer,) = am.of(events.AnswerStop)
    assert answer.answer.state == "already"
    assert answer.answer.message == "soft-killed by tina already, 15 s of the grace time left"
    assert am.of(events.SendOrders) == []


def test_before_payloads_run_a_soft_kill_is_a_kill() -> None:
    am = Driver(RoleSpec())
    am.granted(2)
    am.hello(2)
    am.do(events.SoftKill("tina"))
    assert am.stops(2) == [Stop.NOW]
    assert am.orders(2).why == "soft-killed by tina before a payload ran"
    am.finished(2, result(Fault.STOPPED, None, None))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.KILLED, Cause.KILLED, "soft-killed by tina before a payload ran"
    )


def test_a_payload_that_ignores_a_soft_kill_is_stopped_after_grace_and_margin() -> None:
    am = Driver(RoleSpec(instances=2), kill_grace_s=20.0)
    am.running(2, 3)
    am.finished(2)
    am.do(events.SoftKill("tina"))
    for _ in range(4):
        am.wait(5)
        am.report(3, Phase.RUNNING)
    assert am.stopped(am.wait(12)) == [3]
    am.ended(3, -9)
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed but for container 1 (worker 1)"


def test_a_container_that_stores_output_at_the_end_of_the_grace_may_continue() -> None:
    am = Driver(RoleSpec(), kill_grace_s=1.0)
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.report(2, Phase.STORING)
    for _ in range(20):
        assert am.stopped(am.wait(10)) == []
        am.report(2, Phase.STORING)
    am.finished(2, result(Fault.STOPPED, None))
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed"


def test_a_soft_kill_without_anything_stored_does_not_replace_older_output() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.finished(2, result(Fault.STOPPED, None, None))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, there was no output to commit"


def empty(name: str = "") -> StoredOutput:
    return StoredOutput(name=name, part="part", files=0, size_bytes=0)


def test_a_soft_kill_before_anything_was_written_does_not_replace_older_output() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.finished(2, TaskResult(fault=Fault.STOPPED, outputs=(empty(),)))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, there was no output to commit"


def test_a_soft_kill_commits_the_outputs_that_have_a_file() -> None:
    outputs = tuple(OutputSpec(name=name, output_path=name, target=f"file:///{name}") for name in ("model", "logs"))
    am = Driver(RoleSpec(), outputs=outputs)
    am.running(2)
    am.do(events.SoftKill("tina"))
    model = StoredOutput(name="model", part="part", files=1, size_bytes=1)
    am.finished(2, TaskResult(fault=Fault.STOPPED, outputs=(model, empty("logs"))))
    assert [part.outputs for part in am.settlement().parts] == [(model,)]
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed; there was none for file:///logs"


def test_an_empty_output_of_a_script_that_ended_well_is_committed() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(empty(),)))
    assert am.settlement().how is Settlement.COMMIT
    assert [part.outputs for part in am.settlement().parts] == [(empty(),)]


@pytest.mark.parametrize("stored", [empty(), StoredOutput(name="", part="part", files=1, size_bytes=0)])
def test_an_empty_output_does_not_replace_the_target_after_killed_processes(
    stored: StoredOutput,
) -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored,), left="1 process, bash"))
    assert am.settlement().how is Settlement.KEEP
    am.settled()
    assert am.diagnostics() == (
        "the output has no data, and the script of container 0 (worker 0) ended before processes that it had started, "
        "which were killed (1 process, bash): end the script with wait"
    )


def test_an_output_with_data_is_committed_though_processes_were_killed_with_the_script() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    stored = StoredOutput(name="", part="part", files=1, size_bytes=1)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(stored,), left="1 process, bash"))
    assert am.settlement().how is Settlement.COMMIT


def test_the_target_of_an_empty_output_is_unchanged_after_killed_processes() -> None:
    outputs = tuple(OutputSpec(name=name, output_path=name, target=f"file:///{name}") for name in ("model", "logs"))
    am = Driver(RoleSpec(), outputs=outputs)
    am.running(2)
    logs = StoredOutput(name="logs", part="part", files=1, size_bytes=1)
    am.finished(2, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(empty("model"), logs), left="1 process, bash"))
    assert am.settlement().how is Settlement.COMMIT
    assert [part.outputs for part in am.settlement().parts] == [(logs,)]
    am.settled()
    assert am.diagnostics() == (
        "there was no data for file:///model, and the script of container 0 (worker 0) ended before processes that it "
        "had started, which were killed (1 process, bash): end the script with wait"
    )


# ---- output of earlier tries ----


def kept_numbers(am: Driver) -> list[int]:
    return [part.container_id.number for part in am.settlement().parts]


def test_output_of_an_earlier_try_is_kept_if_the_last_has_no_file() -> None:
    am = Driver(RoleSpec(retries=2))
    for number, outputs in ((2, result().outputs), (3, (empty(),)), (4, ())):
        am.running(number)
        am.finished(number, TaskResult(fault=Fault.USER, exit_code=3, outputs=outputs))
    assert (am.settlement().how, kept_numbers(am)) == (Settlement.KEEP, [2])


def test_output_of_earlier_tries_is_ignored_after_a_success() -> None:
    am = Driver(RoleSpec(retries=1))
    am.running(2)
    am.finished(2, result(Fault.USER, 3))
    am.running(3)
    am.finished(3, TaskResult(fault=Fault.NONE, exit_code=0, outputs=(empty(),)))
    assert (am.settlement().how, kept_numbers(am), am.settlement().failed) == (Settlement.COMMIT, [3], ())


def test_a_soft_kill_keeps_output_of_an_earlier_try_aside() -> None:
    am = Driver(RoleSpec(instances=2, retries=1))
    am.running(2, 3)
    am.finished(2)
    am.finished(3, result(Fault.USER, 3))
    am.running(4)
    am.do(events.SoftKill("tina"))
    am.finished(4, result(Fault.STOPPED, None, None))
    assert (am.settlement().how, kept_numbers(am)) == (Settlement.COMMIT, [2])
    assert [part.container_id.number for part in am.settlement().failed] == [3]


def test_a_try_whose_task_died_is_searched_if_no_later_try_stored_a_file() -> None:
    am = Driver(RoleSpec(retries=3))
    for number, ending in ((2, result(Fault.USER, 3)), (3, None), (4, result(Fault.USER, 3, None))):
        am.running(number)
        if ending is None:
            am.ended(number, -9)
        else:
            am.finished(number, ending)
    am.running(5)
    am.finished(5, TaskResult(fault=Fault.DATA))
    assert kept_numbers(am) == [2]
    assert [part.container_id.number for part in am.settlement().lost] == [3]


def test_the_next_attempt_restores_the_output_of_earlier_tries() -> None:
    am = Driver(RoleSpec(retries=1))
    am.running(2)
    am.finished(2, result(Fault.USER, 3))
    am.running(3)
    next_one = second(am, 3, roles=(RoleSpec(retries=1),))
    next_one.report(3, Phase.RUNNING, index=0, attempt=1)
    next_one.report(3, Phase.ENDED, result(Fault.USER, 3, None), attempt=1)
    next_one.ended(3, attempt=1)
    assert kept_numbers(next_one) == [2]


def test_among_many_tries_the_one_with_output_is_remembered() -> None:
    am = Driver(RoleSpec(retries=100))
    for number in range(2, 40):
        am.running(number)
        am.finished(number, result(Fault.USER, 3, "part" if number == 5 else None))
    am.running(40)
    am.finished(40, TaskResult(fault=Fault.DATA))
    assert kept_numbers(am) == [5]


def test_a_soft_kill_keeps_stray_output_without_committing_it() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    stray = StoredOutput(name="", part="part", files=1, size_bytes=1, stray=True)
    am.finished(2, TaskResult(fault=Fault.STOPPED, exit_code=0, outputs=(stray,)))
    assert (am.settlement().how, len(am.settlement().parts)) == (Settlement.KEEP, 1)
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, there was no output to commit"


def test_max_runtime_is_a_soft_kill_with_a_cause_of_its_own() -> None:
    am = Driver(RoleSpec(), max_runtime_s=30.0)
    am.running(2)
    am.wait(31)
    assert am.stops(2) == [Stop.SOFT]
    am.finished(2, result(Fault.STOPPED, 0))
    am.settled()
    assert am.ending() == events.ApplicationEnd(
        FinalStatus.KILLED, Cause.TIMED_OUT, "timed out after 30 s, output committed"
    )


def test_at_the_time_limit_output_of_a_failed_script_is_kept_aside() -> None:
    am = Driver(RoleSpec(instances=2), max_runtime_s=30.0)
    am.running(2)
    am.running(3)
    am.wait(31)
    am.finished(2, result(Fault.STOPPED, 0))
    am.finished(3, result(Fault.STOPPED, None, signal=15))
    assert am.settlement().how is events.Settlement.KEEP
    am.settled()
    assert am.diagnostics().startswith("timed out after 30 s, output kept as partial: ")


def run_until_killed(am: Driver, killed_in_s: float, most_s: int = 3_600) -> int:
    """Let an application run whose engine says when it is going to kill it; return when payloads are stopped [s]."""
    am.running(2)
    am.do(Heartbeat(killed_in_s=killed_in_s))
    seconds = 0
    while am.stops(2) == [Stop.NO] and seconds < most_s:
        am.wait(1)
        seconds += 1
    return seconds


@pytest.mark.parametrize(
    ("killed_in_s", "kill_grace_s", "stopped_s", "grace_s"),
    [
        (7200.0, 30.0, 6570, 30),  # 10 min for the output at the most
        (600.0, 30.0, 510, 30),  # else a tenth
        (60.0, 5.0, 45, 5),  # 10 s at the least
        (20.0, 3600.0, 10, 5),  # half of it is the payload's
        (math.inf, 30.0, 3_600, None),
    ],
)
def test_before_the_engine_kills_it_an_application_ends_softly_and_has_time_to_store(
    killed_in_s: float, kill_grace_s: float, stopped_s: int, grace_s: int | None
) -> None:
    am = Driver(RoleSpec(), timing=PATIENT, kill_grace_s=kill_grace_s)
    assert run_until_killed(am, killed_in_s, most_s=7200 if grace_s else 3600) == pytest.approx(stopped_s, abs=2)
    if grace_s is None:
        return
    assert am.orders(2).grace_s == pytest.approx(grace_s, abs=1)
    am.finished(2, result(Fault.STOPPED, 0))
    am.settled()
    message = "timed out: lifetime limit of the queue or application in YARN, output committed"
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.TIMED_OUT, message)


def test_the_shorter_of_max_runtime_and_a_changeable_lifetime_counts() -> None:
    am = Driver(RoleSpec(), timing=PATIENT, max_runtime_s=300.0)
    assert run_until_killed(am, 3600.0) == pytest.approx(300, abs=2)
    am.finished(2, result(Fault.STOPPED, 0))
    am.settled()
    assert am.diagnostics() == "timed out after 300 s, output committed"
    am = Driver(RoleSpec(), timing=PATIENT)
    assert run_until_killed(am, 3600.0, 100) == 100
    am.do(Heartbeat(killed_in_s=math.inf))
    am.wait(3600)
    assert am.stops(2) == [Stop.NO]
    am.do(Heartbeat(killed_in_s=20.0))
    assert am.stops(2) == [Stop.SOFT]


def test_the_next_attempt_restores_the_limit_that_stops_the_application() -> None:
    am = Driver(RoleSpec(), timing=PATIENT)
    run_until_killed(am, 60.0)
    later = Driver(RoleSpec(), attempt=2, former=am.journal(), live=(am.grant(2),))
    later.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    assert later.view().soft_kill_by == "lifetime limit of the queue or application in YARN"
    later.report(2, Phase.ENDED, result(Fault.STOPPED, 0), attempt=1)
    later.settled()
    later.ended(2, attempt=1)
    assert later.diagnostics().startswith("timed out: lifetime limit of the queue")


def test_a_kill_stops_all_containers_at_once_and_keeps_no_output() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2)
    am.granted(3)
    am.do(events.Kill("tina"))
    assert am.stops(2) == [Stop.NOW]
    assert am.stopped() == [3]
    assert am.stopped(am.wait(4)) == [2]
    am.ended(2, -9)
    am.ended(3, -9)
    assert am.settlement().how is Settlement.DROP
    assert am.settlement().parts == ()
    am.settled()
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, "killed by tina, no output kept")
    assert am.view().state is State.KILLED


def test_a_kill_keeps_completely_stored_output() -> None:
    am = Driver(RoleSpec(instances=3))
    am.running(2, 3, 4)
    am.finished(2)
    am.do(events.Kill("tina"))
    am.ended(3, -9)
    am.finished(4, result(Fault.STOPPED, None))
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts], wanted.lost) == (Settlement.DROP, [0, 2], ())
    am.settled()
    message = "killed by tina, the complete output of container 0 (worker 0), container 2 (worker 2) kept as partial"
    assert am.ending() == events.ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, message)


def test_a_kill_while_only_services_still_end_commits_the_output() -> None:
    am = Driver(RoleSpec(), RoleSpec(name="server", service=True, keep_running=True, script="s"), kill_grace_s=20.0)
    am.running(2)
    am.running(3, request_id=2)
    am.finished(2)
    assert am.stops(3) == [Stop.SOFT]
    am.do(events.Kill("tina"))
    assert am.stops(3) == [Stop.NOW]
    am.finished(3, result(Fault.STOPPED, None, None))
    wanted = am.settlement()
    assert (wanted.how, [part.index for part in wanted.parts]) == (Settlement.COMMIT, [0])
    am.settled()
    assert am.ending().final_status is FinalStatus.SUCCEEDED


def test_a_kill_overtakes_a_soft_kill() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.do(events.Kill("tony"))
    assert am.stops(2) == [Stop.NOW]
    am.finished(2, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.diagnostics() == "killed by tony, no output kept"


def test_a_kill_comes_too_late_once_the_output_is_being_committed() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2)
    am.do(events.Kill("tina"))
    (answer,) = am.of(events.AnswerStop)
    assert answer.answer.state == "ended"
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_a_stop_before_the_registration_is_not_forgotten() -> None:
    am = Driver(RoleSpec(), registered=False)
    am.do(events.Kill("tina"))
    am.do(Registered(limits=ResourceLimits()))
    am.settled()
    assert am.ending().cause is Cause.KILLED


# ---- a next attempt ----


def second(first: Driver, *live: int, roles: tuple[RoleSpec, ...] = (), **fields: object) -> Driver:
    """A second attempt with the first one's journal; ``live`` are the containers that the engine names."""
    grants = tuple(first.grant(number) for number in live)
    spec = first.state.spec
    given: dict[str, Any] = {"gang": spec.gang, "success": spec.success}
    next_one = Driver(*(roles or spec.roles), attempt=2, former=first.journal(), live=grants, **given)
    next_one.now_ms = first.now_ms
    return next_one


def test_a_container_missing_from_a_complete_list_of_the_engine_is_gone() -> None:
    first = Driver(RoleSpec(instances=3), kill_grace_s=0)
    first.running(2, 3)
    first.granted(4)
    first.hello(4)  # its payload has not begun
    am = Driver(
        RoleSpec(instances=3),
        kill_grace_s=0,
        attempt=2,
        former=first.journal(),
        live=(first.grant(2), first.grant(3)),
        is_complete=True,
    )
    am.do(events.Tick(), 2)  # after a pause
    assert am.requested() == [1]
    again = Driver(RoleSpec(), attempt=2, former=running_alone().journal(), is_complete=True)
    assert again.state.ending is not None
    assert again.state.ending.diagnostics.endswith("killed, or ended without a result, under an earlier attempt")


def running_alone() -> Driver:
    """Return an attempt whose only container runs."""
    first = Driver(RoleSpec())
    first.running(2)
    return first


def test_the_next_attempt_takes_over_tasks_and_results() -> None:
    first = Driver(RoleSpec(instances=3))
    first.running(2, 3, 4)
    first.finished(2)
    am = second(first, 3, 4)
    assert am.requested() == [0]
    am.hello(3, index=1, phase=Phase.RUNNING, attempt=1)
    assert am.orders(3, attempt=1).go
    for number in (3, 4):
        am.report(number, Phase.ENDED, result(), attempt=1, nth=50, index=number - 2)
        am.ended(number, attempt=1)
    assert [part.container_id.number for part in am.settlement().parts] == [2, 3, 4]
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_an_unconfirmed_container_is_stopped_before_its_index_runs_again() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = second(first, 2)
    assert am.requested() == [0]
    assert 2 in am.stopped(am.wait(121))
    assert am.requested() == [0]
    am.ended(2, -105, attempt=1)
    assert am.requested() == [1]


def test_without_a_journal_no_index_is_assigned_before_all_live_tasks_report() -> None:
    live = Driver(RoleSpec(instances=2)).grant(2)
    am = Driver(RoleSpec(instances=2), attempt=2, live=(live,))
    am.granted(7)
    assert am.of(events.Assign, am.hello(7)) == []
    given = am.of(events.Assign, am.hello(2, index=0, phase=Phase.RUNNING, attempt=1))
    assert sorted((container.container_id.number, container.assignment.index) for container in given) == [
        (2, 0),
        (7, 1),
    ]


def test_a_container_lost_with_its_applicationmaster_may_run_any_index_until_it_is_gone() -> None:
    am = Driver(RoleSpec(instances=2), attempt=2)
    am.do(Heartbeat(ending=(am.id(3, 1),)))
    assert am.requested() == [2]
    am.granted(2)
    assert am.of(events.StartTask)
    assert am.hello(2) == []
    am.ended(3, -100, attempt=1, node_fault=True)
    (given,) = am.of(events.Assign)
    assert (given.container_id, given.assignment.index) == (am.id(2), 0)
    am.do(Heartbeat(ending=(am.id(3, 1),)))
    am.granted(4)
    assert am.of(events.Assign, am.hello(4))


def test_a_task_on_a_lost_node_is_ordered_to_end_while_it_is_connected() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(Heartbeat(ending=(am.id(2),)))
    assert am.orders(2).stop is Stop.NOW
    assert am.requested() == [0]
    am.ended(2, -100, node_fault=True)
    assert pause_s(am) == 1


def lost(am: Driver, number: int, attempt: int | None = None, *, answered: bool = False) -> list[events.Action]:
    """The engine has lost a container's node, and says so; nobody has seen its processes end."""
    am.do(Heartbeat(ending=(am.id(number, attempt),)))
    return am.ended(number, -100, attempt=attempt, node_fault=True, presumed=True, node_answered=answered)


@pytest.mark.parametrize("is_known_first", [True, False])
@pytest.mark.parametrize("attempt", [1, 2])
def test_an_index_of_a_node_that_the_operator_has_removed_runs_again_at_once(
    attempt: int, is_known_first: bool
) -> None:
    first = am = Driver(RoleSpec())
    first.running(2)
    if attempt == 2:
        am = Driver(RoleSpec(), attempt=2, former=first.journal())
    removed = Heartbeat(removed_nodes=("node1",))
    if is_known_first:
        am.do(removed)
    lost(am, 2, attempt=1, answered=True)
    if not is_known_first:
        assert am.requested() == [0]
        am.do(removed)
    assert pause_s(am) == 1
    assert am.state.instances[0].node_faults == 0
    am.running(3)  # the operator has taken the node back
    lost(am, 3, answered=True)
    assert am.requested() == [0], "this time it is lost"


@pytest.mark.parametrize(("attempt", "published"), [(1, True), (2, True), (2, False)])
@pytest.mark.parametrize("is_known_first", [True, False])
def test_an_index_of_a_removed_node_without_nodemanager_waits_until_its_task_must_be_gone(
    attempt: int, published: bool, is_known_first: bool
) -> None:
    first = am = Driver(RoleSpec())
    first.running(2)
    if attempt == 2:
        am = Driver(RoleSpec(), attempt=2, former=first.journal(), published=published)
    removed = Heartbeat(removed_nodes=("node1",))
    if is_known_first:
        am.do(removed)
    lost(am, 2, attempt=1)
    if not is_known_first:
        am.do(removed)
    if not published:
        am.do(events.Published())
    assert 55 <= pause_s(am) <= 75
    assert am.state.instances[0].node_faults == 0


def test_a_task_on_a_removed_node_is_ordered_to_end_and_its_result_counts() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal())
    am.do(Heartbeat(removed_nodes=("node1",)))
    lost(am, 2, attempt=1)
    am.wait(50)
    am.hello(2, 0, Phase.RUNNING, attempt=1)
    assert am.orders(2, 1).stop is Stop.NOW
    am.wait(30)
    assert am.requested() == [0]
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None), attempt=1)
    assert am.requested() == [1]


def test_an_index_of_a_lost_node_runs_again_once_its_task_reports_the_end() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    lost(am, 2)
    am.wait(5)
    assert (am.orders(2).stop, am.requested()) == (Stop.NOW, [0])
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None))
    assert am.requested() == [1]
    assert not am.state.containers.live
    am.running(3)
    am.finished(3)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_an_index_of_a_lost_node_runs_again_when_its_task_has_been_silent() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.wait(50)
    lost(am, 2)
    assert am.requested() == [0]
    am.wait(20)
    assert am.requested() == [1]
    am.running(3)
    am.do(events.Tick(), 0.01)
    assert am.orders(3).stop is Stop.NO


@pytest.mark.parametrize("comes_back", [False, True])
def test_silence_after_the_node_was_lost_is_not_counted(comes_back: bool) -> None:
    am = Driver(RoleSpec())
    for number in range(2, 12):
        am.running(number)
        am.wait(40)
        lost(am, number)
        am.wait(21)
        if comes_back:
            am.ended(number, 137)  # what its node says when it is there again comes too late
        assert am.state.instances[0].node_faults == am.state.instances[0].user_faults == 0
        assert am.state.nodes.avoided.names(am.state.awake_ms) == ()
        assert pause_s(am) >= 1
    am.running(12)
    am.finished(12)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_a_lost_node_whose_task_was_silent_before_is_not_waited_for() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.wait(61)
    lost(am, 2)
    assert pause_s(am) == 1


def test_a_container_of_a_lost_node_that_runs_nothing_is_not_waited_for() -> None:
    am = Driver(RoleSpec())
    am.granted(2)
    lost(am, 2)
    assert pause_s(am) == 1


def test_a_next_attempt_waits_for_the_task_of_a_lost_node_as_for_every_other() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal())
    lost(am, 2, attempt=1)
    am.wait(30)
    assert am.requested() == [0]
    am.report(2, Phase.RUNNING, index=0, attempt=1, nth=50, seen=1)
    assert am.orders(2, attempt=1).stop is Stop.NOW
    am.wait(50)
    assert am.requested() == [0], "it was heard, and may still end its payload"
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None), index=0, attempt=1, nth=51)
    assert am.requested() == [1]
    never_heard = Driver(RoleSpec(), attempt=2, former=first.journal())
    lost(never_heard, 2, attempt=1)
    never_heard.wait(119)
    assert never_heard.requested() == [0]
    never_heard.wait(2)
    assert never_heard.requested() == [1]


@pytest.mark.parametrize("heard", [False, True])
def test_an_unrecorded_container_of_a_lost_node_may_run_any_index_until_it_reports(heard: bool) -> None:
    am = Driver(RoleSpec(instances=2), RoleSpec(name="other"), attempt=2)
    lost(am, 3, attempt=1)
    am.granted(2)
    am.granted(4, request_id=2)
    assert am.hello(2) == am.hello(4) == []
    if heard:
        am.report(3, Phase.RUNNING, index=0, attempt=1, nth=5)
        given = {container.container_id: container.assignment.index for container in am.of(events.Assign, am.all)}
        assert given == {am.id(2): 1, am.id(4): 2}
        for number in (6, 7):
            am.wait(55)
            am.report(3, Phase.RUNNING, index=0, attempt=1, nth=number)
        am.wait(15)
        assert am.orders(3, attempt=1).stop is Stop.NOW
        assert am.requested() == [0, 0]
        am.report(3, Phase.ENDED, result(Fault.STOPPED, None), index=0, attempt=1, nth=8)
        assert am.requested() == [1, 0]
    else:
        am.wait(121)
        given = {container.container_id: container.assignment.index for container in am.of(events.Assign, am.all)}
        assert given == {am.id(2): 0, am.id(4): 2}


def written(am: Driver, lines: int | None = None) -> None:
    """The journal is on record, or so many lines of it."""
    am.do(events.JournalWritten(am.state.journal.lines if lines is None else lines))


def test_a_payload_starts_once_the_journal_has_its_index() -> None:
    am = Driver(RoleSpec(instances=2), journal_is_slow=True)
    am.granted(2, 3)
    am.hello(2)
    before = am.state.journal.lines
    am.hello(3)
    for number in (2, 3):
        am.report(number, Phase.WAITING)
    written(am, before - 1)
    assert not am.orders(2).go
    assert am.phase() == "2 waiting until the journal is written"
    written(am, before)
    assert am.orders(2).go
    assert not am.orders(3).go
    written(am)
    assert am.orders(3).go


def test_no_payload_runs_before_its_index_is_in_the_journal() -> None:
    first = Driver(RoleSpec(), journal_is_slow=True)
    first.granted(2)
    first.hello(2)
    lost(first, 2)
    # It dies before the journal is written. YARN has said all that it says of the container, and the next attempt gives
    # its index to another one before the task has found it.
    am = Driver(RoleSpec(), attempt=2, former=journal.replay([]))
    am.granted(2)
    (given,) = am.of(events.Assign, am.hello(2))
    assert (given.container_id, given.assignment.index) == (am.id(2), 0)
    assert am.orders(2).go
    assert not first.orders(2).go


def test_a_gang_starts_once_the_journal_has_its_indexes() -> None:
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL, journal_is_slow=True)
    am.granted(2, 3)
    am.hello(2)
    written(am)
    am.hello(3)
    for number in (2, 3):
        am.report(number, Phase.WAITING)
    assert [am.orders(number).go for number in (2, 3)] == [True, False]
    written(am)
    assert am.orders(3).go


def test_an_index_reported_by_a_task_is_recorded_before_its_payload_starts() -> None:
    live = Driver(RoleSpec()).grant(2)
    am = Driver(RoleSpec(), attempt=2, live=(live,), journal_is_slow=True)
    am.hello(2, index=0, phase=Phase.WAITING, attempt=1)
    assert not am.orders(2, attempt=1).go
    written(am)
    assert am.orders(2, attempt=1).go


def test_a_container_that_ends_before_its_index_is_on_record_gets_no_start_order() -> None:
    am = Driver(RoleSpec(instances=2), journal_is_slow=True)
    am.granted(2, 3)
    am.hello(2)
    am.hello(3)
    am.ended(2, -100, node_fault=True)
    lost(am, 3)
    written(am)
    assert not am.orders(2).go
    assert (am.orders(3).stop, am.orders(3).go) == (Stop.NOW, False)


def test_with_a_complete_list_of_the_engine_a_payload_does_not_wait_for_the_journal() -> None:
    am = Driver(RoleSpec(), is_complete=True, journal_is_slow=True)
    am.granted(2)
    am.hello(2)
    assert am.orders(2).go


def test_a_container_in_the_journal_keeps_only_its_own_index() -> None:
    first = Driver(RoleSpec(instances=2))
    first.running(2)
    am = Driver(RoleSpec(instances=2), attempt=2, former=first.journal())
    am.do(Heartbeat(ending=(am.id(2, 1),)))
    am.granted(2)
    (given,) = am.of(events.Assign, am.hello(2))
    assert given.assignment.index == 1
    assert am.requested() == [0]
    am.ended(2, -100, attempt=1, node_fault=True)
    assert pause_s(am) == 1
    am.granted(3)
    (given,) = am.of(events.Assign, am.hello(3))
    assert given.assignment.index == 0


def test_a_result_lost_with_its_applicationmaster_is_not_counted() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal(), live=(first.grant(2),))
    am.ended(2, 0, attempt=1)
    assert am.requested() == [1]
    am.running(3)
    am.finished(3)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_orders_of_a_next_attempt_are_newer_than_what_the_task_has_seen() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = second(first, 2)
    am.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    am.report(2, Phase.RUNNING, attempt=1, seen=17, nth=30)
    assert am.orders(2, attempt=1).number > 17


def test_a_failure_that_was_counted_stays_counted() -> None:
    first = Driver(RoleSpec(retries=1))
    first.running(2)
    first.finished(2, result(Fault.USER, 1))
    am = second(first)
    assert am.requested() == [1]
    am.running(2)
    am.finished(2, result(Fault.USER, 1))
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed 2 times, the last time: exit code 1"


def test_a_commit_that_was_decided_is_decided_for_the_next_attempt() -> None:
    first = Driver(RoleSpec(instances=2))
    first.running(2, 3)
    first.finished(2)
    first.finished(3)
    am = second(first)
    assert am.settlement() == first.settlement()
    am.do(events.Kill("tina"))
    assert am.of(events.AnswerStop)[0].answer.state == "ended"
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_a_soft_kill_continues_with_the_remaining_grace() -> None:
    first = Driver(RoleSpec(), kill_grace_s=20.0)
    first.running(2)
    first.do(events.SoftKill("tina"))
    am = Driver(
        RoleSpec(),
        attempt=2,
        former=first.journal(),
        live=(first.grant(2),),
        kill_grace_s=20.0,
    )
    assert am.orders(2, attempt=1).stop is Stop.SOFT
    am.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None), attempt=1, nth=90, index=0)
    am.ended(2, attempt=1)
    am.settled()
    assert am.diagnostics() == "soft-killed by tina, output committed"


def test_a_container_known_only_from_the_journal_is_presumed_gone_after_a_while() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = second(first)
    assert am.requested() == [0]
    am.wait(121)
    assert am.requested() == [1]


def test_an_unpublished_attempt_waits_for_the_tasks_of_the_earlier_one() -> None:
    first = Driver(RoleSpec(instances=2))
    first.running(2, 3)
    am = Driver(
        RoleSpec(instances=2),
        attempt=2,
        former=first.journal(),
        live=(first.grant(2), first.grant(3)),
        published=False,
    )
    am.wait(3600)
    am.do(events.Published())
    am.wait(50)
    am.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    am.do(events.Published())
    assert am.stopped(am.all) == []
    for number in (51, 52):
        am.report(2, Phase.RUNNING, index=0, attempt=1, nth=number, seen=1)
        am.wait(36)
    assert am.stopped() == []
    assert am.stopped(am.all)[:1] == [3]
    assert am.orders(2, attempt=1).stop is Stop.NO


def test_an_attempt_unpublished_for_a_day_runs_everything_again() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal(), live=(first.grant(2),), published=False)
    for _ in range(24 * 360 - 1):
        am.do(events.Tick(), 10.0)
    assert am.stopped(am.all) == []
    am.wait(11)
    am.ended(2, -100, attempt=1)
    assert am.requested() == [1]


def test_a_container_known_only_from_a_late_message_is_presumed_gone_if_silent() -> None:
    am = Driver(RoleSpec(), attempt=2)
    am.report(2, Phase.RUNNING, attempt=1, index=0)
    assert am.requested() == [0]
    am.wait(130)
    assert am.requested() == [1]


def test_the_runtime_of_earlier_attempts_counts() -> None:
    first = Driver(RoleSpec(), max_runtime_s=60.0)
    first.running(2)
    am = Driver(
        RoleSpec(),
        attempt=2,
        former=first.journal(),
        live=(first.grant(2),),
        max_runtime_s=60.0,
        registered=False,
    )
    am.now_ms = START_MS + 50_000
    am.do(Registered(limits=ResourceLimits(), live=(first.grant(2),)))
    am.hello(2, index=0, phase=Phase.RUNNING, attempt=1)
    am.wait(11)
    assert am.orders(2, attempt=1).stop is Stop.SOFT


def test_a_released_member_is_recovered_after_a_death_at_a_closed_gate() -> None:
    first = team_at_work()
    first.finished(2, result(Fault.USER, 1))
    assert first.state.instances[0].given_up
    first.finished(3, result(Fault.USER, 1))
    written = [action.record for action in first.of(events.WriteJournal, first.all)]
    closed = next(at for at, one in enumerate(written) if one["kind"] == "gate" and not one["open"])
    former = journal.replay(written[: closed + 1])
    am = Driver(*TEAM, attempt=2, former=former, live=(first.grant(4, 2),), gang=Gang.ALL)
    assert not am.state.instances[0].given_up
    am.hello(4, index=2, phase=Phase.RUNNING, attempt=1)
    assert am.orders(4, attempt=1).generation == 1
    am.ended(4, -9, attempt=1)
    am.wait(200)
    assert am.requested() == [1, 2]


@pytest.mark.parametrize("when", ["granted", "bound", "at the gate", "running", "recalled"])
def test_a_gang_taken_over_at_any_moment_ends(when: str) -> None:
    role = RoleSpec(instances=2, retries=1)
    first = Driver(role, gang=Gang.ALL)
    first.granted(2, 3)
    if when != "granted":
        first.hello(2)
        first.hello(3)
    if when in ("at the gate", "running", "recalled"):
        first.report(2, Phase.WAITING)
    if when in ("running", "recalled"):
        first.report(3, Phase.WAITING)
        first.report(2, Phase.RUNNING)
    if when == "recalled":
        first.finished(3, result(Fault.USER, 1))
    live = (2,) if when == "recalled" else (2, 3)
    am = second(first, *live)
    phases = {"running": Phase.RUNNING, "recalled": Phase.RUNNING, "at the gate": Phase.WAITING}
    phase = phases.get(when, Phase.STARTING)
    for number in live:
        am.hello(number, index=None if when == "granted" else number - 2, phase=phase, attempt=1)
    generation = 0
    if when == "recalled":
        generation = 1
        assert am.orders(2, attempt=1).generation == 1
        am.granted(5)
        am.hello(5)
        team = [(2, 1), (5, 2)]
    else:
        team = [(2, 1), (3, 1)]
    for number, attempt in team:
        am.report(number, Phase.WAITING, attempt=attempt, nth=70, generation=generation)
    assert all(am.orders(number, attempt).go for number, attempt in team)
    for number, attempt in team:
        am.report(number, Phase.ENDED, result(), attempt=attempt, nth=80)
        am.ended(number, attempt=attempt)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


# ---- failures of a gang ----

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


# ---- payloads that hang ----


def team_that_reports(**fields: Any) -> Driver:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL, hang_timeout_s=60.0, **fields)
    am.running_gang(2, 3)
    return am


def status_of_lines(lines: int) -> PayloadStatus:
    return PayloadStatus(step=lines, lines=lines)


def keep_talking(am: Driver, seconds: int, *numbers: int, **fields: Any) -> None:
    for _ in range(seconds // 10):
        am.wait(10)
        for number in numbers:
            am.report(number, Phase.RUNNING, **fields)


def test_a_gang_without_reports_is_aborted_as_a_whole() -> None:
    am = team_that_reports()
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    keep_talking(am, 50, 2, 3, payload=status_of_lines(1))
    assert not am.orders(2).abort
    keep_talking(am, 20, 2, payload=status_of_lines(1))
    assert [am.orders(n).abort for n in (2, 3)] == ["no report for 60 s (hang_timeout)"] * 2


def test_a_rank_that_reports_is_a_sign_of_life_of_its_gang() -> None:
    am = team_that_reports()
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    for lines in range(1, 20):
        keep_talking(am, 50, 2)
        am.report(3, Phase.RUNNING, payload=status_of_lines(lines))
    assert (am.orders(2).abort, am.orders(3).abort) == ("", "")


def test_payloads_that_never_reported_are_not_taken_to_hang() -> None:
    am = team_that_reports()
    keep_talking(am, 600, 2, 3)
    am.report(3, Phase.RUNNING, payload=PayloadStatus(ready=True))  # its port accepts connections
    keep_talking(am, 600, 2, 3, payload=PayloadStatus(ready=True))
    assert (am.orders(2).abort, am.orders(3).abort) == ("", "")


IDLE, BUSY = Usage(at_ms=0, cpu_cores=0.004), Usage(at_ms=0, cpu_cores=0.9)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_a_gang_that_never_reports_is_aborted_if_all_of_it_is_idle_and_hang_idle_is_set(is_wanted: bool) -> None:
    am = team_that_reports(hang_idle=is_wanted)
    for _ in range(60):
        keep_talking(am, 10, 2, usage=IDLE)
        am.report(3, Phase.RUNNING)  # what is not known of it is not idle
    keep_talking(am, 50, 2, 3, usage=IDLE)
    assert [am.orders(n).abort for n in (2, 3)] == ["", ""]
    keep_talking(am, 20, 2, 3, usage=IDLE)
    wanted = "no use of CPU or GPU for 60 s (hang_timeout, hang_idle)" if is_wanted else ""
    assert [am.orders(n).abort for n in (2, 3)] == [wanted] * 2


def test_a_rank_that_works_is_a_sign_of_life_of_a_gang_that_never_reports() -> None:
    am = team_that_reports(hang_idle=True)
    for _ in range(20):
        keep_talking(am, 40, 2, 3, usage=IDLE)
        keep_talking(am, 10, 3, usage=BUSY)
    assert [am.orders(n).abort for n in (2, 3)] == ["", ""]


@pytest.mark.parametrize(
    ("usage", "is_idle"),
    [
        (Usage(at_ms=0), False),
        (Usage(at_ms=0, cpu_cores=0.0), False),
        (Usage(at_ms=0, cpu_cores=0.0, devices=(DeviceUsage(index=0),)), False),
        (Usage(at_ms=0, cpu_cores=0.0, devices=(DeviceUsage(index=0, utilisation=0.3),)), False),
        (Usage(at_ms=0, cpu_cores=0.9, devices=(DeviceUsage(index=0, utilisation=0.0),)), False),
        (Usage(at_ms=0, cpu_cores=0.0, devices=(DeviceUsage(index=0, utilisation=0.0),)), True),
    ],
    ids=["nothing known", "no GPU known", "GPU not known", "GPU busy", "CPU busy", "idle"],
)
def test_a_payload_with_a_gpu_is_idle_if_neither_is_used(usage: Usage, is_idle: bool) -> None:
    am = Driver(RoleSpec(resources=Resources(memory_mib=1, gcores=1)), hang_timeout_s=60.0, hang_idle=True)
    am.running(2)
    keep_talking(am, 90, 2, usage=usage, gpus=(0,))
    assert bool(am.orders(2).abort) is is_idle


def test_a_program_that_has_reported_is_judged_by_its_reports_and_not_by_its_use() -> None:
    am = team_that_reports(hang_idle=True)
    for lines in range(1, 20):
        am.report(3, Phase.RUNNING, payload=status_of_lines(lines))
        keep_talking(am, 50, 2, usage=IDLE)
    assert (am.orders(2).abort, am.orders(3).abort) == ("", "")


def test_the_idle_time_of_a_gang_starts_over_with_each_generation() -> None:
    am = team_that_reports(hang_idle=True)
    keep_talking(am, 70, 2, 3, usage=IDLE)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, failure=result(Fault.USER, None, None, signal=6))
    for number in (2, 3):
        am.report(number, Phase.WAITING, generation=1)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, generation=1)
    keep_talking(am, 50, 2, 3, usage=IDLE)
    assert [am.orders(n).abort for n in (2, 3)] == ["", ""]
    keep_talking(am, 20, 2, 3, usage=IDLE)
    assert all(am.orders(n).abort for n in (2, 3))


def test_while_a_member_of_a_gang_is_on_its_way_the_others_may_be_idle() -> None:
    late = RoleSpec(name="late", depends_on=(Dependency("early", Until.READY),))
    am = Driver(RoleSpec(name="early"), late, gang=Gang.ALL, hang_timeout_s=60.0, hang_idle=True)
    am.granted(2)
    am.granted(3, request_id=2)
    for number in (2, 3):
        am.hello(number)
    for number in (2, 3):
        am.report(number, Phase.WAITING)
    am.report(2, Phase.RUNNING)
    for _ in range(60):
        keep_talking(am, 10, 2, usage=IDLE)
        am.report(3, Phase.WAITING)
    assert am.orders(2).abort == ""


def test_outside_of_a_gang_each_payload_is_judged_alone() -> None:
    am = Driver(RoleSpec(instances=2), hang_timeout_s=60.0)
    am.running(2, 3)
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    for lines in range(1, 8):
        am.report(3, Phase.RUNNING, payload=status_of_lines(lines))
        keep_talking(am, 10, 2, payload=status_of_lines(1))
    assert (bool(am.orders(2).abort), am.orders(3).abort) == (True, "")


def test_a_gang_that_hangs_is_restarted_once_and_may_report_late_again() -> None:
    am = team_that_reports()
    am.report(2, Phase.RUNNING, payload=status_of_lines(1))
    keep_talking(am, 70, 2, 3, payload=status_of_lines(1))
    am.report(2, Phase.RUNNING, failure=result(Fault.USER, None, signal=6))
    assert (am.orders(3).generation, am.orders(3).abort) == (1, "")
    keep_talking(am, 30, 3, payload=status_of_lines(1))
    assert am.state.ending is None
