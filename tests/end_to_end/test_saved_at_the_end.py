"""Programs that a shell runs and that save on SIGTERM, as most start scripts have it: in gangs, sweeps and services."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, wait_for
from tests.end_to_end.test_applications import END_S, is_running, printed
from tests.engines import Engine, on_yarn_when_full

PROGRAM = """sh -c '
trap "sleep 0.2; echo saved >$1; exit 0" TERM
echo up
while :; do sleep 0.02; done' sh"""
"""A program that takes a moment to save; its argument is the file."""


@on_yarn_when_full
def test_each_container_of_a_gang_saves_though_a_shell_runs_its_program(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        f"mkdir output; {PROGRAM} output/x; echo ended with $?",
        application={"framework": "pytorch"},
        resources={"containers": 2},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/gang", "output_from": "all"},
    )
    application = launch(file)
    wait_for("both are up", lambda: sorted(printed("--stdout", application)) == ["[0] up", "[1] up"], END_S)
    wait_for("both run", lambda: is_running(application, 2), END_S)
    assert run("dlapp-softkill", application).code == 0
    seen = ended(application, END_S)
    assert (seen["cause"], seen["diagnostics"].partition(", ")[2]) == ("soft-killed", "output committed")
    assert engine.tree("gang") == {"0/x": "saved\n", "1/x": "saved\n"}
    assert [line for line in printed("--stdout", application) if "ended" in line] == [
        "[0] ended with 0",
        "[1] ended with 0",
    ]


@pytest.mark.slow
@on_yarn_when_full
def test_a_trial_at_its_time_limit_saves_below_a_shell(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        'mkdir output; echo \'{"metrics": {"loss": 0.5}, "step": 1}\' >>"$DLAPP_REPORT"\n'
        f"{PROGRAM} output/x; echo ended with $?",
        sweep={"grid.RATE": "1", "metric": "loss", "goal": "min", "trial_time": "15s"},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/trials"},
    )
    application = launch(file)
    assert ended(application, END_S)["final_status"] == "SUCCEEDED"
    trials = json.loads(run("dlapp-sweep", application, "--json").out)["trials"]
    assert [trial["state"] for trial in trials] == ["stopped"]
    assert engine.tree("trials") == {"0/x": "saved\n"}


@on_yarn_when_full
def test_a_service_saves_at_its_end_though_a_shell_runs_its_program(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    saved = tmp_path / "saved"
    saved.mkdir(mode=0o777)
    saved.chmod(0o777)
    (tmp_path / "w/serve.sh").write_text(f"#!/bin/sh\n{PROGRAM} {saved}/x; echo ended with $? >{saved}/y\n")
    file = tmp_path / "served.properties"
    file.write_text(
        "[application]\nappname=served\nkind=service\nuser_dev_workspace_path=w\n"
        "[resources]\nmemory=64\ngcores=0\n[service api]\nscript=serve.sh\n"
    )
    application = launch(file)
    wait_for("it is up", lambda: printed("--stdout", application) == ["[api_0] up"], END_S)
    wait_for("it runs", lambda: is_running(application, 1), END_S)
    assert run("dlapp-softkill", application).code == 0
    assert ended(application, END_S)["cause"] == "soft-killed"
    assert {path.name: path.read_text() for path in saved.iterdir()} == {"x": "saved\n", "y": "ended with 0\n"}
