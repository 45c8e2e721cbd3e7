"""The ApplicationMaster's decisions, one at a time."""

from __future__ import annotations

import time
from typing import Any

import pytest

from dlapp.am.decisions.verdict import NODE_RETRIES
from dlapp.am.model import events
from dlapp.am.model.events import Settlement
from dlapp.am.model.state import Timing
from dlapp.cluster import ContainerEnd, Heartbeat, Registered, ResourceLimits
from dlapp.messages import Fault, Phase, Stop, StoredOutput, TaskResult
from dlapp.report import Cause, FinalStatus, State
from dlapp.spec import ContainerFailure, Placement, RoleSpec, StartRule
from tests.am.driving import START_MS, Driver, result

GANG = RoleSpec(instances=3, start=StartRule.GANG)


def four() -> RoleSpec:
    return RoleSpec(instances=4)


# ---- containers and indexes ----


def test_it_asks_for_what_is_missing_and_no_more() -> None:
    am = Driver(four())
    assert am.asked() == [4]
    am.granted(2, 3)
    assert am.asked() == [2]
    am.granted(4, 5)
    assert am.asked() == [0]


def test_a_grant_beyond_the_need_is_given_back_and_never_started() -> None:
    am = Driver(RoleSpec(instances=1))
    am.granted(2, 3)
    assert [one.grant.container_id.number for one in am.of(events.StartTask)] == [2]
    assert am.master.releases() == (am.id(3),)
    am.ended(3, -100)
    assert am.master.releases() == ()


def test_a_heartbeat_that_comes_twice_changes_nothing() -> None:
    am = Driver(four())
    am.granted(2, 3)
    am.granted(2, 3)
    assert am.last == []
    assert am.asked() == [2]


def test_an_index_is_bound_when_its_task_asks_for_work() -> None:
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
    assert [one.why for one in am.of(events.Refuse)] == ["this container is not one of this application's"]
    assert am.stopped() == [99]


def test_a_report_on_another_index_is_answered_with_stop_now() -> None:
    am = Driver(four())
    am.granted(2)
    am.hello(2)
    am.report(2, Phase.RUNNING, index=3)
    assert am.stops(2) == [Stop.NOW]


def test_a_report_that_comes_late_changes_nothing() -> None:
    am = Driver(four())
    am.running(2)
    am.report(2, Phase.LEASING, nth=1)
    assert am.view().containers[0].phase is Phase.RUNNING


def test_a_task_that_never_speaks_is_stopped_and_its_place_is_filled_when_it_is_gone() -> None:
    am = Driver(RoleSpec(instances=1), timing=Timing(hello_ms=20_000))
    am.granted(2)
    assert am.stopped(am.wait(21)) == [2]
    am.ended(2, -105)
    assert am.asked() == [1]


def test_a_silent_task_is_stopped_and_its_index_waits_for_the_end_of_its_container() -> None:
    am = Driver(RoleSpec(instances=1))
    am.running(2)
    assert 2 in am.stopped(am.wait(62))
    assert am.asked() == [0]
    am.ended(2, -105)
    assert am.asked() == [1]


def test_a_stop_is_said_again_until_the_end_is_known() -> None:
    am = Driver(RoleSpec(instances=1))
    am.running(2)
    assert len(am.stopped(am.wait(90))) >= 4


def test_a_lid_that_was_closed_for_a_day_makes_nobody_silent() -> None:
    am = Driver(RoleSpec(instances=1))
    am.running(2)
    am.do(events.Tick(), after_s=86_400)
    assert am.last == []
    am.do(events.Tick(), after_s=-86_400)
    assert am.last == []


# ---- success ----


def test_it_succeeds_when_every_index_has_ended_well_and_commits_once() -> None:
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


def test_a_container_that_does_not_go_after_its_result_is_stopped_and_named_if_it_stays() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.report(2, Phase.ENDED, result())
    am.settled()
    assert 2 in am.stopped(am.wait(70))
    assert am.words() == f"the end of {am.id(2)} on node1 is not known"
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


