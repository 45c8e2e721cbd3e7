"""JupyterLab as PyPI has it now, in Chromium through dlapp-port: `make test-beside`, which installs it beside us."""

from __future__ import annotations

import json
import signal
import time
import urllib.request
from pathlib import Path

import pytest

from tests.applications import BIN, ended, properties, run
from tests.end_to_end.test_notebooks import answer, opened
from tests.engines import Engine
from tests.services.browser import ANSWER_S, Browser

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
    found = properties(
        tmp_path, "true", application={"env.PATH": f"{BIN}:/usr/bin:/bin"}, resources={"memory": "1500m"}
    )
    (tmp_path / "test_workspace" / "a.ipynb").write_text(json.dumps(NOTEBOOK))
    return found


def wait_in_page(page: Browser, what: str, expression: str) -> None:
    deadline = time.monotonic() + ANSWER_S
    while not page.value(expression):
        assert time.monotonic() < deadline, f"no {what} in the page: {page.text()[-2000:]}"
        time.sleep(0.1)


def test_a_kernel_executes_a_cell_in_a_browser_and_what_it_wrote_comes_back(
    engine: Engine, file: Path, tmp_path: Path
) -> None:
    # A browser of its own: the page of another notebook asks before it is left.
    with opened(file) as (program, url, token), Browser() as browser:
        assert answer(url, token) == 200
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(f"{url}/api/contents", timeout=120)
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
        program.send_signal(signal.SIGINT)
        out, err = program.communicate(timeout=300)
    assert program.returncode == 0, err
    assert "* result\n" in out
    assert (tmp_path / "test_workspace" / "result").read_text() == "of a kernel"


def test_a_notebook_that_nobody_uses_ends_by_itself(file: Path, state_dir: Path) -> None:
    done = run("dlapp-notebook", "--detach", "--max-idle", "60", file)
    assert done.code == 0, done.err
    application = done.out.split("DL App ID = ")[1].split()[0]
    end = ended(application, timeout_s=420)
    assert (end["final_status"], end["outputs"][0]["committed"]) == ("SUCCEEDED", True)
