"""Estimate of a waiting application's start: a range, learned from earlier waits.

For an application at some moment its *scale* is the time in which as many applications started as are ahead of it, and
one more; only applications that use no larger share of the cluster are counted, and only time in which one of them
waited. Its wait divided by this scale is a factor. The range of a new wait is its scale times two quantiles of the
factors of earlier waits. Runtimes are not used: they have so long tails that their mean predicts less than the latest
starts do (Ibrahim and Whitt, "Real-time delay estimation based on delay history", 2009).

The quantiles are corrected by what became of the ranges: the history is replayed, each earlier application gets the
range that it would have got, and each range that does not hold moves the ends outwards, each that holds inwards
(adaptive conformal inference: Gibbs and Candès 2021). So `COVERAGE` of the ranges hold also while the load changes. A
range that ends while its application still waits counts at that moment, not only at the start.

An application that has waited for some time is compared with earlier ones that had waited as long. Applications for
which there was room are compared with one another, by their waits.

There is no range if fewer than `MIN_SAMPLES` earlier waits are comparable, or if the latest ranges held so rarely that
they had to be stretched more than `_MAX_STRETCH`.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from dlapp.values.waiting import MIN_SAMPLES, Estimate

COVERAGE = 0.8
MAX_JOBS = 1000
"""Number of the latest ended applications in the history that are used, and of the oldest that have not ended."""
_EARLY, _LATE = 0.03, 0.15
"""Share of the starts before the range, and after it. Waits have a long upper tail: an end there widens the range more
than one near zero. Their sum is a little less than 1 - `COVERAGE`: a history is short."""
_STEP = 0.01
"""Of the correction, as logarithm of a factor. Larger ones follow a change of the load faster, and widen the ranges."""
_MAX_STRETCH = 2.08
"""Logarithm of a factor: 8."""
_SAMPLES = 600
_TESTED = 60
_FLOOR_S = 1.0
"""A shorter time counts as this one."""
_AT_ONCE_MS = 5000
"""An application that waited less long did not wait for others."""
_AGES_S = (0, 10, 60, 300, 1200, 3600, 4 * 3600, 12 * 3600, 48 * 3600)
"""Ages of waits that are compared with one another: each from one of these to the next."""
_SHARE_STEP, _LEAST_SHARE = 0.1, 1e-6
"""Shares whose logarithms differ by less than about this step, or that are below the least, count as equal: there are
few different ones then."""
_ENDED, _SUBMITTED, _ASKED, _STARTED, _EXPIRED = 0, 1, 2, 3, 4
"""What happens in a history; of one moment in this order: an application that starts at once waits first."""


class Job(NamedTuple):
    """Application in the estimate; times in ms since 1970.

    Args:
        started_ms: None: it waits.
        ended_ms: None: it has not ended.
        share: share of the cluster that it uses while it runs: its largest amount relative to the capacity, 0 to 1; 0
            for all of a history: their amounts have no effect on their waits.
    """

    submitted_ms: int
    started_ms: int | None
    ended_ms: int | None
    share: float


class StartEstimator:
    """Estimates of starts from one history.

    Args:
        jobs: all known jobs, in any order, including waiting ones; the estimated one may be left out.
        now_ms: the time [ms since 1970].
    """

    def __init__(self, jobs: Sequence[Job], now_ms: int) -> None:
        self._now_ms = now_ms
        ended = sorted((one for one in jobs if one.ended_ms is not None), key=lambda one: one.ended_ms or 0)
        active = sorted((one for one in jobs if one.ended_ms is None), key=lambda one: one.submitted_ms)
        self._jobs = [*ended[-MAX_JOBS:], *active[:MAX_JOBS]]
        self._last_ms = active[MAX_JOBS - 1].submitted_ms if len(active) > MAX_JOBS else None
        self._replays: dict[int, _Replay] = {}

    def estimate(self, job: Job) -> Estimate:
        """Return the expected start of a waiting job, in the history or not."""
        if self._last_ms is not None and job.submitted_ms > self._last_ms:
            return Estimate()  # not all that are ahead of it are known
        age_s = max(age_s for age_s in _AGES_S if not age_s or job.submitted_ms + 1000 * age_s <= self._now_ms)
        if age_s not in self._replays:
            self._replays[age_s] = _Replay(self._jobs, self._now_ms, 1000 * age_s)
        return self._replays[age_s].estimate(job)


class _Start(NamedTuple):
    """Start of an application that waited; `_size` defines its size."""

    started_ms: int
    submitted_ms: int
    size: int


class _SpentTime:
    """Time in which starts up to a size came, while one of them waited: a sum for each of these starts.

    A question reads two of the sums: reading the starts would cost up to a thousand steps for each of thousands of
    questions.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._read = 0
        self._latest_ms = 0
        self._sums_ms: list[int] = []

    def extend(self, starts: Sequence[_Start]) -> None:
        """Add the starts that are new since the last call."""
        for one in starts[self._read :]:
            if one.size <= self._size:
                spent_ms = one.started_ms - max(self._latest_ms, one.submitted_ms) if self._sums_ms else 0
                self._sums_ms.append(spent_ms + (self._sums_ms[-1] if self._sums_ms else 0))
                self._latest_ms = one.started_ms
        self._read = len(starts)

    def mean_ms(self, count: int) -> float | None:
        """Return the time for each of the latest ``count`` starts, or of all if there are fewer; None: of none."""
        if not (known := len(self._sums_ms)):
            return None
        return (self._sums_ms[-1] - self._sums_ms[max(0, known - 1 - count)]) / min(count, known)


