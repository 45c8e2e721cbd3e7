"""dlapp-report: a page about one application's run."""

from __future__ import annotations

import os
import sys

import click

from dlapp.tools.common import command, complete_id, json_option, note, print_json, say


@command("dlapp-report", example="dlapp-report last -o run.html")
@click.argument("application", metavar="[ID]", default="last", shell_complete=complete_id())
@click.option("-o", "--output", metavar="FILE", help="The file to write; - for standard output. [default: ID.html]")
@json_option("Print the id and the file's path as JSON.")
def main(application: str, output: str | None, as_json: bool) -> None:
    """Write a page in HTML on how an application ran: times, use, cost, logs, and why it failed.

    The page is one file that opens in any browser, without a network and without JavaScript.

    ID is an application's id, a unique ending of it, or 'last' (the default).
    """
    from dlapp.client import Client
    from dlapp.client.report import report_of
    from dlapp.system import clock

    client = Client(note=note)
    application_id = client.resolve(application)
    text = report_of(client, client.status(application_id), clock.now_ms())
    if output == "-":
        sys.stdout.buffer.write(text.encode(errors="replace"))
        sys.stdout.buffer.flush()
        return
    path = output or f"{application_id}.html"
    try:
        with open(path, "w", encoding="utf-8", errors="replace") as file:
            file.write(text)
    except OSError as error:
        from dlapp.errors import UsageError

        raise UsageError(f"{path} cannot be written: {error.strerror or error}") from error
    if as_json:
        print_json({"application_id": str(application_id), "file": os.path.abspath(path)})
    else:
        say(f"report of {application_id} : {path}")
