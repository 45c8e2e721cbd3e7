"""Streams of a task, in the task itself: each order is passed to the streams process once."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from dlapp.runtime.payload import PayloadPlace
from dlapp.task.environment import node_name
from dlapp.value import Closeable
from dlapp.values.access import STREAM_EXEC
from dlapp.values.ids import ContainerId
from dlapp.values.messages import StreamOrder
from dlapp.values.serialization import to_json

if TYPE_CHECKING:
    from dlapp.system.processes.helper import HelperProcess


class TaskStreams(Closeable):
    """Sender of stream orders to the streams process.

    Args:
        token: the token of the task, for its ApplicationMaster.
        place: returns where the payload runs; None if it does not run.
        open_keeper: see `Running.open_keeper`, of the running payload.
    """

    def __init__(
        self,
        container_id: ContainerId,
        token: str,
        place: Callable[[], PayloadPlace | None],
        open_keeper: Callable[[], socket.socket | None],
        warn: Callable[[str], None],
    ) -> None:
        self._container_id, self._token, self._place, self._warn = container_id, token, place, warn
        self._open_keeper = open_keeper
        self._process: HelperProcess | None = None
        self._lock = threading.Lock()
        self._is_closed = False
        self._latest = 0, 0

    def handle_orders(self, url: str, attempt: int, orders: Sequence[StreamOrder]) -> None:
        """Process new orders of an attempt of the ApplicationMaster; skip known ones. Called by the orders thread."""
        with self._lock:
            for one in orders:
                if (attempt, one.number) > self._latest and not self._is_closed:
                    self._latest = attempt, one.number
                    self._open(url, one)

    def _open(self, url: str, order: StreamOrder) -> None:
        place = self._place()
        message = {
            "url": url,
            "token": self._token,
            "container_id": str(self._container_id),
            "host": node_name(),
            "place": None if place is None else to_json(place),
            "order": to_json(order),
        }
        with contextlib.ExitStack() as stack:
            keeper = self._open_keeper() if order.kind == STREAM_EXEC else None
            fds = (stack.enter_context(keeper).fileno(),) if keeper is not None else ()
            try:
                if self._process is None:
                    from dlapp.system.processes.helper import HelperProcess  # few payloads ever have streams

                    self._process = HelperProcess("streams")
                self._process.send(json.dumps(message).encode(), fds)
            except OSError as error:
                # The ApplicationMaster sends the error to the waiting command after some seconds.
                self._warn(f"stream {order.number} cannot be opened: {error}")

    def close(self) -> None:
        """End all streams, and accept no more. Idempotent."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.close()
