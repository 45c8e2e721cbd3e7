"""dlapp-list: the applications that there are, one a line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

import click

from dlapp.errors import Unreachable, UsageError
from dlapp.tools.common import command, json_option, note, print_json, run, say, whole

STATES = ("waiting", "running", "finished", "succeeded", "failed", "timed-out", "soft-killed", "killed")


@command("dlapp-list", example="dlapp-list --state failed --since 2d")
@click.argument("user", metavar="[USER]", required=False)
@click.option("-a", "--all", "everybody", is_flag=True, help="Include those of other users that you may see.")
@click.option(
    "-n",
    "--last",
    "most",
    type=click.IntRange(min=0),
    metavar="N",
    default=20,
    help="So many finished ones, the latest; by default 20.",
)
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only those; may be given several times."
)
@click.option("--name", metavar="TEXT", help="Only those whose name contains TEXT, in upper or lower case.")
@click.option("--since", metavar="TIME", help="Only those submitted since: 30m, 2h, 7d, 2023-11-14, 2023-11-14T22:00.")
@json_option("Print the views as JSON.")
def list_(
    user: str | None,
    everybody: bool,
    most: int,
    states: tuple[str, ...],
    name: str | None,
    since: str | None,
    as_json: bool,
) -> None:
    """List applications: all unfinished ones and the last 20 finished.

    Without USER they are yours, on this machine and on the cluster, where you use both. On a terminal, ids are
    shortened to their ends, which every command takes, and the table is cut to the terminal's width.
    """
    from dlapp.client import Client
    from dlapp.system import clock
    from dlapp.tools.display.view import derived, ended

    if user is not None and everybody:
        raise UsageError("-a lists everybody's applications, USER one user's: give one of them")
    now_ms = clock.now_ms()
    wanted = _filter(states, name, None if since is None else _since_ms(since, now_ms))
    silent: list[Unreachable] = []
    # One more than is shown tells if there are more.
    views = Client().list_json(
        user=user, everybody=everybody, finished=most + 1, wanted=wanted, unanswered=silent.append
    )
    finished = [place for place, view in enumerate(views) if ended(view)]
    is_cut = len(finished) > most
    if is_cut:
        views = [view for place, view in enumerate(views) if place != finished[0]]
    if as_json:
        print_json({"applications": [{**whole(view), **derived(view, now_ms)} for view in views]})
    else:
        say(*_lines(views, now_ms, users=everybody or user is not None))
    if silent:
        raise silent[0]  # what there is was shown, and that something is missing is said
    if not views and not as_json and not is_cut:
        note("there are no " + ("such " if wanted else "") + "applications" + (f" of {user}" if user else ""))
        if user and not _is_user(user):
            note(f"this machine has no user {user}")
    elif is_cut and sys.stdout.isatty():
        note(f"earlier ones are not shown (-n {max(2 * most, 20)} shows more)")


def _is_user(name: str) -> bool:
    """Return whether this machine has a user; an owner without a name is shown by number."""
    import pwd

    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        return name.isdecimal()
    return True


def _lines(views: Any, now_ms: int, *, users: bool) -> list[str]:
    from dlapp.tools.display.view import fitted_list_lines, list_lines

    if not sys.stdout.isatty():
        return list_lines(views, now_ms)
    return fitted_list_lines(views, now_ms, os.get_terminal_size(sys.stdout.fileno()).columns or 80, users=users)


def _filter(
    states: tuple[str, ...], name: str | None, since_ms: int | None
) -> Callable[[Mapping[str, Any]], bool] | None:
    """Return what the options select; None: all."""
    from dlapp.tools.display.view import ended, state_word

    if not states and name is None and since_ms is None:
        return None

    def wanted(view: Mapping[str, Any]) -> bool:
        is_of_states = not states or state_word(view) in states or ("finished" in states and ended(view))
        is_named = name is None or name.casefold() in view["appname"].casefold()
        return is_of_states and is_named and (since_ms is None or view["submitted_ms"] >= since_ms)

    return wanted


def _since_ms(text: str, now_ms: int) -> int:
    """Return a moment that a user wrote as a date, or as a time before now [ms since 1970]."""
    from datetime import datetime

    from dlapp.system.text import read_duration_s, shown

    try:
        if text[-1:].isalpha() and text[:1].isdigit():
            return now_ms - int(read_duration_s(text) * 1000)
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError) as error:
        examples = "2h, 7d, 2023-11-14 or 2023-11-14T22:00"
        raise UsageError(
            f"--since: {shown(text)} is neither a time before now nor a date, such as {examples}"
        ) from error


def main() -> None:
    """The console script."""
    run(list_)


if __name__ == "__main__":
    main()
