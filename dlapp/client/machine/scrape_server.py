"""Web server of the exporter, whose port others of the network may reach: its connections are few and do not stay."""

from __future__ import annotations

import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

MAX_CONNECTIONS = 16
"""Each has a thread. A host has one or two Prometheus servers, which keep a connection each."""
BACKLOG = 128
"""Connections that wait to be accepted; with 5, as socketserver has, a few strangers make a scrape wait for seconds."""
IDLE_S = 60.0
"""Time limit of a client that sends or reads nothing; longer than the usual interval between scrapes."""


class Handler(WSGIRequestHandler):
    """Handler of one connection."""

    timeout = IDLE_S

    def log_message(self, *_: object) -> None:
        """Log no scrape."""


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Server with a thread for each connection, at most `MAX_CONNECTIONS`; further ones are closed at once.

    Args:
        host: the address to listen on, without brackets.
        port: 0: any.

    Raises:
        OSError: it cannot listen there.
    """

    daemon_threads = True

    def __init__(self, host: str, port: int) -> None:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family, address = found[0][0], found[0][4]
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        super().__init__((str(address[0]), int(address[1])), Handler)
        self.socket.listen(BACKLOG)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Serve a connection; called by its thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """Forget a connection that a client has broken."""
