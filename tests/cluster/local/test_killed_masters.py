"""ApplicationMasters of the embedded engine that are killed at any point of their run: the application ends right.

What right is, each run tells itself: no index ever ran twice at a time (its script holds a lock), none ran again, the
output is whole, and was committed once: nothing is left beside it.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from dlapp.client import Client
from dlapp.cluster.local.attempts import is_alive
from dlapp.cluster.local.client.engine import LocalEngine
from dlapp.config import load_config
from dlapp.system.processes.proc import read_proc, start_time
from dlapp.values.ids import ApplicationId
from dlapp.values.messages import Phase
from dlapp.values.report import ApplicationView, Cause, FinalStatus, State
from tests.applications import processes, properties, wait_for
from tests.seeds import seeds
from tests.services.processes import am_at_points
from tests.tiers import FULL

CONTAINERS = 2
NOWHERE = "nowhere"
"""A point that no run passes: its points are noted."""
POINTS = (
    "after register",
    "after StartTask",
    "before Assign",
    "after Assign",
    "before Journal run",
    "after Journal result",
    "before SettleOutputs",
    "before claim",
    "after claim",
    "before finish",
    "after finish",
)
"""Where a quick run kills, some of them; a full one kills at every point that a run passes."""


@dataclass
class Run:
    """One application whose script waits for ``go``, and its ApplicationMasters with their points."""

    directory: Path
    monkeypatch: pytest.MonkeyPatch
    point: str = ""
    nth: int = 1
    attempts: int = 2
    application_id: ApplicationId = field(init=False)
    state_dir: Path = field(init=False)

    def __post_init__(self) -> None:
        # A state directory of its own, so that its runner starts this program.
        self.state_dir = self.directory / "state"
        options = {"local.state_dir": str(self.state_dir), "local.vcores": "100"}
        options["local.am_attempts"] = str(self.attempts)
        self.directory.mkdir()
        with self.monkeypatch.context() as patch:
            if self.point:  # the engine of this run alone has its program
                made = functools.partial(LocalEngine, program=(str(self.program()),))
                patch.setattr("dlapp.cluster.local.client.engine.LocalEngine", made)
            self.client = Client(load_config(options))
            self.engine: LocalEngine = self.client.engine  # type: ignore[assignment]
        self.target = self.directory / "result"

    def program(self) -> Path:
        return am_at_points.install(self.directory, "" if self.point == NOWHERE else self.point, nth=self.nth)

    def __str__(self) -> str:
        return f"{self.point!r} ({self.nth}) of {self.application_id} in {self.directory}"

    def submit(self, *, kill_grace: str = "5s", script: str = "") -> None:
        here = self.directory
        script = script or (
            f'exec 9>"{here}/lock.$CONTAINER_INDEX"\n'
            f'flock -n 9 || echo "$CONTAINER_INDEX $DLAPP_ATTEMPT" >>"{here}/twice"\n'
            f'echo begun >>"{here}/begun.$CONTAINER_INDEX"\n'
            f'until [ -e "{here}/go" ]; do sleep 0.05; done\n'
            "mkdir -p output\n"
            'echo "new $CONTAINER_INDEX" >output/x'
        )
        file = properties(
            here,
            script,
            application={"appname": here.name, "kill_grace": kill_grace},
            resources={"containers": CONTAINERS, "memory": "64m", "vcores": 1},
            to_hdfs={"output_path": "output", "hdfs": self.target},
        )
        self.application_id = self.client.submit(str(file)).application_id

    @property
    def application_dir(self) -> Path:
        return Path(self.engine.state.application(str(self.application_id)))

    def go(self) -> None:
        (self.directory / "go").touch()

    def view(self) -> ApplicationView:
        self.engine.ensure_runner()  # as each command does
        return self.client.status(self.application_id)

    def running(self, attempt: int = 1) -> ApplicationView | None:
        view = self.view()
        phases = [container.phase for container in view.containers]
        return view if view.attempt == attempt and phases == [Phase.RUNNING] * CONTAINERS else None

    def master(self) -> int:
        """The process of the attempt that registered last; it is there."""
        found = json.loads((self.application_dir / "am.json").read_text())
        assert start_time(found["pid"]) == found["start_time"]
        return int(found["pid"])

    def kill(self, *roles: str) -> None:
        found = [process.pid for process in processes(self.state_dir) if process.role in roles]
        assert found
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in found:
                with contextlib.suppress(ProcessLookupError):  # one that was just being started had another's name
                    os.kill(pid, number)
        wait_for("their end", lambda: not any(start_time(pid) for pid in found))

    def start_counts(self) -> list[int]:
        """Return how often the payload of each index has begun."""
        return [(self.directory / f"begun.{index}").read_text().count("begun") for index in range(CONTAINERS)]

    def end(self) -> ApplicationView:
        return wait_for(f"the end of {self}", lambda: (view := self.view()).state.ended and view, 120)

    def check_its_end(self) -> ApplicationView:
        """Wait for the end, and see that it is as it should be."""
        end = self.end()
        assert end.cause is Cause.SUCCEEDED, f"{self}: {end.state} {end.diagnostics}"
        assert not (self.directory / "twice").exists(), f"{self}: {(self.directory / 'twice').read_text()}"
        assert self.start_counts() == [1] * CONTAINERS, str(self)
        texts = [(self.target / str(index) / "x").read_text() for index in range(CONTAINERS)]
        assert texts == [f"new {index}\n" for index in range(CONTAINERS)], str(self)
        assert sorted(os.listdir(self.target)) == [str(index) for index in range(CONTAINERS)], str(self)
        wait_for(f"nothing beside the output of {self}", lambda: not self.sibling_names())
        return end

    def check_it_was_killed(self) -> None:
        """Wait until its point is noted: the application may have ended before its ApplicationMaster passes that."""
        wait_for(f"the point of {self}", lambda: self.point in am_at_points.points(self.directory))

    def sibling_names(self) -> list[str]:
        return [path.name for path in self.directory.iterdir() if path.name.startswith("result.")]

    def kept_output(self) -> dict[str, str]:
        """The output that was kept aside."""
        (partial,) = self.directory.glob("result.*.partial")
        return {str(path.relative_to(partial)): path.read_text() for path in partial.rglob("*") if path.is_file()}


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Run]]:
    some: list[Run] = []

    def submit(point: str = "", nth: int = 1, *, attempts: int = 2, **more: Any) -> Run:
        one = Run(tmp_path / f"run-{len(some)}", monkeypatch, point, nth, attempts)
        some.append(one)
        one.submit(**more)
        return one

    yield submit
    for view in some:
        if not view.view().state.ended:
            view.client.kill(view.application_id)
        view.engine.close()
    wait_for("the end of all processes", lambda: not processes(tmp_path))


def chosen(submit: Callable[..., Run]) -> list[tuple[str, int]]:
    """Return points, and for the how-manieth time they are passed: two of each of three seeds, at night all."""
    if not FULL:
        some = [name for seed in seeds("masters") for name in random.Random(seed).sample(POINTS, 2)]
        return [(name, 1) for name in dict.fromkeys(some)]
    whole = submit(NOWHERE)
    whole.go()
    whole.check_its_end()
    # The application has ended before its ApplicationMaster has.
    wait_for("its last point", lambda: "after finish" in am_at_points.points(whole.directory))
    # Before it has registered, an attempt is begun again under its own number, and killed again.
    passed = [item for item in dict.fromkeys(am_at_points.points(whole.directory)) if item != "before register"]
    assert set(passed) >= set(POINTS)
    twice = ("StartTask", "Assign", "Journal grant", "Journal assign", "Journal result")
    return [(name, 1) for name in passed] + [(name, CONTAINERS) for name in passed if name.endswith(twice)]


def test_killed_at_a_point_of_its_run_it_ends_right_and_no_script_runs_again(submit: Callable[..., Run]) -> None:
    points = chosen(submit)
    print(f"killed at {points}")
    for start in range(0, len(points), 4):
        batch = [submit(name, nth) for name, nth in points[start : start + 4]]
        for item in batch:
            item.go()
        for item in batch:
            item.check_its_end()
            item.check_it_was_killed()


def test_processes_of_dlapp_have_names_of_their_own_that_killall_python3_does_not_meet(
    submit: Callable[..., Run],
) -> None:
    one = submit()
    wait_for("both run", one.running)
    named = {read_proc(each.pid, "comm") for each in processes(one.state_dir) if each.role != "payload"}
    assert named == {b"dlapp-runner\n", b"dlapp-am\n", b"dlapp-task\n", b"dlapp-guardian\n"}
    one.go()
    one.check_its_end()


@pytest.mark.slow
def test_scripts_outlive_applicationmaster_and_runner_and_the_next_command_restarts_both(
    submit: Callable[..., Run],
) -> None:
    one = submit()
    wait_for("both run", one.running)
    one.kill("runner", "am")
    assert len([each for each in processes(one.state_dir) if each.role == "payload"]) >= CONTAINERS
    assert is_alive(str(one.application_dir))
    view = one.view()
    assert (view.state, view.final_status) == (State.RUNNING, FinalStatus.UNDEFINED)
    wait_for("the next attempt hears both", lambda: one.running(attempt=2))
    one.go()
    assert one.check_its_end().attempt == 2


@pytest.mark.slow
def test_when_the_attempts_are_used_up_it_fails_with_the_cause_and_its_output_so_far_is_kept(
    submit: Callable[..., Run], tmp_path: Path
) -> None:
    saved = f'touch "{tmp_path}/saved.$CONTAINER_INDEX"'
    one = submit(script=f"mkdir output; echo so far >output/x; {saved}; exec sleep 300\n")
    wait_for("both run", one.running)
    wait_for("their output", lambda: len(list(tmp_path.glob("saved.*"))) == CONTAINERS)
    os.kill(one.master(), signal.SIGKILL)
    wait_for("the next attempt hears both", lambda: one.running(attempt=2))
    os.kill(one.master(), signal.SIGKILL)
    end = one.end()
    died = "the ApplicationMaster died: killed from outside (signal 9), for example by killall or the kernel (dmesg)"
    assert (end.state, end.final_status, end.diagnostics) == (State.FAILED, FinalStatus.FAILED, died)
    wait_for("no process", lambda: not processes(one.application_dir))
    wait_for("what is kept", lambda: any(each.partial for each in one.view().outputs))
    assert one.kept_output() == {"0/x": "so far\n", "1/x": "so far\n"}


@pytest.mark.parametrize("victims", [("am",), ("runner", "am")], ids="+".join)
def test_a_kill_ends_tasks_of_a_dead_applicationmaster_and_keeps_no_output(
    submit: Callable[..., Run], victims: tuple[str, ...]
) -> None:
    one = submit(script="mkdir output; echo so far >output/x; exec sleep 300\n")
    wait_for("both run", one.running)
    one.kill(*victims)
    message = one.client.kill(one.application_id)
    assert "was killed, no output kept" in str(message)
    assert one.view().state is State.KILLED
    assert not is_alive(str(one.application_dir))
    assert not processes(one.application_dir)
    assert one.sibling_names() == []


@pytest.mark.slow
def test_a_task_that_died_with_the_applicationmaster_fails_and_the_others_save_their_work(
    submit: Callable[..., Run], tmp_path: Path
) -> None:
    save = "save() { mkdir output; echo saved >output/x; exit 0; }; trap save TERM"
    one = submit(script=f"{save}; touch {tmp_path}/$CONTAINER_INDEX; sleep 300 & wait\n", kill_grace="60s")
    view = wait_for("both run", one.running)
    wait_for("it may save", (tmp_path / "1").exists)
    first = str(view.containers[0].container_id)
    tasks = [each for each in processes(one.state_dir) if each.role == "task" and first in each.command]
    os.kill(one.master(), signal.SIGSTOP)
    for each in tasks:
        os.kill(each.pid, signal.SIGKILL)
    os.kill(one.master(), signal.SIGKILL)
    end = one.end()
    text = "container 0 (worker 0) failed: the task was killed, or ended without a result, under an earlier attempt"
    assert (end.final_status, end.diagnostics) == (FinalStatus.FAILED, text)
    assert one.kept_output() == {"1/x": "saved\n"}