def test_a_service_that_fails_decides_nothing() -> None:
    am = Driver(RoleSpec(), RoleSpec(name="ps", service=True))
    am.running(2)
    am.running(3, request_id=2)
    am.finished(3, result(Fault.USER, 1))
    assert am.asked() == [0, 0]
    am.finished(2)
    assert [part.role for part in am.settlement().parts] == ["worker"]
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_where_all_roles_are_services_they_decide() -> None:
    am = Driver(RoleSpec(service=True))
    am.running(2)
    am.finished(2)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


# ---- failure ----


def test_a_failed_payload_fails_the_application_by_name_and_the_others_have_their_grace() -> None:
    am = Driver(four(), kill_grace_s=20.0)
    am.running(2, 3, 4, 5)
    am.report(4, Phase.ENDED, result(Fault.USER, 3))
    assert am.stops(2, 3, 5) == [Stop.SOFT] * 3
    assert {am.orders(one).grace_s for one in (2, 3, 5)} == {20.0}
    am.wait(19)
    assert am.stops(2, 3, 5) == [Stop.SOFT] * 3
    assert {am.orders(one).why for one in (2, 3, 5)} == {"container 2 (worker 2) failed: exit code 3"}
    assert am.asked() == [0]
    am.finished(2, result(Fault.STOPPED, None))
    for number in (3, 5):
        am.finished(number, result(Fault.STOPPED, None, None))
    am.ended(4, 3)
    assert am.settlement().how is Settlement.KEEP
    assert [part.index for part in am.settlement().parts] == [0, 2]
    am.settled()
    assert am.words() == "container 2 (worker 2) failed: exit code 3"


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
    am.finished(3, result(Fault.STOPPED, None))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert (am.ending().cause, am.words()) == (Cause.KILLED, "killed by tony, no output kept")


def test_a_container_whose_task_died_while_its_payload_ran_is_named_for_what_it_left() -> None:
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
    assert (wanted.how, [one.index for one in wanted.parts], [one.index for one in wanted.lost]) == (
        Settlement.KEEP,
        [1],
        [0],
    )


def independent(count: int, **fields: Any) -> Driver:
    return Driver(RoleSpec(instances=count), on_container_failure=ContainerFailure.CONTINUE, **fields)


def test_independent_containers_go_on_when_one_fails_and_their_output_is_committed() -> None:
    am = independent(5)
    am.running(2, 3, 4, 5, 6)
    am.finished(3, result(Fault.USER, 3, "half"))
    am.finished(4, result(Fault.DATA, None, None, message="no input"))
    am.ended(5, -9)
    assert am.stops(2, 6) == [Stop.NO] * 2
    assert am.asked() == [0]
    assert am.phase() == "running 2 of 5, 3 failed"
    am.finished(2)
    assert am.phase() == "running 1 of 5, 1 done, 3 failed"
    am.finished(6)
    wanted = am.settlement()
    assert (wanted.how, [one.index for one in wanted.parts], [one.index for one in wanted.failed]) == (
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
    assert am.asked() == [1]
    am.running(4)
    am.finished(4, result(Fault.USER, 3))
    assert am.asked() == [0]
    am.finished(3)
    am.settled("the disk is full")
    assert am.words() == ("container 0 (worker 0) failed 2 times, the last time: exit code 3; the disk is full")


def test_where_all_independent_containers_failed_nothing_is_committed() -> None:
    am = independent(2)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3))
    am.finished(3, result(Fault.USER, 4))
    assert am.settlement().how is Settlement.KEEP
    assert [part.index for part in am.settlement().parts] == [0, 1]
    am.settled()
    assert am.words().startswith("2 of 2 containers failed: 0-1; the first of them: container 0")


def test_a_soft_kill_commits_nothing_of_an_independent_container_that_had_failed() -> None:
    am = independent(2)
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 3))
    am.do(events.SoftKill("tina"))
    am.finished(3, result(Fault.STOPPED, 0))
    assert [part.index for part in am.settlement().parts] == [1]
    assert [part.index for part in am.settlement().failed] == [0]
    am.settled()
    assert am.words() == "soft-killed by tina, output committed; container 0 (worker 0) failed: exit code 3"


