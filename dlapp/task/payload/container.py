"""Payload of a container: it waits for its gang, runs, and is ended as the ApplicationMaster orders."""

from __future__ import annotations

import os
import select
import time
from functools import partial

from dlapp.messages import PREEMPTED, Fault, PayloadStatus, Phase, Stop, TaskResult
from dlapp.runtime.payload import PayloadError, PayloadExit, Running
from dlapp.system import log_times
from dlapp.system.log_times import LogTimesWriter
from dlapp.task.interrupt import Stopped
from dlapp.task.logs import LogCap
from dlapp.task.payload.end import PayloadEnd
from dlapp.task.protocol.payload_files import PayloadFiles
from dlapp.task.state import TaskState
from dlapp.task.step_errors import StepFailed

_TAKEN_EVERY_S = 0.005


def take_place(task: TaskState) -> None:
    """Lock the ports of this container, and find the address at which its peers reach it."""
    one = task.assignment
    if not one.has_roster:
        return
    from dlapp.task.rendezvous import Rendezvous

    with task.step("the container has no address or ports for its peers", node=True):
        if task.rendezvous is None:
            task.rendezvous = Rendezvous(one, task.launch, task.policy, task.home)
        task.rendezvous.take_place()
    task.link.say(task.link.phase, address=task.rendezvous.address, ports=task.rendezvous.ports)
    if one.mpi is not None and task.mpi is None:
        from dlapp.task.mpi.payload import MpiPayload

        with task.step("mpirun is not possible", node=True):
            task.mpi = MpiPayload(one, one.mpi, task.launch, task.home, task.seen_run, task.note)


def wait_for_gate(task: TaskState) -> bool:
    """Wait for the gate. Return False if another checkpoint is to be restored first."""
    task.say(Phase.WAITING)
    restored = None
    if task.checkpoints is not None and task.assignment.in_gang:
        restored = task.checkpoints.restored or 0
    with task.stopper.interruptible():
        wait_for_go = partial(task.link.wait_for_go, with_roster=task.rendezvous is not None, restored=restored)
        while (generation := wait_for_go(task.generation)) != task.generation:
            if generation is None:
                return False
            task.generation = generation
            if restored is not None:
                return False
            task.say(Phase.WAITING, generation=generation)
    return True


def run_payload(task: TaskState, run: Running) -> tuple[PayloadExit, PayloadEnd, str]:
    """Run the payload to its end: how it ended, what it had been sent, and what was cut from its logs."""
    files = tuple(os.path.join(task.home, name) for name in ("stdout", "stderr"))
    for path in files:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    limit_bytes, most = task.assignment.log_limit_bytes, task.policy.log_limit_bytes
    times = LogTimesWriter(os.path.join(task.home, log_times.NAME))

    def tell(status: PayloadStatus) -> None:
        task.link.say(Phase.RUNNING, gpus=task.gpus, progress=status.progress, payload=status, detail=cap.told)

    with LogCap(files, limit_bytes if most is None else min(limit_bytes, most), times, task.log.warn) as cap:
        with task.step("the payload could not be started", node=True, cut_by=Stop.NOW):
            place = None
            if task.assignment.ready_by_port and task.rendezvous is not None:
                place = task.rendezvous.address, task.rendezvous.ports[0]
            run_path, total = os.path.join(task.home, "run"), task.assignment.total
            payload_files = PayloadFiles(run_path, total, tell, task.note, place)
        with payload_files, PayloadEnd(run, files[1], task.note) as ending:
            try:
                ended = _run_under(task, cap, run, payload_files, ending)
            finally:
                task.meter.end_run()
            payload_files.finish(time.monotonic())
            _take_checkpoint_reports(task, payload_files)
        cap.check()
    if cap.told:
        task.note(cap.told)
    return ended, ending, cap.told


def _start(task: TaskState, run: Running) -> None:
    """Start the payload, with what was not known before the gate opened."""
    if task.changes is not None:
        task.changes.begin()
    # Once it may have begun, a soft stop is for the payload, which has a grace time; it does not cut us off.
    with task.step("the payload could not be started", node=True, cut_by=Stop.NOW):
        late_env = {"DLAPP_GENERATION": str(task.generation)}
        if task.rendezvous is not None:
            task.rendezvous.check_ports()
            late_env |= task.rendezvous.late_environment(task.link.roster)
            if task.mpi is not None and (roster := task.rendezvous.written) is not None:
                late_env |= task.mpi.begin(roster, task.rendezvous.interface, task.kill_grace_s)
        if task.checkpoints is not None:
            late_env |= task.checkpoints.late_environment(task.seen_workspace)
        task.has_begun = True
        run.start(late_env)
        task.meter.begin_run(run.counters)
    task.say(Phase.RUNNING)
    if task.inputs is not None:
        task.inputs.settle_later()


