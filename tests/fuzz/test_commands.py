"""dlapp-status, dlapp-list and dlapp-logs over a damaged directory of an application: a line and an exit code."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random

import pytest

from tests.attacks.local_state import engine_in, make_application
from tests.fuzz.mutation import DEPTH

COMMANDS = ("status", "list", "logs")
NAMES = ("view.json", "outcome.json", "am.json", "am.log", "submission.json", "engine.json", "died")


def a_link(path: Path) -> None:
    path.symlink_to(path.parent / "absent")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] if path.exists() else b"")


DAMAGES: dict[str, Callable[[Path], object]] = {
    "empty": lambda path: path.write_bytes(b""),
    "cut": cut,
    "no UTF-8": lambda path: path.write_bytes(b"\xff\x00{"),
    "deep": lambda path: path.write_bytes(b"[" * DEPTH),
    "wrong types": lambda path: path.write_bytes(b'{"state": 5, "containers": {"a": null}, "control_url": []}'),
    "FIFO": os.mkfifo,
    "directory": lambda path: path.mkdir(),
    "link": a_link,
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_directory_gives_one_line(tmp_path: Path, damage: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    with engine_in(tmp_path / "state", shared=False) as engine:
        application = make_application(engine)
        directory = Path(engine.state.application(application))
        printed = next((directory / "containers").iterdir()) / "stdout"
        database = Path(engine.state.database)
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "DLAPP_LOCAL_STATE_DIR": str(tmp_path / "state"),
        "DLAPP_GPUID_LOCK_DIR": str(tmp_path / "gpus"),
    }
    # The rows last: without them nothing else is looked at.
    for path in (*Random(damage).sample([directory / name for name in NAMES], 1), printed, database):
        if path.exists():
            if damage == "cut":
                cut(path)
            else:
                path.unlink()
                DAMAGES[damage](path)
        else:
            DAMAGES[damage](path)
        for command in COMMANDS if path != printed else ("logs",):
            words = [sys.executable, "-m", "dlapp.tools", command, *([application] if command != "list" else [])]
            done = subprocess.run(words, env=env, capture_output=True, text=True, errors="replace", timeout=120)
            assert "Traceback" not in done.stderr, done.stderr
            assert done.returncode in (0, 1, 2, 3, 4, 5), done
            assert done.returncode == 0 or done.stderr.count("\n") in (1, 2), done.stderr
    shutil.rmtree(directory)
