"""Process of a task's streams: ``dlapp/__main__.py streams``, with its channel as standard input.

It receives one message for each stream and runs the handler in a thread; a message may also load a handler ahead. When
the task closes the channel, or dies, the process ends at once with all of its streams.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import threading
from collections.abc import Sequence
from typing import Any

from dlapp.errors import DlappError
from dlapp.net.streams import NOT_RUNNING, StreamRefused
from dlapp.runtime.payload import PayloadPlace
from dlapp.system.processes.helper import MAX_MESSAGE_BYTES, own_channel
from dlapp.task.streams.stream import Stream
from dlapp.values.access import STREAM_EVENT_FILES, STREAM_EXEC, STREAM_PORT
from dlapp.values.ids import ContainerId
from dlapp.values.messages import StreamOrder
from dlapp.values.serialization import from_json

HANDLERS = {
    STREAM_EVENT_FILES: "dlapp.task.streams.event_files",
    STREAM_EXEC: "dlapp.task.streams.exec",
    STREAM_PORT: "dlapp.task.streams.port",
}
"""Kind of stream -> module whose ``serve(stream)`` runs at the container's end of it, in its own thread. It raises
`DlappError` before `Stream.accept` if the stream is refused; the user gets the message."""


def main(argv: Sequence[str]) -> int:
    """Serve streams until the task closes the channel."""
    channel = own_channel()
    while True:
        data, fds, _, _ = socket.recv_fds(channel, MAX_MESSAGE_BYTES, 1)
        if not data:
            os._exit(0)
        keeper, message = socket.socket(fileno=fds[0]) if fds else None, json.loads(data)
        if "prepare" in message:
            importlib.import_module(HANDLERS[message["prepare"]])
            continue
        threading.Thread(target=_serve, args=(message, keeper), name="stream", daemon=True).start()


def _serve(message: dict[str, Any], keeper: socket.socket | None) -> None:
    order = from_json(StreamOrder, message["order"])
    found = message["place"]
    place = PayloadPlace(directory="") if found is None else from_json(PayloadPlace, found)
    container_id = ContainerId.from_text(message["container_id"])
    stream = Stream(message["url"], message["token"], container_id, message["host"], place, order, keeper)
    try:
        if found is None:
            raise StreamRefused(message["why"], NOT_RUNNING)
        if order.kind not in HANDLERS:
            raise StreamRefused(f"the dlapp of this container has no streams of the kind {order.kind}")
        importlib.import_module(HANDLERS[order.kind]).serve(stream)
    except DlappError as error:
        stream.refuse(error)
    except Exception as error:
        import traceback

        traceback.print_exc()
        stream.refuse(StreamRefused(f"internal error in the container: {error!r}"))
