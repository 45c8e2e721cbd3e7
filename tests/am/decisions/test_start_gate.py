"""Test an application that waits for the end of others, or for a release, before it asks for containers; and one that
begins again after a restart of the machine.
"""

from __future__ import annotations

import pytest

from dlapp.am.model import events, journal
from dlapp.am.model.records.recovered import RecoveredState
from dlapp.am.model.start_gate import StartGate
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import RoleSpec
from dlapp.values.start_conditions import FAILED, SUCCEEDED, After, RequiredEnd
from tests.am.driving import APPLICATION, START_MS, Driver

ONE, TWO = "application_1700000000000_0001", "application_1700000000000_0002"
AFTER = (After(ONE), After(TWO, RequiredEnd.ANY))


def gate(*pending: After, is_held: bool = False) -> StartGate:
    return StartGate(pending, is_held=is_held)


def test_no_container_is_requested_before_all_conditions_hold_and_the_hold_is_released() -> None:
    driver = Driver(start_gate=gate(*AFTER, is_held=True))
    view = driver.view()
    assert driver.requested() == [0]
    assert view.lacking == ()
    assert view.waiting is not None
    assert (view.waiting.code, view.waiting.since_ms) == ("dependency", START_MS)
    assert view.phase == view.waiting.message == f"waits for the end of {ONE} (ok), {TWO} (any)"
    driver.do(events.OthersEnded({TWO: FAILED}))
    assert driver.phase() == f"waits for the end of {ONE} (ok)"
    driver.do(events.OthersEnded({ONE: SUCCEEDED}))
    held = driver.view().waiting
    assert held is not None
    assert (held.code, held.change) == ("held", f"dlapp-release {APPLICATION}")
    assert driver.requested() == [0]
    driver.do(events.Release("tony"))
    assert driver.requested() == [1]
    assert driver.view().waiting is None


def test_a_condition_that_can_never_hold_ends_it_with_the_cause() -> None:
    driver = Driver(start_gate=gate(*AFTER))
    driver.do(events.OthersEnded({ONE: FAILED}))
    driver.settled()
    end = driver.ending()
    assert end.final_status is FinalStatus.FAILED
    assert end.diagnostics == f"{ONE} failed, so after={ONE}:ok can never hold"


def test_a_release_is_answered_when_it_is_on_record() -> None:
    driver = Driver(start_gate=gate(is_held=True))
    driver.do(events.Release("tony"))
    written, answer = driver.last
    assert isinstance(written, events.WriteJournal)
    assert written.durable
    assert isinstance(answer, events.AnswerStop)
    assert answer.answer.message == f"{APPLICATION} is released"
    driver.do(events.Release("tony"))
    assert [action.answer.message for action in driver.of(events.AnswerStop)] == [f"{APPLICATION} is not held"]


def test_a_released_application_may_still_wait_for_others() -> None:
    driver = Driver(start_gate=gate(*AFTER[:1], is_held=True))
    driver.do(events.Release("tony"))
    (answer,) = driver.of(events.AnswerStop)
    assert answer.answer.message == f"{APPLICATION} is released, and waits for the end of {ONE} (ok)"


def test_the_next_attempt_waits_only_for_unrecorded_conditions() -> None:
    first = Driver(start_gate=gate(*AFTER, is_held=True))
    first.do(events.OthersEnded({ONE: SUCCEEDED}))
    first.do(events.Release("tony"))
    second = Driver(start_gate=gate(*AFTER, is_held=True), attempt=2, former=first.journal())
    assert second.phase() == f"waits for the end of {TWO} (any)"
    second.do(events.OthersEnded({TWO: SUCCEEDED}))
    assert second.requested() == [1]


def test_unreadable_ends_of_other_applications_are_shown_until_they_can_be_read() -> None:
    driver = Driver(start_gate=gate(*AFTER[:1]))
    driver.do(events.OthersEnded({}, "the ResourceManager does not answer"))
    assert driver.phase().endswith("; the ResourceManager does not answer")
    driver.do(events.OthersEnded({}))
    assert driver.phase() == f"waits for the end of {ONE} (ok)"


@pytest.mark.parametrize("kind", [events.Kill, events.SoftKill])
def test_a_waiting_application_can_be_killed(kind: type[events.Kill | events.SoftKill]) -> None:
    driver = Driver(start_gate=gate(*AFTER, is_held=True))
    driver.do(kind("tony"))
    driver.settled()
    assert driver.ending().final_status is FinalStatus.KILLED


def test_its_time_limit_counts_from_its_start() -> None:
    driver = Driver(start_gate=gate(*AFTER[:1]), max_runtime_s=60.0)
    driver.wait(200)
    driver.do(events.OthersEnded({ONE: SUCCEEDED}))
    driver.wait(50)
    assert driver.requested() == [1]
    driver.wait(20)
    assert driver.requested() == [0]
    assert "timed out after 60 s" in driver.view().diagnostics


# ---- after a restart of the machine ----


def test_after_a_restart_of_the_machine_all_indexes_run_again() -> None:
    first = Driver(RoleSpec(instances=2), boot_id="one")
    first.running(1, 2)
    first.finished(1)
    same = Driver(RoleSpec(instances=2), attempt=2, former=first.journal(), is_complete=True, boot_id="one")
    assert same.requested() == [0]  # one is done, and the task of the other was killed, which counts
    second = Driver(RoleSpec(instances=2), attempt=2, former=first.journal(), is_complete=True, boot_id="two")
    second.wait(2)
    assert second.requested() == [2]
    written = [*first.of(events.WriteJournal, first.all), *second.of(events.WriteJournal, second.all)]
    again = journal.replay([item.record for item in written])
    assert again.boot == "two"
    third = Driver(RoleSpec(instances=2), attempt=3, former=again, is_complete=True, boot_id="two")
    third.wait(2)
    assert third.requested() == [2]


@pytest.mark.parametrize(("status", "stays"), [(FinalStatus.FAILED, True), (FinalStatus.SUCCEEDED, False)])
def test_an_end_that_was_decided_before_the_restart_stays_unless_it_was_a_success(
    status: FinalStatus, stays: bool
) -> None:
    former = RecoveredState()
    former.pass_boot("one")
    former.ending = events.ApplicationEnd(status, Cause.FAILED, "why"), events.Settlement.KEEP
    former.pass_boot("two")
    assert (former.ending is not None) == stays


def test_a_journal_of_an_earlier_version_has_no_boot_id() -> None:
    former = journal.replay([{"kind": "begin", "t": 1, "attempt": 1, "started_ms": 1, "version": 1}])
    assert former.boot == ""
