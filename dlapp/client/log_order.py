"""stdout and stderr of one container in the order in which they were written, by the task's time index."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from dlapp.system.logs.log_times import LogTimes


class TimedData(NamedTuple):
    """Bytes of a stream from an offset on, and the time by which they had been written; no bytes at the end of the
    stream.

    ``time_ms`` is None if the index has no time; at the end of a stream if nothing of it has a time.
    """

    stream: str
    offset: int
    data: bytes
    time_ms: int | None


def in_time_order(
    sources: Mapping[str, Iterator[tuple[int, bytes]]], open_times: Callable[[], LogTimes | None]
) -> Iterator[TimedData]:
    """Merge the streams of a container. Bytes without a time come last, one stream after the other.

    Args:
        sources: pieces of each stream with their offsets; read lazily.
        open_times: called once if a stream has a piece; None if there is no index.
    """
    heads: dict[str, tuple[int, memoryview]] = {}  # without copying: a piece may be cut into thousands
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
        # The first stream of those with the same time, and of those without one.
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
