"""Acceptance of connections from peers that may do anything: what one peer does ends its own connection alone."""

from __future__ import annotations

import errno
from collections.abc import Callable
from enum import Enum
from socket import socket
from typing import Any

_OF_THE_LISTENER = (errno.EBADF, errno.EINVAL, errno.ENOTSOCK)
"""Errors of a listener that is closed, or listens no more; accept(2)."""
_FULL = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Accepted(Enum):
    """Result of `accept_one`.

    ``ONE``: a connection was accepted, or was given up by its peer before. ``NONE``: there is none now (of a listener
    that does not block). ``FULL``: the process or the kernel has no room for another one; those that wait stay in the
    backlog, so the caller has to pause.
    """

    ONE = 0
    NONE = 1
    FULL = 2


def accept_one(
    listener: socket, begin: Callable[[socket, Any], None], report: Callable[[str], None] = lambda line: None
) -> Accepted:
    """Accept one connection and begin to serve it.

    Args:
        listener: a listening socket.
        begin: receives the connection and the peer's address, and owns the connection when it returns. If it raises,
            the connection is closed, and nothing else happens.
        report: receives a line on an error that is not one of the connection.

    Raises:
        OSError: the listener itself listens no more.
    """
    try:
        connection, address = listener.accept()
    except BlockingIOError:
        return Accepted.NONE
    except OSError as error:
        if error.errno in _OF_THE_LISTENER:
            raise
        # Linux also returns here the errors of a connection that ended in the backlog; accept(2), "Error handling".
        return Accepted.FULL if error.errno in _FULL else Accepted.ONE
    try:
        begin(connection, address)
    except Exception as error:
        connection.close()
        if not isinstance(error, OSError):
            report(f"a connection was closed by an internal error: {error!r}")
    return Accepted.ONE
