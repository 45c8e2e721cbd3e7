"""Test the starts of roles that depend on others."""

from __future__ import annotations

from typing import Any

from dlapp.am.model import events
from dlapp.values.messages import Fault, PayloadStatus, Phase, Stop
from dlapp.values.report import Cause
from dlapp.values.spec import (
    ContainerFailure,
    Dependency,
    Gang,
    RoleSpec,
    Until,
)
from tests.am.decisions.situations import TEAM, second
from tests.am.driving import Driver, result


def dependent_role(name: str, *conditions: tuple[str, Until], **fields: Any) -> RoleSpec:
    return RoleSpec(name=name, depends_on=tuple(Dependency(*condition) for condition in conditions), **fields)


def test_a_role_that_waits_for_another_to_be_done_is_requested_only_then() -> None:
    am = Driver(RoleSpec(name="train"), dependent_role("eval", ("train", Until.DONE), instances=2))
    assert (am.requested(), am.phase()) == ([1, 0], "waiting for 1 container, eval waits for train (done)")
    am.running(2)
    assert am.requested() == [0, 0]
    am.finished(2)
    assert am.requested() == [0, 2]
    am.running(3, 4, request_id=2)
    assert am.orders(3).go
    am.finished(3)
    am.finished(4)
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED


def test_without_a_gang_a_role_is_requested_once_its_dependency_has_started() -> None:
    am = Driver(RoleSpec(name="db", instances=2, service=True), dependent_role("web", ("db", Until.STARTED)))
    am.running(2)
    assert am.requested() == [1, 0]
    am.running(3)
    assert am.requested() == [0, 1]


def test_in_a_gang_a_role_starts_after_the_gate_once_its_dependency_has_started() -> None:
    am = Driver(TEAM[0], dependent_role("worker", ("ps", Until.STARTED)), gang=Gang.ALL)
    assert am.requested() == [1, 1]
    am.granted(2)
    am.granted(3, request_id=2)
    for number in (2, 3):
        am.hello(number)
        am.report(number, Phase.WAITING)
    assert (am.orders(2).go, am.orders(3).go) == (True, False)
    assert am.phase() == "1 of 2 at the gate, 1 starting, worker waits for ps"
    am.report(2, Phase.RUNNING)
    assert am.orders(3).go


def test_a_role_starts_once_each_payload_of_its_dependency_is_ready() -> None:
    am = Driver(
        RoleSpec(name="ps", instances=2, service=True), dependent_role("worker", ("ps", Until.READY)), gang=Gang.ALL
    )
    am.granted(2, 3)
    am.granted(4, request_id=2)
    for number in (2, 3, 4):
        am.hello(number)
        am.report(number, Phase.WAITING)
    am.report(2, Phase.RUNNING, payload=PayloadStatus(ready=True))
    am.report(3, Phase.RUNNING, payload=PayloadStatus(progress=0.5))
    assert (am.orders(4).go, am.phase()) == (False, "running 2 of 3, 1 of 3 at the gate, worker waits for ps (ready)")
    am.report(3, Phase.RUNNING, payload=PayloadStatus(ready=True))
    assert am.orders(4).go


def test_a_succeeded_payload_counts_as_ready_and_a_lost_container_does_not() -> None:
    am = Driver(RoleSpec(name="db", instances=2, retries=1), dependent_role("web", ("db", Until.READY)))
    am.running(2, 3)
    am.report(2, Phase.RUNNING, payload=PayloadStatus(ready=True))
    am.finished(2, result(Fault.USER, 1))
    am.finished(3)
    assert am.requested() == [1, 0]
    am.running(4)
    am.report(4, Phase.RUNNING, payload=PayloadStatus(ready=True))
    assert am.requested() == [0, 1]


def test_a_task_probes_its_port_only_if_a_role_waits_for_readiness() -> None:
    roles = (RoleSpec(name="db", ports=1), RoleSpec(name="old", ports=1), RoleSpec(name="none"))
    am = Driver(*roles, dependent_role("web", ("db", Until.READY), ("old", Until.STARTED), ("none", Until.READY)))
    for number, request_id in ((2, 1), (3, 2), (4, 3)):
        am.granted(number, request_id=request_id)
        am.hello(number)
    assert [action.assignment.ready_by_port for action in am.of(events.Assign, am.all)] == [True, False, False]


