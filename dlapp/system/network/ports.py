"""TCP ports of this machine that processes of several users share out among themselves.

A port is a byte of one file of the machine's shared directory (`dlapp.system.shared_directory`): who holds the lock on
byte N has port N. The lock is inherited, so it ends with the last process of its holder, however that ends. Nothing is
read from the file, and any user may lock any byte of it, as any user may bind any port.

A lock keeps away only those who take theirs here. So a port is also tried before it is given: one that a process has
bound, or that the kernel still keeps for a connection that is closing, is passed over. The range must lie outside of
the ports that the kernel gives to clients by itself, for a client could get one between that moment and the holder's
own bind.

Source: ip(7), ip_local_port_range; Documentation/networking/ip-sysctl.rst, ip_local_reserved_ports.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from dlapp.errors import DlappError
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, open_file
from dlapp.system.network.port_range import PortRange
from dlapp.system.shared_directory import create_shared_file, open_shared_directory

FILE_NAME = "ports"
_SETTINGS = "/proc/sys/net/ipv4"


class PortsTaken(DlappError):
    """Too few ports of a range are free."""


class LockedPorts:
    """Ports that this process has locked; also those who inherit ``fd``, until the last of them has closed it."""

    def __init__(self, fd: int, ports: tuple[int, ...]) -> None:
        self.fd, self.ports = fd, ports

    def are_quiet(self) -> bool:
        """Return whether any server may use all of them: nobody listens, and no connection of theirs is closing."""
        return all(map(_may_listen, self.ports))

    def taken_port(self) -> int | None:
        """Return a port on which somebody listens; None: all may be used."""
        return next((port for port in self.ports if not _may_listen(port, beside_closing=True)), None)

    def close(self) -> None:
        """Let go of them. May be repeated."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def lock_ports(count: int, ports: PortRange, directory: str, *, begin: int, settings: str = _SETTINGS) -> LockedPorts:
    """Lock ports that nobody uses.

    Args:
        count: how many; at least 1.
        ports: the range.
        directory: the machine's shared directory; it is made if it is missing.
        begin: any number; the search begins at that place of the range, so that a port rests before it is given again.
        settings: where the kernel's settings are.

    Raises:
        PortsTaken: the range has too few that are free, or overlaps with the ports of the kernel.
        UntrustedFile, OSError: the file cannot be used.
    """
    if (overlap := ephemeral_overlap(ports, settings)) is not None:
        raise PortsTaken(
            f"the ports {ports} overlap with those that the kernel gives to any client ({overlap}, "
            f"net.ipv4.ip_local_port_range); choose others, or reserve them: sysctl "
            f"net.ipv4.ip_local_reserved_ports={ports}"
        )
    fd, found = _open(directory), []
    try:
        size = ports.last - ports.first + 1
        for place in range(size):
            port = ports.first + (begin + place) % size
            if not locks.try_lock(fd, port, 1):
                continue
            if not _may_listen(port):
                locks.unlock(fd, port, 1)
                continue
            found.append(port)
            if len(found) == count:
                return LockedPorts(fd, tuple(found))
        raise PortsTaken(f"of the ports {ports} only {len(found)} are free on this machine, and {count} are needed")
    except BaseException:
        os.close(fd)
        raise


def ephemeral_overlap(ports: PortRange, settings: str = _SETTINGS) -> PortRange | None:
    """Return the kernel's range of ports for clients if it overlaps with a range, but for what is reserved there."""
    try:
        with open(os.path.join(settings, "ip_local_port_range"), encoding="ascii") as file:
            own = PortRange(*map(int, file.read().split()))
    except (OSError, ValueError, TypeError):
        return None  # of this namespace they cannot be seen
    shared = set(range(max(ports.first, own.first), min(ports.last, own.last) + 1))
    reserved = os.path.join(settings, "ip_local_reserved_ports")
    with contextlib.suppress(OSError, ValueError), open(reserved, encoding="ascii") as file:
        for part in filter(None, file.read().strip().split(",")):
            first, _, last = part.partition("-")
            shared.difference_update(range(int(first), int(last or first) + 1))
    return own if shared else None


def _open(directory: str) -> int:
    with closing_fd(open_shared_directory(directory, make=True)) as where:
        path = os.path.join(directory, FILE_NAME)
        for is_last in (False, True):
            try:
                fd = open_file(FILE_NAME, dir_fd=where, path=path, write=True)
                break
            except FileNotFoundError:
                if is_last:
                    raise
                create_shared_file(FILE_NAME, where)
    if os.fstat(fd).st_nlink > 1:
        os.close(fd)
        raise UntrustedFile(path, "has other names, by hard links")
    return fd


def _may_listen(port: int, *, beside_closing: bool = False) -> bool:
    """Return whether a server could bind a port of all addresses.

    Args:
        beside_closing: also while the kernel keeps it for connections that are closing, as servers with SO_REUSEADDR.
    """
    for family, everywhere in ((socket.AF_INET6, "::"), (socket.AF_INET, "0.0.0.0")):
        try:
            with socket.socket(family, socket.SOCK_STREAM) as probe:
                if family == socket.AF_INET6:
                    probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(beside_closing))
                probe.bind((everywhere, port))
        except OSError as error:
            if error.errno in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
                continue  # no IPv6 here
            if error.errno in (errno.EADDRINUSE, errno.EACCES):
                return False
            raise
        return True
    return True
