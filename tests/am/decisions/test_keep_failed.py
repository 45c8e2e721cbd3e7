"""Containers that are kept after their failures: which, for how long, and what ends that."""

from __future__ import annotations

from typing import Any

import pytest

from dlapp.am.model import events
from dlapp.am.model.events import Settlement
from dlapp.am.model.instance import Stage
from dlapp.am.model.state import Timing
from dlapp.values.messages import Fault, Phase, Stop, TaskResult
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import ContainerFailure, Gang, RoleFailure, RoleSpec
from tests.am.driving import Driver, result

FAILURE = TaskResult(fault=Fault.USER, exit_code=3)
KEEP_S = 1800.0


def failed(am: Driver, number: int, failure: TaskResult = FAILURE) -> None:
    """A task says that its payload has failed, and waits for what is to be done."""
    am.report(number, Phase.RUNNING, failure=failure)


def pass_time(am: Driver, seconds: float, *kept: int) -> None:
    """Let time pass, in which tasks of kept containers report."""
    for _ in range(int(seconds / 10)):
        am.do(events.Tick(), 10.0)
        for number in kept:
            failed(am, number)


def driver(*roles: RoleSpec, **fields: Any) -> Driver:
    return Driver(*(roles or (RoleSpec(),)), keep_failed_s=KEEP_S, **fields)


def test_a_container_that_failed_is_kept_and_the_application_ends_as_failed_after_it() -> None:
    am = driver()
    am.running(2)
    failed(am, 2)
    assert (am.orders(2).keep_s, am.stops(2)) == (KEEP_S, [Stop.NO])
    (container,) = am.view().containers
    assert container.kept_until_ms == am.now_ms + KEEP_S * 1000
    assert am.phase().startswith("failed, container 0 kept until ")
    assert am.view().diagnostics == "container 0 (worker 0) failed: exit code 3"
    pass_time(am, 300, 2)  # the grace and all margins are over
    assert am.stops(2) == [Stop.NO]
    assert am.state.stage is Stage.CLOSING
    am.finished(2, FAILURE)
    assert am.settlement().how is Settlement.KEEP
    am.settled()
    assert (am.ending().final_status, am.ending().cause) == (FinalStatus.FAILED, Cause.FAILED)
    assert am.view().containers[0].kept_until_ms is None


def test_without_keep_failed_or_while_retries_are_left_none_is_kept() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    assert not am.of(events.Assign, am.all)[0].assignment.keep_failed
    am = driver(RoleSpec(retries=1))
    am.running(2)
    assert am.of(events.Assign, am.all)[0].assignment.keep_failed
    failed(am, 2)
    assert (am.orders(2).keep_s, am.stops(2)) == (0.0, [Stop.SOFT])
    am.finished(2, FAILURE)
    am.running(3)
    failed(am, 3)
    assert (am.orders(3).keep_s, am.stops(3)) == (KEEP_S, [Stop.NO])
    assert am.view().diagnostics == "container 0 (worker 0) failed 2 times, the last time: exit code 3"


@pytest.mark.parametrize("fault", [Fault.NODE, Fault.SERVICE, Fault.DATA])
def test_only_a_failed_program_is_kept(fault: Fault) -> None:
    am = driver()
    am.running(2)
    failed(am, 2, TaskResult(fault=fault, message="no"))
    assert (am.orders(2).keep_s, am.stops(2)) == (0.0, [Stop.SOFT])


def test_the_others_are_ended_while_it_is_kept() -> None:
    am = driver(RoleSpec(instances=3))
    am.running(2, 3, 4)
    failed(am, 3)
    assert am.stops(2, 3, 4) == [Stop.SOFT, Stop.NO, Stop.SOFT]
    am.finished(2, result(Fault.STOPPED))
    pass_time(am, 120, 3)  # one does not end by itself
    assert am.stops(3, 4) == [Stop.NO, Stop.NOW]
    am.ended(4, -105)
    pass_time(am, 300, 3)
    assert am.stops(3) == [Stop.NO]
    assert am.phase().startswith("failed, container 1 kept until ")
    am.finished(3, FAILURE)
    am.settled()
    assert am.diagnostics() == "container 1 (worker 1) failed: exit code 3"


