"""dlapp-rm: remove applications that have ended from the history."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option, print_json, run, say


@command("dlapp-rm", example="dlapp-rm 41 42")
@click.argument("words", metavar="ID...", nargs=-1, required=True, shell_complete=complete_id(unfinished=False))
@json_option("Print the ids of what was removed as JSON.")
def rm(words: tuple[str, ...], as_json: bool) -> None:
    """Remove applications that have ended from this machine's history, with their logs.

    ID is an application's id, a unique ending of it, or 'last'. All are checked before the first is removed; they
    must be yours. Output that was stored elsewhere stays.
    """
    from dlapp.client import Client
    from dlapp.tools.kill_target import find_all

    client = Client()
    applications = find_all(client, words)
    client.remove(applications)
    if as_json:
        print_json({"removed": [str(one) for one in applications]})
    else:
        say(*(f"{one} was removed from the history" for one in applications))


def main() -> None:
    """The console script."""
    run(rm)


if __name__ == "__main__":
    main()
