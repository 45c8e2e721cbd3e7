"""The queue of one machine as its runner and the commands read it: places, usage, limits, and turns of other users."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from dlapp.cluster.local import queue_state, spool
from dlapp.cluster.local.client import preflight, submission
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.local.client.queue_order import order_of
from dlapp.cluster.local.client.session import LocalSession
from dlapp.cluster.local.outcome import ended, write_outcome
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.queue_state import QueueContents, QueueReader, read_policy, row_of, state_of
from dlapp.cluster.local.row import DONE, HELD, RUNNING, WAITING, ApplicationRow
from dlapp.cluster.local.runner.main import Runner
from dlapp.cluster.local.runner.queue_pass import QueuePasses
from dlapp.cluster.local.spool import SpoolEntry
from dlapp.config import load_config
from dlapp.errors import ConfigError, Denied, RequestTooLarge
from dlapp.node_policy import node_policy
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.values import Policy
from tests.applications import listed_json
from tests.attacks.local_state import engine_in, make_application
from tests.seeds import each_seed
from tests.services.polling import wait_until
from tests.services.processes.ledger_process import fake_devices
from tests.services.processes.small_app import spec_of, submit

MACHINE = Amounts(1000, 16, 8)
OTHER = 60_999


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[LocalEngine]:
    """An engine of a shared queue, which starts nothing."""
    state_dir = tmp_path / "state"
    state_dir.mkdir()
    state_dir.chmod(0o3770)
    with engine_in(state_dir, shared=True) as engine:
        yield engine


@pytest.fixture
def policy_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The operator's file, for the engine in this process."""
    path = tmp_path / "node.yaml"
    monkeypatch.setattr(queue_state, "POLICY_FILE", str(path))
    monkeypatch.setattr(node_policy, "__kwdefaults__", {"owner": os.getuid()})
    return path


def numbered(application: str) -> int:
    return int(application.rpartition("_")[2])


def change(engine: LocalEngine, application: str, **columns: object) -> None:
    with Queue(engine.state) as queue, queue.change():
        queue.update(numbered(application), **columns)


def shown(engine: LocalEngine) -> list[str]:
    return sorted(name.partition(".")[2] for name in os.listdir(engine.state.spool))


def entry(number: int, uid: int = OTHER, phase: str = spool.WAITING, gcores: int = 0) -> SpoolEntry:
    name = f"application_5_{number:04d}"
    return SpoolEntry((number, uid, name), uid, name, 1, 1, gcores, phase)


# ---- spools ----


def test_only_an_application_that_ran_adds_usage(engine: LocalEngine) -> None:
    ran, never = make_application(engine, "waiting"), make_application(engine, "waiting")
    change(engine, ran, priority=3, runs_at_most_s=90)
    (first, second) = spool.entries_of(engine.state)
    assert (first.id, first.priority, first.runs_at_most_s) == (ran, 3, 90)
    assert (second.id, second.priority, second.runs_at_most_s) == (never, 0, None)
    for phase in (spool.STARTING, spool.RUNNING):
        spool.mark(engine.state, ran, phase)
    started_ns = spool.entries_of(engine.state)[0].started_ns
    assert started_ns >= first.order[0]
    for item in (ran, never):
        change(engine, item, state=DONE)
    assert shown(engine) == ["1.1.0", "ended", "running"]
    content = spool.read(engine.state)
    (use,) = content.past
    assert content.entries == []
    assert (use.id, use.arrived_ns, use.started_ns) == (ran, first.order[0], started_ns)
    assert use.ended_ns >= started_ns
    spool.remove(engine.state, {ran, never})
    assert spool.read(engine.state).past == [use]
    assert spool.forget_past(engine.state, use.ended_ns) == 0
    assert spool.forget_past(engine.state, use.ended_ns + 1) == 1
    assert shown(engine) == []


