"""Values of the scheduler: waiting and running jobs, the operator's policy, and decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dlapp.scheduler.amounts import Amounts
from dlapp.values.waiting import NODES_FULL

DAY_S = 86400.0


class WaitingJob(NamedTuple):
    """Application that waits.

    Args:
        user: uid of its owner.
        amounts: total of all its containers.
        arrived_s: arrival time [s since 1970].
        place: position by arrival among all jobs; unique.
        priority: requested priority; higher ones come first.
        max_runtime_s: time limit after its start [s]; None: no limit.
    """

    id: str
    user: int
    amounts: Amounts
    arrived_s: float
    place: tuple[int, int, str]
    priority: int = 0
    max_runtime_s: float | None = None


class RunningJob(NamedTuple):
    """Holder of some of the machine's amounts.

    Args:
        user: uid of its owner; None: not of this queue.
        ends_s: latest end [s since 1970]; None: not known.
        started_s: when it started [s since 1970]; None: not known.
    """

    user: int | None
    amounts: Amounts
    ends_s: float | None = None
    started_s: float | None = None


class Policy(NamedTuple):
    """Limits and weights set by the operator.

    Args:
        half_life_s: half-life of usage [s].
        raise_after_s: waiting time that raises the priority by one [s].
        max_priority: highest priority that counts against other users, before it is raised.
        max_priority_by_user: the same for single users, by uid.
        user_gcores: maximum number of GPUs of one user's running applications; None: no limit.
        user_gcores_by_user: the same for single users, by uid.
        user_queued: maximum number of one user's waiting applications; None: no limit.
        charge: unit of a user's usage: ``gcores`` or ``vcores``.
    """

    half_life_s: float = 7 * DAY_S
    raise_after_s: float = DAY_S
    max_priority: int = 0
    max_priority_by_user: Mapping[int, int] = {}
    user_gcores: int | None = None
    user_gcores_by_user: Mapping[int, int] = {}
    user_queued: int | None = None
    charge: str = "gcores"

    def cap_of(self, user: int) -> int:
        """Return the highest priority of a user that counts against other users."""
        return self.max_priority_by_user.get(user, self.max_priority)

    def gcores_of(self, user: int) -> int | None:
        """Return the maximum number of GPUs of a user; None: no limit."""
        return self.user_gcores_by_user.get(user, self.user_gcores)

    def charged(self, amounts: Amounts) -> int:
        """Return the amount counted as usage."""
        return amounts.vcores if self.charge == "vcores" else amounts.gcores


class QueueState(NamedTuple):
    """Queue of one machine at one moment.

    Args:
        capacity: amounts of the machine.
        running: all holders of a part of it.
        waiting: in any order.
        hours: decayed usage by uid (`dlapp.scheduler.usage`).
        starts: arrival and start times of a user's applications that run or ran recently, by uid [s since 1970].
        absent: uids of users who start nothing now: they are skipped, and reserve nothing.
    """

    capacity: Amounts
    running: Sequence[RunningJob]
    waiting: Sequence[WaitingJob]
    hours: Mapping[int, float] = {}
    starts: Mapping[int, Sequence[tuple[float, float]]] = {}
    absent: Collection[int] = ()


class Decision(NamedTuple):
    """Decision on one waiting job.

    Args:
        starts: start it now.
        code, message: otherwise the reason, as in `dlapp.values.waiting.Waiting`; ``message`` is empty if others come
            before it (``ahead``), and for the job with the reservation: what it lacks is shown with the holders.
        ahead: number of non-starting jobs before it; 0 if all of them wait for other GPUs than it; None: it is not in
            the order.
        expected_s: latest start of the job with the reservation; None: not known.
        is_backfilled: it starts before an earlier job.
    """

    job: WaitingJob
    starts: bool = False
    code: str = NODES_FULL
    message: str = ""
    ahead: int | None = None
    expected_s: float | None = None
    is_backfilled: bool = False


class Schedule(NamedTuple):
    """Decisions on all jobs: first those in the order of the queue, then those that are not in it.

    Args:
        head: the job with the reservation; None: all in the order start.
    """

    decisions: Sequence[Decision]
    head: WaitingJob | None = None
