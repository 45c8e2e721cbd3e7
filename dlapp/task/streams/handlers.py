"""The kinds of streams: name of a kind -> the module whose ``serve`` runs at the container's end of it.

``serve(stream)`` runs in a thread of its own, in the process of the streams. It raises `DlappError` before
`Stream.accept` if there can be no stream; the user gets its message.
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
    """Return the ``serve`` of a kind. Raises StreamRefused: this dlapp has no such kind."""
    if kind not in HANDLERS:
        raise StreamRefused(f"the dlapp of this container has no streams of the kind {kind}")
    serve: Callable[[Stream], None] = importlib.import_module(HANDLERS[kind]).serve
    return serve
