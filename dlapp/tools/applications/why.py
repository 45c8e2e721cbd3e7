"""dlapp-why: why an application waits, what would let it start now, and when it may start."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option, note, print_json, say, whole


@command("dlapp-why", example="dlapp-why last")
@click.argument("application", metavar="[ID]", default="last", shell_complete=complete_id())
@json_option("Print the view as JSON, with the reason, the change and the estimate in 'waiting'.")
def main(application: str, as_json: bool) -> None:
    """Show why an application waits.

    Of one that waits: the reason, who is ahead, the smallest change with which it would start now, and when it may
    start. Of one that runs: why not all of its containers do. Of one that has ended: how long it waited for what.

    ID is an application's id, a unique ending of it, or 'last' (the default).
    """
    from dlapp.client.operations.views import Views
    from dlapp.system import clock
    from dlapp.tools.display.view import derived
    from dlapp.tools.display.why import why_lines

    client = Views(note=note)
    view, now_ms = client.view_of(client.resolve_text(application), in_full=True).json, clock.now_ms()
    if as_json:
        print_json({**whole(view), **derived(view, now_ms)})
    else:
        say(*why_lines(view, now_ms))
