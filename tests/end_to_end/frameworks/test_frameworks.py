"""Distributed training with the real frameworks, on every engine."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.applications import Done, ended, launch, run, status, wait_for
from tests.end_to_end.data.test_checkpoints import numbers
from tests.end_to_end.frameworks.test_rendezvous import over_ipv6
from tests.end_to_end.test_applications import END_S, id_of, printed
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import IMAGE, Dockerd
from tests.services.debian import PYTHON

EXAMPLES = Path(__file__).parents[3] / "examples"
TWO_PROCESSES = "env.PET_NPROC_PER_NODE=2\nenv.PET_REDIRECTS=9:1\nenv.PET_TEE=9:1\n"
"""Debian's PyTorch 1.13 fails on Python 3.11 unless what is redirected is named by its rank, such as one that is not
there."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The example's programs with their data in the workspace, on a machine that is large enough for all containers."""
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "8")
    workspace(tmp_path, "pytorch")
    return tmp_path


def workspace(place: Path, example: str) -> None:
    """Make a workspace of the programs of an example, with their data in it."""
    shutil.copytree(EXAMPLES / "distributed" / example, place / "w")
    (place / "w/data").mkdir()
    shutil.copy(EXAMPLES / "digits/data/digits.csv.gz", place / "w/data")


def file_of(
    place: Path,
    engine: Engine,
    framework: str,
    resources: str,
    *,
    args: str = "",
    more: str = "",
    script: str = "train.py",
    memory: str = "1g",
) -> Path:
    """Write a properties file that runs train.py of the example with Debian's Python."""
    (place / "f.properties").write_text(
        f"[application]\nappname=digits\nuser_dev_workspace_path=w\nuser_shell_script={script}\nuser_shell_args={args}\n"
        f"framework={framework}\nenv.PATH=/usr/bin:/bin\n{more}[resources]\nmemory={memory}\ngcores=0\n{resources}"
        f"[to_hdfs]\noutput_path=output\nhdfs={engine.root}/{framework}\n"
    )
    return place / "f.properties"


def waited(file: Path) -> Done:
    return run("dlapp-launcher", "--wait", file, timeout_s=END_S)


def losses(engine: Engine, framework: str) -> list[float]:
    (found,) = (text for name, text in engine.tree(framework).items() if name.endswith("losses.json"))
    values: list[float] = json.loads(found)
    return values


def alone(place: Path, epochs: int, python: str = PYTHON) -> list[float]:
    """Return the losses of one process on whole batches."""
    command = [python, "train.py", "--epochs", str(epochs)]
    subprocess.run(command, cwd=place / "w", check=True, env={"PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"})
    found: list[float] = json.loads((place / "w/output/losses.json").read_text())
    shutil.rmtree(place / "w/output")
    return found


@on_yarn_when_full
def test_each_container_of_a_framework_has_its_variables(engine: Engine, tmp_path: Path) -> None:
    outputs = tmp_path / "said-"  # the chief's end ends the others
    (tmp_path / "f.properties").write_text(
        "[application]\nappname=variables\nframework=tensorflow\n[resources]\nmemory=64\ngcores=0\nvcores=2\n"
        "[role chief]\ncommand=sh -c 'echo $TF_CONFIG; echo $OMP_NUM_THREADS $GLOO_SOCKET_IFNAME $DLAPP_GENERATION;"
        f' until [ -e "{outputs}0" -a -e "{outputs}1" -a -e "{outputs}board" ]; do sleep 0.05; done\'\n'
        "env.GLOO_SOCKET_IFNAME=mine\n"
        "[role worker]\ninstances=2\n"
        f"command=sh -c 'echo $TF_CONFIG; touch {outputs}$DLAPP_ROLE_INDEX; exec sleep 600'\n"
        "[role board]\nservice=true\n"
        f"command=sh -c 'echo tf$TF_CONFIG; touch {outputs}board; exec sleep 600'\n"
    )
    done = waited(tmp_path / "f.properties")
    assert done.code == 0, done.err + done.out
    application = id_of(done)
    config, others = printed("--container", "chief_0", "--stdout", application)
    assert others == "2 mine 0"
    found = json.loads(config)
    assert found["task"] == {"type": "chief", "index": 0}
    assert {role: len(members) for role, members in found["cluster"].items()} == {"chief": 1, "worker": 2}
    ports = [member.rpartition(":")[2] for members in found["cluster"].values() for member in members]
    assert len(set(ports)) == 3
    (of_worker,) = printed("--container", "worker_1", "--stdout", application)
    assert json.loads(of_worker) == {**found, "task": {"type": "worker", "index": 1}}
    assert printed("--container", "board_0", "--stdout", application) == ["tf"]


