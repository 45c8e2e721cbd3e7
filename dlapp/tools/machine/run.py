"""dlapp-run: requests of dlapp-shell's own script. Outside of a shell it prints where it can be used.

Inside a shell the script is first in PATH. If this program is found instead, it executes the script; and the
dlapp-shell process outside starts this program to do the work.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from dlapp.errors import UsageError
from dlapp.tools.common import ProgramCommand, command, json_option, override_options

if TYPE_CHECKING:
    from dlapp.application.overrides import Overrides

_OF_ROLES = ("instances", "memory", "vcores", "gcores", "nodes", "exclude_nodes", "node_label", "retries")


@command("dlapp-run", example="dlapp-run --wait", kind=ProgramCommand)
@click.option("--wait", is_flag=True, help="Show the progress until the application ends, and exit with its code.")
@click.option("--print-spec", is_flag=True, help="Print what would be submitted as JSON; submit nothing.")
@click.option("--cluster", metavar="NAME", help="Submit to this engine instead of the configured one.")
@override_options("a key of [resources], or the same of a role,")
@json_option("Print the result as JSON; the lines for people go to stderr.")
def main(
    wait: bool,
    print_spec: bool,
    cluster: str | None,
    settings: Sequence[str],
    variables: Sequence[str],
    as_json: bool,
    program_args: tuple[str, ...] | None,
) -> int:
    """Submit the application of dlapp-shell from inside it, with the workspace as it is now.

    The words after -- are the program's arguments, in place of user_shell_args.
    """
    from dlapp.client.shell.server import BIN, DIRECTORY_VARIABLE, START_VARIABLE

    if path := os.environ.get(START_VARIABLE):
        from dlapp.client import Client
        from dlapp.client.shell.start import read_start
        from dlapp.tools.applications.launcher import launch

        snapshot, config = read_start(path, cluster=cluster)
        overrides = _overrides(settings, variables, program_args)
        return launch(Client(config), snapshot, overrides, wait=wait, print_spec=print_spec, as_json=as_json)
    if directory := os.environ.get(DIRECTORY_VARIABLE):
        # With `dlapp run` its own name is among the arguments.
        first = 1 if click.get_current_context().parent is None else sys.argv.index("run") + 1
        os.execv(os.path.join(directory, BIN, "dlapp-run"), ["dlapp-run", *sys.argv[first:]])
    raise UsageError("dlapp-run works inside dlapp-shell only (outside it is: dlapp-launcher FILE)")


def _is_amount(name: str) -> bool:
    section, _, rest = name.partition(".")
    return section == "resources" or (section == "role" and rest.partition(".")[2] in _OF_ROLES)


def _overrides(settings: Sequence[str], variables: Sequence[str], program_args: tuple[str, ...] | None) -> Overrides:
    """Return the overrides that the shell may set: inputs of the program, which the shell's workspace determines
    anyway.

    A program in the shell's container is not trusted. It must not choose what is read and written as the user: paths,
    or variables of the process outside.

    Raises:
        UsageError: it is another key, or a variable without a value.
    """
    from dlapp.application.overrides import Overrides, read_env_options, read_set_options

    found = read_set_options(settings)
    if other := next((name for name in found if not _is_amount(name)), None):
        raise UsageError(
            f"--set {other}: inside dlapp-shell only keys of [resources] can be set, and the same of a role "
            "(outside: dlapp-launcher)"
        )
    return Overrides(found, read_env_options(variables, {}), program_args)
