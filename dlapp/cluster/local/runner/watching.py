"""Running applications: the ends of their ApplicationMasters, and what follows.

If one died without an outcome, another one is started or, when the attempts are used up, a clean-up process.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from dlapp.cluster.local import spool
from dlapp.cluster.local.attempts import (
    DEVICES_RETURNED,
    MAX_ATTEMPTS,
    MAX_STARTS,
    alive_lock,
    first_attempt,
    is_alive,
    is_requeued,
    next_attempt,
    open_recorded,
    record_requeue,
    registration,
)
from dlapp.cluster.local.outcome import (
    Outcome,
    began,
    derive,
    died_ms,
    failed,
    kill_request,
    killed,
    last_line,
    read_outcome,
    record_death,
    why_it_died,
    write_outcome,
)
from dlapp.cluster.local.row import WAITING, ApplicationRow
from dlapp.cluster.local.runner.context import FOREIGN_S, LINGERING
from dlapp.cluster.local.runner.settling import RunnerParts
from dlapp.cluster.local.schedule import Obstacle
from dlapp.cluster.local.state import acquire_lock, check_directory
from dlapp.errors import DlappError
from dlapp.system import clock
from dlapp.system.logs import log
from dlapp.system.processes.proc import open_process
from dlapp.values.waiting import NODES_FULL

if TYPE_CHECKING:
    from dlapp.cluster.local.runner.orphans import OrphanReaper

MAX_CRASH_SETTLEMENTS = 3


class Watcher:
    """Watcher of the user's running applications."""

    def __init__(self, parts: RunnerParts) -> None:
        self._context, self._processes, self._gpus, self._reasons, self._settler = parts
        self._reapers: dict[int, OrphanReaper] = {}  # row number -> orphans of its dead ApplicationMaster

    def check_running(self, row: ApplicationRow) -> None:
        """Check a running row without a watched process."""
        application_dir = self._context.state.application(row.id)
        if os.path.lexists(application_dir):
            # Write nothing, and report no end, if a link redirects the path.
            check_directory(application_dir, self._context.uid)
        if row.number in self._processes.died and os.path.exists(os.path.join(application_dir, "am.json")):
            record_death(application_dir, clock.now_ms(), self._processes.died[row.number])
        if is_alive(application_dir):
            self._watch(row, application_dir)
            return
        self._reapers.pop(row.number, None)
        outcome = self._outcome(application_dir)
        if outcome is None and not os.path.isdir(application_dir):
            self._settler.settle(row, failed(f"its directory {application_dir} is gone", clock.now_ms()))
        elif outcome is not None:
            self._settler.settle(row, outcome)
        elif not began(application_dir, row.boot_id, self._context.boot_id):
            self._retry_start(row, application_dir)
        elif (
            is_requeued(row, application_dir, self._context.boot_id) and first_attempt(application_dir) <= MAX_ATTEMPTS
        ):
            self._requeue(row, application_dir)
        elif (
            row.number in self._processes.died
            and (attempt := next_attempt(row, application_dir, self._context.boot_id)) is not None
        ):
            self._start_next_attempt(row, application_dir, attempt)
        elif row.aftermaths >= MAX_CRASH_SETTLEMENTS:
            why = why_it_died(application_dir, row.boot_id, self._context.boot_id)
            last = last_line(os.path.join(application_dir, "am.log"))
            why += f"; cleaning up after it failed {MAX_CRASH_SETTLEMENTS} times: {last}"
            derived = derive(application_dir, row.boot_id, self._context.boot_id)
            ending = derived if derived and derived["state"] == "KILLED" else failed(why, clock.now_ms())
            self._settler.settle(row, write_outcome(application_dir, ending))
        else:
            self._start_crash_settlement(row, application_dir)

    def _outcome(self, application_dir: str) -> Outcome | None:
        try:
            return read_outcome(application_dir)
        except DlappError as error:
            # Outcomes are synced before the rename, so another program has written this file.
            return failed(str(error), clock.now_ms())

    def _watch(self, row: ApplicationRow, application_dir: str) -> None:
        """Watch the end of an existing ApplicationMaster; if it has no known pid, poll again soon.

        If it is gone and its orphans do not end by themselves, only this runner can end them.
        """
        if (pidfd := self._open_master(application_dir)) is not None:
            self._reapers.pop(row.number, None)
            self._processes.register(row.number, pidfd)
            return
        self._context.wake_within(self._context.lingering_s, LINGERING)
        if (attempt := next_attempt(row, application_dir, self._context.boot_id)) is not None:
            self._start_next_attempt(row, application_dir, attempt)
        else:
            self._end_orphans(row, application_dir)

    def _open_master(self, application_dir: str) -> int | None:
        """Return a pidfd of an application's ApplicationMaster or clean-up process; None: not known."""
        if (pidfd := open_recorded(application_dir, self._context.uid)) is not None:
            return pidfd
        # A killed runner may have started one without recording its pid.
        last = registration(application_dir)
        return None if last is None or not last.pid else open_process(last.pid, last.started, self._context.uid)

    def _end_orphans(self, row: ApplicationRow, application_dir: str) -> None:
        from dlapp.cluster.local.runner.orphans import OrphanReaper

        if (reaper := self._reapers.get(row.number)) is None:
            reaper = self._reapers[row.number] = OrphanReaper(
                application_dir, self._context.uid, self._context.state.runner_lock(self._context.uid)
            )
        _log_ended(row, reaper.end_in_time())

    def _retry_start(self, row: ApplicationRow, application_dir: str) -> None:
        """Set a row whose ApplicationMaster never registered back to waiting, unless tried too often."""
        if (by := kill_request(application_dir)) is not None:
            self._settler.settle(row, write_outcome(application_dir, killed(by, clock.now_ms(), begun=False)))
        elif row.starts >= MAX_STARTS:
            why = f"its ApplicationMaster did not start in {row.starts} starts"
            if last := last_line(os.path.join(application_dir, "am.log")):
                why = f"{why}: {last}"
            self._settler.settle(row, write_outcome(application_dir, failed(why, clock.now_ms())))
        else:
            self._processes.died.pop(row.number, None)
            self._set_waiting(row, starts=row.starts)

    def _requeue(self, row: ApplicationRow, application_dir: str) -> None:
        """Set a row that ran when the machine was rebooted back to waiting: its next attempt starts it again."""
        record_requeue(application_dir)
        log.warning(f"{row.id}: the machine was restarted while it ran; it waits in the queue to start again")
        self._set_waiting(row, starts=first_attempt(application_dir) - 1)

    def _set_waiting(self, row: ApplicationRow, *, starts: int) -> None:
        if self._context.state.shared:
            spool.mark(self._context.state, row.id, spool.WAITING)
        with self._context.queue.change():
            self._context.queue.update(row.number, state=WAITING, started_ms=None, starts=starts)

    def _start_next_attempt(self, row: ApplicationRow, application_dir: str, attempt: int) -> None:
        """Start the next ApplicationMaster of a row whose last one is dead; its tasks may still run."""
        record_death(application_dir, died_ms(application_dir))
        with contextlib.ExitStack() as held:
            holds: tuple[int, ...] = ()
            if row.gcores and not os.path.lexists(os.path.join(application_dir, DEVICES_RETURNED)):
                reservation = self._gpus.reserve_again(row)
                if isinstance(reservation, str):
                    self._reasons.record(row, Obstacle(reservation, NODES_FULL))
                    self._context.wake_within(FOREIGN_S, "GPUs are held by others")
                    return
                held.callback(reservation.close)
                holds = reservation.fds
            if (alive := acquire_lock(alive_lock(application_dir, attempt), 0o640)) is None:
                self._context.wake_within(self._context.lingering_s, LINGERING)  # started, but not registered yet
                return
            held.callback(os.close, alive)
            # Update the row first, as for a clean-up process: it counts the starts.
            with self._context.queue.change():
                self._context.queue.update(row.number, starts=row.starts + 1, reason="")
            why = why_it_died(application_dir, row.boot_id, self._context.boot_id)
            log.warning(f"{row.id}: {why}; starting attempt {attempt}")
            self._processes.spawn(row, application_dir, attempt, alive, holds)

    def _start_crash_settlement(self, row: ApplicationRow, application_dir: str) -> None:
        from dlapp.cluster.local.runner.orphans import end

        record_death(application_dir, died_ms(application_dir))
        # The row first, then the lock: a held lock with an unchanged row means an ApplicationMaster.
        with self._context.queue.change():
            self._context.queue.update(row.number, aftermaths=row.aftermaths + 1)
        if (alive := acquire_lock(os.path.join(application_dir, "alive"), 0o640)) is None:
            self._context.wake_within(self._context.lingering_s, LINGERING)
            return
        try:
            # When the daemon closes the lock it also releases the directory, before that is removed.
            _log_ended(row, end(application_dir, self._context.uid, self._context.state.runner_lock(self._context.uid)))
            log.warning(
                f"{row.id}: {why_it_died(application_dir, row.boot_id, self._context.boot_id)}; cleaning up after it"
            )
            last = registration(application_dir)
            attempt = (1 if last is None else last.attempt) + row.aftermaths + 1
            self._processes.spawn(row, application_dir, attempt, alive, (), "--aftermath")
        finally:
            os.close(alive)


def _log_ended(row: ApplicationRow, pids: Sequence[int]) -> None:
    if pids:
        log.info(f"{row.id}: killed orphaned processes: {', '.join(f'process {pid}' for pid in pids)}")
