"""Test checkpoints of programs that write other files beside them all the time, in the layouts of their frameworks."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.applications import ended, launch, processes, properties, run, status, wait_for
from tests.end_to_end.test_applications import id_of
from tests.engines import Engine
from tests.services.containers.dockerd import IMAGE, Dockerd

pytestmark = pytest.mark.parametrize("engine", ["local"], indirect=True)
END_S = 240.0
BEGIN = """\
import json, os, pathlib, shutil, sqlite3, sys, threading, time
go, resumed = pathlib.Path(sys.argv[1]), os.environ.get("DLAPP_RESUME_FROM")
stop = threading.Event()

def grow(path):
    "Keep a file open and append to it, as a writer of event files does."
    path.parent.mkdir(parents=True, exist_ok=True)
    file = open(path, "wb", buffering=0)
    def run():
        while not stop.wait(0.2):
            file.write(b"event")
    file.write(b"event")
    threading.Thread(target=run, daemon=True).start()

def wait():
    while not go.exists():
        time.sleep(0.05)
"""
TRANSFORMERS = """
out = pathlib.Path("out")
found = sorted(out.glob("checkpoint-*"), key=lambda one: int(one.name.partition("-")[2]))
if resumed:
    names = {one.name: sorted(each.name for each in one.iterdir()) for one in found}
    (out / "continued.json").write_text(json.dumps(names))
    sys.exit()
grow(out / "runs/Nov28_host/events.out.tfevents.1.host.1.0")
FILES = ["config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"]
for step in range(100, 600, 100):
    directory = out / f"checkpoint-{step}"
    directory.mkdir()
    for name in FILES:
        (directory / name).write_text(f"{name} of {step}")
    if step > 200:
        shutil.rmtree(out / f"checkpoint-{step - 200}")  # save_total_limit=2
half = out / "checkpoint-600"
half.mkdir()
(half / "config.json").write_text("config.json of 600")
with open(half / "model.safetensors", "wb", buffering=0) as file:
    file.write(b"half a mod")
    wait()
    (out / "GO").write_text("")
    time.sleep(600)
"""
LIGHTNING = """
logs = pathlib.Path("lightning_logs")
if resumed:
    names = sorted(str(one.relative_to(logs)) for one in logs.glob("version_*/checkpoints/*"))
    (logs / "continued.json").write_text(json.dumps(names))
    sys.exit()
version = logs / "version_0"
grow(version / "events.out.tfevents.1.host.1.0")
(version / "hparams.yaml").write_text("{}")
(version / "checkpoints").mkdir()
(version / "checkpoints/epoch=0-step=100.ckpt").write_text("state of 100")
with open(version / "checkpoints/epoch=1-step=200.ckpt", "wb", buffering=0) as file:
    file.write(b"state of 2")
    time.sleep(600)
"""
REPLACED = """
out = pathlib.Path("out")
out.mkdir(exist_ok=True)
state = out / "state.json"
first = json.loads(state.read_text())["step"] if state.exists() else 0
if resumed:
    (out / "continued.json").write_text(json.dumps([first, sorted(one.name for one in out.iterdir())]))
    sys.exit()
database = sqlite3.connect(out / "runs.db")  # stays open, as does the log
database.execute("create table metrics (step)")
log = open(out / "train.log", "w", buffering=1)
for step in range(1, 100_000):
    text = json.dumps({"step": step, "weights": ["1"] * 10_000})
    (out / "state.tmp").write_text(text)
    os.replace(out / "state.tmp", state)
    log.write(f"step {step}\\n")
    database.execute("insert into metrics values (?)", (step,))
    database.commit()
    time.sleep(0.5)
