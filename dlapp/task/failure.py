"""Cause of a container's failure, determined after its program has ended."""

from __future__ import annotations

import os
from collections.abc import Callable

from dlapp.errors import ConfigError
from dlapp.system.disk_space import is_noexec
from dlapp.value import replace
from dlapp.values.messages import Fault, TaskResult


def with_cause(
    result: TaskResult, container_dir: str, warn: Callable[[str], None], *, has_gpus: bool = False
) -> TaskResult:
    """Return a result with the cause of the failure, if it failed and a rule matches.

    Args:
        result: the payload's.
        container_dir: directory with its logs.
        warn: called with what could not be read.
        has_gpus: whether the container holds GPUs.
    """
    if result.fault in (Fault.NONE, Fault.STOPPED) or result.lost:
        return result
    from dlapp.diagnosis.rules import load_rules
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
    found = diagnose(
        rules,
        message=result.message,
        exit_code=result.exit_code,
        signal=result.signal,
        logs=logs,
        has_gpus=has_gpus,
    )
    return result if found is None else replace(result, diagnosis=found)
