"""A server that gives the bytes of a test as its answer, whatever it is asked."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from pathlib import Path


class AnsweringServer:
    """Answers each connection, after its first bytes, with ``answers`` in turn (the last one again), and closes."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self.answers: list[bytes] = [b""]

    @property
    def port(self) -> int:
        """Return where it listens on 127.0.0.1."""
        return int(self._listener.getsockname()[1])

    def serve(self) -> None:
        """Accept connections until the listener is shut down."""
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(120)
            answers = list(self.answers)
            for answer in answers:
                if not connection.recv(1 << 16):
                    return
                connection.sendall(answer)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(1 << 16):
                pass


@contextlib.contextmanager
def answering(path: Path | None = None) -> Iterator[AnsweringServer]:
    """Run such a server on a port of 127.0.0.1, or on a Unix socket."""
    if path is None:
        listener = socket.create_server(("127.0.0.1", 0), backlog=128)
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(path))
        listener.listen(128)
    server = AnsweringServer(listener)
    thread = threading.Thread(target=server.serve)
    thread.start()
    try:
        yield server
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()
        listener.close()
