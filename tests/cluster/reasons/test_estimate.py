"""Test estimates of a start against traces of a simulated queue."""

from __future__ import annotations

import random
import statistics

import pytest

from dlapp.cluster.reasons.estimate import COVERAGE, Job, StartEstimator
from dlapp.values.waiting import MIN_SAMPLES

GPUS = 16


def trace(chance: random.Random, count: int) -> list[Job]:
    """Jobs on a first-come-first-served machine whose load is high: their run times have a long tail."""
    jobs, at_s, before_s = list[Job](), 0.0, 0.0
    running: list[tuple[float, int]] = []
    for _ in range(count):
        gpus = chance.choices((1, 2, 4, 8), (50, 25, 15, 10))[0]
        runtime_s = min(chance.lognormvariate(6.5, 1.0), 12 * 3600)
        at_s += chance.expovariate(1 / 230)
        start_s = max(at_s, before_s)
        while sum(count for end_s, count in running if end_s > start_s) + gpus > GPUS:
            start_s = min(end_s for end_s, _ in running if end_s > start_s)
        running = [one for one in running if one[0] > start_s] + [(start_s + runtime_s, gpus)]
        before_s = start_s
        jobs.append(Job(int(at_s * 1000), int(start_s * 1000), int((start_s + runtime_s) * 1000), gpus / GPUS))
    return jobs


def seen_at(jobs: list[Job], place: int) -> list[Job]:
    """Facts that are known when a job is submitted: of later times nothing."""
    at_ms = jobs[place].submitted_ms
    return [
        one._replace(
            started_ms=one.started_ms if one.started_ms is not None and one.started_ms <= at_ms else None,
            ended_ms=one.ended_ms if one.ended_ms is not None and one.ended_ms <= at_ms else None,
        )
        for one in jobs[max(0, place - 600) : place]
    ]


@pytest.mark.slow
def test_over_a_trace_of_2000_jobs_the_ranges_hold_as_often_as_stated_and_are_narrow() -> None:
    seed = 1
    print("seed", seed)
    jobs = trace(random.Random(seed), 2000)
    held, widths, waits, stated = list[bool](), list[float](), list[float](), list[float]()
    for place in range(400, len(jobs), 10):
        job = jobs[place]
        assert job.started_ms is not None
        waiting = job._replace(started_ms=None, ended_ms=None)
        found = StartEstimator(seen_at(jobs, place), job.submitted_ms).estimate(waiting)
        assert found.earliest_ms is not None
        assert found.latest_ms is not None
        held.append(found.earliest_ms <= job.started_ms <= found.latest_ms)
        widths.append((found.latest_ms - found.earliest_ms) / 1000)
        waits.append((job.started_ms - job.submitted_ms) / 1000)
        stated.append(found.coverage or 0.0)
    print(statistics.mean(held), statistics.median(widths), statistics.median(waits), statistics.mean(stated))
    assert abs(statistics.mean(held) - COVERAGE) <= 0.05
    assert abs(statistics.mean(stated) - statistics.mean(held)) <= 0.05
    assert statistics.median(widths) <= 2 * statistics.median(waits)


def test_a_short_history_gives_no_range_and_says_how_short_it_is() -> None:
    jobs = trace(random.Random(1), MIN_SAMPLES - 1)
    found = StartEstimator(jobs, 10**12).estimate(Job(10**12, None, None, 0.5))
    assert (found.earliest_ms, found.latest_ms, found.coverage) == (None, None, None)
    assert found.samples < MIN_SAMPLES


def test_an_idle_machine_is_expected_to_start_a_job_at_once() -> None:
    jobs = [Job(n * 10_000_000, n * 10_000_000 + 200, n * 10_000_000 + 60_000, 0.5) for n in range(60)]
    now_ms = jobs[-1].submitted_ms + 5_000_000
    found = StartEstimator(jobs, now_ms).estimate(Job(now_ms, None, None, 0.5))
    assert found.earliest_ms == now_ms
    assert found.latest_ms is not None
    assert found.latest_ms - now_ms <= 1_000


def test_damaged_times_in_a_history_raise_nothing() -> None:
    chance = random.Random(3)
    odd = [Job(chance.randrange(10**13), chance.randrange(10**13), chance.randrange(10**13), 0.5) for _ in range(100)]
    odd += [Job(5, 0, 0, 0.0), Job(10**15, None, 5, 2.0)]
    StartEstimator(odd, 10**12).estimate(Job(10**12, None, None, 0.5))
