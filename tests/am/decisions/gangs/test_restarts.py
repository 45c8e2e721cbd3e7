"""Reasons of restarts of gangs: in the view, and for a next attempt in the journal."""

from __future__ import annotations

import pytest

from dlapp.am.model import journal
from dlapp.am.model.gate import MAX_RESTARTS
from dlapp.am.model.records.recovered import RecoveredGate
from dlapp.am.view import public_view
from dlapp.values.messages import Fault, Phase, TaskResult
from dlapp.values.report import ApplicationView
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import Gang, RoleSpec
from tests.am.decisions.gangs.test_preemption import notice
from tests.am.driving import Driver, result


def restarted(am: Driver, failure: TaskResult, generation: int = 0) -> None:
    """Let the program of container 2 fail, and both programs start again."""
    am.report(2, Phase.RUNNING, failure=failure, generation=generation)
    for number in (2, 3):
        am.report(number, Phase.WAITING, generation=generation + 1)
    for number in (2, 3):
        am.report(number, Phase.RUNNING, generation=generation + 1)


def causes(am: Driver) -> list[tuple[int, int | None, str]]:
    return [(restart.generation, restart.container, restart.cause) for restart in am.view().restarts]


def test_the_view_names_the_container_that_restarted_a_gang_also_in_the_next_attempt() -> None:
    am = Driver(RoleSpec(instances=2, retries=3), gang=Gang.ALL)
    am.running_gang(2, 3)
    assert causes(am) == []
    restarted(am, TaskResult(fault=Fault.USER, signal=9))
    restarted(am, result(Fault.USER, 3), 1)
    found = [(1, 0, "container 0 (worker 0): killed by signal 9"), (2, 0, "container 0 (worker 0): exit code 3")]
    assert causes(am) == found
    (first, second) = am.view().restarts
    assert am.state.submission.submitted_ms <= first.at_ms <= second.at_ms <= am.state.now_ms
    live = tuple(am.grant(number) for number in (2, 3))
    after = Driver(RoleSpec(instances=2, retries=3), gang=Gang.ALL, attempt=2, former=am.journal(), live=live)
    assert after.view().restarts == (first, second)
    view = am.view()
    assert from_json(ApplicationView, to_json(view)).restarts == view.restarts
    assert public_view(view).restarts == ()


def test_the_latest_restarts_are_kept_with_one_line_of_bounded_length() -> None:
    am = Driver(RoleSpec(instances=2, retries=20), gang=Gang.ALL)
    am.running_gang(2, 3)
    for generation in range(MAX_RESTARTS + 2):
        restarted(am, TaskResult(fault=Fault.USER, exit_code=1, message="x" * 5000 + "\nmore"), generation)
    found = causes(am)
    assert [generation for generation, _, _ in found] == list(range(3, MAX_RESTARTS + 3))
    assert {len(cause) for _, _, cause in found} == {200}
    assert am.journal().gates["worker"].restarts == am.view().restarts


@pytest.mark.parametrize("comes_first", [True, False])
def test_a_preemption_is_the_reason_even_if_its_failure_was_reported_first(
    comes_first: bool,
) -> None:
    am = Driver(RoleSpec(instances=2, retries=3), gang=Gang.ALL)
    am.running_gang(2, 3)
    if comes_first:
        notice(am, 2)
    am.report(3, Phase.RUNNING, failure=result(Fault.USER, 1, None))
    if not comes_first:
        assert causes(am) == [(1, 1, "container 1 (worker 1): exit code 1")]
        notice(am, 2)
        am.finished(2, result(Fault.NODE, 1, None, lost=True))
    ((generation, container, cause),) = causes(am)
    assert (generation, container) == (1, 0)
    assert cause.startswith("container 0 (worker 0): ")
    assert am.journal().gates["worker"].restarts == am.view().restarts


def test_a_gate_of_a_journal_without_reasons_is_read() -> None:
    former = journal.replay([{"kind": "gate", "t": 1, "role": "worker", "open": True, "generation": 2}])
    assert former.gates == {"worker": RecoveredGate(True, 2)}
