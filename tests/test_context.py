"""The module that payloads import, on old versions of Python too, and outside of dlapp."""

from __future__ import annotations

import ast
import glob
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp import context

SOURCE = Path(context.__file__)
PYTHONS = sorted(
    {os.path.realpath(path) for path in glob.glob(os.path.expanduser("~/.pyenv/versions/3.*/bin/python3"))}
)
PROGRAM = """
import dlapp_context as c
assert c.roster() == ROSTER, c.roster()
c.progress(0.5)
c.progress(7)
c.progress(float("nan"))
c.metrics(step=3, loss=0.25, bad=float("inf"))
c.metrics(**{"val/loss": 1})
c.ready()
c.checkpoint("models/3")
assert c.should_stop() is STOPS
assert c.resume_from() == RESUME
"""


def test_the_file_is_valid_for_python_3_6_and_imports_only_the_standard_library() -> None:
    tree = ast.parse(SOURCE.read_text(encoding="utf-8"), feature_version=(3, 6))
    imported = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    imported |= {str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    feed = ast.parse(Path(SOURCE.parent, "feed.py").read_text(encoding="utf-8"), feature_version=(3, 6))
    assert not [node for node in ast.walk(feed) if isinstance(node, ast.ImportFrom) and node.module == "__future__"]
    assert imported == {"importlib", "json", "math", "os", "sys", "typing", "warnings"}


def run(directory: Path, python: str, env: dict[str, str], **names: object) -> None:
    shutil.copy(SOURCE, directory / "dlapp_context.py")
    text = "".join(f"{name} = {value!r}\n" for name, value in names.items()) + PROGRAM
    done = subprocess.run(
        [python, "-S", "-W", "error", "-c", text],
        env={"PYTHONPATH": str(directory), **env},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS])
def test_programs_of_each_python_that_is_here_report_and_learn(tmp_path: Path, python: str) -> None:
    (tmp_path / "roster").write_text('{"generation": 0, "members": []}')
    (tmp_path / "report").touch()
    (tmp_path / "stop").touch()
    names = ("ROSTER", "REPORT", "STOP")
    env = {f"DLAPP_{name}": str(tmp_path / name.lower()) for name in names} | {"DLAPP_RESUME_FROM": "/old"}
    run(tmp_path, python, env, ROSTER={"generation": 0, "members": []}, STOPS=True, RESUME="/old")
    assert [json.loads(line) for line in (tmp_path / "report").read_text().splitlines()] == [
        {"progress": 0.5},
        {"progress": 1.0},
        {"metrics": {"loss": 0.25}, "step": 3},
        {"metrics": {"val/loss": 1.0}},
        {"ready": True},
        {"checkpoint": "models/3"},
    ]


@pytest.mark.parametrize("python", [sys.executable, *PYTHONS[:1]])
def test_outside_of_dlapp_the_context_has_no_effect(tmp_path: Path, python: str) -> None:
    run(tmp_path, python, {}, ROSTER=None, STOPS=False, RESUME=None)


def test_a_report_that_cannot_be_written_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DLAPP_REPORT", str(tmp_path / "gone" / "report"))
    with pytest.warns(RuntimeWarning, match="dlapp did not get the report"):
        context.progress(0.5)
