"""Payload of a container: waits for its gang, runs, and ends on orders of the ApplicationMaster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from dlapp.errors import DlappError
from dlapp.runtime.payload import NO_VARIABLES, Running
from dlapp.system.logs import log_times
from dlapp.system.logs.log_times import LogTimesWriter
from dlapp.system.network.readiness import ReadinessProbe
from dlapp.task.interrupt import Stopped
from dlapp.task.payload.runner import GPU_FAILED, EndOrder, PayloadOutcome, PayloadRunner
from dlapp.task.protocol.report_file import ReportFile
from dlapp.task.protocol.use_watch import UseWatch
from dlapp.task.state import TaskState
from dlapp.value import replace
from dlapp.values.messages import TAKEN_AWAY, BoardStatus, Fault, PayloadStatus, Phase, Stop, TaskResult
from dlapp.values.spec import Framework

if TYPE_CHECKING:
    from dlapp.values.roster import Roster


def reserve_ports(task: TaskState) -> None:
    """Lock the ports of this container, and find the address that peers connect to."""
    one = task.assignment
    if not one.has_roster:
        return
    from dlapp.task.rendezvous import Rendezvous

    with task.step("the container has no address or ports for its peers", node=True):
        if task.rendezvous is None:
            task.rendezvous = Rendezvous(one, task.launch, task.policy, task.container_dir)
        task.rendezvous.reserve_ports()
    task.link.report_phase(task.link.phase, address=task.rendezvous.address, ports=task.rendezvous.ports)
    if one.mpi is not None and task.mpi is None:
        from dlapp.task.mpi.payload import MpiPayload

        with task.step("mpirun is not possible", node=True):
            task.mpi = MpiPayload(one, one.mpi, task.launch, task.container_dir, task.payload_run_dir, task.log.write)


def wait_for_gate(task: TaskState) -> bool:
    """Wait for the gate. Return False if another checkpoint must be restored first."""
    task.report_phase(Phase.WAITING)
    restored = None
    if task.checkpoints is not None and task.assignment.in_gang:
        restored = task.checkpoints.restored or 0
    with task.stopper.interruptible():
        wait_for_start = partial(task.link.wait_for_start, with_roster=task.rendezvous is not None, restored=restored)
        while (generation := wait_for_start(task.generation)) != task.generation:
            if generation is None:
                return False
            task.generation = generation
            if restored is not None:
                return False
            task.report_phase(Phase.WAITING, generation=generation)
    return True


class ContainerPayload:
    """The `PayloadOwner` of a container; the ApplicationMaster or a failed GPU ends its payload."""

    def __init__(self, task: TaskState) -> None:
        self._task = task
        self._refused: Roster | None = None  # the payload prevented the write
        self._run: Running | None = None

    def start(self, run: Running) -> None:
        """Start the payload, with the values that were not known before the gate opened."""
        task, self._run = self._task, run
        if task.changes is not None:
            task.changes.begin()
        # From here on the payload may have started, so a soft stop goes to it, with its grace time, and does not
        # interrupt us.
        with task.step("the payload could not be started", node=True, cut_by=Stop.NOW):
            start_env, peer_values = {"DLAPP_GENERATION": str(task.generation)}, NO_VARIABLES
            if task.rendezvous is not None:
                task.rendezvous.check_ports()
                start_env |= task.rendezvous.start_environment(task.link.roster, task.payload_run_dir)
                peer_values = task.rendezvous.peer_values((*task.assignment.command, *task.assignment.args))
                if task.mpi is not None and (roster := task.rendezvous.written) is not None:
                    start_env |= task.mpi.begin(roster, task.rendezvous.interface, task.kill_grace_s)
            if task.checkpoints is not None:
                start_env |= task.checkpoints.start_environment(task.payload_workspace)
            if any(one.feed is not None for one in task.assignment.inputs):
                from dlapp.task.feed.feeds import TaskFeeds

                task.feeds = TaskFeeds(task.assignment, task.launch, task.container_dir, task.log.write)
                start_env |= task.feeds.environment(task.payload_run_dir)
            task.has_begun = True
            run.start(start_env, peer_values)
            task.running = run
            task.meter.begin_run(run.counters, *(() if task.feeds is None else (task.feeds.wait_share,)))
        task.report_phase(Phase.RUNNING)
        if task.inputs is not None:
            task.inputs.settle_later()

    def is_killed(self) -> bool:
        return self._task.stopper.wanted is Stop.NOW or self._task.is_directory_removed

    def end_order(self) -> EndOrder | None:
        task, stopper = self._task, self._task.stopper
        is_stopped = stopper.wanted is Stop.SOFT or task.is_gang_restarted
        is_gpu_lost = not is_stopped and task.lease is not None and task.lease.has_failed
        if not is_stopped and not is_gpu_lost:
            failure = task.feeds.fifo_failure if task.feeds is not None else None
            return None if failure is None else EndOrder(str(failure), "failed", task.kill_grace_s)
        if task.checkpoints is not None:
            task.checkpoints.prepare_end(self._run.pids() if self._run is not None else ())
        if is_gpu_lost and task.lease is not None:
            return EndOrder(task.lease.failure_message() or "a GPU failed", GPU_FAILED, task.kill_grace_s)
        reason = stopper.reason or ("stopped" if stopper.why else "gang_restart")
        return EndOrder(stopper.why or "the gang is restarted", reason, task.kill_grace_s)

    def hang_reason(self) -> str:
        return self._task.link.abort

    def run_periodic(self) -> float:
        """Pass on the latest roster and mpirun's orders; measure usage."""
        task = self._task
        self._replace_roster()
        if task.mpi is not None:
            task.mpi.exchange(task.link, task.generation)
        if task.feeds is not None:
            task.feeds.check()
        return task.meter.sample()

    def handle_report(self, report: ReportFile) -> None:
        if self._task.checkpoints is not None:
            self._task.checkpoints.handle_reports(report.checkpoints, report.checkpoint_step)

    def report_status(self, status: PayloadStatus, cut: str) -> None:
        task = self._task
        task.link.report_phase(Phase.RUNNING, gpus=task.gpus, progress=status.progress, payload=status, detail=cut)

    def wake_fds(self) -> Sequence[int]:
        task = self._task
        mpi = () if task.mpi is None else (task.mpi.fileno(),)
        return (task.stopper.wake_fd, *mpi, *(task.feeds.wake_fds() if task.feeds is not None else ()))

    def drain(self) -> None:
        self._task.stopper.drain()

    def _replace_roster(self) -> None:
        """Write the latest roster for the payload. Ignore a failure, which only the payload can cause and which harms
        only itself.
        """
        one, latest = self._task.rendezvous, self._task.link.roster
        if one is None or latest is None or latest is one.written or latest is self._refused:
            return
        try:
            one.write(latest)
        except OSError as error:
            self._refused = latest
            self._task.log.warn(f"the payload does not get the roster of version {latest.version}: {error}")


