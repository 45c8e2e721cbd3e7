"""YARN's exit codes: whose fault, in which words."""

from __future__ import annotations

import re

import pytest

from dlapp.cluster.yarn.am.exit_status import end_of, was_taken_away
from dlapp.cluster.yarn.values import ContainerStage, ContainerStatus
from dlapp.values.ids import ContainerId

MEMORY = (
    "[2026-11-21 03:50:20.605]Container [pid=7001,containerID=container_x] is running 368889856B beyond the 'PHYSICAL' "
    "memory limit. Current usage: 607.8 MB of 256 MB physical memory used; 613.5 MB of 537.6 MB virtual memory used. "
    "Killing container.\nDump of the process-tree for container_x :"
)
MEMORY_2 = (
    "Container [pid=7001,containerID=container_x] is running beyond physical memory limits. Current usage: 607.8 MB of "
    "256 MB physical memory used; 613.5 MB of 537.6 MB virtual memory used. Killing container."
)
"""Of Hadoop 2."""
ONE = ContainerId.from_text("container_1700000000000_0042_01_000002")


def status(code: int, message: str) -> ContainerStatus:
    return ContainerStatus(container_id=ONE, stage=ContainerStage.ENDED, exit_status=code, diagnostics=message)


@pytest.mark.parametrize(
    ("code", "message", "node_fault", "words"),
    [
        (0, "", False, ""),
        (3, "[2026-11-21 03:50:20.605]Exception from container-launch.\nContainer id: x", False, "Exception from"),
        (137, "Container killed on request. Exit code is 137", False, "Exit code is 137"),
        (-100, "Container released on a *lost* node", True, "was taken away: Container released on a \\*lost"),
        (-101, "", True, "disks failed"),
        (-102, "Container preempted by scheduler", True, "was preempted: "),
        (-104, MEMORY, False, "was ended for using too much memory: 607.8 MB of 256 MB; raise memory of its role$"),
        (-103, MEMORY.replace("PHYSICAL", "VIRTUAL"), False, "virtual memory: 613.5 MB of 537.6 MB; raise .*-ratio$"),
        (-104, MEMORY_2, False, "was ended for using too much memory: 607.8 MB of 256 MB; raise memory of its role$"),
        (-104, "in other words", False, "too much memory: in other words; raise"),
        (-105, "Container killed by the ApplicationMaster.", False, "by dlapp"),
        (-1000, "\n\nFile does not exist: hdfs://x/y", True, "could not be prepared on its node: File does not exist"),
    ],
)
def test_the_end_of_a_container_has_its_fault(code: int, message: str, node_fault: bool, words: str) -> None:
    end = end_of(status(code, message))
    assert (end.container_id, end.exit_status, end.node_fault) == (ONE, code, node_fault)
    assert re.search(words, end.diagnostics)


@pytest.mark.parametrize(
    ("code", "message", "service"),
    [
        (-1000, "Call From node7/10.0.0.7 to nn:8020 failed: java.net.ConnectException: Connection refused", "HDFS"),
        (-1000, "java.lang.reflect.UndeclaredThrowableException\nCaused by: a.b.BlockMissingException: no", "HDFS"),
        (-1000, "File does not exist: hdfs://x/y", ""),
        (3, "java.net.ConnectException: Connection refused", ""),
    ],
)
def test_a_container_whose_files_hdfs_does_not_serve_waits_for_it(code: int, message: str, service: str) -> None:
    """While a NameNode or the DataNodes restart, a NodeManager fails to fetch files within seconds, again and again."""
    assert end_of(status(code, message)).service == service


def test_a_node_without_a_suitable_python_reports_it_and_is_at_fault() -> None:
    message = (
        "[2026-01-02 03:04:05.678]Exception from container-launch.\nExit code: 127\n\n"
        "[2026-01-02 03:04:05.681]Container exited with a non-zero exit code 127. Error file: prelaunch.err.\n"
        "Last 4096 bytes of stderr :\ndlapp: there is no python3 on node7: install Python 3.11\n\n"
    )
    end = end_of(status(127, message))
    assert (end.node_fault, end.diagnostics) == (True, "there is no python3 on node7: install Python 3.11")
    assert not end_of(status(127, "Exit code: 127")).node_fault


def test_a_container_released_by_the_resourcemanager_may_still_run() -> None:
    assert was_taken_away(status(-100, "Container released by application"))
    assert was_taken_away(status(-100, "Container of a completed application"))
    assert was_taken_away(status(-100, "Container released on a *lost* node"))
    assert was_taken_away(status(-102, "Container preempted by scheduler"))
    assert not was_taken_away(status(-105, "Container killed by the ApplicationMaster."))
