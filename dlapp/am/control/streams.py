"""Streams of an ApplicationMaster: pending ones, and the process that relays the open ones.

A tool requests a stream to a container. The task receives that in its orders, and connects the other end, or reports
why it cannot. Then the two connections become one stream, relayed by a separate process (`dlapp.net.relay`). That
process is started by the first stream, and ends with this process. Nothing of this is recorded: the streams of an
attempt end with it.

The loop's thread calls everything here except `_copy`, which the control server's thread calls.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from typing import NamedTuple

from dlapp.am.control.server import ControlRequest
from dlapp.am.model.events import OpenStream, RefuseStream
from dlapp.net.relay import PAIR
from dlapp.net.streams import BUSY, NOT_RUNNING
from dlapp.system.logs import log
from dlapp.system.processes.helper import HelperProcess
from dlapp.values.access import StreamRequest
from dlapp.values.ids import ContainerId
from dlapp.values.messages import StreamAnswer, StreamOrder

MAX_PENDING, MAX_OPEN = 32, 128
"""Limits of pending and of open streams. An open one takes up to 0.5 MiB of the relay's memory."""
OPEN_S = 20.0
"""Time limit for a task to connect the other end."""


class _Pending(NamedTuple):
    call: ControlRequest
    deadline: float
    container_id: ContainerId | None


class StreamBroker:
    """Streams of one attempt."""

    def __init__(self) -> None:
        self._relay = HelperProcess("relay")
        self._pending: dict[int, _Pending] = {}
        self._number = 0
        self._counting = threading.Lock()
        self._open = 0

    def prepare(self) -> None:
        """Start the relay process ahead of the first stream."""
        with contextlib.suppress(OSError):  # the first stream tries again
            self._relay.start()

    def open(self, call: ControlRequest, request: StreamRequest, now: float) -> OpenStream | None:
        """Keep a tool's request for a stream, and return its event; None: it was refused. ``now`` is monotonic [s]."""
        with self._counting:
            self._open -= len(self._relay.received())
        # Viewers leave a part of the limit to the owner.
        most_open, most_pending = (most * 3 // 4 if call.by_viewer else most for most in (MAX_OPEN, MAX_PENDING))
        if len(self._pending) >= most_pending or self._open >= most_open:
            most = f"{most_open} may be open and {most_pending} wait to be opened"
            call.refuse(503, f"the application has too many streams: {most}", BUSY)
            return None
        self._number += 1
        pending = frozenset(self._pending)
        self._pending[self._number] = _Pending(call, now + OPEN_S, None)
        order = StreamOrder(number=self._number, kind=request.kind, head=request.head, for_viewer=call.by_viewer)
        return OpenStream(index=request.index, order=order, trial=request.trial, pending=pending)

    def send_order(self, number: int, container_id: ContainerId) -> None:
        """Record the container whose task is to connect the other end."""
        if (pending := self._pending.get(number)) is not None:
            self._pending[number] = pending._replace(container_id=container_id)

    def refuse(self, action: RefuseStream) -> None:
        """Refuse a tool's request."""
        if (pending := self._pending.pop(action.number, None)) is not None:
            pending.call.refuse(404 if action.is_unknown else 409, action.why, NOT_RUNNING)

    def handle_answer(self, call: ControlRequest, answer: StreamAnswer) -> None:
        """Handle a task's answer to its order: its connection is the other end, or an error."""
        pending = self._pending.get(answer.number)
        if pending is None or pending.container_id != answer.container_id:
            call.refuse(410, f"no command waits for stream {answer.number}")
            return
        del self._pending[answer.number]
        if answer.error:
            pending.call.refuse(409, answer.error[:2000], answer.reason[:32])
            call.answer({})
        else:
            call.server.connect_pair(pending.call.request, call.request, self._copy)

    def check(self, now: float) -> None:
        """Give up streams whose task is late by ``now`` [s, monotonic]."""
        for number in [number for number, one in self._pending.items() if one.deadline <= now]:
            why = f"its task did not answer in {OPEN_S:g} s"
            self._pending.pop(number).call.refuse(504, why, NOT_RUNNING)

    def close(self) -> None:
        """End all streams."""
        for pending in self._pending.values():
            pending.call.refuse(409, "the application has ended", NOT_RUNNING)
        self._pending.clear()
        self._relay.close()

    def _copy(self, tool: socket.socket, task: socket.socket) -> None:
        try:
            with self._counting:
                starts = self._relay.starts
                self._relay.send(PAIR, (tool.fileno(), task.fileno()))
                self._open = self._open + 1 if self._relay.starts == starts else 1  # those of one that was killed ended
        except OSError as error:
            log.warning(f"a stream could not be passed to the relay process: {error}")
        finally:
            tool.close()
            task.close()
