"""Kill each process of an application at each phase: what is kept is what docs/payload.md says.

On the embedded engine; test_kill_matrix_yarn.py has the same on a cluster, and test_faults_docker.py what happens to
Docker.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlapp.system.processes.proc import descendants
from tests.applications import (
    Process,
    application_dir,
    ended,
    kill_processes,
    launch,
    processes,
    properties,
    run,
    status,
    wait_for,
)
from tests.services.disks import allow_names, fill, small_disk

END_S = 120.0
OLD, NEW = {"a": "old\n", "b": "old\n"}, {"a": "new\n", "b": "new\n"}
WRITE = "mkdir output; echo new >output/a; echo new >output/b"
GOES_ON = ("guardian", "runner", "am once")
"""Without its guardian a payload is tried again; for a runner and the first ApplicationMaster, another one comes."""
KILL = "dlapp-kill"
WHO = ("task", "guardian", "payload", "am", "am once", "runner", "machine", KILL)
ALL = ("runner", "am", "task", "payload")


def victims(who: str, found: list[Process]) -> list[int]:
    """Return the processes of an application that are killed at once; ``am+task`` are both."""
    by_role = {role: [process.pid for process in found if process.role == role] for role in ALL}
    # The guardian is forked from the task, and has its command line.
    tasks = by_role["task"]
    by_role["guardian"] = [pid for pid in tasks if any(pid in descendants(task) for task in tasks)]
    by_role["task"] = [pid for pid in tasks if pid not in by_role["guardian"]]
    # Not the shells in which a NodeManager runs a container.
    by_role["payload"] = [pid for pid in by_role["payload"] if any(pid in descendants(task) for task in tasks)]
    if who == "machine":
        return [process.pid for process in found]
    return [pid for role in who.removesuffix(" once").split("+") for pid in by_role[role]]


def strike(who: str, application: str, found: list[Process]) -> None:
    """Kill the processes of an application, or the application by its command."""
    if who == KILL:
        assert run(KILL, application).code == 0
    else:
        kill(victims(who, found))


def kill(pids: list[int]) -> None:
    assert pids
    kill_processes(pids)


@pytest.fixture(autouse=True)
def masters(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an engine start another ApplicationMaster where the case says so."""
    if request.getfixturevalue("who") != "am once":
        monkeypatch.setenv("DLAPP_YARN_AM_ATTEMPTS", "1")
        monkeypatch.setenv("DLAPP_LOCAL_AM_ATTEMPTS", "1")


def replacing(directory: Path) -> dict[str, object]:
    """Return what a properties file says of an output that replaces an old one, which is put there."""
    (directory / "result").mkdir()
    for name, text in OLD.items():
        (directory / "result" / name).write_text(text)
    return {"output_path": "output", "hdfs": "result", "overwrite": "true"}


def content(place: Path) -> dict[str, str]:
    return {str(path.relative_to(place)): path.read_text() for path in sorted(place.rglob("*")) if path.is_file()}


def kept_output(application: str) -> dict[str, str] | None:
    """Return the outputs kept beside the target by the status; None, too, if no ApplicationMaster reported any."""
    outputs = status(application)["outputs"]
    location = outputs[0]["partial"] if outputs else None
    return None if location is None else content(Path(location.removeprefix("file://")))


@pytest.fixture(autouse=True)
def no_process_left(state_dir: Path, tmp_path: Path) -> Iterator[None]:
    """After a test that failed, too, its processes are gone."""
    yield
    for place in (state_dir, tmp_path):
        kill_processes([process.pid for process in processes(place)])


# ---- while the program runs ----


@pytest.mark.slow
@pytest.mark.sampled(6)
@pytest.mark.parametrize("has_output", [True, False], ids=["output so far", "no output so far"])
@pytest.mark.parametrize("who", [*WHO, "am+task", "runner+am", "runner+am+task"])
def test_a_kill_during_the_run_keeps_the_output_and_the_queue_continues(
    who: str, has_output: bool, state_dir: Path, tmp_path: Path
) -> None:
    up, go = tmp_path / "up", tmp_path / "go"
    write = WRITE if has_output else ":"
    script = f"{write}; touch {up}; until [ -e {go} ]; do sleep 0.05; done"
    one_at_a_time = {"DLAPP_LOCAL_VCORES": "1"}
    application = launch(properties(tmp_path, script, to_hdfs=replacing(tmp_path)), **one_at_a_time)
    wait_for("its program", up.exists)
    second = launch(properties(tmp_path, "echo second", name="second"), **one_at_a_time)
    strike(who, application, processes(state_dir))
    if who in GOES_ON:
        go.touch()
    seen = ended(application, END_S)
    assert ended(second, END_S)["final_status"] == "SUCCEEDED"
    wait_for("no process of it", lambda: not processes(state_dir))
    if who in GOES_ON and has_output:
        assert seen["final_status"] == "SUCCEEDED"
        assert content(tmp_path / "result") == NEW
        return
    assert (seen["final_status"], bool(seen["diagnostics"])) == ("KILLED" if who == KILL else "FAILED", True)
    wait_for("its outcome", (application_dir(state_dir, application) / "outcome.json").exists)
    assert content(tmp_path / "result") == OLD
    assert kept_output(application) == (NEW if has_output and who != KILL else None)


