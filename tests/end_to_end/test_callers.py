"""Limits, priority and CPUs of a command reach its own application, and no other one."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from tests.applications import BIN, properties, run, wait_for
from tests.end_to_end.test_applications import END_S, printed
from tests.engines import Engine

LINES = "nproc; nice; for kind in v n c s u; do ulimit -S$kind; done"
SHOW = f"bash -c '{LINES}'"
SHELL_SETTINGS = "ulimit -Sv 4000000; ulimit -Sn 333; ulimit -Sc 0; ulimit -Ss 4096; ulimit -Su 3000"

pytestmark = pytest.mark.parametrize("engine", ["local"], indirect=True)


def shown_here() -> list[str]:
    return subprocess.run(["bash", "-c", LINES], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="no two CPUs")
def test_limits_priority_and_cpus_of_the_starting_command_do_not_spread(engine: Engine, tmp_path: Path) -> None:
    cpu = min(os.sched_getaffinity(0))
    first = properties(
        tmp_path, f"{SHOW}; until [ -e {tmp_path}/go ]; do sleep 0.05; done", name="first", resources={"vcores": 1}
    )
    command = f"{SHELL_SETTINGS}; exec taskset -c {cpu} nice -n 7 {BIN}/dlapp-launcher {first}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    application = next(word for word in done.stdout.split() if word.startswith("application_"))
    wait_for("its lines", lambda: len(printed("--stdout", application)) == 7)
    assert printed("--stdout", application) == [
        f"[0] {value}" for value in ("1", "7", "4000000", "333", "0", "4096", "3000")
    ]

    second = properties(tmp_path, SHOW, name="second", resources={"vcores": 2})
    done2 = run("dlapp-launcher", "--wait", second, timeout_s=END_S)
    assert done2.code == 0, done2.err
    here = shown_here()
    if os.geteuid() != 0:
        here[1] = "7"  # only root may lower the nice value of the runner again
    assert printed("--stdout") == [f"[0] {item}" for item in here]
    (tmp_path / "go").touch()
    assert run("dlapp-logs", "-f", application, timeout_s=END_S).code == 0


def test_vcores_of_the_machine_do_not_depend_on_the_cpus_of_a_command(engine: Engine, tmp_path: Path) -> None:
    file = properties(tmp_path, "true", resources={"vcores": 3})
    cpu = min(os.sched_getaffinity(0))
    done = subprocess.run(
        ["taskset", "-c", str(cpu), BIN / "dlapp-launcher", "--wait", file], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_limits_of_time_and_of_file_sizes_do_not_end_the_task(engine: Engine, tmp_path: Path) -> None:
    file = properties(
        tmp_path,
        "mkdir output; ulimit -Sf unlimited; head -c 3000000 /dev/zero >output/large",
        to_hdfs={"output_path": "output", "hdfs": f"{engine.root}/result"},
    )
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    assert hard == resource.RLIM_INFINITY
    done = subprocess.run(
        ["bash", "-c", f"ulimit -Sf 1000; exec {BIN}/dlapp-launcher --wait {file}"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert (Path(engine.root) / "result" / "large").stat().st_size == 3_000_000
