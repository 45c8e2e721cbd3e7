"""Kill each process of an application on YARN at its gate, while it runs, and while it stores: what is kept is what
docs/payload.md says.

Where it runs, one container has stored its output, and the other one runs: what that has not stored is in a directory
that YARN deletes. Full disks and quotas without a kill are in cluster/yarn/faults/test_full_disks.py and
test_quotas.py.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import seeds
from tests.applications import launch, properties, run, status, wait_for
from tests.cluster.yarn.faults.test_quotas import NAMES, Directory
from tests.end_to_end.faults.test_kill_matrix import GOES_ON, KILL, strike
from tests.engines import Engine
from tests.services.hadoop import NODES
from tests.tiers import FULL

END_S = 120.0
WHO = ("task", "guardian", "payload", "am", "am once", "am+task", "machine", KILL)
AT_GATE = ("task", "am", "am once", "am+task", "machine", KILL)
"""Before the program there is no guardian and no payload, and while output is stored there is none any more."""
ONE, _ = NODES.values()
pytestmark = pytest.mark.slow


def chosen(moment: str) -> tuple[str, ...]:
    """Return who is killed at a moment: all at night, else two, others each day. A case takes 7 to 40 s."""
    return AT_GATE if FULL else tuple(random.Random(f"{seeds.FIRST} {moment}").sample(AT_GATE, 2))


def has_ended(engine: Engine, application: str) -> bool:
    """Return whether an application has ended, without a process, and its output is settled."""
    is_over = status(application)["state"] in ("FAILED", "FINISHED", "KILLED")
    return is_over and not engine.processes(application) and engine.is_settled(application)


@pytest.fixture
def masters(who: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let YARN start another ApplicationMaster where the case says so."""
    if who != "am once":
        monkeypatch.setenv("DLAPP_YARN_AM_ATTEMPTS", "1")


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


# ---- at the gate ----


@pytest.mark.usefixtures("masters")
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.parametrize("who", chosen("gate"))
def test_on_yarn_killed_at_its_gate_no_program_has_run_and_the_old_output_stays(
    who: str, engine: Engine, tmp_path: Path
) -> None:
    """Another application leaves room on a node for one of two members: 1024 of the 4096 MiB, beside 2304 and the two
    ApplicationMasters. That one waits at the gate, for 10 minutes at most, when a process is killed.

    With another ApplicationMaster it starts once there is room for both.
    """
    engine.put("result/a", "old\n")
    holder = launch(properties(tmp_path, "sleep 600", name="holder", resources={"memory": 2304, "nodes": ONE}))
    wait_for("the holder runs", lambda: status(holder)["phase"].startswith("running"), END_S)
    file = properties(
        tmp_path,
        f"touch {tmp_path}/ran-$CONTAINER_INDEX; mkdir output; echo new >output/a",
        application={"gang": "all", "gang_window": "10m"},
        resources={"containers": 2, "memory": 1024, "nodes": ONE},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result", "overwrite": "true"},
    )
    application = launch(file)

    def is_at_gate() -> bool:
        phases = [one["phase"] for one in status(application)["containers"]]
        return "waiting" in phases and "1 of 2 held" in status(application)["phase"]

    wait_for("one is at the gate", is_at_gate, END_S)
    strike(who, application, engine.processes(application))
    if who in GOES_ON:
        wait_for("it is at the gate again", lambda: status(application)["attempt"] == 2 and is_at_gate(), END_S)
        assert list(tmp_path.glob("ran-*")) == []
        run("dlapp-kill", holder)
    wait_for("its end", lambda: has_ended(engine, application), END_S)
    seen = status(application)
    if who in GOES_ON:
        assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
        assert engine.tree("result") == {"0/a": "new\n", "1/a": "new\n"}
        return
    assert (seen["final_status"], bool(seen["diagnostics"])) == ("KILLED" if who == KILL else "FAILED", True)
    assert list(tmp_path.glob("ran-*")) == []
    assert engine.tree("result") == {"a": "old\n"}
    assert [one["partial"] for one in seen["outputs"]] in ([], [None])
    assert engine.beside("result") == []


# ---- while it stores ----


@pytest.fixture
def limited(engine: Engine) -> Iterator[Directory]:
    assert engine.hadoop is not None
    directory = Directory(engine.hadoop, f"{engine.root}/limited")
    yield directory
    directory.close()


@pytest.mark.usefixtures("masters")
@pytest.mark.parametrize("engine", [pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
@pytest.mark.parametrize("who", chosen("storing"))
def test_a_kill_on_yarn_during_a_store_keeps_the_output_or_reports_its_loss(
    who: str, engine: Engine, limited: Directory, tmp_path: Path
) -> None:
    """A quota of one name holds the output of the only container back, when a process is killed. Then it is lifted.

    With its task the output ends, in a directory that YARN deletes; a task that lives stores it, also for another
    ApplicationMaster.
    """
    output = {"output_path": "output", "hdfs": f"{limited.path}/result"}
    wait = f"until [ -e {tmp_path}/go ]; do sleep 0.05; done"
    file = properties(tmp_path, f"mkdir output; echo new >output/a; touch {tmp_path}/up; {wait}", to_hdfs=output)
    application = launch(file)
    wait_for("its program", (tmp_path / "up").exists, END_S)
    limited.limit(NAMES, 1)
    (tmp_path / "go").touch()
    wait_for("it waits", lambda: status(application)["phase"].startswith("storing: waits for "), END_S)
    strike(who, application, engine.processes(application))
    if who != "am once":
        wait_for("its end", lambda: status(application)["state"] in ("FAILED", "FINISHED", "KILLED"), END_S)
    limited.limit(NAMES, -1)
    wait_for("its end", lambda: has_ended(engine, application), END_S)
    seen = status(application)
    if who == "am once":
        assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
        assert engine.tree("limited/result") == {"a": "new\n"}
        assert engine.beside("limited/result") == []
        return
    assert seen["final_status"] == ("KILLED" if who == KILL else "FAILED")
    assert "result" not in engine.names("limited")
    if who != KILL:
        whose = "container 0 (worker 0)" if who == "task" else "its containers"
        gone = f"; what {whose} had not stored is gone: YARN deletes a container's directory with the container"
        assert seen["diagnostics"].endswith(gone) or seen["unstored"], seen["diagnostics"]
