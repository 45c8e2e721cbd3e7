"""dlapp-shell: the application's image and workspace, interactively."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from dlapp.tools.common import command, json_option, note

if TYPE_CHECKING:
    from dlapp.client.shell.container_shell import ShellOptions


@command("dlapp-shell", example="dlapp-shell --gcores 1 dl_app.properties")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--gcores", type=click.IntRange(min=0), metavar="N", help="Lease N GPUs instead of the number in the file."
)
@click.option("--no-input", is_flag=True, help="Do not copy the input into the workspace.")
@click.option("--wait", is_flag=True, help="Wait for the GPUs, instead of ending where they are not free.")
@click.option("--cluster", metavar="NAME", help="In a container of this engine, such as yarn, instead of here.")
@json_option("Print how it ended as JSON, as the last line, once it is closed.")
def main(file: str, gcores: int | None, no_input: bool, wait: bool, cluster: str | None, as_json: bool) -> int:
    """Open a shell in the environment that FILE's program runs in.

    It is the same image, or a plain process; the workspace is your own, so edits stay; the input is brought into it
    as a run would. 'dlapp-run' inside submits the application with the workspace as it is then.

    It is an application that ends with the shell. With --cluster the workspace is a copy there, nothing of it is kept,
    and the shell always waits for its container.
    """
    from dlapp.client.command_session import SessionClosed
    from dlapp.client.shell.container_shell import ShellOptions
    from dlapp.tools.display.progress import opening_display

    try:
        with opening_display() as show:
            options = ShellOptions(gcores=gcores, fetch_input=not no_input, waits=wait, note=note, show=show)
            code = _open(file, options, cluster)
    except SessionClosed as closed:
        code = 128 + closed.number
    if as_json:
        # Output from inside precedes it and may lack a final line end: a separate line can be distinguished from that.
        click.echo(f'\n{{"exit_code": {code}}}')
    return code


def _open(file: str, options: ShellOptions, cluster: str | None) -> int:
    from dlapp.client import Client

    if cluster is not None:
        from dlapp.client.shell.cluster_shell import open_shell_on_cluster

        return open_shell_on_cluster(Client(cluster=cluster, note=note), file, options)
    from dlapp.client.shell.live_shell import open_live_shell

    own = Client(note=note)
    here = own if own.config.cluster == "local" else Client(own.config, cluster="local", note=note)
    return open_live_shell(here, own, file, options)
