"""Trials of one container: started on orders, and reported until orders omit them.

Only orders decide what runs (`dlapp.values.messages.Orders.trials`), so a trial runs once, however often its
ApplicationMaster is replaced:

- A trial is started when orders name it with a try that is new to this task.
- Its result is part of each report until orders omit it: then the journal has it.
- A running trial that orders omit is killed: it belongs to another container.
- An ApplicationMaster that does not know yet what runs here sends None, and nothing changes.
"""

from __future__ import annotations

import select
from collections.abc import Callable
from functools import reduce
from typing import NamedTuple

from dlapp.runtime.payload import PayloadPlace, Reachable, Running
from dlapp.system.processes.resource_counters import NOTHING_KNOWN, ResourceCounters
from dlapp.task.interrupt import InterruptHandler
from dlapp.task.link.am_link import AmLink
from dlapp.task.payload.runner import GPU_FAILED
from dlapp.task.sweep.trial import STOPPED, TrialRun, TrialSetup
from dlapp.value import replace
from dlapp.values.messages import Fault, NotStored, Phase, Stop, StreamOrder, TaskResult

_LOOK_S = 1.0
"""Interval of the polls of objects without events: the container's directory, the guardians."""
_NOTHING = 0, "", None
"""Report of a trial that has just been started."""


class WorkerEnd(NamedTuple):
    """Reason why no trial can run in this container any more.

    Args:
        is_lost: as `TaskResult.lost`.
        is_soft: the programs get SIGTERM and their grace time.
    """

    message: str
    is_lost: bool = False
    is_soft: bool = False


class _SharedPlace(NamedTuple):
    """The `dlapp.runtime.payload.Reachable` of all trials that are plain processes; no command runs there."""

    directory: str

    def place(self) -> PayloadPlace:
        return PayloadPlace(directory=self.directory)

    def open_keeper(self) -> None:
        """See `Reachable.open_keeper`."""


