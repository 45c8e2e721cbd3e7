"""All that runners of a shared queue can do at the same time, step by step, with the decisions of the real code.

A runner's steps are those of `dlapp.cluster.local.spool`: it looks at the queue, takes the application's lock,
publishes ``starting``, lists the spools of the others one after the other, looks whether each entry's lock is held, and
starts, withdraws or reads again. Between any two of them another runner may do any of its own, or die.
"""

from __future__ import annotations

import functools
import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlapp.cluster.local import schedule, spool
from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.runner import starting
from dlapp.cluster.local.runner.main import Runner as RealRunner
from dlapp.cluster.local.schedule import StartDecision
from dlapp.cluster.local.settings import settings_of
from dlapp.cluster.local.spool import RUNNING, STARTING, WAITING, SpoolEntry
from dlapp.cluster.local.state import StateDir, acquire_lock, is_locked
from dlapp.config import load_config
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.decisions import decide as pass_over
from dlapp.scheduler.values import Policy, QueueState, RunningJob, WaitingJob
from tests.attacks.local_state import engine_in, make_application
from tests.tiers import FULL

CAPACITY = 2
UNSUBMITTED, ENDED = "unsubmitted", "ended"
LIAR = 99
"""A user whose entries say anything, with the lock that they name held or not."""

Order = tuple[int, int, str]


class App(NamedTuple):
    """An application: what others can see of it, and what is true."""

    ask: int
    order: Order
    phase: str = WAITING
    locked: bool = False
    spawned: bool = False
    """Its ApplicationMaster has inherited the lock, so this outlives the runner."""
    done: bool = False


class Sighting(NamedTuple):
    """An entry as a runner has read it."""

    uid: int
    place: int
    ask: int
    order: Order
    phase: str


class Runner(NamedTuple):
    """A user's runner, and which of its steps is next."""

    uid: int
    apps: tuple[App, ...]
    alive: bool = True
    step: str = "look"
    position: int = 0
    """Which application it is about to start."""
    next: int = 0
    """Which other user, or which sighting, is read next."""
    seen: tuple[Sighting, ...] = ()


class World(NamedTuple):
    """All runners, and what may still happen to them."""

    runners: tuple[Runner, ...]
    deaths_left: int = 0
    tick: int = 0
    liar: str = ""
    """Empty: there is none; ``harmless``: no process of it lives; ``mighty``: it may hold locks."""


class Protocol(NamedTuple):
    """Steps of a runner; the defaults are what it does, anything else is a mistake."""

    decide: Callable[[int, Order, int, tuple[Sighting, ...]], StartDecision]
    rereads: bool = True
    publishes_first: bool = True
    locks_first: bool = True
    looks_at_locks: bool = True
    replaces_names: bool = False
    """``starting`` is taken away before ``running`` is there."""


@functools.cache
def decide(ask: int, order: Order, free: int, seen: tuple[Sighting, ...]) -> StartDecision:
    return schedule.decide_start(Amounts(ask, 0, 0), order, Amounts(free, 0, 0), [row_of(item) for item in seen])


def row_of(one: Sighting) -> ApplicationRow:
    names = ("uid", "id", "order", "state", "memory_mib", "vcores", "gcores")
    return ApplicationRow(names, (one.uid, one.order[2], one.order, one.phase, one.ask, 0, 0))


@functools.cache
def first_turn(waiting: tuple[Sighting, ...], free: int, absent: frozenset[int], uid: int) -> Order | None:
    """Return the first of a user's applications whose turn it is, as the scheduler of the real code decides."""
    jobs = [WaitingJob(item.order[2], item.uid, Amounts(item.ask, 0, 0), 0.0, item.order) for item in waiting]
    used = RunningJob(None, Amounts(CAPACITY - free, 0, 0))
    found = pass_over(QueueState(Amounts(CAPACITY, 0, 0), [used], jobs, absent=absent), Policy(), 0.0)
    return next(
        (decision.job.place for decision in found.decisions if decision.starts and decision.job.user == uid), None
    )


RIGHT = Protocol(decide)


def sightings(world: World, index: int) -> list[Sighting]:
    """Return what the spool of a runner's user shows now."""
    runner = world.runners[index]
    return [
        Sighting(runner.uid, place, app.ask, app.order, app.phase)
        for place, app in enumerate(runner.apps)
        if app.phase not in (UNSUBMITTED, ENDED)
    ]


def forged_sightings(world: World) -> list[list[Sighting]]:
    """Return what the spool of the liar may show at this moment; its entries are always the first."""
    entry = Sighting(LIAR, 0, 1 << 39, (-1, LIAR, "application_0_0000"), WAITING)
    return [[], *([entry._replace(phase=phase)] for phase in (WAITING, STARTING, RUNNING))] if world.liar else [[]]


