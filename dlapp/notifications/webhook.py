"""Connections to a webhook with a limit for interim responses: http.client reads any number of 1xx responses."""

from __future__ import annotations

import http.client
from typing import Any

import requests.adapters
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.connectionpool import HTTPConnectionPool, HTTPSConnectionPool

_MAX_INTERIM = 10
"""Maximum number of interim responses (1xx)."""


class _Response(http.client.HTTPResponse):
    """Response that fails after `_MAX_INTERIM` interim ones."""

    _statuses = 0

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
