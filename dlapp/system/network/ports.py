"""TCP ports of this machine that processes of several users share.

A port is a byte of one file in the machine's shared directory (`dlapp.system.shared_directory`): the holder of the lock
on byte N owns port N. The lock is inherited, so it ends with the last process of its holder, even if that is killed.
Nothing is read from the file, and any user may lock any byte of it, just as any user may bind any port.

A lock only excludes processes that use this file. So a port is also tested before it is assigned: one that a process
has bound, or that the kernel still keeps for a closing connection, is skipped. The range must be outside of the
kernel's ephemeral ports, because a client could get one between the test and the holder's own bind.

Source: ip(7), ip_local_port_range; Documentation/networking/ip-sysctl.rst, ip_local_reserved_ports.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket

from dlapp.errors import DlappError
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, closing_on_error, open_file
from dlapp.system.network.port_range import PortRange
from dlapp.system.shared_directory import create_shared_file, open_shared_directory

FILE_NAME = "ports"
_SETTINGS = "/proc/sys/net/ipv4"


class PortsTaken(DlappError):
    """Too few ports of a range are free."""


class LockedPorts:
    """Ports locked by this process and by all that inherit ``fd``, until the last of them has closed it."""

    def __init__(self, fd: int, ports: tuple[int, ...]) -> None:
        self.fd, self.ports = fd, ports

    def are_quiet(self) -> bool:
        """Return whether a server may use all of them: no process listens, and no connection of theirs is closing."""
        return all(map(_may_listen, self.ports))

    def taken_port(self) -> int | None:
        """Return a port on which a process listens; None if all are usable."""
        return next((port for port in self.ports if not _may_listen(port, beside_closing=True)), None)

    def close(self) -> None:
        """Release the ports. Idempotent."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def lock_ports(count: int, ports: PortRange, directory: str, *, begin: int, settings: str = _SETTINGS) -> LockedPorts:
    """Lock unused ports, consecutive ones if there are such.

    Programs that get a range, such as daemons of Open MPI, take any port of it that is free when they start.

    Args:
        count: number of ports; at least 1.
        ports: the range.
        directory: the machine's shared directory; created if missing.
        begin: any number; the search starts at that position of the range, so that a port is not reused immediately.
        settings: directory of the kernel's settings.

    Raises:
        PortsTaken: the range has too few free ports, or overlaps with the kernel's ephemeral ports.
        UntrustedFile, OSError: the file cannot be used.
    """
    if (overlap := ephemeral_overlap(ports, settings)) is not None:
        raise PortsTaken(
            f"the ports {ports} overlap with those that the kernel gives to any client ({overlap}, "
            f"net.ipv4.ip_local_port_range); choose others, or reserve them: sysctl "
            f"net.ipv4.ip_local_reserved_ports={ports}"
        )
    fd = _open(directory)
    with closing_on_error(fd):
        size = ports.last - ports.first + 1
        found: list[int] = []
        for is_consecutive in (True, False):
            for place in range(size):
                port = ports.first + (begin + place) % size
                is_free = _lock_if_free(fd, port)
                if is_consecutive and not (is_free and found and port == found[-1] + 1):
                    _unlock(fd, found)
                if is_free:
                    found.append(port)
                if len(found) == count:
                    return LockedPorts(fd, tuple(found))
            if is_consecutive:
                _unlock(fd, found)
        raise PortsTaken(f"of the ports {ports} only {len(found)} are free on this machine, and {count} are needed")


def _lock_if_free(fd: int, port: int) -> bool:
    if not locks.try_lock(fd, port, 1):
        return False
    if _may_listen(port):
        return True
    locks.unlock(fd, port, 1)
    return False


def _unlock(fd: int, ports: list[int]) -> None:
    """Unlock ports, and empty the list."""
    for port in ports:
        locks.unlock(fd, port, 1)
    ports.clear()


def ephemeral_overlap(ports: PortRange, settings: str = _SETTINGS) -> PortRange | None:
    """Return the kernel's range of ephemeral ports if it overlaps with a range, except for reserved ports."""
    try:
        with open(os.path.join(settings, "ip_local_port_range"), encoding="ascii") as file:
            own = PortRange(*map(int, file.read().split()))
    except (OSError, ValueError, TypeError):
        return None  # those of this namespace cannot be read
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
    with closing_on_error(fd):
        if os.fstat(fd).st_nlink > 1:
            raise UntrustedFile(path, "has other names, by hard links")
    return fd


def _may_listen(port: int, *, beside_closing: bool = False) -> bool:
    """Return whether a server could bind a port on all addresses.

    Args:
        beside_closing: whether closing connections are allowed, as for servers with SO_REUSEADDR.
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