def is_held(world: World, one: Sighting) -> list[bool]:
    """Return whether the lock of an entry is held now, as far as that can be known."""
    if one.uid == LIAR:
        return [False, True] if world.liar == "mighty" else [False]
    return [next(other for other in world.runners if other.uid == one.uid).apps[one.place].locked]


def steps(world: World, protocol: Protocol = RIGHT) -> Iterator[tuple[int, World]]:
    """Everything that can happen next, and whose step it is; -1: nobody's, and it need not happen."""
    for index, runner in enumerate(world.runners):

        def to(changed: Runner, *, index: int = index, **values: Any) -> World:
            runners = (*world.runners[:index], changed, *world.runners[index + 1 :])
            return world._replace(runners=runners, **values)

        if runner.alive:
            for changed in step(world, index, protocol):
                yield index, to(changed)
        elif world.deaths_left:
            yield -1, to(restarted(runner), deaths_left=world.deaths_left - 1)
        if runner.alive and world.deaths_left:
            apps = tuple(app._replace(locked=app.spawned) for app in runner.apps)
            dead = Runner(runner.uid, apps, alive=False)
            yield -1, to(dead, deaths_left=world.deaths_left - 1)
        for place, app in enumerate(runner.apps):
            if app.phase == UNSUBMITTED:
                for tick in (world.tick, world.tick + 1):  # two may come at the same time of the kernel's clock
                    new = app._replace(phase=WAITING, order=(tick, *app.order[1:]))
                    yield -1, to(with_app(runner, place, new), tick=tick)
            if app.spawned:
                ended = app._replace(spawned=False, locked=False, done=True)
                yield -1, to(with_app(runner, place, ended._replace(phase=ENDED) if runner.alive else ended))


def with_app(runner: Runner, place: int, app: App, **values: Any) -> Runner:
    return runner._replace(apps=(*runner.apps[:place], app, *runner.apps[place + 1 :]), **values)


def restarted(runner: Runner) -> Runner:
    """The next runner of that user: it settles what has ended, and puts back what never began."""
    apps = [
        app._replace(phase=ENDED)
        if app.done
        else app._replace(phase=WAITING)
        if app.phase in (STARTING, RUNNING) and not app.locked
        else app
        for app in runner.apps
    ]
    return Runner(runner.uid, tuple(apps))


def step(world: World, index: int, protocol: Protocol) -> Iterator[Runner]:
    """Return what a runner may become by its next step."""
    runner = world.runners[index]
    app = runner.apps[runner.position]
    others = [place for place in range(len(world.runners)) if place != index]
    match runner.step:
        case "look":
            for liars in forged_sightings(world):
                for held in itertools.product([False, True] if world.liar == "mighty" else [False], repeat=len(liars)):
                    yield runner_after_read(world, index, protocol, liars, held)
        case "lock":
            if protocol.locks_first:
                yield with_app(runner, runner.position, app._replace(locked=True), step="publish")
            else:
                yield with_app(runner, runner.position, app._replace(phase=STARTING), step="publish")
        case "publish":
            new = app._replace(phase=STARTING, locked=True) if protocol.publishes_first else app
            if not protocol.rereads:
                yield decided(with_app(runner, runner.position, new), protocol)
            else:
                yield with_app(runner, runner.position, new, step="list", next=0, seen=())
        case "list" if runner.next < len(others):
            found = [sighting for sighting in sightings(world, others[runner.next]) if sighting.phase != WAITING]
            yield runner._replace(seen=(*runner.seen, *found), next=runner.next + 1)
        case "list":
            for liars in forged_sightings(world):
                seen = (*runner.seen, *(liar for liar in liars if liar.phase != WAITING))
                yield runner._replace(step="check", next=0, seen=seen)
        case "check" if runner.next < len(runner.seen):
            one = runner.seen[runner.next]
            for is_it in is_held(world, one) if protocol.looks_at_locks else [True]:
                if is_it:
                    yield runner._replace(next=runner.next + 1)
                else:
                    yield runner._replace(seen=tuple(other for other in runner.seen if other is not one))
        case "check":
            yield decided(runner, protocol)
            if decided(runner, protocol).step == "list":
                yield runner._replace(step="withdraw", next=0, seen=())  # it has waited long enough
        case "run" if protocol.replaces_names and app.phase == STARTING:
            yield with_app(runner, runner.position, app._replace(phase=WAITING))
        case "run":
            yield with_app(runner, runner.position, app._replace(phase=RUNNING), step="spawn")
        case "spawn":
            yield with_app(runner, runner.position, app._replace(spawned=True), step="look", position=0)
        case "withdraw":
            yield with_app(runner, runner.position, app._replace(phase=WAITING, locked=False), step="look", position=0)


