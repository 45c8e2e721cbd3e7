"""An HTTP server whose answers a function makes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit


class Request(NamedTuple):
    """One request; ``target`` is its path with the query."""

    method: str
    target: str
    headers: Message
    body: bytes

    @property
    def path(self) -> str:
        """Return the path alone, as it was sent."""
        return self.target.partition("?")[0]

    @property
    def query(self) -> dict[str, str]:
        """Return the first value of each name of the query."""
        return {name: values[0] for name, values in parse_qs(urlsplit(self.target).query).items()}


class Answer(NamedTuple):
    """The answer to a request."""

    status: int = 200
    body: bytes = b""
    headers: tuple[tuple[str, str], ...] = ()


def as_json(value: Any, status: int = 200) -> Answer:
    """Return an answer with a value as JSON."""
    return Answer(status, json.dumps(value).encode())


@contextmanager
def http_server(answer: Callable[[Request], Answer | None]) -> Iterator[str]:
    """Yield the URL of a server on 127.0.0.1; it ends with the context.

    Args:
        answer: called in a thread of each connection; None: the connection is closed without an answer.
    """

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            made = answer(Request(self.command, self.path, self.headers, body))
            if made is None:
                self.close_connection = True
                return
            self.send_response(made.status)
            for name, value in made.headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(made.body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(made.body)

        do_HEAD = do_POST = do_PUT = do_DELETE = do_GET

        def log_message(self, *_: object) -> None: ...

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128  # usually 5; who comes as one too many while it is busy waits seconds

    with Server(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
