"""Cause of a container's failure, determined after its program has ended."""

from __future__ import annotations

import os
from collections.abc import Callable

from dlapp.errors import ConfigError
from dlapp.system.disk_space import is_noexec
from dlapp.value import replace
from dlapp.values.messages import Diagnosis, Fault, TaskResult


def with_cause(
    result: TaskResult,
    container_dir: str,
    warn: Callable[[str], None],
    *,
    has_gpus: bool = False,
    is_exclusive: bool = False,
    xid: str = "",
    find_conflict: Callable[[str], str] | None = None,
    foreign_use: Callable[[], str] = lambda: "",
) -> TaskResult:
    """Return a result with the cause of the failure, if it failed, a rule matches, and it has none yet.

    Args:
        result: the payload's.
        container_dir: directory with its logs.
        warn: called with what could not be read.
        has_gpus: whether the container holds GPUs.
        is_exclusive: whether one of them is in compute mode exclusive.
        xid: line on the Xid error that ended the payload; empty: none did. It counts before its consequence in a log.
        find_conflict: returns, from a line on an address that is in use, what to check if the application itself uses
            it; otherwise empty (`dlapp.task.port_conflicts`).
        foreign_use: returns which processes of others used memory of the GPUs; empty: none (`dlapp.task.gpu_health`).
    """
    if result.diagnosis is not None or result.fault in (Fault.NONE, Fault.STOPPED) or result.lost:
        return result
    from dlapp.diagnosis.rules import ADDRESS_IN_USE, GPU_MEMORY, load_rules
    from dlapp.diagnosis.search import diagnose, read_tail

    try:
        rules = load_rules()
    except ConfigError as error:
        warn(f"the cause of the failure is unknown: {error}")
        return result
    if result.exit_code == 126 and is_noexec(container_dir):
        text = f"{container_dir} lies on a file system that executes nothing (noexec)"
        result = replace(result, message=f"{result.message or result.exit_text}; {text}")
    logs = []
    if result.exit_code is not None or result.signal is not None:
        for name in ("stderr", "stdout"):
            try:
                logs.append(read_tail(os.path.join(container_dir, name)))
            except OSError as error:
                warn(f"{name} cannot be searched for the cause: {error.strerror or error}")

    def cause_of(message: str) -> Diagnosis | None:
        ended = {"exit_code": result.exit_code, "signal": result.signal}
        return diagnose(rules, message=message, **ended, logs=logs, has_gpus=has_gpus, is_exclusive=is_exclusive)

    found = cause_of(result.message)
    if xid and (found is None or found.evidence is not None or not result.message):
        of_xid = cause_of(xid)
        found = of_xid and replace(of_xid, evidence=found.evidence if found is not None else None)
    if found is not None and found.rule == GPU_MEMORY and (use := foreign_use()):
        result = replace(result, message=f"{result.message}; {use}" if result.message else use)
        found = replace(cause_of(use) or found, evidence=found.evidence)
    if found is not None and found.rule == ADDRESS_IN_USE and found.evidence is not None and find_conflict is not None:
        evidence = found.evidence
        line = next(log.line_at(evidence.offset) for log in logs if log.file == evidence.file)
        if advice := find_conflict(line):
            text = f"the application itself uses the address: {advice}"
            result = replace(result, message=f"{result.message}; {text}" if result.message else text)
            found = replace(cause_of(text) or found, evidence=evidence)
    return result if found is None else replace(result, diagnosis=found)
