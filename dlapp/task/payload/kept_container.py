"""The container of a failed payload, kept for inspection (`dlapp.am.decisions.failures`).

Its output is stored, and then its GPUs are released, before. The directories are kept, and an environment for
commands: a guardian without the payload's resources, or in Docker another container of the same image with the same
directories.
"""

from __future__ import annotations

import select
import time
from typing import TYPE_CHECKING

from dlapp.runtime.process import Guardian, KeptRun, start_guardian
from dlapp.system.clock import date_and_time
from dlapp.task.payload.factory import docker_payload, make_docker_run, plain_payload
from dlapp.task.state import TaskState
from dlapp.value import replace
from dlapp.values.messages import Phase, Stop, TaskResult

if TYPE_CHECKING:
    from dlapp.runtime.docker.payload import DockerRun

_LOOK_EVERY_S = 1.0
_SLEEPS = "sh", "-c", "while :; do sleep 3600; done"


def release_gpus(task: TaskState) -> None:
    """Release the GPUs; commands that run here from now on have none."""
    task.report_phase(Phase.STARTING, detail="keeping the failed container")  # before a driver may hang
    task.release_devices()
    task.forget_lease()
    task.report_phase(Phase.STARTING, detail="keeping the failed container")


def keep_container(task: TaskState, keep_s: float, failure: TaskResult) -> None:
    """Keep the container, whose GPUs are released, for a time, or until this task must end.

    Args:
        failure: the payload's, reported with it.
    """
    deadline = time.monotonic() + keep_s
    until = date_and_time(time.time() + keep_s)
    with task.step("the failed container cannot be inspected", node=True):
        run = _place(task)
    try:
        task.running = run
        task.report_phase(Phase.RUNNING, detail=f"failed, kept until {until}", failure=failure)
        poll = select.poll()
        poll.register(task.stopper.wake_fd, select.POLLIN)
        while (left_s := deadline - time.monotonic()) > 0 and not _is_over(task):
            poll.poll(max(1, int(min(left_s, _LOOK_EVERY_S) * 1000)))
            task.stopper.drain()
    finally:
        task.running = None
        run.close()


def _is_over(task: TaskState) -> bool:
    return (
        task.stopper.wanted is not Stop.NO
        or task.is_directory_removed
        or bool(task.link.end_reason)
        or task.link.is_masterless
    )


def _place(task: TaskState) -> KeptRun | DockerRun:
    if task.assignment.docker_image is None:
        task.guardian = Guardian(*start_guardian())
        task.guardian.spared = task.nvml_pids
        return KeptRun(replace(plain_payload(task, task.container_dir), keep_fds=()), task.guardian, task.log.write)
    payload = replace(docker_payload(task), name="kept", script="", command=_SLEEPS, args=())
    run = make_docker_run(task, payload)
    run.start()
    return run
