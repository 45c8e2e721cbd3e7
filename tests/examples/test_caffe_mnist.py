"""The scripts of examples/caffe_mnist, without Caffe; `make test-images` runs the example for real."""

from __future__ import annotations

import gzip
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "caffe_mnist"
FILES = [f"{part}-ubyte" for part in ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")]
ECHO = '#!/bin/sh\necho "${0##*/}: $*" | sed "s|$TMPDIR/[^/]*/|TMP/|g"\n[ "$1" != -backend ] || cat "$3" "$4"\n'

pytestmark = pytest.mark.skipif(
    shutil.which("bash") is None, reason="no bash (the example's scripts are written in it)"
)


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the workspace, with programs in place of Caffe's that print what they are asked for."""
    shutil.copytree(EXAMPLE / "user_dev_workspace", tmp_path / "workspace")
    (tmp_path / "bin").mkdir()
    for name in ("caffe", "convert_mnist_data"):
        (tmp_path / "bin" / name).write_text(ECHO)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path / "workspace"


def run(workspace: Path, *command: str, gpus: str = "") -> subprocess.CompletedProcess[str]:
    (workspace.parent / "tmp").mkdir(exist_ok=True)
    path = f"{workspace.parent}/bin{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "NV_GPU": gpus, "PATH": path, "TMPDIR": f"{workspace.parent}/tmp"}
    return subprocess.run(command, cwd=workspace, env=environment, capture_output=True, text=True, timeout=300)


def test_leased_gpus_are_passed_to_caffe_as_configured(workspace: Path) -> None:
    done = run(workspace, "./train_lenet.sh", "-gpu", "all", gpus="0,3")
    assert done.stdout.splitlines() == [
        "training on GPU 0,3 of this host",
        "caffe: train --solver=lenet_solver.prototxt -gpu all",
    ]


@pytest.mark.parametrize("words", [["-gpu", "all"], ["--gpu", "0,3"], ["-gpu=all"], ["--gpu=0"], ["-gpu"], []])
def test_without_gpus_the_cpu_trains_and_the_other_options_stay(workspace: Path, words: list[str]) -> None:
    done = run(workspace, "./train_lenet.sh", "-weights", "a b.caffemodel", *words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "no GPU was granted: training on the CPU",
        "caffe: train --solver=lenet_solver.prototxt -weights a b.caffemodel",
    ]


def test_the_start_script_makes_both_databases_and_trains_and_leaves_its_input_as_it_was(workspace: Path) -> None:
    for name in FILES[1:]:
        (workspace / "data" / f"{name}.gz").write_bytes(gzip.compress(f"<{name}>\n".encode()))
    (workspace / "data" / FILES[0]).write_text(f"<{FILES[0]}>\n")
    before = sorted((workspace / "data").iterdir())
    done = run(workspace, "./dl_app_start.sh", "-gpu", "all", gpus="1")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        f"convert_mnist_data: -backend lmdb TMP/{FILES[0]} TMP/{FILES[1]} examples/mnist_train_lmdb",
        f"<{FILES[0]}>",
        f"<{FILES[1]}>",
        "examples/mnist_train_lmdb is made",
        f"convert_mnist_data: -backend lmdb TMP/{FILES[2]} TMP/{FILES[3]} examples/mnist_test_lmdb",
        f"<{FILES[2]}>",
        f"<{FILES[3]}>",
        "examples/mnist_test_lmdb is made",
        "training on GPU 1 of this host",
        "caffe: train --solver=lenet_solver.prototxt -gpu all",
    ]
    assert sorted((workspace / "data").iterdir()) == before
    assert not list((workspace.parent / "tmp").iterdir())


def test_the_network_reads_the_databases_that_the_script_makes(workspace: Path) -> None:
    network = (workspace / "lenet_train_test.prototxt").read_text(encoding="utf-8")
    assert re.findall(r'source: "(.*?)"', network) == ["examples/mnist_train_lmdb", "examples/mnist_test_lmdb"]


def test_missing_data_end_the_run_with_one_line_that_names_the_file(workspace: Path) -> None:
    (workspace / "data" / FILES[0]).touch()
    done = run(workspace, "./dl_app_start.sh", "-gpu", "all")
    assert done.returncode == 1
    assert done.stdout == ""
    assert done.stderr == (
        f"Error: neither data/{FILES[1]} nor data/{FILES[1]}.gz is there; does [from_hdfs] bring MNIST's four files?\n"
    )
