"""A local port that serves only the user of this process.

It is on the loopback interface, which every user of this machine can reach. So a connection is accepted only if the
kernel reports that this user owns the socket at its other end; any other is reset before a byte is read.
"""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections.abc import Callable

from dlapp.errors import UsageError
from dlapp.net.accepting import Accepted, accept_one
from dlapp.net.relay import reset
from dlapp.system.network.tcp_table import uid_of_peer
from dlapp.system.owners import user_name
from dlapp.value import Closeable

MAX_CONNECTIONS = 256
_FAMILIES = (socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")
_NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)
_TRIES = 20


class LocalPort(Closeable):
    """Listener on both loopback addresses, until it is closed.

    Args:
        wanted: the port; None for ``like``, or another one if that is taken or not permitted.
        like: see ``wanted``; 0: any.
        serve: serves one connection in its own thread, and closes it.
        say: called with lines for the user, by any thread.

    Raises:
        UsageError: the wanted port is taken, or not permitted.
    """

    def __init__(
        self, wanted: int | None, like: int, serve: Callable[[socket.socket], None], say: Callable[[str], None]
    ) -> None:
        self._serve, self._say = serve, say
        self._listeners = _listen(wanted, like)
        self.port = int(self._listeners[0].getsockname()[1])
        self._connections: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._is_closed = False
        self._wake_in, self._wake_out = socket.socketpair()
        self._thread = threading.Thread(target=self._accept, name="port-accept", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Close the port and reset all connections. Idempotent."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._wake_out.close()
        self._thread.join()
        for one in (*self._listeners, self._wake_in):
            one.close()
        with self._lock:
            for one in self._connections:
                # Its thread has it open, and detects the reset.
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        poll = select.poll()
        for one in (*self._listeners, self._wake_in):
            poll.register(one, select.POLLIN)
        by_fd = {one.fileno(): one for one in self._listeners}
        while True:
            for fd, _ in poll.poll():
                if fd not in by_fd:
                    return
                if accept_one(by_fd[fd], self._start_connection, self._say) is Accepted.FULL:
                    self._say(f"a connection to port {self.port} has to wait: too many open files")
                    select.select([self._wake_in], [], [], 1.0)

    def _start_connection(self, connection: socket.socket, _: object) -> None:
        uid = uid_of_peer(connection)
        if uid != os.geteuid():
            whose = "whose user is not known" if uid is None else f"of {user_name(uid)}"
            self._say(f"refused a connection {whose} to port {self.port}")
            reset(connection)
            return
        with self._lock:
            is_too_much = len(self._connections) >= MAX_CONNECTIONS
            if not is_too_much:
                self._connections.add(connection)
        if is_too_much:
            self._say(f"refused a connection to port {self.port}: there are {MAX_CONNECTIONS} already")
            reset(connection)
            return
        try:
            threading.Thread(target=self._run, args=(connection,), name="port-connection", daemon=True).start()
        except RuntimeError:  # no more threads
            self._forget(connection)
            self._say(f"refused a connection to port {self.port}: no thread can be started")

    def _run(self, connection: socket.socket) -> None:
        try:
            self._serve(connection)
        except OSError:
            pass  # the peer has reset it
        except Exception as error:
            self._say(f"a connection to port {self.port} was closed by an internal error: {error!r}")
        finally:
            self._forget(connection)

    def _forget(self, connection: socket.socket) -> None:
        with self._lock:
            self._connections.discard(connection)
        connection.close()


def _listen(wanted: int | None, like: int) -> list[socket.socket]:
    """Return sockets that listen on one port of both loopback addresses, or of the one that exists.

    If another user had the port on the other address, a browser that opens localhost could reach that user.
    """
    last = OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
    for port in [like, *[0] * _TRIES] if wanted is None else [wanted]:
        try:
            return _listen_on(port)
        except OSError as error:
            last = error
    raise UsageError(f"the local port {wanted or like} cannot be used: {last.strerror}") from last


def _listen_on(port: int) -> list[socket.socket]:
    found: list[socket.socket] = []
    try:
        for family, address in _FAMILIES:
            try:
                one = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                if family is socket.AF_INET6 and error.errno in _NO_IPV6:
                    break
                raise
            found.append(one)
            one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6:
                one.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            try:
                one.bind((address, port))
            except OSError as error:
                if family is socket.AF_INET6 and error.errno in _NO_IPV6:
                    found.pop().close()
                    break
                raise
            one.listen(128)
            one.setblocking(False)
            port = one.getsockname()[1]
    except OSError:
        for one in found:
            one.close()
        raise
    return found