"""


def submit(engine: Engine, tmp_path: Path, program: str, path: str, start: str = "", **resources: object) -> Path:
    """Write a program and its properties file; its output and its checkpoints are ``path``."""
    engine.put("kept/somewhere/else", "")
    file = properties(
        tmp_path,
        f"{start}python3 train.py {tmp_path / 'go'}",
        resources=resources,
        to_hdfs={"output_path": path, "hdfs": f"{engine.root}/kept/result", "overwrite": "true"},
        checkpoint={"path": path, "every": "1s"},
    )
    (tmp_path / "test_workspace" / "train.py").write_text(BEGIN + program)
    return file


def newest(application: str) -> dict[str, Any] | None:
    """Return the newest checkpoint of an application as its status has it; None: there is none."""
    found: dict[str, Any] | None = status(application)["checkpoint"]
    return found if found and found["number"] else None


def read(engine: Engine, name: str) -> Any:
    """Return a JSON file of the committed output."""
    return json.loads(Path(engine.root, "kept/result", name).read_text())


def checkpoint_line(application: str) -> str:
    return next(line for line in run("dlapp-status", application).out.splitlines() if line.startswith("checkpoint : "))


def kill_container(engine: Engine, application: str) -> None:
    (workspace,) = engine.state_dir.glob(f"*/applications/{application}/containers/*/workspace")
    for process in processes(workspace.parent):
        with contextlib.suppress(ProcessLookupError):  # one ends with another
            os.kill(process.pid, signal.SIGKILL)


def test_the_newest_whole_checkpoint_of_transformers_survives_a_kill(engine: Engine, tmp_path: Path) -> None:
    application = launch(submit(engine, tmp_path, TRANSFORMERS, "out", start="exec ", retries=1))
    wait_for("the newest checkpoint", lambda: (newest(application) or {}).get("step") == 500, END_S)
    assert (newest(application) or {})["why"] == ""
    assert checkpoint_line(application).startswith("checkpoint : step 500, 0:0")
    kill_container(engine, application)
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    whole = ["config.json", "model.safetensors", "optimizer.pt", "scheduler.pt", "trainer_state.json"]
    expected = {f"checkpoint-{step}": whole for step in (400, 500)}
    assert read(engine, "continued.json") == expected
    assert checkpoint_line(application).startswith("checkpoint : step 500, 0:")


def test_a_killed_run_of_lightning_is_resumed_from_its_newest_whole_checkpoint(engine: Engine, tmp_path: Path) -> None:
    application = launch(submit(engine, tmp_path, LIGHTNING, "lightning_logs"))
    first = wait_for("a checkpoint", partial(newest, application), END_S)
    assert (first["step"], first["epoch"]) == (100, 0)
    assert run("dlapp-kill", application).code == 0
    resumed = run("dlapp-launcher", "--wait", "--resume", application, timeout_s=END_S)
    assert resumed.code == 0, resumed.err + resumed.out
    names = read(engine, "continued.json")
    assert names == ["version_0/checkpoints/epoch=0-step=100.ckpt"]


@pytest.mark.parametrize("start", ["", "exec "])
def test_a_state_that_is_always_replaced_is_copied_and_a_soft_kill_without_handler_keeps_it(
    engine: Engine, tmp_path: Path, start: str
) -> None:
    application = launch(submit(engine, tmp_path, REPLACED, "out", start))
    if start:
        wait_for("a checkpoint while it runs", partial(newest, application), END_S)
    before = wait_for("a state", partial(step_in, engine, application), END_S)
    wait_for("its start", lambda: status(application)["phase"] == "running 1 of 1", END_S)
    assert run("dlapp-softkill", application).code == 0
    assert ended(application, END_S)["cause"] == "soft-killed"
    kept_step = read(engine, "state.json")["step"]
    resumed = run("dlapp-launcher", "--wait", "--resume", application, timeout_s=END_S)
    assert resumed.code == 0, resumed.err + resumed.out
    step, names = read(engine, "continued.json")
    assert before <= step <= kept_step  # it may have saved between the inspection and SIGTERM
    assert "state.json" in names
    assert checkpoint_line(id_of(resumed)).startswith("checkpoint : 0:")


@pytest.mark.slow
def test_a_program_without_handler_that_reaches_max_runtime_leaves_a_checkpoint(engine: Engine, tmp_path: Path) -> None:
    engine.put("kept/somewhere/else", "")
    file = properties(
        tmp_path,
        f"exec python3 train.py {tmp_path / 'go'}",
        application={"max_runtime": "30s"},
        to_hdfs={"output_path": "out", "hdfs": f"{engine.root}/kept/result"},
        checkpoint={"path": "out"},  # the first copy would be due after ten minutes
    )
    (tmp_path / "test_workspace" / "train.py").write_text(BEGIN + REPLACED)
    seen = ended(launch(file), END_S)
    assert (seen["cause"], seen["resumable"]) == ("timed out", True), seen["diagnostics"]
    assert seen["checkpoint"]["number"]
    assert seen["checkpoint"]["why"] == ""


def step_in(engine: Engine, application: str) -> int:
    """Return the step in the state of the running program; 0: there is none yet."""
    found = list(engine.state_dir.glob(f"*/applications/{application}/containers/*/workspace/out/state.json"))
    return int(json.loads(found[0].read_text())["step"]) if found else 0


def test_a_program_that_never_saved_has_a_reason_and_its_output_is_named(engine: Engine, tmp_path: Path) -> None:
    program = 'pathlib.Path("out").mkdir(); file = open("out/model.pt", "wb", buffering=0); file.write(b"x"); wait()\n'
    application = launch(submit(engine, tmp_path, f"{program}sys.exit(3)\n", "out"))

    def why() -> str:
        return str((status(application)["checkpoint"] or {}).get("why", ""))

    wait_for("the reason", lambda: why() == "out/model.pt is open for writing", END_S)
    assert checkpoint_line(application) == "checkpoint : none yet: out/model.pt is open for writing"
    assert run("dlapp-softkill", application).code == 0
    ended(application, END_S)
    assert checkpoint_line(application) == "checkpoint : none: out/model.pt was open for writing"
    refused = run("dlapp-launcher", "--resume", application)
    assert refused.code == 3
    output = f"its output at file://{engine.root}/kept/result may have the state: name it in [from_hdfs]"
    assert f"has no whole checkpoint; {output}; --again {application} runs it anew" in refused.err


IN_DOCKER = """\
mkdir -p out
if [ -n "$DLAPP_RESUME_FROM" ]; then cp out/state out/continued; exit; fi
step=0
exec 3>out/events.out.tfevents.1
while :; do
    step=$((step + 1)); echo "step $step" >out/new; mv out/new out/state; echo event >&3; sleep 0.5
done
"""


@pytest.mark.docker
@pytest.mark.slow
def test_a_soft_kill_without_handler_in_docker_leaves_a_checkpoint(
    engine: Engine, dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    engine.put("kept/somewhere/else", "")
    file = properties(
        tmp_path,
        IN_DOCKER,
        application={"docker_image": IMAGE, "network": "none"},
        to_hdfs={"output_path": "out", "hdfs": f"{engine.root}/kept/result", "overwrite": "true"},
        checkpoint={"path": "out"},
    )
    application = launch(file)
    pattern = f"*/applications/{application}/containers/*/workspace/out/state"
    wait_for("a state", lambda: list(engine.state_dir.glob(pattern)), END_S)
    wait_for("its start", lambda: status(application)["phase"] == "running 1 of 1", END_S)
    assert run("dlapp-softkill", application).code == 0
    assert ended(application, END_S)["cause"] == "soft-killed"
    resumed = run("dlapp-launcher", "--wait", "--resume", application, timeout_s=END_S)
    assert resumed.code == 0, resumed.err + resumed.out
    assert engine.tree("kept/result")["continued"].startswith("step ")
