"""Addresses at which other machines reach this one.

Names are not used: a node's own name often resolves to 127.0.1.1 on itself, and is unknown to its peers.
"""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
from collections.abc import Sequence

from dlapp.errors import NotFound

_SIOCGIFADDR = 0x8915
_INET6_TABLE = "/proc/net/if_inet6"
_GLOBAL_SCOPE = "00"
_ANY_PORT = 9


def is_loopback(address: str) -> bool:
    """Return whether an address can only be reached from this machine."""
    return address.startswith("127.") or address == "::1"


def address_towards(hosts: Sequence[str]) -> str:
    """Return the source address of this machine's packets to others.

    Args:
        hosts: names or addresses of others, the most important first. The first one that is not this machine counts; if
            all are, the result is a loopback address.

    Raises:
        NotFound: none of them has a reachable address.
    """
    found = ""
    for host in hosts:
        for address in _addresses_towards(host):
            if not is_loopback(address):
                return address
            found = found or address
    if not found:
        raise NotFound(f"no route to {', '.join(hosts)}")
    return found


def _addresses_towards(host: str) -> list[str]:
    found = []
    with contextlib.suppress(OSError):
        for family, _, _, _, place in socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM):
            # A connected UDP socket gets its address from the routing table, and sends nothing.
            with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect(place)
                address = str(probe.getsockname()[0])
                if "%" not in address:  # a link-local address is useless without the interface's name
                    found.append(address)
    return found


def address_of_interface(name: str) -> str:
    """Return the address of an interface: the IPv4 address, or the first global one of IPv6.

    Raises:
        NotFound: there is no such interface, or it has no address.
    """
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        # struct ifreq: the name, then struct sockaddr_in. Source: netdevice(7).
        answer = fcntl.ioctl(any_socket, _SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))
        return socket.inet_ntoa(answer[20:24])
    for address, interface in _inet6_addresses():
        if interface == name:
            return address
    raise NotFound(f"there is no network interface {name} with an address")


def interface_of(address: str) -> str:
    """Return the name of the interface with an address; empty if unknown."""
    for _, name in socket.if_nameindex():
        with contextlib.suppress(NotFound):
            if address_of_interface(name) == address:
                return name
    return next((name for one, name in _inet6_addresses() if one == address), "")


def _inet6_addresses() -> list[tuple[str, str]]:
    # address, number, prefix length, scope, flags, name. Source: proc(5).
    try:
        with open(_INET6_TABLE, encoding="ascii") as file:
            rows = [line.split() for line in file]
    except OSError:
        return []  # no IPv6
    return [
        (socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])), row[5])
        for row in rows
        if len(row) == 6 and (row[3] == _GLOBAL_SCOPE or row[5] == "lo")
    ]
