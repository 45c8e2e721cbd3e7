"""The process of one task: ``python -I -S dlapp/__main__.py task --engine local --home DIR --keep-fds A,B``.

With ``--starting-fd N`` it closes that descriptor when it has started: see `TaskState.end_start`.

It exits with 0 if the ApplicationMaster has received its result, whatever that is, and with 1 otherwise.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlapp.system.processes.loading import loading

if TYPE_CHECKING:
    from dlapp.task.state import CheckNode


def main(argv: Sequence[str], check_node: CheckNode | None = None) -> int:
    """Run one container's task to its end.

    Args:
        argv: command-line options.
        check_node: see `dlapp.task.state.TaskState`.
    """
    options = dict(zip(argv[::2], argv[1::2], strict=False))
    try:
        container_dir = options["--home"]
        keep_fds = tuple(int(fd) for fd in options.get("--keep-fds", "").split(",") if fd)
        starting_fds = tuple(int(fd) for fd in options.get("--starting-fd", "").split(",") if fd)
    except (KeyError, ValueError):
        print("Error: dlapp task: needs --home DIR, and perhaps --keep-fds N,N", file=sys.stderr)
        return 2
    _inherit(options)
    # The payload inherits only descriptors that are passed on by number.
    for fd in (*keep_fds, *starting_fds):
        os.set_inheritable(fd, False)
    # Forked before anything else is loaded: the guardian keeps the memory size that this process has now.
    with loading():
        from dlapp.runtime.guardian import fork_guardian
    outer, channel = fork_guardian(closed=starting_fds)
    with loading():
        from dlapp.task.state import TaskState
        from dlapp.task.steps import run_task

    return run_task(TaskState(container_dir, keep_fds, starting_fds, outer, channel, check_node))


def _inherit(options: dict[str, str]) -> None:
    """Apply the submitter's settings for the payload: umask, limits, priority, CPU set."""
    if (mask := options.get("--umask")) is not None:
        os.umask(int(mask, 8))
    if (settings := options.get("--caller")) is not None:
        import json

        from dlapp.system.processes.caller import apply_settings

        apply_settings(json.loads(settings))
