"""Two real users of one machine: in directories of their own, and in one that they share."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.local.fair_shares import compare
from tests.cluster.local.users import ANN, GROUP, ROOT, TONY, Place
from tests.seeds import each_seed
from tests.services.users import place_for_everybody
from tests.tiers import FULL

pytestmark = pytest.mark.root


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


def test_a_user_without_a_runner_is_passed_over_until_the_runner_returns(make_place: Callable[[bool], Place]) -> None:
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
    place.call(ANN, "ensure_runner")
    place.wait_for(ANN, of_ann, "FINISHED")


def test_resources_of_a_dead_users_application_are_free_for_others(make_place: Callable[[bool], Place]) -> None:
    place = make_place(True)
    place.options["local.memory"] = "1"
    of_ann = place.submit(ANN, "sleep")
    place.wait_for(ANN, of_ann, "RUNNING")
    of_tony = place.submit(TONY, "quick")
    place.kill_runner(ANN)
    # In place of am.pid, which a runner that was killed may not have written.
    os.kill(json.loads(Path(place.state.of(ANN).application(of_ann), "am.json").read_text())["pid"], signal.SIGKILL)
    place.wait_for(TONY, of_tony, "FINISHED")
    assert place.call(TONY, "view", of_ann)["state"] == "FAILED"
    place.call(ANN, "ensure_runner")


@pytest.mark.slow
@each_seed("two users")
@pytest.mark.parametrize("kills", [0, 5 if FULL else 3])
def test_two_users_get_their_shares_and_their_order_though_runners_are_killed(
    make_place: Callable[[bool], Place], kills: int, seed: int
) -> None:
    """Let each submit 10 applications, and kill 3 runners; at night 40 and 5.

    `make soak NAME=queue` has 200 and 20.
    """
    found = compare(make_place(True), count=40 if FULL else 10, kills=kills, seed=seed)
    assert found.problems == []
    assert kills or found.checked >= 5  # the time around a kill is left out