def runner_after_read(
    world: World, index: int, protocol: Protocol, liars: list[Sighting], held: tuple[bool, ...]
) -> Runner:
    """A runner that has looked which of its applications may start; it then goes by what may be old."""
    runner = world.runners[index]
    own = sightings(world, index)
    others = [sighting for place in range(len(world.runners)) if place != index for sighting in sightings(world, place)]
    alive = [other for other in others if not protocol.looks_at_locks or any(is_held(world, other))]
    alive += [one for one, is_it in zip(liars, held, strict=True) if is_it]
    running = [item for item in alive if item.phase != WAITING]
    free = CAPACITY - sum(item.ask for item in own if item.phase == RUNNING) - sum(item.ask for item in running)
    waiting = sorted((item for item in (*own, *others, *liars) if item.phase == WAITING), key=lambda item: item.order)
    with_runner = {item.uid for item in world.runners if item.alive} | ({LIAR} if any(held) else set())
    absent = {item.uid for item in waiting} - with_runner - {runner.uid}
    first = first_turn(tuple(waiting), free, frozenset(absent), runner.uid)
    if first is None:
        return runner
    place = next(item.place for item in own if item.order == first)
    return runner._replace(step="lock", position=place, seen=tuple(running) if not protocol.rereads else ())


def decided(runner: Runner, protocol: Protocol) -> Runner:
    """A runner that has read all spools, and goes by that."""
    app = runner.apps[runner.position]
    own = sum(item.ask for item in runner.apps if item.phase == RUNNING)
    following = {StartDecision.START: "run", StartDecision.WITHDRAW: "withdraw", StartDecision.WAIT: "list"}
    decision = protocol.decide(app.ask, app.order, CAPACITY - own, runner.seen)
    return runner._replace(step=following[decision], next=0, seen=())


# ---- what must hold ----


def exceeds(world: World) -> bool:
    """Return whether more runs than there is."""
    running = [app.ask for runner in world.runners for app in runner.apps if app.phase == RUNNING and app.locked]
    return sum(running) > CAPACITY


def first_that_fits(world: World) -> Order | None:
    """The first in the queue of those whose runner lives, if there is room for it."""
    apps = [app for runner in world.runners if runner.alive for app in runner.apps]
    waiting = [app for app in apps if app.phase in (WAITING, STARTING)]
    if not waiting:
        return None
    first = min(waiting, key=lambda app: app.order)
    everything = [app for runner in world.runners for app in runner.apps]
    used = sum(app.ask for app in everything if app.phase == RUNNING and app.locked)
    return first.order if used + first.ask <= CAPACITY else None


Graph = dict[World, list[tuple[int, World]]]


def explored(starts: list[World], protocol: Protocol = RIGHT) -> Graph:
    """Everything that can be reached, and how.

    Raises:
        AssertionError: more can run than there is.
    """
    graph: Graph = {}
    pending = list(starts)
    while pending:
        world = pending.pop()
        if world in graph:
            continue
        assert not exceeds(world), f"more runs than there is: {world}"
        graph[world] = list(steps(world, protocol))
        pending += [after for _, after in graph[world] if after not in graph]
    return graph


def no_endless_wait(graph: Graph) -> None:
    """Nobody who is the first and fits can be kept waiting for ever, while each living runner goes on with its steps.

    Raises:
        AssertionError: the runners can go round in circles.
    """
    by_first: dict[Order, list[World]] = {}
    for world in graph:
        if (first := first_that_fits(world)) is not None:
            by_first.setdefault(first, []).append(world)
    for first, worlds in by_first.items():
        inside = set(worlds)
        edges = {world: [(who, to) for who, to in graph[world] if who >= 0 and to in inside] for world in worlds}
        for circle in circles(edges):
            moving = {who for world in circle for who, to in edges[world] if to in circle}
            living = {index for index, one in enumerate(next(iter(circle)).runners) if one.alive}
            assert not moving >= living, f"{first} waits for ever: {next(iter(circle))}"


