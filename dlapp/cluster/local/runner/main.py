"""The runner: the one process that starts and settles a user's applications, and ends when none is left.

It starts an ApplicationMaster when all containers of its application fit, and detects its end. If one died without an
outcome it starts another one or, when the attempts are used up, a clean-up process. It keeps no important state in
memory: if it is killed at any moment, the next runner recovers from the rows, the locks and the outcomes.

The subjects: `starting`, `watching` and `settling` of applications, `gpus` that are reserved for them, `processes` that
are waited for, and the `reasons` of waits.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from dlapp.cluster.local import spool
from dlapp.cluster.local.notices import start_pending_senders
from dlapp.cluster.local.queue import SchemaMismatch
from dlapp.cluster.local.row import RUNNING, WAITING
from dlapp.cluster.local.runner.context import RunnerContext
from dlapp.cluster.local.runner.gpus import GpuReservations
from dlapp.cluster.local.runner.processes import ProcessTable
from dlapp.cluster.local.runner.reasons import ReasonRecorder
from dlapp.cluster.local.runner.settling import RunnerParts, Settler
from dlapp.cluster.local.runner.starting import Starter
from dlapp.cluster.local.runner.watching import Watcher
from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import StateDir, acquire_lock
from dlapp.system.logs import log

if TYPE_CHECKING:
    from dlapp.cluster.local.runner.prefork import PreforkedMaster

STAY_S = 5.0
"""How long a runner that was started ahead of a submission waits for it; if packing a large workspace takes longer, the
submission starts another runner."""
HISTORY_S, BUSY_HISTORY_S = 3600.0, 600.0
"""Interval of cleaning up old data, and how long that is deferred while there is other work."""


class Runner:
    """The runner of one user.

    Args:
        lock: descriptor whose lock makes this process the runner; released by `run`.
        sign: descriptor whose lock shows other users that a runner exists; None: to be taken before they can check.
        stay: a submission follows soon; do not exit without rows before `STAY_S`.
        standby: a prestarted ApplicationMaster for the first application; ended by `run` if unused.
    """

    def __init__(
        self,
        state: StateDir,
        settings: RunnerSettings,
        lock: int,
        *,
        sign: int | None = None,
        stay: bool = False,
        standby: PreforkedMaster | None = None,
    ) -> None:
        self._lock, self._sign = lock, sign
        context = self.context = RunnerContext(state, settings)
        processes = self._processes = ProcessTable(context, standby)
        gpus = GpuReservations(context)
        reasons = ReasonRecorder(context, gpus)
        settler = self._settler = Settler(context, processes, gpus)
        parts = RunnerParts(context, processes, gpus, reasons, settler)
        self.starter, self._watcher = Starter(parts), Watcher(parts)
        self._history_at = time.monotonic()
        self._stay_until = time.monotonic() + STAY_S if stay else 0.0

    def run(self) -> None:
        """Run until no rows are left, or until the state directory is gone.

        Raises:
            SchemaMismatch: the rows belong to another version of dlapp.
        """
        context = self.context
        self._processes.open()
        if context.state.shared:
            with context.retry_on_error():
                self._republish()
        with context.retry_on_error():
            for pid in start_pending_senders(context.state, context.settings.program):
                self._processes.add_child(pid)
        while True:
            context.start_pass()
            with context.retry_on_error():
                self._process_rows()
            with context.retry_on_error():
                busy_s = BUSY_HISTORY_S if context.queue.count_unsettled(context.uid) else 0.0
                if time.monotonic() >= self._history_at + busy_s:
                    self._clear_history()
            with context.retry_on_error():
                self._stop_if_idle()
            if self._lock < 0:
                return
            if context.has_error and not self._processes.pidfds and self._is_lock_gone():
                self._release()
                context.queue.close()
                return
            context.end_pass()
            self._processes.wait()

    def _republish(self) -> None:
        """Publish the current state to other users, including what a dead runner failed to publish."""
        # The spool first: a submission during this call is announced after its row is written, so it cannot be an entry
        # that the spool has and the rows do not.
        listed, entries = spool.ids(self.context.state), spool.entries_of(self.context.state)
        rows = self.context.queue.unsettled()
        unsettled = {row.id for row in rows}
        ended = [row for row in map(self.context.queue.row, {one.id for one in entries} - unsettled) if row is not None]
        self.context.queue.publish(row.number for row in (*rows, *ended))
        for row in rows:
            if row.state == RUNNING:
                spool.announce(self.context.state, row)
                spool.mark(self.context.state, row.id, spool.RUNNING)
            elif row.state == WAITING:
                spool.mark(self.context.state, row.id, spool.WAITING)
        spool.remove(self.context.state, listed - unsettled)

    def _process_rows(self) -> None:
        if self.context.state.shared and self._sign is None:
            self._sign = acquire_lock(self.context.state.runner_sign(self.context.uid), 0o640)
        for row in self.context.queue.rows("state = 'running' AND uid = ?", (self.context.uid,)):
            if row.number not in self._processes.pidfds:
                with self.context.retry_on_error():
                    self._watcher.check_running(row)
        self._settler.settle_dependents()
        self.starter.start_waiting()

    def _stop_if_idle(self) -> None:
        """Release the runner's lock if no work is left."""
        # No row can be inserted within the transaction, and a process that inserts one later finds the lock free.
        with self.context.queue.change():
            if self.context.queue.count_unsettled(self.context.uid):
                self._stay_until = 0.0
                return
            if (left_s := self._stay_until - time.monotonic()) > 0:
                self.context.wake_within(left_s, "a submission is about to follow")
                return
            self._release()
        self.context.queue.close()

    def _is_lock_gone(self) -> bool:
        """Return whether its lock file has no name any more, as its directory was removed or its disk unmounted.

        No submission finds this runner then: one that makes the directory again starts another runner.
        """
        try:
            return not os.path.samestat(os.stat(self.context.state.runner_lock(self.context.uid)), os.fstat(self._lock))
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a disk that is away for a moment

    def _release(self) -> None:
        self._processes.close()
        if self._sign is not None:
            os.close(self._sign)
        os.close(self._lock)
        self._lock = -1

    def _clear_history(self) -> None:
        from dlapp.cluster.local.runner import history

        now_s = time.time()
        for clear in (
            lambda: history.clear_staging(self.context.state, now_s),
            lambda: history.clear_cache(
                self.context.state, self.context.queue, self.context.settings, self.context.uid, now_s
            ),
            lambda: history.clear_old(
                self.context.state, self.context.queue, self.context.settings, self.context.uid, now_s
            ),
            lambda: self.starter.passes.forget_usage(now_s),
        ):
            try:
                clear()
            except (OSError, SchemaMismatch):
                raise
            except Exception as error:
                # Programs have written these files; what they can do to their removal must not end the queue.
                log.warning(f"the history is not cleared completely: {error!r}")
        self._history_at = time.monotonic() + HISTORY_S
