"""Streams of a task, in the task itself: each order is passed to the streams process once."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from dlapp.runtime.payload import Reachable
from dlapp.task.environment import node_name
from dlapp.value import Closeable
from dlapp.values.ids import ContainerId
from dlapp.values.messages import StreamOrder
from dlapp.values.serialization import to_json

if TYPE_CHECKING:
    from dlapp.system.processes.helper import HelperProcess


class TaskStreams(Closeable):
    """Sender of stream orders to the streams process.

    Args:
        token: the token of the task, for its ApplicationMaster.
        find: returns what the stream of an order is for; None if it does not run. Raises StreamRefused.
    """

    def __init__(
        self,
        container_id: ContainerId,
        token: str,
        find: Callable[[StreamOrder], Reachable | None],
        warn: Callable[[str], None],
    ) -> None:
        self._container_id, self._token, self._find, self._warn = container_id, token, find, warn
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

    def prepare(self, kind: str) -> None:
        """Start the streams process, and load what serves a kind of streams, ahead of the first stream."""
        with self._lock:
            try:
                self._send({"prepare": kind})
            except OSError as error:
                self._warn(f"the streams process cannot be started: {error}")

    def _open(self, url: str, order: StreamOrder) -> None:
        from dlapp.net.streams import StreamRefused  # few payloads ever have streams

        why = "the program does not run now"
        try:
            found = self._find(order)
        except StreamRefused as error:
            found, why = None, str(error)
        place = None if found is None else found.place()
        message = {
            "url": url,
            "token": self._token,
            "container_id": str(self._container_id),
            "host": node_name(),
            "place": None if place is None else to_json(place),
            "why": why,
            "order": to_json(order),
        }
        with contextlib.ExitStack() as stack:
            keeper = found.open_keeper() if found is not None and order.is_command else None
            fds = (stack.enter_context(keeper).fileno(),) if keeper is not None else ()
            try:
                self._send(message, fds)
            except OSError as error:
                # The ApplicationMaster sends the error to the waiting command after some seconds.
                self._warn(f"stream {order.number} cannot be opened: {error}")

    def _send(self, message: Mapping[str, object], fds: Sequence[int] = ()) -> None:
        if self._process is None:
            from dlapp.system.processes.helper import HelperProcess

            self._process = HelperProcess("streams")
        self._process.send(json.dumps(message).encode(), fds)

    def close(self) -> None:
        """End all streams, and accept no more. Idempotent."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.close()