def test_a_next_attempt_knows_which_independent_containers_failed() -> None:
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
    assert am.asked() == [0]
    for number in (3, 4):
        am.report(number, Phase.ENDED, result(), attempt=1)
        am.ended(number, attempt=1)
    assert [one.index for one in am.settlement().parts] == [1, 2]
    assert [one.index for one in am.settlement().failed] == [0]
    am.settled()
    assert am.words() == "container 0 (worker 0) failed: exit code 3"


def test_retries_are_counted_and_the_last_failure_says_how_many() -> None:
    am = Driver(RoleSpec(retries=1))
    am.running(2)
    am.finished(2, result(Fault.USER, 3))
    assert am.asked() == [1]
    am.running(3)
    assert am.view().containers[0].attempt == 2
    am.finished(3, result(Fault.USER, 4))
    am.settled()
    assert am.words() == "container 0 (worker 0) failed 2 times, the last time: exit code 4"


def test_a_task_that_was_killed_fails_the_application_with_the_signal() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.ended(3, -9)
    am.finished(2, result(Fault.STOPPED, None))
    am.settled()
    assert am.words() == "container 1 (worker 1) failed: the task was killed by signal 9"


def test_missing_data_is_not_tried_again() -> None:
    am = Driver(RoleSpec(retries=5))
    am.running(2)
    am.finished(2, result(Fault.DATA, None, None, message="file:///data/train is not there"))
    am.settled()
    assert am.words() == "container 0 (worker 0) failed: file:///data/train is not there"


def test_a_fault_of_the_node_is_tried_elsewhere_and_is_not_the_programs() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.finished(2, result(Fault.NODE, None, None, message="GPU 0 is held by another program"))
    (ask,) = am.master.asks()
    assert (ask.count, ask.placement, ask.avoid) == (1, Placement(), ("node1",))


def test_where_there_is_no_elsewhere_the_faults_of_the_node_end_it_with_the_reason() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 3 + NODE_RETRIES):
        assert am.asked() == [1]
        am.running(number)
        am.finished(number, result(Fault.NODE, None, None, message="no GPU is free"))
    am.settled()
    assert am.words() == (
        f"container 0 (worker 0) failed {NODE_RETRIES + 1} times for reasons other than its program, the last time: "
        "no GPU is free"
    )


def test_containers_that_cannot_be_started_end_it_one_day() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 3 + NODE_RETRIES):
        am.granted(number)
        end = ContainerEnd(container_id=am.id(number), exit_status=1, diagnostics="fork: Resource unavailable")
        am.do(Heartbeat(start_failed=(end,)))
    am.settled()
    assert am.words().endswith("the last time: fork: Resource unavailable")


DOCKER_AWAY = result(Fault.NODE, None, None, message="Docker does not answer", outage=True)


def pause_s(am: Driver) -> int:
    """Let time pass until a container is wanted again; how long that took [s]."""
    waited_s = 0
    while am.asked() == [0]:
        am.wait(1)
        waited_s += 1
    return waited_s


def test_on_a_single_node_an_index_waits_out_an_outage_with_growing_pauses_however_often_it_fails() -> None:
    am = Driver(RoleSpec(), single_node=True)
    pauses = []
    for number in range(2, 12):
        am.running(number)
        am.finished(number, DOCKER_AWAY)
        pauses.append(pause_s(am))
    assert pauses == [1, 2, 4, 8, 16, 30, 30, 30, 30, 30]
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
    assert "failed 4 times" in am.words()
    assert am.words().endswith("the last time: no GPU mode")


def test_a_container_that_could_not_be_started_on_a_single_node_is_asked_for_again_after_a_pause() -> None:
    am = Driver(RoleSpec(), single_node=True)
    am.granted(2)
    am.do(Heartbeat(start_failed=(ContainerEnd(container_id=am.id(2), exit_status=1, diagnostics="fork"),)))
    assert am.asked() == [0]
    assert pause_s(am) == 1


def test_where_there_are_other_nodes_an_outage_is_counted_and_tried_again_at_once() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 3 + NODE_RETRIES):
        assert am.asked() == [1]
        am.running(number)
        am.finished(number, DOCKER_AWAY)
    am.settled()
    assert am.words().endswith("the last time: Docker does not answer")


