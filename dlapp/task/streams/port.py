"""Streams of the kind ``port``: a TCP port of the payload.

    {"port": 8888}                  the stream is a connection to that port
    {"port": 8888, "look": true}    the stream is one JSON object: where the port can be reached directly (`PortPlace`)

Only a port on which the payload itself listens can be reached. In a container with its own network that is any port of
that network. In the network of the host, which other users share, the socket must have been created by the payload's
user, and is reached at its bound address. After connecting, the owner of the accepting socket is checked again before
anything is sent.

That user also has other programs on the host. So users in `view_acl` only reach sockets that the payload's own
processes hold.

A container's own network is entered by this process if permitted (root), so ports of the container's loopback interface
are reached as well. Otherwise the container's address is taken from Docker.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator, Sequence

from dlapp.errors import DlappError
from dlapp.net.relay import copy_both
from dlapp.net.streams import NOT_OPEN, StreamRefused
from dlapp.runtime.exec.keeper import NAME
from dlapp.runtime.payload import PayloadPlace
from dlapp.system.files import closing_fd
from dlapp.system.machine import boot_id
from dlapp.system.network import tcp_table
from dlapp.system.network.addresses import is_loopback
from dlapp.system.network.tcp_table import TcpSocket
from dlapp.system.owners import user_name
from dlapp.system.processes import kernel
from dlapp.system.processes.open_files import socket_inodes
from dlapp.system.processes.proc import ProcessStat, descendant_processes, read_proc, start_time
from dlapp.task.streams.stream import Stream
from dlapp.values.messages import PortPlace
from dlapp.values.serialization import to_json

CONNECT_S = 5.0
_ANY = "0.0.0.0", "::"


def serve(stream: Stream) -> None:
    """Connect the stream with the port, or send its place.

    Raises:
        StreamRefused: the payload does not listen there.
    """
    port = stream.head.get("port")
    if not isinstance(port, int) or not 0 < port < 65536:
        raise StreamRefused("the number of a port is 1 to 65535")
    where = _container_sockets(stream.place, port) if stream.place.own_network else _host_sockets(stream, port)
    if stream.head.get("look") is True:
        data = json.dumps(to_json(_place_of(stream, where))).encode()
        with stream.accept() as connection:
            connection.sendall(data)
        return
    local = _connect(stream.place, where, port)
    try:
        _check_reached(stream, local, port)
        remote = stream.accept()
    except DlappError:
        local.close()
        raise
    copy_both(remote, local)


def _host_sockets(stream: Stream, port: int) -> list[TcpSocket]:
    """Return the payload's sockets that listen on a port of this host, those for all addresses first."""
    host, there = stream.host, tcp_table.listeners(port)
    # A task runs as its payload's user.
    own = [one for one in there if one.uid == os.getuid()]
    if own and stream.for_viewer:
        own = _of_payload(stream, port, own)
    elif there and not own:
        raise StreamRefused(f"port {port} of {host} is {user_name(there[0].uid)}'s, not this application's")
    if not own:
        raise StreamRefused(f"nothing listens on port {port} yet", NOT_OPEN)
    if len(own) < len(there):
        # Another user may listen on another address of the same port; only a socket bound to one address can be
        # distinguished. Another program of the same user can have the very same address (SO_REUSEPORT).
        taken = {one.address for one in there if one not in own}
        own = [one for one in own if one.address not in (*_ANY, *taken)]
        if not own:
            raise StreamRefused(f"port {port} of {host} is used by {user_name(there[0].uid)}, too")
    return sorted(own, key=lambda one: (one.address not in _ANY, is_loopback(one.address), one.address))


def _of_payload(stream: Stream, port: int, found: Sequence[TcpSocket]) -> list[TcpSocket]:
    """Return those sockets of the payload's user that the payload's processes hold.

    Raises:
        StreamRefused: there are none, or they cannot be read.
    """
    place, unseen = stream.place, not stream.place.pid
    inodes: set[int] = set()
    if place.pid and start_time(place.pid) == place.started:
        # The processes are read from /proc, so only for users other than the owner.
        for pid in (place.pid, *_without_commands(descendant_processes(place.pid))):
            try:
                inodes |= socket_inodes(pid)
            except PermissionError:
                unseen = True
    own = [one for one in found if one.inode in inodes]
    if not own and unseen:
        raise StreamRefused(
            f"the processes of the program cannot be inspected on {stream.host}: its owner alone reaches port {port}"
        )
    if not own:
        raise StreamRefused(f"port {port} of {stream.host} is another program's of the same user")
    return own


def _without_commands(processes: Sequence[ProcessStat]) -> Iterator[int]:
    """Yield the pids of those that no `dlapp-exec` of the owner has started. Parents come before their children."""
    left_out: set[int] = set()
    for one in processes:
        if one.parent in left_out or read_proc(one.pid, "comm").strip() == NAME.encode():
            left_out.add(one.pid)
        else:
            yield one.pid


