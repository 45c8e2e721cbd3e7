"""Test the decisions of a next attempt: what it takes over, and what it waits for."""

from __future__ import annotations

from dlapp.am.model import events
from dlapp.cluster.engine import Heartbeat
from dlapp.values.messages import Phase
from dlapp.values.report import Cause
from dlapp.values.spec import (
    RoleSpec,
)
from tests.am.decisions.situations import second
from tests.am.driving import Driver, result


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
