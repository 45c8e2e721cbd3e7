"""Decisions of one pass over a queue, and what follows from them over weeks of a simulated machine."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.backfill import reserve
from dlapp.scheduler.decisions import decide
from dlapp.scheduler.usage import HOUR_S, Use, decayed_hours, hours_by_user
from dlapp.scheduler.values import DAY_S, Decision, Policy, QueueState, RunningJob, Schedule, WaitingJob
from dlapp.values.waiting import NEVER_FITS, NODES_FULL, SERVICE_AWAY, STARTING, USER_LIMIT
from tests.scheduler.simulation import Machine, Task, task
from tests.seeds import each_seed

ANN, TONY, EVE = 1001, 1002, 1003
MACHINE = Amounts(64 << 10, 32, 8)
NOW_S = 1_700_000_000.0
POLICY = Policy()


def job(
    number: int,
    user: int = ANN,
    gcores: int = 1,
    *,
    waited_s: float = 0.0,
    priority: int = 0,
    max_runtime_s: float | None = None,
) -> WaitingJob:
    return task(number, user, gcores, NOW_S - waited_s, 1.0, priority=priority, max_runtime_s=max_runtime_s).job


def on_gpus(gcores: int, user: int | None = ANN, ends_in_s: float | None = None) -> RunningJob:
    return RunningJob(user, Amounts(1024, 1, gcores), None if ends_in_s is None else NOW_S + ends_in_s)


def passed(
    waiting: Iterable[WaitingJob],
    running: Iterable[RunningJob] = (),
    *,
    policy: Policy = POLICY,
    hours: dict[int, float] | None = None,
    starts: dict[int, list[tuple[float, float]]] | None = None,
    absent: Iterable[int] = (),
) -> Schedule:
    state = QueueState(MACHINE, tuple(running), tuple(waiting), hours or {}, starts or {}, frozenset(absent))
    return decide(state, policy, NOW_S)


def started(schedule: Schedule) -> list[str]:
    return [decision.job.id for decision in schedule.decisions if decision.starts]


def ordered(schedule: Schedule) -> list[str]:
    return [decision.job.id for decision in schedule.decisions if decision.ahead is not None]


def decision_of(schedule: Schedule, wanted: WaitingJob) -> Decision:
    return next(decision for decision in schedule.decisions if decision.job is wanted)


# ---- order ----


def test_the_user_with_less_usage_comes_first_and_then_the_earlier_job() -> None:
    late, early, other = job(1, ANN, waited_s=10), job(2, ANN, waited_s=20), job(3, TONY)
    assert ordered(passed([late, early, other], hours={ANN: 2.0, TONY: 1.0})) == [other.id, early.id, late.id]


def test_users_with_equal_usage_alternate_for_any_number_of_jobs() -> None:
    of_ann = [job(number, ANN, waited_s=100 - number) for number in range(8)]
    of_tony = [job(number, TONY, waited_s=50 - number) for number in range(10, 18)]
    schedule = passed([*of_ann, *of_tony])
    assert started(schedule) == [item.id for pair in zip(of_ann[:4], of_tony[:4], strict=True) for item in pair]


def test_running_jobs_count_at_least_an_hour_so_freed_resources_are_shared() -> None:
    of_ann, of_tony = job(1, ANN), job(2, TONY, waited_s=9)
    just_started = RunningJob(TONY, Amounts(1024, 1, 2), None, NOW_S - 1)
    assert ordered(passed([of_ann, of_tony], [just_started], hours={ANN: 1.9})) == [of_ann.id, of_tony.id]
    assert ordered(passed([of_ann, of_tony], [just_started], hours={ANN: 2.1})) == [of_tony.id, of_ann.id]
    soon_over = RunningJob(TONY, Amounts(1024, 1, 2), NOW_S + 59, NOW_S - 1)
    assert ordered(passed([of_ann, of_tony], [soon_over], hours={ANN: 1.9})) == [of_tony.id, of_ann.id]


def test_a_priority_counts_between_users_only_up_to_the_cap_and_in_full_among_ones_own() -> None:
    first, urgent, other = job(1, ANN, waited_s=9), job(2, ANN, priority=100), job(3, TONY, waited_s=20)
    assert ordered(passed([first, urgent, other])) == [other.id, urgent.id, first.id]
    raised = Policy(max_priority_by_user={ANN: 5})
    assert ordered(passed([first, urgent, other], policy=raised)) == [urgent.id, other.id, first.id]


def test_a_job_is_raised_while_no_earlier_one_of_its_user_starts() -> None:
    policy = Policy(max_priority=10)
    old, high = job(1, ANN, waited_s=3.5 * DAY_S), job(2, TONY, waited_s=1, priority=3)
    assert ordered(passed([old, high], hours={ANN: 9.0}, policy=policy)) == [high.id, old.id]
    old = job(1, ANN, waited_s=4.5 * DAY_S)
    assert ordered(passed([old, high], hours={ANN: 9.0}, policy=policy)) == [old.id, high.id]
    earlier = {ANN: [(old.arrived_s - 1, NOW_S - 60)]}
    assert ordered(passed([old, high], hours={ANN: 9.0}, policy=policy, starts=earlier)) == [high.id, old.id]
    later = {ANN: [(old.arrived_s + 1, NOW_S - 60)]}
    assert ordered(passed([old, high], hours={ANN: 9.0}, policy=policy, starts=later)) == [old.id, high.id]


@each_seed("orders of reading")
def test_all_runners_decide_alike_in_any_reading_order(seed: int) -> None:
    """Shuffle 40 jobs of three users and the three that run."""
    chance = random.Random(seed)
    jobs = [
        job(number, chance.choice((ANN, TONY, EVE)), chance.choice((1, 2, 4)), waited_s=number) for number in range(40)
    ]
    running = [on_gpus(1, ANN, 600.0), on_gpus(2, TONY), on_gpus(2, EVE, 60.0)]
    first = passed(jobs, running, hours={ANN: 1.0, TONY: 0.5})
    chance.shuffle(jobs)
    chance.shuffle(running)
    assert passed(jobs, running, hours={TONY: 0.5, ANN: 1.0}).decisions == first.decisions


# ---- reasons ----


def test_each_job_that_waits_has_its_reason() -> None:
    policy = Policy(user_gcores=4, user_queued=5)
    large = job(2, TONY, 9)
    above = job(3, EVE, 5)
    limited = job(4, ANN, 4)
    absent = job(5, 1004)
    head, behind = job(6, TONY, 4, waited_s=9), job(7, TONY, 4, waited_s=8)
    schedule = passed(
        [large, above, limited, absent, head, behind],
        [on_gpus(2, ANN), on_gpus(3, None)],
        policy=policy,
        absent=[1004],
    )
    assert started(schedule) == []
    assert schedule.head is head
    codes = {decision.job: decision.code for decision in schedule.decisions}
    assert codes == {
        large: NEVER_FITS,
        above: NEVER_FITS,
        limited: USER_LIMIT,
        absent: SERVICE_AWAY,
        head: NODES_FULL,
        behind: NODES_FULL,
    }
    assert (
        decision_of(schedule, limited).message
        == "its user has 2 of the 4 GPUs of one user at a time (queue.user_gcores)"
    )
    assert decision_of(schedule, behind).ahead == 1


def test_a_job_without_a_turn_reserves_no_resources() -> None:
    small = job(9, TONY, 1)
    for item in (
        passed([job(1, ANN, 9, waited_s=9), small]),
        passed([job(1, ANN, 8, waited_s=9), small], absent=[ANN]),
        passed([job(1, ANN, 8, waited_s=9), small], policy=Policy(user_gcores=4)),
    ):
        assert started(item) == [small.id]
        assert item.head is None


def test_a_job_that_waits_for_its_users_limit_is_not_overtaken_by_that_users_later_ones() -> None:
    policy = Policy(user_gcores=4)
    large, small, cpu = job(1, ANN, 4, waited_s=9), job(2, ANN, 1, waited_s=8), job(3, ANN, 0)
    schedule = passed([large, small, cpu], [on_gpus(1, ANN)], policy=policy)
    assert started(schedule) == [cpu.id]
    assert decision_of(schedule, small).code == USER_LIMIT


def test_jobs_above_the_limit_of_queued_ones_have_no_turn() -> None:
    jobs = [job(number, ANN, waited_s=9 - number) for number in range(4)]
    schedule = passed(jobs, policy=Policy(user_queued=3))
    assert started(schedule) == [item.id for item in jobs[:3]]
    assert decision_of(schedule, jobs[3]).code == USER_LIMIT
    assert decision_of(schedule, jobs[0]).code == STARTING


# ---- backfill ----


def test_a_short_job_starts_before_the_reservation_and_a_long_one_does_not() -> None:
    head = job(1, TONY, 8, waited_s=9)
    short, long = job(2, ANN, 2, max_runtime_s=600.0), job(3, ANN, 2, max_runtime_s=601.0)
    schedule = passed([head, long, short], [on_gpus(4, ANN, 600.0)], hours={ANN: 1.0})
    assert started(schedule) == [short.id]
    assert decision_of(schedule, short).is_backfilled
    assert decision_of(schedule, head).expected_s == NOW_S + 600.0


def test_a_job_without_an_end_starts_beside_the_reservation_if_the_head_leaves_room() -> None:
    head, jobs = job(1, TONY, 6, waited_s=9), [job(number, ANN, 1) for number in (2, 3, 4)]
    schedule = passed([head, *jobs], [on_gpus(4, ANN, 600.0)], hours={ANN: 1.0})
    assert started(schedule) == [jobs[0].id, jobs[1].id]


def test_beside_endless_jobs_only_resources_unneeded_by_the_head_are_backfilled() -> None:
    head = job(1, TONY, 6, waited_s=9)
    gpu, cpu = job(2, ANN, 1, max_runtime_s=1.0), job(3, ANN, 0)
    schedule = passed([head, gpu, cpu], [on_gpus(4, ANN)], hours={ANN: 1.0})
    assert started(schedule) == [cpu.id]
    assert decision_of(schedule, head).expected_s is None


def test_of_jobs_that_fit_beside_the_reservation_the_largest_and_longest_starts() -> None:
    head = job(1, TONY, 8, waited_s=9)
    small, short = job(2, ANN, 1, max_runtime_s=60.0), job(3, ANN, 3, max_runtime_s=60.0)
    long, urgent = job(4, ANN, 3, max_runtime_s=600.0), job(5, ANN, 1, max_runtime_s=5.0, priority=1)
    schedule = passed([head, small, short, long], [on_gpus(4, ANN, 600.0)], hours={ANN: 1.0})
    assert set(started(schedule)) == {small.id, long.id}
    policy = Policy(max_priority=1)
    schedule = passed([head, small, short, long, urgent], [on_gpus(4, ANN, 600.0)], hours={ANN: 1.0}, policy=policy)
    assert set(started(schedule)) == {urgent.id, long.id}


amounts = st.builds(
    Amounts,
    st.integers(1, MACHINE.memory_mib // 2),
    st.integers(1, MACHINE.vcores),
    st.integers(0, MACHINE.gcores),
    by_set=st.just(()),  # as of MACHINE: the amounts of one state count the same sets of GPUs, or none
)
ends = st.none() | st.integers(-60, 7200)


@st.composite
def states(draw: st.DrawFn) -> QueueState:
    free, running = MACHINE, list[RunningJob]()
    for asked, end in draw(st.lists(st.tuples(amounts, ends), max_size=6)):
        if asked.fits(free):
            free = free.minus(asked)
            running.append(
                RunningJob(draw(st.sampled_from((ANN, TONY, None))), asked, None if end is None else NOW_S + end)
            )
    waiting = [
        WaitingJob(
            f"application_1_{number:04d}",
            draw(st.sampled_from((ANN, TONY, EVE))),
            draw(amounts),
            NOW_S - draw(st.integers(0, 10 * 86400)),
            (number, 0, f"application_1_{number:04d}"),
            draw(st.integers(0, 3)),
            draw(st.none() | st.integers(1, 7200).map(float)),
        )
        for number in range(draw(st.integers(0, 8)))
    ]
    hours = {user: draw(st.floats(0, 100)) for user in (ANN, TONY)}
    return QueueState(MACHINE, running, waiting, hours)


def apply_decisions(state: QueueState, decisions: Iterable[Decision]) -> tuple[Amounts, list[RunningJob]]:
    """Return what is free, and what runs, when jobs have started."""
    free, running = state.capacity, list(state.running)
    for decision in decisions:
        if decision.starts:
            end = None if decision.job.max_runtime_s is None else NOW_S + decision.job.max_runtime_s
            running.append(RunningJob(decision.job.user, decision.job.amounts, end))
    for run in running:
        free = free.minus(run.amounts)
    return free, running


@given(states())
def test_a_backfilled_job_never_delays_the_reservation_as_it_stood(state: QueueState) -> None:
    schedule = decide(state, Policy(max_priority=2), NOW_S)
    if schedule.head is None:
        return
    before, _ = itertools.tee(schedule.decisions)
    free, running = apply_decisions(state, [item for item in before if not item.is_backfilled])
    stood = reserve(schedule.head, free, running, NOW_S)
    assert stood.at_s == decision_of(schedule, schedule.head).expected_s
    free, running = apply_decisions(state, schedule.decisions)
    now = reserve(schedule.head, free, running, NOW_S)
    if stood.at_s is not None:
        assert now.at_s is not None
        assert now.at_s <= stood.at_s


@given(states(), st.randoms(use_true_random=False))
def test_without_a_known_end_backfill_does_not_delay_the_head(state: QueueState, chance: random.Random) -> None:
    schedule = decide(state, Policy(max_priority=2), NOW_S)
    if schedule.head is None or decision_of(schedule, schedule.head).expected_s is not None:
        return
    asked = schedule.head.amounts
    _, without = apply_decisions(state, [decision for decision in schedule.decisions if not decision.is_backfilled])
    _, besides = apply_decisions(state, schedule.decisions)
    backfilled = besides[len(state.running) :]
    for _ in range(20):
        left = [item for item in without if chance.random() < 0.5]
        free = MACHINE
        for item in left:
            free = free.minus(item.amounts)
        taken = free
        for item in backfilled:
            if item not in without:
                taken = taken.minus(item.amounts)
        assert asked.fits(free) == asked.fits(taken)


@given(states())
def test_never_more_starts_than_there_is_nor_than_a_user_may_have(state: QueueState) -> None:
    policy = Policy(max_priority=2, user_gcores=3, user_queued=4)
    schedule = decide(state, policy, NOW_S)
    free, running = apply_decisions(state, schedule.decisions)
    assert min(free[:3]) >= 0
    assert sorted(decision.job for decision in schedule.decisions) == sorted(state.waiting)
    for user in (ANN, TONY, EVE):
        before = sum(item.amounts.gcores for item in state.running if item.user == user)
        assert sum(item.amounts.gcores for item in running if item.user == user) <= max(3, before)


# ---- usage ----


def test_usage_is_halved_by_each_half_life() -> None:
    use = Use(ANN, 2, NOW_S - 3600.0, NOW_S)
    now = decayed_hours(use, NOW_S, 7 * DAY_S)
    assert now == pytest.approx(2.0, rel=0.01)
    assert decayed_hours(use, NOW_S + 14 * DAY_S, 7 * DAY_S) == pytest.approx(now / 4)
    assert decayed_hours(Use(ANN, 1, 0.0), 1e9, DAY_S) == pytest.approx(24 / 0.6931, rel=0.001)


@given(st.floats(0, 1e6), st.floats(0, 1e6), st.floats(0, 1e6), st.floats(60, 1e6))
def test_usage_is_the_same_in_one_piece_and_in_two(
    start_s: float, first_s: float, second_s: float, half_life_s: float
) -> None:
    middle_s, end_s = start_s + first_s, start_s + first_s + second_s
    whole = hours_by_user([Use(ANN, 3, start_s, end_s)], end_s, half_life_s)
    parts = hours_by_user([Use(ANN, 3, start_s, middle_s), Use(ANN, 3, middle_s, end_s)], end_s, half_life_s)
    assert whole[ANN] == pytest.approx(parts[ANN], rel=1e-6, abs=1e-9)


@given(st.floats(-1e10, 1e10), st.floats(-1e10, 1e10), st.floats(-1e10, 1e10))
def test_usage_is_never_negative_after_any_clock_change(start_s: float, end_s: float, now_s: float) -> None:
    assert 0.0 <= decayed_hours(Use(ANN, 8, start_s, end_s), now_s, DAY_S) < 1e9


# ---- over time ----

USERS = (ANN, TONY, EVE)


def backlogged(seed: int, users: Iterable[int], depth: int = 15) -> Machine:
    """Return a machine whose users always have ``depth`` jobs in the queue; each has another kind of jobs."""
    chance, numbers = random.Random(seed), itertools.count()
    print("seed", seed)

    def more(user: int, at_s: float) -> Task:
        place = list(users).index(user)
        gcores = chance.choices((1, 2, 4, 8), ((8, 2, 1, 0), (2, 4, 2, 0), (1, 2, 4, 1), (4, 2, 2, 1))[place])[0]
        runtime_s = min(chance.lognormvariate(8.0, 0.8), 4 * HOUR_S)
        limit_s = runtime_s * chance.uniform(1.0, 4.0) if chance.random() < 0.7 else None
        return task(next(numbers), user, gcores, at_s, runtime_s, max_runtime_s=limit_s)

    first = [more(user, 0.0) for user in users for _ in range(depth)]
    return Machine(MACHINE, POLICY, first, following=lambda one, at_s: [more(one.job.user, at_s)])


@pytest.mark.slow
@each_seed("shares of a week")
@pytest.mark.parametrize("users", [2, 3, 4])
def test_continuously_backlogged_users_get_their_shares_within_5_percent_over_a_week(users: int, seed: int) -> None:
    """Let 2, 3 and 4 users always have jobs that wait; the machine is used for over 60 % of the week."""
    uids = tuple(range(1001, 1001 + users))
    machine = backlogged(seed, uids)
    machine.run(7 * DAY_S)
    got = {user: machine.hours(user, 7 * DAY_S) for user in uids}
    fair = sum(got.values()) / users
    print({user: round(hours / fair, 4) for user, hours in got.items()}, len(machine.runs))
    assert sum(got.values()) > 0.6 * 8 * 7 * 24
    assert all(abs(hours / fair - 1) < 0.05 for hours in got.values())


@pytest.mark.slow
@each_seed("jobs that need the whole machine")
def test_no_job_waits_for_ever_behind_higher_priorities_less_usage_and_smaller_jobs(seed: int) -> None:
    """Let three jobs of 8 GPUs wait, at most 3.5, 6.5 and 9.5 days, behind small ones that come for 14 days."""
    chance, numbers = random.Random(seed), itertools.count()
    print("seed", seed)

    def small(user: int, at_s: float) -> Task:
        runtime_s = chance.uniform(600, 2 * HOUR_S)
        limit_s = runtime_s if chance.random() < 0.5 else None
        return task(next(numbers), user, 1, at_s, runtime_s, priority=3, max_runtime_s=limit_s)

    def following(one: Task, at_s: float) -> Iterable[Task]:
        return [small(one.job.user, at_s)] if at_s < 14 * DAY_S and one.job.amounts.gcores == 1 else []

    whole = [task(next(numbers), ANN, 8, 10.0 + number, HOUR_S) for number in range(3)]
    others = [small(user, 0.0) for user in USERS for _ in range(12)]
    machine = Machine(MACHINE, Policy(max_priority=3), [*others, *whole], following=following)
    machine.run(15 * DAY_S)
    waited = {run.task.job.id: run.started_s - run.task.job.arrived_s for run in machine.runs}
    days = [round(waited.get(item.job.id, math.inf) / DAY_S, 1) for item in whole]
    print(days)
    assert all(found <= most for found, most in zip(days, (3.5, 6.5, 9.5), strict=True))  # docs/team.md
    assert machine.waiting == []


@pytest.mark.slow
@each_seed("reservations")
def test_a_reservation_is_kept_while_no_job_precedes_it(seed: int) -> None:
    """Submit 300 jobs of one user in a day; over 50 have a promised start, and none starts after it."""
    chance = random.Random(seed)
    print("seed", seed)
    tasks = []
    for number in range(300):
        limit_s, gcores = chance.uniform(600, 4 * HOUR_S), chance.choice((1, 1, 2, 4, 8))
        runtime_s = limit_s * chance.random()
        tasks.append(task(number, ANN, gcores, chance.uniform(0, DAY_S), runtime_s, max_runtime_s=limit_s))
    machine = Machine(MACHINE, POLICY, tasks)
    promised: dict[str, float] = {}
    while (at_s := machine.next_s()) is not None:
        machine.step(at_s)
        assert machine.last is not None
        if (head := machine.last[1].head) is not None:
            expected_s = decision_of(machine.last[1], head).expected_s
            assert expected_s is not None
            # One user, so nobody comes before it: each later promise is as good.
            assert expected_s <= promised.get(head.id, expected_s) + 1e-6
            promised[head.id] = expected_s
    begun = {run.task.job.id: run.started_s for run in machine.runs}
    assert len(begun) == 300
    assert len(promised) > 50
    assert all(begun[name] <= at_s + 1e-6 for name, at_s in promised.items())
