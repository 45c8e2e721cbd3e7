"""dlapp-shell on a cluster: the container's workspace is a packed copy, and nothing of it is kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlapp.application.description import read_application
from dlapp.client.command_session import signals_close
from dlapp.client.shell.container_shell import ContainerShell, ShellOptions, role_variables, shell_spec

if TYPE_CHECKING:
    from dlapp.client import Client


def open_shell_on_cluster(client: Client, path: str, options: ShellOptions) -> int:
    """Submit the application, and connect this process to a shell in its container. Return the shell's exit code.

    Args:
        client: the client of the cluster.
        path: the path of the properties file.
        options: of the command.

    Raises:
        FileRefused: the file has errors; the message lists all of them.
        DlappError: the application ended before there was a shell.
        SessionClosed: a signal ended this before.
    """
    resolved = read_application(path, client.config, client.engine.info(), script_may_be_missing=True)
    spec = shell_spec(resolved.spec, gcores=options.gcores, fetch_input=options.fetch_input)
    with signals_close():
        application = client.submit(spec, env=resolved.env, role_env=role_variables(resolved), note=options.note)
        options.note(f"dlapp-shell: {application.id} is submitted, and ends with this shell")
        shell = ContainerShell(client, application, options, is_live=False)
        return shell.run(lambda _: "dlapp-shell: the workspace here is a copy, and nothing of it is kept; exit closes")
