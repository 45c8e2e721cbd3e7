"""Test that a program that is started again continues from a checkpoint, on every engine."""

from __future__ import annotations

import contextlib
import os
import signal
from functools import partial
from pathlib import Path

import pytest

from dlapp.errors import NotFound
from tests.applications import launch, processes, properties, run, status, wait_for
from tests.engines import Engine

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


def manifests(engine: Engine, application: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError, NotFound):  # a copy is being made
        tree = engine.tree(f"kept/result.checkpoints/{application}")
        return sorted(name for name in tree if name.endswith(".json") and not name.startswith("."))
    return []


@pytest.mark.parametrize(
    ("engine", "what"),
    [
        ("local", "its program"),
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
    wait_for("a checkpoint", lambda: manifests(engine, application), END_S)
    go.touch()
    if what != "its program":
        wait_for("a change", Path(f"{go}.done").exists, END_S)
        (model,) = engine.state_dir.glob(f"*/applications/{application}/containers/*/workspace/model")
        for one in processes(model.parents[1]):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, signal.SIGKILL)
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    assert status(application)["final_status"] == "SUCCEEDED"
    tree = engine.tree("kept/result")
    assert tree["continued"] == "epoch 3\nepoch 3\npart\n"
    assert tree["where"].endswith("/workspace/model\n")


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
    wait_for("its start", ready.exists, END_S)
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
    prefix = f"{place}/checkpoint-" if place else "checkpoint-"
    names = (name for name in manifests(engine, application) if name.startswith(prefix))
    return sorted(int(name.removeprefix(prefix).removesuffix(".json")) for name in names)


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
    assert [one["generation"] for one in seen["containers"]] == [1, 1]
    tree = engine.tree("kept/result")
    for index in range(2):
        assert tree[f"{index}/start"].startswith(f"{index} from epoch 3 in /"), tree


@pytest.mark.parametrize(
    "engine", ["local", pytest.param("yarn", marks=[pytest.mark.hadoop, pytest.mark.slow])], indirect=True
)
def test_ranks_with_checkpoints_of_their_own_continue_from_one_that_all_have(engine: Engine, tmp_path: Path) -> None:
    end = '[ "$CONTAINER_INDEX" = 1 ] && kill -9 $$\nsleep 300'
    application = launch(gang_file(engine, tmp_path, end, role="all", keep=2))
    for epoch in (1, 2, 3):
        wait_for(f"epoch {epoch}", partial(has_stored, engine, application, epoch, "0", "1"), END_S)
        if epoch == 3:
            engine.remove(f"kept/result.checkpoints/{application}/1/checkpoint-3.json")
        (tmp_path / f"go.{epoch}").touch()
    (tmp_path / "go.done").touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0
    seen = status(application)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    tree = engine.tree("kept/result")
    for index in range(2):
        assert tree[f"{index}/start"].startswith(f"{index} from epoch 2 in /"), tree
