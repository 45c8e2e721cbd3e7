"""The runner: the one process that starts and settles a user's applications, and ends when none is left.

It starts an ApplicationMaster when all containers of its application fit, and detects its end. If one died without an
outcome it starts another one or, when the attempts are used up, a clean-up process. It keeps no important state in
memory: if it is killed at any moment, the next runner recovers from the rows, the locks and the outcomes.

Start of an application:

1. The runner takes the application's lock. If it dies now, nothing has changed.
2. It sets the row to running. If it dies now, the row is running, its lock is free and its ApplicationMaster never
   registered: the next runner sets the row back to waiting.
3. It passes the lock to the new process.

So the lock prevents two at once, and an application that has begun is not started a second time.
"""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from dlapp.cluster.local import schedule, spool
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
from dlapp.cluster.local.capacity import capacity_of
from dlapp.cluster.local.notices import mark_end, start_pending_senders, start_sender, waiting_after_s
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
from dlapp.cluster.local.queue import Queue, SchemaMismatch
from dlapp.cluster.local.queue_state import UNLIMITED, QueueContents, QueueReader, count_returned, row_of
from dlapp.cluster.local.row import DONE, RUNNING, UNSTARTED, WAITING, ApplicationRow
from dlapp.cluster.local.runner.election import open_fifo
from dlapp.cluster.local.runner.queue_pass import QueuePasses
from dlapp.cluster.local.schedule import Obstacle, StartDecision
from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import StateDir, acquire_lock, check_directory, read_spec, write_atomically
from dlapp.errors import ConfigError, DlappError, Unreachable
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.values import Decision
from dlapp.system import clock
from dlapp.system.files import check_own_directory
from dlapp.system.logs import log
from dlapp.system.machine import boot_id
from dlapp.system.processes.proc import open_process, start_time
from dlapp.system.processes.spawn import FIRST_KEPT, spawn
from dlapp.values.waiting import NEVER_FITS, NODES_FULL, SERVICE_AWAY, STARTING, Waiting

if TYPE_CHECKING:
    from dlapp.cluster.local.gpu_sets import GpuSets
    from dlapp.cluster.local.runner.orphans import OrphanReaper
    from dlapp.cluster.local.runner.prefork import PreforkedMaster
    from dlapp.gpuid.devices import Device
    from dlapp.gpuid.stores.locked_devices import Reservation
    from dlapp.gpuid.stores.machine import MachineLedger
    from dlapp.gpuid.stores.queue_tickets import QueueTicket