class TrialWorker:
    """Runner of the trials of one container.

    Args:
        setup: what they share.
        stopper: takes the orders to stop.
        end_reason: returns why the container cannot be used any more; None if it can.
        sample: measures the container; returns the delay until the next call [s].
    """

    def __init__(
        self,
        setup: TrialSetup,
        stopper: InterruptHandler,
        *,
        end_reason: Callable[[], WorkerEnd | None],
        sample: Callable[[], float],
    ) -> None:
        self._setup, self._stopper = setup, stopper
        self._link: AmLink = setup.link
        self._end_reason, self._sample = end_reason, sample
        self._trials: dict[tuple[int, int], TrialRun] = {}
        self._unnamed: set[tuple[int, int]] = set()
        self._leaving: list[TrialRun] = []
        self._used = NOTHING_KNOWN  # by trials that have ended
        self._stored_bytes = 0  # by them
        self._not_stored: NotStored | None = None  # of them
        self._reported: dict[tuple[int, int], tuple[object, ...]] = {}

    def counters(self) -> ResourceCounters:
        """Return the resources used by all trials so far."""
        running = (one.read_counters() for one in self._trials.values())
        return reduce(ResourceCounters.plus, running, self._used)

    def stored_bytes(self) -> int:
        """Return the size of the output stored by all trials so far."""
        return self._stored_bytes + sum(map(_stored_by, self._trials.values()))

    def reachable(self, order: StreamOrder) -> Reachable | None:
        """Return what a stream is for: the program of its trial, or the network and files that all trials share; None
        if they share none. Thread-safe.

        Raises:
            StreamRefused: the trial does not run.
        """
        if order.trial is None:
            # In Docker each trial has its own container.
            in_docker = self._setup.assignment.docker_image is not None
            return None if in_docker else _SharedPlace(self._setup.container_dir)
        running = {one.order.number: one for one in tuple(self._trials.values()) if one.program() is not None}
        found = running.get(order.trial)
        if found is None or found.order.try_number != order.try_number or (program := found.program()) is None:
            from dlapp.net.streams import StreamRefused

            others = ", ".join(map(str, sorted(running))) or "none"
            raise StreamRefused(f"trial {order.trial} does not run its program now; running in its container: {others}")
        return program

    def programs(self) -> list[Running]:
        """Return the programs of the trials that run. Thread-safe."""
        found = (one.program() for one in tuple(self._trials.values()))
        return [one for one in found if one is not None]

    def run(self) -> TaskResult:
        """Run trials until orders announce that there are no more, or end the task."""
        try:
            result = self._run()
            return replace(result, not_stored=reduce(_with_not_stored, self._trials.values(), self._not_stored))
        finally:
            for one in (*self._trials.values(), *self._leaving):
                one.kill()
                one.close()

    def _run(self) -> TaskResult:
        while True:
            end = self._end_reason()
            if end is None and self._stopper.wanted is Stop.NO:
                self._execute_orders()
            self._close_removed()
            self._report()
            running = [one for one in self._trials.values() if not one.has_ended]
            if self._stopper.wanted is Stop.NOW or (end is not None and not end.is_soft):
                for one in running:
                    one.kill()
                if not running:
                    break
            elif end is not None or self._stopper.wanted is Stop.SOFT:
                stop = (
                    (self._stopper.why, self._stopper.reason or "stopped") if end is None else (end.message, GPU_FAILED)
                )
                for one in running:
                    one.stop(*stop)
                if not running:
                    break
                if all(one.is_storing for one in running) and self._link.phase is not Phase.STORING:
                    self._link.report_phase(Phase.STORING)  # it has a longer time limit than programs
            elif not self._trials and self._is_finished:
                return TaskResult(fault=Fault.NONE)
            self._wait()
        if end is not None:
            return TaskResult(fault=Fault.NODE, message=end.message, lost=end.is_lost)
        return TaskResult(fault=Fault.STOPPED, message=self._stopper.why)

    @property
    def _is_finished(self) -> bool:
        orders = self._link.orders
        return orders.trials_are_over and not orders.trials

    def _execute_orders(self) -> None:
        """Start, stop and remove trials according to the latest orders."""
        orders = self._link.orders
        if orders.trials is None:
            return
        named = {(one.number, one.try_number): one for one in orders.trials}
        for key, trial in list(self._trials.items()):
            if key in named:
                if named[key].stop:
                    trial.stop(named[key].stop, STOPPED)
            elif trial.has_ended:
                self._retire(key)
            elif key not in self._unnamed:
                self._unnamed.add(key)
                self._setup.note(f"trial {trial.name} belongs to another container")
                trial.kill()
        for key, order in named.items():
            if key not in self._trials and (slot := self._free_slot()) is not None:
                self._setup.note(f"trial {order.number}, try {order.try_number}")
                self._trials[key] = TrialRun(order, slot, self._setup)

    def _retire(self, key: tuple[int, int]) -> None:
        trial = self._trials.pop(key)
        self._unnamed.discard(key)
        self._used = self._used.plus(trial.counters)._replace(memory_bytes=None)
        self._stored_bytes += _stored_by(trial)
        self._not_stored = _with_not_stored(self._not_stored, trial)
        self._leaving.append(trial)

    def _close_removed(self) -> None:
        gone = [one for one in self._leaving if one.is_removed]
        for one in gone:
            one.close()
            self._leaving.remove(one)

    def _free_slot(self) -> int | None:
        taken = {one.slot for one in self._trials.values() if not one.has_ended}
        return next((slot for slot in range(self._setup.work.slots) if slot not in taken), None)

    def _report(self) -> None:
        reports = tuple(one.report() for key, one in self._trials.items() if key not in self._unnamed)
        said: dict[tuple[int, int], tuple[object, ...]] = {
            (one.number, one.try_number): (one.reports, one.problem, one.result) for one in reports
        }
        if said != self._reported:
            # Started and removed trials follow from orders: only the next ApplicationMaster needs a report.
            at_once = any(what != self._reported.get(key, _NOTHING) for key, what in said.items())
            self._reported = said
            self._link.report_fields(at_once=at_once, trials=reports)

    def _wait(self) -> None:
        poll = select.poll()
        poll.register(self._stopper.wake_fd, select.POLLIN)
        poll.poll(max(1, int(min(self._sample(), _LOOK_S) * 1000)))
        self._stopper.drain()


def _stored_by(trial: TrialRun) -> int:
    result = trial.report().result
    return 0 if result is None else sum(one.size_bytes for one in result.outputs)


def _with_not_stored(former: NotStored | None, trial: TrialRun) -> NotStored | None:
    result = trial.report().result
    if result is None or result.not_stored is None:
        return former
    return result.not_stored if former is None else former.plus(result.not_stored)
