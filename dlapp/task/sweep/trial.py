"""One trial in a container: its copy of the workspace, its program, its output.

It runs in its own thread. `TrialSetup` has what it needs of the task. Files of a trial are in ``trials/<number>_<try>``
of the container's directory and are removed at its end. Its logs stay, beside those of the container:
``trial_<number>_<try>.stdout`` and ``.stderr``.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

from dlapp.runtime.payload import Running
from dlapp.system.clock import backoff_s
from dlapp.system.files import remove_tree
from dlapp.system.processes.resource_counters import NOTHING_KNOWN, ResourceCounters
from dlapp.task.data.outputs import Outputs
from dlapp.task.data.workspace_changes import WorkspaceChanges
from dlapp.task.failure import with_cause
from dlapp.task.interrupt import UninterruptedSteps
from dlapp.task.link.am_link import AmLink
from dlapp.task.payload.runner import EndOrder, PayloadRunner
from dlapp.task.protocol.report_file import ReportFile
from dlapp.task.step_errors import StepFailed, is_full_disk, step
from dlapp.task.sweep.curve import MetricCurve
from dlapp.task.sweep.workspace import WorkspaceTemplate
from dlapp.value import replace
from dlapp.values.ids import trial_part
from dlapp.values.launch_spec import LaunchSpec
from dlapp.values.messages import (
    Assignment,
    Fault,
    PayloadStatus,
    Phase,
    TaskResult,
    TrialOrder,
    TrialReport,
    TrialWork,
)

UNINTERRUPTED = partial(step, UninterruptedSteps())
TIME_OVER = "trial_time"
"""Reason of a stop (docs/payload.md, DLAPP_STOP) after the time limit of a trial; `STOPPED`: it is stopped early."""
STOPPED = "trial_stopped"
_ROOM_AGAIN_S, _ROOM_WITHIN_S = (1.0, 30.0), 86_400.0
"""Pauses between two tries to copy the workspace to a full disk, and their total time limit, within which an operator
should notice."""


class TrialSetup(NamedTuple):
    """Common part of the trials of a container.

    Args:
        logs: the directory of its logs.
        make_run: prepares the payload of a trial, from its order, its slot and its directory.
        kill_grace_s: seconds between SIGTERM and SIGKILL.
        on_change: called when the state of a trial changes; thread-safe.
        xid_message: returns the line on the Xid error that ended the program of a slot; empty: none did. Thread-safe.
        foreign_use: as in `dlapp.task.failure.with_cause`.
        is_exclusive: whether a GPU of the container allows one process only.
    """

    assignment: Assignment
    work: TrialWork
    launch: LaunchSpec
    container_dir: str
    logs: str
    template: WorkspaceTemplate
    link: AmLink
    make_run: Callable[[TrialOrder, int, str], Running]
    kill_grace_s: Callable[[], float]
    log_limit_bytes: int
    note: Callable[[str], None]
    on_change: Callable[[], None]
    foreign_use: Callable[[], str]
    is_exclusive: bool
    xid_message: Callable[[int], str] = lambda slot: ""


class TrialRun:
    """One trial that runs in a slot, until `report` has its result.

    Args:
        slot: number of the slot, from 0.
    """

    def __init__(self, order: TrialOrder, slot: int, setup: TrialSetup) -> None:
        self.order, self.slot, self._setup = order, slot, setup
        self.name = f"{order.number}_{order.try_number}"
        self.trial_dir = os.path.join(setup.container_dir, "trials", self.name)
        self.counters: ResourceCounters = NOTHING_KNOWN
        self._run: Running | None = None
        self._curve = MetricCurve(setup.work.metric, setup.work.milestones)
        self._began_s: float | None = None
        self._ran_s = 0.0
        self._timed_out = self._is_killed = False
        self._why = self._reason = ""
        self._result: TaskResult | None = None
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._thread = threading.Thread(target=self._work, name=f"task-trial-{self.name}", daemon=True)
        self._thread.start()

    # ---- for the main thread ----

    @property
    def is_storing(self) -> bool:
        """Return True if its program has ended and its output is being stored."""
        return self._result is None and self._ran_s > 0

    @property
    def has_ended(self) -> bool:
        """Return True if only its report remains, and its directory for a moment."""
        return self._result is not None

    @property
    def is_removed(self) -> bool:
        """Return True if its directory is also removed."""
        return not self._thread.is_alive()

    def stop(self, why: str, reason: str) -> None:
        """End its program softly, and store its output. The first reason counts."""
        if not self._why:
            self._reason, self._why = reason, why
            os.eventfd_write(self._wake, 1)

    def kill(self) -> None:
        """Kill its program, and store nothing."""
        self._is_killed = True
        os.eventfd_write(self._wake, 1)

    def program(self) -> Running | None:
        """Return its program; None if that does not run. Thread-safe."""
        run = self._run
        return run if run is not None and run.place() is not None else None

    def read_counters(self) -> ResourceCounters:
        """Return the resources that its program has used so far."""
        run = self._run
        if run is not None and self._result is None:
            self.counters = self.counters.updated(run.counters())
        return self.counters

    def report(self) -> TrialReport:
        """Return its state."""
        curve, result = self._curve, self._result
        ran_s = self._ran_s
        if result is None and self._began_s is not None and not ran_s:
            ran_s = time.monotonic() - self._began_s
        return TrialReport(
            number=self.order.number,
            try_number=self.order.try_number,
            points=tuple((float(at), value) for at, value in tuple(curve.points)),
            reports=curve.reports,
            problem=curve.problem,
            ran_s=round(ran_s, 3),
            timed_out=self._timed_out,
            result=result,
        )

    def close(self) -> None:
        """Release it after its end."""
        self._thread.join()
        os.close(self._wake)

    # ---- its thread ----

    def _work(self) -> None:
        try:
            result = self._all_steps()
        except StepFailed as error:
            result = TaskResult(fault=error.fault, message=str(error), service=error.service)
        except Exception as error:
            import traceback

            self._note(traceback.format_exc())
            result = TaskResult(fault=Fault.NODE, message=f"the trial failed: {error!r} (see dlapp.log)")
        if self._is_killed:
            result = TaskResult(fault=Fault.STOPPED, message="the trial was killed")
        elif result.fault not in (Fault.NONE, Fault.STOPPED):
            has_gpus = self._setup.assignment.resources.gcores > 0
            xid = self._setup.xid_message(self.slot) if has_gpus else ""
            result = with_cause(
                result,
                self.trial_dir,
                self._setup.note,
                has_gpus=has_gpus,
                is_exclusive=self._setup.is_exclusive,
                xid=xid,
                foreign_use=self._setup.foreign_use,
            )
        self._result = result
        self._setup.on_change()
        # The next trial in this slot has another directory, and does not wait for the removal.
        try:
            remove_tree(self.trial_dir)
        except Exception as error:
            self._note(f"its directory could not be removed: {error}")

    def _all_steps(self) -> TaskResult:
        one = self._setup
        workspace = os.path.join(self.trial_dir, "workspace")
        changes = self._prepared(workspace)
        with UNINTERRUPTED("the trial could not be started", node=True):
            run = one.make_run(self.order, self.slot, self.trial_dir)
        try:
            if changes is not None:
                changes.begin()
            result = self._run_payload(run)
        finally:
            run.close()
        if self._is_killed or changes is None:
            return result
        return self._stored(result, changes)

    def _prepared(self, workspace: str) -> WorkspaceChanges | None:
        """Create the directory of the trial. Retry while the disk is full: waiting loses nothing.

        Return the state of the workspace before the program starts; None if the trial has no outputs.
        """
        one, until = self._setup, time.monotonic() + _ROOM_WITHIN_S
        for pause_s in backoff_s(*_ROOM_AGAIN_S):
            try:
                with UNINTERRUPTED("the trial could not be prepared", node=True):
                    os.makedirs(os.path.dirname(self.trial_dir), 0o700, exist_ok=True)
                    remove_tree(self.trial_dir)
                    os.mkdir(self.trial_dir, 0o700)
                    for name in ("tmp", "run", "home"):
                        os.mkdir(os.path.join(self.trial_dir, name), 0o700)
                    changes = None
                    if one.assignment.outputs:  # waits for two clock ticks of the file system
                        changes = WorkspaceChanges(workspace, os.path.join(self.trial_dir, "tmp"))
                    one.template.copy_to(workspace, lambda _: None)
                    for name in ("stdout", "stderr"):
                        log = os.path.join(one.logs, f"trial_{self.name}.{name}")
                        remove_tree(log)  # a program of an earlier trial may have created a FIFO there, or a link
                        os.close(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644))
                        os.symlink(log, os.path.join(self.trial_dir, name))
                return changes
            except StepFailed as error:
                if not is_full_disk(error.__cause__) or time.monotonic() > until or self._is_killed or self._why:
                    raise
                self._note(f"{error}; retrying")
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.poll(pause_s * 1000)
        raise AssertionError

    def _run_payload(self, run: Running) -> TaskResult:
        one = self._setup
        if self._is_killed or self._why:
            return TaskResult(fault=Fault.STOPPED, message=self._why)
        runner = PayloadRunner(
            run,
            self.trial_dir,
            self,
            log_limit_bytes=one.log_limit_bytes,
            step=partial(UNINTERRUPTED, node=True),
            note=self._note,
            warn=self._note,
            watch=self._curve,
        )
        try:
            outcome = runner.run_to_end()
        finally:
            if self._began_s is not None:
                self._ran_s = time.monotonic() - self._began_s
        self.counters = self.counters.updated(run.counters())
        return outcome.result((Fault.STOPPED, self._why) if self._is_killed or outcome.is_soft else None)

    # ---- owner of its program (`PayloadOwner`), in its thread ----

    def start(self, run: Running) -> None:
        self._began_s = time.monotonic()
        with UNINTERRUPTED("the trial could not be started", node=True):
            run.start()
        self._run = run

    def is_killed(self) -> bool:
        return self._is_killed

    def end_order(self) -> EndOrder | None:
        if not self._why and self._left_s() <= 0:
            self._timed_out, self._reason = True, TIME_OVER
            self._why = f"the time of a trial is over: {self._setup.work.trial_time_s:g} s (trial_time)"
        return EndOrder(self._why, self._reason, self._setup.kill_grace_s()) if self._why else None

    def hang_reason(self) -> str:
        """Return that it does not hang: an idle trial is ended by its time limit."""
        return ""

    def run_periodic(self) -> float:
        """Return the time until its time limit [s]."""
        return math.inf if self._why or self._is_killed else self._left_s()

    def handle_report(self, report: ReportFile) -> None:
        """Do nothing: the curve keeps what counts of a report."""

    def report_status(self, status: PayloadStatus, cut: str) -> None:
        self._setup.on_change()

    def wake_fds(self) -> Sequence[int]:
        return (self._wake,)

    def drain(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _left_s(self) -> float:
        limit_s = self._setup.work.trial_time_s
        if limit_s is None or self._began_s is None:
            return math.inf
        return self._began_s + limit_s - time.monotonic()

    # ---- after it ----

    def _stored(self, result: TaskResult, changes: WorkspaceChanges) -> TaskResult:
        one = self._setup
        part = trial_part(self.order.number, self.order.try_number)
        assignment = replace(
            one.assignment, parts=tuple(f"{each.rpartition('/')[0]}/{part}" for each in one.assignment.parts)
        )
        unstored = one.launch.unstored
        launch = replace(one.launch, unstored=os.path.join(unstored, part)) if unstored else one.launch
        outputs = Outputs(
            assignment,
            launch,
            self.trial_dir,
            one.link,
            step=UNINTERRUPTED,
            report_phase=self._report_phase,
            note=self._note,
            release=lambda: None,  # the GPUs are for the next trial
            workspace_end="it is removed with its trial",
        )
        mounted = [os.path.relpath(path, os.path.join(self.trial_dir, "workspace")) for _, path in self._mounts]
        result = outputs.store(result, self._ran_s, changes, mounted)
        if outputs.unstored:
            result = replace(result, unstored=tuple(outputs.unstored))
        return replace(result, not_stored=outputs.not_stored(result, changes, of=f"trial {self.order.number}: "))

    @property
    def _mounts(self) -> tuple[tuple[str, str], ...]:
        return self._setup.template.mounts_of(os.path.join(self.trial_dir, "workspace"))

    def _report_phase(self, phase: Phase, *, detail: str = "") -> None:
        if detail:
            self._note(f"{phase.value} {detail}")

    def _note(self, text: str) -> None:
        self._setup.note(f"trial {self.name}: {text}")
