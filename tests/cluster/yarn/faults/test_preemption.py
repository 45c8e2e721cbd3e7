"""Test preemption by a real ResourceManager: a queue takes back what another one uses of its capacity."""

from __future__ import annotations

import json
import os
import re
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.applications import launch, run, status, wait_for
from tests.end_to_end.test_roles import file_of
from tests.engines import Engine

END_S = 180.0
TRAIN = """\
mine=$DLAPP_ROLE_INDEX-$DLAPP_GENERATION
saves() {
    cp "$DLAPP_STOP" @/stop-$mine; touch @/stopped-$mine
    mkdir -p model; echo "saved by $mine" >model/state; exit 0
}
trap saves TERM
[ -z "$DLAPP_RESUME_FROM" ] || cp "$DLAPP_RESUME_FROM/state" @/resumed-$mine
touch @/up-$mine
until [ -e @/done ]; do sleep 0.05; done
"""

WITHOUT_A_HANDLER = """\
mine=$DLAPP_ROLE_INDEX-$DLAPP_GENERATION
mkdir -p model
if [ -n "$DLAPP_RESUME_FROM" ]; then
    cp "$DLAPP_RESUME_FROM/state" @/resumed-$mine
else
    echo "saved by $mine" >model/new; mv model/new model/state
fi
touch @/up-$mine
until [ -e @/done ]; do sleep 0.05; done
"""
"""It knows nothing of a notice: SIGTERM ends it."""


def logged(engine: Engine, application: str, text: str) -> list[float]:
    """Return when the ApplicationMaster and the tasks logged lines with a text, ascending [s since 1970]."""
    assert engine.hadoop is not None
    logs = engine.hadoop.directory.glob(f"logs-*/{application}/*/*")
    lines = [line for log in logs for line in log.read_text(errors="replace").splitlines() if text in line]
    found = [datetime.strptime(re.split(" [A-Z]+ ", line)[0], "%Y-%m-%d %H:%M:%S,%f").timestamp() for line in lines]
    return sorted(found)


def check_latency(engine: Engine, application: str) -> tuple[float, float]:
    """See that the first SIGTERM of a task came within 2 s of the notice, by what both have logged.

    Where more processes want to run than there are cores, they may take as much longer.

    Returns:
        When the notice and the SIGTERM came [s since 1970].
    """
    notice, order = (logged(engine, application, text)[0] for text in ("the ResourceManager preempts", ": SIGTERM, "))
    share = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    print(f"SIGTERM came {order - notice:.3f} s after the notice")
    assert 0.0 <= order - notice <= 2.0 * share
    return notice, order


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory for the files by which programs and the test speak."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def trainer(place: Path, name: str, instances: int, *, memory: str, more: str = "", script: str = TRAIN) -> str:
    """Launch an application in the queue ``default`` that runs until `place` has ``done``."""
    (place / name).mkdir()
    file = file_of(
        place / name,
        f"worker]\ninstances={instances}\nmemory={memory}\nscript=train.sh\n",
        application={"queue": "default"},
        more=more,
        train=script.replace("@", str(place / name)),
    )
    application = launch(file)
    up = [place / name / f"up-{number}-0" for number in range(instances)]
    wait_for("it runs", lambda: all(path.exists() for path in up), END_S)
    return application


def rival(place: Path) -> str:
    """Launch an application in the queue ``research`` that runs until `place` has ``enough``."""
    (place / "rival").mkdir()
    wait = f"until [ -e {place}/enough ]; do sleep 0.05; done"
    file = file_of(place / "rival", f"only]\nmemory=3g\ncommand=sh -c '{wait}'\n", application={"queue": "research"})
    return launch(file)