class _Queue:
    """Applications that wait and run at a moment of the history, and the starts until then.

    Args:
        since_ms: all starts since this time are known.
    """

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._waiting: dict[int, Job] = {}
        self._submitted: dict[int, list[int]] = {}
        """Size -> when the waiting applications of this size were submitted, sorted."""
        self._running: dict[int, float] = {}
        self._used = 0.0
        self._starts: list[_Start] = []
        self._spent_by_size: dict[int, _SpentTime] = {}

    def submit(self, number: int, job: Job) -> None:
        self._waiting[number] = job
        insort(self._submitted.setdefault(_size(job), []), job.submitted_ms)

    def start(self, number: int, job: Job, at_ms: int) -> None:
        self._leave(number)
        self._running[number] = job.share
        self._used += job.share
        if at_ms >= self._since_ms and at_ms - job.submitted_ms > _AT_ONCE_MS:
            self._starts.append(_Start(at_ms, job.submitted_ms, _size(job)))

    def end(self, number: int) -> None:
        self._leave(number)
        self._used -= self._running.pop(number, 0.0)

    def waits(self, number: int) -> bool:
        """Return whether a job waits now."""
        return number in self._waiting

    def scale_s(self, job: Job, at_ms: int) -> float | None:
        """Return the scale of a job's wait from now on [s]; 0: there is room for it; None: no start is known."""
        largest = _size(job)
        ahead = sum(
            bisect_left(submitted, job.submitted_ms) for size, submitted in self._submitted.items() if size <= largest
        )
        if not ahead and job.share + self._used <= 1 + 1e-6:
            return 0.0
        if (spent := self._spent_by_size.get(largest)) is None:
            spent = self._spent_by_size[largest] = _SpentTime(largest)
        spent.extend(self._starts)
        mean_ms = spent.mean_ms(ahead + 1)
        return None if mean_ms is None else max(mean_ms / 1000 * (ahead + 1), _FLOOR_S)

    def _leave(self, number: int) -> None:
        """Remove a job from those that wait."""
        if (job := self._waiting.pop(number, None)) is None:
            return
        submitted = self._submitted[size := _size(job)]
        del submitted[bisect_left(submitted, job.submitted_ms)]
        if not submitted:
            del self._submitted[size]


def _size(job: Job) -> int:
    """Return the share of a job as a whole number of steps, to compare it with others."""
    return round(math.log(max(job.share, _LEAST_SHARE)) / _SHARE_STEP)


