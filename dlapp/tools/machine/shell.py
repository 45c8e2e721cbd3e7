"""dlapp-shell: the application's image and workspace, interactively."""

from __future__ import annotations

import click

from dlapp.tools.common import command, json_option, note


@command("dlapp-shell", example="dlapp-shell --gcores 1 dl_app.properties")
@click.argument("file", metavar="FILE", type=click.Path())
@click.option(
    "--gcores", type=click.IntRange(min=0), metavar="N", help="Lease N GPUs instead of the number in the file."
)
@click.option("--no-input", is_flag=True, help="Do not copy the input into the workspace.")
@click.option("--cluster", metavar="NAME", help="In a container of this engine, such as yarn, instead of here.")
@json_option("Print how it ended as JSON, as the last line, once it is closed.")
def main(file: str, gcores: int | None, no_input: bool, cluster: str | None, as_json: bool) -> int:
    """Open a shell in the environment that FILE's program runs in.

    It is the same image, or a plain process; the workspace is your own, so edits stay; the input is brought into it
    as a run would. 'dlapp-run' inside submits the application with the workspace as it is then.

    With --cluster an application is submitted that waits for this shell: the workspace is a copy there, and nothing
    of it is kept. The application ends with the shell.
    """
    from dlapp.client import Client
    from dlapp.client.command_session import SessionClosed
    from dlapp.client.shell.local_shell import open_shell
    from dlapp.tools.display.progress import copying_bar

    try:
        if cluster is None:
            code = open_shell(
                Client(),
                file,
                gcores=gcores,
                fetch_input=not no_input,
                note=note,
                copying=copying_bar,
            )
        else:
            code = _open_on_cluster(cluster, file, gcores=gcores, fetch_input=not no_input)
    except SessionClosed as closed:
        code = 128 + closed.number
    if as_json:
        # Output from inside precedes it and may lack a final line end: a separate line can be distinguished from that.
        click.echo(f'\n{{"exit_code": {code}}}')
    return code


def _open_on_cluster(cluster: str, file: str, *, gcores: int | None, fetch_input: bool) -> int:
    from dlapp.client import Client
    from dlapp.client.shell.on_cluster import open_shell_on_cluster

    client = Client(cluster=cluster, note=note)
    return open_shell_on_cluster(client, file, gcores=gcores, fetch_input=fetch_input, note=note)
