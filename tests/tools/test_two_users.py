"""Test commands of two real users and of root on each other's applications, in a state directory that they share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.applications import Done, properties, wait_for
from tests.services.users import interpreter_for_everybody, place_for_everybody, seeing_users

GROUP = 12_340
ANN, TONY = 12_345, 12_346

pytestmark = pytest.mark.root

Run = Callable[..., Done]


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user may look into, as pytest's own is not."""
    with place_for_everybody("users", 0o1777) as top:
        yield top


@pytest.fixture
def run_as(place: Path) -> Run:
    """Run a command as a user of the group."""
    state = place / "state"
    state.mkdir()
    os.chown(state, 0, GROUP)
    state.chmod(0o3770)

    python = interpreter_for_everybody()
    as_root = seeing_users(place, ANN, TONY, gid=GROUP)

    def run_as(uid: int, command: str, *args: object) -> Done:
        home = place / f"home-{uid}"
        if not home.exists():
            home.mkdir(mode=0o700)
            os.chown(home, uid, GROUP)
        env = {
            **os.environ,
            "HOME": str(home),
            "DLAPP_LOCAL_STATE_DIR": str(state),
            "DLAPP_LOCAL_SHARED": "true",
            "DLAPP_GPUID_LOCK_DIR": str(place / "gpus"),
        }
        become = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"] if uid else as_root
        done = subprocess.run(
            [*become, python, "-m", "dlapp.tools", command.removeprefix("dlapp-"), *map(str, args)],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            env=env,
            cwd=place,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run_as


@pytest.mark.slow
def test_another_users_application_is_seen_and_not_ended(place: Path, run_as: Run) -> None:
    file = properties(place, "echo secret of ann; sleep 60", name="ann")
    done = run_as(ANN, "dlapp-launcher", file)
    assert done.code == 0, done.err
    application = next(line.partition(" = ")[2] for line in done.out.splitlines() if line.startswith("DL App ID"))
    wait_for("it runs", lambda: "RUNNING" in run_as(ANN, "dlapp-status").out)

    assert run_as(TONY, "dlapp-status").code == 3  # the last one of Tony's own, and he has none
    assert application in run_as(TONY, "dlapp-list", "-a").out
    assert application in run_as(TONY, "dlapp-list", ANN).out
    assert run_as(TONY, "dlapp-list").out.count("\n") == 1
    assert run_as(TONY, "dlapp-status", application[-4:]).out.startswith(f"DL App {application} is RUNNING")
    for command in ("dlapp-kill", "dlapp-softkill"):
        for words in ((application,), (application[-4:],)):
            denied = run_as(TONY, command, *words)
            assert (denied.code, denied.out) == (4, "")
            assert denied.err == f"Error: {application} belongs to {ANN}; only they or root may end it\n"
        denied = run_as(TONY, command, "tony", application)
        assert (denied.code, denied.err) == (4, f"Error: {application} is {ANN}'s, not tony's\n")
    exec_words, port_words = (application, "--", "id"), (application, "worker", "8888")
    for user, owner in ((TONY, ANN), (0, f"u{ANN}")):
        for command, reach in (("dlapp-exec", exec_words), ("dlapp-port", port_words)):
            denied = run_as(user, command, *reach)
            assert (denied.code, denied.out) == (4, "")
            assert denied.err == f"Error: {application} belongs to {owner}; only they reach into its containers\n"
    assert run_as(ANN, "dlapp-exec", application, "--", "id", "-u").out == f"{ANN}\n"
    assert "RUNNING" in run_as(ANN, "dlapp-status").out

    killed = run_as(0, "dlapp-kill", f"u{ANN}", application)
    assert killed.code == 0, killed.err
    assert "is KILLED" in run_as(ANN, "dlapp-status").out
    for user, owner in ((TONY, ANN), (0, f"u{ANN}")):
        denied = run_as(user, "dlapp-rm", application)
        assert (denied.code, denied.err) == (4, f"Error: {application} belongs to {owner}; only they may remove it\n")
    assert run_as(ANN, "dlapp-rm", application).code == 0
    assert run_as(ANN, "dlapp-status").code == 3
