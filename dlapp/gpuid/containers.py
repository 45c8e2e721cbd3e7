"""What dockerd says of the containers of a lease, and removing them: three calls of its API, by the standard library.

The ledger asks dockerd on its own, and with little patience: a dockerd that hangs must not hold up an acquire.

Source: Docker Engine API 1.24 and later, /containers/json and /containers/{id}.
"""

from __future__ import annotations

import json
import socket
from http.client import HTTPConnection, HTTPException
from typing import Any, NamedTuple
from urllib.parse import quote, urlsplit

TIMEOUT_S = 10.0
REMOVE_TIMEOUT_S = 60.0


class DockerSilent(Exception):
    """dockerd did not answer as it should, so nothing is known."""


class Found(NamedTuple):
    """A container; ``state`` is Docker's word: created, running, paused, restarting, removing, exited, dead."""

    id: str
    state: str


class Docker:
    """The daemon at ``host``: ``unix:///var/run/docker.sock`` or ``tcp://127.0.0.1:2375``."""

    def __init__(self, host: str) -> None:
        self.host = host

    def with_label(self, label: str) -> list[Found]:
        """All containers that have ``label`` (``dlapp.container=…``), those that are only created included.

        Raises:
            DockerSilent: dockerd is down, may not be asked, or hangs.
        """
        filters = quote(json.dumps({"label": [label]}))
        answer = self._call("GET", f"/containers/json?all=1&filters={filters}", TIMEOUT_S)
        try:
            return [Found(one["Id"], str(one.get("State", ""))) for one in answer]
        except (TypeError, KeyError) as error:
            raise DockerSilent(f"dockerd at {self.host}: an answer without ids") from error

    def remove(self, container: str) -> None:
        """Kill and remove a container; one that is gone already is no error. Raises DockerSilent."""
        self._call("DELETE", f"/containers/{quote(container)}?force=1&v=1", REMOVE_TIMEOUT_S, also=(404, 409))

    def _call(self, method: str, path: str, timeout_s: float, *, also: tuple[int, ...] = ()) -> Any:
        connection = self._connection(timeout_s)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
            if answer.status in also:
                return None
            if answer.status >= 300:
                raise DockerSilent(f"dockerd at {self.host}: {answer.status} {body[:200].decode(errors='replace')}")
            return json.loads(body) if body else None
        except (OSError, HTTPException, ValueError) as error:
            raise DockerSilent(f"dockerd at {self.host}: {error}") from error
        finally:
            connection.close()

    def _connection(self, timeout_s: float) -> HTTPConnection:
        parts = urlsplit(self.host)
        if parts.scheme == "unix":
            return _UnixConnection(parts.path, timeout_s)
        if parts.scheme == "tcp" and parts.hostname:
            return HTTPConnection(parts.hostname, parts.port or 2375, timeout=timeout_s)
        raise DockerSilent(f"dockerd at {self.host}: no address of a kind that can be asked")


class _UnixConnection(HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)
