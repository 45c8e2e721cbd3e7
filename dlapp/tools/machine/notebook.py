"""dlapp-notebook: JupyterLab with the image, workspace and GPUs of an application."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from dlapp.errors import EXIT_FAILED, EXIT_INTERRUPTED, DlappError, UsageError
from dlapp.tools.common import command, json_option, note, print_json, read_duration, say

if TYPE_CHECKING:
    from collections.abc import Callable

    from dlapp.client import Client
    from dlapp.client.notebook.session import Notebook, ReadyNotebook
    from dlapp.values.report import ApplicationView

MIN_IDLE_S = 60
_SHOWN_FILES = 10


@command("dlapp-notebook", example="dlapp-notebook --gcores 1 dl_app.properties")
@click.argument("file", metavar="[FILE]", type=click.Path(), required=False)
@click.option("--gcores", type=click.IntRange(min=0), metavar="N", help="Use N GPUs instead of the number in the file.")
@click.option("--cluster", metavar="NAME", help="Run on this engine (local, yarn) instead of the configured one.")
@click.option(
    "--max-idle",
    metavar="TIME",
    default="1h",
    show_default=True,
    help="End it after this time without a computing kernel and a connection.",
)
@click.option("--save", metavar="PATH", help="Store its new and changed files there, like output.")
@click.option("--port", type=click.IntRange(1, 65_535), metavar="PORT", help="Serve it on this local port.")
@click.option("--detach", is_flag=True, help="Print its address when it is ready, and leave it running.")
@json_option("Print how it is reached as JSON; all else goes to stderr.")
def main(
    file: str | None,
    gcores: int | None,
    cluster: str | None,
    max_idle: str,
    save: str | None,
    port: int | None,
    detach: bool,
    as_json: bool,
) -> int:
    """Open JupyterLab in the environment that FILE's program runs in.

    It is the same image, or a plain process, on this machine or on a node of a cluster; without FILE a process in the
    working directory. The workspace is copied there, with the input. When the notebook ends, the new and changed files
    of its workspace are stored like output, and copied back into yours.
    """
    from dlapp.client import Client
    from dlapp.client.notebook.session import start_notebook
    from dlapp.tools.display.progress import copying_bar

    if detach and port is not None:
        raise UsageError("--port is of no use with --detach; give it to dlapp-port")
    client = Client(cluster=cluster, note=note)
    with copying_bar("packing") as progress:
        notebook = start_notebook(
            client,
            file,
            gcores=gcores,
            idle_s=int(read_duration("--max-idle", max_idle, minimum_s=MIN_IDLE_S)),
            save=save,
            say=note,
            note=note,
            progress=progress,
        )
    try:
        ready = _wait_until_ready(client, notebook)
        if ready is None:
            return _show_end(client, notebook, as_json=as_json)
        if detach:
            if as_json:
                _print_reach(notebook, ready)
            else:
                _show_how_to_reach(notebook, ready)
            return 0
        _serve(client, notebook, ready, port, as_json=as_json)
    except KeyboardInterrupt:
        note("")
        note(client.softkill(notebook.application))
    try:
        return _show_end(client, notebook, as_json=as_json)
    except KeyboardInterrupt:
        note(f"* dlapp-status {notebook.application}   to see where its files are stored")
        return EXIT_INTERRUPTED


def _wait_until_ready(client: Client, notebook: Notebook) -> ReadyNotebook | None:
    from dlapp.client.notebook.session import wait_until_ready
    from dlapp.tools.display.progress import waiting_display
    from dlapp.values.serialization import to_json

    with waiting_display() as on_change:
        return wait_until_ready(client, notebook, lambda view: on_change(to_json(view)))


def _show_how_to_reach(notebook: Notebook, ready: ReadyNotebook) -> None:
    # Nobody holds a local port yet: another user could take the one of an URL that is printed now, with its token.
    say(f"DL App ID = {notebook.application}")
    say(f"JupyterLab : dlapp-port {notebook.application} notebook {ready.port}")
    say(f"then open  : the address that it prints, with {notebook.page('')} behind it")
    say(f"to end it  : dlapp-softkill {notebook.application}")


def _print_reach(notebook: Notebook, ready: ReadyNotebook, url: str = "") -> None:
    """Print how to reach it as JSON; ``url`` is that of this command's local port, if there is one."""
    where = {"url": notebook.page(url)} if url else {}
    print_json({"application_id": str(notebook.application), **where, "path": notebook.page(""), "port": ready.port})


