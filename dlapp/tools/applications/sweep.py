"""dlapp-sweep: the leaderboard of a sweep."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from dlapp.errors import NotFound, UsageError
from dlapp.tools.common import command, complete_id, json_option, note, one_line, print_json, say

if TYPE_CHECKING:
    from dlapp.client import Client
    from dlapp.client.sweep import Sweep
    from dlapp.sweep.results import SweepResults

POLL_INTERVAL_S = 1.0
_SHOWN = 20


@command("dlapp-sweep", example="dlapp-sweep -f application_1700000000000_0042")
@click.argument("application", metavar="[ID]", default="last", shell_complete=complete_id())
@click.option("-f", "--follow", is_flag=True, help="Refresh it each second until the application ends.")
@click.option(
    "-n",
    "--lines",
    type=click.IntRange(min=1),
    metavar="N",
    default=_SHOWN,
    help=f"Maximum number of trials, the best; by default {_SHOWN}.",
)
@click.option("--all", "everything", is_flag=True, help="All trials that were started.")
@click.option("--best", "only_best", is_flag=True, help="Only the best trial that has ended, as NAME=VALUE lines.")
@click.option("--csv", "as_csv", is_flag=True, help="Print all trials as CSV.")
@json_option("Print all trials as JSON; with --best that trial alone.")
def main(
    application: str, follow: bool, lines: int, everything: bool, only_best: bool, as_csv: bool, as_json: bool
) -> None:
    """Show the trials of a sweep, the best first.

    The metric of a trial is the value that it reported last. WHY says why a trial was stopped early, failed, or has no
    metric. Trials that wait for their first start are only counted.

    ID is an application's id, a unique ending of it, or 'last' (the default).
    """
    from dlapp.client import Client
    from dlapp.tools.display import leaderboard

    if only_best + as_csv > 1 or (as_csv and as_json):
        raise UsageError("--best, --csv and --json exclude each other, but for --best --json")
    client = Client(note=note)
    sweep = client.sweep(application)
    results = _followed(client, sweep, lines) if follow else sweep.results(curves=False)
    if only_best:
        if (best := results.best()) is None:
            raise NotFound(
                f"no trial of {sweep.application_id} has ended with a metric: {leaderboard.counts_line(results)}"
            )
        if as_json:
            print_json(leaderboard.trial_json(best))
        else:
            _print_exactly("".join(f"{line}\n" for line in leaderboard.best_lines(best)))
    elif as_json:
        for line in leaderboard.json_lines(str(sweep.application_id), results):
            click.echo(line)
    elif as_csv:
        _print_exactly(leaderboard.csv_text(results))
    else:
        columns = os.get_terminal_size(sys.stdout.fileno()).columns or None if sys.stdout.isatty() else None
        say(*leaderboard.leaderboard_lines(results, None if everything else lines, columns))


def _print_exactly(text: str) -> None:
    """Print text for programs; on a terminal, escape control characters."""
    click.echo("\n".join(map(one_line, text.split("\n"))) if sys.stdout.isatty() else text, nl=False)


def _followed(client: Client, sweep: Sweep, most: int) -> SweepResults:
    """Show the leaderboard on stderr until the application has ended; return the last results."""
    with _display(most) as show:
        while True:
            has_ended = client.status(sweep.application_id).state.ended  # first: following results are the last ones
            results = sweep.results(curves=False)
            if has_ended:
                return results
            show(results)
            time.sleep(POLL_INTERVAL_S)


@contextlib.contextmanager
def _display(most: int) -> Iterator[Callable[[SweepResults], None]]:
    """Show a live display; without a terminal, print a line for each change of the counts."""
    from dlapp.tools.display.leaderboard import counts_line, leaderboard_lines

    if not sys.stderr.isatty():
        said = ""

        def tell(results: SweepResults) -> None:
            nonlocal said
            if (line := counts_line(results)) != said:
                said = line
                note(line)

        yield tell
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    console = Console(stderr=True)
    with Live(console=console, auto_refresh=False, transient=True) as live:

        def draw(results: SweepResults) -> None:
            room = max(1, min(most, console.height - 4))
            text = "\n".join(map(one_line, leaderboard_lines(results, room)))
            live.update(Text(text, no_wrap=True, overflow="ellipsis"), refresh=True)

        yield draw
