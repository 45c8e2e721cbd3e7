"""Client of an ApplicationMaster's control server (`dlapp.net.control`)."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.net.http import HttpClient, IncompleteResponse, split_url
from dlapp.value import Closeable

MAX_VIEW_BYTES = 64 << 20
"""Size limit of a view; one of 10,000 containers has about 3 MiB."""
_IDLE_S = 300.0
"""Time after which the server closes an idle connection."""


class ControlConnection(Closeable):
    """One connection to an ApplicationMaster; opened at the first call and reused.

    Every message is idempotent (`dlapp.values.messages`), so a call on a connection that the server has closed
    meanwhile is resent once over a new one.

    Args:
        url: ``http://host:port``.
        token: for the Authorization header; None for calls without one.
        max_answer_bytes: limit for the size of an answer.
        owner: user who must own the server process on this machine to receive the token; None to not check.
    """

    def __init__(
        self,
        url: str,
        token: str | None = None,
        *,
        max_answer_bytes: int = MAX_VIEW_BYTES,
        owner: int | None = None,
    ) -> None:
        self.url, self._max_answer_bytes = url, max_answer_bytes
        try:
            self._server, *rest = split_url(url)
        except ValueError:
            rest = []
        if rest != ["/", ""] or not url.startswith("http://") or not self._server.rpartition(":")[2].isdigit():
            raise Unreachable(f"{url!r} is not a control address like http://node7:40123")
        self._headers = {"Content-Type": "application/json"}
        if token:
            self._headers["Authorization"] = f"Bearer {token}"
        # Each call sets its own deadline in the first two places.
        self._client = HttpClient(0.0, 0.0, idle_s=_IDLE_S, owner=owner)
        self._lock = threading.Lock()

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10.0) -> Any:
        """Send one request, and return its JSON answer.

        Args:
            method: the HTTP method.
            path: the path of the request.
            body: a JSON value; None for no body.
            timeout_s: the time limit of the call as a whole [s].

        Raises:
            Unreachable: there was no valid answer in time.
            Denied: 401 or 403. NotFound: 404. DlappError: any other refusal, with the server's message.
        """
        data = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        with self._lock:
            try:
                answer = self._client.request(
                    method,
                    self._server,
                    path,
                    data,
                    headers=self._headers,
                    max_bytes=self._max_answer_bytes,
                    until=time.monotonic() + timeout_s,
                    repeatable=True,
                )
            except IncompleteResponse as error:
                why = f"no answer in {timeout_s:g} s" if error.timed_out else str(error)
                if error.too_large:
                    why = f"an answer of more than {self._max_answer_bytes >> 20} MiB"
                raise Unreachable(f"ApplicationMaster at {self.url}: {why}") from error
        try:
            said = json.loads(answer.body) if answer.body else None
        except (ValueError, RecursionError) as error:
            raise Unreachable(f"ApplicationMaster at {self.url}: the answer is not JSON") from error
        if answer.status == 200:
            return said
        message = said.get("error", "") if isinstance(said, dict) else ""
        kind = {401: Denied, 403: Denied, 404: NotFound}.get(answer.status, DlappError)
        raise kind(message or f"ApplicationMaster at {self.url}: HTTP {answer.status}")

    def rest(self) -> None:
        """Close the connection if it is idle; the next call opens another one."""
        self._client.close()

    def close(self) -> None:
        """Close the connection; a call in progress in another thread, and every later one, fails with Unreachable."""
        self._client.end()