MAX_CRASH_SETTLEMENTS = 3
PATIENCE_S = 20.0
"""How long a request that no longer fits the machine waits for the machine to recover (a lost GPU, for example)."""
LINGERING_S = (0.01, 0.5)
"""Poll intervals for an application whose ApplicationMaster has ended and whose tasks are ending: doubled from the
first to the second."""
FOREIGN_S = 0.5
"""Poll interval for resources held by others (another queue's GPUs, another user's spool): they send no events."""
DRIVER_S = 5.0
"""Poll interval while NVIDIA's driver does not work."""
CONTENTION_S = 1.0
"""How long a start waits for a simultaneous start of another user that is to give way."""
IDLE_S = 30.0
STAY_S = 5.0
"""How long a runner that was started ahead of a submission waits for it; if packing a large workspace takes longer, the
submission starts another runner."""
HISTORY_S, BUSY_HISTORY_S = 3600.0, 600.0
"""Interval of cleaning up old data, and how long that is deferred while there is other work."""
MAX_ANNOUNCED = 100
"""How many applications without a queue position get one per pass."""
LATEST_STEP_MS = 60_000
"""Minimum change of an application's latest start that is written again."""
ERROR_RETRY_S = 2.0
"""Retry interval while the state cannot be written (full disk, for example)."""


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
        self._state, self._settings, self._lock, self._sign = state, settings, lock, sign
        self._uid = os.geteuid()
        self._boot_id = boot_id()
        self._queue = Queue(state)
        self._fifo = -1
        self._poll = select.poll()
        self._watched: dict[int, int] = {}  # pidfd -> number of the row
        self._pidfds: dict[int, int] = {}  # number of the row -> pidfd
        # Row number of an ApplicationMaster that has just ended -> its exit code, or the negative signal number, if
        # known.
        self._died: dict[int, int | None] = {}
        self._reapers: dict[int, OrphanReaper] = {}  # row number -> orphans of its dead ApplicationMaster
        self._pause_s = IDLE_S
        self._lingering_s = LINGERING_S[0]
        self._misfits: dict[int, float] = {}  # row number -> since when it does not fit the machine
        self._misfits_seen: set[int] = set()  # in this pass
        self._reader, self._passes = QueueReader(state), QueuePasses(state)
        self._ledger: MachineLedger | None = None
        self._ticket: tuple[int, QueueTicket] | None = None  # the row that waits for GPUs, and its queue ticket
        self._history_at = time.monotonic()
        self._error = ""  # the current problem, as last logged
        self._has_error = False
        self._stay_until = time.monotonic() + STAY_S if stay else 0.0
        self._reserved_ms: dict[int, int | None] = {}  # row number -> its latest start, as written
        self._notify_at_ms: dict[int, float | None] = {}  # row number -> when the user is notified of the wait
        self._standby = None if standby is None else (os.pidfd_open(standby.pid), standby)  # with its pidfd

    def run(self) -> None:
        """Run until no rows are left, or until the state directory is gone.

        Raises:
            SchemaMismatch: the rows belong to another version of dlapp.
        """
        if self._standby is not None:
            self._poll.register(self._standby[0], select.POLLIN)
        self._fifo = open_fifo(self._state, self._uid)
        self._poll.register(self._fifo, select.POLLIN)
        if self._state.shared:
            with self._retry_on_error():
                self._republish()
        with self._retry_on_error():
            for pid in start_pending_senders(self._state, self._settings.program):
                self._poll.register(os.pidfd_open(pid), select.POLLIN)
        while True:
            self._pause_s = IDLE_S
            self._has_error = False
            with self._retry_on_error():
                self._process_rows()
            with self._retry_on_error():
                busy_s = BUSY_HISTORY_S if self._queue.count_unsettled(self._uid) else 0.0
                if time.monotonic() >= self._history_at + busy_s:
                    self._clear_history()
            with self._retry_on_error():
                self._stop_if_idle()
            if self._lock < 0:
                return
            if self._has_error and not self._pidfds and self._is_lock_gone():
                self._release()
                self._queue.close()
                return
            if self._error and not self._has_error:
                self._error = ""
                log.info("the state can be written again")
            lingering = self._pause_s == self._lingering_s
            self._lingering_s = min(2 * self._lingering_s, LINGERING_S[1]) if lingering else LINGERING_S[0]
            self._wait()

    @contextlib.contextmanager
    def _retry_on_error(self) -> Iterator[None]:
        """Recover from an error of the state's disk or database: log it once, and retry later.

        Every operation of the runner can be interrupted anywhere and repeated, so retrying is sufficient.
        """
        try:
            yield
        except SchemaMismatch:
            raise
        except OSError as error:  # Unreachable is one, too
            self._has_error = True
            self._pause_s = min(self._pause_s, ERROR_RETRY_S)
            if self._error != str(error):
                self._error = str(error)
                log.warning(f"{error}; retrying every {ERROR_RETRY_S:g} s")

    # ---- passes over the rows ----

    def _republish(self) -> None:
        """Publish the current state to other users, including what a dead runner failed to publish."""
        # The spool first: a submission during this call is announced after its row is written, so it cannot be an entry
        # that the spool has and the rows do not.
        listed, entries = spool.ids(self._state), spool.entries_of(self._state)
        rows = self._queue.unsettled()
        unsettled = {row.id for row in rows}
        ended = [row for row in map(self._queue.row, {one.id for one in entries} - unsettled) if row is not None]
        self._queue.publish(row.number for row in (*rows, *ended))
        for row in rows:
            if row.state == RUNNING:
                spool.announce(self._state, row)
                spool.mark(self._state, row.id, spool.RUNNING)
            elif row.state == WAITING:
                spool.mark(self._state, row.id, spool.WAITING)
        spool.remove(self._state, listed - unsettled)

    def _process_rows(self) -> None:
        if self._state.shared and self._sign is None:
            self._sign = acquire_lock(self._state.runner_sign(self._uid), 0o640)
        for row in self._queue.rows("state = 'running' AND uid = ?", (self._uid,)):
            if row.number not in self._pidfds:
                with self._retry_on_error():
                    self._check_running(row)
        self._settle_dependents()
        self._start_waiting()

    def _settle_dependents(self) -> None:
        """Check applications that wait for the end of others; the latter are handled first, as their ids are older."""
        if not (dependents := self._queue.rows("state = 'dependent' AND uid = ?", (self._uid,))):
            return
        from dlapp.cluster.local.runner.dependencies import settle_dependent

        for row in dependents:
            if failure := settle_dependent(self._queue, row):
                self._end_unstarted(row, failed(failure, clock.now_ms()))

    def _check_running(self, row: ApplicationRow) -> None:
        """Check a running row without a watched process."""
        application_dir = self._state.application(row.id)
        if os.path.lexists(application_dir):
            # Write nothing, and report no end, if a link redirects the path.
            check_directory(application_dir, self._uid)
        if row.number in self._died and os.path.exists(os.path.join(application_dir, "am.json")):
            record_death(application_dir, clock.now_ms(), self._died[row.number])
        if is_alive(application_dir):
            self._watch(row, application_dir)
            return
        self._reapers.pop(row.number, None)
        outcome = self._outcome(application_dir)
        if outcome is None and not os.path.isdir(application_dir):
            self._settle(row, failed(f"its directory {application_dir} is gone", clock.now_ms()))
        elif outcome is not None:
            self._settle(row, outcome)
        elif not began(application_dir, row.boot_id, self._boot_id):
            self._retry_start(row, application_dir)
        elif is_requeued(row, application_dir, self._boot_id) and first_attempt(application_dir) <= MAX_ATTEMPTS:
            self._requeue(row, application_dir)
        elif row.number in self._died and (attempt := next_attempt(row, application_dir, self._boot_id)) is not None:
            self._start_next_attempt(row, application_dir, attempt)
        elif row.aftermaths >= MAX_CRASH_SETTLEMENTS:
            why = why_it_died(application_dir, row.boot_id, self._boot_id)
            last = last_line(os.path.join(application_dir, "am.log"))
            why += f"; cleaning up after it failed {MAX_CRASH_SETTLEMENTS} times: {last}"
            derived = derive(application_dir, row.boot_id, self._boot_id)
            ending = derived if derived and derived["state"] == "KILLED" else failed(why, clock.now_ms())
            self._settle(row, write_outcome(application_dir, ending))
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
            self._register(row.number, pidfd)
            return
        self._pause_s = min(self._pause_s, self._lingering_s)
        if (attempt := next_attempt(row, application_dir, self._boot_id)) is not None:
            self._start_next_attempt(row, application_dir, attempt)
        else:
            self._end_orphans(row, application_dir)

    def _open_master(self, application_dir: str) -> int | None:
        """Return a pidfd of an application's ApplicationMaster or clean-up process; None: not known."""
        if (pidfd := open_recorded(application_dir, self._uid)) is not None:
            return pidfd
        # A killed runner may have started one without recording its pid.
        last = registration(application_dir)
        return None if last is None or not last.pid else open_process(last.pid, last.started, self._uid)

    def _end_orphans(self, row: ApplicationRow, application_dir: str) -> None:
        from dlapp.cluster.local.runner.orphans import OrphanReaper

        if (reaper := self._reapers.get(row.number)) is None:
            reaper = self._reapers[row.number] = OrphanReaper(
                application_dir, self._uid, self._state.runner_lock(self._uid)
            )
        _log_ended(row, reaper.end_in_time())

    def _register(self, number: int, pidfd: int) -> None:
        self._died.pop(number, None)
        self._pidfds[number], self._watched[pidfd] = pidfd, number
        self._poll.register(pidfd, select.POLLIN)

    def _wait(self) -> None:
        for fd, _ in self._poll.poll(self._pause_s * 1000):
            if fd == self._fifo:
                with contextlib.suppress(BlockingIOError):
                    os.read(fd, 65536)
                continue
            # A child of this or of an earlier runner; only a child of this process must be reaped.
            ended = None
            with contextlib.suppress(ChildProcessError):
                ended = os.waitid(os.P_PIDFD, fd, os.WEXITED | os.WNOHANG)
            self._poll.unregister(fd)
            if self._standby is not None and fd == self._standby[0]:
                self._close_standby()
            if fd in self._watched:
                number = self._watched.pop(fd)
                self._died[number] = None if ended is None else _status_of(ended)
                del self._pidfds[number]
            os.close(fd)

    def _stop_if_idle(self) -> None:
        """Release the runner's lock if no work is left."""
        # No row can be inserted within the transaction, and a process that inserts one later finds the lock free.
        with self._queue.change():
            if self._queue.count_unsettled(self._uid):
                self._stay_until = 0.0
                return
            if (left_s := self._stay_until - time.monotonic()) > 0:
                self._pause_s = min(self._pause_s, left_s)
                return
            self._release()
        self._queue.close()

    def _is_lock_gone(self) -> bool:
        """Return whether its lock file has no name any more, as its directory was removed or its disk unmounted.

        No submission finds this runner then: one that makes the directory again starts another runner.
        """
        try:
            return not os.path.samestat(os.stat(self._state.runner_lock(self._uid)), os.fstat(self._lock))
        except FileNotFoundError:
            return True
        except OSError:
            return False  # a disk that is away for a moment

    def _release(self) -> None:
        self._close_standby()
        os.close(self._fifo)
        if self._sign is not None:
            os.close(self._sign)
        os.close(self._lock)
        self._lock = -1

    # ---- starting ----

    def _start_waiting(self) -> None:
        rows = self._queue.unsettled()
        own = {row.id: row for row in rows if row.state == WAITING}
        self._notify_waiting(list(own.values()))
        explained = set[int]()
        self._misfits_seen.clear()
        if own:
            contents = self._reader.read(rows)
            self._assign_positions(own, contents)
            if any(row.uid != self._uid for row in (*contents.waiting, *contents.running)):
                self._pause_s = min(self._pause_s, FOREIGN_S)  # other users' changes send no events
            try:
                explained = self._follow_schedule(own, contents)
            except ConfigError as error:
                first = next(iter(own.values()))
                self._record_reason(first, Obstacle(str(error), SERVICE_AWAY, is_known=True))
                explained = {first.number}
                self._pause_s = min(self._pause_s, ERROR_RETRY_S)
        self._clear_reasons([row for row in own.values() if row.reason and row.number not in explained])
        if self._ticket is not None and self._ticket[0] not in explained:
            self._ticket[1].close()
            self._ticket = None
        self._misfits = {number: since for number, since in self._misfits.items() if number in self._misfits_seen}

    def _assign_positions(self, own: Mapping[str, ApplicationRow], contents: QueueContents) -> None:
        """Assign queue positions to applications without one: their submitters could not write to the spool."""
        lost = sorted(own.keys() - {row.id for row in contents.waiting})[:MAX_ANNOUNCED]
        for one in lost:
            spool.mark(self._state, one, spool.WAITING)
        if lost:
            self._queue.publish(own[one].number for one in lost)
            self._pause_s = min(self._pause_s, FOREIGN_S)

    def _follow_schedule(self, own: Mapping[str, ApplicationRow], contents: QueueContents) -> set[int]:
        """Start this user's applications whose turn it is; return the numbers of the rows that got a reason for their
        wait."""
        running, explained = list(contents.running), set[int]()
        capacity, others_gcores, sets = self._capacity_for(contents)
        free = capacity.without(running)
        found = self._passes.decide(contents, capacity, others_gcores, sets)
        row_by_id = {row.id: row for row in contents.waiting}
        for decision in found.decisions:
            row, obstacle = row_by_id[decision.job.id], None
            if row.id in own:
                if decision.code == NEVER_FITS:
                    obstacle = self._handle_misfit(row, decision, capacity, sets)
                elif decision.starts or decision.job is found.head:
                    # Try the head, too: only the ledger knows which GPUs others hold, and it keeps the order.
                    obstacle = self._start_if_fits(row, capacity, free, running)
                elif decision.ahead == 0 and (lack := self._lack_of_first(row, free, running)):
                    obstacle = Obstacle(lack, NODES_FULL)  # those before it wait for other GPUs
                else:
                    continue
            elif not decision.starts:
                continue
            if obstacle is not None:
                self._record_reason(row, obstacle, capacity, free, running, latest_s=decision.expected_s)
                explained.add(row.number)
                if decision.starts:
                    break
                continue
            # Started here; or it is another user's turn, whose runner starts it.
            running.append(row)
            free = free.without([row])
            if not decision.starts:
                self._pause_s = 0.0  # the others were decided without it
                break
        return explained

    def _handle_misfit(
        self, row: ApplicationRow, decision: Decision, capacity: Amounts, sets: GpuSets | None
    ) -> Obstacle:
        """Return why an application can never start; if the machine is too small, end it after some patience."""
        problem = self._too_large(row, capacity, () if sets is None else sets.devices)
        if problem:
            return self._handle_too_large(row, Obstacle(problem, NEVER_FITS))
        return Obstacle(decision.message, decision.code, is_known=True)

    def _too_large(self, row: ApplicationRow, capacity: Amounts, devices: Sequence[Device]) -> str:
        """Return what a row asks for and the machine can never give; empty: nothing.

        Args:
            devices: all GPUs and slices; empty: it has none, or they are not known.
        """
        if row.gcores and devices:
            from dlapp.cluster.local.gpu_sets import demands_of_row
            from dlapp.gpuid.needs import too_few

            if shortage := too_few(demands_of_row(row), devices, "this machine has"):
                return shortage.text
        never = next(schedule.too_large(schedule.amounts_of(row), capacity), None)
        return "" if never is None else never.problem

    def _record_reason(
        self,
        row: ApplicationRow,
        obstacle: Obstacle,
        capacity: Amounts | None = None,
        free: Amounts | None = None,
        running: Sequence[ApplicationRow] = (),
        *,
        latest_s: float | None = None,
    ) -> None:
        """Record why a row waits, with the facts about the machine where useful.

        Args:
            capacity, free: amounts of the machine; None: not relevant.
            latest_s: its latest start [s since 1970]; None: not known.
        """
        latest_ms = None if latest_s is None else int(latest_s * 1000)
        if row.reason == obstacle.text and not self._is_other_time(row, latest_ms):
            return
        self._reserved_ms[row.number] = latest_ms
        waiting = ""
        if capacity is not None and free is not None:
            waiting = self._reason_of(row, obstacle, capacity, free, running, latest_ms)
        elif obstacle.is_known:
            waiting = _reason_json(Waiting(code=obstacle.code, message=obstacle.text))
        with self._queue.change():
            self._queue.add_columns()
            self._queue.update(row.number, reason=obstacle.text, waiting=waiting)

    def _is_other_time(self, row: ApplicationRow, latest_ms: int | None) -> bool:
        """Return whether the latest start of a row differs notably from the recorded one."""
        before_ms = self._reserved_ms.get(row.number)
        if latest_ms is None or before_ms is None:
            return latest_ms != before_ms
        return abs(latest_ms - before_ms) >= LATEST_STEP_MS  # an overdue application moves it in each pass

    def _start_if_fits(
        self, row: ApplicationRow, capacity: Amounts, free: Amounts, running: Sequence[ApplicationRow]
    ) -> Obstacle | None:
        """Start a row if nothing blocks it; return the obstacle, or None if it was started or has ended."""
        try:
            return self._missing(row, capacity, free, running) or self._start(row, capacity)
        except Unreachable:
            raise  # a state that cannot be written is not the application's failure
        except DlappError as error:
            # The driver or the ledger failed.
            from dlapp.gpuid.health.nvml import NvmlError

            why = Obstacle(str(error), SERVICE_AWAY, is_known=True)
            if isinstance(error, NvmlError):
                # A driver is reloaded, and its machine rebooted; no application ends because of it.
                self._pause_s = min(self._pause_s, DRIVER_S)
                return why
            return self._handle_too_large(row, why)

    def _capacity_for(self, contents: QueueContents) -> tuple[Amounts, int, GpuSets | None]:
        """Return the machine's amounts, how many of its GPUs are held by others or in quarantine, and the sets of GPUs
        to count."""
        capacity = self._capacity()
        if not any(row.gcores for row in contents.waiting):
            return capacity, 0, None
        from dlapp.cluster.local.gpu_sets import gpu_sets
        from dlapp.gpuid.counts import devices_out_of

        self._pause_s = min(self._pause_s, FOREIGN_S)  # released GPUs send no events
        try:
            record, devices = self._machine_ledger().record(), self._machine_ledger().devices()
        except Unreachable:
            raise
        except DlappError:
            return capacity, 0, None  # the first start that needs GPUs reports it
        ids = {row.id for row in contents.running}
        out = devices_out_of(record, ids)
        sets = gpu_sets(record, contents.waiting, ids)
        return capacity._replace(gcores=min(capacity.gcores, len(devices))), len(out), sets

    def _clear_reasons(self, rows: Sequence[ApplicationRow]) -> None:
        """Clear the wait reasons of rows that others have overtaken."""
        if rows:
            with self._queue.change():
                self._queue.add_columns()
                for row in rows:
                    self._queue.update(row.number, reason="", waiting="")

    def _notify_waiting(self, waiting: Sequence[ApplicationRow]) -> None:
        """Notify the user of applications that have waited too long, if configured."""
        now_ms = clock.now_ms()
        for row in waiting:
            if row.number not in self._notify_at_ms:
                after_s = waiting_after_s(self._state.application(row.id))
                self._notify_at_ms[row.number] = None if after_s is None else row.submitted_ms + after_s * 1000
            due_ms = self._notify_at_ms[row.number]
            if due_ms is None:
                continue
            if due_ms > now_ms:
                self._pause_s = min(self._pause_s, (due_ms - now_ms) / 1000)
                continue
            self._notify_at_ms[row.number] = None
            self._start_sender(row, waiting=row.reason or "others are before it")

    def _start_sender(self, row: ApplicationRow, *, waiting: str = "") -> None:
        if (pid := start_sender(self._state, self._settings.program, row.id, waiting)) is not None:
            self._poll.register(os.pidfd_open(pid), select.POLLIN)

    def _capacity(self) -> Amounts:
        gcores = UNLIMITED if self._settings.gcores is None else self._settings.gcores  # the ledger knows the number
        return capacity_of(self._settings, gcores)

    def _lack_of_first(self, row: ApplicationRow, free: Amounts, running: Sequence[ApplicationRow]) -> str:
        """Return what a row with GPUs lacks if those before it wait for other GPUs; empty: nothing, or it is not
        known."""
        from dlapp.cluster.local.gpu_sets import demands_of_row

        with contextlib.suppress(DlappError):  # the start of the first in the queue reports it
            lack = self._lack(row, free, running, self._machine_ledger().devices())
            return self._machine_ledger().shortage(demands_of_row(row)) if lack is None else lack
        return ""

    def _lack(
        self, row: ApplicationRow, free: Amounts, running: Sequence[ApplicationRow], devices: Sequence[Device]
    ) -> str | None:
        """Return what a row lacks of the free amounts; of GPUs of several kinds only the ledger knows which are free.

        Args:
            devices: all GPUs and slices.
        """
        requested = schedule.amounts_of(row)
        if row.gcores and self._settings.gcores is None:
            from dlapp.cluster.local.gpu_sets import demands_of_row
            from dlapp.gpuid.needs import are_plain

            if not are_plain(demands_of_row(row), devices):
                requested = requested._replace(gcores=0)
        return schedule.lack(requested, free, running)

    def _missing(
        self, row: ApplicationRow, capacity: Amounts, free: Amounts, running: Sequence[ApplicationRow]
    ) -> Obstacle | None:
        """Return why a row cannot start now; None: it can, as far as memory, vcores and the configured gcores go."""
        devices = self._machine_ledger().devices() if row.gcores else ()
        if row.gcores:
            capacity = capacity._replace(gcores=min(capacity.gcores, len(devices)))
        if problem := self._too_large(row, capacity, devices):
            return self._handle_too_large(row, Obstacle(problem, NEVER_FITS))
        lack = self._lack(row, free, running, devices)
        return None if lack is None else Obstacle(lack, NODES_FULL)

    def _handle_too_large(self, row: ApplicationRow, why: Obstacle) -> Obstacle:
        """Handle a request that exceeds the machine in its current state: end the application after some patience."""
        since = self._misfits.setdefault(row.number, time.monotonic())
        self._misfits_seen.add(row.number)
        if time.monotonic() - since >= PATIENCE_S:
            self._end_unstarted(row, failed(why.text, clock.now_ms()))
            self._pause_s = 0.0
        else:
            self._pause_s = min(self._pause_s, FOREIGN_S)
        return why

    def _reason_of(
        self,
        row: ApplicationRow,
        obstacle: Obstacle,
        capacity: Amounts,
        free: Amounts,
        running: Sequence[ApplicationRow],
        latest_ms: int | None,
    ) -> str:
        """Return the reason in its JSON form, with the text of the obstacle."""
        from dlapp.cluster.local.reasons import facts_of, total_ask
        from dlapp.cluster.reasons.tiers import choose
        from dlapp.value import replace

        reason = Waiting(code=obstacle.code, message=obstacle.text, reserved_ms=latest_ms)
        if not obstacle.is_known:
            gpus = None
            if row.gcores:
                from dlapp.cluster.local.gpu_sets import demands_of_row
                from dlapp.gpuid.counts import count_devices

                with contextlib.suppress(DlappError):
                    gpus = count_devices(self._machine_ledger().record(), demands_of_row(row))
                    capacity = capacity._replace(gcores=min(capacity.gcores, gpus.total))
            found = choose(facts_of([total_ask(row)], capacity, free, running, gpus=gpus))
            if found.code != STARTING:
                reason = replace(found, message=obstacle.text, reserved_ms=latest_ms)
        return _reason_json(reason)

    def _start(self, row: ApplicationRow, capacity: Amounts) -> Obstacle | None:
        """Start a row's ApplicationMaster; return what it still waits for, or None if it was started or has ended."""
        application_dir = self._state.application(row.id)
        with contextlib.ExitStack() as held:
            holds: tuple[int, ...] = ()
            if row.gcores:
                reservation = self._reserve(row)
                if isinstance(reservation, str):
                    return Obstacle(reservation, NODES_FULL)
                held.callback(reservation.close)
                holds = reservation.fds
            try:
                check_own_directory(application_dir, self._uid)
                attempt = first_attempt(application_dir)
                alive = acquire_lock(alive_lock(application_dir, attempt), 0o640)
            except OSError as error:
                why = str(error) if isinstance(error, DlappError) else f"{application_dir}: {error.strerror}"
                self._end_unstarted(row, failed(why, clock.now_ms()))
                return None
            if alive is None:
                self._pause_s = min(self._pause_s, self._lingering_s)
                return Obstacle("processes of an earlier start are ending", STARTING, is_known=True)
            held.callback(os.close, alive)
            if not self._mark_started(row, capacity):
                self._pause_s = 0.0
                return Obstacle("others came first", NODES_FULL, is_known=True)
            self._spawn(row, application_dir, attempt, alive, holds)
        return None

    def _mark_started(self, row: ApplicationRow, capacity: Amounts) -> bool:
        """Set the row to running if it still waits and still fits: others may have started theirs meanwhile."""
        with contextlib.ExitStack() as started:
            if self._state.shared:
                started.callback(spool.mark, self._state, row.id, spool.WAITING)
                if not self._has_room(row, capacity):
                    return False
            with self._queue.change():
                now = self._queue.row(row.id)
                if now is None or now.state != WAITING:
                    return False
                self._queue.update(
                    row.number,
                    state=RUNNING,
                    started_ms=clock.now_ms(),
                    starts=row.starts + 1,
                    boot_id=self._boot_id,
                    reason="",
                )
            started.pop_all()
        return True

    def _has_room(self, row: ApplicationRow, capacity: Amounts) -> bool:
        """Return whether the other users' runners leave room for a start; see the steps in
        `dlapp.cluster.local.spool`."""
        spool.mark(self._state, row.id, spool.STARTING)
        own = [one for one in self._queue.unsettled() if one.state == RUNNING]
        count_returned(self._state, own)
        order = next((one.order for one in spool.entries_of(self._state) if one.id == row.id), None)
        if order is None:
            return False
        requested, free, deadline = schedule.amounts_of(row), capacity.without(own), time.monotonic() + CONTENTION_S
        while True:
            others = [row_of(one) for one in spool.entries_of_others(self._state) if one.phase != spool.WAITING]
            count_returned(self._state, others)
            rivals = [one for one in others if spool.is_alive(self._state.of(one.uid), one.id)]
            decision = schedule.decide_start(requested, order, free, rivals)
            if decision is StartDecision.START:
                spool.mark(self._state, row.id, spool.RUNNING)
                return True
            if decision is StartDecision.WITHDRAW or time.monotonic() >= deadline:
                return False
            time.sleep(LINGERING_S[0])

    def _retry_start(self, row: ApplicationRow, application_dir: str) -> None:
        """Set a row whose ApplicationMaster never registered back to waiting, unless tried too often."""
        if (by := kill_request(application_dir)) is not None:
            self._settle(row, write_outcome(application_dir, killed(by, clock.now_ms(), begun=False)))
        elif row.starts >= MAX_STARTS:
            why = f"its ApplicationMaster did not start in {row.starts} starts"
            if last := last_line(os.path.join(application_dir, "am.log")):
                why = f"{why}: {last}"
            self._settle(row, write_outcome(application_dir, failed(why, clock.now_ms())))
        else:
            self._died.pop(row.number, None)
            self._set_waiting(row, starts=row.starts)

    def _requeue(self, row: ApplicationRow, application_dir: str) -> None:
        """Set a row that ran when the machine was rebooted back to waiting: its next attempt starts it again."""
        record_requeue(application_dir)
        log.warning(f"{row.id}: the machine was restarted while it ran; it waits in the queue to start again")
        self._set_waiting(row, starts=first_attempt(application_dir) - 1)

    def _set_waiting(self, row: ApplicationRow, *, starts: int) -> None:
        if self._state.shared:
            spool.mark(self._state, row.id, spool.WAITING)
        with self._queue.change():
            self._queue.update(row.number, state=WAITING, started_ms=None, starts=starts)

    def _start_next_attempt(self, row: ApplicationRow, application_dir: str, attempt: int) -> None:
        """Start the next ApplicationMaster of a row whose last one is dead; its tasks may still run."""
        record_death(application_dir, died_ms(application_dir))
        with contextlib.ExitStack() as held:
            holds: tuple[int, ...] = ()
            if row.gcores and not os.path.lexists(os.path.join(application_dir, DEVICES_RETURNED)):
                reservation = self._reserve_again(row)
                if isinstance(reservation, str):
                    self._record_reason(row, Obstacle(reservation, NODES_FULL))
                    self._pause_s = min(self._pause_s, FOREIGN_S)
                    return
                held.callback(reservation.close)
                holds = reservation.fds
            if (alive := acquire_lock(alive_lock(application_dir, attempt), 0o640)) is None:
                self._pause_s = min(self._pause_s, self._lingering_s)  # started, but not registered yet
                return
            held.callback(os.close, alive)
            # Update the row first, as for a clean-up process: it counts the starts.
            with self._queue.change():
                self._queue.update(row.number, starts=row.starts + 1, reason="")
            log.warning(
                f"{row.id}: {why_it_died(application_dir, row.boot_id, self._boot_id)}; starting attempt {attempt}"
            )
            self._spawn(row, application_dir, attempt, alive, holds)

    def _start_crash_settlement(self, row: ApplicationRow, application_dir: str) -> None:
        from dlapp.cluster.local.runner.orphans import end

        record_death(application_dir, died_ms(application_dir))
        # The row first, then the lock: a held lock with an unchanged row means an ApplicationMaster.
        with self._queue.change():
            self._queue.update(row.number, aftermaths=row.aftermaths + 1)
        if (alive := acquire_lock(os.path.join(application_dir, "alive"), 0o640)) is None:
            self._pause_s = min(self._pause_s, self._lingering_s)
            return
        try:
            # When the daemon closes the lock it also releases the directory, before that is removed.
            _log_ended(row, end(application_dir, self._uid, self._state.runner_lock(self._uid)))
            log.warning(f"{row.id}: {why_it_died(application_dir, row.boot_id, self._boot_id)}; cleaning up after it")
            last = registration(application_dir)
            attempt = (1 if last is None else last.attempt) + row.aftermaths + 1
            self._spawn(row, application_dir, attempt, alive, (), "--aftermath")
        finally:
            os.close(alive)

    def _spawn(
        self, row: ApplicationRow, application_dir: str, attempt: int, alive: int, holds: Sequence[int], *more: str
    ) -> None:
        arguments = ["--engine", "local", "--home", application_dir, "--attempt", str(attempt)]
        arguments += ["--alive-fd", str(FIRST_KEPT)]
        arguments += ["--hold-fds", ",".join(str(FIRST_KEPT + 1 + place) for place in range(len(holds))), *more]
        keep, log_path = [alive, *holds], os.path.join(application_dir, "am.log")
        if self._standby is not None and self._use_standby(row, application_dir, arguments, keep, log_path):
            return
        try:
            pid = spawn([*self._settings.program, "am", *arguments], keep=keep, log=log_path)
        except OSError as error:
            # The row is running and its lock is free: the next pass counts this as a failed start.
            log.warning(f"{row.id}: its ApplicationMaster could not be started: {error}")
            self._pause_s = min(self._pause_s, FOREIGN_S)
            return
        # It is our child: its pid cannot be reused before we reap it.
        self._register(row.number, os.pidfd_open(pid))
        _record_pid(application_dir, pid)
        log.info(f"{row.id}: attempt {attempt} started, process {pid}")

    # ---- the standby ApplicationMaster ----

    def _use_standby(
        self, row: ApplicationRow, application_dir: str, arguments: Sequence[str], keep: Sequence[int], log_path: str
    ) -> bool:
        """Make the standby this row's ApplicationMaster. False: it did not accept the row, and ends."""
        assert self._standby is not None
        pidfd, standby = self._standby
        self._standby = None
        try:
            # Its command line does not name the application, so record the pid before assigning it.
            _record_pid(application_dir, standby.pid)
            standby.become(arguments, keep=keep, log=log_path)
        except OSError as error:
            standby.close()
            log.warning(f"{row.id}: the standby ApplicationMaster, process {standby.pid}, could not be used: {error}")
            return False
        self._register(row.number, pidfd)
        log.info(f"{row.id}: started, process {standby.pid}, a standby")
        return True

    def _close_standby(self) -> None:
        if self._standby is not None:
            self._standby[1].close()
            self._standby = None

    # ---- GPUs ----

    def _machine_ledger(self) -> MachineLedger:
        if self._ledger is None:
            from dlapp.gpuid.health.inspection import Inspector
            from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
            from dlapp.gpuid.stores.machine import MachineLedger

            nvml = NvmlProcess()
            where, docker_host = self._settings.lock_dir, self._settings.docker_host
            self._ledger = MachineLedger(where, docker_host=docker_host, nvml=nvml, inspect=Inspector(read=nvml.read))
        return self._ledger

    def _reserve_again(self, row: ApplicationRow) -> Reservation | str:
        """Reserve the GPUs that its processes still hold, or others; or return the reason to wait."""
        from dlapp.cluster.local.gpu_sets import demands_of_row
        from dlapp.gpuid.rules import NotEnough

        try:
            ledger, demands = self._machine_ledger(), demands_of_row(row)
            return ledger.join_reservation(row.id) or ledger.reserve(row.id, row.gcores, demands=demands)
        except NotEnough as error:
            return error.reason
        except Unreachable:
            raise  # a state that cannot be written is not a failure of the ledger
        except DlappError as error:
            return str(error)

    def _reserve(self, row: ApplicationRow) -> Reservation | str:
        from dlapp.cluster.local.gpu_sets import demands_of_row
        from dlapp.gpuid.rules import NotEnough

        ledger, demands = self._machine_ledger(), demands_of_row(row)
        if self._ticket is None or self._ticket[0] != row.number:
            if self._ticket is not None:
                self._ticket[1].close()
            ticket = ledger.ticket(row.id, row.gcores, since_ms=row.submitted_ms, demands=demands)
            self._ticket = (row.number, ticket)
        try:
            spread = bool(read_spec(self._state.application(row.id)).get("placement", {}).get("spread"))
            return ledger.reserve(row.id, row.gcores, ticket=self._ticket[1], spread=spread, demands=demands)
        except NotEnough as error:
            self._pause_s = min(self._pause_s, FOREIGN_S)
            return error.reason

    # ---- ends ----

    def _end_unstarted(self, row: ApplicationRow, outcome: Outcome) -> None:
        with self._queue.change():
            now = self._queue.row(row.id)
            if now is None or now.state not in UNSTARTED:
                return
            is_marked = mark_end(self._state, row.id, outcome)
            self._finish_row(row, outcome, "", 0)
        remove_secrets(self._state.application(row.id))
        if is_marked:
            self._start_sender(row)
        log.info(f"{row.id}: {outcome['state']}: {outcome['diagnostics']}")

    def _settle(self, row: ApplicationRow, outcome: Outcome) -> None:
        from dlapp.cluster.local.runner.history import size_of_tree
        from dlapp.cluster.local.views import summary_of

        application_dir = self._state.application(row.id)
        if row.gcores:
            self._clear_leases(row)
        is_marked = mark_end(self._state, row.id, outcome)
        remove_secrets(application_dir)
        summary, size = summary_of(row, outcome, application_dir), size_of_tree(application_dir)
        self._died.pop(row.number, None)
        with self._queue.change():
            self._finish_row(row, outcome, summary, size)
        log.info(f"{row.id}: {outcome['state']}, {outcome['final_status']}: {outcome['diagnostics']}")
        if is_marked:
            self._start_sender(row)
        if _has_image(application_dir):
            self._start_container_removal(row)

    def _start_container_removal(self, row: ApplicationRow) -> None:
        """Start the removal of its leftover containers in a process that nothing waits for and that ends by itself."""
        arguments = [*self._settings.program, "cleanup", "--application", row.id, "--host", self._settings.docker_host]
        try:
            pid = spawn(arguments, log=self._state.runner_log(self._uid))
        except OSError as error:
            log.warning(f"{row.id}: its containers could not be listed: {error}")
            return
        self._poll.register(os.pidfd_open(pid), select.POLLIN)

    def _clear_leases(self, row: ApplicationRow) -> None:
        try:
            self._machine_ledger().reclaim(row.id)
        except (DlappError, OSError) as error:
            # Devices still in use stay leased by their evidence; the next request for GPUs checks it again.
            log.warning(f"{row.id}: its leases in the GPU ledger could not be inspected: {error}")

    def _finish_row(self, row: ApplicationRow, outcome: Outcome, summary: str, size_bytes: int) -> None:
        import json

        self._queue.update(
            row.number,
            state=DONE,
            finished_ms=outcome["finished_ms"],
            outcome=json.dumps(outcome),
            summary=summary,
            size_bytes=size_bytes,
            reason="",
        )

    def _clear_history(self) -> None:
        from dlapp.cluster.local.runner import history

        now_s = time.time()
        for clear in (
            lambda: history.clear_staging(self._state, now_s),
            lambda: history.clear_cache(self._state, self._queue, self._settings, self._uid, now_s),
            lambda: history.clear_old(self._state, self._queue, self._settings, self._uid, now_s),
            lambda: self._passes.forget_usage(now_s),
        ):
            try:
                clear()
            except (OSError, SchemaMismatch):
                raise
            except Exception as error:
                # Programs have written these files; what they can do to their removal must not end the queue.
                log.warning(f"the history is not cleared completely: {error!r}")
        self._history_at = time.monotonic() + HISTORY_S


