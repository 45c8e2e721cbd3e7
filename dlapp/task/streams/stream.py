"""One stream, at the container's end."""

from __future__ import annotations

import contextlib
import json
import socket
from typing import Any

from dlapp.errors import DlappError
from dlapp.net.streams import StreamRefused, open_stream
from dlapp.runtime.payload import PayloadPlace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import StreamAnswer, StreamOrder
from dlapp.values.serialization import to_json

ACCEPT_S = 15.0
"""Time limit for the ApplicationMaster to answer; it waits somewhat longer for a task."""


class Stream:
    """A stream that a user's command requested.

    Args:
        url, token: of the ApplicationMaster, and the task's for it.
        host: host name that users know.
        keeper: the channel of a keeper beside a plain payload (`dlapp.runtime.exec.keeper`); None if there is none.
    """

    def __init__(
        self,
        url: str,
        token: str,
        container_id: ContainerId,
        host: str,
        place: PayloadPlace,
        order: StreamOrder,
        keeper: socket.socket | None = None,
    ) -> None:
        self._url, self._token, self._container_id = url, token, container_id
        self.host, self.place, self._order, self.keeper = host, place, order, keeper
        self._is_accepted = False
        self.for_viewer, self.trial, self.try_number = order.for_viewer, order.trial, order.try_number
        self.head: dict[str, Any] = {}
        """JSON object of the command; its types are not checked."""
        with contextlib.suppress(ValueError, RecursionError):
            if isinstance(head := json.loads(order.head), dict):
                self.head = head

    def accept(self) -> socket.socket:
        """Return the connection to the command; the caller closes it. Call once.

        Raises:
            Unreachable, StreamRefused: the ApplicationMaster or the command is gone.
        """
        self._is_accepted = True
        return self._answer(StreamAnswer(container_id=self._container_id, number=self._order.number))

    def refuse(self, error: DlappError) -> None:
        """Refuse the stream of a command, with the reason, unless it was accepted. Ignore a lost ApplicationMaster."""
        if self._is_accepted:
            return
        reason = error.reason if isinstance(error, StreamRefused) else ""
        message = str(error)[:2000] or "there is no such stream"
        answer = StreamAnswer(container_id=self._container_id, number=self._order.number, error=message, reason=reason)
        with contextlib.suppress(DlappError):
            self._answer(answer).close()

    def _answer(self, answer: StreamAnswer) -> socket.socket:
        path = f"/v1/tasks/{self._container_id}/stream"
        return open_stream(self._url, self._token, path, to_json(answer), timeout_s=ACCEPT_S)