def test_an_impossible_start_condition_fails_the_application_naming_both_roles() -> None:
    am = Driver(
        RoleSpec(name="prepare"),
        dependent_role("train", ("prepare", Until.DONE)),
        RoleSpec(name="log"),
        success=("train", "log"),
    )
    am.running(4, request_id=3)
    am.running(2)
    am.finished(2, result(Fault.USER, 1))
    am.finished(4)
    am.settled()
    assert am.diagnostics() == "role train cannot start: it depends on role prepare, and container 0 (prepare 0) failed"


def test_with_continue_only_the_role_that_cannot_start_fails() -> None:
    am = Driver(
        RoleSpec(name="prepare"),
        dependent_role("train", ("prepare", Until.DONE)),
        RoleSpec(name="other"),
        on_container_failure=ContainerFailure.CONTINUE,
    )
    am.running(2)
    am.running(3, request_id=3)
    am.finished(2, result(Fault.USER, 1))
    am.finished(3)
    assert [part.role for part in am.settlement().parts] == ["other"]
    am.settled()
    assert am.diagnostics().startswith(
        "2 of 3 containers failed: 0-1; the first of them: container 0 (prepare 0) failed"
    )


def test_an_impossible_start_condition_names_the_container_that_never_started() -> None:
    am = Driver(
        RoleSpec(name="db", instances=2),
        dependent_role("web", ("db", Until.STARTED)),
        RoleSpec(name="other"),
        on_container_failure=ContainerFailure.CONTINUE,
    )
    am.running(4, request_id=3)
    am.running(2)
    am.finished(2, result(Fault.USER, 1))  # it had started
    am.granted(3)
    am.hello(3)
    am.finished(3, result(Fault.USER, None, None))
    assert am.state.instances[2].failed.endswith("it depends on role db, and container 1 (db 1) failed")
    assert "web waits" not in am.phase()


def test_with_continue_a_role_that_can_never_start_releases_its_containers() -> None:
    roles = (RoleSpec(name="db"), dependent_role("web", ("db", Until.STARTED)), RoleSpec(name="other"))
    first = Driver(*roles, on_container_failure=ContainerFailure.CONTINUE)
    first.running(2)
    first.granted(3, request_id=2)
    first.hello(3)  # its payload has not begun
    first.running(4, request_id=3)
    grants = tuple(first.grant(number) for number in (3, 4))
    going_on = ContainerFailure.CONTINUE
    am = Driver(*roles, attempt=2, former=first.journal(), live=grants, on_container_failure=going_on)
    am.hello(3, index=1, phase=Phase.UNPACKING, attempt=1)
    am.hello(4, index=2, phase=Phase.RUNNING, attempt=1)
    am.ended(2, -100, attempt=1, node_fault=True)
    am.wait(20)
    am.granted(5)
    am.hello(5)
    am.finished(5, result(Fault.USER, None, None))  # before its payload began
    assert (am.orders(3, attempt=1).stop, am.orders(4, attempt=1).stop) == (Stop.NOW, Stop.NO)
    am.report(3, Phase.ENDED, result(Fault.STOPPED, None, None), attempt=1)
    am.report(4, Phase.ENDED, result(), attempt=1)
    assert [part.role for part in am.settlement().parts] == ["other"]
    am.settled()
    am.ended(3, attempt=1)
    am.ended(4, attempt=1)
    assert am.diagnostics().startswith("2 of 3 containers failed: 0-1; the first of them: container 0 (db 0) ")


def test_the_next_attempt_restores_started_and_failed_roles() -> None:
    roles = (RoleSpec(name="db", service=True), dependent_role("web", ("db", Until.STARTED)))
    first = Driver(*roles)
    first.running(2)
    first.running(3, request_id=2)
    first.finished(2, result(Fault.USER, 1))
    am = second(first, 3)
    am.hello(3, index=1, phase=Phase.RUNNING, attempt=1)
    am.wait(2)
    assert am.orders(3, attempt=1).stop is Stop.NO
    assert "waits" not in am.phase()


def test_the_roles_that_decide_end_the_others_softly() -> None:
    am = Driver(RoleSpec(name="chief"), RoleSpec(name="worker", instances=2), success=("chief",), kill_grace_s=20.0)
    am.running(2)
    am.running(3, 4, request_id=2)
    am.finished(3, result(Fault.USER, 1))
    am.finished(2)
    assert am.stops(4) == [Stop.SOFT]
    am.finished(4, result(Fault.STOPPED, None))
    assert am.settlement().how is events.Settlement.COMMIT
    am.settled()
    assert am.ending().cause is Cause.SUCCEEDED
