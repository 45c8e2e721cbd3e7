"""dlapp-softkill: end an application gently, with its output."""

from __future__ import annotations

import click

from dlapp.tools.common import command, json_option, run


@command("dlapp-softkill", example="dlapp-softkill tony application_1700000000000_0042")
@click.argument("words", metavar="[USER] ID", nargs=-1)
@json_option("Print what came of it as JSON.")
def softkill(words: tuple[str, ...], as_json: bool) -> None:
    """End an application gently: SIGTERM, its kill_grace, then SIGKILL; its output is kept.

    ID is an application's id, its ending where that is unique, or 'last'. With USER, ID must be USER's.
    """
    from dlapp.client import Client
    from dlapp.tools.ending import show, target

    client = Client()
    application_id, user = target(client, words, "dlapp-softkill")
    show(application_id, client.softkill(application_id, user=user), as_json)


def main() -> None:
    """The console script."""
    run(softkill)


if __name__ == "__main__":
    main()
