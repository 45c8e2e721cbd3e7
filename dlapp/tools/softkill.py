"""dlapp-softkill: end an application gently, with its output."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option, run


@command("dlapp-softkill", example="dlapp-softkill tony application_1700000000000_0042")
@click.argument("words", metavar="[USER] ID", nargs=-1, shell_complete=complete_id(unfinished=True))
@json_option("Print what came of it as JSON.")
def softkill(words: tuple[str, ...], as_json: bool) -> None:
    """End an application early: SIGTERM, its kill_grace, then SIGKILL; its output is committed.

    ID is an application's id, a unique ending of it, or 'last'. With USER, ID must be USER's.
    """
    from dlapp.client import Client
    from dlapp.tools.kill_target import show, target

    client = Client()
    application_id, user = target(client, words, "dlapp-softkill")
    show(application_id, client.softkill(application_id, user=user), as_json)


def main() -> None:
    """The console script."""
    run(softkill)


if __name__ == "__main__":
    main()