def circles(edges: dict[World, list[tuple[int, World]]]) -> Iterator[set[World]]:
    """Strongly connected components. Source: Tarjan, 1972; without recursion."""
    number: dict[World, int] = {}
    low: dict[World, int] = {}
    path: list[World] = []
    on_path: set[World] = set()
    for root in edges:
        if root in number:
            continue
        work = [(root, iter(edges[root]))]
        number[root] = low[root] = len(number)
        path.append(root)
        on_path.add(root)
        while work:
            world, following = work[-1]
            for _, to in following:
                if to not in number:
                    number[to] = low[to] = len(number)
                    path.append(to)
                    on_path.add(to)
                    work.append((to, iter(edges[to])))
                    break
                if to in on_path:
                    low[world] = min(low[world], number[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[world])
                if low[world] == number[world]:
                    found = set()
                    while world not in found:
                        found.add(path.pop())
                    on_path -= found
                    yield found


# ---- the worlds ----


def app(uid: int, place: int, ask: int, tick: int = 0, phase: str = WAITING) -> App:
    return App(ask, (tick, uid, f"application_1_{place:04}"), phase)


ASKS_OF_TWO = ((1, 1, 2), (2, 1, 1), (2, 2, 2))


def two(asks: tuple[int, ...], *, liar: str = "") -> World:
    """Two users: the first with two applications, the second with one; they come at any time, and one process dies."""
    return World(
        (
            Runner(1, (app(1, 1, asks[0], phase=UNSUBMITTED), app(1, 2, asks[1], phase=UNSUBMITTED))),
            Runner(2, (app(2, 1, asks[2], phase=UNSUBMITTED),)),
        ),
        deaths_left=0 if liar else 2,
        liar=liar,
    )


ASKS_OF_THREE = ((2, 2, 2), (1, 1, 1), (1, 2, 1))
TICKS_OF_THREE = ((0, 0, 0), (2, 1, 0), (0, 1, 1))


def three(asks: tuple[int, ...], ticks: tuple[int, ...], deaths: int = 0) -> list[World]:
    """Three users who have looked already, before the others came or after; some came at the same time."""
    return [
        World(
            tuple(
                Runner(uid, (app(uid, 1, ask, tick),), step=step)
                for uid, ask, tick, step in zip((1, 2, 3), asks, ticks, looks, strict=True)
            ),
            deaths,
        )
        for looks in itertools.product(("look", "lock"), repeat=3)
    ]


@pytest.mark.proves("queue-capacity")
@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("asks", ASKS_OF_TWO, ids=str)
@pytest.mark.parametrize("liar", ["", "harmless", "mighty"])
def test_two_users_never_run_more_than_there_is_and_the_first_gets_its_turn(liar: str, asks: tuple[int, ...]) -> None:
    graph = explored([two(asks, liar=liar)])
    if liar != "mighty":  # who holds locks occupies what the entry says: docs/local.md
        no_endless_wait(graph)
    assert any(world.runners[0].apps[1].phase == ENDED for world in graph)


@pytest.mark.proves("queue-capacity")
@pytest.mark.sampled(8)
@pytest.mark.parametrize("deaths", [0, 1] if FULL else [0])
@pytest.mark.parametrize("ticks", TICKS_OF_THREE, ids=str)
@pytest.mark.parametrize("asks", ASKS_OF_THREE, ids=str)
def test_three_users_never_run_more_than_there_is_and_the_first_gets_its_turn(
    asks: tuple[int, ...], ticks: tuple[int, ...], deaths: int
) -> None:
    no_endless_wait(explored(three(asks, ticks, deaths)))


@pytest.mark.slow
@given(chance=st.randoms(use_true_random=False))
def test_many_users_never_run_more_than_there_is(chance: random.Random) -> None:
    runners = [
        Runner(uid, tuple(app(uid, place, chance.choice((1, 1, 2)), phase=UNSUBMITTED) for place in range(2)))
        for uid in range(1, 7)
    ]
    world = World(tuple(runners), deaths_left=4, liar=chance.choice(("", "harmless", "mighty")))
    for _ in range(150):
        _, world = chance.choice(list(steps(world)))
        assert not exceeds(world)


# ---- mistakes ----


def only_what_runs(ask: int, order: Order, free: int, seen: tuple[Sighting, ...]) -> StartDecision:
    return decide(ask, order, free, tuple(item for item in seen if item.phase == RUNNING))


def without_ties(ask: int, order: Order, free: int, seen: tuple[Sighting, ...]) -> StartDecision:
    return decide(ask, (order[0], 0, ""), free, tuple(item._replace(order=(item.order[0], 0, "")) for item in seen))


def the_later_first(ask: int, order: Order, free: int, seen: tuple[Sighting, ...]) -> StartDecision:
    found = decide(ask, order, free, seen)
    return StartDecision.START if found is StartDecision.WAIT else found


MISTAKES = {
    "it does not read the spools again": RIGHT._replace(rereads=False),
    "it does not withdraw for who starts": RIGHT._replace(decide=only_what_runs),
    "it does not wait for who is to withdraw": RIGHT._replace(decide=the_later_first),
    "it takes equal times for no order": RIGHT._replace(decide=without_ties),
    "it reads before it publishes": RIGHT._replace(publishes_first=False),
    "it publishes before it has the lock": RIGHT._replace(locks_first=False),
    "it believes entries whose lock is free": RIGHT._replace(looks_at_locks=False),
    "for a moment it shows neither name": RIGHT._replace(replaces_names=True),
}


@pytest.mark.proves("queue-capacity")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_model_finds_each_mistake(mistake: str) -> None:
    def explore_all() -> None:
        with_liar = (two(asks, liar="harmless") for asks in ASKS_OF_TWO)
        with_three = itertools.chain.from_iterable(
            three(*way) for way in itertools.product(ASKS_OF_THREE, TICKS_OF_THREE)
        )
        for start in (*with_liar, *with_three, *map(two, ASKS_OF_TWO)):
            no_endless_wait(explored([start], MISTAKES[mistake]))

    with pytest.raises(AssertionError, match=r"more runs than there is|waits for ever"):
        explore_all()


# ---- the real runner takes the model's steps ----


@pytest.mark.parametrize(
    ("rivals", "phases", "started"),
    [
        ([], [STARTING, RUNNING], True),
        ([(RUNNING, -1)], [], False),
        ([(STARTING, -1)], [], False),
        ([(STARTING, 1 << 62)], [], False),
    ],
    ids=["alone", "beside one that runs", "beside an earlier one", "beside a later one that stays"],
)
def test_the_real_runner_reads_after_it_has_published_with_the_lock_held(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    rivals: list[tuple[str, int]],
    phases: list[str],
    started: bool,
) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    state_dir.chmod(0o3770)
    now_s = 0.0

    def sleep(duration_s: float) -> None:
        nonlocal now_s
        now_s += duration_s

    # With the real clock a stop of this process could be all the time that it waits.
    monkeypatch.setattr(starting, "time", SimpleNamespace(monotonic=lambda: now_s, sleep=sleep))
    with engine_in(state_dir, shared=True) as engine:
        application = make_application(engine, "waiting")
        state = engine.state
        config = load_config({"local.state_dir": str(state_dir), "local.shared": "true"}, environ={})
        runner = RealRunner(state, settings_of(config, ("/bin/false",)), -1)
        alive = os.path.join(state.application(application), "alive")
        read = []

        def others(_state: StateDir) -> list[SpoolEntry]:
            read.append((is_locked(alive), shown(state.spool)))
            return [SpoolEntry((when, LIAR, application), LIAR, application, 2, 0, 0, phase) for phase, when in rivals]

        def shown(directory: str) -> list[str]:
            names = (name.rpartition(".")[2] for name in os.listdir(directory))
            return sorted((item for item in names if not item.isdigit()), reverse=True)

        monkeypatch.setattr(spool, "entries_of_others", others)
        monkeypatch.setattr(spool, "is_alive", lambda *_: True)
        (row,) = runner.context.queue.unsettled()
        lock = acquire_lock(alive, 0o640)
        assert lock is not None
        assert runner.starter._mark_started(row, Amounts(2, 8, 0)) is started
        os.close(lock)
        assert read
        assert all(item == (True, [STARTING]) for item in read)
        assert shown(state.spool) == phases
        waited = bool(rivals) and rivals[0][1] > 0
        assert (len(read) > 1) is waited
        runner.context.queue.close()


def test_an_application_is_shown_as_running_while_it_was_starting_too(tmp_path: Path) -> None:
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    state_dir.chmod(0o3770)
    with engine_in(state_dir, shared=True) as engine:
        application = make_application(engine, "waiting")
        for phase in (STARTING, RUNNING, WAITING):
            spool.mark(engine.state, application, phase)
            (entry,) = spool.entries_of(engine.state)
            assert entry.phase == phase
        spool.mark(engine.state, application, STARTING)
        spool.remove(engine.state, spool.ids(engine.state))
        assert os.listdir(engine.state.spool) == []


def test_overcommitted_gpus_do_not_block_requests_without_gpus() -> None:
    row = row_of(Sighting(1, 0, 1, (0, 1, "application_1_0001"), RUNNING))
    row.gcores = 2
    free = Amounts(4, 4, 1).without([row])
    assert free.gcores == -1
    assert schedule.lack(Amounts(1, 1, 0), free) is None
    assert schedule.lack(Amounts(1, 1, 1), free) == "needs 1 gcore, 0 free"
