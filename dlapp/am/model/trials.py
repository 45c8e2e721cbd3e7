"""Trials of a sweep, as known to its ApplicationMaster.

A trial waits, runs in a container, and ends; after a failure, or if its container is lost, it waits again. An end
counts for a next attempt when the journal has it; only then may the container forget it.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import TYPE_CHECKING

from dlapp.am.model.events import Part
from dlapp.am.model.records.trial_end import ENDED_WITH_SWEEP, TrialEnd
from dlapp.am.model.records.trials import TrialEndRecord
from dlapp.sweep.asha import AshaState
from dlapp.sweep.results import (
    TrialState,
    TrialView,
    committed_line,
    downsampled,
    head_line,
    trial_line,
)
from dlapp.sweep.spec import Sampler, SweepSpec
from dlapp.sweep.trial import trial_of
from dlapp.value import Record
from dlapp.values.ids import ContainerId, trial_part
from dlapp.values.messages import StoredOutput, TrialOrder, TrialWork

if TYPE_CHECKING:
    from dlapp.am.model.records.recovered import RecoveredTrial
    from dlapp.sweep.optuna_study import OptunaStudy


class TrialRecord(Record):
    """One trial.

    Attributes:
        number: number of the trial, from 0.
        tries: number of its starts, so also the number of the last try.
        user_faults, node_faults: number of ends for which its program, or something else, is responsible.
        holder, index: container of its last try, and its CONTAINER_INDEX; None: none.
        parameters: the values that Optuna chose; None: none chosen yet, or Optuna is not used.
        points: step and value of its metric, until ``line`` contains them.
        reports, problem: as in `dlapp.values.messages.TrialReport`.
        ran_s: run time of its last try's program.
        evaluated_step: the last step that early stopping has decided on.
        stop: why it is being stopped early, or was; empty: it is not.
        message: message of its last end, for the user.
        is_lost: it has failed for a reason other than its program: a node, a service that did not come back, or
            output that could not be stored.
        outputs: stored outputs of its last try.
        sources: locations of ``outputs``, if another sweep stored them; else empty.
        is_committed: its output is committed.
        line: its line of the results, once it has ended (`dlapp.sweep.results`); empty: it has not.
        started_ms, finished_ms: times of its last try [ms since 1970].
    """

    number: int
    state: TrialState = TrialState.WAITING
    tries: int = 0
    user_faults: int = 0
    node_faults: int = 0
    holder: ContainerId | None = None
    index: int | None = None
    parameters: dict[str, str] | None = None
    points: tuple[tuple[float, float], ...] = ()
    reports: int = 0
    problem: str = ""
    ran_s: float = 0.0
    evaluated_step: int = -1
    stop: str = ""
    message: str = ""
    is_lost: bool = False
    exit_code: int | None = None
    outputs: tuple[StoredOutput, ...] = ()
    sources: tuple[str, ...] = ()
    is_committed: bool = False
    line: str = ""
    started_ms: int | None = None
    finished_ms: int | None = None

    @property
    def is_pruned(self) -> bool:
        """Return True if it was stopped early, because others are better."""
        return self.state is TrialState.STOPPED and bool(self.stop)

    @property
    def has_ended(self) -> bool:
        """Return True if it does not run again."""
        return self.state in (TrialState.DONE, TrialState.STOPPED, TrialState.FAILED)


class SweepState:
    """Trials of an application.

    Attributes:
        trials: by number.
        held: container -> its ordered trials, and those whose end is not recorded yet.
        free: running containers with a free slot, in the order in which they got it.
        paused: containers that get no trial before this time [ms of time awake], after a failure that no program
            caused.
        running: number of running trials.
        left: number of trials that have not ended, or whose end is not recorded.
        unrecorded: ends that are not durable yet, each with its line of the journal.
        committing: numbers of the trials whose output is to be committed separately, and is not yet.
        committed: number of those that are.
        changed: incremented with each change that users see.
        study: Optuna, once `open_study` was called; None: another sampler chooses the parameters.
    """

    def __init__(self, spec: SweepSpec, containers: int) -> None:
        self.spec = spec
        self.concurrency = spec.concurrency_of(containers)
        self.trials = [TrialRecord(number) for number in range(spec.trials)]
        self._waiting = list(range(spec.trials))
        self.held: dict[ContainerId, dict[int, TrialRecord]] = {}
        self.free: dict[ContainerId, None] = {}
        self.paused: dict[ContainerId, int] = {}
        self.running = 0
        self.left = spec.trials
        self.failed = 0
        self.unrecorded: deque[tuple[int, ContainerId, TrialRecord]] = deque()
        self.committing: set[int] = set()
        self.committed = 0
        self.changed = 0
        self.study: OptunaStudy | None = None
        self.asha = AshaState(spec.asha, spec.goal) if spec.asha is not None and spec.goal is not None else None

    @property
    def work(self) -> TrialWork:
        """Return the part of an assignment that all trials share."""
        one = self.spec
        return TrialWork(
            slots=one.trials_per_container,
            metric=one.metric,
            trial_time_s=one.trial_time_s,
            milestones=one.asha.rungs if one.asha is not None else (),
        )

    def order_of(self, trial: TrialRecord) -> TrialOrder:
        """Return the order to run a trial, or to stop it."""
        return TrialOrder(
            number=trial.number,
            try_number=trial.tries,
            parameters=tuple(self.parameters_of(trial).items()),
            stop=trial.stop if trial.state is TrialState.RUNNING else "",
        )

    @property
    def uses_optuna(self) -> bool:
        """Return True if Optuna chooses the parameters."""
        return self.spec.sampler is Sampler.OPTUNA

    def open_study(self) -> None:
        """Create Optuna's study from the known trials. Raises DlappError: it cannot be created."""
        from dlapp.sweep.optuna_study import OptunaStudy, PastTrial  # large, and few sweeps need it

        past = {
            one.number: PastTrial(
                parameters=one.parameters,
                points=tuple((int(step), value) for step, value in one.points),
                value=_value_of(one),
                has_ended=one.has_ended,
                was_pruned=one.is_pruned,
            )
            for one in self.trials
            if one.parameters is not None
        }
        self.study = OptunaStudy(self.spec, past)

    def parameters_of(self, trial: TrialRecord) -> dict[str, str]:
        """Return the parameters of a trial; none if Optuna has not chosen them."""
        return (trial.parameters or {}) if self.uses_optuna else trial_of(self.spec, trial.number).parameters

    def next_waiting(self) -> TrialRecord | None:
        """Return the first waiting trial; it keeps waiting until it is assigned to a container."""
        while self._waiting and self.trials[self._waiting[0]].state is not TrialState.WAITING:
            heapq.heappop(self._waiting)
        return self.trials[self._waiting[0]] if self._waiting else None

    def assign_trial(self, trial: TrialRecord, holder: ContainerId, index: int, try_number: int, now_ms: int) -> None:
        """Record that a container runs a trial.

        Args:
            trial: waiting trial.
            holder, index: the container, and its CONTAINER_INDEX.
            try_number: number of this try.
            now_ms: the time [ms since 1970].
        """
        trial.state, trial.holder, trial.index, trial.tries = TrialState.RUNNING, holder, index, try_number
        trial.points, trial.reports, trial.problem, trial.stop = (), 0, "", ""
        trial.ran_s, trial.started_ms, trial.finished_ms, trial.outputs = 0.0, now_ms, None, ()
        trial.message, trial.exit_code, trial.sources, trial.is_lost = "", None, (), False
        self.held.setdefault(holder, {})[trial.number] = trial
        self.running += 1
        self.changed += 1

    def requeue_trial(self, trial: TrialRecord) -> None:
        """Record that a trial waits again."""
        if trial.holder is not None:
            self._drop(trial.holder, trial)
        self.running -= trial.state is TrialState.RUNNING
        self.changed += 1
        trial.state, trial.outputs = TrialState.WAITING, ()
        heapq.heappush(self._waiting, trial.number)

    def end(self, trial: TrialRecord, ended: TrialState, now_ms: int, line: int) -> None:
        """Record that a trial has ended.

        Args:
            trial: running trial.
            ended: how it ended; WAITING: with the application.
            now_ms: the time [ms since 1970].
            line: its line of the journal.
        """
        assert trial.holder is not None
        self.running -= 1
        trial.state, trial.finished_ms = ended, now_ms
        if self.study is not None and trial.has_ended:
            self.study.tell(trial.number, _value_of(trial))
        self._fix_line(trial)
        self.failed += ended is TrialState.FAILED
        self.unrecorded.append((line, trial.holder, trial))
        self.changed += 1

    def record_durable_end(self, trial: TrialRecord, holder: ContainerId) -> None:
        """Record that the end of a trial is durable."""
        if trial.has_ended:
            self.left -= 1
        self._drop(holder, trial)

    def restore_end(self, trial: TrialRecord, ended: TrialState) -> None:
        """Record that a trial has ended in an earlier attempt."""
        trial.state = ended
        self._fix_line(trial)
        self.left -= 1
        self.failed += ended is TrialState.FAILED
        self.committed += trial.is_committed

    def record_committed(self, trial: TrialRecord) -> None:
        """Record that the output of an ended trial is committed."""
        self.committing.discard(trial.number)
        if not trial.is_committed:
            trial.is_committed, trial.line = True, committed_line(trial.line)
            self.committed += 1
            self.changed += 1

    def _fix_line(self, trial: TrialRecord) -> None:
        trial.line = trial_line(view_of(self, trial), self.spec.parameters)
        if not self.uses_optuna:
            trial.points = trial.points[-1:]

    def results(self) -> str:
        """Return the results in the form of their file."""
        names = self.spec.parameters
        started = (one for one in self.trials if one.tries)
        lines = (one.line or trial_line(view_of(self, one), names) for one in started)
        return "\n".join((head_line(self.spec), *lines, ""))

    def _drop(self, holder: ContainerId, trial: TrialRecord) -> None:
        held = self.held.get(holder)
        if held is not None and held.get(trial.number) is trial:
            del held[trial.number]
            if not held:
                del self.held[holder]

    def running_in(self, container_id: ContainerId) -> list[TrialRecord]:
        """Return the trials of a container."""
        return [one for one in self.held.get(container_id, {}).values() if one.state is TrialState.RUNNING]


