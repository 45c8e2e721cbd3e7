"""Readiness of a server, as its port shows it."""

from __future__ import annotations

import socket

from dlapp.system.text import lazy_pattern

_TRY_EVERY_S, _CONNECT_S, _ANSWER_S = 1.0, 0.2, 30.0
_STATUS_LINE = lazy_pattern(rb"HTTP/1\.[01] ([0-9]{3})[ \r]")
_STATUS_BYTES = 13


class ReadinessProbe:
    """Probe of a server's readiness, by a port of this host; once ready, it counts as ready.

    Args:
        place: address and port; a port that does not accept connections is not ready.
        path: a GET of it must be answered with a status from 200 to 399; empty: a connection is enough.
        uid: with a path that is a secret, the user to whom alone it is sent, in this process's network: the connection
            must have been accepted by a process of this user, by the kernel's table; None: by any process.
    """

    def __init__(self, place: tuple[str, int], path: str = "", uid: int | None = None) -> None:
        self._place, self._path, self._uid = place, path, uid
        self._head = b""
        self.is_ready = False
        self._next_try = float("-inf")
        self._socket: socket.socket | None = None
        self._answer, self._until = b"", 0.0

    def check(self, now_s: float) -> None:
        """Go on with the try, without waiting for an answer.

        Args:
            now_s: the time [s, monotonic].
        """
        if self.is_ready:
            return
        try:
            if self._socket is not None:
                self._read(self._socket, now_s)
            elif now_s >= self._next_try:
                self._next_try = now_s + _TRY_EVERY_S
                self._connect(now_s)
        except OSError:
            self.close()

    def _connect(self, now_s: float) -> None:
        connection = socket.create_connection(self._place, timeout=_CONNECT_S)
        if not self._path:
            connection.close()
            self.is_ready = True
            return
        self._socket, self._answer, self._until = connection, b"", now_s + _ANSWER_S
        address, port = self._place
        host = f"[{address}]" if ":" in address else address
        head = f"GET {self._path} HTTP/1.1\r\nHost: {host}:{port}\r\nAccept: */*\r\nConnection: close\r\n\r\n"
        self._head = head.encode()
        connection.setblocking(False)
        self._send(connection, now_s)

    def _send(self, connection: socket.socket, now_s: float) -> None:
        """Send the request as soon as it may be sent.

        Who accepted the connection counts, and not who listens on the port: that can be another one a moment later.
        """
        if self._uid is not None:
            from dlapp.system.network.tcp_table import uid_of_peer

            uid = uid_of_peer(connection)
            if uid is None and now_s < self._until:
                return  # it is not accepted yet
            if uid != self._uid:
                self.close()
                return
        connection.sendall(self._head)
        self._head = b""

    def _read(self, connection: socket.socket, now_s: float) -> None:
        if self._head:
            self._send(connection, now_s)
            return
        try:
            data = connection.recv(_STATUS_BYTES - len(self._answer))
        except BlockingIOError:
            if now_s >= self._until:
                self.close()
            return
        self._answer += data
        if data and len(self._answer) < _STATUS_BYTES:
            return
        found = _STATUS_LINE.match(self._answer)
        self.is_ready = found is not None and 200 <= int(found[1]) < 400
        self.close()

    def close(self) -> None:
        """End a try that is not decided. May be repeated."""
        if self._socket is not None:
            self._socket.close()
            self._socket, self._head = None, b""