# ---- before the program, and after it ----


@pytest.mark.root("to mount a small disk")
@pytest.mark.sampled(3)
@pytest.mark.parametrize("who", [item for item in WHO if item != "payload"])
def test_a_kill_before_the_program_runs_keeps_no_output(
    who: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "large").write_bytes(os.urandom(3 << 20))
    with small_disk(tmp_path) as disk:
        monkeypatch.setenv("DLAPP_LOCAL_STATE_DIR", str(disk / "state"))
        (disk / "much").write_bytes(bytes(2 << 20))
        source = {"hdfs": tmp_path / "large", "input_path": "in"}
        file = properties(tmp_path, f"touch {tmp_path}/ran; {WRITE}", to_hdfs=replacing(tmp_path), from_hdfs=source)
        application = launch(file)
        wait_for("it waits for space", lambda: "waiting for space on " in status(application)["phase"])
        strike(who, application, processes(disk))
        goes_on = who in GOES_ON
        if goes_on:
            (disk / "much").unlink()
        seen = ended(application, END_S)
        wait_for("no process of it", lambda: not processes(disk))
        assert seen["final_status"] == ("SUCCEEDED" if goes_on else "KILLED" if who == KILL else "FAILED")
        assert (tmp_path / "ran").exists() == goes_on
        assert content(tmp_path / "result") == (NEW if goes_on else OLD)
        assert kept_output(application) is None


@pytest.mark.root("to mount a small disk")
@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("when", "who"),
    # The guardian has ended with the payload, and the task is over when the commit begins.
    [
        *(("storing", who) for who in ("task", "am", "am once", "runner", "machine", KILL)),
        *(("committing", who) for who in ("am", "am once", "runner", "machine", KILL)),
    ],
)
def test_killed_while_it_waits_for_space_its_output_is_kept_and_named(
    when: str, who: str, state_dir: Path, tmp_path: Path
) -> None:
    # Names for the root, the parts, one part, and two files: the marker of the commit is one too many.
    names = {"storing": 4, "committing": 5}[when]
    with small_disk(tmp_path, names=names) as disk:
        output = {"output_path": "output", "hdfs": f"file://{disk}/result"}
        application = launch(properties(tmp_path, WRITE, to_hdfs=output))
        wait_for("it waits", lambda: status(application)["phase"].startswith(f"{when}: waits for "))
        strike(who, application, processes(state_dir))
        if who in GOES_ON:
            allow_names(disk)
        seen = ended(application, END_S)
        wait_for("no process of it", lambda: not processes(state_dir))
        if who in GOES_ON:
            assert seen["final_status"] == "SUCCEEDED"
            assert content(disk / "result") == NEW
            return
        assert seen["final_status"] == ("KILLED" if who == KILL else "FAILED")
        # The first status may say FAILED while the runner that settles the application has not started yet.
        wait_for("its outcome", (application_dir(state_dir, application) / "outcome.json").exists)
        seen = status(application)
        if (when, who) == ("storing", KILL):
            assert (seen["unstored"], kept_output(application)) == ([], None)
            assert os.listdir(disk) == []
            return
        if who == KILL:
            assert "killed by root; output " in seen["diagnostics"]
            assert not (disk / "result").exists()
        places = [*seen["unstored"], *filter(None, (item["partial"] for item in seen["outputs"]))]
        assert NEW in [content(Path(place.removeprefix("file://"))) for place in places], seen["diagnostics"]
        if seen["unstored"]:
            assert run("dlapp-rm", application).code == 2


@pytest.mark.root("to mount a small disk")
@pytest.mark.parametrize("who", ["disk"])
@pytest.mark.parametrize("code", [0, 3])
def test_a_full_target_disk_does_not_block_an_application_without_output(
    who: str, code: int, state_dir: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path) as disk:
        fill(disk)
        output = {"output_path": "output", "hdfs": f"file://{disk}/result"}
        application = launch(properties(tmp_path, f"exit {code}", to_hdfs=output))
        seen = ended(application, END_S)
        assert (seen["final_status"], seen["containers"][0]["exit_code"]) == ("FAILED", code)
        assert (seen["unstored"], kept_output(application)) == ([], None)
        assert os.listdir(disk) == ["ballast"]
