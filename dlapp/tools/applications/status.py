"""dlapp-status: the state or the result of one application."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option, note, print_json, say, whole


@command("dlapp-status", example="dlapp-status application_1700000000000_0042")
@click.argument("application", metavar="[ID]", default="last", shell_complete=complete_id())
@click.option("--logs", "all_logs", is_flag=True, help="Show the log URLs of all containers.")
@json_option("Print the view and the log URLs as JSON.")
def main(application: str, all_logs: bool, as_json: bool) -> None:
    """Show how an application is or ended, why, and what to do next.

    Of an application that failed, the last lines of stderr of the container that failed first are shown.

    ID is an application's id, a unique ending of it, or 'last' (the default).
    """
    from dlapp.client.operations.views import Views
    from dlapp.system import clock
    from dlapp.tools.display.view import derived

    client = Views(note=note)
    view = client.view_of(client.resolve_text(application)).json
    logs = client.log_urls(view)
    now_ms, unstored = clock.now_ms(), client.unstored(view)
    if as_json:
        print_json({**whole(view), **derived(view, now_ms), "logs": logs, "unstored": unstored})
    else:
        from dlapp.tools.display.status import read_best_trial, read_error_tail, status_lines

        tail, best = read_error_tail(client, view), read_best_trial(client, view)
        say(*status_lines(view, logs, now_ms, tail=tail, best=best, unstored=unstored, all_logs=all_logs))