class _Calibration:
    """Factors of the latest waits, and the correction of their quantiles; all as logarithms."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque()
        self._sorted: list[float] = []
        self._below = self._above = 0.0
        self._held: deque[bool] = deque(maxlen=_TESTED)

    def range(self) -> tuple[float, float] | None:
        """Return the range of the next factor, in logarithms; None: there are too few samples."""
        count = len(self._sorted)
        if count < MIN_SAMPLES:
            return None
        low = self._sorted[max(0, math.floor(_EARLY * (count + 1)) - 1)] - self._below
        high = self._sorted[min(count - 1, math.ceil((1 - _LATE) * (count + 1)) - 1)] + self._above
        return low, max(low, high)

    def add(self, factor: float) -> None:
        """Add the factor of a wait that has ended."""
        self._latest.append(factor)
        insort(self._sorted, factor)
        if len(self._latest) > _SAMPLES:
            del self._sorted[bisect_left(self._sorted, self._latest.popleft())]

    def correct(self, *, early: bool, late: bool) -> None:
        """Move the ends of the next ranges by what became of one."""
        self._below += _STEP * (early - _EARLY)
        self._above += _STEP * (late - _LATE)
        self._held.append(not early and not late)

    @property
    def is_reliable(self) -> bool:
        """False if the latest ranges did not hold."""
        return max(self._below, self._above) <= _MAX_STRETCH

    @property
    def coverage(self) -> float | None:
        """Share of the latest ranges that held."""
        return sum(self._held) / len(self._held) if self._held else None

    @property
    def tested(self) -> int:
        return len(self._held)

    @property
    def samples(self) -> int:
        return len(self._sorted)


class _Given(NamedTuple):
    """Question about a wait, and the range that was the answer; times in ms since 1970.

    Args:
        scale_s: 0: there was room.
        earliest_ms, latest_ms: None: there was no range.
    """

    at_ms: int
    scale_s: float
    earliest_ms: float | None = None
    latest_ms: float | None = None


class _Replay:
    """The history once more, with a question about each wait when it has an age.

    Args:
        jobs: the history.
        now_ms: the end of the replay [ms since 1970].
        age_ms: after this time of a wait the question is asked.
    """

    def __init__(self, jobs: Sequence[Job], now_ms: int, age_ms: int) -> None:
        self._now_ms = now_ms
        # A job that started after the first known end has not ended before it, so it is known.
        since_ms = min((one.ended_ms for one in jobs if one.ended_ms is not None), default=0)
        self._queue = _Queue(since_ms)
        self._with_room, self._without = _Calibration(), _Calibration()
        self._given: dict[int, _Given] = {}
        events: list[tuple[float, int, int]] = []
        for number, job in enumerate(jobs):
            events.append((job.submitted_ms, _SUBMITTED, number))
            started_ms = max(job.started_ms or 0, job.submitted_ms)
            if job.started_ms is not None:
                events.append((started_ms, _STARTED, number))
            if job.ended_ms is not None:
                events.append((max(job.ended_ms, started_ms + 1), _ENDED, number))
            if job.submitted_ms >= since_ms:
                events.append((job.submitted_ms + age_ms, _ASKED, number))
        self._events = [one for one in events if one[0] <= now_ms]
        heapq.heapify(self._events)
        while self._events:
            at_ms, kind, number = heapq.heappop(self._events)
            self._happen(int(at_ms), kind, number, jobs[number])

    def estimate(self, job: Job) -> Estimate:
        scale_s = self._queue.scale_s(job, self._now_ms)
        if scale_s is None:
            return Estimate()
        known = self._calibration(scale_s)
        given = self._ask(job, self._now_ms)
        if given is None or given.earliest_ms is None or given.latest_ms is None or not known.is_reliable:
            return Estimate(samples=known.samples)
        return Estimate(
            earliest_ms=int(given.earliest_ms),
            latest_ms=int(given.latest_ms),
            coverage=known.coverage,
            samples=known.tested,
        )

    def _happen(self, at_ms: int, kind: int, number: int, job: Job) -> None:
        if kind == _SUBMITTED:
            self._queue.submit(number, job)
        elif kind == _ENDED:
            self._queue.end(number)
            self._given.pop(number, None)
        elif kind == _STARTED:
            self._queue.start(number, job, at_ms)
            self._learn(number, at_ms)
        elif kind == _ASKED and self._queue.waits(number) and (given := self._ask(job, at_ms)) is not None:
            self._given[number] = given
            if given.latest_ms is not None and given.latest_ms < self._now_ms:
                heapq.heappush(self._events, (given.latest_ms + 1, _EXPIRED, number))
        elif kind == _EXPIRED and (found := self._given.get(number)) is not None:
            self._calibration(found.scale_s).correct(early=False, late=True)
            self._given[number] = found._replace(earliest_ms=None, latest_ms=None)

    def _ask(self, job: Job, at_ms: int) -> _Given | None:
        scale_s = self._queue.scale_s(job, at_ms)
        if scale_s is None:
            return None
        if (found := self._calibration(scale_s).range()) is None:
            return _Given(at_ms, scale_s)
        low_s, high_s = (max(scale_s, _FLOOR_S) * math.exp(min(one, 30.0)) for one in found)
        return _Given(at_ms, scale_s, at_ms + (0.0 if low_s <= _FLOOR_S else 1000 * low_s), at_ms + 1000 * high_s)

    def _learn(self, number: int, at_ms: int) -> None:
        """Learn from a start."""
        if (given := self._given.pop(number, None)) is None:
            return
        known = self._calibration(given.scale_s)
        if given.earliest_ms is not None and given.latest_ms is not None:
            known.correct(early=at_ms < given.earliest_ms, late=at_ms > given.latest_ms)
        known.add(math.log(max((at_ms - given.at_ms) / 1000, _FLOOR_S) / max(given.scale_s, _FLOOR_S)))

    def _calibration(self, scale_s: float) -> _Calibration:
        return self._without if scale_s else self._with_room
