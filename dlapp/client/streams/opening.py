"""Streams to the containers of an application (`dlapp.net.streams`), for commands."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from typing import Any

from dlapp.errors import UsageError
from dlapp.net.streams import open_stream
from dlapp.values.access import StreamRequest
from dlapp.values.serialization import to_json

OPEN_S = 30.0
"""Time limit for the opening of a stream: the ApplicationMaster waits 20 s for the task."""


class StreamOpener:
    """Opener of streams to the containers of one application. Thread-safe.

    Args:
        url: control address of its ApplicationMaster; a later attempt has another one.
        token: for the ApplicationMaster.
        is_own: whether the caller owns the application; otherwise data from its containers are another user's and not
            trusted.
        owner: see `dlapp.values.access.ControlAccess`.
    """

    def __init__(self, url: str, token: str, is_own: bool = True, owner: int | None = None) -> None:
        self.url, self._token, self.is_own, self._owner = url, token, is_own, owner

    def __call__(
        self,
        index: int | None,
        kind: str,
        head: Mapping[str, Any],
        *,
        trial: int | None = None,
        timeout_s: float = OPEN_S,
    ) -> socket.socket:
        """Open a stream.

        Args:
            index: CONTAINER_INDEX; None: that of the trial.
            kind: what is at its other end, as of `StreamRequest`.
            head: JSON for the handler.
            trial: as in `StreamRequest`.
            timeout_s: for opening it [s].

        Returns:
            The connection, blocking; the caller closes it.

        Raises:
            NotFound: there is no such container or trial.
            StreamRefused: it is not possible now.
            Unreachable: the ApplicationMaster does not answer.
            Denied: it does not accept the token.
        """
        text = json.dumps(head, separators=(",", ":"))
        request = StreamRequest(index=index, kind=kind, head=text, trial=trial)
        return open_stream(
            self.url, self._token, "/v1/streams", to_json(request), timeout_s=timeout_s, owner=self._owner
        )


def read_role_index(text: str) -> tuple[str, int]:
    """Return role and number of ``ROLE[:INDEX]``; the default of INDEX is 0. Raises UsageError."""
    role, colon, number = text.partition(":")
    if not role or (colon and not (number.isascii() and number.isdecimal())) or len(number) > 9:
        raise UsageError(f"{text[:60]!r} is not ROLE or ROLE:INDEX, as in worker:0")
    return role, int(number or 0)