TWO_RANKS_0 = """\
import os, socket, time
with socket.socket() as server:  # as every rank 0 does
    server.bind((os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])))
    server.listen()
    time.sleep(600)  # for the others
"""


@pytest.mark.parametrize("engine", ["local"], indirect=True)
def test_two_programs_with_rank_0_on_one_host_fail_at_once(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "8")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/train.py").write_text(TWO_RANKS_0)
    (tmp_path / "f.properties").write_text(
        "[application]\nappname=twice\nuser_dev_workspace_path=w\ncommand=python3 train.py\nframework=pytorch\n"
        "[resources]\nmemory=64\ngcores=0\ncontainers=2\nretries=3\n"
    )
    done = waited(tmp_path / "f.properties")
    assert done.code == 1, done.err + done.out
    advice = "two programs took rank 0: check RANK/NODE_RANK"
    assert f"failed: exit code 1: the application itself uses the address: {advice}" in done.out
    found = status(id_of(done))
    cause = found["diagnosis"]["diagnosis"]
    assert (cause["rule"], cause["cause"]) == ("own_address_in_use", advice)
    assert "Address already in use" in cause["evidence"]["line"]
    assert [container["generation"] for container in found["containers"]] == [0, 0]


@pytest.mark.slow
@on_yarn_when_full
@pytest.mark.parametrize("workers", [2, 4])
@pytest.mark.usefixtures("torch")
def test_pytorch_workers_train_the_same_model_as_one_process_on_whole_batches(
    engine: Engine, place: Path, workers: int
) -> None:
    # Four of these have no room on one node of the cluster.
    file = file_of(place, engine, "pytorch", f"containers={workers}\n", args="--epochs 3", memory="1300m")
    done = waited(file)
    assert done.code == 0, done.err + done.out
    assert sorted(re.findall(r"rank . of .", "\n".join(printed("--stdout", id_of(done))))) == [
        f"rank {n} of {workers}" for n in range(workers)
    ]
    if engine.hadoop is not None and workers == 4:
        assert len({container["host"] for container in status(id_of(done))["containers"]}) == 2
    assert losses(engine, "pytorch") == pytest.approx(alone(place, 3), abs=1e-9)


@pytest.mark.slow
@pytest.mark.root("to have a network without IPv4")
@pytest.mark.parametrize("engine", ["local"], indirect=True)
@pytest.mark.usefixtures("torch")
def test_workers_of_pytorch_meet_over_ipv6(engine: Engine, place: Path) -> None:
    (place / "w/run.sh").write_text("#!/bin/sh\necho $MASTER_ADDR $GLOO_SOCKET_IFNAME\nexec ./train.py --epochs 1\n")
    (place / "w/run.sh").chmod(0o755)
    done = over_ipv6(place, file_of(place, engine, "pytorch", "containers=2\n", script="run.sh"))
    assert done.code == 0, "\n".join((done.err, done.out, *printed("--stderr", id_of(done))))
    for rank in ("0", "1"):
        assert printed("--stdout", "--container", rank, id_of(done))[0] == "fd00:6::1 six"
    assert len(losses(engine, "pytorch")) == 1


def process_of(application: str, *, rank: int) -> int:
    """Return the process of a rank, by its number here: its own may be of a namespace."""
    wanted = {f"DLAPP_APP_ID={application}".encode(), f"RANK={rank}".encode()}
    for pid in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            if wanted <= set(Path("/proc", pid, "environ").read_bytes().split(b"\0")):
                return int(pid)
    raise AssertionError(f"rank {rank} of {application} does not run")