def test_a_pause_holds_up_no_other_index_and_the_phase_says_until_when_it_lasts() -> None:
    am = Driver(RoleSpec(instances=2), single_node=True)
    am.running(2)
    am.finished(2, DOCKER_AWAY)
    assert am.asked() == [1]
    at = time.strftime("%H:%M:%S", time.localtime(am.now_ms / 1000 + 0.98))
    assert am.phase() == f"1 container tried again at {at}, waiting for 1 container"
    am.running(3)
    instance = am.state.containers[am.id(3)].instance
    assert instance is not None
    assert instance.index == 1
    am.wait(1)
    assert am.asked() == [1]


def test_a_gang_on_a_single_node_begins_anew_when_the_pause_of_its_lost_member_is_over() -> None:
    am = Driver(RoleSpec(instances=2, start=StartRule.GANG), single_node=True)
    am.granted(2, 3)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.WAITING)
    am.report(2, Phase.RUNNING)
    am.report(3, Phase.RUNNING)
    am.finished(2, DOCKER_AWAY)
    assert am.stops(3) == [Stop.NOW]
    am.finished(3, result(Fault.STOPPED, None, None))
    assert am.asked() == [1]
    am.wait(1)
    assert am.asked() == [2]


def test_preemption_is_counted_against_nobody() -> None:
    am = Driver(RoleSpec())
    for number in range(2, 12):
        am.running(number)
        am.ended(number, -102, node_fault=True)
    assert am.asked() == [1]


def test_an_ask_that_can_never_be_met_fails_it_at_once() -> None:
    am = Driver(RoleSpec())
    am.do(Heartbeat(refused=((1, "asked for 9 gcores, the largest node has 8"),)))
    am.settled()
    assert am.words() == "asked for 9 gcores, the largest node has 8"


def test_it_ends_though_a_container_never_does() -> None:
    am = Driver(RoleSpec(instances=2))
    am.running(2, 3)
    am.finished(2, result(Fault.USER, 1))
    am.wait(105)
    am.settled()
    am.wait(65)
    assert am.words() == f"container 0 (worker 0) failed: exit code 1; the end of {am.id(3)} on node1 is not known"


def test_an_attempt_that_the_engine_shuts_down_touches_nothing() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(Heartbeat(shut_down="another attempt has registered"))
    assert am.last == [events.Abandon("another attempt has registered")]
    am.do(events.Tick())
    assert am.last == []


# ---- the gate ----


def test_a_gang_goes_together() -> None:
    am = Driver(GANG)
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


def test_as_granted_each_goes_with_its_first_orders() -> None:
    am = Driver(four())
    am.granted(2)
    am.hello(2)
    assert am.orders(2).go


def test_a_member_lost_before_the_gate_opens_is_replaced_and_nobody_else_notices() -> None:
    am = Driver(GANG)
    am.granted(2, 3, 4)
    for number in (2, 3, 4):
        am.hello(number)
    am.report(2, Phase.WAITING)
    am.report(3, Phase.WAITING)
    am.ended(3, -100, node_fault=True)
    assert am.stops(2) == [Stop.NO]
    am.granted(5)
    am.hello(5)
    am.report(4, Phase.WAITING)
    assert not am.orders(2).go
    am.report(5, Phase.WAITING)
    assert am.orders(2).go


def gang_at_work(**fields: Any) -> Driver:
    am = Driver(RoleSpec(instances=3, start=StartRule.GANG, **fields))
    am.granted(2, 3, 4)
    for number in (2, 3, 4):
        am.hello(number)
    for number in (2, 3, 4):
        am.report(number, Phase.WAITING)
    for number in (2, 3, 4):
        am.report(number, Phase.RUNNING)
    return am


def test_a_gang_that_lost_a_member_begins_anew_and_counts_it_for_one() -> None:
    am = gang_at_work(retries=1)
    am.finished(2)
    am.finished(3, result(Fault.USER, 1))
    assert am.stops(4) == [Stop.NOW]
    assert am.asked() == [2]
    am.finished(4, result(Fault.STOPPED, None, None))
    assert am.asked() == [3]
    assert [one.user_faults for one in am.state.instances] == [0, 1, 0]
    am.granted(5, 6, 7)
    for number in (5, 6, 7):
        am.hello(number)
        am.report(number, Phase.WAITING)
    assert am.orders(5).go


