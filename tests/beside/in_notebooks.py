"""JupyterLab as PyPI has it now, in Chromium through dlapp-port: `make test-beside`, which installs it beside us."""

from __future__ import annotations

import json
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from tests.applications import BIN, ended, properties, run, wait_for
from tests.end_to_end.test_notebooks import answer, opened
from tests.engines import Engine
from tests.services.containers.dockerd import Dockerd
from tests.services.containers.host_images import ENVIRONMENT_IMAGE, import_environment_image
from tests.services.http.browser import ANSWER_S, Browser

pytest.importorskip("jupyterlab")

CODE = 'import os\nopen("result", "w").write("of a kernel")\nprint("sum", 6 * 7)'
NOTEBOOK = {
    "cells": [
        {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": [], "source": [CODE]}
    ],
    "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
    "nbformat": 4,
    "nbformat_minor": 5,
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write a properties file of a workspace with a notebook of one cell, whose Python has JupyterLab."""
    return file_of(tmp_path)


def file_of(place: Path, **application: str) -> Path:
    """Write such a properties file, with more keys of the application."""
    found = properties(
        place, "true", application={"env.PATH": f"{BIN}:/usr/bin:/bin", **application}, resources={"memory": "1500m"}
    )
    (place / "test_workspace" / "a.ipynb").write_text(json.dumps(NOTEBOOK))
    return found


def wait_in_page(page: Browser, what: str, expression: str) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not page.value(expression):
        assert time.monotonic() < deadline, f"no {what} in the page: {page.text()[-2000:]}"
        time.sleep(0.1)


def execute_the_cell(browser: Browser, url: str, token: str) -> None:
    """Execute the notebook's cell in a browser, and wait for its output."""
    browser.open(f"{url}/lab/tree/a.ipynb?token={token}")
    cell = "document.querySelector('.jp-CodeCell .cm-content')"
    # It may ask which kernel is meant.
    ready = (
        "(document.querySelector('.jp-Dialog .jp-mod-accept')?.click(), "
        "!document.querySelector('.jp-Dialog') && document.body.innerText.includes('| Idle'))"
    )
    wait_in_page(browser, "idle kernel", ready)
    browser.value(f"{cell}.focus()")
    for kind in ("rawKeyDown", "keyUp"):
        browser.call(
            "Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter", windowsVirtualKeyCode=13, modifiers=8
        )
    wait_in_page(browser, "output", "document.body.innerText.includes('sum 42')")


def check_its_end(program: subprocess.Popen[str], place: Path) -> None:
    """End the command by Ctrl-C, and see that what the kernel wrote comes back."""
    program.send_signal(signal.SIGINT)
    out, err = program.communicate(timeout=300)
    assert program.returncode == 0, err
    assert "* result\n" in out
    assert (place / "test_workspace" / "result").read_text() == "of a kernel"


def test_a_cell_executed_in_a_browser_returns_its_files(engine: Engine, file: Path, tmp_path: Path) -> None:
    # A browser of its own: the page of another notebook asks before it is left.
    with opened(file) as (program, url, token), Browser() as browser:
        assert answer(url, token) == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{url}/api/contents", timeout=120)
        execute_the_cell(browser, url, token)
        check_its_end(program, tmp_path)


@pytest.mark.docker
def test_a_cell_executed_in_docker_in_a_browser_returns_its_files(
    dockerd: Dockerd, tmp_path: Path, state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DLAPP_RUNTIME_DOCKER_HOST", dockerd.host)
    import_environment_image(dockerd, without=("tensorboard", "grpc", "numpy", "numpy.libs", "hypothesis", "pip"))
    file = file_of(tmp_path, docker_image=ENVIRONMENT_IMAGE, network="none")
    with opened(file) as (program, url, token), Browser() as browser:
        application = run("dlapp-list", "-o", "id").out.split()[-1]
        assert len(dockerd.containers(f"label=dlapp.app={application}")) == 1
        execute_the_cell(browser, url, token)
        check_its_end(program, tmp_path)
    wait_for("no container", lambda: not dockerd.containers(f"label=dlapp.app={application}"))


ASK = """
import sys, urllib.error, urllib.request
for url in sys.argv[1:]:
    try:
        print(urllib.request.urlopen(url, timeout=120).status)
    except urllib.error.HTTPError as error:
        print(error.code)
    except OSError:
        print("refused")
"""
"""Prints the status of each URL."""


@pytest.mark.root("to become another user")
def test_another_user_is_refused_without_the_token_and_at_the_commands_port(file: Path, state_dir: Path) -> None:
    with opened(file) as (program, url, token):
        (found,) = state_dir.glob("**/jpserver-*.json")
        own = f"http://127.0.0.1:{json.loads(found.read_text())['port']}"
        urls = [f"{own}/api/contents", f"{own}/api/contents?token={token}", f"{url}/api/contents?token={token}"]
        become = ["setpriv", "--reuid=12345", "--regid=12345", "--clear-groups"]
        for user, seen in (([], "403 200 200"), (become, "403 200 refused")):
            done = subprocess.run(
                [*user, "/usr/bin/python3", "-I", "-c", ASK, *urls], capture_output=True, text=True, timeout=300
            )
            assert done.stdout.split() == seen.split(), done.stderr
        read = subprocess.run([*become, "cat", found], capture_output=True, timeout=120)
        assert (read.returncode, read.stdout) == (1, b"")
        program.send_signal(signal.SIGINT)
        program.communicate(timeout=300)


def test_an_unused_notebook_ends_by_itself(file: Path, state_dir: Path) -> None:
    done = run("dlapp-notebook", "--detach", "--max-idle", "60", file)
    assert done.code == 0, done.err
    application = done.out.split("DL App ID = ")[1].split()[0]
    end = ended(application, timeout_s=420)
    assert (end["final_status"], end["outputs"][0]["committed"]) == ("SUCCEEDED", True)
