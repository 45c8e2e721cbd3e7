"""dlapp-run: what dlapp-shell's own script asks for. Typed anywhere else it says where it belongs.

Inside a shell the script stands first in PATH. Should this program be found instead, it hands over to the script; and
the dlapp-shell process starts it, outside, to do the work.
"""

from __future__ import annotations

import os
import sys

import click

from dlapp.errors import UsageError
from dlapp.tools.common import command, json_option, run


@command("dlapp-run", example="dlapp-run --wait")
@click.option("--wait", is_flag=True, help="Show the progress until the application ends, and exit with its code.")
@click.option("--print-spec", is_flag=True, help="Print what would be submitted as JSON; submit nothing.")
@click.option("--cluster", metavar="NAME", help="Submit to this engine instead of the configured one.")
@json_option("Print the result as JSON; the lines for people go to stderr.")
def run_(wait: bool, print_spec: bool, cluster: str | None, as_json: bool) -> int:
    """Inside dlapp-shell: submit the shell's application, with the workspace as it is now."""
    from dlapp.client.shell_server import BIN, DIRECTORY_VARIABLE, START_VARIABLE

    if path := os.environ.get(START_VARIABLE):
        from dlapp.client import Client
        from dlapp.client.shell_start import read_start
        from dlapp.tools.launcher import launch

        snapshot, config = read_start(path, cluster=cluster)
        return launch(Client(config), snapshot, wait=wait, print_spec=print_spec, as_json=as_json)
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        os.execv(os.path.join(directory, BIN, "dlapp-run"), ["dlapp-run", *sys.argv[1:]])
    raise UsageError("dlapp-run works inside dlapp-shell only (outside it is: dlapp-launcher FILE)")


def main() -> None:
    """The console script."""
    run(run_)


if __name__ == "__main__":
    main()
