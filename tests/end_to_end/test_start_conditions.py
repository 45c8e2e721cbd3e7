"""Whole applications that wait for others or for a release, on both engines; on YARN over restarts of both masters."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.applications import ended, launch, properties, run, status, wait_for
from tests.end_to_end.faults.test_kill_matrix import kill
from tests.engines import Engine

END_S = 120.0


def reason(application: str) -> tuple[str, str]:
    waiting = status(application)["waiting"] or {}
    return waiting.get("code", ""), waiting.get("message", "")


@pytest.mark.parametrize("engine", ["local", pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.slow
def test_applications_wait_for_others_or_a_release_over_restarts_and_start_or_end_by_what_comes(
    engine: Engine, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    first = launch(properties(tmp_path, f"until [ -e {go} ]; do sleep 0.05; done", name="first"))

    def waiting(name: str, **application: object) -> str:
        return launch(properties(tmp_path, "true", name=name, application=application))

    # Not more: YARN runs three ApplicationMasters at once here.
    bad, held = waiting("bad", after=f"{first}:failed"), waiting("held", after=first, hold="true")
    for one, how in ((bad, "failed"), (held, "ok")):
        expected = "dependency", f"waits for the end of {first} ({how})"
        wait_for(f"the reason of {one}", lambda one=one, expected=expected: reason(one) == expected, END_S)  # type: ignore[misc]
    refused = run("dlapp-launcher", "--set", "application.after=application_1_0001", tmp_path / "bad.properties")
    assert refused.code == 2
    assert "application.after" in refused.err
    shown = run("dlapp-queue", "-o", "name=ID,STATE,GPUS").out.splitlines()
    states = {line.split()[0]: line.split()[1] for line in shown[1:]}
    assert [states[one] for one in (first, bad, held)] == ["running", "dependency", "dependency"]
    if engine.hadoop is None:
        kill([one.pid for one in engine.runners()])
    else:
        kill([one.pid for one in engine.processes(held) if one.role == "am"])
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
