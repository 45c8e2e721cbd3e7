"""DistributedDataParallel of examples/distributed through dlapp, against torchrun typed by hand.

ddp-overhead    two containers with one process each, from the start of dlapp-launcher --wait to its end, against two
                torchruns of the same program on the same machine

Both have the same threads for each process, and Debian's PyTorch. Nothing else is queued, so no time is subtracted.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import time
from pathlib import Path

from bench import Row, alternately, median_ratio
from bench._throwaway import command, own_state
from tests.services.install import TORCH
from tests.services.ports import held

NEEDS = (TORCH,)
ROUNDS = int(os.environ.get("DLAPP_BENCH_ROUNDS", "2"))
EPOCHS = 1500
EXAMPLES = Path(__file__).parent.parent / "examples"
PYTHON_PATH = "/usr/bin:/bin"
# Debian's PyTorch 1.13 fails on Python 3.11 unless what is redirected is named by its rank.
VARIABLES = {"PET_REDIRECTS": "9:1", "PET_TEE": "9:1", "OMP_NUM_THREADS": "1"}


def rows() -> list[Row]:
    """Measure it."""
    with own_state() as (state, environment):
        workspace = state / "w"
        shutil.copytree(EXAMPLES / "distributed/pytorch", workspace)
        (workspace / "data").mkdir()
        shutil.copy(EXAMPLES / "digits/data/digits.csv.gz", workspace / "data")
        file = state / "ddp.properties"
        variables = "".join(f"env.{name}={value}\n" for name, value in VARIABLES.items())
        file.write_text(
            "[application]\nappname=ddp\nuser_dev_workspace_path=w\nuser_shell_script=train.py\n"
            f"user_shell_args=--epochs {EPOCHS}\nframework=torchrun\nenv.PATH={PYTHON_PATH}\n{variables}"
            "[resources]\ncontainers=2\nmemory=1g\ngcores=0\n"
        )
        ours, by_hand = alternately(
            [lambda: through_dlapp(environment, file), lambda: typed_by_hand(workspace)], ROUNDS
        )
    return [
        Row(
            name="ddp-overhead",
            ratio=median_ratio(ours, by_hand),
            goal=1.05,
            better="lower",
            conditions={
                "s": statistics.median(ours),
                "torchrun_s": statistics.median(by_hand),
                "processes": 2,
                "epochs": EPOCHS,
                "runs": ROUNDS,
            },
        )
    ]


def through_dlapp(environment: dict[str, str], file: Path) -> float:
    """Return how long a run through dlapp takes [s]."""
    began = time.perf_counter()
    command(environment, "dlapp-launcher", "--wait", str(file))
    return time.perf_counter() - began


def typed_by_hand(workspace: Path) -> float:
    """Return how long the same run takes with two torchruns [s]."""
    port, sockets = held()
    for each in sockets:
        each.close()
    began = time.perf_counter()
    nodes = [
        subprocess.Popen(
            [
                *("torchrun", "--nnodes=2", "--nproc_per_node=1", f"--node_rank={rank}", "--master_addr=127.0.0.1"),
                *(f"--master_port={port}", "train.py", "--epochs", str(EPOCHS)),
            ],
            cwd=workspace,
            env={"PATH": PYTHON_PATH, "HOME": str(workspace), "PYTHONUNBUFFERED": "1", **VARIABLES},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    codes = [node.wait() for node in nodes]
    if codes != [0, 0]:
        raise SystemExit(f"Error: torchrun ended with exit codes {codes}")
    return time.perf_counter() - began