def wait_for_end(application: str) -> dict[str, Any]:
    wait_for("its end", lambda: status(application)["final_status"] != "UNDEFINED", END_S)
    seen = status(application)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    return seen


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
def test_a_preempted_program_resumes_from_the_checkpoint_of_the_notice(engine: Engine, place: Path) -> None:
    engine.put("kept/somewhere/else", "")
    # Both together use more than the capacity of their queue, half of 8 GiB; the later one is taken first.
    first = trainer(place, "first", 1, memory="2560")
    checkpoint = f"[checkpoint]\npath=model\nhdfs={engine.root}/kept/state\n"
    second = trainer(place, "second", 1, memory="2560", more=checkpoint)
    other = rival(place)
    wait_for("the other one runs", lambda: "running 1 of 1" in status(other)["phase"], END_S)
    stop = json.loads((place / "second/stop-0-0").read_text())
    assert stop["reason"] == "preempted"
    # The ResourceManager waits 12 s: two thirds of them are the program's, the rest for copying what it saved.
    notice, order = check_latency(engine, second)
    # The task counts from just before its SIGTERM.
    assert stop["deadline_ms"] / 1000 - notice > 7.0
    assert stop["deadline_ms"] / 1000 - order <= 8.01
    # Its own ApplicationMaster hears of that with its next heartbeat.
    wait_for("it waits", lambda: "running" not in status(second)["phase"], END_S)
    wait_for("its reason", lambda: (status(second)["waiting"] or {}).get("code") == "nodes_full", END_S)
    assert "needs 2.5 GiB of memory, the most on a node is " in run("dlapp-why", second).out
    (place / "enough").touch()
    wait_for("it runs again", (place / "second/up-0-1").exists, END_S)
    assert (place / "second/resumed-0-1").read_text() == "saved by 0-0\n"
    for name in ("first", "second"):
        (place / name / "done").touch()
    (one,) = wait_for_end(second)["containers"]
    (earlier,) = one["earlier"]
    assert (earlier["message"], earlier["diagnosis"]["rule"]) == ("the container was preempted", "preempted")
    (one,) = wait_for_end(first)["containers"]
    assert one["earlier"] == []


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
def test_a_preempted_program_without_a_handler_resumes_from_its_last_saved_state(engine: Engine, place: Path) -> None:
    engine.put("kept/somewhere/else", "")
    first = trainer(place, "first", 1, memory="2560")
    # No copy is due before the notice: what is kept is what lies in the container when SIGTERM has ended the program.
    checkpoint = f"[checkpoint]\npath=model\nhdfs={engine.root}/kept/state\nevery=1h\n"
    second = trainer(place, "second", 1, memory="2560", more=checkpoint, script=WITHOUT_A_HANDLER)
    other = rival(place)
    wait_for("the other one runs", lambda: "running 1 of 1" in status(other)["phase"], END_S)
    (place / "enough").touch()
    wait_for("it runs again", (place / "second/up-0-1").exists, END_S)
    assert (place / "second/resumed-0-1").read_text() == "saved by 0-0\n"
    for name in ("first", "second"):
        (place / name / "done").touch()
    (one,) = wait_for_end(second)["containers"]
    (earlier,) = one["earlier"]
    assert (earlier["message"], earlier["diagnosis"]["rule"]) == (
        "killed by signal 15: the container was preempted",
        "preempted",
    )
    wait_for_end(first)


@pytest.mark.slow
@pytest.mark.hadoop
@pytest.mark.parametrize("engine", ["yarn"], indirect=True)
def test_a_gang_of_which_a_member_is_preempted_starts_again_when_there_is_room(engine: Engine, place: Path) -> None:
    engine.put("kept/somewhere/else", "")
    checkpoint = f"[checkpoint]\npath=model\nhdfs={engine.root}/kept/state\n"
    application = trainer(place, "gang", 2, memory="2560", more=checkpoint)
    other = rival(place)
    stop_files = [place / f"gang/stopped-{number}-0" for number in (0, 1)]
    wait_for("both have SIGTERM", lambda: all(path.exists() for path in stop_files), END_S)
    stops = [json.loads((place / f"gang/stop-{number}-0").read_text()) for number in (0, 1)]
    assert sorted(stop["reason"] for stop in stops) == ["gang_restart", "preempted"]
    check_latency(engine, application)
    wait_for("the other one runs", lambda: "running 1 of 1" in status(other)["phase"], END_S)
    # One waits for a container, the other one holds its own.
    wait_for("it waits", lambda: "1 of 2" in status(application)["phase"], END_S)
    (place / "enough").touch()
    wait_for("both run again", lambda: all((place / f"gang/up-{n}-1").exists() for n in (0, 1)), END_S)
    for number in (0, 1):
        assert (place / f"gang/resumed-{number}-1").read_text() == "saved by 0-0\n"
    (place / "gang/done").touch()
    seen = wait_for_end(application)["containers"]
    assert [item["generation"] for item in seen] == [1, 1]
    assert sorted(len(item["earlier"]) for item in seen) == [0, 1]
