"""Ports of an application on which two of its own programs want to listen, such as two ranks 0.

A program that may not listen on its port prints "Address already in use". Most often a program of somebody else has the
port, and another try may help. None helps if the port is one of those that dlapp gave to the containers of this
application, and one of its own programs has it. Only the program knows which port it wanted, so the line of its log is
compared with the roster and with what listens on this host:

- A line that names a port of another container on this host: the program should not listen there, whoever does.
- A line that names a port of this container: no program listened there when the payload started, so one of this
  application did, unless another one listens there now.
- A line without a port: a program of this application listens on a port of this container, which is another container's
  program, since those of this one have ended. Or one listens on a port of another container, and a framework says what
  the ports are for.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from enum import Enum

from dlapp.system.network.tcp_table import listeners
from dlapp.system.processes.open_files import socket_inodes
from dlapp.system.processes.proc import all_processes, read_proc
from dlapp.values.ids import ApplicationId
from dlapp.values.roster import Roster
from dlapp.values.spec import Framework

_PORT = re.compile(
    r"(?i:\bport\W{0,3}|\blocalhost:|(?:[0-9]{1,3}\.){3}[0-9]{1,3}[:<]|(?:\]|%5D|\*|::| ):|', )([0-9]{2,5})(?![0-9])"
)
"""A port in a message: ``port: 29500``, ``10.0.0.1:29500``, ``10.0.0.1<29500>``, ``[::]:29500``, ``:::29500``,
``tcp :29500``, ``('0.0.0.0', 29500)``."""


class Listener(Enum):
    """Program that listens on a port of this host."""

    NONE = "none"
    OURS = "ours"
    """One of this application."""
    ANOTHER = "another"
    """One of which it is not known to be of this application."""


def explain_conflict(
    line: str, roster: Roster, index: int, framework: Framework, listener_on: Callable[[int], Listener]
) -> str:
    """Return what to check, if two programs of this application want to listen on one port; otherwise empty.

    Args:
        line: what the program has printed.
        roster: of its generation.
        index: CONTAINER_INDEX of the program.
        framework: of the application.
        listener_on: the program that listens on a port of this host, now that this container's programs have ended.
    """
    own = roster.at(index)
    holders = {port: one for one in roster.members if one.address == own.address for port in one.ports}
    named = [int(port) for port in _PORT.findall(line)]
    for port in named or holders:
        if (holder := holders.get(port)) is None:
            continue
        is_own = holder.index == index
        if named:
            is_conflict = not is_own or listener_on(port) is not Listener.ANOTHER
        else:
            is_conflict = (is_own or framework is not Framework.NONE) and listener_on(port) is Listener.OURS
        if is_conflict:
            return _advice(port, roster, holder.index, framework)
    return ""


def _advice(port: int, roster: Roster, index: int, framework: Framework) -> str:
    holder = roster.at(index)
    advice = ""
    if framework is not Framework.NONE:
        from dlapp import frameworks

        advice = frameworks.advice_on_conflict(framework, holder, port)
    return advice or f"two programs listen on port {port}, which is that of {holder.role} {holder.role_index}"


def listener_here(application: ApplicationId, port: int) -> Listener:
    """Return the program that listens on a port of this host."""
    found = listeners(port)
    if not found:
        return Listener.NONE
    inodes = {one.inode for one in found if one.uid == os.getuid()}
    mark = b"DLAPP_APP_ID=%s" % str(application).encode()
    for process in all_processes():
        try:
            if inodes.isdisjoint(socket_inodes(process.pid)):
                continue
        except PermissionError:
            continue
        if mark in read_proc(process.pid, "environ").split(b"\0"):
            return Listener.OURS
    return Listener.ANOTHER