def _reason_json(reason: Waiting) -> str:
    import json

    from dlapp.values.serialization import to_json

    return json.dumps(to_json(reason), separators=(",", ":"))


def _record_pid(application_dir: str, pid: int) -> None:
    """Record the pid of an application's ApplicationMaster."""
    write_atomically(os.path.join(application_dir, "am.pid"), f"{pid} {start_time(pid) or 0}\n")


def remove_secrets(application_dir: str) -> None:
    """Remove an application's secrets; after its end nothing needs them."""
    from dlapp.values.access import MODIFIERS, VIEWERS, token_file
    from dlapp.values.launch_spec import FILE_NAME

    names = "secrets.json", token_file(VIEWERS), token_file(MODIFIERS)
    paths = [os.path.join(application_dir, name) for name in names]
    with contextlib.suppress(OSError), os.scandir(os.path.join(application_dir, "containers")) as entries:
        paths += [os.path.join(entry.path, FILE_NAME) for entry in entries]
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def _has_image(application_dir: str) -> bool:
    spec = read_spec(application_dir)
    return any(one.get("docker_image") is not None for one in (spec, *spec.get("roles", ())))


def _status_of(ended: os.waitid_result) -> int:
    """Return a process's exit code, or the negative number of the signal that killed it."""
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _log_ended(row: ApplicationRow, pids: Sequence[int]) -> None:
    if pids:
        log.info(f"{row.id}: killed orphaned processes: {', '.join(f'process {pid}' for pid in pids)}")
