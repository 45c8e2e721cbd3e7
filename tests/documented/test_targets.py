"""The calls of make that are short run in a copy of the project."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.closes.copy import copy_tree
from tests.documented.table import read

CALLS = [row.what for row in read() if row.tier in ("test", "slow") and row.what.startswith("make ")]
MADE = ("dist/a", ".venv/a", "bench/results/a", ".cache/closes/a", "dlapp/__pycache__/a")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copy the project, with some of what its targets make."""
    directory = tmp_path_factory.mktemp("copy") / "dlapp"
    copy_tree(directory)
    for name in MADE:
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).touch()
    return directory


def make(tree: Path, call: str) -> str:
    inherited = {name: value for name, value in os.environ.items() if name not in ("VENV", "MAKEFLAGS", "MAKELEVEL")}
    done = subprocess.run(["sh", "-c", call], cwd=tree, env=inherited, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("call", CALLS)
def test_a_short_call_of_make_runs(call: str, tree: Path) -> None:
    out = make(tree, call)
    if call == "make help":
        assert "make nightly" in out
    if call == "make clean":
        assert [name for name in MADE if (tree / name).exists()] == []


def test_the_short_calls_are_those_that_are_checked_above() -> None:
    assert sorted(CALLS) == ["make clean", "make help"]
