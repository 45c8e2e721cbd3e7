"""TCP sockets of a network namespace with their owners, as /proc shows them.

The owner is the user who made the socket. A socket that its process has closed, or that no process has accepted yet,
has no inode, and its user means nothing.

Source: Documentation/networking/proc_net_tcp.rst; net/ipv4/tcp_ipv4.c, get_tcp4_sock; include/net/tcp_states.h.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import sys
from collections.abc import Iterator
from typing import NamedTuple

_LISTEN = 0x0A
OWN = "/proc/self/net"
_TABLES = "tcp", "tcp6"


class TcpSocket(NamedTuple):
    """One socket.

    Args:
        address, port: its own; an IPv4 address of an IPv6 socket is written as IPv4.
        peer, peer_port: the other end's.
        uid: user who made it.
        inode: of the socket; 0: no process has it.
    """

    address: str
    port: int
    peer: str
    peer_port: int
    is_listening: bool
    uid: int
    inode: int


def sockets(directory: str = OWN) -> Iterator[TcpSocket]:
    """Yield the TCP sockets of a network namespace.

    Args:
        directory: ``/proc/PID/net`` of a process that is in it.
    """
    for name in _TABLES:
        with contextlib.suppress(OSError), open(f"{directory}/{name}", encoding="ascii") as file:
            next(file, None)
            for line in file:
                if (found := _socket_of(line.split())) is not None:
                    yield found


def listeners(port: int, directory: str = OWN) -> list[TcpSocket]:
    """Return the sockets that listen on a port."""
    return [one for one in sockets(directory) if one.is_listening and one.port == port]


def uid_of_peer(connection: socket.socket) -> int | None:
    """Return the user at the other end of a connection within this machine; None: it is not known."""
    ours, theirs = connection.getsockname(), connection.getpeername()
    wanted = (_plain(theirs[0]), theirs[1], _plain(ours[0]), ours[1])
    for one in sockets():
        if one[:4] == wanted and one.inode:
            return one.uid
    return None


def _socket_of(words: list[str]) -> TcpSocket | None:
    try:
        address, port = _place(words[1])
        peer, peer_port = _place(words[2])
        return TcpSocket(address, port, peer, peer_port, int(words[3], 16) == _LISTEN, int(words[7]), int(words[9]))
    except (ValueError, IndexError):
        return None


def _place(text: str) -> tuple[str, int]:
    """Return address and port of ``0100007F:1F90``: words of 32 bits in the byte order of the machine."""
    address, _, port = text.partition(":")
    data = bytes.fromhex(address)
    if sys.byteorder == "little":
        data = b"".join(data[at : at + 4][::-1] for at in range(0, len(data), 4))
    return _plain(socket.inet_ntop(socket.AF_INET if len(data) == 4 else socket.AF_INET6, data)), int(port, 16)


def _plain(address: str) -> str:
    mapped = ipaddress.IPv6Address(address).ipv4_mapped if ":" in address else None
    return str(mapped) if mapped is not None else address
