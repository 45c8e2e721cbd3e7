"""The program in a notebook's container starts JupyterLab, says when it answers, and gathers what was changed."""

from __future__ import annotations

import json
import os
import re
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


def start(workspace: Path, *options: str, path: str, **env: str) -> subprocess.Popen[str]:
    place = workspace.parent
    (place / "tmp").mkdir(exist_ok=True)
    return subprocess.Popen(
        [sys.executable, PROGRAM, "--idle", "600", "--grace", "60", "--save", "saved", "--without", "data", *options],
        cwd=workspace,
        env={
            "PATH": os.environ["PATH"],
            "PYTHONPATH": path,
            "TMPDIR": str(place / "tmp"),
            "DLAPP_REPORT": str(place / "report"),
            "JUPYTER_TOKEN": "hush",
            "HOME": str(place),
            **env,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def saved(workspace: Path) -> dict[str, str]:
    found = (workspace / "saved").rglob("*")
    return {str(path.relative_to(workspace / "saved")): path.read_text() for path in found if path.is_file()}


def test_the_program_reports_its_port_and_sigterm_collects_changed_files(workspace: Path, tmp_path: Path) -> None:
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


def test_without_jupyterlab_the_program_fails_with_one_line(workspace: Path) -> None:
    with start(workspace, path="") as program:
        _, err = program.communicate()
    assert program.returncode == notebook_program.NO_JUPYTER
    assert err == (
        f"dlapp-notebook: there is no JupyterLab for {sys.executable} here: pip install jupyterlab, in the image "
        "or for the Python that is first on PATH\n"
    )


CONFIGURATIONS = [
    ("jupyter_server_config.py", 'c.ServerApp.base_url = "/lab1/"'),
    ("jupyter_server_config.py", 'c.ServerApp.certfile = "/c.pem"; c.ServerApp.keyfile = "/k.pem"'),
    ("jupyter_server_config.py", 'c.IdentityProvider.token = "mine"'),
    ("jupyter_server_config.json", '{"ServerApp": {"sock": "/tmp/j.sock"}}'),
    ("jupyter_server_config.py", 'c.PasswordIdentityProvider.hashed_password = "argon2:x"'),
    ("jupyter_server_config.json", '{"PasswordIdentityProvider": {"token": "mine"}}'),
    ("jupyter_lab_config.py", 'c.ServerApp.ip = "192.0.2.1"; c.ServerApp.port = 1'),
    ("jupyter_lab_config.json", '{"IdentityProvider": {"token": "mine"}, "ServerApp": {"base_url": "/x/"}}'),
    ("jupyter_config.py", 'c.ServerApp.root_dir = "/"; c.ServerApp.token = "mine"'),
]


@pytest.mark.parametrize(("name", "text"), CONFIGURATIONS)
@pytest.mark.parametrize("variable", ["HOME", "JUPYTER_CONFIG_DIR", "JUPYTER_CONFIG_PATH"])
def test_a_configuration_of_the_user_does_not_keep_the_notebook_from_its_address_and_token(
    workspace: Path, tmp_path: Path, name: str, text: str, variable: str
) -> None:
    directory = tmp_path / ".jupyter"
    directory.mkdir()
    (directory / name).write_text(f"{text}\n")
    path = fake_jupyter.install(tmp_path / "python")
    place = tmp_path if variable == "HOME" else directory
    with start(workspace, path=path, **{variable: str(place)}) as program:
        wait_for("its report", lambda: (tmp_path / "report").exists() and (tmp_path / "report").read_text(), 120)
        program.send_signal(signal.SIGTERM)
        out, err = program.communicate()
    assert program.returncode == 0, err
    assert "hush" not in out


def test_the_token_is_in_files_that_only_the_user_can_read(workspace: Path, tmp_path: Path) -> None:
    with start(workspace, path=fake_jupyter.install(tmp_path / "python")) as program:
        wait_for("its report", lambda: (tmp_path / "report").exists() and (tmp_path / "report").read_text(), 120)
        program.send_signal(signal.SIGTERM)
        program.communicate()
    files = [*(tmp_path / "tmp/jupyter/config").iterdir()]
    assert {file.stat().st_mode & 0o777 for file in files} == {0o600}
    assert all("hush" in file.read_text() for file in files)


@pytest.mark.parametrize(
    ("behaviour", "problem"),
    [
        ({"ANSWERS_BELOW": "/lab1/"}, "HTTP Error 404: Not Found"),
        ({"DENIES": "yes"}, "HTTP Error 403: Forbidden"),
        ({"SPEAKS_TLS": "yes"}, "no HTTP response, perhaps it speaks TLS"),
    ],
)
def test_a_jupyterlab_that_answers_otherwise_ends_with_its_answer(
    workspace: Path, tmp_path: Path, behaviour: dict[str, str], problem: str
) -> None:
    path = fake_jupyter.install(tmp_path / "python")
    with start(workspace, "--answer-within", "0.5", path=path, TO_WRITE="b.py", **behaviour) as program:
        _, err = program.communicate()
    assert program.returncode == notebook_program.NO_ANSWER
    (line,) = [line for line in err.splitlines() if "listens, but" in line]
    assert re.fullmatch(
        r"dlapp-notebook: JupyterLab listens, but GET http://127\.0\.0\.1:\d+/api/status has failed for 0\.5 s: "
        rf".*{re.escape(problem)}.*; see the configuration in ~/\.jupyter",
        line,
    )
    assert saved(workspace) == {"b.py": "of the notebook"}
    assert not (tmp_path / "report").exists()
