"""Test whose fault an end was, and the words for it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.am.decisions import assessment
from dlapp.am.decisions.assessment import NODE_RETRIES, Assessment
from dlapp.cluster.engine import ContainerEnd
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Diagnosis, Fault, Phase, Stop, TaskResult
from dlapp.values.spec import Gang, RoleSpec
from tests.am.driving import APPLICATION, Driver, result

CONTAINER = ContainerId(APPLICATION, 1, 2)


@pytest.mark.parametrize(
    ("result", "words"),
    [
        (TaskResult(fault=Fault.USER, exit_code=3), "exit code 3"),
        (TaskResult(fault=Fault.USER, exit_code=3, message="exit code 3"), "exit code 3"),
        (TaskResult(fault=Fault.USER, exit_code=126, message="no such program"), "exit code 126: no such program"),
        (TaskResult(fault=Fault.USER, signal=9), "killed by signal 9"),
        (TaskResult(fault=Fault.USER, message="start.sh cannot be run"), "start.sh cannot be run"),
        (TaskResult(fault=Fault.NODE), "a failure of its node"),
        (TaskResult(fault=Fault.STOPPED), "stopped from outside"),
        (TaskResult(fault=Fault.NONE, exit_code=0), ""),
    ],
)
def test_a_result_is_put_into_one_line(result: TaskResult, words: str) -> None:
    assert assessment.of_result(result).reason == words


def test_a_cause_that_lasts_is_not_tried_again() -> None:
    lasts = Diagnosis(rule="module_missing", cause="no torch", fault=Fault.USER, retry=False)
    assessed = assessment.of_result(TaskResult(fault=Fault.USER, exit_code=1, diagnosis=lasts))
    assert assessed == Assessment(Fault.USER, "exit code 1", is_final=True)
    assert not assessment.is_retried(assessed, user_faults=1, node_faults=0, retries=5)


def test_a_gang_with_a_cause_that_lasts_is_not_restarted() -> None:
    lasts = Diagnosis(rule="module_missing", cause="no torch", fault=Fault.USER, retry=False)
    am = Driver(RoleSpec(instances=2, retries=5), gang=Gang.ALL)
    am.running_gang(2, 3)
    am.report(2, Phase.RUNNING, failure=result(Fault.USER, 1, None, diagnosis=lasts))
    assert (am.stops(2, 3), am.state.gates[0].generation) == ([Stop.SOFT, Stop.NO], 0)
    am.finished(2, result(Fault.USER, 1, None, diagnosis=lasts))
    assert (am.stops(3), am.state.gates[0].generation) == ([Stop.SOFT], 0)
    am.finished(3, result(Fault.STOPPED, None, None))
    am.wait(1)
    am.settled()
    assert am.diagnostics() == "container 0 (worker 0) failed: exit code 1"


def test_a_gang_is_restarted_at_no_cost_for_a_cause_of_the_node() -> None:
    passes = Diagnosis(rule="gpu_lost", cause="the GPU failed", fault=Fault.NODE, retry=True, avoid_node=True)
    am = Driver(RoleSpec(instances=2), gang=Gang.ALL)
    am.running_gang(2, 3)
    failed = result(Fault.USER, 1, None, diagnosis=passes)
    am.report(2, Phase.RUNNING, failure=failed)
    am.finished(2, failed)
    assert am.state.gates[0].generation == 1
    assert [instance.user_faults for instance in am.state.instances] == [0, 0]


@pytest.mark.parametrize("avoid_node", [True, False])
def test_a_cause_of_the_node_counts_as_the_nodes(avoid_node: bool) -> None:
    passes = Diagnosis(rule="gpu_lost", cause="the GPU failed", fault=Fault.NODE, retry=True, avoid_node=avoid_node)
    assessed = assessment.of_result(TaskResult(fault=Fault.USER, exit_code=1, diagnosis=passes))
    assert assessed == Assessment(Fault.NODE, "exit code 1: the GPU failed", avoid_node=avoid_node)


@pytest.mark.parametrize("fault", [Fault.NODE, Fault.SERVICE, Fault.DATA, Fault.STOPPED])
def test_a_diagnosis_changes_no_result_that_is_not_a_user_fault(fault: Fault) -> None:
    found = Diagnosis(rule="module_missing", cause="no torch", fault=Fault.USER, retry=False)
    assert assessment.of_result(TaskResult(fault=fault, message="m", diagnosis=found)) == assessment.of_result(
        TaskResult(fault=fault, message="m")
    )


@pytest.mark.parametrize("status", [-100, -101, -102, -103, -104, -106, -108, -109, -1000])
def test_an_end_that_yarn_explains_has_a_cause(status: int) -> None:
    end = ContainerEnd(container_id=CONTAINER, exit_status=status, node_fault=status not in (-103, -104, -109))
    found = assessment.diagnosis_of_end(end)
    assert found is not None
    assert found.fault is assessment.of_end(end).fault


@pytest.mark.parametrize(
    ("status", "node_fault", "message", "fault", "words"),
    [
        (-9, False, "", Fault.USER, "the task was killed by signal 9"),
        (1, False, "", Fault.USER, "the task ended with exit code 1 and without a result"),
        (0, False, "", Fault.USER, "the task ended without a result"),
        (-9, True, "the node was rebooted", Fault.NODE, "the node was rebooted"),
        (-100, False, "", Fault.NODE, "the container was lost with its node or taken away"),
        (-101, False, "", Fault.NODE, "the disks of the node failed"),
        (-104, False, "", Fault.USER, "it used more memory than it asked for"),
        (-105, False, "", Fault.STOPPED, "it was stopped by an earlier attempt"),
        (-120, False, "", Fault.USER, "the container ended with status -120"),
        (
            1,
            False,
            "No module named x\nmore",
            Fault.USER,
            "the task ended with exit code 1 and without a result: No module named x",
        ),
    ],
)
def test_an_end_without_a_result_is_assessed_by_the_engines_status(
    status: int, node_fault: bool, message: str, fault: Fault, words: str
) -> None:
    end = ContainerEnd(container_id=CONTAINER, exit_status=status, diagnostics=message, node_fault=node_fault)
    assessed = assessment.of_end(end)
    assert (assessed.fault, assessed.reason) == (fault, words)


@pytest.mark.parametrize(("service", "is_avoided"), [("HDFS", True), ("the NodeManager on node1", False)])
def test_a_node_on_which_containers_get_no_files_is_avoided_without_counting(service: str, is_avoided: bool) -> None:
    end = ContainerEnd(
        container_id=CONTAINER, exit_status=-1000, node_fault=True, service=service, diagnostics="refused"
    )
    assessed = assessment.of_end(end)
    assert (assessed.fault, assessed.free, assessed.avoid_node) == (Fault.SERVICE, True, is_avoided)


def test_a_preempted_container_is_not_counted_against_program_or_node() -> None:
    for status, free in (
        (-100, True),
        (-101, True),
        (-102, True),
        (-106, True),
        (-108, True),
        (-1000, False),
        (1, False),
    ):
        end = ContainerEnd(container_id=CONTAINER, exit_status=status, node_fault=True)
        assessed = assessment.of_end(end)
        assert (assessed.free, assessed.avoid_node) == (free, not free)


@given(st.integers(0, 9), st.integers(0, 9), st.integers(0, 5), st.sampled_from(Fault))
def test_every_fault_has_an_end(user: int, node: int, retries: int, fault: Fault) -> None:
    again = assessment.is_retried(Assessment(fault, ""), user_faults=user, node_faults=node, retries=retries)
    assert not (again and fault is Fault.USER and user > retries)
    assert not (again and fault in (Fault.NODE, Fault.STOPPED) and node > NODE_RETRIES)
    assert not (again and fault in (Fault.NONE, Fault.DATA))


def test_a_list_stays_short() -> None:
    assert assessment.listed(["a", "b", "c"]) == "a, b, c"
    assert assessment.listed(list("abcde")) == "a, b, c and 2 more"