def test_an_application_submitted_during_a_runners_start_keeps_its_place(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = [make_application(engine, "waiting")]
    runner = Runner(engine.state, engine.session.settings, -1)
    read = runner.context.queue.unsettled

    def read_then_submit() -> list[ApplicationRow]:
        rows = read()
        ids.append(make_application(engine, "waiting"))
        return rows

    monkeypatch.setattr(runner.context.queue, "unsettled", read_then_submit)
    runner._republish()
    runner.context.queue.close()
    assert [entry.id for entry in spool.entries_of(engine.state)] == ids


def test_an_unqueued_application_is_queued_at_the_runners_next_poll(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    application = make_application(engine, "waiting")
    for name in os.listdir(engine.state.spool):
        os.rmdir(os.path.join(engine.state.spool, name))
    runner = Runner(engine.state, engine.session.settings, -1)
    monkeypatch.setattr(runner.starter, "_capacity", lambda: Amounts(0, 0, 0))
    runner._process_rows()
    runner.context.queue.close()
    assert [(entry.id, entry.phase) for entry in spool.entries_of(engine.state)] == [(application, spool.WAITING)]


def test_a_row_does_not_change_while_it_is_shown(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    shown_rows, show = list[ApplicationRow](), Queue._show

    def try_to_change_then_show(queue: Queue, row: ApplicationRow) -> None:
        with (
            contextlib.closing(sqlite3.connect(engine.state.database, timeout=0.0, isolation_level=None)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")
        shown_rows.append(row)
        show(queue, row)

    monkeypatch.setattr(Queue, "_show", try_to_change_then_show)
    application = make_application(engine, "waiting")
    assert [row.id for row in shown_rows] == [application]
    assert shown(engine) == ["1.1.0"]


def test_a_submission_that_is_late_does_not_undo_the_start(engine: LocalEngine) -> None:
    application = make_application(engine, "waiting")
    for phase in (spool.STARTING, spool.RUNNING):
        spool.mark(engine.state, application, phase)
        with Queue(engine.state) as queue:
            queue.publish([numbered(application)])
        assert [entry.phase for entry in spool.entries_of(engine.state)] == [phase]


def test_an_application_that_was_held_has_a_place_when_it_is_released(engine: LocalEngine) -> None:
    application = make_application(engine, HELD)
    assert spool.blocked_ids(engine.state) == {application}
    change(engine, application, state=WAITING)
    assert spool.blocked_ids(engine.state) == set()
    assert [entry.id for entry in spool.entries_of(engine.state)] == [application]


def test_the_end_is_noted_with_the_outcome_also_without_a_runner(engine: LocalEngine) -> None:
    application = make_application(engine, "waiting")
    home = engine.state.application(application)
    os.unlink(os.path.join(home, "outcome.json"))
    for phase in (spool.STARTING, spool.RUNNING):
        spool.mark(engine.state, application, phase)
    write_outcome(home, ended("FINISHED", "SUCCEEDED", "succeeded", "", 5))
    (found,) = spool.entries_of(engine.state)  # its processes may still be ending
    assert found.phase == spool.RUNNING
    (noted,) = [name for name in os.listdir(engine.state.spool) if name.endswith(".ended")]
    before = os.stat(os.path.join(engine.state.spool, noted)).st_ctime_ns
    change(engine, application, state=DONE)
    assert spool.read(engine.state).past[0].ended_ns == before


def test_usage_is_read_once_until_it_is_removed(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    application = make_application(engine, "waiting")
    for phase in (spool.STARTING, spool.RUNNING):
        spool.mark(engine.state, application, phase)
    change(engine, application, state=DONE)
    known: dict[str, spool.PastUse] = {}
    first = spool.read(engine.state, known).past
    monkeypatch.setattr(spool, "_made_ns", lambda *_: pytest.fail("looked"))
    assert spool.read(engine.state, known).past == first
    for name in os.listdir(engine.state.spool):
        os.rmdir(os.path.join(engine.state.spool, name))
    assert spool.read(engine.state, known).past == []
    assert known == {}


@each_seed("names")
def test_unknown_names_in_the_queue_directory_are_ignored(engine: LocalEngine, seed: int) -> None:
    """Put 200 directories with names of marks and numbers that mean nothing beside one application."""
    chance = random.Random(seed)
    application = make_application(engine, "waiting")
    for number in range(200):
        mark = ".".join(
            chance.choice(("asks", "running", "ended", "-1", "1e9", "7", "9" * 20, "", "é")) for _ in range(3)
        )
        os.mkdir(os.path.join(engine.state.spool, f"application_7_{number:04d}.{mark}"))
    Path(engine.state.spool, f"{application}.running").touch()
    found = spool.read(engine.state)
    assert application in [entry.id for entry in found.entries]
    assert all(0 <= entry.priority < 10**12 for entry in found.entries)


# ---- the state for the scheduler ----


def test_usage_counts_by_the_kernels_times_and_not_beyond_a_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    now_s = 1_700_000_000.0
    monkeypatch.setattr(queue_state, "_boot_s", lambda: now_s - 1800)
    past = [
        spool.PastUse("application_5_0001", OTHER, 1, 2, 1, int((now_s - 5400) * 1e9), int((now_s - 3600) * 1e9)),
        spool.PastUse("application_5_0002", OTHER, 1, 2, 1, int((now_s - 3600) * 1e9), int((now_s - 1) * 1e9)),
    ]
    running = row_of(entry(3, phase=spool.RUNNING, gcores=4)._replace(started_ns=int((now_s - 900) * 1e9)))
    found = state_of(QueueContents([], [running], past), MACHINE, Policy(half_life_s=1e9), now_s)
    assert found.hours[OTHER] == pytest.approx(2 * 0.5 + 2 * 0.5 + 4 * 0.25, rel=1e-3)
    assert len(found.starts[OTHER]) == 3
    by_cores = state_of(QueueContents([], [running], past), MACHINE, Policy(half_life_s=1e9, charge="vcores"), now_s)
    assert by_cores.hours[OTHER] == pytest.approx(1.25, rel=1e-3)


def test_the_end_of_a_running_application_is_known_with_max_runtime_only() -> None:
    now_s = 1000.0
    limited = row_of(entry(1, phase=spool.RUNNING)._replace(started_ns=int(900e9), runs_at_most_s=300))
    starting = row_of(entry(2, phase=spool.STARTING)._replace(runs_at_most_s=300))
    unlimited = row_of(entry(3, phase=spool.RUNNING))
    found = state_of(QueueContents([], [limited, starting, unlimited], []), MACHINE, Policy(), now_s, others_gcores=2)
    assert [item.ends_s for item in found.running] == [1200.0, 1300.0, None, None]
    assert found.running[3].amounts == Amounts(0, 0, 2)


def test_ones_own_applications_have_the_places_of_the_spool(engine: LocalEngine) -> None:
    applications = [make_application(engine, "waiting") for _ in range(3)]
    change(engine, applications[2], priority=5)
    with Queue(engine.state) as queue:
        rows = queue.unsettled()
        contents = QueueReader(engine.state).read(rows)
        assert [row.order for row in contents.waiting] == [entry.order for entry in spool.entries_of(engine.state)]
        order = order_of(engine.state, queue.unsettled(), Policy())
    assert [entry.id for entry in order.entries] == [applications[2], *applications[:2]]


def test_a_command_shows_the_order_and_the_limits(engine: LocalEngine, policy_file: Path) -> None:
    applications = [make_application(engine, "waiting") for _ in range(3)]
    policy_file.write_text("queue: {user_queued: 2}\n")
    views = {view["application_id"]: view["waiting"] for view in listed_json(engine)}
    assert [views[application]["code"] for application in applications] == ["starting", "nodes_full", "user_limit"]
    assert views[applications[1]]["message"] == "waiting: 1 ahead"
    assert views[applications[2]]["message"] == (
        "its user has more than 2 applications in the queue (queue.user_queued)"
    )
    assert engine.view_in_full(applications[2]).json["waiting"]["change"] == ""


def wait_for_later_time(directory: Path, after_ns: int) -> None:
    """Wait until the kernel's clock of files, which stands still for milliseconds, is later."""

    def is_later() -> bool:
        (directory / "made").unlink(missing_ok=True)
        (directory / "made").touch()
        return (directory / "made").stat().st_ctime_ns > after_ns

    wait_until(is_later)


def test_shares_are_of_the_usage_that_counts(engine: LocalEngine, policy_file: Path, tmp_path: Path) -> None:
    policy_file.write_text("queue: {charge: vcores}\n")
    application = make_application(engine, "waiting")
    for phase in (spool.STARTING, spool.RUNNING):
        spool.mark(engine.state, application, phase)
    wait_for_later_time(tmp_path, spool.entries_of(engine.state)[0].started_ns)
    change(engine, application, state=DONE)
    (share,) = engine.queue_facts().shares
    assert share.share == 1.0
    assert share.meaning.startswith("of the recent use by all, ")
    assert share.meaning.endswith(" core-hours")


# ---- the operator's file ----


def test_the_policy_names_users_by_name_or_uid(policy_file: Path) -> None:
    assert read_policy() == Policy()
    policy_file.write_text("queue: {max_priority_of: [root=5, 1002=7, nobody-of-that-name=9], user_gcores: 3}\n")
    found = read_policy()
    assert found.max_priority_by_user == {0: 5, 1002: 7}
    assert found.gcores_of(7) == 3
    policy_file.write_text("queue: {user_gcores: many}\n")
    with pytest.raises(ConfigError, match=r"queue\.user_gcores: 'many' is not a whole number"):
        read_policy()


def test_limits_refuse_at_submission(engine: LocalEngine, policy_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    monkeypatch.setattr(LocalSession, "gpus", lambda self: (fake_devices(8), None))
    monkeypatch.setattr(preflight, "_check_ledger", lambda session, refuse: None)
    policy_file.write_text(f"queue: {{user_gcores: 1, user_gcores_of: [{os.getuid()}=4], user_queued: 2}}\n")
    engine.check(spec_of(gcores=4))
    with pytest.raises(
        RequestTooLarge, match=r"asked for 5 gcores, and your applications may have 4 at a time \(queue\.user"
    ):
        engine.check(spec_of(gcores=5))
    submit(engine, "finish")
    submit(engine, "finish", hold=True)  # held ones count, too
    with pytest.raises(Denied, match=r"2 of your applications wait, and 2 may \(queue\.user_queued of node\.yaml\)"):
        submit(engine, "finish")


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ((__file__, "main.py"), "may not run .*test_queue_state.py"),
        (("/bin/true", "/nowhere/main.py"), "may not read /nowhere/main.py"),
    ],
)
def test_a_submission_that_no_runner_could_start_is_refused(
    tmp_path: Path, program: tuple[str, str], problem: str
) -> None:
    config = load_config({"local.state_dir": str(tmp_path / "state")}, environ={})
    with LocalEngine(config, program=program) as engine, pytest.raises(Denied, match=problem):
        engine.check(spec_of())


# ---- the reservation ----


def test_the_latest_start_of_the_reservation_is_shown(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = make_application(engine, "waiting"), make_application(engine, "waiting")
    now_ms = time.time_ns() // 1_000_000
    runner = Runner(engine.state, engine.session.settings, -1)
    monkeypatch.setattr(runner.starter, "_capacity", lambda: Amounts(1, 8, 0))
    for limit_s, latest_ms in ((300, now_ms + 300_000), (310, now_ms + 300_000), (600, now_ms + 600_000), (None, None)):
        change(engine, first, state=RUNNING, started_ms=now_ms, runs_at_most_s=limit_s)
        runner.starter.start_waiting()
        waiting = engine.view_in_full(second).json["waiting"]
        assert waiting["code"] == "nodes_full"
        assert waiting["reserved_ms"] == (latest_ms if latest_ms is None else pytest.approx(latest_ms, abs=2))
    runner.context.queue.close()


# ---- turns ----


@pytest.fixture
def make_turns(engine: LocalEngine, monkeypatch: pytest.MonkeyPatch) -> Callable[..., QueuePasses]:
    """Make passes over a queue in which another user has a runner, or has none."""

    def make(has_runner: bool = True) -> QueuePasses:
        monkeypatch.setattr(spool, "has_runner", lambda state: has_runner)
        return QueuePasses(engine.state)

    return make


def both(gcores: int = 8) -> QueueContents:
    other, own = row_of(entry(1, gcores=gcores)), row_of(entry(2, os.geteuid(), gcores=gcores))
    return QueueContents([other, own], [], [])


def starts(turns: QueuePasses, contents: QueueContents) -> list[str]:
    return [decision.job.id for decision in turns.decide(contents, MACHINE, 0).decisions if decision.starts]


def test_a_user_without_a_runner_is_passed_over(make_turns: Callable[..., QueuePasses]) -> None:
    contents = both()
    assert starts(make_turns(), contents) == [contents.waiting[0].id]
    assert starts(make_turns(has_runner=False), contents) == [contents.waiting[1].id]


def test_a_user_whose_runner_misses_its_turn_is_passed_over_until_it_starts(
    make_turns: Callable[..., QueuePasses], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("dlapp.cluster.local.runner.queue_pass.time.monotonic", lambda: clock[0])
    found, contents = make_turns(), both()
    other, own = (row.id for row in contents.waiting)
    for passed_s, first in ((0, other), (29, other), (1, own), (600, own)):
        clock[0] += passed_s
        assert starts(found, contents) == [first]
    following = QueueContents([row_of(entry(3, gcores=8))], [], [])
    assert starts(found, following) == []
    running = row_of(entry(1, phase=spool.RUNNING)._replace(started_ns=5))
    assert starts(found, following._replace(running=[running])) == [following.waiting[0].id]


def test_replacing_an_application_that_does_not_start_does_not_block_the_queue(
    make_turns: Callable[..., QueuePasses], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("dlapp.cluster.local.runner.queue_pass.time.monotonic", lambda: clock[0])
    found, own = make_turns(), row_of(entry(1000, os.geteuid(), gcores=8))
    firsts = []
    for number in range(100):
        clock[0] += 0.5
        replaced = row_of(entry(1 + number // 50, gcores=8))
        # Between the two there is a pass that sees neither.
        waiting = [own] if number % 50 == 49 else [replaced, own]
        firsts += starts(found, QueueContents(waiting, [], []))[:1]
    assert firsts.index(own.id) == 49
    assert set(firsts[61:]) == {own.id}
    clock[0] += 3600
    assert starts(found, QueueContents([replaced, own], [], [])) == [replaced.id]


def test_gpus_held_by_others_are_not_leased(make_turns: Callable[..., QueuePasses]) -> None:
    contents = both(gcores=7)
    assert [decision.starts for decision in make_turns().decide(contents, MACHINE, 2).decisions] == [False, False]


def test_a_running_row_counts_though_its_spool_is_gone(engine: LocalEngine) -> None:
    application = make_application(engine, "waiting")
    with Queue(engine.state) as queue:
        (row,) = queue.unsettled()
        gone: ApplicationRow = row
        gone.state = RUNNING
        os.rmdir(os.path.join(engine.state.spool, f"{application}.1.1.0"))
        assert QueueReader(engine.state).read([gone]).running == [gone]
