"""Unmodified programs of PyTorch Lightning, transformers, accelerate, XGBoost, JAX and torchrun by hand:
`make test-frameworks`.

The programs are those of examples/frameworks: they write where their libraries write by default, and know nothing of
dlapp.
"""

from __future__ import annotations

import re
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.applications import BIN, ended, run, wait_for
from tests.end_to_end.data.test_checkpoints import numbers
from tests.end_to_end.test_applications import END_S, id_of, printed
from tests.engines import Engine

EXAMPLES = Path(__file__).parents[3] / "examples" / "frameworks"
LIBRARIES = ("lightning", "transformers", "accelerate", "jax", "xgboost")
if missing := [library for library in LIBRARIES if find_spec(library) is None]:
    pytest.skip(f"no {', '.join(missing)}: make test-frameworks installs them", allow_module_level=True)


VARIABLES = ("--env", f"PATH={BIN}:/usr/bin:/bin", "--env", "HF_HUB_OFFLINE=1", "--env", "JAX_PLATFORMS=cpu")


@pytest.fixture(autouse=True)
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this a machine that is large enough for all containers."""
    monkeypatch.setenv("DLAPP_LOCAL_VCORES", "8")


def options(engine: Engine, name: str, *more: str) -> tuple[str, ...]:
    """Return what the launcher needs in addition to the file of an example: this Python, and a place of the test."""
    given = [*VARIABLES, "--set", f"to_hdfs.hdfs={engine.root}/{name}"]
    for item in more:
        given += ["--set", item]
    return tuple(given)


def example(place: Path, name: str) -> Path:
    shutil.copytree(EXAMPLES, place / "frameworks")
    return place / "frameworks" / f"{name}.properties"


def trained(*command: object) -> str:
    """Launch an application, wait for its good end, and return its id."""
    done = run("dlapp-launcher", "--wait", *command, timeout_s=2 * END_S)
    assert "DL App ID" in done.out, done.err
    assert done.code == 0, "\n".join((done.err, done.out, *printed("--stderr", id_of(done))))
    return id_of(done)


def ranks(application_id: str, containers: int) -> list[str]:
    """Return the lines of all ranks, in their order."""
    found: list[str] = []
    for index in range(containers):
        lines = printed("--stdout", "--container", str(index), application_id)
        found += [line for line in lines if re.match(r"rank \d", line)]
    return sorted(found)


LEARNED = {
    "lightning": ("weight 3.0 from None", r"version_0/checkpoints/epoch=19-step=\d+\.ckpt$"),
    "transformers": ("steps 8 from None", r"checkpoint-8/model\.safetensors$"),
    "accelerate": ("weight 3.0 from None", r"019/model\.safetensors$"),
    "jax": ("weight 3.0 from None", r"state\.npz$"),
    "xgboost": ("value 2.5", r"model\.json$"),
}
OTHER_FRAMEWORKS = [
    ("lightning", "torchrun"),
    ("lightning", "jax"),
    ("transformers", "torchrun"),
    ("accelerate", "torchrun"),
    ("accelerate", "jax"),
    ("xgboost", "torchrun"),
]


@pytest.mark.parametrize("containers", [1, 2])
@pytest.mark.parametrize("name", LEARNED)
def test_an_example_learns_in_one_container_and_in_two(
    engine: Engine, tmp_path: Path, name: str, containers: int
) -> None:
    nodes = ("--", "--nodes", str(containers)) if name == "lightning" else ()
    given = options(engine, name, f"resources.containers={containers}")
    result, file = LEARNED[name]
    results = ranks(trained(*given, example(tmp_path, name), *nodes), containers)
    assert results == [f"rank {n} of {containers} {result}" for n in range(containers)]
    # One rank writes it, in the directory where its library does by default.
    assert sum(re.search(file, item) is not None for item in engine.tree(name)) == 1


@pytest.mark.parametrize(("name", "framework"), OTHER_FRAMEWORKS)
def test_the_choice_of_the_framework_matters_little(engine: Engine, tmp_path: Path, name: str, framework: str) -> None:
    given = options(engine, name, f"application.framework={framework}")
    results = ranks(trained(*given, example(tmp_path, name)), 2)
    assert results == [f"rank {n} of 2 {LEARNED[name][0]}" for n in range(2)]


@pytest.mark.parametrize(
    ("name", "slow", "quick", "former"),
    [
        ("lightning", "--pause 15 --epochs 20", "--pause 0", r"lightning_logs/version_0/checkpoints/epoch=\d+.*\.ckpt"),
        ("transformers", "--pause 2 --steps 20", "--pause 0 --steps 8", r"out/checkpoint-\d+"),
        ("accelerate", "--pause 15 --epochs 20", "--pause 0", r"\d{3}"),
        ("jax", "--pause 15 --epochs 100", "--pause 0", r"out/state\.npz"),
    ],
)
def test_an_example_that_is_killed_continues(
    engine: Engine, tmp_path: Path, name: str, slow: str, quick: str, former: str
) -> None:
    file = example(tmp_path, name)
    given = options(engine, name, "checkpoint.every=1s", f"checkpoint.hdfs={engine.root}/kept/result.checkpoints")
    engine.put("kept/result/else", "")
    killed = id_of(run("dlapp-launcher", *given, file, "--", *slow.split(), timeout_s=END_S))
    wait_for("a checkpoint", lambda: numbers(engine, killed), 2 * END_S)
    assert run("dlapp-kill", killed).code == 0
    ended(killed, END_S)
    results = ranks(trained(*VARIABLES, "--resume", killed, "--", *quick.split()), 2)
    assert len(results) == 2
    for n, line in enumerate(results):
        assert re.fullmatch(f"rank {n} of 2 (weight 3.0|steps \\d+) from {former}", line), results


NO_ARGUMENTS = "import jax; jax.distributed.initialize(); print('rank', jax.process_index(), 'of', jax.process_count())"


def test_jax_alone_reads_no_number_of_processes(engine: Engine, tmp_path: Path) -> None:
    """If this fails, JAX reads the variables itself, and `dlapp.runtime.jax_cluster` has become unneeded."""
    for framework, expected in (("pytorch", 1), ("jax", 0)):
        file = application(tmp_path, engine, NO_ARGUMENTS, f"command=python3 train.py\nframework={framework}\n")
        done = run("dlapp-launcher", "--wait", file, timeout_s=END_S)
        assert done.code == expected
        if expected:
            assert "Number of processes must be defined" in "\n".join(printed("--stderr", id_of(done)))
        else:
            assert ranks(id_of(done), 2) == ["rank 0 of 2", "rank 1 of 2"]


def application(place: Path, engine: Engine, program: str, text: str) -> Path:
    """Write a program as train.py, and a properties file that runs it in two containers with this Python."""
    (place / "w").mkdir(exist_ok=True)
    (place / "w/train.py").write_text(program)
    (place / "f.properties").write_text(
        f"[application]\nappname=trainer\nuser_dev_workspace_path=w\nenv.PATH={BIN}:/usr/bin:/bin\n"
        f"env.JAX_PLATFORMS=cpu\n{text}[resources]\nmemory=2g\ngcores=0\ncontainers=2\n"
    )
    return place / "f.properties"


DDP = """\
import sys, torch, torch.distributed as dist

