"""The state's disk is full, really or by injected faults: what runs goes on, the queue waits and loses nothing."""

from __future__ import annotations

import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.local import outcome, queue
from dlapp.cluster.local.client import submission
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.runner import context, starting
from dlapp.cluster.local.runner import main as runner_module
from dlapp.cluster.local.state import is_locked, open_lock, open_state
from dlapp.errors import Unreachable
from dlapp.system import locks
from dlapp.system.logs import log
from dlapp.values.report import State
from tests.applications import listed
from tests.services import disks
from tests.services.polling import wait_until
from tests.services.processes.small_app import engine_at, submit

ROW: dict[str, Any] = {
    **dict.fromkeys(("submitter", "username", "appname", "archive"), ""),
    **dict.fromkeys(("uid", "memory_mib", "vcores", "gcores", "containers", "submitted_ms"), 1),
}


class FullDisk:
    """Databases opened from now on whose COMMIT fails ``left`` times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = 0
        disk = self

        class Connection(sqlite3.Connection):
            def execute(self, statement: str, *more: Any) -> sqlite3.Cursor:
                if statement == "COMMIT" and disk.left > 0:
                    disk.left -= 1
                    super().execute("ROLLBACK")  # as SQLite does by itself. Source: sqlite.org/lang_transaction.html
                    raise sqlite3.OperationalError("database or disk is full")
                return super().execute(statement, *more)

        real = sqlite3.connect
        monkeypatch.setattr(sqlite3, "connect", lambda *args, **more: real(*args, factory=Connection, **more))


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> FullDisk:
    return FullDisk(monkeypatch)


@pytest.fixture
def engine(state_dir: Path, full_disk: FullDisk) -> Iterator[LocalEngine]:
    with engine_at(str(state_dir), {"local.memory": "1000"}) as engine:
        yield engine
        full_disk.left = 0
        wait_until(lambda: not is_locked(engine.state.runner_lock(os.geteuid())))


def run_runner(engine: LocalEngine) -> None:
    """Be the runner until nothing is left to do, with its lock, so that no application that ends starts another one."""
    lock = open_lock(engine.state.runner_lock(os.geteuid()))
    assert locks.try_lock(lock)
    try:
        runner_module.Runner(engine.state, engine.session.settings, lock).run()
    except BaseException:
        os.close(lock)
        raise


def test_a_failed_commit_is_a_one_line_error_and_leaves_no_files(
    engine: LocalEngine, full_disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    full_disk.left = 1
    with pytest.raises(Unreachable, match=r"dlapp\.db: database or disk is full$"):
        submit(engine, "quick")
    assert engine.ids() == []
    submit(engine, "quick")
    run_runner(engine)
    assert listed(engine)[0].state is State.FINISHED


def test_a_runner_that_cannot_write_its_rows_retries_with_one_message(
    engine: LocalEngine, full_disk: FullDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    messages: list[str] = []
    for level in ("info", "warning"):
        monkeypatch.setattr(log, level, messages.append)
    monkeypatch.setattr(context, "ERROR_RETRY_S", 0.01)
    monkeypatch.setattr(starting, "PATIENCE_S", 0.0)
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    first, second = submit(engine, "finish"), submit(engine, "quick")
    full_disk.left = 5
    run_runner(engine)
    assert full_disk.left == 0
    assert [engine.view(item).value.state for item in (first, second)] == [State.FINISHED] * 2
    assert len([line for line in messages if "database or disk is full; retrying every 0.01 s" in line]) == 1
    assert messages.count("the state can be written again") == 1


def test_a_runner_whose_state_directory_is_gone_ends(
    engine: LocalEngine, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = state_dir.with_name("away")

    def take_away(*_: object) -> list[int]:
        state_dir.rename(away)
        return []

    monkeypatch.setattr(context, "ERROR_RETRY_S", 0.01)
    monkeypatch.setattr(runner_module, "start_pending_senders", take_away)
    run_runner(engine)
    assert not state_dir.exists()
    away.rename(state_dir)


def test_rows_of_another_version_end_the_runner_with_a_line(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submission, "start_runner", lambda session: None)
    submit(engine, "quick")
    monkeypatch.setattr(queue, "SCHEMA", 2)
    with pytest.raises(queue.SchemaMismatch, match="was written by an older dlapp"):
        run_runner(engine)


def test_an_outcome_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:7]))
    written = outcome.write_outcome(str(tmp_path), outcome.failed("why", 1))
    assert outcome.read_outcome(str(tmp_path)) == written == outcome.failed("why", 1)
    (tmp_path / "outcome.json").unlink()

    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left"):
        outcome.write_outcome(str(tmp_path), outcome.failed("why", 1))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 2 MiB."""
    with disks.small_disk(tmp_path, size_mib=2) as disk:
        yield disk


@pytest.mark.root("to mount a small disk")
@pytest.mark.parametrize("kind", disks.KINDS)
def test_rows_that_are_only_in_the_log_of_a_killed_process_are_read_on_a_full_disk(kind: str, tmp_path: Path) -> None:
    with disks.small_disk(tmp_path, kind=kind) as disk:
        state = open_state(str(disk))
        pid = os.fork()
        if pid == 0:
            with Queue(state).change() as queue:
                queue.insert(**ROW)
            os._exit(0)  # the connection is not closed, so the row stays in the log
        os.waitpid(pid, 0)
        assert Path(f"{state.database}-wal").stat().st_size > 0
        ballast = disks.fill(disk)
        with Queue(state) as first, Queue(state) as second:
            assert len(first.rows()) == len(second.rows()) == len(first.rows()) == 1
            message = rf"^disk full: {state.database} cannot be written; .* on {disk}$"
            with pytest.raises(Unreachable, match=message), first.change():
                pytest.fail("nothing can be changed")
            ballast.unlink()
            with first.change() as queue:
                queue.insert(**ROW)
            assert len(second.rows()) == 2


@pytest.mark.slow
def test_on_a_full_disk_the_runner_survives_and_finishes_with_space_again(small_disk: Path, tmp_path: Path) -> None:
    with engine_at(
        str(small_disk / "state"), {"local.memory": "1", "gpuid.lock_dir": str(tmp_path / "gpus")}
    ) as engine:
        first, second = submit(engine, "wait", str(tmp_path / "go")), submit(engine, "quick")
        wait_until(lambda: engine.view(first).value.state is State.RUNNING)
        log = Path(engine.state.runner_log(os.geteuid()))
        ballast = disks.fill(small_disk)
        (tmp_path / "go").touch()
        wait_until(lambda: not is_locked(f"{engine.state.application(str(first))}/alive"))
        # More than one look later it is still there, and nothing has ended that could not be written.
        time.sleep(1.5 * context.ERROR_RETRY_S)
        assert is_locked(engine.state.runner_lock(os.geteuid()))
        ballast.unlink()
        wait_until(lambda: [item.state.ended for item in listed(engine)] == [True, True])
        assert engine.view(second).value.state is State.FINISHED
        wait_until(lambda: not is_locked(engine.state.runner_lock(os.geteuid())))
        assert "Traceback" not in log.read_text()
        with Queue(engine.state) as rows:
            assert rows.count_unsettled(os.geteuid()) == 0
