"""Two real users of one machine: in directories of their own, and in one that they share."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from dlapp.cluster.local.state import StateDir, is_locked, machine_name
from tests.applications import processes, wait_for
from tests.services.processes import small_app
from tests.services.users import interpreter_for_everybody, place_for_everybody, seeing_users

GROUP = 60_100
ROOT, ANN, TONY = 0, 60_101, 60_102

pytestmark = pytest.mark.root


class Place:
    """A state directory, used by several users through processes of theirs."""

    def __init__(self, top: Path, shared: bool) -> None:
        self.top, self.shared = top, shared
        path = str(top / "state" / machine_name())
        self.state = StateDir(f"{path}-{ROOT}" if shared else path, shared=shared)
        self.options = {"local.memory": "1000", "local.shared": str(shared).lower()}
        self._python = interpreter_for_everybody()
        self._as_root = seeing_users(top, ANN, TONY, gid=GROUP)
        if shared:
            (top / "state").mkdir()
            os.chown(top / "state", ROOT, GROUP)
            (top / "state").chmod(0o3770)

    def run(self, uid: int, *words: str) -> str:
        """Run a process of ``uid``; what it prints."""
        become = ["setpriv", f"--reuid={uid}", f"--regid={GROUP}", "--clear-groups"] if uid else self._as_root
        command: list[str | Path] = [
            *become,
            self._python,
            "-I",
            small_app.__file__,
            self.top / "state",
            json.dumps(self.options),
            *words,
        ]
        environment = os.environ | {"HOME": str(self.top)}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd="/", env=environment)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def submit(self, uid: int, *words: str) -> str:
        """Submit an application; its id."""
        return self.run(uid, "1", *words)

    def call(self, uid: int, what: str, application_id: str = "") -> Any:
        """Make a call of the engine as ``uid``."""
        return json.loads(self.run(uid, what, application_id))

    def wait_for(self, uid: int, application_id: str, state: str) -> dict[str, Any]:
        """Wait until an application is in a state, as ``uid`` sees it."""
        deadline = time.monotonic() + 60
        while (view := self.call(uid, "view", application_id)).get("state") != state:
            assert time.monotonic() < deadline, view
        found: dict[str, Any] = view
        return found

    def kill_runner(self, uid: int) -> None:
        """SIGKILL to the runner of ``uid``."""
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
                if (
                    b"runner" in words
                    and os.fsencode(self.state.of(uid).path) in words
                    and os.stat(f"/proc/{name}").st_uid == uid
                ):
                    os.kill(int(name), signal.SIGKILL)
        deadline = time.monotonic() + 10
        while is_locked(self.state.runner_lock(uid)):
            assert time.monotonic() < deadline

    def clear(self) -> None:
        """Wait until nobody works here: a runner that ends, or one that has not taken its lock yet."""
        wait_for("the end of all processes", lambda: not processes(self.top))


@pytest.fixture
def make_place() -> Iterator[Callable[[bool], Place]]:
    """Make a place, shared or not, that every user may look into."""
    made: list[Place] = []
    with place_for_everybody("engine", 0o1777) as top:

        def make(shared: bool) -> Place:
            made.append(Place(top, shared))
            return made[-1]

        yield make
        for place in made:
            place.clear()


def test_a_private_directory_is_closed_to_others_and_open_to_root(make_place: Callable[[bool], Place]) -> None:
    place = make_place(False)
    of_ann = place.submit(ANN, "sleep")
    place.wait_for(ANN, of_ann, "RUNNING")
    for call in ("view", "kill", "soft_kill"):
        refused = place.call(TONY, call, of_ann)
        assert refused["error"] == "Denied"
        assert f"belongs to {ANN}" in refused["message"]
    assert place.call(ROOT, "kill", of_ann) == f"{of_ann} was killed, no output kept"
    assert place.wait_for(ANN, of_ann, "KILLED")["diagnostics"].startswith("killed")


def test_a_shared_directory_is_one_queue_that_everybody_sees(make_place: Callable[[bool], Place]) -> None:
    place = make_place(True)
    place.options["local.memory"] = "1"
    of_ann = place.submit(ANN, "wait", str(place.top / "go"))
    place.wait_for(TONY, of_ann, "RUNNING")
    of_tony = place.submit(TONY, "quick")
    seen = place.wait_for(ANN, of_tony, "ACCEPTED")
    assert seen["submitter"] == str(TONY)  # whose directory it is, whatever the submission says
    (place.top / "go").touch()
    assert place.wait_for(ANN, of_tony, "FINISHED")
    assert place.wait_for(TONY, of_ann, "FINISHED")
    home = Path(place.state.of(TONY).application(of_tony))
    assert (home.stat().st_uid, home.stat().st_gid, home.stat().st_mode & 0o7777) == (TONY, GROUP, 0o2750)


def test_only_its_user_and_root_may_end_an_application_of_a_shared_directory(
    make_place: Callable[[bool], Place],
) -> None:
    place = make_place(True)
    of_ann = place.submit(ANN, "sleep")
    place.wait_for(ANN, of_ann, "RUNNING")
    secrets = Path(place.state.of(ANN).application(of_ann), "secrets.json")
    assert (secrets.stat().st_uid, secrets.stat().st_mode & 0o777) == (ANN, 0o600)
    for call in ("kill", "soft_kill"):
        refused = place.call(TONY, call, of_ann)
        assert refused == {"error": "Denied", "message": f"{of_ann} belongs to {ANN}; only they or root may end it"}
    assert place.call(ANN, "view", of_ann)["state"] == "RUNNING"
    assert place.call(ROOT, "kill", of_ann) == f"{of_ann} was killed, no output kept"
    assert place.wait_for(TONY, of_ann, "KILLED")


def test_one_whose_user_has_no_runner_is_passed_over_until_they_come_back(make_place: Callable[[bool], Place]) -> None:
    place = make_place(True)
    place.options["local.memory"] = "1"
    first = place.submit(TONY, "wait", str(place.top / "go"))
    place.wait_for(TONY, first, "RUNNING")
    of_ann = place.submit(ANN, "quick")
    second = place.submit(TONY, "quick")
    place.kill_runner(ANN)
    (place.top / "go").touch()
    place.wait_for(TONY, second, "FINISHED")
    assert place.call(TONY, "view", of_ann)["state"] == "ACCEPTED"
    place.call(ANN, "tend")
    place.wait_for(ANN, of_ann, "FINISHED")


def test_what_a_dead_users_application_held_is_free_for_others(make_place: Callable[[bool], Place]) -> None:
    place = make_place(True)
    place.options["local.memory"] = "1"
    of_ann = place.submit(ANN, "sleep")
    place.wait_for(ANN, of_ann, "RUNNING")
    of_tony = place.submit(TONY, "quick")
    place.kill_runner(ANN)
    os.kill(int(Path(place.state.of(ANN).application(of_ann), "am.pid").read_text().split()[0]), signal.SIGKILL)
    place.wait_for(TONY, of_tony, "FINISHED")
    assert place.call(TONY, "view", of_ann)["state"] == "FAILED"
    place.call(ANN, "tend")
