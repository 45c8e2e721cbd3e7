"""Lines of dlapp-notebook --detach: its URL has the token, so it leads to no port that is another's."""

from __future__ import annotations

import json
import re
import socket
from typing import cast

import pytest

from dlapp.client.application import Application
from dlapp.client.notebook.session import Notebook, ReadyNotebook
from dlapp.tools.applications import notebook as command

APP = "application_1700000000000_0042"
NOTEBOOK = Notebook(cast(Application, APP), "4a1f", "", {})


def test_the_local_port_in_the_url_is_named_to_dlapp_port_and_is_not_one_that_is_taken(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as of_another_user:
        taken = of_another_user.getsockname()[1]
        command._show_how_to_reach(NOTEBOOK, ReadyNotebook(0, taken))
    said = capsys.readouterr().out
    named = re.search(rf"^JupyterLab : dlapp-port {APP} notebook {taken} (\d+)$", said, re.M)
    opened = re.search(r"^then open  : http://127\.0\.0\.1:(\d+)/lab\?token=4a1f$", said, re.M)
    assert named, said
    assert opened, said
    assert named[1] == opened[1] != str(taken)


def test_as_json_there_is_a_url_only_while_the_command_serves_it(capsys: pytest.CaptureFixture[str]) -> None:
    ready = ReadyNotebook(0, 8888)
    command._print_reach(NOTEBOOK, ready)
    found = {"application_id": APP, "path": "/lab?token=4a1f", "port": 8888}
    assert json.loads(capsys.readouterr().out) == found
    command._print_reach(NOTEBOOK, ready, "http://127.0.0.1:40123")
    assert json.loads(capsys.readouterr().out) == found | {"url": "http://127.0.0.1:40123/lab?token=4a1f"}