def test_with_continue_a_failed_container_is_kept_beside_the_others_and_counts_once() -> None:
    am = driver(RoleSpec(instances=2), on_container_failure=ContainerFailure.CONTINUE)
    am.running(2, 3)
    failed(am, 2)
    assert am.state.stage is Stage.ACTIVE
    assert am.orders(2).keep_s == KEEP_S
    am.finished(3)
    assert am.state.stage is Stage.ACTIVE
    am.finished(2, FAILURE)
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed: exit code 3"


def test_the_failed_member_of_a_gang_is_kept_and_its_peers_are_ended() -> None:
    am = driver(RoleSpec(instances=2), gang=Gang.ALL)
    am.running_gang(2, 3)
    failed(am, 2)
    assert (am.orders(2).keep_s, am.stops(2, 3)) == (KEEP_S, [Stop.NO, Stop.SOFT])
    am.finished(3, result(Fault.STOPPED, part=None))
    assert am.state.stage is Stage.CLOSING
    pass_time(am, 120, 2)
    assert am.stops(2) == [Stop.NO]
    am.finished(2, FAILURE)
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed: exit code 3"


def test_a_gang_with_retries_is_restarted_in_place_of_being_kept() -> None:
    am = driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL)
    am.running_gang(2, 3)
    failed(am, 2)
    assert am.orders(2).keep_s == 0.0
    assert am.orders(2).generation == 1


def test_a_lost_node_restarts_the_gang_without_the_kept_container() -> None:
    am = driver(RoleSpec(instances=2), gang=Gang.ALL)
    am.running_gang(2, 3)
    failed(am, 2)
    am.ended(3, -100, node_fault=True)
    assert am.state.stage is Stage.ACTIVE
    assert am.stops(2) == [Stop.NOW]  # its GPUs are given back
    assert am.view().containers[0].kept_until_ms is None


def test_an_index_whose_failure_fails_the_application_is_kept() -> None:
    role = RoleSpec(name="reader", on_failure=RoleFailure.FAIL, service=True)
    am = driver(RoleSpec(), role)
    am.running(2)
    am.running(3, request_id=2)
    failed(am, 3)
    assert (am.orders(3).keep_s, am.stops(2)) == (KEEP_S, [Stop.SOFT])


def test_a_kill_ends_it_at_once() -> None:
    am = driver()
    am.running(2)
    failed(am, 2)
    am.do(events.Kill("tony"))
    assert am.stops(2) == [Stop.NOW]
    assert am.view().containers[0].kept_until_ms is None
    am.finished(2, FAILURE)
    am.settled()
    assert am.ending().cause is Cause.KILLED


def test_a_softkill_ends_the_keeping_and_the_application_has_failed() -> None:
    am = driver()
    am.running(2)
    failed(am, 2)
    pass_time(am, 100, 2)
    am.do(events.SoftKill("tony"))
    (answer,) = am.of(events.AnswerStop)
    assert answer.answer.message == "container 0 is kept no longer; container 0 (worker 0) failed: exit code 3"
    assert am.stops(2) == [Stop.SOFT]
    am.finished(2, FAILURE)
    am.settled()
    assert am.ending().cause is Cause.FAILED


def test_a_task_that_does_not_end_the_keeping_is_ended() -> None:
    am = driver(timing=Timing(store_ms=60_000))
    am.running(2)
    failed(am, 2)
    pass_time(am, KEEP_S, 2)
    assert am.stops(2) == [Stop.NO]
    pass_time(am, 70, 2)
    assert am.stops(2) == [Stop.NOW]


def test_a_kept_program_is_not_taken_to_hang() -> None:
    am = driver(RoleSpec(instances=2), hang_timeout_s=60.0, on_container_failure=ContainerFailure.CONTINUE)
    am.running(2, 3)
    failed(am, 2)
    pass_time(am, 200, 2)
    assert am.orders(2).abort == ""
