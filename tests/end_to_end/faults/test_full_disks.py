"""Disks that are full: nothing is lost, every command says which file cannot be written, and what can be read is."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.applications import BIN, launch, processes, properties, run, status, wait_for
from tests.services.disks import KINDS, fill, small_disk

pytestmark = pytest.mark.root("to mount a small disk")


@pytest.fixture(params=KINDS)
def state_disk(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small disk with the state directory."""
    with small_disk(tmp_path, kind=request.param) as disk:
        monkeypatch.setenv("DLAPP_LOCAL_STATE_DIR", str(disk / "state"))
        yield disk
        (disk / "ballast").unlink(missing_ok=True)
        for path in disk.glob("state/*/applications/application_*"):
            run("dlapp-kill", path.name)
        wait_for("no process of the engine", lambda: not processes(disk))


@contextlib.contextmanager
def waiting_launcher(file: Path) -> Iterator[Path]:
    """Run ``dlapp-launcher --wait``; yields the file with what it prints to stderr. It must succeed."""
    err = file.with_suffix(".err")
    with err.open("wb") as to:
        waiting = subprocess.Popen([BIN / "dlapp-launcher", "--wait", file], stdout=subprocess.DEVNULL, stderr=to)
    try:
        yield err
        assert waiting.wait(120) == 0, err.read_text()
    finally:
        waiting.kill()
        waiting.wait()


@pytest.mark.slow
@pytest.mark.parametrize("runner_lives", [True, False], ids=["with a runner", "without a runner"])
def test_on_a_full_state_disk_commands_read_and_name_the_disk(
    state_disk: Path, tmp_path: Path, runner_lives: bool
) -> None:
    first = launch(properties(tmp_path, "true"))
    wait_for("its end", lambda: status(first)["state"] == "FINISHED")
    go = tmp_path / "go"
    second = launch(properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done"))
    wait_for("it runs", lambda: status(second)["phase"] == "running 1 of 1")
    if not runner_lives:
        for process in processes(state_disk):
            if process.role == "runner":
                os.kill(process.pid, signal.SIGKILL)
    ballast = fill(state_disk)
    (database,) = state_disk.glob("state/*/dlapp.db")
    for words in (["dlapp-list"], ["dlapp-status", second]):
        done = run(*words)
        assert done.code == 0, done.err
        assert done.err.startswith(f"disk full: {database} cannot be written; "), done.err
        assert done.err.endswith(f" are free on {state_disk}\n")
        assert second in done.out
    assert first in run("dlapp-list").out
    refused = run("dlapp-launcher", "--wait", properties(tmp_path, "true", name="third"))
    assert refused.code != 0
    assert f"Error: disk full: {database.parent}" in refused.err
    assert f" are free on {state_disk}\n" in refused.err
    ballast.unlink()
    go.touch()
    wait_for("its end", lambda: status(second)["state"] == "FINISHED")
    assert run("dlapp-list").err == ""


@pytest.mark.slow
@pytest.mark.parametrize("state_disk", ["tmpfs"], indirect=True)
def test_a_waiting_command_reports_the_full_state_disk(state_disk: Path, tmp_path: Path) -> None:
    go, up = tmp_path / "go", tmp_path / "up"
    file = properties(tmp_path, f"touch {up}; until [ -e {go} ]; do sleep 0.05; done")
    with waiting_launcher(file) as err:
        wait_for("it runs", up.exists)
        ballast = fill(state_disk)
        (database,) = state_disk.glob("state/*/dlapp.db")
        wait_for("the warning", lambda: f"disk full: {database} cannot be written; " in err.read_text())
        ballast.unlink()
        go.touch()


@pytest.mark.parametrize("state_disk", ["tmpfs"], indirect=True)
def test_input_that_the_state_disk_cannot_take_waits_and_no_try_is_counted(state_disk: Path, tmp_path: Path) -> None:
    (tmp_path / "model").write_bytes(os.urandom(3 << 20))
    (state_disk / "much").write_bytes(bytes(2 << 20))
    file = properties(
        tmp_path, f"cmp in/model {tmp_path}/model", from_hdfs={"hdfs": tmp_path / "model", "input_path": "in"}
    )
    application = launch(file)
    lack = f" MiB on {state_disk} since "
    wait_for("it waits", lambda: any(lack in container["detail"] for container in status(application)["containers"]))
    assert f"1 waiting for space on {state_disk} since " in run("dlapp-status", application).out
    (state_disk / "much").unlink()
    seen = wait_for("its end", lambda: (now := status(application))["state"] == "FINISHED" and now)
    assert (seen["final_status"], seen["containers"][0]["attempt"]) == ("SUCCEEDED", 1)