dist.init_process_group("gloo")
total = torch.tensor([dist.get_rank() + 1.0])
dist.all_reduce(total)
# At once: the processes of a container have one stdout.
sys.stdout.write(f"rank {dist.get_rank()} of {dist.get_world_size()} sum {total.item()}\\n")
dist.destroy_process_group()
"""
STATIC = "torchrun --nnodes=2 --node-rank=$NODE_RANK --master-addr=$MASTER_ADDR --master-port=$MASTER_PORT"
C10D = "torchrun --nnodes=2 --rdzv-backend=c10d --rdzv-endpoint=$MASTER_ADDR:$MASTER_PORT"
BY_HAND = {
    "static": f"{STATIC} --nproc-per-node=2",
    "c10d": f"{C10D} --nproc-per-node=2 --rdzv-id=$DLAPP_APP_ID --rdzv-conf=is_host=$((NODE_RANK == 0))",
    "c10d, found": f"{C10D} --nproc-per-node=2 --rdzv-id=$DLAPP_APP_ID",
}


@pytest.mark.parametrize("framework", ["pytorch", "torchrun"])
@pytest.mark.parametrize("how", BY_HAND)
def test_torchrun_by_hand_finds_its_other_nodes(engine: Engine, tmp_path: Path, framework: str, how: str) -> None:
    text = f"user_shell_script=run.sh\nframework={framework}\n"
    file = application(tmp_path, engine, DDP, text)
    (tmp_path / "w/run.sh").write_text(f"exec {BY_HAND[how]} train.py\n")
    assert ranks(trained(file), 2) == [f"rank {n} of 4 sum 10.0" for n in range(4)]


ACROSS = (
    "accelerate launch --num_machines $WORLD_SIZE --num_processes $WORLD_SIZE --machine_rank $NODE_RANK "
    "--main_process_ip $MASTER_ADDR --main_process_port $MASTER_PORT --cpu train.py"
)


@pytest.mark.parametrize("framework", ["pytorch", "torchrun"])
def test_accelerate_reads_the_hosts_from_its_options(engine: Engine, tmp_path: Path, framework: str) -> None:
    program = (EXAMPLES / "programs/train_accelerate.py").read_text()
    file = application(tmp_path, engine, program, f"user_shell_script=run.sh\nframework={framework}\n")
    (tmp_path / "w/run.sh").write_text(f"exec {ACROSS}\n")
    assert ranks(trained(file), 2) == [f"rank {n} of 2 weight 3.0 from None" for n in range(2)]