def _run_under(task: TaskState, cap: LogCap, run: Running, payload_files: PayloadFiles, ending: PayloadEnd) -> PayloadExit:
    """Watch the payload until nothing of it is left."""
    _start(task, run)
    look_at, told = 0.0, ""
    while True:
        try:
            if (ended := run.ended()) is not None:
                break
        except PayloadError as error:
            raise StepFailed(error.fault, str(error), service=error.service) from error
        now = time.monotonic()
        is_lost = task.is_home_gone or (task.lease is not None and task.lease.has_failed)
        if task.stopper.wanted is Stop.NOW or is_lost:
            run.kill()
        elif ending.has_begun:
            ending.advance()
        elif task.stopper.wanted is Stop.SOFT or task.is_recalled:
            why = task.stopper.why or "the gang is restarted"
            reason = task.stopper.reason or ("stopped" if task.stopper.why else "gang_restart")
            payload_files.write_stop(reason, why, task.kill_grace_s)
            ending.stop(why, task.kill_grace_s)
        elif task.link.abort:
            ending.abort(task.link.abort)
        _replace_roster(task)
        if task.mpi is not None:
            task.mpi.exchange(task.link, task.generation)
        if now >= look_at:
            look_at = now + cap.check()
            if bool(cap.told) and not told:
                told = cap.told
                task.note(f"{told}; what follows is dropped too")
                task.say(Phase.RUNNING, detail=told, progress=payload_files.report.status.progress)
            payload_files.check(now)
            _take_checkpoint_reports(task, payload_files)
        sample_s = task.meter.sample()
        if _poll(task, run, cap, min(sample_s, look_at - time.monotonic(), ending.wait_s())):
            look_at = 0.0
    return ended


def _take_checkpoint_reports(task: TaskState, payload_files: PayloadFiles) -> None:
    if task.checkpoints is not None:
        report = payload_files.report
        task.checkpoints.take_reports(report.checkpoints, report.checkpoint_step)


def _replace_roster(task: TaskState) -> None:
    """Give the payload the latest roster. It may have made that impossible, which is its own loss."""
    one, latest = task.rendezvous, task.link.roster
    if one is None or latest is None or latest is one.written or latest is task.refused:
        return
    try:
        one.write(latest)
    except OSError as error:
        task.refused = latest
        task.log.warn(f"the payload does not get the roster of version {latest.version}: {error}")


def _poll(task: TaskState, run: Running, cap: LogCap, timeout_s: float) -> bool:
    """Wait for news; whether the payload printed after a silence."""
    poll = select.poll()
    poll.register(task.stopper.wake_fd, select.POLLIN)
    watched = run.watched_fds()
    for fd, events in watched:
        poll.register(fd, events)
    if not watched:
        timeout_s = min(timeout_s, _TAKEN_EVERY_S)  # its start is still to be seen
    if task.mpi is not None:
        poll.register(task.mpi.fileno(), select.POLLIN)
    if cap.wake_fd is not None:
        poll.register(cap.wake_fd, select.POLLIN)
    ready = poll.poll(max(1, int(timeout_s * 1000)))
    task.stopper.drain()
    return any(fd == cap.wake_fd for fd, _ in ready)


def result_of(task: TaskState, ended: PayloadExit, ending: PayloadEnd, cut: str, device: str) -> TaskResult:
    """Return the result of a payload."""
    fault, message, soft = ended.fault, ended.problem, ending.is_soft
    is_preempted = soft and task.stopper.wanted is Stop.SOFT and task.stopper.reason == PREEMPTED
    if is_preempted:
        fault, message = Fault.NODE, task.stopper.why
    elif task.stopper.wanted is Stop.NOW or soft:
        fault, message = Fault.STOPPED, task.stopper.why
    elif device:
        fault, message = Fault.NODE, device
    elif ending.hang:
        fault = Fault.USER
        message = f"{ending.hang}; stderr has the stacks of its Python threads"
    elif fault is Fault.USER and ended.exit_code == 0 and not message:
        fault = Fault.NONE
    message = "; ".join(part for part in (message, cut) if part)
    return TaskResult(
        fault=fault,
        exit_code=ended.exit_code,
        signal=ended.signal,
        message=message,
        service=ended.service,
        lost=is_preempted,
    )


def store_last_checkpoint(task: TaskState, ended: PayloadExit, soft: bool) -> None:
    """Store what a payload left that has ended, if there is somebody to use it."""
    if task.checkpoints is None or task.stopper.wanted is Stop.NOW or task.is_home_gone or task.link.why_over:
        return
    if not task.assignment.stores_checkpoints:
        return
    task.say(Phase.STORING, detail="the checkpoint")
    try:
        with task.step("the checkpoint could not be stored", cut_by=Stop.NOW):
            task.checkpoints.store_last(
                is_orderly=ended.signal is None and (soft or ended.exit_code == 0),
                patience_s=0.0 if task.is_recalled else task.assignment.output_patience_s,
                say=task.say,
                give_back=task.give_back_all,
                may_wait=lambda: not task.link.is_alone,
            )
    except Stopped:
        return  # the result says it, too
