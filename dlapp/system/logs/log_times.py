"""Time index of a container's stdout and stderr: the size of each over time.

A payload writes to its two files itself, so single writes cannot be observed. While they grow, the task records their
sizes every 100 ms, one line each:

    1700000000123 4096 17        time [ms since the epoch], bytes of stdout, bytes of stderr

A byte was written before the first line in which its file is longer than its offset. So times are upper bounds, and
everything written between two lines has one time. The index has at most `MAX_BYTES`: when it is full, older lines are
dropped until each covers an equal time; the latest quarter stays unchanged.

The payload may be able to write to the index, so it is untrusted: malformed lines, and lines with decreasing values,
are skipped.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterator, Sequence

NAME = "dlapp.times"
STREAMS = ("stdout", "stderr")
MAX_BYTES = 1 << 20
"""About 35,000 lines: an hour of output without a pause every 100 ms, three weeks every few minutes."""
TAIL_BYTES = 1 << 16
"""Size of the latest lines: some minutes of continuous output."""
_FIRST_INTERVAL_MS = 200
_MAX_TIME_MS = 1 << 47
"""The year 6429. Later times, which a payload may have written, are no times that can be shown."""
_MAX_DIGITS = 19


def former_name(name: str, generation: int) -> str:
    """Return the name of a log after the next generation of its gang has started."""
    return f"{name}.gen{generation}"


class LogTimes:
    """Lines of an index, complete or from its end.

    Args:
        data: content of the file; its first line may be cut.
    """

    def __init__(self, data: bytes) -> None:
        self._times: list[int] = []
        self._sizes: tuple[list[int], ...] = ([], [])
        last = (0, 0, 0)
        for sample in _samples(data.split(b"\n")[:-1]):
            if all(new >= old for new, old in zip(sample, last, strict=True)):
                last = sample
                self._times.append(sample[0])
                for sizes, size in zip(self._sizes, sample[1:], strict=True):
                    sizes.append(size)

    def of_byte(self, stream: str, offset: int) -> tuple[int, int] | None:
        """Return the time by which a byte of a stream had been written [ms], and the offset up to which that holds.

        None if the index ends before.
        """
        sizes = self._sizes[STREAMS.index(stream)]
        place = bisect_right(sizes, offset)
        return (self._times[place], sizes[place]) if place < len(sizes) else None


class LogTimesWriter:
    """Writer of one container's index, at most one line per call; open until `close`.

    The descriptor is kept, so a payload that replaces the file cannot redirect writes.

    Raises:
        OSError: the file cannot be created.
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        self._end = 0
        self._last = (0, 0, 0)

    def close(self) -> None:
        """Close the file."""
        os.close(self._fd)

    def record(self, time_ms: int, sizes: Sequence[int]) -> None:
        """Add a line if a file has grown.

        Args:
            time_ms: now, since the epoch; a clock that was set back counts as unchanged.
            sizes: the sizes of stdout and stderr [bytes]; a file that shrank counts with its old size.

        Raises:
            OSError: it could not be written.
        """
        before_ms, *before = self._last
        grown = [max(new, old) for new, old in zip(sizes, before, strict=True)]
        if grown == before:
            return
        self._last = (max(time_ms, before_ms), grown[0], grown[1])
        line = b"%d %d %d\n" % self._last
        if self._end + len(line) > MAX_BYTES:
            self._replace(thinned(os.pread(self._fd, MAX_BYTES, 0)))
        os.pwrite(self._fd, line, self._end)
        self._end += len(line)

    def _replace(self, data: bytes) -> None:
        # In place: concurrent readers see the new lines, followed by old ones with decreasing values.
        os.pwrite(self._fd, data, 0)
        os.ftruncate(self._fd, len(data))
        self._end = len(data)


def thinned(data: bytes, most_bytes: int = MAX_BYTES) -> bytes:
    """Return a full index with fewer lines: its latest quarter, and from the rest as many as fit in half of it.

    Of the older lines the last of each interval is kept. The interval is doubled until they are few enough.

    Args:
        data: the index.
        most_bytes: size of a full index.
    """
    lines = [(sample[0], b"%d %d %d\n" % sample) for sample in _samples(data.split(b"\n")[:-1])]
    start = len(lines) - len(lines) // 4
    old = lines[:start]
    interval_ms = _FIRST_INTERVAL_MS
    while len(old) > 1 and sum(len(line) for _, line in old) > most_bytes // 2:
        old = list({time_ms // interval_ms: (time_ms, line) for time_ms, line in old}.values())
        interval_ms *= 2
    return b"".join(line for _, line in [*old, *lines[start:]])


def _samples(lines: Sequence[bytes]) -> Iterator[tuple[int, int, int]]:
    for line in lines:
        words = line.split(b" ")
        if len(words) != 3 or not all(word.isdigit() and len(word) <= _MAX_DIGITS for word in words):
            continue
        time_ms, stdout, stderr = map(int, words)
        if time_ms <= _MAX_TIME_MS:
            yield time_ms, stdout, stderr
