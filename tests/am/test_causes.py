"""Cause of an application's failure: the first one in time, before what followed from it."""

from __future__ import annotations

import pytest

from dlapp.am.decisions.shutdown import diagnosis_of_limit
from dlapp.am.model.events import ApplicationEnd
from dlapp.values.messages import Diagnosis, Fault, PayloadStatus, Phase, Stop
from dlapp.values.report import Cause, ContainerDiagnosis, FinalStatus
from dlapp.values.spec import Gang, RoleSpec
from tests.am.driving import Driver, result

ERROR = Diagnosis(rule="python_exception", cause="ValueError", fault=Fault.USER)
LATER = Diagnosis(rule="disk_full", cause="the disk was full", fault=Fault.USER)
LOST = Diagnosis(rule="peer_lost", cause="the connection was lost", fault=Fault.USER, is_consequence=True)
WAITED = Diagnosis(rule="collective_timeout", cause="another rank did not", fault=Fault.USER, is_consequence=True)


def gang(instances: int) -> Driver:
    am = Driver(RoleSpec(instances=instances), gang=Gang.ALL)
    am.running_gang(*range(2, 2 + instances))
    return am


def fails(am: Driver, number: int, found: Diagnosis | None) -> None:
    """The payload of a member ends by itself, and its task waits for what comes of it."""
    am.report(number, Phase.RUNNING, failure=result(Fault.USER, 1, None, diagnosis=found))


def over(am: Driver, number: int, found: Diagnosis | None, fault: Fault = Fault.USER) -> None:
    """The task of a member says its last word."""
    am.finished(number, result(fault, 1, None, diagnosis=found))


def cause(am: Driver) -> ContainerDiagnosis | None:
    am.wait(1)
    am.settled()
    return am.view().diagnosis


def test_the_earliest_failure_is_the_cause_in_any_order_of_reports() -> None:
    am = gang(2)
    fails(am, 3, ERROR)
    fails(am, 2, LATER)
    over(am, 2, LATER)
    over(am, 3, ERROR)
    assert cause(am) == ContainerDiagnosis(index=1, diagnosis=ERROR)


def test_a_consequential_failure_is_not_the_cause_even_if_reported_first() -> None:
    am = gang(3)
    fails(am, 2, LOST)
    fails(am, 3, LOST)
    fails(am, 4, ERROR)
    for number, found in ((2, LOST), (3, LOST), (4, ERROR)):
        over(am, number, found)
    assert cause(am) == ContainerDiagnosis(index=2, diagnosis=ERROR)


def test_the_only_rank_that_did_not_take_part_is_named() -> None:
    am = gang(2)
    fails(am, 2, WAITED)
    over(am, 2, WAITED)
    over(am, 3, None, Fault.STOPPED)
    found = cause(am)
    assert found is not None
    assert found.index == 0
    assert found.diagnosis.cause == "container 1 (worker 1) did not take part in a collective operation in time"


@pytest.mark.parametrize(
    ("steps", "named"),
    [
        ({2: 7, 3: 7, 4: 3, 5: 7}, "container 2 (worker 2) did not take part"),
        ({2: 7, 3: 4, 4: 3, 5: 7}, "container 1 (worker 1), container 2 (worker 2) did not take part"),
        ({2: 7, 3: 7, 4: 7, 5: 7}, "another rank did not"),
        ({}, "another rank did not"),
    ],
)
def test_ranks_behind_the_others_did_not_join_the_collective(steps: dict[int, int], named: str) -> None:
    am = gang(4)
    for number, step in steps.items():
        am.report(number, Phase.RUNNING, payload=PayloadStatus(step=step, lines=1))
    payload = PayloadStatus(step=steps[2], lines=1) if steps else None
    failed = result(Fault.USER, 1, None, diagnosis=WAITED)
    am.report(2, Phase.RUNNING, failure=failed, payload=payload)
    am.report(2, Phase.ENDED, failed, payload=payload)
    for number in (3, 4, 5):
        payload = PayloadStatus(step=steps[number], lines=1) if steps else None
        am.report(number, Phase.ENDED, result(Fault.STOPPED, None, None), payload=payload)
    found = cause(am)
    assert found is not None
    assert found.diagnosis.cause.startswith(named)


def test_a_gang_restart_clears_the_end_of_the_previous_payload() -> None:
    am = Driver(RoleSpec(instances=2, retries=1), gang=Gang.ALL)
    am.running_gang(2, 3)
    fails(am, 2, ERROR)
    assert am.state.gates[0].generation == 1
    for number in (2, 3):
        am.report(number, Phase.WAITING, generation=1)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, generation=1)
    fails(am, 3, LATER)
    fails(am, 2, ERROR)
    over(am, 2, ERROR)
    over(am, 3, LATER)
    assert cause(am) == ContainerDiagnosis(index=1, diagnosis=LATER)


def test_an_end_by_a_limit_is_named() -> None:
    am = Driver(RoleSpec(instances=2), max_runtime_s=5.0)
    am.running(2, 3)
    am.finished(2, result())
    am.ended(2)
    assert am.view().diagnosis is None
    am.wait(5)
    assert am.stops(3) == [Stop.SOFT]
    found = am.view().diagnosis
    assert found is not None
    assert (found.index, found.diagnosis.rule, found.diagnosis.fault) == (1, "time_limit", Fault.USER)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("timed out after 60 s before a payload ran", "time_limit"),
        ("timed out: idle_guard (all GPUs below 5 % for 60 s), output committed", "idle_guard"),
        ("timed out: lifetime limit of the queue or application in YARN", "lifetime_limit"),
    ],
)
def test_each_limit_has_a_rule(text: str, rule: str) -> None:
    assert diagnosis_of_limit(ApplicationEnd(FinalStatus.KILLED, Cause.TIMED_OUT, text)).rule == rule


def test_a_container_that_its_node_lost_or_that_fell_silent_is_named() -> None:
    am = Driver(RoleSpec(instances=3))
    am.running(2, 3, 4)
    am.finished(2, result(Fault.NODE, None, None, message="the node removed it", lost=True))
    am.ended(3, -100, node_fault=True)
    assert [container.diagnosis and container.diagnosis.rule for container in am.view().containers] == [
        "node_lost",
        "node_lost",
        None,
    ]
    am.wait(200)
    am.ended(4, -105)
    found = am.view().containers[2].diagnosis
    assert found is not None
    assert (found.rule, found.cause) == ("task_silent", "its task stopped reporting")
