"""TCP sockets of a network namespace with their owners, from the kernel: by netlink, or from /proc.

The owner is the user who created the socket. A socket that its process has closed, or that is not accepted yet, has no
inode, and its user is meaningless.

A table in /proc has all sockets of its namespace, and reading it takes a quarter of a second on a busy host. Netlink
returns one connection, or only the listening sockets, immediately, for this process's own namespace. If the kernel
lacks it (the module tcp_diag), /proc is read.

Source: sock_diag(7); linux/inet_diag.h; net/ipv4/inet_diag.c. Documentation/networking/proc_net_tcp.rst;
net/ipv4/tcp_ipv4.c, get_tcp4_sock; include/net/tcp_states.h.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterator
from typing import NamedTuple

_LISTEN = 10
OWN = "/proc/self/net"
_TABLES = "tcp", "tcp6"
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_NLM_F_REQUEST, _NLM_F_DUMP = 1, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_HEADER = struct.Struct("=IHHII")
"""struct nlmsghdr: length, type, flags, number, port."""
_REQUEST = struct.Struct("=4BI")
"""The beginning of struct inet_diag_req_v2: family, protocol, extensions, padding, states."""
_SOCKET_ID = struct.Struct("!HH16s16s")
"""The beginning of struct inet_diag_sockid: ports and addresses of both ends. Interface and cookie follow."""
_ANY_COOKIE = bytes(4) + b"\xff" * 8
_ANSWER = struct.Struct("=2B2x48s3I2I")
"""struct inet_diag_msg: family, state, the socket's id, expiry, queues; user and inode."""
_ANSWER_BYTES = 1 << 16
_PATIENCE_S = 5.0
_OVERFLOW_UID = 65534
"""Uid that the kernel shows for the host's root in a user namespace without it. Source: user_namespaces(7)."""


class TcpSocket(NamedTuple):
    """One socket.

    Args:
        address, port: its own; an IPv4 address of an IPv6 socket is written as IPv4.
        peer, peer_port: the other end's.
        uid: user who created it.
        inode: the inode of the socket; 0 if no process has it.
    """

    address: str
    port: int
    peer: str
    peer_port: int
    is_listening: bool
    uid: int
    inode: int


def listeners(port: int, directory: str = OWN) -> list[TcpSocket]:
    """Return the sockets that listen on a port.

    Args:
        directory: ``/proc/PID/net`` of a process in the network namespace.
    """
    found = _listeners_by_netlink() if directory == OWN else None
    if found is None:
        found = [one for one in sockets(directory) if one.is_listening]
    return [one for one in found if one.port == port]


def uid_of_peer(connection: socket.socket) -> int | None:
    """Return the user at the other end of a connection within this machine; None if unknown."""
    found = peer_of(connection)
    return None if found is None else found.uid


def peer_of(connection: socket.socket) -> TcpSocket | None:
    """Return the socket at the other end of a connection within this machine; None if no process has it, or not yet."""
    found = _peer_of(connection)
    # For a socket that is not accepted the kernel reports root, and it reads the user before the inode: if it is
    # accepted in between, the result has root's uid and an inode. A second query is consistent.
    return _peer_of(connection) if found is not None and found.uid in (0, _OVERFLOW_UID) else found


def _peer_of(connection: socket.socket) -> TcpSocket | None:
    ours, theirs = connection.getsockname(), connection.getpeername()
    wanted = (_plain(theirs[0]), theirs[1], _plain(ours[0]), ours[1])
    family = socket.AF_INET6 if ":" in wanted[0] else socket.AF_INET
    addresses = (socket.inet_pton(family, wanted[0]), socket.inet_pton(family, wanted[2]))
    for one in _query_netlink(family, _SOCKET_ID.pack(theirs[1], ours[1], *addresses)) or sockets():
        if one[:4] == wanted and not one.is_listening and one.inode:
            return one
    return None


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


def _listeners_by_netlink() -> list[TcpSocket] | None:
    found: list[TcpSocket] = []
    for family in (socket.AF_INET, socket.AF_INET6):
        if (of_family := _query_netlink(family)) is None:
            return None
        found += of_family
    return found


def _query_netlink(family: int, socket_id: bytes = b"") -> list[TcpSocket] | None:
    """Return the kernel's reply on one socket, or with an empty id on all listening ones; None without a reply."""
    states = 0xFFFFFFFF if socket_id else 1 << _LISTEN
    body = _REQUEST.pack(family, socket.IPPROTO_TCP, 0, 0, states)
    body += (socket_id or bytes(_SOCKET_ID.size)) + _ANY_COOKIE
    flags = _NLM_F_REQUEST | (0 if socket_id else _NLM_F_DUMP)
    found: list[TcpSocket] = []
    try:
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_SOCK_DIAG) as kernel:
            kernel.settimeout(_PATIENCE_S)
            kernel.sendto(_HEADER.pack(_HEADER.size + len(body), _SOCK_DIAG_BY_FAMILY, flags, 1, 0) + body, (0, 0))
            while True:
                data, at = kernel.recv(_ANSWER_BYTES), 0
                while at + _HEADER.size <= len(data):
                    length, kind, *_ = _HEADER.unpack_from(data, at)
                    if kind == _NLMSG_DONE:
                        return found
                    if kind == _NLMSG_ERROR or length < _HEADER.size + _ANSWER.size:
                        return None
                    found.append(_socket_in(data, at + _HEADER.size))
                    if socket_id:
                        return found
                    at += (length + 3) & ~3
    except (OSError, struct.error):
        return None


def _socket_in(data: bytes, at: int) -> TcpSocket:
    """Return the socket in a reply."""
    family, state, socket_id, _, _, _, uid, inode = _ANSWER.unpack_from(data, at)
    port, peer_port, address, peer = _SOCKET_ID.unpack_from(socket_id)
    return TcpSocket(_text(family, address), port, _text(family, peer), peer_port, state == _LISTEN, uid, inode)


def _text(family: int, address: bytes) -> str:
    return _plain(socket.inet_ntop(family, address[:4] if family == socket.AF_INET else address))


def _socket_of(words: list[str]) -> TcpSocket | None:
    """Return the socket in a line of a table, split into fields; None if it is malformed."""
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
