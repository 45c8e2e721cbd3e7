"""The processes that dlapp starts itself: ``python -I -S dlapp/__main__.py ROLE ...``, ROLE one of am, task, feed,
runner, cleanup, notify, relay, streams, doctor and tool.

Users never type this.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if __name__ == "__main__":
    # Python adds neither the directory of an isolated script nor, with -S, the one that dlapp was installed in.
    sys.path.append(__file__.removesuffix("/dlapp/__main__.py"))

from dlapp.system.processes.fast_exit import run_and_exit
from dlapp.system.processes.late_site import add_late
from dlapp.system.processes.loading import loading
from dlapp.system.processes.proc import set_name

if TYPE_CHECKING:
    from dlapp.values.launch_spec import LaunchSpec


def main(argv: Sequence[str]) -> int:
    """Run the process that the first word names; the others are its own."""
    add_late()
    set_name(f"dlapp-{argv[0] if argv else ''}")  # `killall python3` in a program must meet none of ours
    # Each is imported alone: what a task loads, every container pays for.
    with loading():
        match argv[0] if argv else "":
            case "am":
                from dlapp.am.main import main as run
            case "task":
                run = _task
            case "runner":
                from dlapp.cluster.local.runner.process import main as run
            case "cleanup":
                from dlapp.runtime.docker.cleanup import main as run
            case "feed":
                from dlapp.task.feed.process import main as run
            case "notify":
                from dlapp.notifications.process import main as run
            case "relay":
                from dlapp.net.relay import main as run
            case "streams":
                from dlapp.task.streams.process import main as run
            case "guardian":
                from dlapp.runtime.guardian import main as run
            case "doctor":
                from dlapp.doctor.node import main as run
            case "tool":
                from dlapp.tools.main import run_tool as run
            case other:
                there = "am, task, feed, runner, cleanup, notify, relay, streams, doctor and tool"
                print(f"Error: dlapp {other!r}: what is there are {there}", file=sys.stderr)
                return 2
    return run(argv[1:])


def _task(argv: Sequence[str]) -> int:
    with loading():
        from dlapp.task.main import main as run

    if list(argv) != ["--engine", "yarn"]:
        return run(argv, _check_node)
    from dlapp.cluster.yarn.task_container import make_task_directory
    from dlapp.errors import DlappError

    try:
        task_directory = make_task_directory()
    except (DlappError, OSError) as error:
        print(f"dlapp: {error}", file=sys.stderr)
        return 1
    return run(["--engine", "yarn", "--home", task_directory], _check_node)


def _check_node(texts: Mapping[str, str], launch: LaunchSpec) -> Mapping[str, Any]:
    from dlapp.doctor.node import findings_of_task

    return {"findings": [one._asdict() for one in findings_of_task(texts, launch)]}


if __name__ == "__main__":
    run_and_exit(lambda: main(sys.argv[1:]))
