"""Record what Ray's ASHAScheduler decides on learning curves, for test_asha.py.

    python -m venv /tmp/ray && /tmp/ray/bin/pip install 'ray[tune]'
    /tmp/ray/bin/python tests/sweep/record_ray_asha.py

writes ray_asha.json beside this file. A case has the reports in the order in which the scheduler got them, and 1 for
each after which it stopped the trial; a stopped trial reports no more.
"""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

CASES = {
    # name: rungs, factor, goal, trials, last step, digits of the values, largest distance of two reports
    "accuracies with ties": ([1, 3, 9, 27], 3, "max", 60, 40, 2, 1),
    "losses": ([1, 4, 16], 4, "min", 60, 24, None, 1),
    "factor 2": ([2, 4, 8, 16, 32], 2, "max", 40, 40, None, 1),
    "factor 2.5": ([5, 7, 30], 2.5, "min", 60, 40, 3, 1),
    "few values": ([1, 2, 3], 3, "max", 80, 5, 1, 1),
    "reports that pass over rungs": ([1, 3, 9, 27], 3, "max", 60, 60, 2, 12),
    "one after the other": ([1, 4, 16], 4, "max", 50, 20, 2, 1),
}


def curve(rng: random.Random, goal: str, digits: int | None) -> Any:
    """Return a function of the step, as of a metric that is learned: fast at first, with noise, to a limit."""
    limit, speed, noise = rng.uniform(0.3, 0.99), rng.uniform(0.02, 1.0), rng.uniform(0, 0.03)

    def value(step: int) -> float:
        share = limit * (1 - math.exp(-speed * step)) + rng.gauss(0, noise)
        found = share if goal == "max" else 3 * (1 - share)
        return found if digits is None else round(found, digits)

    return value


def record(
    seed: int, rungs: list[int], factor: float, goal: str, trials: int, last: int, digits: Any, jump: int
) -> Any:
    """Return a case: curves in a random order of their reports, or one trial after the other."""
    from ray.tune.schedulers import ASHAScheduler, TrialScheduler

    rng = random.Random(seed)
    scheduler = ASHAScheduler(
        time_attr="step", metric="m", mode=goal, max_t=10**9, grace_period=1, reduction_factor=factor, brackets=1
    )
    (bracket,) = scheduler._brackets
    assert bracket._stop_last_trials
    # Ray makes rungs of the factor alone; these are the ones of the case.
    bracket._rungs = [(rung, {}) for rung in reversed(rungs)]
    known = [SimpleNamespace(trial_id=str(number)) for number in range(trials)]
    curves = [curve(rng, goal, digits) for _ in known]
    steps = [0] * trials
    live = list(range(trials))
    in_turn = trials == 50
    for item in known:
        scheduler.on_trial_add(None, item)
    reports, stops = [], []
    while live:
        number = live[0] if in_turn else rng.choice(live[:16])
        steps[number] += rng.randint(1, jump)
        value = curves[number](steps[number])
        action = scheduler.on_trial_result(None, known[number], {"step": steps[number], "m": value})
        reports.append([number, steps[number], value])
        stops.append(int(action == TrialScheduler.STOP))
        if action == TrialScheduler.STOP or steps[number] >= last:
            live.remove(number)
    return {"rungs": rungs, "factor": factor, "goal": goal, "reports": reports, "stops": stops}


def main() -> None:
    """Write the file."""
    import ray

    cases = {name: record(seed, *case) for seed, (name, case) in enumerate(CASES.items())}
    path = Path(__file__).with_name("ray_asha.json")
    path.write_text(json.dumps({"ray": ray.__version__, "cases": cases}, separators=(",", ":")) + "\n")
    for name, case in cases.items():
        print(f"{name}: {len(case['reports'])} reports, {sum(case['stops'])} stops")


if __name__ == "__main__":
    main()
