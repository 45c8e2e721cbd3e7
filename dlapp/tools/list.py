"""dlapp-list: the applications that there are, one a line."""

from __future__ import annotations

import time

import click

from dlapp.errors import Unreachable, UsageError
from dlapp.tools.common import command, json_option, note, print_json, run, say, whole


@command("dlapp-list", example="dlapp-list -a")
@click.argument("user", metavar="[USER]", required=False)
@click.option("-a", "--all", "everybody", is_flag=True, help="Include those of other users that you may see.")
@json_option("Print the views as JSON.")
def list_(user: str | None, everybody: bool, as_json: bool) -> None:
    """List applications: all unfinished ones and the last 20 finished.

    Without USER they are yours, on this machine and on the cluster, where you use both.
    """
    from dlapp.client import Client
    from dlapp.tools.display.view import derived, list_lines

    if user is not None and everybody:
        raise UsageError("-a lists everybody's applications, USER one user's: give one of them")
    silent: list[Unreachable] = []
    views = Client().list_json(user=user, everybody=everybody, unanswered=silent.append)
    now_ms = time.time_ns() // 1_000_000
    if as_json:
        print_json({"applications": [{**whole(view), **derived(view, now_ms)} for view in views]})
    else:
        say(*list_lines(views, now_ms))
    if silent:
        raise silent[0]  # what there is was shown, and that something is missing is said
    if not views and not as_json:
        note("there are no applications" + (f" of {user}" if user else ""))


def main() -> None:
    """The console script."""
    run(list_)


if __name__ == "__main__":
    main()
