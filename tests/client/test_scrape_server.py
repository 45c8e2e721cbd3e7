"""The exporter's web server: strangers' connections cost few threads, and keep no scrape away for long."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections.abc import Callable, Iterable, Iterator

import pytest

from dlapp.client.machine import scrape_server
from dlapp.client.machine.scrape_server import MAX_CONNECTIONS, ScrapeServer

PATIENCE_S = 120.0


def metrics(_environ: object, start: Callable[..., object]) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [b"dlapp_node_up 1.0\n"]


@pytest.fixture(params=["127.0.0.1", "::1"])
def server(request: pytest.FixtureRequest) -> Iterator[ScrapeServer]:
    with ScrapeServer(request.param, 0) as made:
        made.set_app(metrics)
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def connect(server: ScrapeServer) -> socket.socket:
    return socket.create_connection(server.server_address[:2], timeout=PATIENCE_S)  # type: ignore[arg-type]


def scrape(server: ScrapeServer) -> bytes:
    host, port = server.server_address[:2]
    name = f"[{host!s}]" if ":" in str(host) else str(host)
    with urllib.request.urlopen(f"http://{name}:{port}/metrics", timeout=PATIENCE_S) as answer:
        return bytes(answer.read())


def test_a_flood_of_idle_connections_uses_few_threads(server: ScrapeServer) -> None:
    before = threading.active_count()
    idle = [connect(server) for _ in range(MAX_CONNECTIONS)]
    for _ in range(200):
        with connect(server) as refused:
            assert refused.recv(1) == b""
    assert threading.active_count() - before <= MAX_CONNECTIONS
    for item in idle:
        item.close()
    assert b"dlapp_node_up" in until_free(server)


@pytest.mark.slow
def test_the_server_survives_a_thousand_reset_connections(server: ScrapeServer) -> None:
    for _ in range(1000):
        with connect(server) as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert b"dlapp_node_up" in until_free(server)


def until_free(server: ScrapeServer) -> bytes:
    """Scrape until a thread of a closed connection has ended."""
    while True:
        try:
            return scrape(server)
        except OSError:
            threading.Event().wait(0.01)


def test_a_silent_connection_is_closed_after_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape_server.Handler, "timeout", 0.05)
    with ScrapeServer("127.0.0.1", 0) as made:
        made.set_app(metrics)
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        with connect(made) as idle:
            assert idle.recv(1) == b""
        assert b"dlapp_node_up" in scrape(made)
        made.shutdown()
        thread.join()