@pytest.mark.slow
@on_yarn_when_full
@pytest.mark.usefixtures("torch")
def test_pytorch_ranks_resume_from_the_checkpoint_of_rank_0(engine: Engine, place: Path) -> None:
    epochs = f'{PYTHON} -c \'import torch; print(len(torch.load("model/state.pt")["losses"]) + 2)\''
    (place / "w/run.sh").write_text(
        "#!/bin/sh\n"
        '[ -n "$DLAPP_RESUME_FROM" ] || exec ./train.py --epochs 1000000\n'
        f"exec ./train.py --epochs $({epochs})\n"
    )
    (place / "w/run.sh").chmod(0o755)
    file = file_of(place, engine, "pytorch", "containers=2\nretries=1\n", script="run.sh")
    engine.put("kept/result/else", "")
    checkpoint = f"[checkpoint]\npath=model\nhdfs={engine.root}/kept/result.checkpoints\nevery=1s\n"
    file.write_text(f"{file.read_text()}{checkpoint}")
    application = launch(file)

    def stored() -> int:
        return max(numbers(engine, application), default=0)

    wait_for("epoch 3", lambda: "epoch 3:" in "".join(printed("--stdout", application)), END_S)
    before = stored()
    wait_for("a later checkpoint", lambda: stored() >= before + 2, END_S)  # one may have been begun before epoch 3
    os.kill(process_of(application, rank=1), signal.SIGKILL)
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    first, *_ = (line for line in printed("--stdout", "--container", "0", application) if line.startswith("epoch "))
    assert int(first.split()[1].rstrip(":")) > 3
    found = losses(engine, "pytorch")
    assert found == pytest.approx(alone(place, len(found)), abs=1e-9)


@pytest.mark.slow
@on_yarn_when_full
@pytest.mark.usefixtures("torch")
def test_a_process_of_torchrun_that_dies_restarts_the_gang(engine: Engine, place: Path) -> None:
    once = place / "once"
    (place / "w/run.sh").write_text(
        "#!/bin/sh\n"
        f'if mkdir "{once}-$DLAPP_ROLE_INDEX"; then exec torchrun train.py --epochs 1000000; fi\n'
        "exec torchrun train.py --epochs 3\n"
    )
    (place / "w/run.sh").chmod(0o755)
    file = file_of(place, engine, "torchrun", "containers=2\nretries=1\n", script="run.sh", more=TWO_PROCESSES)
    application = launch(file)

    wait_for("the gang trains", lambda: "epoch 1:" in "".join(printed("--stdout", application)), END_S)
    os.kill(process_of(application, rank=3), signal.SIGKILL)
    seen = ended(application, END_S)
    assert seen["final_status"] == "SUCCEEDED", seen["diagnostics"]
    assert losses(engine, "torchrun") == pytest.approx(alone(place, 3), abs=1e-9)


@pytest.mark.slow
@on_yarn_when_full
@pytest.mark.usefixtures("torch")
def test_a_python_script_is_run_by_torchrun(engine: Engine, place: Path) -> None:
    file = file_of(place, engine, "torchrun", "containers=2\n", args="--epochs 3", more=TWO_PROCESSES)
    done = waited(file)
    assert done.code == 0, done.err + done.out
    assert len(re.findall(r"rank . of 4", "\n".join(printed("--stdout", id_of(done))))) == 4
    assert losses(engine, "torchrun") == pytest.approx(alone(place, 3), abs=1e-9)


def test_a_program_in_docker_has_the_variables_of_its_framework_too(
    dockerd: Dockerd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    (tmp_path / "f.properties").write_text(
        f"[application]\nappname=variables\nframework=tensorflow\ndocker_image={IMAGE}\n"
        "command=sh -c 'echo \"$TF_CONFIG\"; echo $OMP_NUM_THREADS'\n"
        "[resources]\nmemory=64\ngcores=0\ncontainers=2\n"
    )
    done = waited(tmp_path / "f.properties")
    assert done.code == 0, done.err + done.out
    for index in range(2):
        config, threads = printed("--container", f"worker_{index}", "--stdout", id_of(done))
        assert json.loads(config)["task"] == {"type": "worker", "index": index}
        assert len(json.loads(config)["cluster"]["worker"]) == 2
        assert threads == "1"
