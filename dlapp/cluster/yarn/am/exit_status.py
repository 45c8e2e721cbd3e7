"""Exit statuses of YARN's containers: whether the node or the container caused the end.

Source: org.apache.hadoop.yarn.api.records.ContainerExitStatus; answers of 3.4.2.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from dlapp.cluster.engine import ContainerEnd
from dlapp.cluster.yarn.container_executor import launch_failure
from dlapp.cluster.yarn.values import ContainerStatus

INVALID = -1000
ABORTED = -100
NODE_FAULTS: Mapping[int, str] = {
    INVALID: "could not be prepared on its node",
    -1: "could not be started by its NodeManager",
    ABORTED: "was taken away",
    -101: "ended because its node's disks failed",
    -102: "was preempted",
    -106: "was ended by the ResourceManager",
    -108: "was ended by its node's scheduler",
}
TAKEN_AWAY = (ABORTED, -102, -106)
"""Exit statuses that the ResourceManager sets itself; those of a node follow when the container has ended. Source:
SchedulerUtils, createAbnormalContainerStatus, createPreemptedContainerStatus and createKilledContainerStatus."""
LOST_NODE = "*lost* node"
"""Part of the ResourceManager's diagnostics of a container on a lost node, whose processes may still run. Source:
SchedulerUtils.LOST_CONTAINER, Hadoop 2.6 to 3.4."""
VIRTUAL_MEMORY = -103
MEMORY: Mapping[int, str] = {
    VIRTUAL_MEMORY: "raise memory of its role, or the cluster's yarn.nodemanager.vmem-pmem-ratio",
    -104: "raise memory of its role",
}
HDFS = "HDFS"
"""Name for users of the service from which a NodeManager fetches the files of a container."""
_HDFS_AWAY = re.compile(
    r"\b(?:ConnectException|ConnectTimeoutException|SocketException|SocketTimeoutException|NoRouteToHostException"
    r"|StandbyException|SafeModeException|BlockMissingException)\b"
)
"""Errors of a NodeManager that fetches files while the NameNode or the DataNodes are restarted; seen on 3.4.2."""
NO_PYTHON = (126, 127)
"""Exit codes of a container's command if its node has no Python for dlapp."""
OWN_PREFIX = "dlapp: "
"""Prefix of the line that the command then writes to standard error."""
OWN_FAULTS: Mapping[int, str] = {
    VIRTUAL_MEMORY: "was ended for using too much virtual memory",
    -104: "was ended for using too much memory",
    -105: "was ended by dlapp",
    -107: "was ended after the application",
    -109: "was ended for writing too much log",
}


def end_of(status: ContainerStatus, node: str = "") -> ContainerEnd:
    """Return how a container ended, with YARN's own message and its numbers if YARN ended it.

    Args:
        node: host of its node; empty: not known.
    """
    code = status.exit_status
    if failure := launch_failure(status.diagnostics):
        message = f"the container could not be started{f' on {node}' if node else ''}: {failure}"
        return ContainerEnd(container_id=status.container_id, exit_status=code, diagnostics=message, node_fault=True)
    if code in NO_PYTHON and (message := _own_message(status.diagnostics)):
        return ContainerEnd(container_id=status.container_id, exit_status=code, diagnostics=message, node_fault=True)
    text = NODE_FAULTS.get(code) or OWN_FAULTS.get(code)
    detail = _first_line(status.diagnostics)
    if code in MEMORY:
        detail = f"{_memory(status)}; {MEMORY[code]}"
    return ContainerEnd(
        container_id=status.container_id,
        exit_status=code,
        diagnostics=f"the container {text}{f': {detail}' if detail else ''}" if text else detail,
        node_fault=code in NODE_FAULTS,
        service=HDFS if code == INVALID and _HDFS_AWAY.search(status.diagnostics) else "",
    )


def _memory(status: ContainerStatus) -> str:
    """Return the amounts: ``607.8 MB of 256 MB``. Source: ContainersMonitorImpl.formatErrorMessage."""
    kind = "virtual" if status.exit_status == VIRTUAL_MEMORY else "physical"
    found = re.search(rf"(\d[\d.]* \w+ of \d[\d.]* \w+) {kind} memory used", status.diagnostics)
    return found[1] if found else _first_line(status.diagnostics)


def was_taken_away(status: ContainerStatus) -> bool:
    """Return True if the ResourceManager ended a container: its node gets the order later, or never if it is lost."""
    return status.exit_status in TAKEN_AWAY


def is_of_lost_node(status: ContainerStatus) -> bool:
    """Return True if the ResourceManager ended a container because its node is lost."""
    return was_taken_away(status) and LOST_NODE in status.diagnostics


def _own_message(diagnostics: str) -> str:
    """Return the line that the command wrote; YARN's diagnostics have the end of standard error."""
    lines = (line.strip() for line in diagnostics.splitlines())
    return next((line.removeprefix(OWN_PREFIX) for line in lines if line.startswith(OWN_PREFIX)), "")


def _first_line(diagnostics: str) -> str:
    """Return the first line that is not empty, without YARN's date before it."""
    for line in diagnostics.splitlines():
        if line.startswith("[") and "]" in line:
            line = line.partition("]")[2]
        if text := line.strip():
            return text
    return ""
