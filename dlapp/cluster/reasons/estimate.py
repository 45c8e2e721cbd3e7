"""Estimate of a waiting application's start: a range, learned from earlier waits.

For each application the work ahead of it at its submission is computed: the expected remaining runtime of the running
ones, from the runtimes of others that had run as long, and the expected runtime of those ahead of it in the queue.
Divided by the capacity, that is a prediction of its wait. The history shows by which factors such predictions are
wrong: the range uses the factors of the earlier applications with the most similar predictions. Its ends are the
quantiles between which `COVERAGE` of them lie.

The same history shows how often such ranges were right: for each of the latest applications the range is computed from
earlier ones only. With fewer than `MIN_SAMPLES` there is no range.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Sequence
from typing import NamedTuple

from dlapp.values.waiting import MIN_SAMPLES, Estimate

COVERAGE = 0.8
MAX_JOBS = 400
"""Number of the latest applications in the history that are used."""
_NEAREST = 150
_TESTED = 60
_FLOOR_S = 1.0
"""A shorter wait counts as none."""


class Job(NamedTuple):
    """Application in the estimate; times in ms since 1970.

    Args:
        started_ms: None: it waits.
        ended_ms: None: it has not ended.
        share: share of the cluster that it uses while it runs: its largest amount relative to the capacity, 0 to 1.
    """

    submitted_ms: int
    started_ms: int | None
    ended_ms: int | None
    share: float


class _Sample(NamedTuple):
    predicted_s: float
    waited_s: float

    @property
    def factor(self) -> float:
        return max(self.waited_s, _FLOOR_S) / max(self.predicted_s, _FLOOR_S)


class StartEstimator:
    """Estimates of starts from one history.

    Args:
        jobs: all known jobs, in any order, including waiting ones; the estimated one may be left out.
        now_ms: the time [ms since 1970].
    """

    def __init__(self, jobs: Sequence[Job], now_ms: int) -> None:
        self._now_ms = now_ms
        self._jobs = sorted(jobs, key=lambda one: (one.submitted_ms, one.started_ms or now_ms))[-MAX_JOBS:]
        self._samples = _samples(self._jobs)
        self._coverage, self._tested = _held(self._samples)
        self._runtimes = sorted(
            (one.ended_ms - one.started_ms) / 1000 for one in self._jobs if one.started_ms and one.ended_ms
        )

    def estimate(self, job: Job) -> Estimate:
        """Return the expected start of a waiting job, in the history or not."""
        if len(self._samples) < MIN_SAMPLES:
            return Estimate(samples=len(self._samples))
        predicted_s = _predicted_s(job, self._jobs, self._now_ms, self._runtimes)
        least_s, most_s = _range_s(predicted_s, self._samples)
        return Estimate(
            earliest_ms=self._now_ms + int(least_s * 1000),
            latest_ms=self._now_ms + int(most_s * 1000),
            coverage=self._coverage,
            samples=self._tested,
        )


def _samples(jobs: Sequence[Job]) -> list[_Sample]:
    """Return for each started job the prediction at its submission, and its actual wait."""
    ends = sorted((one.ended_ms, one.started_ms) for one in jobs if one.ended_ms is not None and one.started_ms)
    runtimes: list[float] = []
    found, place = [], 0
    for job in jobs:
        while place < len(ends) and ends[place][0] <= job.submitted_ms:
            insort(runtimes, (ends[place][0] - ends[place][1]) / 1000)
            place += 1
        # The jobs that ran or waited before the first one of the history are not known.
        if job.started_ms is None or not runtimes or job.submitted_ms < (jobs[0].started_ms or 0):
            continue
        predicted_s = _predicted_s(job, jobs, job.submitted_ms, runtimes)
        found.append(_Sample(predicted_s, (job.started_ms - job.submitted_ms) / 1000))
    return found


def _predicted_s(job: Job, jobs: Sequence[Job], at_ms: int, runtimes: Sequence[float]) -> float:
    """Return the work ahead of a job at a moment [s of the whole cluster]; 0: there is room for it.

    Args:
        runtimes: runtimes of ended jobs, sorted [s].
    """
    if not runtimes:
        return 0.0
    beyond = [0.0] * (len(runtimes) + 1)
    for place in range(len(runtimes) - 1, -1, -1):
        beyond[place] = beyond[place + 1] + runtimes[place]
    mean_s, work_s, free, has_queue = beyond[0] / len(runtimes), 0.0, 1.0, False
    for one in jobs:
        if one is job or one.submitted_ms > at_ms or (one.ended_ms is not None and one.ended_ms <= at_ms):
            continue
        if one.started_ms is not None and one.started_ms <= at_ms:
            age_s = (at_ms - one.started_ms) / 1000
            place = bisect_right(runtimes, age_s)
            left = len(runtimes) - place
            # A job that has run longer than all others is expected to run half as long again.
            work_s += one.share * (beyond[place] / left - age_s if left else age_s / 2)
            free -= one.share
        elif one.submitted_ms < job.submitted_ms:
            work_s += one.share * mean_s
            has_queue = True
    return 0.0 if job.share <= free + 1e-9 and not has_queue else max(work_s, _FLOOR_S)


def _range_s(predicted_s: float, samples: Sequence[_Sample]) -> tuple[float, float]:
    """Return the range of a wait, from the factors of the samples with the nearest predictions."""
    at = math.log(max(predicted_s, _FLOOR_S))
    near = sorted(samples, key=lambda one: abs(math.log(max(one.predicted_s, _FLOOR_S)) - at))[:_NEAREST]
    factors = sorted(one.factor for one in near)
    tail = (1 - COVERAGE) / 2 * (len(factors) + 1)
    least = factors[max(0, math.floor(tail) - 1)]
    most = factors[min(len(factors) - 1, math.ceil(len(factors) + 1 - tail) - 1)]
    scale_s = max(predicted_s, _FLOOR_S)
    return (0.0 if predicted_s * least <= _FLOOR_S else scale_s * least), scale_s * most


def _held(samples: Sequence[_Sample]) -> tuple[float | None, int]:
    """Return the share of the latest samples within the range computed from earlier ones, and their number."""
    tested = range(max(MIN_SAMPLES, len(samples) - _TESTED), len(samples))
    held = 0
    for place in tested:
        least_s, most_s = _range_s(samples[place].predicted_s, samples[:place])
        held += least_s <= samples[place].waited_s <= most_s
    return (held / len(tested) if tested else None), len(tested)
