"""Test what lies in a user's own state directory from a time when others could write there: each name, each kind."""

from __future__ import annotations

import contextlib
import encodings.idna  # noqa: F401  (a user cannot load it later)
import hashlib
import os
import secrets  # noqa: F401
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from dlapp.client import completion
from dlapp.client.command_session import records_below, session_directory
from dlapp.cluster.local.client import kill
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.local.runner import (
    election,
    history,  # noqa: F401
    orphans,  # noqa: F401
)
from dlapp.cluster.local.runner import main as runner
from dlapp.cluster.local.state import acquire_lock, machine_name, open_lock
from dlapp.config import Config, load_config
from dlapp.errors import DlappError
from dlapp.net import control  # noqa: F401
from dlapp.system import locks
from dlapp.task.data import input_record
from dlapp.values.ids import ApplicationId

# What is imported late: another user may not be able to read the interpreter of the tests.
from tests.applications import listed_json
from tests.attacks.hostile_files import Bait
from tests.attacks.identities import MEMBER, VICTIM, Identities, User
from tests.attacks.local_state import engine_in, make_application
from tests.attacks.snapshots import contents_unchanged
from tests.services.processes.small_app import spec_of

Hostile = Callable[..., None]
WORKSPACE = "/nowhere/workspace"
RECORD = hashlib.blake2b(os.fsencode(WORKSPACE), digest_size=16).hexdigest()
OF_A_USER = (
    *("dlapp.db", "dlapp.db-wal", "dlapp.db-shm", "staging", "applications", "cache", "cache/UID", "spool"),
    *("runner-UID.lock", "runner-UID.alive", "runner-UID.fifo", "runner-UID.log"),
)
OF_SHELLS = (
    *("shells", "shells/UID", "shells/UID/sessions", "shells/UID/workspaces", f"shells/UID/workspaces/{RECORD}.json"),
    *("shells/UID/sessions/shell-1-dead", "shells/UID/sessions/shell-1-dead/dlapp.log"),
)
OF_AN_APPLICATION = (
    *(
        "",
        "row.json",
        "view.json",
        "outcome.json",
        "am.json",
        "kill.json",
        "died",
        "alive",
        "alive-2",
        "engine.json",
        "am.pid",
        "am.log",
    ),
    *("commit.json", "submission.json", "secrets.json", "engine.json", "containers", "containers/ID"),
)


@pytest.fixture
def shared_state_of_both(identities: Identities, shared_state: Path) -> tuple[Path, str]:
    """A shared state directory in which both users have an application and had a shell; it, and the victim's id."""

    def prepare() -> str:
        with engine_in(shared_state, shared=True) as engine:
            made = make_application(engine)
        with session_directory(config_of(shared_state)) as session:
            dead = Path(session).with_name("shell-1-dead")
            dead.mkdir()
            (dead / "dlapp.log").touch()
            input_record.record_paths(records_below(engine.state.path), WORKSPACE, ["data"])
        open_lock(engine.state.runner_lock(os.geteuid()))
        acquire_lock(engine.state.runner_sign(os.geteuid()), 0o640)
        os.close(election.open_fifo(engine.state, os.geteuid()))
        Path(engine.state.runner_log(os.geteuid())).touch()
        return made

    identities.call(MEMBER, prepare)
    return shared_state, identities.call(VICTIM, prepare)


def config_of(state: Path) -> Config:
    options = {"local.state_dir": str(state), "local.shared": "true", "gpuid.lock_dir": f"{state}-gpus"}
    return load_config({**options, "local.gcores": "0"}, environ={})


def state_of_user(state: Path, user: User) -> Path:
    return Path(f"{state}/{machine_name()}-{user.uid}")