def test_a_gang_without_retries_fails_with_its_first_member() -> None:
    am = gang_at_work()
    am.finished(3, result(Fault.USER, 1))
    am.finished(2, result(Fault.STOPPED, None, None))
    am.finished(4, result(Fault.STOPPED, None, None))
    am.settled()
    assert am.words() == "container 1 (worker 1) failed: exit code 1"


# ---- stopping ----


def test_a_soft_kill_gives_payloads_their_grace_and_commits_what_is_stored() -> None:
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


def test_a_second_soft_kill_changes_nothing_and_shows_the_time_left() -> None:
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


def test_who_does_not_end_softly_is_stopped_hard_after_grace_and_margin() -> None:
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
    assert am.words() == "soft-killed by tina, output committed but for container 1 (worker 1)"


def test_who_stores_when_the_grace_is_over_may_go_on() -> None:
    am = Driver(RoleSpec(), kill_grace_s=1.0)
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.report(2, Phase.STORING)
    for _ in range(20):
        assert am.stopped(am.wait(10)) == []
        am.report(2, Phase.STORING)
    am.finished(2, result(Fault.STOPPED, None))
    am.settled()
    assert am.words() == "soft-killed by tina, output committed"


def test_a_soft_kill_without_anything_stored_does_not_replace_older_output() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.finished(2, result(Fault.STOPPED, None, None))
    assert am.settlement().how is Settlement.DROP
    am.settled()
    assert am.words() == "soft-killed by tina, there was no output to commit"


def test_a_soft_kill_keeps_what_a_script_left_elsewhere_and_commits_none_of_it() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    stray = StoredOutput(name="", part="part", files=1, size_bytes=1, stray=True)
    am.finished(2, TaskResult(fault=Fault.STOPPED, exit_code=0, outputs=(stray,)))
    assert (am.settlement().how, len(am.settlement().parts)) == (Settlement.KEEP, 1)
    am.settled()
    assert am.words() == "soft-killed by tina, there was no output to commit"


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


def test_when_time_is_up_the_output_of_a_script_that_did_not_end_well_is_kept_aside() -> None:
    am = Driver(RoleSpec(instances=2), max_runtime_s=30.0)
    am.running(2)
    am.running(3)
    am.wait(31)
    am.finished(2, result(Fault.STOPPED, 0))
    am.finished(3, result(Fault.STOPPED, None, signal=15))
    assert am.settlement().how is events.Settlement.KEEP
    am.settled()
    assert am.words().startswith("timed out after 30 s, output kept as partial: ")


def test_a_kill_stops_all_at_once_and_keeps_nothing() -> None:
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


def test_a_kill_overtakes_a_soft_kill() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(events.SoftKill("tina"))
    am.do(events.Kill("tony"))
    assert am.stops(2) == [Stop.NOW]
    am.finished(2, result(Fault.STOPPED, None))
    am.settled()
    assert am.words() == "killed by tony, no output kept"


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
    next_one = Driver(*(roles or first.state.spec.roles), attempt=2, former=first.journal(), live=grants)
    next_one.now_ms = first.now_ms
    return next_one


def test_a_next_attempt_takes_over_tasks_and_results() -> None:
    first = Driver(RoleSpec(instances=3))
    first.running(2, 3, 4)
    first.finished(2)
    am = second(first, 3, 4)
    assert am.asked() == [0]
    am.hello(3, index=1, phase=Phase.RUNNING, attempt=1)
    assert am.orders(3, attempt=1).go
    for number in (3, 4):
        am.report(number, Phase.ENDED, result(), attempt=1, nth=50, index=number - 2)
        am.ended(number, attempt=1)
    assert [part.container_id.number for part in am.settlement().parts] == [2, 3, 4]
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_a_container_that_nobody_vouches_for_is_stopped_before_its_index_runs_again() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = second(first, 2)
    assert am.asked() == [0]
    assert 2 in am.stopped(am.wait(61))
    assert am.asked() == [0]
    am.ended(2, -105, attempt=1)
    assert am.asked() == [1]


