"""Kill each process of an application on YARN while it runs: what is kept is what docs/payload.md says.

One container has stored its output, and the other one runs: what that has not stored is in a directory that YARN
deletes. What happens while output waits for space is in cluster/yarn/test_full_disks.py and test_quotas.py.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.applications import launch, properties, run, status, wait_for
from tests.end_to_end.faults.test_kill_matrix import GOES_ON, KILL, strike
from tests.engines import Engine

END_S = 120.0
WHO = ("task", "guardian", "payload", "am", "am once", "am+task", "machine", KILL)
pytestmark = pytest.mark.slow


@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.parametrize("has_output", [True, False], ids=["output so far", "no output so far"])
@pytest.mark.parametrize("who", WHO)
def test_on_yarn_stored_output_is_kept_and_the_status_reports_the_lost_rest(
    who: str, has_output: bool, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if who != "am once":
        monkeypatch.setenv("DLAPP_YARN_AM_ATTEMPTS", "1")
    for name in ("a", "b"):
        engine.put(f"result/{name}", "old\n")
    up, go = tmp_path / "up", tmp_path / "go"
    write = "mkdir -p output; echo $CONTAINER_INDEX >output/a"
    script = (
        f"if [ $CONTAINER_INDEX = 0 ]; then {write}; exit 0; fi\n{write if has_output else ':'}\n"
        f"touch {up}; until [ -e {go} ]; do sleep 0.05; done; {write}"
    )
    output = {"output_path": "output", "hdfs": f"{engine.root}/result", "overwrite": "true"}
    application = launch(properties(tmp_path, script, resources={"containers": 2}, to_hdfs=output))

    def one_has_stored_and_one_runs() -> bool:
        phases = [container["phase"] for container in status(application)["containers"]]
        return up.exists() and phases == ["ended", "running"]

    wait_for("one to store and one to run", one_has_stored_and_one_runs, END_S)
    strike(who, application, engine.processes(application))
    if who in GOES_ON:
        go.touch()
    wait_for("its end", lambda: status(application)["state"] in ("FAILED", "FINISHED", "KILLED"), END_S)
    wait_for("no process of it", lambda: not engine.processes(application))
    wait_for("its output is settled", lambda: engine.is_settled(application), END_S)
    seen = status(application)
    (one,) = seen["outputs"]
    if who in GOES_ON:  # its task goes on, or another container of the index does
        assert seen["final_status"] == "SUCCEEDED"
        assert engine.tree("result") == {"0/a": "0\n", "1/a": "1\n"}
        return
    assert engine.tree("result") == {"a": "old\n", "b": "old\n"}
    if who == KILL:
        # The output of the container that had ended is kept.
        partial = f"result.{application}.partial"
        assert (seen["final_status"], one["partial"].rpartition("/")[2]) == ("KILLED", partial)
        assert engine.tree(partial) == {"0/a": "0\n"}
        return
    assert seen["final_status"] == "FAILED"
    stored = sorted(engine.tree(one["partial"].rpartition("/")[2]).values())
    if who == "payload":  # its task stores what there is
        assert stored == ["0\n", "1\n"][: 1 + has_output]
        return
    # Without an ApplicationMaster nobody knows the index of a container: its part is named by its id.
    assert stored == ["0\n"]
    whose = "container 1 (worker 1)" if who == "task" else "its containers"
    gone = f"; what {whose} had not stored is gone: YARN deletes a container's directory with the container"
    assert seen["diagnostics"].endswith(gone)
    assert f"{gone}\n" in run("dlapp-status", application).out
