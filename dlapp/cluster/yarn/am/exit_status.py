"""Exit codes of YARN: whose fault the end of a container is.

Source: org.apache.hadoop.yarn.api.records.ContainerExitStatus; what 3.4.2 answers.
"""

from __future__ import annotations

import re

from dlapp.cluster.engine import ContainerEnd
from dlapp.cluster.yarn.values import ContainerStatus

INVALID = -1000
ABORTED = -100
NODE_FAULTS = {
    INVALID: "could not be prepared on its node",
    ABORTED: "was taken away",
    -101: "ended because its node's disks failed",
    -102: "was preempted",
    -106: "was ended by the ResourceManager",
    -108: "was ended by its node's scheduler",
}
TAKEN_AWAY = (ABORTED, -102, -106)
"""What the ResourceManager says by itself; what a node says comes when the container has ended. Source: SchedulerUtils,
createAbnormalContainerStatus, createPreemptedContainerStatus and createKilledContainerStatus."""
LOST_NODE = "*lost* node"
"""In the ResourceManager's words on a container of a node that it has given up, whose processes may live on. Source:
SchedulerUtils.LOST_CONTAINER, Hadoop 2.6 to 3.4."""
VIRTUAL_MEMORY = -103
MEMORY = {
    VIRTUAL_MEMORY: "raise memory of its role, or the cluster's yarn.nodemanager.vmem-pmem-ratio",
    -104: "raise memory of its role",
}
NO_PYTHON = (126, 127)
"""What a container's command exits with where its node has no Python for dlapp (`plan`, `travel`)."""
OURS = "dlapp: "
"""How a line begins that the command then leaves on standard error."""
OWN_FAULTS = {
    VIRTUAL_MEMORY: "was ended for using too much virtual memory",
    -104: "was ended for using too much memory",
    -105: "was ended by dlapp",
    -107: "was ended after the application",
    -109: "was ended for writing too much log",
}


def end_of(status: ContainerStatus) -> ContainerEnd:
    """Return how a container ended. YARN's own message follows if YARN ended it: it has the numbers."""
    code = status.exit_status
    if code in NO_PYTHON and (said := _our_words(status.diagnostics)):
        return ContainerEnd(container_id=status.container_id, exit_status=code, diagnostics=said, node_fault=True)
    words = NODE_FAULTS.get(code) or OWN_FAULTS.get(code)
    told = _first_words(status.diagnostics)
    if code in MEMORY:
        told = f"{_memory(status)}; {MEMORY[code]}"
    return ContainerEnd(
        container_id=status.container_id,
        exit_status=code,
        diagnostics=f"the container {words}{f': {told}' if told else ''}" if words else told,
        node_fault=code in NODE_FAULTS,
    )


def _memory(status: ContainerStatus) -> str:
    """The numbers: ``607.8 MB of 256 MB``; source: ContainersMonitorImpl.formatErrorMessage."""
    kind = "virtual" if status.exit_status == VIRTUAL_MEMORY else "physical"
    found = re.search(rf"(\d[\d.]* \w+ of \d[\d.]* \w+) {kind} memory used", status.diagnostics)
    return found[1] if found else _first_words(status.diagnostics)


def was_taken_away(status: ContainerStatus) -> bool:
    """Return True if the ResourceManager says that it takes a container away: its node hears of that later, or, if the
    node is lost, never.
    """
    return status.exit_status in TAKEN_AWAY


def is_of_lost_node(status: ContainerStatus) -> bool:
    """Return True if the ResourceManager took a container away because it has lost its node."""
    return was_taken_away(status) and LOST_NODE in status.diagnostics


def _our_words(diagnostics: str) -> str:
    """The line that the command left; YARN shows the end of what went to standard error."""
    lines = (line.strip() for line in diagnostics.splitlines())
    return next((line.removeprefix(OURS) for line in lines if line.startswith(OURS)), "")


def _first_words(diagnostics: str) -> str:
    """The first line that says something, without the date that YARN puts before it."""
    for line in diagnostics.splitlines():
        if line.startswith("[") and "]" in line:
            line = line.partition("]")[2]
        if text := line.strip():
            return text
    return ""
