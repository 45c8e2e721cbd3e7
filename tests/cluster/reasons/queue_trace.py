"""Traces of jobs on a cluster, a simulation of its queue, and what estimates of starts are worth there.

The generator has the sizes and run times of the jobs of Microsoft's Philly cluster (2017), fitted: run times are
lognormal for each size, and 755 jobs a day come with gaps whose coefficient of variation is 15, more of them on
weekdays and by day. The simulated cluster has hosts of 8 GPUs; jobs start in the order of their arrival, smaller ones
before larger ones that do not fit; each gets the host with the fewest free GPUs, or whole hosts.
"""

from __future__ import annotations

import csv
import heapq
import math
import random
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from dlapp.cluster.reasons.estimate import MAX_JOBS, Job, StartEstimator

GPUS = 8
"""Of a host."""
DAY_S = 86400
_FITTED = {
    1: (93.2, 6.72, 1.97),
    2: (2.2, 4.52, 3.27),
    4: (2.3, 9.11, 2.78),
    8: (2.0, 9.65, 2.79),
    16: (0.24, 9.27, 3.34),
    32: (0.08, 8.83, 2.47),
}
"""Size -> share of the jobs [%], mean and standard deviation of the logarithm of the run time in s."""
_GAP_S, _GAP_VARIATION = 114, 15
_LONGEST_S = 7 * DAY_S


class TraceJob(NamedTuple):
    """A job of a trace."""

    submitted_s: float
    gpus: int
    runtime_s: float


class Answer(NamedTuple):
    """An estimate for one job; times from the question on [s].

    Args:
        earliest_s, latest_s: None: there was no estimate.
        waited_s: what the job waited in truth.
        stated: the share of such estimates that held so far, as shown with the estimate.
    """

    earliest_s: float | None
    latest_s: float | None
    waited_s: float
    stated: float | None

    @property
    def holds(self) -> bool:
        """True if the job started in the range."""
        assert self.earliest_s is not None
        assert self.latest_s is not None
        return self.earliest_s <= self.waited_s <= self.latest_s


def generated(seed: int, days: float) -> list[TraceJob]:
    """Return the jobs of some days, in the order of arrival."""
    chance = random.Random(seed)
    sizes, weights = list(_FITTED), [share for share, _, _ in _FITTED.values()]
    spread = math.sqrt(math.log(1 + _GAP_VARIATION**2))
    jobs, at_s = list[TraceJob](), 0.0
    while at_s < days * DAY_S:
        of_week = 1.25 if at_s // DAY_S % 7 < 5 else 0.6
        of_day = 1 + 0.75 * math.sin(2 * math.pi * (at_s % DAY_S / 3600 - 9) / 24)
        at_s += _GAP_S / of_week / of_day * chance.lognormvariate(-spread * spread / 2, spread)
        gpus = chance.choices(sizes, weights)[0]
        jobs.append(TraceJob(at_s, gpus, min(chance.lognormvariate(*_FITTED[gpus][1:]), _LONGEST_S)))
    return jobs


