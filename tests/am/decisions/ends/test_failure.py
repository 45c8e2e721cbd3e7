"""Test the decisions on a failed payload: the end of the others, independent containers, and diagnostics."""

from __future__ import annotations

from typing import Any

from dlapp.am.model import events
from dlapp.am.model.events import Settlement
from dlapp.cluster.engine import Heartbeat
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import (
    ContainerFailure,
    RoleSpec,
)
from tests.am.decisions.situations import four
from tests.am.driving import Driver, result


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
