"""Test that a program that is started again continues from a checkpoint, on every engine."""

from __future__ import annotations

import contextlib
import os
import re
import signal
from functools import partial
from pathlib import Path

import pytest

from dlapp.errors import NotFound
from tests.applications import ended, launch, processes, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full

END_S = 120.0
TRAIN = """\
mkdir -p output
if [ -n "$DLAPP_RESUME_FROM" ]; then
    echo "in $DLAPP_RESUME_FROM" >output/where
    cat "$DLAPP_RESUME_FROM/epoch" model/epoch model/large/part >output/continued
    exit
fi
mkdir -p model/large
for epoch in 1 2 3; do
    echo "epoch $epoch" >model/new; mv model/new model/epoch; echo part >model/large/part
done
until [ -e GO ]; do sleep 0.05; done
echo "half of epo" >model/epoch
"""


@pytest.mark.parametrize(
    ("engine", "what"),
    [
        pytest.param("local", "its program", marks=pytest.mark.slow),
        ("local", "all its processes"),  # they are found on one machine
        pytest.param("yarn", "its program", marks=pytest.mark.hadoop),
    ],
    indirect=["engine"],
)
def test_a_container_that_is_killed_continues_from_its_checkpoint(engine: Engine, tmp_path: Path, what: str) -> None:
    engine.put("kept/somewhere/else", "")
    go = tmp_path / "go"
    end = "kill -9 $$" if what == "its program" else f"touch {go}.done; sleep 300"
    file = properties(
        tmp_path,
        f"{TRAIN.replace('GO', str(go))}{end}",
        resources={"retries": 1},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        checkpoint={"path": "model", "every": "1s"},
    )
    application = launch(file)
    wait_for("a checkpoint", lambda: numbers(engine, application), END_S)
    go.touch()
    if what != "its program":
        wait_for("a change", Path(f"{go}.done").exists, END_S)
        (model,) = engine.state_dir.glob(f"*/applications/{application}/containers/*/workspace/model")
        for process in processes(model.parents[1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGKILL)
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert status(application)["final_status"] == "SUCCEEDED"
    tree = engine.tree("kept/result")
    assert tree["continued"] == "epoch 3\nepoch 3\npart\n"
    assert tree["where"].endswith("/workspace/model\n")


@on_yarn_when_full
def test_a_program_that_ends_by_a_soft_kill_leaves_a_checkpoint(engine: Engine, tmp_path: Path) -> None:
    engine.put("kept/somewhere/else", "")
    ready = tmp_path / "ready"
    script = f"mkdir model; trap 'echo saved >model/epoch; exit 7' TERM; touch {ready}\nwhile :; do sleep 0.05; done"
    file = properties(
        tmp_path,
        script,
        checkpoint={"path": "model", "hdfs": f"{engine.root}/kept/mine"},
    )
    application = launch(file)
    wait_for("its start", lambda: ready.exists() and "running 1 of 1" in status(application)["phase"], END_S)
    assert run("dlapp-softkill", application).code == 0
    run("dlapp-logs", "-f", application, timeout_s=END_S)
    names = engine.tree(f"kept/mine/{application}")
    assert "checkpoint-1.json" in names
    assert "saved\n" in names.values()


GANG = """\
mkdir -p output model
echo "$CONTAINER_INDEX from $(cat model/epoch 2>/dev/null) in ${DLAPP_RESUME_FROM:-nothing}" >output/start
if [ "$DLAPP_GENERATION" != 0 ] || [ -n "$DLAPP_RESUME_FROM" ]; then
    until [ -e DONE ]; do sleep 0.05; done
    exit
fi
for epoch in 1 2 3; do
    echo "epoch $epoch" >model/new; mv model/new model/epoch
    echo "{\\"checkpoint\\": \\"model\\", \\"step\\": $epoch}" >>$DLAPP_REPORT
    until [ -e GO.$epoch ]; do sleep 0.05; done
done
"""
"""Each rank saves three epochs and waits after each; when it is started again, it says with what."""


def numbers(engine: Engine, application: str, place: str = "") -> list[int]:
    """Return the numbers of the checkpoints in a directory of an application."""
    with contextlib.suppress(FileNotFoundError, NotFound):  # there is none yet
        names = engine.names(f"kept/result.checkpoints/{application}/{place}".rstrip("/"))
        return sorted(int(found[1]) for name in names if (found := re.fullmatch(r"checkpoint-(\d+)\.json", name)))
    return []


def has_stored(engine: Engine, application: str, number: int, *places: str) -> bool:
    return all(number in numbers(engine, application, place) for place in places)


def gang_file(engine: Engine, tmp_path: Path, end: str, **checkpoint: object) -> Path:
    go = tmp_path / "go"
    engine.put("kept/somewhere/else", "")
    return properties(
        tmp_path,
        GANG.replace("GO", str(go)).replace("DONE", f"{go}.done") + end,
        application={"gang": "all"},
        resources={"containers": 2, "retries": 2},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        checkpoint={"path": "model", "every": "1s", **checkpoint},
    )


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local", pytest.param("yarn", marks=pytest.mark.hadoop)], indirect=True)
def test_all_ranks_of_a_gang_continue_from_the_checkpoint_of_one(engine: Engine, tmp_path: Path) -> None:
    end = '[ "$CONTAINER_INDEX" = 1 ] && kill -9 $$\nsleep 300'
    application = launch(gang_file(engine, tmp_path, end))
    for epoch in (1, 2, 3):
        wait_for(f"epoch {epoch}", partial(has_stored, engine, application, epoch, ""), END_S)
        (tmp_path / f"go.{epoch}").touch()
    (tmp_path / "go.done").touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    seen = status(application)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert [container["generation"] for container in seen["containers"]] == [1, 1]
    tree = engine.tree("kept/result")
    for index in range(2):
        assert tree[f"{index}/start"].startswith(f"{index} from epoch 3 in /"), tree


@pytest.mark.parametrize(
    ("engine", "master_dies"),
    [
        ("local", False),
        pytest.param("local", True, marks=pytest.mark.slow),
        pytest.param("yarn", True, marks=[pytest.mark.hadoop, pytest.mark.slow]),
    ],
    indirect=["engine"],
)
def test_ranks_with_own_checkpoints_resume_from_a_common_one(
    engine: Engine, tmp_path: Path, *, master_dies: bool
) -> None:
    end = '[ "$CONTAINER_INDEX" = 1 ] && kill -9 $$\nsleep 300'
    application = launch(gang_file(engine, tmp_path, end, role="all", keep=2))
    for epoch in (1, 2, 3):
        wait_for(f"epoch {epoch}", partial(has_stored, engine, application, epoch, "0", "1"), END_S)
        if epoch == 3:
            engine.remove(f"kept/result.checkpoints/{application}/1/checkpoint-3.json")
            if master_dies:
                for runner in engine.runners():
                    os.kill(runner.pid, signal.SIGKILL)
                engine.kill_master(application)
                wait_for("the next ApplicationMaster", lambda: status(application)["attempt"] == 2, END_S)
        (tmp_path / f"go.{epoch}").touch()
    (tmp_path / "go.done").touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    seen = status(application)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    tree = engine.tree("kept/result")
    for index in range(2):
        assert tree[f"{index}/start"].startswith(f"{index} from epoch 2 in /"), tree
    assert (seen["attempt"], [container["generation"] for container in seen["containers"]]) == (1 + master_dies, [1, 1])


SAVING = """\
save() {
    for file in weights optimizer; do echo "step $1" >model/new; mv model/new model/$file; done
    echo "{\\"checkpoint\\": \\"model\\", \\"step\\": $1}" >>$DLAPP_REPORT
}
mkdir -p output model
begun=$(cat model/weights model/optimizer 2>/dev/null | tr '\\n' ' ')
echo "$begun" >output/begun
[ "$begun" = "step 3 step 3 " ] && exit
[ "$begun" = "step 2 step 2 " ] && exit
trap '[ $DLAPP_GENERATION = 0 ] || [ -e "@late-$CONTAINER_INDEX" ] || save 3; exit 0' TERM
case $DLAPP_GENERATION in 0) save 1;; 1) save 2;; esac
until [ "$CONTAINER_INDEX $DLAPP_GENERATION" = "1 0" ] && [ -e @fail ]; do sleep 0.02; done
exit 3
"""
"""Each rank saves two files in each generation, and when it is ended; with these it goes on."""


def both_have(engine: Engine, application: str, count: int) -> bool:
    return all(len(numbers(engine, application, place)) == count for place in ("0", "1"))


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["local"], indirect=True)
@pytest.mark.parametrize(
    ("late", "begun"),
    [pytest.param(False, 3, id="all-save"), pytest.param(True, 2, id="one-does-not-save")],
)
def test_a_soft_killed_gang_resumes_from_the_last_common_checkpoint(
    engine: Engine, tmp_path: Path, *, late: bool, begun: int
) -> None:
    engine.put("kept/somewhere/else", "")
    file = properties(
        tmp_path,
        SAVING.replace("@", f"{tmp_path}/"),
        application={"gang": "all"},
        resources={"containers": 2, "retries": 1},
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/kept/result"},
        checkpoint={"path": "model", "every": "1s", "role": "all"},
    )
    application = launch(file)
    for number in (1, 2):
        wait_for(f"checkpoint {number} of both", partial(both_have, engine, application, number), END_S)
        (tmp_path / "fail").touch()
    wait_for("both run", lambda: "running 2 of 2" in status(application)["phase"], END_S)
    if late:
        (tmp_path / "late-1").touch()
    assert run("dlapp-softkill", application).code == 0
    seen = ended(application, END_S)
    assert (seen["cause"], seen["resumable"]) == ("soft-killed", True), seen["diagnostics"]
    stored = [numbers(engine, application, index) for index in "01"]
    assert len(stored[0]) == 3
    assert stored[1] == (stored[0][:2] if late else stored[0])
    (next_step,) = (
        line.removeprefix("next : ") for line in run("dlapp-status", application).out.splitlines() if "next :" in line
    )
    assert next_step == f"dlapp-launcher --resume {application}"

    refused = run("dlapp-launcher", "--resume", application)
    assert "or --set to_hdfs.overwrite=true)" in refused.err
    done = run("dlapp-launcher", "--wait", "--resume", application, "--set", "to_hdfs.overwrite=true", timeout_s=END_S)
    assert done.code == 0, done.err + done.out
    tree = engine.tree("kept/result")
    assert [tree[f"{index}/begun"] for index in range(2)] == [f"step {begun} step {begun} \n"] * 2
