"""dlapp-exec: a command in a container of a running application."""

from __future__ import annotations

import click

from dlapp.errors import UsageError
from dlapp.tools.common import ProgramCommand, command, complete_id, json_option, note


@command("dlapp-exec", example="dlapp-exec -it application_1700000000000_0042 0 -- bash", kind=ProgramCommand)
@click.argument("application", metavar="ID", shell_complete=complete_id(unfinished=True))
@click.argument("container", metavar="[INDEX|ROLE:INDEX]", required=False)
@click.option("--trial", type=click.IntRange(min=0), metavar="N", help="In a sweep: run it beside trial N.")
@click.option("-i", "--interactive", is_flag=True, help="Pass standard input on; else the command's is empty.")
@click.option("-t", "--tty", "terminal", is_flag=True, help="Give the command a terminal, with this one's size.")
@json_option("Print how it ended as JSON, as the last line.")
def main(
    application: str,
    container: str | None,
    trial: int | None,
    interactive: bool,
    terminal: bool,
    as_json: bool,
    program_args: tuple[str, ...] | None,
) -> int:
    """Run a command in a container of a running application, beside its program.

    It runs as the same user, with the same limits, environment, working directory and GPUs, and ends with this
    command, with the container, or by itself; its exit code is passed on. ID is an application's id, a unique ending
    of it, or 'last'; INDEX is CONTAINER_INDEX, and 0 where it is left out. In a sweep it runs beside a trial: the only
    one that runs in the container, or the one of --trial, whose container is found. Only the owner may.
    """
    from dlapp.client import Client
    from dlapp.client.streams.exec import exec_command, exec_request

    if not program_args:
        raise UsageError("which command? dlapp-exec ID [INDEX] [--trial N] -- COMMAND [ARGUMENT...]")
    request = exec_request(program_args, interactive=interactive, terminal=terminal)
    client = Client()
    end = exec_command(client, client.resolve(application), container, request, trial)
    if end.message:
        note(f"dlapp-exec: {end.message}")
    if as_json:
        import json

        # The command's output precedes it and may lack a final line end.
        click.echo("\n" + json.dumps({"exit_code": end.code, "message": end.message}))
    return end.code
