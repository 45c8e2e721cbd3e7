"""stdout and stderr of one container in the order in which they were written, by the task's side index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from dlapp.system.logs.log_times import LogTimes


class TimedData(NamedTuple):
    """Some bytes of a stream from an offset on, and when they had been written; no bytes: the stream has ended here.

    ``time_ms`` None: the index does not say; at the end of a stream: nothing of it has a time.
    """

    stream: str
    offset: int
    data: bytes
    time_ms: int | None


def in_time_order(
    sources: Mapping[str, Iterator[tuple[int, bytes]]], open_times: Callable[[], LogTimes | None]
) -> Iterator[TimedData]:
    """Merge the streams of a container. What has no time comes last, one stream after the other.

    Args:
        sources: of each stream its pieces, with the offset of each; they are read as they are needed.
        open_times: called once if a stream has a piece; None: there is no index.
    """
    heads: dict[str, tuple[int, memoryview]] = {}  # no copies: a piece may be cut into thousands
    last_ms: dict[str, int | None] = dict.fromkeys(sources)
    ended: list[str] = []
    for stream, source in sources.items():
        if (head := next(source, None)) is not None:
            heads[stream] = head[0], memoryview(head[1])
        else:
            ended.append(stream)
    for stream in ended:
        yield TimedData(stream, 0, b"", None)
    times = open_times() if heads else None
    known: dict[str, tuple[int, int] | None] = {}
    while heads:
        for stream, (offset, _) in heads.items():
            if stream not in known:
                known[stream] = None if times is None else times.of_byte(stream, offset)
        # The first of those with the same time, and without one.
        stream = min(heads, key=lambda stream: _order(known[stream]))
        offset, data = heads[stream]
        found = known.pop(stream)
        count = len(data) if found is None else min(len(data), found[1] - offset)
        time_ms = None if found is None else found[0]
        last_ms[stream] = last_ms[stream] if time_ms is None else time_ms
        yield TimedData(stream, offset, bytes(data[:count]), time_ms)
        if count < len(data):
            heads[stream] = (offset + count, data[count:])
        elif (head := next(sources[stream], None)) is not None:
            heads[stream] = head[0], memoryview(head[1])
        else:
            del heads[stream]
            yield TimedData(stream, offset + count, b"", last_ms[stream])


def _order(found: tuple[int, int] | None) -> tuple[bool, int]:
    return (found is None, 0 if found is None else found[0])
