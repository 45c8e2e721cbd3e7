"""The program in a notebook's container starts JupyterLab, says when it answers, and gathers what was changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dlapp.runtime import notebook_program
from tests.applications import wait_for
from tests.services.http import fake_jupyter

PROGRAM = notebook_program.__file__


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    place = tmp_path / "workspace"
    for name in ("data/set", "notes/a.ipynb", "b.py"):
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text("packed")
    # What the workspace has under the name of a module of Python's is not imported.
    (place / "json.py").write_text("raise SystemExit(99)")
    return place


def start(workspace: Path, *, path: str, **env: str) -> subprocess.Popen[str]:
    place = workspace.parent
    (place / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, PROGRAM, "--idle", "600", "--grace", "60", "--save", "saved", "--without", "data"],
        cwd=workspace,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": path,
            "TMPDIR": str(place / "tmp"),
            "DLAPP_REPORT": str(place / "report"),
            "JUPYTER_TOKEN": "hush",
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def saved(workspace: Path) -> dict[str, str]:
    found = (workspace / "saved").rglob("*")
    return {str(one.relative_to(workspace / "saved")): one.read_text() for one in found if one.is_file()}


def test_it_reports_the_port_and_sigterm_gathers_new_and_changed_files(workspace: Path, tmp_path: Path) -> None:
    path = fake_jupyter.install(tmp_path / "python")
    names = "notes/a.ipynb new/c.py data/more __pycache__/x.pyc notes/.ipynb_checkpoints/a.ipynb"
    with start(workspace, path=path, TO_WRITE=names) as program:
        wait_for("its report", lambda: (tmp_path / "report").exists() and (tmp_path / "report").read_text(), 120)
        reported = json.loads((tmp_path / "report").read_text())
        assert reported["ready"] is True
        assert reported["metrics"]["port"] > 0
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate()
    assert program.returncode == 0, err
    assert saved(workspace) == {"notes/a.ipynb": "of the notebook", "new/c.py": "of the notebook"}
    assert "2 new or changed files" in err
    assert "hush" not in out
    assert "--ServerApp.ip=127.0.0.1" in out
    assert "--ServerApp.shutdown_no_activity_timeout=600 --MappingKernelManager.cull_idle_timeout=600" in out


def test_a_jupyterlab_that_fails_has_its_exit_code_and_its_files_are_gathered(workspace: Path, tmp_path: Path) -> None:
    path = fake_jupyter.install(tmp_path / "python")
    with start(workspace, path=path, TO_WRITE="b.py", FAILS="yes") as program:
        _, err = program.communicate()
    assert program.returncode == 7, err
    assert saved(workspace) == {"b.py": "of the notebook"}
    assert not (tmp_path / "report").exists()


def test_without_jupyterlab_it_says_so_in_one_line(workspace: Path) -> None:
    with start(workspace, path="") as program:
        _, err = program.communicate()
    assert program.returncode == notebook_program.NO_JUPYTER
    assert err == (
        f"dlapp-notebook: there is no JupyterLab for {sys.executable} here: pip install jupyterlab, in the image "
        "or for the Python that is first on PATH\n"
    )
