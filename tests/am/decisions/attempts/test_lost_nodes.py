"""Test the decisions on containers of lost and removed nodes."""

from __future__ import annotations

import pytest

from dlapp.am.model import events
from dlapp.cluster.engine import Heartbeat
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import Cause
from dlapp.values.spec import (
    RoleSpec,
)
from tests.am.decisions.situations import lost, pause_s
from tests.am.driving import Driver, result


def test_a_task_on_a_lost_node_is_ordered_to_end_while_it_is_connected() -> None:
    am = Driver(RoleSpec())
    am.running(2)
    am.do(Heartbeat(ending=(am.id(2),)))
    assert am.orders(2).stop is Stop.NOW
    assert am.requested() == [0]
    am.ended(2, -100, node_fault=True)
    assert pause_s(am) == 1


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
