"""Runner of one payload, of a container or of a trial: monitors it until all of its processes have ended.

The owner of the payload (`PayloadOwner`) starts it, decides when it ends and receives its reports. Everything else is
the same for every payload: logs are limited, its files are read, signals are sent in order, and its end is classified.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from dlapp.runtime.payload import PayloadError, PayloadExit, Running
from dlapp.system.logs.log_times import LogTimesWriter
from dlapp.system.network.readiness import ReadinessProbe
from dlapp.task.logs import LogCap
from dlapp.task.payload.end import PayloadEnd
from dlapp.task.protocol.payload_files import PayloadFiles
from dlapp.task.protocol.report_file import MetricWatch, ReportFile
from dlapp.task.protocol.use_watch import UseWatch
from dlapp.task.step_errors import StepFailed
from dlapp.value import NamedTuple
from dlapp.values.messages import Fault, PayloadStatus, TaskResult

_TAKEN_EVERY_S = 0.005
_FIRST_LOOK_S = 0.02
"""Time from the start to the first poll of the payload's output and reports; many trials have ended before."""
_MAX_POLL_S = 3600.0
GPU_FAILED = "gpu_failed"
"""Reason of a stop (docs/payload.md, DLAPP_STOP) after a GPU of the payload has failed."""
LEFT = "ended with the script: "
"""Begins the text on processes that were killed because the script had ended."""


class EndOrder(NamedTuple):
    """Order to end a payload softly; the first of several counts.

    Args:
        why: for people.
        reason: one word for programs (docs/payload.md, DLAPP_STOP).
        grace_s: between SIGTERM and SIGKILL [s].
    """

    why: str
    reason: str
    grace_s: float


class PayloadOwner(Protocol):
    """Owner of a payload that runs."""

    def start(self, run: Running) -> None:
        """Start the payload."""

    def is_killed(self) -> bool:
        """Return whether the payload must be killed now."""

    def end_order(self) -> EndOrder | None:
        """Return the order to end it softly; None to continue."""

    def hang_reason(self) -> str:
        """Return why a hung payload must be aborted; empty if it does not hang."""

    def run_periodic(self) -> float:
        """Do periodic work while it runs. Return the delay until the next call [s]."""

    def handle_report(self, report: ReportFile) -> None:
        """Process the payload's reports so far."""

    def report_status(self, status: PayloadStatus, cut: str) -> None:
        """Report news of the payload; ``cut`` describes what was cut from its logs."""

    def wake_fds(self) -> Sequence[int]:
        """Return descriptors to poll; a readable one means that there is work."""

    def drain(self) -> None:
        """Empty these descriptors."""


class PayloadOutcome(NamedTuple):
    """End of a payload.

    Args:
        ended: how it ended.
        is_soft: it received SIGTERM.
        hang: why it was aborted; empty if it was not.
        cut: what was cut from its logs; empty if nothing.
    """

    ended: PayloadExit
    is_soft: bool
    hang: str
    cut: str

    def result(self, others: tuple[Fault, str] | None = None, *, lost: bool = False) -> TaskResult:
        """Return the result of the payload.

        Args:
            others: fault and message, if not the payload's exit decides.
            lost: as of `TaskResult`.
        """
        ended = self.ended
        fault, message = others or (ended.fault, ended.problem)
        if others is None and self.hang:
            fault, message = Fault.USER, f"{self.hang}; stderr has the stacks of its Python threads"
        elif others is None and fault is Fault.USER and ended.exit_code == 0 and not message:
            fault = Fault.NONE
        left = f"{LEFT}{ended.left}" if ended.left else ""
        return TaskResult(
            fault=fault,
            exit_code=ended.exit_code,
            signal=ended.signal,
            message="; ".join(filter(None, (message, left, self.cut))),
            service=ended.service,
            lost=lost,
            left=ended.left,
        )


class PayloadRunner:
    """Runner of one payload.

    Args:
        directory: its directory, which has ``stdout``, ``stderr`` and ``run`` (DLAPP_DIR).
        log_limit_bytes: for each log.
        step: makes errors `StepFailed`.
        times: where to note when the logs grew; None: nowhere.
        total, probe, use, watch: as of `PayloadFiles`.
    """

    def __init__(
        self,
        run: Running,
        directory: str,
        owner: PayloadOwner,
        *,
        log_limit_bytes: int,
        step: Callable[[str], AbstractContextManager[None]],
        note: Callable[[str], None],
        warn: Callable[[str], None],
        times: LogTimesWriter | None = None,
        total: int = 1,
        probe: ReadinessProbe | None = None,
        use: UseWatch | None = None,
        watch: MetricWatch | None = None,
    ) -> None:
        self._run, self._owner, self._note = run, owner, note
        logs = os.path.join(directory, "stdout"), os.path.join(directory, "stderr")
        with step("the payload could not be started"):
            self._files = PayloadFiles(os.path.join(directory, "run"), total, self._tell, note, probe, use, watch)
        self._cap = LogCap(logs, log_limit_bytes, times, warn)
        self._ending = PayloadEnd(run, logs[1], note)

    def run_to_end(self) -> PayloadOutcome:
        """Start the payload; return how it ended, after all of its processes have ended."""
        with self._files, self._cap, self._ending:
            self._owner.start(self._run)
            ended = self._watch()
            self._files.finish(time.monotonic())
            self._owner.handle_report(self._files.report)
            self._cap.finish()
        if self._cap.cut_message:
            self._note(self._cap.cut_message)
        return PayloadOutcome(ended, self._ending.is_soft, self._ending.hang, self._cap.cut_message)

    def _watch(self) -> PayloadExit:
        owner, ending, cap = self._owner, self._ending, self._cap
        check_at_s, cut_message = time.monotonic() + _FIRST_LOOK_S, ""
        while (ended := self._ended()) is None:
            if owner.is_killed():
                self._run.kill()
            elif ending.has_begun:
                ending.advance()
            elif (order := owner.end_order()) is not None:
                self._files.write_stop(order.reason, order.why, order.grace_s)
                ending.stop(order.why, order.grace_s)
            elif why := owner.hang_reason():
                ending.abort(why)
            attend_s = owner.run_periodic()
            now = time.monotonic()
            if now >= check_at_s:
                check_at_s = now + cap.check()
                if cap.cut_message and not cut_message:
                    cut_message = cap.cut_message
                    self._note(f"{cut_message}; further reports are dropped, too")
                    self._tell(self._files.status)
                self._files.check(now)
                owner.handle_report(self._files.report)
            if self._poll(min(attend_s, check_at_s - time.monotonic(), ending.wait_s(), _MAX_POLL_S)):
                check_at_s = 0.0
        return ended

    def _ended(self) -> PayloadExit | None:
        try:
            return self._run.ended()
        except PayloadError as error:
            raise StepFailed(error.fault, str(error), service=error.service) from error

    def _tell(self, status: PayloadStatus) -> None:
        self._owner.report_status(status, self._cap.cut_message)

    def _poll(self, timeout_s: float) -> bool:
        """Wait for events. Return whether the payload printed after a silence."""
        poll = select.poll()
        for fd in self._owner.wake_fds():
            poll.register(fd, select.POLLIN)
        watched = self._run.watched_fds()
        for fd, events in watched:
            poll.register(fd, events)
        if not watched:
            timeout_s = min(timeout_s, _TAKEN_EVERY_S)  # its start is still to be seen
        printed = self._cap.wake_fd
        if printed is not None:
            poll.register(printed, select.POLLIN)
        ready = poll.poll(max(1, int(timeout_s * 1000)))
        self._owner.drain()
        return any(fd == printed for fd, _ in ready)
