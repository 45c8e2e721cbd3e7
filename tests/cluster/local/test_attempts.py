"""Attempts of an application on one machine, by the files in its directory."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dlapp.cluster.local.attempts import alive_lock, alive_locks, is_alive, next_attempt, registration
from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.state import acquire_lock

BOOT = "this boot"


@pytest.fixture
def application_dir(tmp_path: Path) -> Path:
    """An application of which the first attempt has registered, and of which two are configured."""
    (tmp_path / "am.json").write_text(json.dumps({"attempt": 1, "pid": 7, "start_time": 8}))
    (tmp_path / "engine.json").write_text(json.dumps({"settings": {"am_attempts": 2}}))
    (tmp_path / "alive").touch()
    return tmp_path


def row(starts: int = 1, aftermaths: int = 0) -> ApplicationRow:
    return ApplicationRow(("boot_id", "starts", "aftermaths"), (BOOT, starts, aftermaths))


def test_the_attempt_after_the_last_registered_one_follows(application_dir: Path) -> None:
    assert registration(str(application_dir)) == (1, 7, 8)
    assert next_attempt(row(), str(application_dir), BOOT) == 2
    assert next_attempt(row(starts=3), str(application_dir), BOOT) == 2  # it was started, and never registered


@pytest.mark.parametrize("name", ["outcome.json", "kill.json"])
def test_none_follows_an_end_or_a_kill(application_dir: Path, name: str) -> None:
    (application_dir / name).write_text("{}")
    assert next_attempt(row(), str(application_dir), BOOT) is None


@pytest.mark.parametrize("name", ["am.json", "engine.json"])
def test_no_attempt_follows_an_unregistered_one_or_without_am_attempts(application_dir: Path, name: str) -> None:
    (application_dir / name).unlink()
    assert next_attempt(row(), str(application_dir), BOOT) is None


def test_none_follows_the_last_a_restart_of_the_machine_many_starts_or_a_cleanup(application_dir: Path) -> None:
    assert next_attempt(row(), str(application_dir), "another boot") is None
    assert next_attempt(row(starts=4), str(application_dir), BOOT) is None
    assert next_attempt(row(aftermaths=1), str(application_dir), BOOT) is None
    (application_dir / "am.json").write_text(json.dumps({"attempt": 2}))
    assert next_attempt(row(), str(application_dir), BOOT) is None


def test_an_application_is_alive_while_the_lock_of_any_attempt_is_held(application_dir: Path) -> None:
    assert not is_alive(str(application_dir))
    second = acquire_lock(alive_lock(str(application_dir), 2), 0o640)
    assert second is not None
    assert list(alive_locks(str(application_dir))) == [f"{application_dir}/alive", f"{application_dir}/alive-2"]
    assert is_alive(str(application_dir))
    assert not is_alive(str(application_dir), os.geteuid() + 1)
    os.close(second)
    assert not is_alive(str(application_dir))
