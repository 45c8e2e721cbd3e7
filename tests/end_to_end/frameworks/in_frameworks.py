"""Distributed training with the frameworks that PyPI has now: `make test-frameworks`, which installs them beside us."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.applications import BIN, run
from tests.end_to_end.frameworks.test_frameworks import alone, losses, workspace
from tests.end_to_end.test_applications import END_S, id_of, printed
from tests.engines import Engine

pytest.importorskip("tensorflow")
pytest.importorskip("torch")
QUIET = "env.TF_CPP_MIN_LOG_LEVEL=2\n"
FEED = Path(__file__).parents[3] / "examples" / "feed"
MXNET = Path(sys.prefix, "mxnet")
"""Where the last MXNet is, with the NumPy that it needs: older than that of the others."""


def application(place: Path, engine: Engine, text: str, *, has_output: bool = True) -> Path:
    """Write a properties file whose programs have this Python, and whose output is called ``out``."""
    (place / "f.properties").write_text(
        f"[application]\nappname=digits\nuser_dev_workspace_path=w\nenv.PATH={BIN}:/usr/bin:/bin\n{text}"
        + (f"[to_hdfs]\noutput_path=output\nhdfs={engine.root}/out\n" if has_output else "")
    )
    return place / "f.properties"


def trained(file: Path) -> str:
    """Run it to its good end, and return its id."""
    done = run("dlapp-launcher", "--wait", file, timeout_s=2 * END_S)
    assert done.code == 0, "\n".join((done.err, done.out, *printed("--stderr", id_of(done))))
    return id_of(done)


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine that is large enough for all containers."""
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "8")


def test_two_tensorflow_workers_train_the_same_model_as_one(engine: Engine, tmp_path: Path) -> None:
    workspace(tmp_path, "tensorflow")
    found = []
    for workers in (1, 2):
        text = f"user_shell_script=mirrored.py\nuser_shell_args=--epochs 3\nframework=tensorflow\n{QUIET}"
        trained(application(tmp_path, engine, f"{text}[resources]\nmemory=1500m\ngcores=0\ncontainers={workers}\n"))
        found.append(losses(engine, "out"))
        engine.remove("out")
    assert found[1] == pytest.approx(found[0], rel=1e-3)
    assert found[1][-1] < found[1][0]


def test_parameter_servers_and_workers_of_tensorflow_end_with_their_chief(engine: Engine, tmp_path: Path) -> None:
    workspace(tmp_path, "tensorflow")
    text = f"user_shell_script=parameter_server.py\nuser_shell_args=--epochs 5\nframework=tensorflow\n{QUIET}"
    roles = "[role chief]\n[role worker]\ninstances=2\n[role ps]\n"
    trained(application(tmp_path, engine, f"{text}[resources]\nmemory=1g\ngcores=0\n{roles}"))
    found = losses(engine, "out")
    assert found[-1] < found[0] / 2


@pytest.mark.parametrize("framework", ["pytorch", "torchrun"])
def test_two_pytorch_containers_train_the_same_model_as_one_process(
    engine: Engine, tmp_path: Path, framework: str
) -> None:
    workspace(tmp_path, "pytorch")
    text = f"user_shell_script=train.py\nuser_shell_args=--epochs 3\nframework={framework}\n"
    text += "env.PET_NPROC_PER_NODE=2\n" if framework == "torchrun" else ""
    trained(application(tmp_path, engine, f"{text}[resources]\nmemory=2500m\ngcores=0\ncontainers=2\n"))
    assert losses(engine, "out") == pytest.approx(alone(tmp_path, 3, sys.executable), abs=1e-9)


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
def test_two_containers_learn_from_a_feed_of_which_each_reads_a_half(
    engine: Engine, tmp_path: Path, framework: str
) -> None:
    subprocess.run([sys.executable, FEED / "make_records.py"], check=True)
    shutil.copytree(FEED / "workspace", tmp_path / "w")
    for path in (FEED / "records").iterdir():
        engine.put(f"records/{path.name}", path.read_bytes())
    text = f"user_shell_script=train_{framework}.py\n{QUIET}[resources]\nmemory=1500m\ngcores=0\ncontainers=2\n"
    text += f"[from_hdfs]\nhdfs={engine.root}/records/*.tar\ninput_path=digits\nmode=feed\n"
    text += "feed.format=tar\nfeed.epochs=3\nfeed.shuffle=1\n"
    trained(application(tmp_path, engine, text))
    found = [message.split() for message in engine.tree("out").values()]
    assert len(found) == 2
    assert sum(int(seen) for seen, _ in found) == 3 * 1797
    assert all(float(loss) < 1.2 for _, loss in found)


ADD = """\
import mxnet  # in a scheduler or server it returns only when the workers have ended

store = mxnet.kv.create("dist_sync")
start = mxnet.nd.zeros((2, 3))
store.init(7, start)
for step in range(1, 4):
    store.push(7, mxnet.nd.ones((2, 3)) * step * (store.rank + 1))
    store.pull(7, out=start)
    print("step", step, "sum", start.asnumpy().tolist()[0][0], "of", store.num_workers)
"""


def test_workers_of_dmlc_add_up_on_the_servers_of_a_real_ps_lite(engine: Engine, tmp_path: Path) -> None:
    if not (MXNET / "mxnet").is_dir():
        pytest.skip("no MXNet: its last release needs NumPy before 1.24, which Python 3.12 does not have")
    (tmp_path / "w").mkdir()
    (tmp_path / "w/add.py").write_text(ADD)
    (tmp_path / "w/run.sh").write_text(f"#!/bin/sh\nPYTHONPATH={MXNET} exec {sys.executable} add.py\n")
    (tmp_path / "w/run.sh").chmod(0o755)
    text = "user_shell_script=run.sh\nframework=dmlc\n[resources]\nmemory=800m\ngcores=0\n"
    text += "[role scheduler]\n[role server]\ninstances=2\n[role worker]\ninstances=2\n"
    application_id = trained(application(tmp_path, engine, text, has_output=False))
    for index in range(2):
        output = printed("--container", f"worker_{index}", "--stdout", application_id)
        assert output == [f"step {step} sum {3.0 * step} of 2" for step in range(1, 4)]