def test_without_a_journal_no_index_is_given_out_before_all_live_tasks_have_spoken() -> None:
    live = Driver(RoleSpec(instances=2)).grant(2)
    am = Driver(RoleSpec(instances=2), attempt=2, live=(live,))
    am.granted(7)
    assert am.of(events.Assign, am.hello(7)) == []
    given = am.of(events.Assign, am.hello(2, index=0, phase=Phase.RUNNING, attempt=1))
    assert sorted((one.container_id.number, one.assignment.index) for one in given) == [(2, 0), (7, 1)]


def test_a_container_that_is_taken_away_with_its_master_may_run_any_index_until_it_is_gone() -> None:
    am = Driver(RoleSpec(instances=2), attempt=2)
    am.do(Heartbeat(ending=(am.id(3, 1),)))
    assert am.asked() == [2]
    am.granted(2)
    assert am.of(events.StartTask)
    assert am.hello(2) == []
    am.ended(3, -100, attempt=1, node_fault=True)
    (given,) = am.of(events.Assign)
    assert (given.container_id, given.assignment.index) == (am.id(2), 0)
    am.do(Heartbeat(ending=(am.id(3, 1),)))
    am.granted(4)
    assert am.of(events.Assign, am.hello(4))


def test_a_task_on_a_node_that_the_engine_has_lost_is_told_to_end_while_it_can_hear() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(Heartbeat(ending=(am.id(2),)))
    assert am.orders(2).stop is Stop.NOW
    assert am.asked() == [0]
    am.ended(2, -100, node_fault=True)
    assert am.asked() == [1]


def lost(am: Driver, number: int, attempt: int | None = None) -> list[events.Action]:
    """The engine has lost a container's node, and says so; nobody has seen its processes end."""
    am.do(Heartbeat(ending=(am.id(number, attempt),)))
    return am.ended(number, -100, attempt=attempt, node_fault=True, presumed=True)


def test_an_index_of_a_lost_node_runs_again_when_its_task_has_said_that_it_is_over() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    lost(am, 2)
    am.wait(5)
    assert (am.orders(2).stop, am.asked()) == (Stop.NOW, [0])
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None))
    assert am.asked() == [1]
    assert not am.state.live
    am.running(3)
    am.finished(3)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_an_index_of_a_lost_node_runs_again_when_its_task_has_been_silent() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.wait(50)
    lost(am, 2)
    assert am.asked() == [0]
    am.wait(20)
    assert am.asked() == [1]
    am.running(3)
    am.do(events.Tick(), 0.01)
    assert am.orders(3).stop is Stop.NO


def test_a_lost_node_whose_task_was_silent_before_is_not_waited_for() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.wait(61)
    lost(am, 2)
    assert am.asked() == [1]


def test_a_container_of_a_lost_node_that_runs_nothing_is_not_waited_for() -> None:
    am = Driver(RoleSpec())
    am.granted(2)
    lost(am, 2)
    assert am.asked() == [1]


def test_a_next_attempt_waits_for_the_task_of_a_lost_node_as_for_every_other() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal())
    lost(am, 2, attempt=1)
    am.wait(30)
    assert am.asked() == [0]
    am.report(2, Phase.RUNNING, index=0, attempt=1, nth=50, seen=1)
    assert am.orders(2, attempt=1).stop is Stop.NOW
    am.wait(50)
    assert am.asked() == [0], "it was heard, and may still end its payload"
    am.report(2, Phase.ENDED, result(Fault.STOPPED, None), index=0, attempt=1, nth=51)
    assert am.asked() == [1]
    never_heard = Driver(RoleSpec(), attempt=2, former=first.journal())
    lost(never_heard, 2, attempt=1)
    never_heard.wait(59)
    assert never_heard.asked() == [0]
    never_heard.wait(2)
    assert never_heard.asked() == [1]