def _serve(
    client: Client, notebook: Notebook, ready: ReadyNotebook, port: int | None, *, as_json: bool = False
) -> None:
    """Forward the notebook to this terminal until it ends, or until a confirmed Ctrl-C: KeyboardInterrupt."""
    from dlapp.client.streams.ports import PortForward

    application_id = notebook.application.application_id
    with PortForward(client, application_id, ready.container, ready.port, port, say=note) as forward:
        if as_json:
            _print_reach(notebook, ready, forward.url)
        else:
            say(f"JupyterLab : {notebook.page(forward.url)}")
        while True:
            try:
                note("Ctrl-C ends it and brings its files back.")
                forward.run()
                return
            except KeyboardInterrupt:
                if _is_to_end():
                    raise


def _is_to_end() -> bool:
    """Ask whether to end the notebook. Without a terminal Ctrl-C counts as confirmed; so does a second one."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return True
    note("")
    try:
        answer = click.prompt(
            "End the notebook and bring its files back? [Y/n]", default="y", show_default=False, err=True
        )
    except click.Abort:
        return True
    return str(answer).strip().lower() not in ("n", "no")


def _show_end(client: Client, notebook: Notebook, *, as_json: bool = False) -> int:
    """Wait for the end, fetch the files and print their location. Return the exit code."""
    from dlapp.client.exit_status import exit_code
    from dlapp.client.notebook.session import saved_location
    from dlapp.system import clock
    from dlapp.tools.display.progress import waiting_display
    from dlapp.tools.display.status import answer_lines, read_error_tail
    from dlapp.values.report import Cause
    from dlapp.values.serialization import to_json

    with waiting_display() as on_change:
        end = client.wait(notebook.application, lambda view: on_change(to_json(view)))
    view = to_json(end)
    is_planned = end.cause in (Cause.SUCCEEDED, Cause.SOFT_KILLED)
    if not is_planned:
        for line in answer_lines(view, clock.now_ms(), read_error_tail(client, view), client.unstored(view)):
            (note if as_json else say)(line)
    if (
        is_planned
        and saved_location(end) is None
        and not client.unstored(view)
        and all(one.exit_code == 0 for one in end.containers)
    ):
        note("no file is new or changed")
        return 0
    is_stored = _fetch_files(client, notebook, end, note if as_json else say)
    if not is_planned:
        return exit_code(end)
    return 0 if is_stored else EXIT_FAILED


def _fetch_files(client: Client, notebook: Notebook, end: ApplicationView, print_line: Callable[[str], None]) -> bool:
    """Fetch the files of a notebook, and print their location; return whether they are stored."""
    from dlapp.client.notebook.session import fetch_notebook_files, saved_location
    from dlapp.locations import FILE

    if (place := saved_location(end)) is None:
        return False
    print_line(f"saved : {place.removeprefix(FILE)}")
    if not notebook.workspace:
        return True
    try:
        back = fetch_notebook_files(client, notebook, place)
    except DlappError as error:
        note(f"not brought back into {notebook.workspace}: {error}")
        return False
    for path in back.placed[:_SHOWN_FILES]:
        print_line(f"* {path}")
    if (more := len(back.placed) - _SHOWN_FILES) > 0:
        print_line(f"* and {more} more")
    for path in back.kept:
        note(f"{path} was changed here, too, and is kept; the notebook's is in {place.removeprefix(FILE)}")
    for path in back.left_out[:_SHOWN_FILES]:
        note(f"{path} is not brought back: programs of this machine obey it; it is in {place.removeprefix(FILE)}")
    if (more := len(back.left_out) - _SHOWN_FILES) > 0:
        note(f"and {more} more such files are not brought back")
    return True
