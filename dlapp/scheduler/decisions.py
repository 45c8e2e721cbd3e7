"""One pass over the queue of a machine: which jobs start now, and what each of the others waits for."""

from __future__ import annotations

from functools import partial

from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.backfill import StartReservation, by_area, reservation_after, reserve
from dlapp.scheduler.order import queue_order, user_order
from dlapp.scheduler.values import Decision, Policy, QueueState, RunningJob, Schedule, WaitingJob
from dlapp.values.waiting import NEVER_FITS, NODES_FULL, SERVICE_AWAY, STARTING, USER_LIMIT

_NO_RUNNER = "passed over: its user has no runner (that user's next dlapp command starts one)"


def decide(state: QueueState, policy: Policy, now_s: float) -> Schedule:
    """Decide on every job that waits.

    Jobs start in the order of the queue. The first that does not fit gets the reservation; of those behind it start
    what does not delay it. Out of the order, so holding up nobody, are jobs of absent users, above a limit of their
    user, and those that the machine can never fit.

    Args:
        now_s: the time [s since 1970].
    """
    jobs_by_user, excluded = _admitted(state, policy, now_s)
    return _Pass(state, policy, now_s, excluded).run(jobs_by_user)


def _admitted(state: QueueState, policy: Policy, now_s: float) -> tuple[dict[int, list[WaitingJob]], list[Decision]]:
    """Return the jobs that can be in the order, of each user in that user's order, and decisions on the others."""
    by_user, excluded = dict[int, list[WaitingJob]](), list[Decision]()
    absent = frozenset(state.absent)
    for job in state.waiting:
        if not job.amounts.fits(state.capacity):
            excluded.append(Decision(job, code=NEVER_FITS, message="asks for more than this machine has"))
        elif job.user in absent:
            excluded.append(Decision(job, code=SERVICE_AWAY, message=_NO_RUNNER))
        else:
            by_user.setdefault(job.user, []).append(job)
    most = policy.user_queued
    text = f"its user has more than {most} applications in the queue (queue.user_queued)"
    for user, jobs in by_user.items():
        ordered = user_order(jobs, policy, now_s)
        if most is not None and len(ordered) > most:
            excluded += [Decision(job, code=USER_LIMIT, message=text) for job in ordered[most:]]
            del ordered[most:]
        by_user[user] = ordered
    return by_user, excluded


class _Pass:
    """A pass in progress."""

    def __init__(self, state: QueueState, policy: Policy, now_s: float, excluded: list[Decision]) -> None:
        self._state, self._policy, self._now_s, self._excluded = state, policy, now_s, excluded
        self._running = list(state.running)
        self._free = state.capacity
        self._gcores: dict[int, int] = {}  # that run, by uid
        for one in state.running:
            self._free = self._free.minus(one.amounts)
            if one.user is not None:
                self._gcores[one.user] = self._gcores.get(one.user, 0) + one.amounts.gcores
        self._limited: set[int] = set()  # uids of users of whom a job waits for the limit

    def run(self, jobs_by_user: dict[int, list[WaitingJob]]) -> Schedule:
        """Decide on jobs that are in the order."""
        decisions, behind = list[Decision](), list[WaitingJob]()
        head: WaitingJob | None = None
        for job in queue_order(jobs_by_user, self._state, self._policy, self._now_s, may_start=self._is_within_limit):
            if head is not None:
                behind.append(job)
            elif job.amounts.fits(self._free):
                decisions.append(Decision(job, True, STARTING, ahead=0))
                self._start(job)
            else:
                head = job
        if head is None:
            return Schedule([*decisions, *self._excluded])
        reservation = reserve(head, self._free, self._running, self._now_s)
        decisions.append(Decision(head, ahead=0, expected_s=reservation.at_s))
        backfilled, extra = self._backfill(head, behind, reservation)
        ahead, firsts = 1, [(head.amounts, self._free, extra)]
        for job in behind:
            if job.id in backfilled:
                decisions.append(Decision(job, True, STARTING, "", ahead, None, True))
                continue
            is_first = bool(job.amounts.by_set) and not any(job.amounts.is_behind(*one) for one in firsts)
            if is_first:
                firsts.append((job.amounts, self._free, self._free.remaining(job.amounts)))
            decisions.append(Decision(job, False, NODES_FULL, "", 0 if is_first else ahead))
            ahead += 1
        return Schedule([*decisions, *self._excluded], head)

    def _backfill(
        self, head: WaitingJob, behind: list[WaitingJob], reservation: StartReservation
    ) -> tuple[set[str], Amounts]:
        """Return the ids of those of the jobs behind the head that start beside its reservation, and what it leaves to
        others then."""
        found = set[str]()
        candidates = [job for job in behind if job.amounts.fits(self._free)]
        candidates.sort(key=partial(by_area, policy=self._policy))
        for job in candidates:
            after = reservation_after(job, self._free, reservation, self._now_s)
            if after is not None and self._is_within_limit_with_head(job, head):
                reservation = after
                found.add(job.id)
                self._start(job)
        return found, reservation.extra

    def _is_within_limit_with_head(self, job: WaitingJob, head: WaitingJob) -> bool:
        """Return whether a job's user stays within the limit if it starts, and the head after it."""
        gcores = job.amounts.gcores
        if not gcores or (most := self._policy.gcores_of(job.user)) is None:
            return True
        of_head = head.amounts.gcores if head.user == job.user else 0
        return self._gcores.get(job.user, 0) + gcores + of_head <= most

    def _is_within_limit(self, job: WaitingJob) -> bool:
        """Return whether its user's limit lets a job start; else decide on it."""
        gcores = job.amounts.gcores
        if not gcores or (most := self._policy.gcores_of(job.user)) is None:
            return True
        used = self._gcores.get(job.user, 0)
        # A later one of the same user would keep this one from ever starting.
        if used + gcores <= most and job.user not in self._limited:
            return True
        if gcores > most:
            code, text = NEVER_FITS, f"asks for {gcores} GPUs, its user may have {most} at a time (queue.user_gcores)"
        else:
            code = USER_LIMIT
            self._limited.add(job.user)
            text = f"its user has {used} of the {most} GPUs of one user at a time (queue.user_gcores)"
        self._excluded.append(Decision(job, code=code, message=text))
        return False

    def _start(self, job: WaitingJob) -> None:
        self._free = self._free.minus(job.amounts)
        self._gcores[job.user] = self._gcores.get(job.user, 0) + job.amounts.gcores
        ends_s = None if job.max_runtime_s is None else self._now_s + job.max_runtime_s
        self._running.append(RunningJob(job.user, job.amounts, ends_s))
