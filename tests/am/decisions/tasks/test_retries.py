"""Test the decisions after a fault of a node or of a start: retries, pauses and avoided nodes."""

from __future__ import annotations

import time

import pytest

from dlapp.am.decisions.assessment import NODE_RETRIES
from dlapp.cluster.engine import ContainerEnd, Heartbeat
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import FinalStatus
from dlapp.values.spec import (
    Gang,
    Placement,
    RoleSpec,
)
from tests.am.decisions.situations import PATIENT, pause_s
from tests.am.driving import Driver, result


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
