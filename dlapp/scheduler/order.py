"""Order of the queue: class, then decayed usage, then arrival.

Two orders are merged, so that priority cannot be used against other users, and waiting raises the priority:

- Within one user's jobs the requested priority counts, raised by the time since a job's arrival. So no job of a user
  waits indefinitely because of that user's later ones.
- Between users the priority is capped, and only the first job of each user is raised: by the time in which no earlier
  job of that user started. So a user gains nothing by queueing many jobs; and no job waits indefinitely because of
  other users with a higher priority or less usage, or because of its own user's later, backfilled ones.

A job that runs, or is placed in the order, counts at least as if it ran for an hour, or for its max_runtime if that is
less. So users with similar usage take turns, whether resources become free at once or gradually.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from heapq import heapify, heappop, heapreplace

from dlapp.scheduler.usage import HOUR_S
from dlapp.scheduler.values import Policy, QueueState, WaitingJob

ASSUMED_S = HOUR_S
"""Minimum run time with which a job counts, if its max_runtime is not less [s]."""

_Front = tuple[int, float, tuple[int, int, str], int]
"""Negated class, hours, place, user: the lowest is the next."""


def user_order(jobs: list[WaitingJob], policy: Policy, now_s: float) -> list[WaitingJob]:
    """Return one user's jobs in that user's own order."""
    raise_after_s = policy.raise_after_s
    return sorted(jobs, key=lambda job: (-job.priority - int((now_s - job.arrived_s) / raise_after_s), job.place))


def queue_order(
    jobs_by_user: Mapping[int, Sequence[WaitingJob]],
    state: QueueState,
    policy: Policy,
    now_s: float,
    *,
    may_start: Callable[[WaitingJob], bool],
) -> Iterator[WaitingJob]:
    """Yield jobs in the order of the queue.

    Args:
        jobs_by_user: the jobs in the order, of each user in that user's order; none is empty.
        state: queue with the usage of the users.
        policy: policy with the caps of the classes.
        now_s: the time [s since 1970].
        may_start: called when it is a job's turn; False: the job is left out, and its user's next one follows.
    """
    queues = {user: list(reversed(jobs)) for user, jobs in jobs_by_user.items()}
    hours = {user: state.hours.get(user, 0.0) for user in queues}
    for one in state.running:
        if one.user in hours and one.started_s is not None:
            limit_s = None if one.ends_s is None else one.ends_s - one.started_s
            left_s = _assumed_s(limit_s) - max(0.0, now_s - one.started_s)
            hours[one.user] += policy.charged(one.amounts) * max(0.0, left_s) / HOUR_S
    caps = {user: policy.cap_of(user) for user in queues}
    fronts: list[_Front] = []
    for user, queue in queues.items():
        job = queue[-1]
        earlier = (started_s for arrived_s, started_s in state.starts.get(user, ()) if arrived_s <= job.arrived_s)
        waited_s = now_s - max(job.arrived_s, max(earlier, default=job.arrived_s))
        raised = min(job.priority, caps[user]) + max(0, int(waited_s / policy.raise_after_s))
        fronts.append((-raised, hours[user], job.place, user))
    heapify(fronts)
    while fronts:
        user = fronts[0][3]
        queue = queues[user]
        job = queue.pop()
        if may_start(job):
            yield job
            hours[user] += policy.charged(job.amounts) * _assumed_s(job.max_runtime_s) / HOUR_S
        if queue:
            following = queue[-1]
            heapreplace(fronts, (-min(following.priority, caps[user]), hours[user], following.place, user))
        else:
            heappop(fronts)


def _assumed_s(limit_s: float | None) -> float:
    return ASSUMED_S if limit_s is None else min(ASSUMED_S, max(0.0, limit_s))
