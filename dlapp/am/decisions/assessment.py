"""Assessment of an end: who is responsible, whether the index is retried, and the message.

    fault     reported by                                         retry?
    NONE      the task: the payload ended with 0, output stored   done
    USER      the task: exit code, signal; or the task itself     as often as the role's ``retries``
              died and the engine does not blame the node
    NODE      the task or the engine: GPU, disk, host, silence   `NODE_RETRIES` times, on another node if there is one;
                                                                  on a single node after a pause
    SERVICE   the task: ZooKeeper, HDFS or a registry is away,    after a pause, as long as the application's patience
              on a single node Docker too; the engine: a          lasts (`dlapp.am.decisions.services`)
              NodeManager does not answer
    STOPPED   a task that was stopped, but not by us              as NODE
    DATA      the task: input missing, output not writable        never

A container that YARN took away, with or without its node, is retried as often as that happens, after a pause: it is a
decision of the scheduler or of an operator, and not a failure of the program or the node.
"""

from __future__ import annotations

from dlapp.am.model.records.containers import consecutive_ranges
from dlapp.cluster.engine import NODE_MANAGER, STATUS_UNKNOWN, ContainerEnd
from dlapp.value import Value
from dlapp.values.messages import Diagnosis, Fault, TaskResult

NODE_RETRIES = 3
"""Number of retries of one index after failures that its program did not cause."""
FIRST_PAUSE_MS, LAST_PAUSE_MS = 1_000, 60_000
"""Pause before a retry after an uncounted end and, on a single node, after failures of the node: doubled from the first
to the second."""
GOOD_MS = 600_000
"""Run time without waiting after which a container's index has the shortest pause and the whole patience again."""
FORGIVEN_MS = 3_600_000
"""Run time of a container that forgives its index one failure that its program did not cause."""

LOST = -100
_PREEMPTED = -102
TAKEN_AWAY = (LOST, -101, _PREEMPTED, -106, -108)
"""Statuses of containers that YARN took away; it does not count the first four against an ApplicationMaster either.
Source: RMAppAttemptImpl.shouldCountTowardsMaxAttemptRetry."""
_BY_US = -105
_LIMITS = (-103, -104, -109)
_LAST_SIGNAL = 64
_MAX_RANGES = 20
TRIED_AGAIN = "none; it is tried again"
_MORE_MEMORY = "request more memory in [resources], or use less"
_STATUSES = {
    LOST: ("the container was lost with its node or taken away", "node_lost", TRIED_AGAIN),
    -101: ("the disks of the node failed", "node_disks", "ask the operator to look at the disks of the node"),
    _PREEMPTED: ("the container was preempted", "preempted", TRIED_AGAIN),
    -103: ("it used more virtual memory than it asked for", "virtual_memory_limit", _MORE_MEMORY),
    -104: ("it used more memory than it asked for", "memory_limit", _MORE_MEMORY),
    _BY_US: ("it was stopped by an earlier attempt", "", ""),
    -106: ("the container was killed by the ResourceManager", "killed_by_resourcemanager", "ask the operator"),
    -108: ("the container was killed by its node to make room", "killed_by_node", TRIED_AGAIN),
    -109: ("it wrote more log than it may", "log_limit", "write less to stdout and stderr"),
    -1000: (
        "the container could not be prepared on its node",
        "container_not_prepared",
        "ask the operator to look at the node",
    ),
}
"""Status -> the cause, the name of its rule, and the user's next step; no rule: it is no cause of a failure.
Source: org.apache.hadoop.yarn.api.records.ContainerExitStatus."""
_UNKNOWN = ("", "", "")


class Assessment(Value):
    """Assessment of one end.

    Args:
        reason: one line for the user.
        avoid_node: retry on another node.
        free: not counted.
        service: with SERVICE the unavailable service; with NODE one that only this node has.
        is_silent: the node did not answer when its container was to start, and is avoided for that.
        is_closed: the node refuses such containers, and is avoided from the first failure.
        is_final: it is not retried, whatever ``retries`` is.
    """

    fault: Fault
    reason: str
    avoid_node: bool = False
    free: bool = False
    service: str = ""
    is_silent: bool = False
    is_closed: bool = False
    is_final: bool = False


def of_result(result: TaskResult) -> Assessment:
    """Assess an end reported by the task itself."""
    text, code = result.message, result.exit_text
    if code and code not in text:
        text = f"{code}: {text}" if text else code
    if not text and result.fault is not Fault.NONE:
        text = "stopped from outside" if result.fault is Fault.STOPPED else f"a failure of its {result.fault.value}"
    found = result.diagnosis
    if result.fault is Fault.USER and found is not None and found.retry is not None:
        # The program's own log is the source. It can only use up the retries for node failures, of its own application.
        if found.retry:
            return Assessment(Fault.NODE, f"{text}: {found.cause}", avoid_node=found.avoid_node)
        return Assessment(Fault.USER, text, is_final=True)
    is_avoided = result.fault is Fault.NODE and not result.lost
    return Assessment(
        result.fault,
        text,
        avoid_node=is_avoided,
        free=result.lost,
        service=result.service,
        is_closed=result.is_closed and is_avoided,
    )


