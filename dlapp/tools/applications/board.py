"""dlapp-board: one TensorBoard for many applications."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from dlapp.errors import NotFound, UsageError
from dlapp.tools.common import command, complete_id, json_option, note, print_json, say

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.values.ids import ApplicationId

REFRESH_S = 10.0
"""Interval of the polls of applications that may still write."""
_POLL_S = 0.2


@command("dlapp-board", example="dlapp-board --project mnist")
@click.argument("applications", metavar="[ID...]", nargs=-1, shell_complete=complete_id())
@click.option("--project", metavar="P", help="All of your applications of this project that are still listed.")
@click.option("--port", type=click.IntRange(1024, 65_535), metavar="N", help="The port on this machine. [default: any]")
@json_option("Print where it is and what it shows as JSON.")
def main(applications: tuple[str, ...], project: str | None, port: int | None, as_json: bool) -> None:
    """Show the event files of applications, running and finished, in one TensorBoard on this machine.

    It runs until you press Ctrl-C. What running applications write comes every 10 seconds; of those on a cluster that
    were submitted from another machine it is what their newest checkpoint has.

    ID is an application's id, a unique ending of it, or 'last' (the default).
    """
    from dlapp.client import Client
    from dlapp.client.board.event_files import BoardFiles
    from dlapp.client.board.server import TensorBoardProcess
    from dlapp.client.command_session import SessionClosed, session_directory, signals_close
    from dlapp.system.text import counted

    if applications and project is not None:
        raise UsageError("give ids or --project, not both")
    client = Client(note=note)
    found = [client.resolve(one) for one in applications or ("last",)] if project is None else _of(client, project)
    with (
        contextlib.suppress(SessionClosed, KeyboardInterrupt),
        signals_close(),
        session_directory(client.config) as directory,
    ):
        files = BoardFiles(client, found, directory, note)
        is_growing = files.refresh()
        with TensorBoardProcess(files.directory, directory, port) as server:
            if as_json:
                print_json({"url": server.url, "applications": [str(one) for one in found]})
            else:
                say(f"{counted(len(found), 'applications')} : {server.url}")
            while True:
                until = time.monotonic() + REFRESH_S
                while time.monotonic() < until:
                    server.check()
                    time.sleep(_POLL_S)
                if is_growing:
                    is_growing = files.refresh()


def _of(client: Client, project: str) -> list[ApplicationId]:
    """Return the ids of the user's applications of a project. YARN converts project names to lower case."""
    views = client.views_of_all(finished=None, wanted=lambda view: view.get("project", "").lower() == project.lower())
    if not views:
        raise NotFound(f"you have no application of project {project}")
    return [client.resolve(view.json["application_id"]) for view in views]
