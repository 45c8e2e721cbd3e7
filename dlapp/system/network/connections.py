"""TCP connections to ports, as the kernel lists them.

A connection is visible from the moment it is established until the kernel removes it: if the server closes it first,
that takes a minute, so a request that was answered between two checks is seen. If the client closes it first, a
connection shorter than the interval of the checks may be missed.

Source: Documentation/networking/proc_net_tcp.rst; include/net/tcp_states.h.
"""

from __future__ import annotations

from collections.abc import Collection

_MAX_BYTES = 16 << 20
"""Size limit of a table: 100,000 connections."""
_CONNECTED = (b"01", b"04", b"05", b"06", b"08", b"09", b"0B")
"""Established, or closing: not those that listen, nor those whose client has not answered yet."""


def has_connections(pid: int | None, ports: Collection[int]) -> bool | None:
    """Return whether a port in the network namespace of a process has a connection; None if that cannot be read.

    Args:
        pid: the process; None for this one.
        ports: its local ports.
    """
    tables = []
    for name in ("tcp", "tcp6"):
        try:
            with open(f"/proc/{'self' if pid is None else pid}/net/{name}", "rb") as file:
                tables.append(file.read(_MAX_BYTES))
        except FileNotFoundError:
            continue  # no IPv6, or the process has ended
        except OSError:
            return None
        if len(tables[-1]) == _MAX_BYTES:
            return None
    return any(is_connected(table, ports) for table in tables) if tables else None


def is_connected(table: bytes, ports: Collection[int]) -> bool:
    """Return whether a table of the kernel has a connection with a local port in ``ports``."""
    wanted = {b"%04X" % port for port in ports}
    for line in table.split(b"\n")[1:]:
        words = line.split(maxsplit=4)
        if len(words) > 3 and words[3] in _CONNECTED and words[1].rpartition(b":")[2] in wanted:
            return True
    return False
