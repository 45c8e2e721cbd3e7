"""Whole applications that wait for others or for a release, on both engines; on YARN over restarts of both masters."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path

import pytest

from dlapp.system.machine import boot_id
from tests.applications import application_dir, ended, launch, processes, properties, run, status, wait_for
from tests.end_to_end.faults.test_kill_matrix import kill
from tests.engines import Engine

END_S = 120.0


def reason(application: str) -> tuple[str, str]:
    waiting = status(application)["waiting"] or {}
    return waiting.get("code", ""), waiting.get("message", "")


@pytest.mark.parametrize("engine", ["local", pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.slow
def test_start_conditions_hold_over_restarts_until_they_are_met_or_fail(engine: Engine, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = launch(properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done", name="first"))

    def waiting(name: str, **application: object) -> str:
        return launch(properties(tmp_path, "true", name=name, application=application))

    # Not more: YARN runs three ApplicationMasters at once here.
    bad, held = waiting("bad", after=f"{first}:failed"), waiting("held", after=first.partition("_")[2], hold="true")
    for one, how in ((bad, "failed"), (held, "ok")):
        expected = "dependency", f"waits for the end of {first} ({how})"
        wait_for(f"the reason of {one}", lambda one=one, expected=expected: reason(one) == expected, END_S)  # type: ignore[misc]
    refused = run("dlapp-launcher", "--set", "application.after=application_1_0001", tmp_path / "bad.properties")
    assert refused.code == 2
    assert "application.after" in refused.err
    wait_for("the first one runs", lambda: "running 1 of 1" in status(first)["phase"], END_S)
    shown = run("dlapp-queue", "-o", "name=ID,STATE,GPUS").out.splitlines()
    states = {line.split()[0]: line.split()[1] for line in shown[1:]}
    assert [states[item] for item in (first, bad, held)] == ["running", "dependency", "dependency"]
    if engine.hadoop is None:
        kill([runner.pid for runner in engine.runners()])
    else:
        kill([process.pid for process in engine.processes(held) if process.role == "am"])
        wait_for("its next attempt", lambda: status(held)["attempt"] == 2, END_S)
        engine.hadoop.kill_part("rm")
        engine.hadoop.start_part("rm")
        engine.hadoop.wait_until_ready()
    assert status(held)["containers"] == []
    go.touch()
    assert ended(first)["final_status"] == "SUCCEEDED"
    end = ended(bad)
    assert end["final_status"] == "FAILED"
    assert end["diagnostics"] == f"{first} succeeded, so after={first}:failed can never hold"
    held_text = f"it is held until it is released (dlapp-release {held})"
    wait_for("it is held", lambda: reason(held) == ("held", held_text), END_S)
    assert f"change : dlapp-release {held}" in run("dlapp-why", held).out
    assert run("dlapp-release", held).out == f"{held} is released\n"
    assert ended(held)["final_status"] == "SUCCEEDED"
    assert "had already ended" in run("dlapp-release", held).out


@pytest.mark.slow
def test_after_a_reboot_an_application_restarts_from_its_checkpoint(state_dir: Path, tmp_path: Path) -> None:
    go, ran = tmp_path / "go", tmp_path / "ran"
    script = (
        f'echo "${{DLAPP_RESUME_FROM:-none}}" >> {ran}; cat "$DLAPP_RESUME_FROM/step" 2>/dev/null >> {ran}\n'
        'mkdir -p saved; echo 7 > saved/step; echo \'{"checkpoint": "saved"}\' >> "$DLAPP_REPORT"\n'
        f"until [ -e {go} ]; do sleep 0.05; done; mkdir -p output; echo done > output/result"
    )
    file = properties(
        tmp_path,
        script,
        application={"requeue": "true"},
        to_hdfs={"output_path": "output", "hdfs": tmp_path / "result"},
        checkpoint={"path": "saved", "hdfs": tmp_path / "checkpoints", "every": "1s"},
    )
    one = launch(file)
    wait_for("a checkpoint", lambda: list(tmp_path.glob("checkpoints/*/checkpoint-*.json")), END_S)
    home = application_dir(state_dir, one)
    while left := processes(state_dir):
        kill([each.pid for each in left])
    restart(home, one)
    view = status(one)
    assert (view["state"], view["final_status"]) in (("ACCEPTED", "UNDEFINED"), ("RUNNING", "UNDEFINED"))
    assert run("dlapp-list").code == 0
    wait_for("it runs again", lambda: len(ran.read_text().splitlines()) > 1, END_S)
    go.touch()
    end = ended(one)
    assert (end["final_status"], end["attempt"]) == ("SUCCEEDED", 2)
    first, again, step = ran.read_text().splitlines()
    assert (first, step) == ("none", "7")
    assert again != "none"
    assert (tmp_path / "result" / "result").read_text() == "done\n"
    assert [path.name for path in tmp_path.glob("result.*")] == []


def restart(home: Path, application: str) -> None:
    """Leave what a restart of the machine leaves, besides that no process is there: all was of another boot."""
    with contextlib.closing(sqlite3.connect(home.parents[1] / "dlapp.db")) as database:
        database.execute("UPDATE applications SET boot_id = 'another' WHERE id = ?", (application,))
        database.commit()
    journal = home / "journal-1.jsonl"
    journal.write_text(journal.read_text().replace(f'"boot":"{boot_id()}"', '"boot":"another"'))
