"""dlapp-list: the existing applications, one per line."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from dlapp.errors import NotFound, Unreachable, UsageError
from dlapp.tools.common import (
    command,
    json_option,
    label_options,
    note,
    output_option,
    print_json,
    read_time_ms,
    say,
    say_paged,
    whole,
)

if TYPE_CHECKING:
    from dlapp.client.operations.views import Views

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
    help="Maximum number of finished ones, the latest; by default 20.",
)
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only those; may be given several times."
)
@click.option("--user", "user_option", metavar="USER", help="Only those of this user; the same as the argument.")
@label_options
@click.option("--since", metavar="TIME", help="Only those submitted since: 30m, 2h, 7d, 2023-11-14, 2023-11-14T22:00.")
@click.option("--until", metavar="TIME", help="Only those submitted before this time, in the same forms.")
@output_option
@click.option("--sort", metavar="COLUMN", default="", help="Sort by this column, with - before it in reverse order.")
@json_option("Print the views as JSON.")
def main(
    user: str | None,
    user_option: str | None,
    everybody: bool,
    most: int,
    states: tuple[str, ...],
    queue: str | None,
    project: str | None,
    tags: tuple[str, ...],
    name: str | None,
    since: str | None,
    until: str | None,
    output: str,
    sort: str,
    as_json: bool,
) -> None:
    """List applications: all unfinished ones and the last 20 finished.

    Without USER they are yours, on this machine and on the cluster, where you use both. On a terminal, ids are
    shortened to their ends, which every command takes, the table is cut to the terminal's width, and a long one is
    shown page by page (PAGER).
    """
    from dlapp.client.operations.views import Views
    from dlapp.system import clock
    from dlapp.tools.display.columns import read_columns, sorted_views
    from dlapp.tools.display.view import ended

    if user is not None and user_option not in (None, user):
        raise UsageError(f"--user {user_option} and the argument {user} are two users: give one of them")
    user = user_option if user is None else user
    columns = read_columns(output)
    as_json = as_json or output == "json"
    if user is not None and everybody:
        raise UsageError("-a lists everybody's applications, USER one user's: give one of them")
    now_ms = clock.now_ms()
    since_ms, until_ms = (
        None if text is None else read_time_ms(option, text, now_ms)
        for option, text in (("--since", since), ("--until", until))
    )
    wanted = view_filter(states, name, since_ms, until_ms, queue=queue, project=project, tags=tags)
    silent, unread = list[Unreachable](), set[str]()
    # One more than is shown reveals whether there are more.
    client = Views(note=note)
    listed = client.views_of_all(
        user=user,
        everybody=everybody,
        finished=most + 1,
        wanted=wanted,
        unanswered=silent.append,
        unread=unread.add,
    )
    views: list[Mapping[str, Any]] = [one.json for one in listed]
    if user and not views and not silent:
        _check_user(user, lambda: bool(wanted and client.views_of_all(user=user, finished=1)))
    finished = [place for place, view in enumerate(views) if ended(view)]
    is_cut = len(finished) > most
    if is_cut:
        views = [view for place, view in enumerate(views) if place != finished[0]]
    views = [{**view, "unstored": _unstored(client, view)} for view in views]
    if sort:
        views = sorted_views(views, sort, now_ms)
    _show(views, output, columns, now_ms, as_json=as_json, users=everybody or user is not None)
    if count := sum(view["application_id"] in unread for view in views):
        note(f"the cost of {count} of these applications is not shown: HDFS did not answer, or not in time")
    if silent:
        raise silent[0]  # available results were shown, and the missing engine is reported
    if not views and not as_json and not is_cut:
        note("there are no " + ("such " if wanted else "") + "applications" + (f" of {user}" if user else ""))
    elif is_cut and sys.stdout.isatty():
        note(f"earlier ones are not shown (-n {max(2 * most, 20)} shows more)")


def _show(
    views: Sequence[Mapping[str, Any]],
    output: str,
    columns: Sequence[str],
    now_ms: int,
    *,
    as_json: bool,
    users: bool,
) -> None:
    """Print a list.

    Args:
        views: the applications.
        output: form of the list, an option.
        columns: those to print; empty: the usual ones.
        now_ms: the time [ms since 1970].
        as_json: print JSON.
        users: it may have applications of other users.
    """
    from dlapp.tools.display.columns import named_lines
    from dlapp.tools.display.view import derived, fitted_list_lines, list_lines, short_enough

    if output == "id":
        say(*(str(view["application_id"]) for view in views)) if views else None
    elif columns:
        say(*named_lines(views, columns, now_ms))
    elif as_json:
        print_json({"applications": [{**whole(view), **derived(view, now_ms)} for view in views]})
    elif sys.stdout.isatty() and output != "wide":
        size = os.get_terminal_size(sys.stdout.fileno())
        lines = fitted_list_lines(views, now_ms, size.columns or 80, users=users)
        (say if short_enough(lines, size.lines) else say_paged)(*lines)
    else:
        say(*list_lines(views, now_ms))


def _unstored(client: Views, view: Mapping[str, Any]) -> Sequence[str]:
    try:
        return client.unstored(view)
    except NotFound:
        return []  # it has just been removed


def _check_user(name: str, has_applications: Callable[[], bool]) -> None:
    """Refuse a user name without applications, if this machine has no such user either.

    Args:
        name: the name of the user; the number of an owner without a name is accepted.
        has_applications: called for a name that is no user's.

    Raises:
        NotFound: there is no such user.
    """
    import pwd

    try:
        pwd.getpwnam(name)
    except (KeyError, ValueError):
        if not name.isdecimal() and not has_applications():
            import difflib

            close = difflib.get_close_matches(name, [user.pw_name for user in pwd.getpwall()], n=1)
            hint = f"; the nearest is {close[0]}" if close else ""
            raise NotFound(f"there is no user {name} on this machine, and no application of {name}{hint}") from None


def view_filter(
    states: tuple[str, ...],
    name: str | None,
    since_ms: int | None,
    until_ms: int | None = None,
    *,
    queue: str | None = None,
    project: str | None = None,
    tags: tuple[str, ...] = (),
) -> Callable[[Mapping[str, Any]], bool] | None:
    """Return a filter for the options of a list; None if all are selected.

    Args:
        states: any of these `STATES`.
        name: contained in the application's name.
        since_ms, until_ms: submitted from the first and before the second of these times [ms since 1970].
        queue, project: of the application.
        tags: all of these.
    """
    from dlapp.tools.display.view import ended, state_word

    if not states and not tags and all(one is None for one in (name, since_ms, until_ms, queue, project)):
        return None
    # YARN converts tags and projects to lower case, and shows the path of a queue.
    wanted_tags = {tag.casefold() for tag in tags}

    def wanted(view: Mapping[str, Any]) -> bool:
        is_of_states = not states or state_word(view) in states or ("finished" in states and ended(view))
        is_named = name is None or name.casefold() in view["appname"].casefold()
        in_queue = queue is None or queue.removeprefix("root.") == str(view.get("queue", ""))
        of_project = project is None or project.casefold() == str(view.get("project", "")).casefold()
        is_tagged = wanted_tags <= {str(tag).casefold() for tag in view.get("tags", ())}
        is_of_time = (since_ms is None or view["submitted_ms"] >= since_ms) and (
            until_ms is None or view["submitted_ms"] < until_ms
        )
        return is_of_states and is_named and in_queue and of_project and is_tagged and is_of_time

    return wanted