@pytest.mark.parametrize("heard", [False, True])
def test_a_container_of_a_lost_node_of_which_no_journal_tells_may_run_any_index_until_it_is_heard(heard: bool) -> None:
    am = Driver(RoleSpec(instances=2), RoleSpec(name="other"), attempt=2)
    lost(am, 3, attempt=1)
    am.granted(2)
    am.granted(4, request_id=2)
    assert am.hello(2) == am.hello(4) == []
    if heard:
        am.report(3, Phase.RUNNING, index=0, attempt=1, nth=5)
        given = {one.container_id: one.assignment.index for one in am.of(events.Assign, am.all)}
        assert given == {am.id(2): 1, am.id(4): 2}
        am.wait(55)
        am.report(3, Phase.RUNNING, index=0, attempt=1, nth=6)
        am.wait(10)
        assert am.orders(3, attempt=1).stop is Stop.NOW
        assert am.asked() == [0, 0]
        am.report(3, Phase.ENDED, result(Fault.STOPPED, None), index=0, attempt=1, nth=7)
        assert am.asked() == [1, 0]
    else:
        am.wait(61)
        given = {one.container_id: one.assignment.index for one in am.of(events.Assign, am.all)}
        assert given == {am.id(2): 0, am.id(4): 2}


def test_one_that_the_journal_knows_keeps_its_index_alone() -> None:
    first = Driver(RoleSpec(instances=2))
    first.running(2)
    am = Driver(RoleSpec(instances=2), attempt=2, former=first.journal())
    am.do(Heartbeat(ending=(am.id(2, 1),)))
    am.granted(2)
    (given,) = am.of(events.Assign, am.hello(2))
    assert given.assignment.index == 1
    assert am.asked() == [0]
    am.ended(2, -100, attempt=1, node_fault=True)
    assert am.asked() == [1]
    am.granted(3)
    (given,) = am.of(events.Assign, am.hello(3))
    assert given.assignment.index == 0


def test_a_task_whose_result_was_lost_with_its_master_is_not_blamed_for_it() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal(), live=(first.grant(2),))
    am.ended(2, 0, attempt=1)
    assert am.asked() == [1]
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
    assert am.asked() == [1]
    am.running(2)
    am.finished(2, result(Fault.USER, 1))
    am.settled()
    assert am.words() == "container 0 (worker 0) failed 2 times, the last time: exit code 1"


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


def test_a_soft_kill_goes_on_with_the_grace_that_is_left() -> None:
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
    assert am.words() == "soft-killed by tina, output committed"


def test_a_container_that_only_a_journal_tells_of_is_presumed_gone_after_a_while() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = second(first)
    assert am.asked() == [0]
    am.wait(61)
    assert am.asked() == [1]


def test_who_cannot_be_found_yet_waits_for_the_tasks_of_the_earlier_attempt() -> None:
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
    am.wait(11)
    assert am.stopped() == []
    assert am.stopped(am.all)[:1] == [3]
    assert am.orders(2, attempt=1).stop is Stop.NO


def test_who_cannot_be_found_for_a_day_runs_everything_again() -> None:
    first = Driver(RoleSpec())
    first.running(2)
    am = Driver(RoleSpec(), attempt=2, former=first.journal(), live=(first.grant(2),), published=False)
    for _ in range(24 * 360 - 1):
        am.do(events.Tick(), 10.0)
    assert am.stopped(am.all) == []
    am.wait(11)
    am.ended(2, -100, attempt=1)
    assert am.asked() == [1]


def test_a_container_that_only_a_late_message_told_of_is_presumed_gone_when_it_stays_silent() -> None:
    am = Driver(RoleSpec(), attempt=2)
    am.report(2, Phase.RUNNING, attempt=1, index=0)
    assert am.asked() == [0]
    am.wait(130)
    assert am.asked() == [1]


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


@pytest.mark.parametrize("when", ["granted", "bound", "at the gate", "running", "recalled"])
def test_a_gang_taken_over_at_any_moment_comes_to_its_end(when: str) -> None:
    role = RoleSpec(instances=2, start=StartRule.GANG, retries=1)
    first = Driver(role)
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
    if when == "recalled":
        assert 2 in am.stopped(am.all)
        am.ended(2, -9, attempt=1)
        am.granted(5, 6)
        team = [(5, 2), (6, 2)]
        for number, _ in team:
            am.hello(number)
    else:
        team = [(2, 1), (3, 1)]
    for number, attempt in team:
        am.report(number, Phase.WAITING, attempt=attempt, nth=70)
    assert all(am.orders(number, attempt).go for number, attempt in team)
    for number, attempt in team:
        am.report(number, Phase.ENDED, result(), attempt=attempt, nth=80)
        am.ended(number, attempt=attempt)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED
