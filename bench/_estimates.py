"""What estimates of starts are worth on simulated queues: traces of six seeds, and a recorded one if there is one."""

from __future__ import annotations

import os
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench import Row
from dlapp.cluster.reasons.estimate import COVERAGE, Job
from tests.cluster.reasons.queue_trace import DAY_S, Answer, answers, generated, hosts_for, recorded, simulated

SEEDS = range(1, 7)
DAYS = 28
HOSTS = 48
"""The mean load is about 0.8, and 28 to 43 percent of the jobs wait."""
RECORDED_LOAD = 0.5
"""A recorded trace has weeks in which more is asked for than there is: at a higher load nobody starts in them."""
QUESTIONS = 400
AFTER_S = 3 * DAY_S
LATER_S = 1200
TOLERANCE = 0.05


def estimates() -> list[Row]:
    """Return how many estimates hold, how wide they are, and how many jobs get one."""
    traces = {f"seed {seed}": simulated(generated(seed, DAYS), HOSTS) for seed in SEEDS}
    if directory := os.environ.get("DLAPP_BENCH_TRACES"):
        for file in sorted(Path(directory).glob("*.csv")):
            if jobs := recorded(file):
                traces[file.stem] = simulated(jobs, hosts_for(jobs, RECORDED_LOAD))
    asked = {name: list(answers(jobs, QUESTIONS, after_s=AFTER_S)) for name, jobs in traces.items()}
    given = {name: [one for one in found if one.latest_s is not None] for name, found in asked.items()}
    coverages = {name: statistics.mean(one.holds for one in found) for name, found in given.items()}
    widths = {name: width_over_wait(found) for name, found in given.items()}
    shares = {name: len(given[name]) / len(found) for name, found in asked.items()}
    return [
        Row(
            name="estimate-coverage",
            ratio=max(abs(one - COVERAGE) for one in coverages.values()),
            goal=TOLERANCE,
            better="lower",
            conditions={
                "unit": f"largest distance from {COVERAGE}",
                **coverages,
                "stated": statistics.mean(one.stated or 0 for found in given.values() for one in found),
                f"after_{LATER_S}_s": later(traces),
                "questions": QUESTIONS,
                "days": DAYS,
                "hosts": HOSTS,
            },
        ),
        Row(name="estimate-width", ratio=max(widths.values()), goal=2, better="lower", conditions=dict(widths)),
        Row(name="estimate-share", ratio=min(shares.values()), goal=0.7, better="higher", conditions=dict(shares)),
    ]


def width_over_wait(given: Sequence[Answer]) -> float:
    """Return the median width of the ranges over the median wait."""
    widths = [(one.latest_s or 0) - (one.earliest_s or 0) for one in given]
    return statistics.median(widths) / statistics.median(one.waited_s for one in given)


def later(traces: Mapping[str, Sequence[Job]]) -> float:
    """Return the share of the ranges that hold, of those for jobs that have waited for some time."""
    found = [
        one
        for jobs in traces.values()
        for one in answers(jobs, QUESTIONS // 4, after_s=AFTER_S, age_s=LATER_S)
        if one.latest_s is not None
    ]
    return statistics.mean(one.holds for one in found)
