"""Test the decisions while tasks wait for a service: pauses, patience, and what is not counted."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

from dlapp.am.model.instance import StopReason
from dlapp.cluster.engine import ContainerEnd, Heartbeat, Registered, ResourceLimits
from dlapp.cluster.yarn.am.resource_requests import ResourceRequestTable
from dlapp.values.messages import Fault, Phase, Stop
from dlapp.values.report import FinalStatus
from dlapp.values.spec import (
    RoleSpec,
)
from tests.am.decisions.situations import PATIENT, pause_s, waits
from tests.am.driving import Driver, result

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
