"""Container whose task runs trials of a sweep."""

from __future__ import annotations

import os
from contextlib import nullcontext
from functools import partial

from dlapp.runtime.gpu.environment import gpu_variables
from dlapp.runtime.payload import Running
from dlapp.runtime.process import PlainRun
from dlapp.sweep.trial import TrialSpec
from dlapp.task.environment import THREADS, threads
from dlapp.task.payload.container import wait_for_gate
from dlapp.task.payload.factory import docker_payload, make_docker_run, plain_payload
from dlapp.task.state import DIRECTORY_REMOVED, TaskState
from dlapp.task.sweep.trial import TrialSetup
from dlapp.task.sweep.worker import TrialWorker, WorkerEnd
from dlapp.task.sweep.workspace import WorkspaceTemplate, shared_paths
from dlapp.value import replace
from dlapp.values.ids import trial_part
from dlapp.values.messages import Phase, TaskResult, TrialOrder, TrialWork


def run_trials(task: TaskState, work: TrialWork) -> TaskResult:
    """Run the trials that orders name, until there are no more."""
    one = task.assignment
    with task.step("the workspace cannot be copied", node=True):
        for name in ("stdout", "stderr"):  # of the container, in which only trials run
            os.close(os.open(os.path.join(task.container_dir, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        own = [each.output_path for each in one.outputs] + ([one.script] if one.script else [])
        shared = shared_paths([each.input_path for each in one.inputs if not each.as_list], own)
        mounts = one.docker_image is not None
        template = WorkspaceTemplate(os.path.join(task.container_dir, "workspace"), shared, mounts=mounts)
    setup = TrialSetup(
        assignment=one,
        work=work,
        launch=task.launch,
        container_dir=task.container_dir,
        logs=os.path.dirname(os.path.realpath(os.path.join(task.container_dir, "stdout"))),
        template=template,
        link=task.link,
        make_run=partial(_made_trial_ready, task, work, template),
        kill_grace_s=lambda: task.kill_grace_s,
        log_limit_bytes=task.log_limit_bytes,
        note=task.log.write,
        on_change=task.stopper.wake,
        xid_message=partial(_xid_message, task, work),
        foreign_use=(lambda: "") if task.lease is None else task.lease.foreign_use,
        is_exclusive=task.lease is not None and task.lease.is_exclusive,
    )
    worker = TrialWorker(setup, task.stopper, end_reason=partial(_no_trial_reason, task), sample=task.meter.sample)
    task.trials = worker
    wait_for_gate(task)
    with task.lease.watched(task.stopper.wake, task.payload_places) if task.lease else nullcontext():
        task.report_phase(Phase.RUNNING)
        if task.inputs is not None:
            task.inputs.settle_later()
        task.meter.begin_run(worker.counters)
        try:
            return worker.run()
        finally:
            task.meter.end_run()
            task.meter.output_bytes = worker.stored_bytes()


def _no_trial_reason(task: TaskState) -> WorkerEnd | None:
    if task.is_directory_removed:
        return WorkerEnd(DIRECTORY_REMOVED, is_lost=True)
    if task.lease is not None and task.lease.has_failed:
        return WorkerEnd(task.lease.failure_message() or "a GPU failed", is_soft=True)
    if task.assignment.docker_image is None and any(one.gone for one in task.guardians):
        return WorkerEnd("a guardian was killed, and the trials with it")
    return None


def _share(count: int, slots: int, slot: int) -> slice:
    """Return which of a container's GPUs are a slot's: its share, or all if they cannot be divided."""
    share = count // slots
    return slice(0, count) if count % slots else slice(slot * share, (slot + 1) * share)


def _xid_message(task: TaskState, work: TrialWork, slot: int) -> str:
    if task.lease is None:
        return ""
    devices = task.lease.devices
    return task.lease.xid_message(devices[_share(len(devices), work.slots, slot)])


def _made_trial_ready(
    task: TaskState, work: TrialWork, template: WorkspaceTemplate, order: TrialOrder, slot: int, trial_dir: str
) -> Running:
    """Prepare the payload of a trial; called by the thread of its slot, which has its share of the GPUs, or all if they
    cannot be divided.
    """
    trial = TrialSpec(order.number, dict(order.parameters))
    one, is_plain = task.assignment, task.assignment.docker_image is None
    payload = plain_payload(task, trial_dir) if is_plain else docker_payload(task)
    devices = payload.gpus[_share(len(payload.gpus), work.slots, slot)]
    env = {
        **payload.env,
        **trial.environment(),
        **gpu_variables(devices, names=one.cuda_visible_devices, is_plain=is_plain),
    }
    amounts, defaults = one.resources, {**payload.defaults, THREADS: threads(one.resources.vcores, work.slots)}
    payload = replace(
        payload,
        directory=trial_dir,
        task_directory=task.container_dir,
        name=trial_part(order.number, order.try_number),
        env=env,
        defaults=defaults,
        args=trial.arguments(payload.args),
        command=trial.arguments(payload.command),
        gpus=devices,
        resources=replace(
            amounts,
            memory_mib=max(1, amounts.memory_mib // work.slots),
            vcores=max(1, amounts.vcores // work.slots),
        ),
        mounts=template.mounts_of(os.path.join(trial_dir, "workspace")),
    )
    if is_plain:
        return PlainRun(payload, task.guardians[slot], task.log.write)
    return make_docker_run(task, payload)
