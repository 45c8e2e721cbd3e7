"""Test the order of journal and starts, and what a next attempt reads from the journal."""

from __future__ import annotations

import pytest

from dlapp.am.model import events, journal
from dlapp.cluster.engine import Heartbeat, Registered, ResourceLimits
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import Cause
from dlapp.values.spec import (
    Gang,
    RoleSpec,
)
from tests.am.decisions.situations import TEAM, lost, pause_s, second, team_at_work
from tests.am.driving import START_MS, Driver, result


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
