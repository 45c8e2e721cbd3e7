"""dlapp-exec in sweeps: a command runs beside the trial that was chosen, and ends with it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.services.containers.nvml_stub import StubDevice, seen_by_all
from tests.tools.terminal import Terminal

SCRIPT = """
values='echo "$N|$DLAPP_TRIAL|$NV_GPU|$CUDA_VISIBLE_DEVICES|$TMPDIR|$DLAPP_REPORT|$PWD|$(hostname)"'
echo "$values" >values.sh
eval "$values" >values
mv values own
until test -e go; do sleep 0.1; done
"""
"""Each trial writes who it is, and goes on when a command has created ``go`` in its workspace."""
PATIENCE_S = 180.0
NO_KEYS: Mapping[str, object] = {}


def sweep_file(
    tmp_path: Path,
    trials: str,
    *,
    application: Mapping[str, object] = NO_KEYS,
    resources: Mapping[str, object] = NO_KEYS,
) -> Path:
    sweep = {"grid.N": trials, "trials_per_container": 2}
    return properties(tmp_path, SCRIPT, sweep=sweep, application=application, resources=resources)


def wait_until_trial_runs(application: str, trial: int) -> str:
    """Return what the program of a trial has written of itself, once a command can read it there."""

    def look() -> str:
        return run("dlapp-exec", application, "--trial", trial, "--", "cat", "own").out

    return wait_for(f"trial {trial} runs", look, PATIENCE_S)


def check_each_trial(application: str) -> None:
    """See that a command beside each of trials 0 and 1 is as its program."""
    own = [wait_until_trial_runs(application, trial) for trial in (0, 1)]
    for trial in (0, 1):
        done = run("dlapp-exec", application, "--trial", trial, "--", "sh", "values.sh")
        assert (done.code, done.out, done.err) == (0, own[trial], "")
        assert own[trial].startswith(f"{'ab'[trial]}|{trial}|")
    assert own[0].split("|")[4:] != own[1].split("|")[4:]


def check_end_with_trial(application: str) -> None:
    """End trial 0 from a terminal beside it, with which the command there ends."""
    with Terminal("dlapp-exec", "-it", application, "--trial", 0, "--", "sh", "-i") as terminal:
        terminal.expect("[#$] ")
        terminal.type("stty size; echo $((40 + 2)) $DLAPP_TRIAL\n")
        terminal.expect("40 120")
        terminal.expect("42 0")
        terminal.type("touch go\n")
        assert terminal.wait(PATIENCE_S) == 137


@on_yarn_when_full
def test_a_command_runs_beside_the_trial_that_is_chosen_and_ends_with_it(engine: Engine, tmp_path: Path) -> None:
    application = launch(sweep_file(tmp_path, "a, b, c"))
    check_each_trial(application)
    several = run("dlapp-exec", application, "--", "true")
    assert (several.code, several.out) == (1, "")
    assert several.err == "Error: worker:0 runs several trials: choose one of 0-1 with --trial\n"
    waits = run("dlapp-exec", application, "--trial", "2", "--", "true")
    assert (waits.code, waits.err) == (1, "Error: trial 2 does not run (waiting); running: 0-1\n")
    missing = run("dlapp-exec", application, "--trial", "3", "--", "true")
    assert (missing.code, missing.err) == (3, "Error: there is no trial 3: its trials are 0 to 2\n")

    script = "echo begun; trap '' HUP TERM; while :; do sleep 0.1; done"
    with Terminal("dlapp-exec", "-t", application, "--trial", 1, "--", "sh", "-c", script) as terminal:
        terminal.expect("^begun")
        assert run("dlapp-exec", application, "--trial", "1", "--", "touch", "go").code in (0, 137)
        terminal.expect("the program of trial 1 has ended, and the command with it")
        assert terminal.wait(PATIENCE_S) == 137
    over = run("dlapp-exec", application, "--trial", "1", "--", "true")
    assert over.code == 1
    assert over.err.startswith("Error: trial 1 does not run (done); running: ")
    check_end_with_trial(application)

    def look() -> str:
        return run("dlapp-exec", application, "0", "--", "sh", "-c", "echo $DLAPP_TRIAL").out

    assert wait_for("the only trial", look, PATIENCE_S) == "2\n"
    assert run("dlapp-exec", application, "--", "touch", "go").code in (0, 137)
    assert ended(application, PATIENCE_S)["final_status"] == "SUCCEEDED"


def test_a_command_beside_a_trial_has_the_gpus_of_the_trial(
    tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in seen_by_all(tmp_path, [StubDevice(), StubDevice()]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("DLAPP_GPUID_LOCK_DIR", str(tmp_path / "gpus"))
    application = launch(sweep_file(tmp_path, "a, b", resources={"gcores": 2}))
    check_each_trial(application)
    gpus = [wait_until_trial_runs(application, trial).split("|")[2:4] for trial in (0, 1)]
    assert sorted(gpu for gpu, _ in gpus) == ["0", "1"]
    assert all(uuid for _, uuid in gpus)
    assert run("dlapp-kill", application).code == 0
    assert ended(application, PATIENCE_S)["state"] == "KILLED"


@pytest.mark.slow
@pytest.mark.docker
@on_yarn_when_full
def test_in_docker_a_command_runs_in_the_container_of_its_trial(
    engine: Engine, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    file = sweep_file(tmp_path, "a, b", application={"docker_image": IMAGE, "network": "none"})
    application = launch(file)
    check_each_trial(application)
    hosts = {wait_until_trial_runs(application, trial).split("|")[-1] for trial in (0, 1)}
    assert len(hosts) == 2
    assert os.uname().nodename not in {host.strip() for host in hosts}
    check_end_with_trial(application)
    assert wait_for("the only trial", lambda: run("dlapp-exec", application, "--", "cat", "own").out, PATIENCE_S)
    assert run("dlapp-exec", application, "--trial", "0", "--", "true").code == 1
    assert run("dlapp-exec", application, "--", "touch", "go").code in (0, 137)
    assert ended(application, PATIENCE_S)["final_status"] == "SUCCEEDED"
