"""Notebooks with a stand-in for JupyterLab: brought to the terminal, ended, and their files stored and brought back.

Real JupyterLab is in tests/beside.
"""

from __future__ import annotations

import re
import signal
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.applications import BIN, ended, properties, run, status, wait_for
from tests.engines import Engine, on_yarn_when_full
from tests.services.containers.dockerd import Dockerd
from tests.services.containers.host_images import PYTHON_IMAGE, import_python_image
from tests.services.http import fake_jupyter
from tests.tools.terminal import Terminal


def notebook_file(place: Path, python: str, **application: str) -> Path:
    """Write a properties file whose JupyterLab, a stand-in, is in the workspace, and that is to change a file."""
    file = properties(place, "true", application={"env.TO_WRITE": "a.ipynb", "env.PYTHONPATH": python, **application})
    fake_jupyter.install(place / "test_workspace" / "python")
    (place / "test_workspace" / "a.ipynb").write_text("packed")
    return file


@contextmanager
def opened(*words: object) -> Iterator[tuple[subprocess.Popen[str], str, str]]:
    """Run dlapp-notebook; yield it, where JupyterLab is, and its token."""
    command = [str(BIN / "dlapp-notebook"), *map(str, words)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            line = program.stdout.readline()
            found = re.fullmatch(r"JupyterLab : (http://127\.0\.0\.1:\d+)/lab\?token=([0-9a-f]{48})\n", line)
            assert found, "".join((line, *program.communicate()))
            yield program, found[1], found[2]
        finally:
            program.kill()


def answer(url: str, token: str) -> int:
    request = urllib.request.Request(f"{url}/api/status", headers={"Authorization": f"token {token}"})
    try:
        with urllib.request.urlopen(request, timeout=120) as found:
            return int(found.status)
    except urllib.error.HTTPError as refused:
        return refused.code


def test_a_notebook_without_changes_succeeds_with_a_message(tmp_path: Path, state_dir: Path) -> None:
    python = str(tmp_path / "test_workspace" / "python")
    with opened(notebook_file(tmp_path, python, **{"env.TO_WRITE": ""})) as (program, url, token):
        assert answer(url, token) == 200
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=120)
    assert (program.returncode, out) == (0, ""), err
    assert err.endswith("no file is new or changed\n")


@on_yarn_when_full
def test_a_notebook_on_a_terminal_returns_its_files_at_ctrl_c(engine: Engine, tmp_path: Path) -> None:
    file = notebook_file(tmp_path, str(tmp_path / "test_workspace" / "python"))
    with opened(file) as (program, url, token):
        assert (answer(url, token), answer(url, "wrong")) == (200, 403)
        application = run("dlapp-list", "-o", "id").out.split()[-1]
        assert token not in run("dlapp-status", "--json", application).out
        assert not [process for process in engine.processes(application) if token in process.command]
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=120)
    assert program.returncode == 0, err
    assert re.match(r"saved : \S+\n\* a\.ipynb\n\Z", out), (out, err)
    assert (tmp_path / "test_workspace" / "a.ipynb").read_text() == "of the notebook"
    end = ended(application)
    assert (end["cause"], end["tags"], end["outputs"][0]["committed"]) == ("soft-killed", ["notebook"], True)


@pytest.mark.slow
def test_on_a_terminal_ctrl_c_asks_once_and_keeps_concurrent_changes(tmp_path: Path, state_dir: Path) -> None:
    file = notebook_file(tmp_path, str(tmp_path / "test_workspace" / "python"))
    with Terminal("dlapp-notebook", file) as terminal:
        terminal.expect("Ctrl-C ends it and brings its files back.", timeout_s=120)
        terminal.type("\x03")
        terminal.expect(r"\[Y/n\]", timeout_s=120)
        terminal.type("n\n")
        terminal.expect("Ctrl-C ends it and brings its files back.", timeout_s=120)
        application = run("dlapp-list", "-o", "id").out.split()[-1]
        assert status(application)["state"] == "RUNNING"
        (tmp_path / "test_workspace" / "a.ipynb").write_text("of the user")
        terminal.type("\x03")
        terminal.expect(r"\[Y/n\]", timeout_s=120)
        terminal.type("\n")
        assert terminal.wait(120) == 0
    assert "a.ipynb was changed here, too, and is kept" in terminal.text
    assert (tmp_path / "test_workspace" / "a.ipynb").read_text() == "of the user"


@pytest.mark.docker
@pytest.mark.slow
def test_a_notebook_in_docker_without_a_network_continues_without_its_command(
    dockerd: Dockerd, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    import_python_image(dockerd)
    file = notebook_file(tmp_path, "/workspace/python", docker_image=PYTHON_IMAGE, network="none")
    with opened(file, "--save", tmp_path / "saved") as (program, url, token):
        assert answer(url, token) == 200
        application = run("dlapp-list", "-o", "id").out.split()[-1]
        program.kill()
    assert status(application)["state"] == "RUNNING"
    assert run("dlapp-softkill", application).code == 0
    assert ended(application)["final_status"] == "KILLED"
    assert (tmp_path / "saved" / "a.ipynb").read_text() == "of the notebook"
    wait_for("no container", lambda: not dockerd.containers(f"label=dlapp.app={application}"))


def test_without_jupyterlab_a_notebook_fails_with_the_repair(tmp_path: Path, state_dir: Path) -> None:
    file = properties(tmp_path, "true")
    done = run("dlapp-notebook", "--detach", file)
    assert done.code == 1
    assert "why : JupyterLab is not installed where the notebook runs (jupyter_missing, fault: user)" in done.out
    assert "there is no JupyterLab for" in done.out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--max-idle", "1s"), "Error: --max-idle is 1 s, the minimum is 60 s"),
        (("--max-idle", "soon"), "Error: --max-idle 'soon' is not a duration"),
        (("--detach", "--port", "1"), "Error: --port is of no use with --detach"),
    ],
)
def test_an_option_that_cannot_be_meant_is_refused_before_anything_is_submitted(
    options: tuple[str, ...], message: str, tmp_path: Path, state_dir: Path
) -> None:
    done = run("dlapp-notebook", *options, properties(tmp_path, "true"))
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith(message)
