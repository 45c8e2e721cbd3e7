"""The kinds of streams: name of a kind -> the module whose ``serve`` runs at the container's end of it.

``serve(stream)`` runs in its own thread in the streams process. It raises `DlappError` before `Stream.accept` if the
stream is refused; the user gets the message.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING

from dlapp.net.streams import StreamRefused
from dlapp.values.access import STREAM_EVENT_FILES, STREAM_EXEC, STREAM_PORT

if TYPE_CHECKING:
    from dlapp.task.streams.stream import Stream

HANDLERS = {
    STREAM_EVENT_FILES: "dlapp.task.streams.event_files",
    STREAM_EXEC: "dlapp.task.streams.exec",
    STREAM_PORT: "dlapp.task.streams.port",
}


def handler_of(kind: str) -> Callable[[Stream], None]:
    """Return the ``serve`` of a kind. Raises StreamRefused: the kind is unknown."""
    if kind not in HANDLERS:
        raise StreamRefused(f"the dlapp of this container has no streams of the kind {kind}")
    serve: Callable[[Stream], None] = importlib.import_module(HANDLERS[kind]).serve
    return serve
