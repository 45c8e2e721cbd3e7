"""dlapp-port: a port of a container on this machine."""

from __future__ import annotations

import click

from dlapp.tools.common import command, complete_id, json_option, note, print_json, say


@command("dlapp-port", example="dlapp-port last worker:0 8888")
@click.argument("application", metavar="ID", shell_complete=complete_id(unfinished=True))
@click.argument("container", metavar="ROLE[:INDEX]")
@click.argument("port", metavar="PORT", type=click.IntRange(1, 65535))
@click.argument("local", metavar="[LOCAL]", type=click.IntRange(1, 65535), required=False)
@json_option("Print the ports as JSON.")
def main(application: str, container: str, port: int, local: int | None, as_json: bool) -> None:
    """Bring a TCP port of a running program to this machine, until Ctrl-C or the application's end.

    ID is an application's id, a unique ending of it, or 'last'. INDEX counts the containers of a role from 0 (the
    default). LOCAL is the port here; without it that is PORT or another free one, and the line on standard output
    says which.

    Connections go directly where the container's host can be reached at its port, else through the
    application's ApplicationMaster. Only programs of your own user can connect to the port here.
    """
    from dlapp.client import Client
    from dlapp.client.streams.opening import read_role_index
    from dlapp.client.streams.ports import PortForward

    client = Client(note=note)
    application_id = client.resolve(application)
    role, number = read_role_index(container)
    index = client.index_of(application_id, role, number)
    with PortForward(client, application_id, index, port, local, say=note) as forward:
        if as_json:
            ports = {"port": port, "local": forward.local_port}
            print_json({"application_id": str(application_id), "index": index, **ports})
        else:
            say(f"127.0.0.1:{forward.local_port} : port {port} of {role}:{number} of {application_id}")
        note(forward.run())