def use_all(state: Path) -> list[str]:
    """Do everything that is done with a state directory: what cannot be done, a line each."""
    kill.KILL_END_S = 0.01  # the runner that would settle what was killed is none
    messages: list[str] = []

    @contextlib.contextmanager
    def bearing(what: str) -> Iterator[None]:
        try:
            yield
        except DlappError as error:
            messages.append(f"{what}: {error}")
        except OSError as error:
            # A command says it in a line, and so does the runner's log, if it is one of the kernel's.
            messages.append(f"{what}: {error.filename}: {error.strerror or repr(error)}")

    def with_the_runner(engine: LocalEngine, what: Callable[[runner.Runner], object], name: str) -> None:
        with bearing(name):
            lock = open_lock(engine.state.runner_lock(os.geteuid()))
            if not locks.try_lock(lock):
                return
            one = runner.Runner(engine.state, engine.session.settings, lock)
            try:
                what(one)
            finally:
                one.context.queue.close()
                os.close(lock)

    engine = None
    with bearing("open"):
        engine = engine_in(state, shared=True)
    if engine is None:
        return messages
    with engine:
        ids: list[str] = []
        with bearing("complete an id"), contextlib.suppress(sqlite3.Error):
            completion.on_this_machine(config_of(state).local, unfinished=False)
        with bearing("list"):
            ids = [view["application_id"] for view in listed_json(engine, everybody=True)]
        with bearing("submit"):
            ids.append(make_application(engine, "waiting"))
        with bearing("start a runner"):
            election.ensure_runner(engine.state, engine.session.settings)
        with bearing("wake a runner"):
            election.wake_runner(engine.state, os.geteuid())
        with bearing("open the FIFO"):
            os.close(election.open_fifo(engine.state, os.geteuid()))
        with_the_runner(engine, runner.Runner._republish, "publish")
        with_the_runner(engine, runner.Runner._process_rows, "look")
        with_the_runner(engine, runner.Runner._clear_history, "clear")
        for id_ in ids:
            application = ApplicationId.from_text(id_)
            for call in (engine.view, engine.submission, engine.logs, engine.dashboard_urls):
                with bearing(f"{call.__name__} {id_}"):
                    call(application)
            with bearing(f"kill {id_}"):
                engine.kill(application, "x")
        records = records_below(engine.state.path)
        with bearing("a shell"), session_directory(config_of(state)):
            input_record.record_paths(records, WORKSPACE, ["data", "more"])
        with bearing("what a shell remembers"):
            input_record.recorded_paths(records, spec_of("finish"))
            input_record._read(records, WORKSPACE)
    return messages


def check_lines(messages: list[str]) -> None:
    for line in messages:
        assert "\n" not in line
        assert len(line) < 600
        assert "/proc/" not in line


def attack(identities: Identities, state: Path, hostile: Hostile, bait: Bait, names: Sequence[str]) -> None:
    """Put something hostile in the place of each name, in a copy of the state, and use that."""
    problems = []
    for number, name in enumerate(names):
        copy = state.with_name(f"state-{number}")
        subprocess.run(["cp", "-a", state, copy], check=True)
        hostile(state_of_user(copy, VICTIM) / name.replace("UID", str(VICTIM.uid)), owner=VICTIM, content=b"{}")
        try:
            with contents_unchanged(bait.top):
                check_lines(identities.call(VICTIM, use_all, copy))
            assert identities.call(MEMBER, use_others, copy) == []
        except (Exception, pytest.fail.Exception) as error:
            problems.append(f"{name}: {error}")
    assert not problems, "\n\n".join(problems)


def use_others(state: Path) -> list[str]:
    """Look at everything as another member; what goes wrong."""
    with engine_in(state, shared=True) as engine:
        own = engine.ids()
        listed = [view["application_id"] for view in listed_json(engine, everybody=True)]
        return [item for item in own if item not in listed]


@pytest.mark.proves("own-state")
@pytest.mark.sampled(7)
def test_hostile_files_in_a_users_state_directory_cost_that_user_one_line(
    identities: Identities, shared_state_of_both: tuple[Path, str], hostile: Hostile, bait: Bait
) -> None:
    state, _ = shared_state_of_both
    attack(identities, state, hostile, bait, OF_A_USER)


@pytest.mark.proves("own-state")
@pytest.mark.sampled(7)
def test_hostile_files_in_shell_directories_cost_that_user_one_line(
    identities: Identities, shared_state_of_both: tuple[Path, str], hostile: Hostile, bait: Bait
) -> None:
    state, _ = shared_state_of_both
    attack(identities, state, hostile, bait, OF_SHELLS)


@pytest.mark.proves("own-state")
@pytest.mark.slow
@pytest.mark.sampled(7)
def test_hostile_files_in_an_application_cost_only_that_application(
    identities: Identities, shared_state_of_both: tuple[Path, str], hostile: Hostile, bait: Bait
) -> None:
    """Each name, in an application of its own that has ended, and in one that seems to run."""
    state, honest = shared_state_of_both

    def prepare() -> list[tuple[str, str]]:
        with engine_in(state, shared=True) as engine:
            return [
                (name, make_application(engine, value)) for name in OF_AN_APPLICATION for value in ("done", "running")
            ]

    for name, application in identities.call(VICTIM, prepare, deadline_s=30):
        container = f"container_{application.removeprefix('application_')}_01_000002"
        path = state_of_user(state, VICTIM) / "applications" / application / name.replace("ID", container)
        hostile(path, owner=VICTIM, content=b"{}")
    with contents_unchanged(bait.top):
        answer = identities.call(VICTIM, use_all, state, deadline_s=30)
        check_lines(answer)
    assert not [line for line in answer if honest in line]
    assert identities.call(MEMBER, use_others, state) == []