def _value_of(trial: TrialRecord) -> float | None:
    """Return the result of a trial; None: it has none."""
    is_result = trial.state in (TrialState.DONE, TrialState.STOPPED)
    return trial.points[-1][1] if is_result and trial.points else None


def end_record(trial: TrialRecord, ended: TrialState) -> TrialEndRecord:
    """Return the journal record of the end of an assigned trial; WAITING: it ended with the application."""
    assert trial.holder is not None
    assert trial.index is not None
    end = TrialEnd(
        state=ENDED_WITH_SWEEP if ended is TrialState.WAITING else ended.value,
        ran_s=trial.ran_s,
        started_ms=trial.started_ms,
        points=trial.points,
        reports=trial.reports if trial.points else 0,
        problem=trial.problem,
        stop=trial.stop,
        message=trial.message,
        exit_code=trial.exit_code,
        sources=trial.sources,
        committed=trial.is_committed,
        lost=trial.is_lost,
        outputs=trial.outputs,
    )
    return TrialEndRecord(
        number=trial.number,
        try_number=trial.tries,
        user_faults=trial.user_faults,
        node_faults=trial.node_faults,
        holder=trial.holder,
        index=trial.index,
        end=end,
        parameters=trial.parameters,
    )


def restore_end(trial: TrialRecord, end: TrialEnd, ended_ms: int) -> TrialState:
    """Set the fields of a trial that ended in an earlier attempt. Return how it ended; WAITING: with the application.

    Args:
        trial: the trial; it is changed.
        end: its end, according to the journal.
        ended_ms: when it ended [ms since 1970].
    """
    trial.points, trial.reports, trial.ran_s = end.points, end.reports, end.ran_s
    trial.problem, trial.stop, trial.message = end.problem, end.stop, end.message
    trial.exit_code, trial.outputs, trial.sources = end.exit_code, end.outputs, end.sources
    trial.started_ms, trial.finished_ms = end.started_ms, ended_ms
    trial.is_committed, trial.is_lost = end.committed, end.lost
    return TrialState.WAITING if end.state == ENDED_WITH_SWEEP else TrialState(end.state)


