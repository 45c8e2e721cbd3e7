"""dlapp-kill: end an application at once, without its output."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option


@command("dlapp-kill", example="dlapp-kill application_1700000000000_0042")
@click.argument("words", metavar="[USER] ID...", nargs=-1, shell_complete=complete_id(unfinished=True))
@json_option("Print what came of it as JSON.")
def main(words: tuple[str, ...], as_json: bool) -> int:
    """Kill an application at once, and discard its output.

    ID is an application's id, a unique ending of it, or 'last'. With USER, each ID must be USER's. All are
    found before the first is ended.
    """
    from dlapp.client import Client
    from dlapp.tools.kill_target import end_each, targets

    client = Client()
    applications, user = targets(client, words, "dlapp-kill")
    return end_each(applications, lambda one: client.kill(one, user=user), "dlapp-kill", as_json)
