"""A proxy on a Unix socket, before a dockerd that is to be slow or to hang."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from pathlib import Path
from types import TracebackType


class UnixProxy:
    """Listens on ``path`` and passes on to ``target``, in a with block.

    ``delay_s`` is a pause before each answer's pieces; ``hangs`` holds every answer back for as long as it is set;
    ``hang_at`` does so for requests that contain these bytes.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.host = f"unix://{path}"
        self.delay_s = 0.0
        self.hangs = threading.Event()
        self.hang_at = b""
        self.held = 0
        """Number of answers that were held back."""
        self._target = str(target)
        self._closing = threading.Event()
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(64)
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="unix-proxy", daemon=True)

    def __enter__(self) -> UnixProxy:
        self._accepting.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._closing.set()
        self.hangs.clear()
        # First of all no more connections: a process of the test may come with one at this moment.
        self._end(self._listening)
        self._accepting.join()
        self._end(*self._open)
        for thread in self._threads:
            thread.join()

    @staticmethod
    def _end(*sockets: socket.socket) -> None:
        for item in sockets:
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
            item.close()

    def _start(self, target: object, *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name="unix-proxy", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            server = socket.socket(socket.AF_UNIX)
            try:
                server.connect(self._target)
            except OSError:
                client.close()
                server.close()
                continue
            self._open += [client, server]
            held = threading.Event()
            self._start(self._pass, client, server, held, False)
            self._start(self._pass, server, client, held, True)

    def _pass(self, source: socket.socket, target: socket.socket, held: threading.Event, is_answer: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if not is_answer and self.hang_at and self.hang_at in data:
                    held.set()
                    self.held += 1
                if is_answer:
                    time.sleep(self.delay_s)
                    while (self.hangs.is_set() or held.is_set()) and not self._closing.wait(0.01):
                        pass
                target.sendall(data)
        for item in (source, target):
            with contextlib.suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)
