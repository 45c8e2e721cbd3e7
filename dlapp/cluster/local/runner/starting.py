"""Starts of applications from the queue.

1. The runner takes the application's lock. If it dies now, nothing has changed.
2. It sets the row to running. If it dies now, the row is running, its lock is free and its ApplicationMaster never
   registered: the next runner sets the row back to waiting.
3. It passes the lock to the new process.

So the lock prevents two at once, and an application that has begun is not started a second time.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dlapp.cluster.local import schedule, spool
from dlapp.cluster.local.attempts import (
    alive_lock,
    first_attempt,
)
from dlapp.cluster.local.capacity import capacity_of
from dlapp.cluster.local.notices import waiting_after_s
from dlapp.cluster.local.outcome import (
    failed,
)
from dlapp.cluster.local.queue_state import UNLIMITED, QueueContents, QueueReader, count_returned, row_of
from dlapp.cluster.local.row import RUNNING, WAITING, ApplicationRow
from dlapp.cluster.local.runner.context import ERROR_RETRY_S, FOREIGN_S, LINGERING, LINGERING_S
from dlapp.cluster.local.runner.queue_pass import QueuePasses
from dlapp.cluster.local.runner.settling import RunnerParts
from dlapp.cluster.local.schedule import Obstacle, StartDecision
from dlapp.cluster.local.state import acquire_lock
from dlapp.errors import ConfigError, DlappError, Unreachable
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.values import Decision
from dlapp.system import clock
from dlapp.system.files import check_own_directory
from dlapp.values.waiting import NEVER_FITS, NODES_FULL, SERVICE_AWAY, STARTING

if TYPE_CHECKING:
    from dlapp.cluster.local.gpu_sets import GpuSets
    from dlapp.gpuid.devices import Device

PATIENCE_S = 20.0
"""How long a request that no longer fits the machine waits for the machine to recover (a lost GPU, for example)."""
DRIVER_S = 5.0
"""Poll interval while NVIDIA's driver does not work."""
CONTENTION_S = 1.0
"""How long a start waits for a simultaneous start of another user that is to give way."""
MAX_ANNOUNCED = 100
"""How many applications without a queue position get one per pass."""


