"""Lines of dlapp-notebook --detach: its URL has the token, so none is printed of a port that may be another's."""

from __future__ import annotations

import json
from typing import cast

import pytest

from dlapp.client.application import Application
from dlapp.client.notebook.session import Notebook, ReadyNotebook
from dlapp.tools.machine import notebook as command

APP = "application_1700000000000_0042"
NOTEBOOK = Notebook(cast(Application, APP), "4a1f", "", {})


def test_a_detached_notebook_prints_no_url_of_an_unforwarded_port(capsys: pytest.CaptureFixture[str]) -> None:
    command._show_how_to_reach(NOTEBOOK, ReadyNotebook(0, 8888))
    output = capsys.readouterr().out
    assert f"JupyterLab : dlapp-port {APP} notebook 8888\n" in output
    assert "then open  : the address that it prints, with /lab?token=4a1f behind it\n" in output
    assert "http:" not in output


def test_as_json_there_is_a_url_only_while_the_command_serves_it(capsys: pytest.CaptureFixture[str]) -> None:
    ready = ReadyNotebook(0, 8888)
    command._print_reach(NOTEBOOK, ready)
    found = {"application_id": APP, "path": "/lab?token=4a1f", "port": 8888}
    assert json.loads(capsys.readouterr().out) == found
    command._print_reach(NOTEBOOK, ready, "http://127.0.0.1:40123")
    assert json.loads(capsys.readouterr().out) == found | {"url": "http://127.0.0.1:40123/lab?token=4a1f"}