def recorded(file: Path) -> list[TraceJob]:
    """Return the jobs of a CSV file with columns timestamp, duration and num_gpus; none if it lacks one."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.DictReader(lines)
        if not {"timestamp", "duration", "num_gpus"} <= set(rows.fieldnames or ()):
            return []
        jobs = sorted(
            TraceJob(datetime.fromisoformat(row["timestamp"]).timestamp(), int(row["num_gpus"]), float(row["duration"]))
            for row in rows
        )
    return [job._replace(submitted_s=job.submitted_s - jobs[0].submitted_s) for job in jobs]


def hosts_for(jobs: Sequence[TraceJob], load: float) -> int:
    """Return the number of hosts on which these jobs make this mean load."""
    gpu_s = sum(job.gpus * job.runtime_s for job in jobs)
    return math.ceil(gpu_s / (jobs[-1].submitted_s * GPUS * load))


class _Cluster:
    """Hosts and their free GPUs."""

    def __init__(self, hosts: int) -> None:
        self._free = [GPUS] * hosts
        self._with_free = [set[int]() for _ in range(GPUS + 1)]
        self._with_free[GPUS] = set(range(hosts))

    def place(self, gpus: int) -> list[tuple[int, int]] | None:
        """Return the hosts of a new job, and how many GPUs it has on each; None: it does not fit."""
        whole, rest = divmod(gpus, GPUS)
        if len(self._with_free[GPUS]) < whole + (whole > 0 and rest > 0):
            return None
        found = [(host, GPUS) for host in sorted(self._with_free[GPUS])[:whole]]
        for host, count in found:
            self.free(host, -count)
        if rest:
            fitting = next((hosts for hosts in self._with_free[rest:] if hosts), None)
            if fitting is None:
                return None
            found.append((min(fitting), rest))
            self.free(found[-1][0], -rest)
        return found

    def free(self, host: int, gpus: int) -> None:
        """Give back GPUs of a host, or take them (negative)."""
        self._with_free[self._free[host]].discard(host)
        self._free[host] += gpus
        self._with_free[self._free[host]].add(host)


def simulated(jobs: Sequence[TraceJob], hosts: int) -> list[Job]:
    """Return what becomes of the jobs on a cluster, in the same order."""
    cluster = _Cluster(hosts)
    started_s = [0.0] * len(jobs)
    waiting: dict[int, deque[int]] = {}
    ends: list[tuple[float, int, list[tuple[int, int]]]] = []
    coming = 0
    while coming < len(jobs) or ends:
        if ends and (coming == len(jobs) or ends[0][0] <= jobs[coming].submitted_s):
            now_s, _, placed = heapq.heappop(ends)
            for host, count in placed:
                cluster.free(host, count)
        else:
            now_s = jobs[coming].submitted_s
            waiting.setdefault(jobs[coming].gpus, deque()).append(coming)
            coming += 1
        first = {queue[0]: gpus for gpus, queue in waiting.items() if queue}
        while first:
            number = min(first)
            gpus = first.pop(number)
            if (found := cluster.place(gpus)) is None:
                continue
            started_s[number] = now_s
            heapq.heappush(ends, (now_s + jobs[number].runtime_s, number, found))
            waiting[gpus].popleft()
            if waiting[gpus]:
                first[waiting[gpus][0]] = gpus
    return [
        Job(_ms(job.submitted_s), _ms(at_s), _ms(at_s + job.runtime_s), job.gpus / (hosts * GPUS))
        for job, at_s in zip(jobs, started_s, strict=True)
    ]


def answers(jobs: Sequence[Job], count: int, *, after_s: float, age_s: float = 0) -> Iterator[Answer]:
    """Ask for the starts of jobs that wait, each with what was known then.

    Args:
        count: number of the questions, spread evenly over those jobs that waited for more than a second.
        after_s: only for jobs that were submitted after this time, when there is a history.
        age_s: after this time of its wait it is asked for a job, if it still waits.
    """
    submitted = [job.submitted_ms for job in jobs]
    ended = sorted((job.ended_ms or 0, number) for number, job in enumerate(jobs))
    chosen = [
        job
        for job in jobs
        if job.submitted_ms > after_s * 1000 and (job.started_ms or 0) - job.submitted_ms > max(1, age_s) * 1000
    ]
    for place in range(min(count, len(chosen))):
        job = chosen[place * len(chosen) // min(count, len(chosen))]
        now_ms = job.submitted_ms + _ms(age_s)
        known = [jobs[number] for _, number in ended[: bisect_right(ended, (now_ms, len(jobs)))][-MAX_JOBS:]]
        known += [
            item._replace(started_ms=item.started_ms if (item.started_ms or 0) <= now_ms else None, ended_ms=None)
            for item in jobs[: bisect_right(submitted, now_ms)]
            if (item.ended_ms or 0) > now_ms
        ]
        found = StartEstimator(known, now_ms).estimate(job._replace(started_ms=None, ended_ms=None))
        earliest_s, latest_s = (
            None if ms is None else (ms - now_ms) / 1000 for ms in (found.earliest_ms, found.latest_ms)
        )
        yield Answer(earliest_s, latest_s, ((job.started_ms or 0) - now_ms) / 1000, found.coverage)


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