def diagnosis_of_end(end: ContainerEnd) -> Diagnosis | None:
    """Return the cause of an end without a task's result, from the engine's report; None: not known."""
    if (found := diagnosis_of_status(end.exit_status)) is not None:
        return found
    if end.node_fault:
        return Diagnosis(rule="node_failed", cause="the node failed", fault=Fault.NODE, next_step=TRIED_AGAIN)
    return None


def diagnosis_of_status(status: int) -> Diagnosis | None:
    """Return the cause of a YARN status; None: it is not one."""
    cause, rule, next_step = _STATUSES.get(status, _UNKNOWN)
    fault = Fault.USER if status in _LIMITS else Fault.NODE
    return Diagnosis(rule=rule, cause=cause, fault=fault, next_step=next_step) if rule else None


def of_end(end: ContainerEnd) -> Assessment:
    """Assess the end of a container whose task reported no result."""
    status, said = end.exit_status, end.diagnostics.strip().partition("\n")[0]
    if end.service:
        is_avoided = not end.service.startswith(NODE_MANAGER)  # the node may be the only one that reaches no HDFS
        return Assessment(
            Fault.SERVICE, said, avoid_node=is_avoided, free=True, service=end.service, is_silent=end.is_silent
        )
    cause, free = _STATUSES.get(status, _UNKNOWN)[0], status in TAKEN_AWAY
    if end.node_fault:
        reason = said or cause or "its node failed"
        return Assessment(Fault.NODE, reason, avoid_node=not free, free=free, is_silent=end.is_silent)
    if cause:
        fault = Fault.USER if status in _LIMITS else Fault.STOPPED if status == _BY_US else Fault.NODE
        return Assessment(fault, said or cause, free=free)
    if status == STATUS_UNKNOWN:
        reason = "the task was killed, or ended without a result, under an earlier attempt"
    elif -_LAST_SIGNAL <= status < 0:
        reason = f"the task was killed by signal {-status}"
    elif status > 0:
        reason = f"the task ended with exit code {status} and without a result"
    elif status == 0:
        reason = "the task ended without a result"
    else:
        reason = f"the container ended with status {status}"
    return Assessment(Fault.USER, f"{reason}: {said}" if said and said not in reason else reason)


def is_retried(assessment: Assessment, *, user_faults: int, node_faults: int, retries: int) -> bool:
    """Return whether the index is retried.

    Args:
        assessment: assessment of this end.
        user_faults, node_faults: number of ends counted against each, including this one if counted.
        retries: number of retries after the user's failures.
    """
    match assessment.fault:
        case Fault.USER:
            return user_faults <= retries and not assessment.is_final
        case Fault.NODE | Fault.STOPPED:
            return assessment.free or node_faults <= NODE_RETRIES
        case _:
            return False


def pause_ms(pauses: int) -> int:
    """Return the pause of an index before its next try [ms], by the number of its pauses, including this one."""
    return int(min(FIRST_PAUSE_MS << min(pauses - 1, 10), LAST_PAUSE_MS))


def container_name(index: int, role: str, role_index: int) -> str:
    """Return the display name of a container: ``container 2 (worker 2)``."""
    return f"container {index} ({role} {role_index})"


def lost_work(what: str, left: str) -> str:
    """Return why an output without data is not taken for a result.

    Args:
        what: the script.
        left: as of `TaskResult`; not empty.
    """
    return f"{what} ended before processes that it had started, which were killed ({left}): end the script with wait"


def failure(name: str, assessment: Assessment, *, user_faults: int, node_faults: int, patience_s: float = 0.0) -> str:
    """Return the diagnostics of an application that fails by this end: ``container 2 (worker 2) failed: exit code 3``.

    Args:
        name: name of the container, as in ``container 2 (worker 2)``.
        assessment: assessment of its last end.
        user_faults, node_faults: number of ends counted against each.
        patience_s: how long it waited for a service, if that is the reason.
    """
    fault, reason = assessment.fault, assessment.reason
    if fault is Fault.SERVICE:
        return f"{name} failed: waited {patience_s:g} s (service_patience) for {assessment.service}: {reason}"
    if fault is Fault.USER and user_faults > 1:
        return f"{name} failed {user_faults} times, the last time: {reason}"
    if fault in (Fault.NODE, Fault.STOPPED) and node_faults > 1:
        return f"{name} failed {node_faults} times for reasons other than its program, the last time: {reason}"
    return f"{name} failed: {reason}"


def failures(by_index: dict[int, str], total: int) -> str:
    """Return the diagnostics of an application of ``total`` containers that continued without the failed indexes, from
    the `failure` of each; empty: none failed.
    """
    if len(by_index) < 2:
        return next(iter(by_index.values()), "")
    names = ", ".join(ranges(sorted(by_index)))
    return f"{len(by_index)} of {total} containers failed: {names}; the first of them: {by_index[min(by_index)]}"


def ranges(numbers: list[int]) -> list[str]:
    """Return sorted numbers as text, with ranges as ``3-7``, up to a limit, and the number of omitted ones."""
    runs, most = consecutive_ranges(numbers), _MAX_RANGES
    items = [f"{first}" if first == last else f"{first}-{last}" for first, last in runs[:most]]
    if left := sum(last - first + 1 for first, last in runs[most:]):
        items.append(f"and {left} more")
    return items


def listed(names: list[str], most: int = 3) -> str:
    """Return a shortened list: ``a, b, c and 7 more``."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