def view_of(sweep: SweepState, trial: TrialRecord) -> TrialView:
    """Return the view of a trial for users."""
    last = trial.points[-1] if trial.points else None
    return TrialView(
        number=trial.number,
        state=trial.state,
        parameters=sweep.parameters_of(trial),
        tries=trial.tries,
        metric=None if last is None else last[1],
        step=None if last is None else int(last[0]),
        reports=trial.reports,
        ran_s=trial.ran_s,
        container=trial.index,
        exit_code=trial.exit_code,
        why=trial.stop or trial.message,
        curve=downsampled(trial.points),
        container_id="" if trial.holder is None else str(trial.holder),
        is_committed=trial.is_committed,
        is_pruned=trial.is_pruned,
    )


def part_of(trial: TrialRecord) -> Part:
    """Return the stored output of a trial's last try."""
    number, holder = trial.number, trial.holder
    assert holder is not None
    return Part(number, "trial", number, holder, trial.outputs, trial_part(number, trial.tries), trial.sources)


def recovered_parts(trials: dict[int, RecoveredTrial], *, ended_only: bool = False) -> list[Part]:
    """Return the uncommitted output of trials, by number, according to the journal; with ``ended_only`` not that of
    trials that ended because the application did.
    """
    parts = []
    for number, known in sorted(trials.items()):
        if known.end is None or known.holder is None:
            continue
        trial = TrialRecord(number)
        how = restore_end(trial, known.end, known.ended_ms)
        trial.holder, trial.tries = known.holder, known.tries
        if how is TrialState.FAILED or (ended_only and how is TrialState.WAITING):
            continue
        if trial.outputs and not trial.is_committed:
            parts.append(part_of(trial))
    return parts
