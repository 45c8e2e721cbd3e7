"""dlapp-rm: remove ended applications from the history."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option, print_json, say


@command("dlapp-rm", example="dlapp-rm 41 42")
@click.argument("words", metavar="ID...", nargs=-1, required=True, shell_complete=complete_id(unfinished=False))
@json_option("Print the ids of what was removed as JSON.")
def main(words: tuple[str, ...], as_json: bool) -> None:
    """Remove applications that have ended from the history; on this machine with their logs.

    ID is an application's id, a unique ending of it, or 'last'. All are checked before the first is removed; they
    must be yours. Output stays, committed or not; the lines say where output is that was not committed.
    """
    from dlapp.client import Client
    from dlapp.tools.display.status import kept_lines
    from dlapp.tools.kill_target import find_all

    client = Client()
    applications = find_all(client, words)
    views = [client.view_of(one).json for one in applications]
    unstored = [client.unstored(view) for view in views]
    client.remove(applications)
    if as_json:
        partial = [output["partial"] for view in views for output in view["outputs"] if output["partial"]]
        kept = {"partial": partial, "unstored": [path for paths in unstored for path in paths]}
        print_json({"removed": [str(one) for one in applications], "kept": kept})
        return
    for one, view, paths in zip(applications, views, unstored, strict=True):
        say(f"{one} was removed from the history", *kept_lines(view, paths))
