"""Test the decisions on a success: when it is decided, and that its output is committed once."""

from __future__ import annotations

from dlapp.am.model import events
from dlapp.am.model.events import Settlement
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import Cause, FinalStatus, State
from dlapp.values.spec import (
    RoleSpec,
)
from tests.am.driving import Driver, result


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