def run_payload(task: TaskState, run: Running) -> PayloadOutcome:
    """Run the payload to its end."""
    for name in ("stdout", "stderr"):
        os.close(os.open(os.path.join(task.container_dir, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
    probe, use = _observers(task, run)
    runner = PayloadRunner(
        run,
        task.container_dir,
        ContainerPayload(task),
        log_limit_bytes=task.log_limit_bytes,
        step=partial(task.step, node=True, cut_by=Stop.NOW),
        note=task.log.write,
        warn=task.log.warn,
        times=LogTimesWriter(os.path.join(task.container_dir, log_times.NAME)),
        total=task.assignment.total,
        probe=probe,
        use=use,
    )
    try:
        with _board(task):
            return runner.run_to_end()
    finally:
        if task.feeds is not None:
            task.feeds.finish()
            task.meter.input_bytes += task.feeds.fetched_bytes
        task.meter.end_run()


def _observers(task: TaskState, run: Running) -> tuple[ReadinessProbe | None, UseWatch | None]:
    """Return the monitors of the payload's ports."""
    one, place = task.assignment, task.rendezvous
    if place is None or not place.ports:
        return None, None
    probe = ReadinessProbe((place.address, place.ports[0]), one.ready_path) if one.ready_by_port else None
    return probe, UseWatch(place.ports, run.pids) if one.watches_use else None


def _board(task: TaskState) -> AbstractContextManager[None]:
    """Return the runner of TensorBoard beside the payload; a no-op if it is not wanted or not possible."""
    if not task.assignment.board:
        return nullcontext()
    from dlapp.task.payload.tensorboard import board_problem, open_board

    try:
        task.board = task.board or open_board(task)
    except (DlappError, OSError) as error:
        task.log.warn(f"there is no TensorBoard: {error}")
        task.link.report_fields(board=BoardStatus(problem=board_problem(f"TensorBoard cannot run: {error}")))
        return nullcontext()
    return task.board.serving()


def result_of(task: TaskState, outcome: PayloadOutcome, device: str) -> TaskResult:
    """Return the result of a payload.

    Args:
        device: the GPU failure; empty if there was none.
    """
    stopper, is_soft = task.stopper, outcome.is_soft
    if is_soft and stopper.wanted is Stop.SOFT and stopper.reason in TAKEN_AWAY:
        return outcome.result((Fault.NODE, stopper.why), lost=True)
    if stopper.wanted is Stop.NO and task.feeds is not None and not task.is_gang_restarted and not device:
        failure = task.feeds.failure if is_soft or outcome.ended.exit_code != 0 else task.feeds.fifo_failure
        if failure is not None:
            return replace(outcome.result((failure.fault, str(failure))), service=failure.service)
    if device and stopper.wanted is Stop.NO:
        return outcome.result((Fault.NODE, device))
    if stopper.wanted is Stop.NOW or is_soft:
        return outcome.result((Fault.STOPPED, stopper.why))
    return outcome.result()


def store_last_checkpoint(task: TaskState, outcome: PayloadOutcome) -> None:
    """Store the checkpoints of an ended payload, if they can be used later."""
    if task.checkpoints is None or task.stopper.wanted is Stop.NOW or task.is_directory_removed or task.link.end_reason:
        return
    if not task.assignment.stores_checkpoints:
        return
    task.report_phase(Phase.STORING, detail="the checkpoint")
    ended = outcome.ended
    # These launchers end by themselves when a process of theirs has died of SIGTERM.
    has_launcher = task.assignment.framework in (Framework.TORCHRUN, Framework.MPI)
    try:
        with task.step("the checkpoint could not be stored", cut_by=Stop.NOW):
            task.checkpoints.store_last(
                # A shell reports the signal of which its program died as 128 + N.
                is_orderly=ended.exit_code == 0
                or (outcome.is_soft and not has_launcher and 0 < (ended.exit_code or 0) < 128),
                patience_s=0.0 if task.is_gang_restarted else task.assignment.output_patience_s,
                report_phase=task.report_phase,
                release=task.release_devices,
                may_wait=lambda: not task.link.is_masterless,
            )
    except Stopped:
        return  # the result contains it, too
