"""dlapp-release: let applications start that were submitted with --hold."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option


@command("dlapp-release", example="dlapp-release last")
@click.argument("words", metavar="ID...", nargs=-1, required=True, shell_complete=complete_id(unfinished=True))
@json_option("Print what came of it as JSON.")
def main(words: tuple[str, ...], as_json: bool) -> int:
    """Let applications start that are held (--hold, or hold=true in the file).

    ID is an application's id, a unique ending of it, or 'last'. All are found before the first is released.
    """
    from dlapp.client import Client
    from dlapp.tools.kill_target import end_each, find_all

    client = Client()
    return end_each(find_all(client, words), client.release, "dlapp-release", as_json)
