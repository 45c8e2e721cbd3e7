"""Two real users with long queues on one machine, whose runners are killed: what starts is compared with the model.

One of them has used the machine before, so the model says clearly whose turn it is until the other one has caught up.
The spools tell what happened, by the kernel's clock: when each application came, started and ended. Each start is one
that the scheduler decides for with what was known at that moment, unless a user had no runner then.
"""

from __future__ import annotations

import random
import time
from typing import NamedTuple

from dlapp.cluster.local import spool
from dlapp.cluster.local.spool import PastUse
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.decisions import decide
from dlapp.scheduler.usage import HOUR_S, Use, hours_by_user
from dlapp.scheduler.values import Policy, QueueState, RunningJob, WaitingJob
from tests.cluster.local.users import ANN, TONY, Place

AT_A_TIME = 2
PAUSE_S = "0.1"
"""How long an application takes, at least."""
LIMIT_S = 1.0
"""The max_runtime of each (`tests.services.processes.small_app`)."""
AHEAD_S = 4.0
"""What one user has used before, at least."""
NEAR_S = 1.5
"""Usage that differs by less counts as like: a runner decides some time before the start."""
GAP_S = 3.0
"""How long a start may take that was decided while the other user had no runner."""
POLICY = Policy(charge="vcores")
DEADLINE_S = 120.0


class Comparison(NamedTuple):
    """Comparison of what started with the model.

    Args:
        problems: as text; none is as it must be.
        checked: how many starts were compared of which the model says clearly whose turn it was.
        used_s: by user, the seconds that the applications had while both users had some that waited.
    """

    problems: list[str]
    checked: int
    used_s: dict[int, float]


def compare(place: Place, *, count: int, kills: int, seed: int) -> Comparison:
    """Let two users submit, kill their runners, and compare.

    Args:
        place: a shared one.
        count: how many applications each submits.
        kills: how often a runner is killed meanwhile.
        seed: of the choice of runners and moments.
    """
    print("seed", seed)
    chance = random.Random(seed)
    place.options["local.memory"] = str(AT_A_TIME)
    policy = place.top / "state" / "node.yaml"
    policy.write_text("queue: {charge: vcores}\n")
    policy.chmod(0o644)
    gaps = list[tuple[int, float, float]]()
    go = place.top / "go"
    for _ in range(AT_A_TIME):
        last = place.submit(ANN, "wait", str(go))
    place.wait_for(ANN, last, "RUNNING")
    began = time.monotonic()
    for uid in (ANN, TONY):
        place.run(uid, str(count), "pause", PAUSE_S)
    while time.monotonic() - began < AHEAD_S / AT_A_TIME:
        time.sleep(0.05)
    go.touch()
    total = AT_A_TIME + 2 * count
    at = sorted(chance.sample(range(total), kills))
    deadline = time.monotonic() + DEADLINE_S
    seen = -1
    while (ended := sum(len(past_of(place, uid)) for uid in (ANN, TONY))) < total:
        if ended > seen:
            seen, deadline = ended, time.monotonic() + DEADLINE_S
        assert time.monotonic() < deadline, f"{ended} of {total} have ended"
        if at and ended >= at[0]:
            at.pop(0)
            uid = chance.choice((ANN, TONY))
            began_s = time.time()
            place.kill_runner(uid)
            place.call(uid, "ensure_runner")
            gaps.append((uid, began_s, time.time()))
        time.sleep(0.02)
    return _compared([*past_of(place, ANN), *past_of(place, TONY)], gaps)


def past_of(place: Place, uid: int) -> list[PastUse]:
    """Return the applications of a user that have ended, as the spool has them."""
    return spool.read(place.state.of(uid)).past


def _compared(uses: list[PastUse], gaps: list[tuple[int, float, float]]) -> Comparison:
    problems, checked = list[str](), 0
    uses.sort(key=lambda item: item.started_ns)
    for uid in (ANN, TONY):
        own = [item for item in uses if item.uid == uid]
        if own != sorted(own, key=lambda item: (item.arrived_ns, item.id)):
            problems.append(f"the applications of {uid} did not start in order")
    for use in uses:
        at_s = use.started_ns / 1e9
        running = [item for item in uses if item.started_ns < use.started_ns < item.ended_ns]
        if len(running) >= AT_A_TIME:
            problems.append(f"{use.id} of {use.uid} started though {len(running)} ran")
        if any(start_s <= at_s <= end_s + GAP_S for _, start_s, end_s in gaps):
            continue
        waiting = [item for item in uses if item.arrived_ns < use.started_ns <= item.started_ns]
        if len({item.uid for item in waiting}) < 2:
            continue
        hours = _hours(uses, at_s)
        started = [_is_turn(use, waiting, running, hours, at_s, more_s) for more_s in (-NEAR_S, NEAR_S)]
        if len(set(started)) > 1:
            continue  # the users have used about the same
        checked += 1
        if not started[0]:
            near_s = min((at_s - end_s for _, _, end_s in gaps if end_s < at_s), default=None)
            used = {uid: round(hours[uid] * HOUR_S, 2) for uid in hours}
            problems.append(f"{use.id} of {use.uid}: the model starts another; used {used} s, last gap {near_s} s ago")
    both_s = min(max(item.started_ns for item in uses if item.uid == uid) for uid in (ANN, TONY)) / 1e9
    used_s = {uid: hours * HOUR_S for uid, hours in _hours(uses, both_s).items()}
    print("used", used_s, "checked", checked, "gaps", len(gaps))
    return Comparison(problems, checked, used_s)


def _is_turn(
    use: PastUse, waiting: list[PastUse], running: list[PastUse], hours: dict[int, float], at_s: float, more_s: float
) -> bool:
    """Return whether the model starts an application of a user, if one user had used a little more or less."""
    places = [(item.arrived_ns, item.uid, item.id) for item in waiting]
    jobs = [WaitingJob(place[2], place[1], Amounts(1, 1, 0), at_s, place, 0, LIMIT_S) for place in places]
    has = []
    for item in running:
        started_s = item.started_ns / 1e9
        has.append(RunningJob(item.uid, Amounts(1, 1, 0), started_s + LIMIT_S, started_s))
    near = hours | {ANN: hours.get(ANN, 0.0) + more_s / HOUR_S}
    schedule = decide(QueueState(Amounts(AT_A_TIME, 99, 0), has, jobs, near), POLICY, at_s)
    return use.id in [decision.job.id for decision in schedule.decisions if decision.starts]


def _hours(uses: list[PastUse], at_s: float) -> dict[int, float]:
    began = [use for use in uses if use.started_ns / 1e9 < at_s]
    return hours_by_user(
        [Use(item.uid, item.vcores, item.started_ns / 1e9, item.ended_ns / 1e9) for item in began],
        at_s,
        POLICY.half_life_s,
    )