def _container_sockets(place: PayloadPlace, port: int) -> list[TcpSocket]:
    """Return the sockets that listen on a port in the network of a container; empty if they cannot be read."""
    if not place.pid:
        return []
    there = tcp_table.listeners(port, f"/proc/{place.pid}/net")
    if not there and start_time(place.pid) == place.started and os.access(f"/proc/{place.pid}/net/tcp", os.R_OK):
        raise StreamRefused(f"nothing listens on port {port} yet", NOT_OPEN)
    return there


def _place_of(stream: Stream, where: list[TcpSocket]) -> PortPlace:
    """Return the addresses at which others reach a port directly."""
    if stream.place.own_network:
        return PortPlace()
    found = (stream.host if one.address in _ANY else one.address for one in where if not is_loopback(one.address))
    loopback = next((near for one in where for near in _nearest(one.address) if is_loopback(near)), "")
    network = os.stat("/proc/self/ns/net").st_ino
    return PortPlace(hosts=tuple(dict.fromkeys(found)), loopback=loopback, boot=boot_id(), network=network)


def _nearest(address: str) -> tuple[str, ...]:
    """Return the host's addresses for a socket that is bound to one address or to all."""
    return {"0.0.0.0": ("127.0.0.1",), "::": ("::1", "127.0.0.1")}.get(address, (address,))


def _connect(place: PayloadPlace, where: list[TcpSocket], port: int) -> socket.socket:
    addresses = [near for one in where for near in _nearest(one.address)]
    if not place.own_network:
        return _first_of(addresses, port)
    if place.pid and (entered := _inside(place, addresses or ["127.0.0.1", "::1"], port)) is not None:
        return entered
    bound = {one.address for one in where}
    if bound and all(map(is_loopback, bound)):
        raise StreamRefused(
            f"the program listens on port {port} of {', '.join(sorted(bound))} alone, inside its container, which only "
            "root may enter: let it listen on 0.0.0.0"
        )
    return _first_of(list(place.addresses), port)


def _check_reached(stream: Stream, local: socket.socket, port: int) -> None:
    """Refuse a connection that does not reach the payload: its port or address may have been reused since the
    lookup.
    """
    place = stream.place
    if place.own_network:
        if place.pid and start_time(place.pid) != place.started:
            raise StreamRefused("the program has ended", NOT_OPEN)
    elif not _is_own(stream, local, port):
        raise StreamRefused(f"port {port} of {stream.host} is not this application's any more", NOT_OPEN)


def _is_own(stream: Stream, local: socket.socket, port: int) -> bool:
    """Return whether a connection within the network of this host reaches the payload's user, and for a viewer the
    payload."""
    # The order matters: a connection that is still not accepted at the end belongs to the socket that has listened
    # there since the connect.
    try:
        address = local.getpeername()[0]
        is_listening = any(address in _nearest(one.address) for one in _host_sockets(stream, port))
    except StreamRefused:
        is_listening = False  # a server may accept one connection and stop listening
    except OSError:
        return False  # the connection is closed
    try:
        peer = tcp_table.peer_of(local)
        if peer is not None and peer.uid == os.getuid() and stream.for_viewer:
            return bool(_of_payload(stream, port, [peer]))
    except (OSError, StreamRefused):
        return False
    return is_listening if peer is None else peer.uid == os.getuid()


def _first_of(addresses: list[str], port: int) -> socket.socket:
    """Return a connection to the first address that accepts it. Raises StreamRefused: none does."""
    problem = "it has no address"
    for address in addresses:
        try:
            return socket.create_connection((address, port), timeout=CONNECT_S)
        except OSError as error:
            problem = f"{address}: {error.strerror or error}"
    raise StreamRefused(f"port {port} cannot be reached: {problem}", NOT_OPEN)


def _inside(place: PayloadPlace, addresses: list[str], port: int) -> socket.socket | None:
    """Return a connection from inside the network of a container; None if we may not enter it."""
    done: list[socket.socket | DlappError] = []

    def work() -> None:
        try:
            with closing_fd(os.open(f"/proc/{place.pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)) as fd:
                # From here on the descriptor refers to the namespace, even if the pid is reused.
                if start_time(place.pid) != place.started:
                    raise StreamRefused("the program has ended", NOT_OPEN)
                kernel.enter_network(fd)
                done.append(_first_of(addresses, port))
        except StreamRefused as error:
            done.append(error)
        except OSError:
            return  # we may not enter it

    # A thread cannot leave the entered network, so this one ends.
    thread = threading.Thread(target=work, name="enter", daemon=True)
    thread.start()
    thread.join()
    if not done:
        return None
    if isinstance(done[0], DlappError):
        raise done[0]
    return done[0]
