"""dlapp-queue: running and waiting applications, in the order of their start."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

import click

from dlapp.errors import Unreachable
from dlapp.tools.common import (
    command,
    json_option,
    label_options,
    note,
    output_option,
    print_json,
    say,
    say_paged,
    whole,
)

STATES = ("running", "waiting", "held", "dependency")


@command("dlapp-queue", example="dlapp-queue --state waiting")
@click.option(
    "--state", "states", type=click.Choice(STATES), multiple=True, help="Only those; may be given several times."
)
@click.option("--user", metavar="USER", help="Only those of this user.")
@label_options
@output_option
@json_option("Print the queue as JSON.")
def main(
    states: tuple[str, ...],
    user: str | None,
    queue: str | None,
    project: str | None,
    tags: tuple[str, ...],
    name: str | None,
    output: str,
    as_json: bool,
) -> None:
    """Show the queue: what runs, then what waits in the order in which it is to start, with the reason and the
    expected start.

    It has everybody's applications that you may see, on this machine and on the cluster, where you use both; last come
    those that wait for other applications, or are held. A filter does not change the places.
    """
    from dlapp.client.operations.views import Views
    from dlapp.system import clock
    from dlapp.tools.applications.list import view_filter
    from dlapp.tools.display.columns import named_lines, read_columns
    from dlapp.tools.display.queue import QUEUE_COLUMNS, fitted_queue_lines, queue_lines, share_lines, state_of
    from dlapp.tools.display.view import derived, short_enough

    columns = read_columns(output, QUEUE_COLUMNS)
    as_json = as_json or output == "json"
    selected = view_filter((), name, None, queue=queue, project=project, tags=tags)

    def wanted(view: Mapping[str, Any]) -> bool:
        is_of_user = user is None or user in (view["username"], view["submitter"])
        return (not states or state_of(view) in states) and is_of_user and (selected is None or selected(view))

    silent: list[Unreachable] = []
    found, now_ms = Views(note=note).queue_json(unanswered=silent.append), clock.now_ms()
    views, shares = list(filter(wanted, found["applications"])), found["shares"]
    if output == "id":
        say(*(str(view["application_id"]) for view in views)) if views else None
    elif columns:
        say(*named_lines(views, columns, now_ms, QUEUE_COLUMNS))
    elif as_json:
        added = ("place", "start")
        plain = [({k: v for k, v in view.items() if k not in added}, view) for view in views]
        rows = [{**whole(one), **derived(one, now_ms), **{k: view[k] for k in added}} for one, view in plain]
        print_json({"applications": rows, "shares": shares})
    else:
        is_fitted = sys.stdout.isatty() and output != "wide"
        size = os.get_terminal_size(sys.stdout.fileno()) if is_fitted else None
        lines = queue_lines(views, now_ms) if size is None else fitted_queue_lines(views, now_ms, size.columns or 80)
        if of_users := share_lines(shares):
            lines += ["", *of_users]
        (say if size is None or short_enough(lines, size.lines) else say_paged)(*lines)
    if silent:
        raise silent[0]  # available results were shown, and the missing engine is reported
    if not views and not as_json and output != "id":
        note("nothing runs or waits" if not found["applications"] else "nothing of that runs or waits")
