"""Connections to a webhook with limits for its answer: http.client reads any number of 1xx responses, for any time."""

from __future__ import annotations

import http.client
import socket
from typing import Any

import requests.adapters
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

from dlapp.notifications.deadline import reader_until

_MAX_INTERIM = 10
"""Maximum number of interim responses (1xx)."""


_ANSWER_S = 20.0
"""Time limit for an answer as a whole, interim ones included; its body is not read. A server needs milliseconds, and a
proxy that waits for the server some seconds."""


class _Response(http.client.HTTPResponse):
    """Response that fails after `_MAX_INTERIM` interim ones, or after `_ANSWER_S`."""

    _statuses = 0

    def __init__(self, sock: socket.socket, *args: Any, **options: Any) -> None:
        super().__init__(sock, *args, **options)
        self.fp.close()  # nothing is read yet
        self.fp = reader_until(sock, _ANSWER_S)

    def _read_status(self) -> tuple[str, int, str]:
        # Source: http.client.HTTPResponse.begin, which calls this once for each answer.
        self._statuses += 1
        if self._statuses > _MAX_INTERIM:
            raise http.client.BadStatusLine("too many answers 1xx")
        found: tuple[str, int, str] = super()._read_status()  # type: ignore[misc]
        return found


class _WebhookConnection(HTTPConnection):
    response_class = _Response


class _TlsConnection(HTTPSConnection):
    response_class = _Response


class _Pool(HTTPConnectionPool):
    ConnectionCls = _WebhookConnection


class _TlsPool(HTTPSConnectionPool):
    ConnectionCls = _TlsConnection


class WebhookAdapter(requests.adapters.HTTPAdapter):
    """Adapter of requests for these connections, also through a proxy."""

    def init_poolmanager(self, *args: Any, **options: Any) -> None:
        """See `requests.adapters.HTTPAdapter.init_poolmanager`."""
        super().init_poolmanager(*args, **options)
        self.poolmanager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}

    def proxy_manager_for(self, *args: Any, **options: Any) -> Any:
        """See `requests.adapters.HTTPAdapter.proxy_manager_for`."""
        manager = super().proxy_manager_for(*args, **options)
        manager.pool_classes_by_scheme = {"http": _Pool, "https": _TlsPool}
        return manager
