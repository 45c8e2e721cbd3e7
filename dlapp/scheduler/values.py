"""Values of the scheduler: jobs that wait and run, what the operator allows, and decisions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from dlapp.scheduler.amounts import Amounts
from dlapp.values.waiting import NODES_FULL

DAY_S = 86400.0


class WaitingJob(NamedTuple):
    """An application that waits.

    Args:
        user: uid of its owner.
        amounts: of all its containers.
        arrived_s: when it came [s since 1970].
        place: by arrival among all jobs; unique.
        priority: as asked for; a higher one comes first.
        max_runtime_s: when it is ended at the latest, after its start [s]; None: no limit.
    """

    id: str
    user: int
    amounts: Amounts
    arrived_s: float
    place: tuple[int, int, str]
    priority: int = 0
    max_runtime_s: float | None = None


class RunningJob(NamedTuple):
    """Something that has amounts of the machine.

    Args:
        user: uid of its owner; None: not of this queue.
        ends_s: when it is ended at the latest [s since 1970]; None: its end is not known.
        started_s: when it started [s since 1970]; None: not known.
    """

    user: int | None
    amounts: Amounts
    ends_s: float | None = None
    started_s: float | None = None


class Policy(NamedTuple):
    """Limits and weights that the operator sets.

    Args:
        half_life_s: a GPU-hour counts half after this time [s].
        raise_after_s: waiting raises the priority by one each time that so long has passed [s].
        max_priority: the highest priority that counts against other users, before it is raised.
        max_priority_by_user: the same for some users, by uid.
        user_gcores: how many GPUs the running applications of one user may have; None: no limit.
        user_gcores_by_user: the same for some users, by uid.
        user_queued: how many applications of one user may wait; None: no limit.
        charge: ``gcores`` or ``vcores``: what the usage of a user is counted in.
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
        """Return how many GPUs a user may have; None: no limit."""
        return self.user_gcores_by_user.get(user, self.user_gcores)

    def charged(self, amounts: Amounts) -> int:
        """Return the amount that is counted as usage."""
        return amounts.vcores if self.charge == "vcores" else amounts.gcores


class QueueState(NamedTuple):
    """The queue of one machine at one moment.

    Args:
        capacity: of the machine.
        running: all that has a part of it.
        waiting: in any order.
        hours: decayed usage by uid (`dlapp.scheduler.usage`).
        starts: of the applications of a user that ran recently or run, when they came and when they started, by uid
            [s since 1970].
        absent: uids of users who start nothing now: they are passed over, and reserve nothing.
    """

    capacity: Amounts
    running: Sequence[RunningJob]
    waiting: Sequence[WaitingJob]
    hours: Mapping[int, float] = {}
    starts: Mapping[int, Sequence[tuple[float, float]]] = {}
    absent: Collection[int] = ()


class Decision(NamedTuple):
    """Decision on one job that waits.

    Args:
        starts: it is to be started now.
        code, message: else why not, as of `dlapp.values.waiting.Waiting`; ``message`` is empty if others come before it
            (``ahead``), and for the job that has the reservation: what it lacks is shown with those who have it.
        ahead: how many of those that do not start come before it; None: it is not in the order.
        expected_s: of the job that has the reservation, when it can start at the latest; None: not known.
        is_backfilled: it starts before one that came first.
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
        head: the job that has the reservation; None: all in the order start.
    """

    decisions: Sequence[Decision]
    head: WaitingJob | None = None