class Starter:
    """Starter of the user's waiting applications.

    Attributes:
        passes: the scheduler's passes over the queue.
    """

    def __init__(self, parts: RunnerParts) -> None:
        self._context, self._processes, self._gpus, self._reasons, self._settler = parts
        self._misfits: dict[int, float] = {}  # row number -> since when it does not fit the machine
        self._misfits_seen: set[int] = set()  # in this pass
        self._reader, self.passes = QueueReader(parts.context.state), QueuePasses(parts.context.state)
        self._notify_at_ms: dict[int, float | None] = {}  # row number -> when the user is notified of the wait

    def start_waiting(self) -> None:
        """Start what can start now, in the order of the queue, and record why the others wait."""
        rows = self._context.queue.unsettled()
        own = {row.id: row for row in rows if row.state == WAITING}
        self._notify_waiting(list(own.values()))
        explained = set[int]()
        self._misfits_seen.clear()
        if own:
            contents = self._reader.read(rows)
            self._assign_positions(own, contents)
            if any(row.uid != self._context.uid for row in (*contents.waiting, *contents.running)):
                self._context.wake_within(FOREIGN_S, "other users' changes send no events")
            try:
                explained = self._follow_schedule(own, contents)
            except ConfigError as error:
                first = next(iter(own.values()))
                self._reasons.record(first, Obstacle(str(error), SERVICE_AWAY, is_known=True))
                explained = {first.number}
                self._context.wake_within(ERROR_RETRY_S, "the operator's file is invalid")
        self._reasons.clear([row for row in own.values() if row.reason and row.number not in explained])
        self._gpus.drop_ticket(explained)
        self._misfits = {number: since for number, since in self._misfits.items() if number in self._misfits_seen}

    def _notify_waiting(self, waiting: Sequence[ApplicationRow]) -> None:
        """Notify the user of applications that have waited too long, if configured."""
        now_ms = clock.now_ms()
        for row in waiting:
            if row.number not in self._notify_at_ms:
                after_s = waiting_after_s(self._context.state.application(row.id))
                self._notify_at_ms[row.number] = None if after_s is None else row.submitted_ms + after_s * 1000
            due_ms = self._notify_at_ms[row.number]
            if due_ms is None:
                continue
            if due_ms > now_ms:
                self._context.wake_within((due_ms - now_ms) / 1000, "a notification of a wait is due")
                continue
            self._notify_at_ms[row.number] = None
            self._settler.start_sender(row, waiting=row.reason or "others are before it")

    def _assign_positions(self, own: Mapping[str, ApplicationRow], contents: QueueContents) -> None:
        """Assign queue positions to applications without one: their submitters could not write to the spool."""
        lost = sorted(own.keys() - {row.id for row in contents.waiting})[:MAX_ANNOUNCED]
        for one in lost:
            spool.mark(self._context.state, one, spool.WAITING)
        if lost:
            self._context.queue.publish(own[one].number for one in lost)
            self._context.wake_within(FOREIGN_S, "positions in the queue were assigned")

    def _follow_schedule(self, own: Mapping[str, ApplicationRow], contents: QueueContents) -> set[int]:
        """Start this user's applications whose turn it is; return the numbers of the rows that got a reason for their
        wait."""
        running, explained = list(contents.running), set[int]()
        capacity, others_gcores, sets = self._capacity_for(contents)
        free = capacity.without(running)
        found = self.passes.decide(contents, capacity, others_gcores, sets)
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
                self._reasons.record(row, obstacle, capacity, free, running, latest_s=decision.expected_s)
                explained.add(row.number)
                if decision.starts:
                    break
                continue
            # Started here; or it is another user's turn, whose runner starts it.
            running.append(row)
            free = free.without([row])
            if not decision.starts:
                self._context.wake_within(0.0, "the others were decided without the one that started")
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

    def _handle_too_large(self, row: ApplicationRow, why: Obstacle) -> Obstacle:
        """Handle a request that exceeds the machine in its current state: end the application after some patience."""
        since = self._misfits.setdefault(row.number, time.monotonic())
        self._misfits_seen.add(row.number)
        if time.monotonic() - since >= PATIENCE_S:
            self._settler.end_unstarted(row, failed(why.text, clock.now_ms()))
            self._context.wake_within(0.0, "an application ended")
        else:
            self._context.wake_within(FOREIGN_S, "the machine may recover")
        return why

    def _capacity_for(self, contents: QueueContents) -> tuple[Amounts, int, GpuSets | None]:
        """Return the machine's amounts, how many of its GPUs are held by others or in quarantine, and the sets of GPUs
        to count."""
        capacity = self._capacity()
        if not any(row.gcores for row in contents.waiting):
            return capacity, 0, None
        from dlapp.cluster.local.gpu_sets import gpu_sets
        from dlapp.gpuid.counts import devices_out_of

        self._context.wake_within(FOREIGN_S, "released GPUs send no events")
        try:
            record, devices = self._gpus.ledger().record(), self._gpus.ledger().devices()
        except Unreachable:
            raise
        except DlappError:
            return capacity, 0, None  # the first start that needs GPUs reports it
        ids = {row.id for row in contents.running}
        out = devices_out_of(record, ids)
        sets = gpu_sets(record, contents.waiting, ids)
        return capacity._replace(gcores=min(capacity.gcores, len(devices))), len(out), sets

    def _capacity(self) -> Amounts:
        gcores = (
            UNLIMITED if self._context.settings.gcores is None else self._context.settings.gcores
        )  # the ledger knows the number
        return capacity_of(self._context.settings, gcores)

    def _lack_of_first(self, row: ApplicationRow, free: Amounts, running: Sequence[ApplicationRow]) -> str:
        """Return what a row with GPUs lacks if those before it wait for other GPUs; empty: nothing, or it is not
        known."""
        from dlapp.cluster.local.gpu_sets import demands_of_row

        with contextlib.suppress(DlappError):  # the start of the first in the queue reports it
            lack = self._lack(row, free, running, self._gpus.ledger().devices())
            return self._gpus.ledger().shortage(demands_of_row(row)) if lack is None else lack
        return ""

    def _lack(
        self, row: ApplicationRow, free: Amounts, running: Sequence[ApplicationRow], devices: Sequence[Device]
    ) -> str | None:
        """Return what a row lacks of the free amounts; of GPUs of several kinds only the ledger knows which are free.

        Args:
            devices: all GPUs and slices.
        """
        requested = schedule.amounts_of(row)
        if row.gcores and self._context.settings.gcores is None:
            from dlapp.cluster.local.gpu_sets import demands_of_row
            from dlapp.gpuid.needs import are_plain

            if not are_plain(demands_of_row(row), devices):
                requested = requested._replace(gcores=0)
        return schedule.lack(requested, free, running)

    def _missing(
        self, row: ApplicationRow, capacity: Amounts, free: Amounts, running: Sequence[ApplicationRow]
    ) -> Obstacle | None:
        """Return why a row cannot start now; None: it can, as far as memory, vcores and the configured gcores go."""
        devices = self._gpus.ledger().devices() if row.gcores else ()
        if row.gcores:
            capacity = capacity._replace(gcores=min(capacity.gcores, len(devices)))
        if problem := self._too_large(row, capacity, devices):
            return self._handle_too_large(row, Obstacle(problem, NEVER_FITS))
        lack = self._lack(row, free, running, devices)
        return None if lack is None else Obstacle(lack, NODES_FULL)

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
                self._context.wake_within(DRIVER_S, "NVIDIA's driver does not work")
                return why
            return self._handle_too_large(row, why)

    def _start(self, row: ApplicationRow, capacity: Amounts) -> Obstacle | None:
        """Start a row's ApplicationMaster; return what it still waits for, or None if it was started or has ended."""
        application_dir = self._context.state.application(row.id)
        with contextlib.ExitStack() as held:
            holds: tuple[int, ...] = ()
            if row.gcores:
                reservation = self._gpus.reserve(row)
                if isinstance(reservation, str):
                    return Obstacle(reservation, NODES_FULL)
                held.callback(reservation.close)
                holds = reservation.fds
            try:
                check_own_directory(application_dir, self._context.uid)
                attempt = first_attempt(application_dir)
                alive = acquire_lock(alive_lock(application_dir, attempt), 0o640)
            except OSError as error:
                why = str(error) if isinstance(error, DlappError) else f"{application_dir}: {error.strerror}"
                self._settler.end_unstarted(row, failed(why, clock.now_ms()))
                return None
            if alive is None:
                self._context.wake_within(self._context.lingering_s, LINGERING)
                return Obstacle("processes of an earlier start are ending", STARTING, is_known=True)
            held.callback(os.close, alive)
            if not self._mark_started(row, capacity):
                self._context.wake_within(0.0, "others came first")
                return Obstacle("others came first", NODES_FULL, is_known=True)
            self._processes.spawn(row, application_dir, attempt, alive, holds)
        return None

    def _mark_started(self, row: ApplicationRow, capacity: Amounts) -> bool:
        """Set the row to running if it still waits and still fits: others may have started theirs meanwhile."""
        with contextlib.ExitStack() as started:
            if self._context.state.shared:
                started.callback(spool.mark, self._context.state, row.id, spool.WAITING)
                if not self._has_room(row, capacity):
                    return False
            with self._context.queue.change():
                now = self._context.queue.row(row.id)
                if now is None or now.state != WAITING:
                    return False
                self._context.queue.update(
                    row.number,
                    state=RUNNING,
                    started_ms=clock.now_ms(),
                    starts=row.starts + 1,
                    boot_id=self._context.boot_id,
                    reason="",
                )
            started.pop_all()
        return True

    def _has_room(self, row: ApplicationRow, capacity: Amounts) -> bool:
        """Return whether the other users' runners leave room for a start; see the steps in
        `dlapp.cluster.local.spool`."""
        spool.mark(self._context.state, row.id, spool.STARTING)
        own = [one for one in self._context.queue.unsettled() if one.state == RUNNING]
        count_returned(self._context.state, own)
        order = next((one.order for one in spool.entries_of(self._context.state) if one.id == row.id), None)
        if order is None:
            return False
        requested, free, deadline = schedule.amounts_of(row), capacity.without(own), time.monotonic() + CONTENTION_S
        while True:
            others = [row_of(one) for one in spool.entries_of_others(self._context.state) if one.phase != spool.WAITING]
            count_returned(self._context.state, others)
            rivals = [one for one in others if spool.is_alive(self._context.state.of(one.uid), one.id)]
            decision = schedule.decide_start(requested, order, free, rivals)
            if decision is StartDecision.START:
                spool.mark(self._context.state, row.id, spool.RUNNING)
                return True
            if decision is StartDecision.WITHDRAW or time.monotonic() >= deadline:
                return False
            time.sleep(LINGERING_S[0])
