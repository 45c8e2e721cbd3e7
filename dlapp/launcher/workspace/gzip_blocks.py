"""gzip on several cores: the stream is cut into blocks, each compressed separately as a gzip member.

A file of several members is the result of ``cat a.gz b.gz``, and every gzip reads it as one stream (RFC 1952, section
2.2). A member costs 18 bytes; compressing blocks independently costs less than a hundredth. zlib releases Python's lock
while it compresses, so threads suffice.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from types import TracebackType
from typing import TYPE_CHECKING

from dlapp.system.files import write_all

if TYPE_CHECKING:
    from queue import SimpleQueue
    from threading import Event, Thread

BLOCK = 512 << 10
LEVEL = 1
"""The fastest level: a workspace is packed once and read once, on one machine or in one data centre."""
_GZIP = 31
"""zlib's wbits for a gzip header and trailer (zlib manual, deflateInit2); the header has neither name nor time."""


class _Job:
    """A block that a worker processes."""

    def __init__(self, block: bytes, done: Event) -> None:
        self.block, self.done = block, done
        self.error: BaseException | None = None


class GzipBlocks:
    """Writer of a gzip stream to a file, with a digest of its input. Used in a ``with`` block, which ends its threads.

    The threads are started with the second block, so small streams need none.

    Args:
        descriptor: destination of the compressed stream; stays open.
        threads: number of compressing threads; the caller's own thread reads and writes.
    """

    def __init__(self, descriptor: int, *, threads: int) -> None:
        self._descriptor, self._wanted = descriptor, threads
        self._pieces: list[bytes] = []
        self._held = 0
        self._sha256 = hashlib.sha256()
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._threads: list[Thread] = []
        self._pending: deque[_Job] = deque()

    def __enter__(self) -> GzipBlocks:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._jobs is not None:
            for _ in self._threads:
                self._jobs.put(None)
            for thread in self._threads:
                thread.join()

    def write(self, piece: bytes) -> None:
        """Add data to the stream."""
        self._pieces.append(piece)
        self._held += len(piece)
        if self._held >= BLOCK:
            self._submit(self._cut())

    def finish(self) -> str:
        """Write all buffered data; return the SHA-256 of the uncompressed stream, in hex digits."""
        block = self._cut()
        if self._jobs is None:
            write_all(self._descriptor, _compressed(block))
        else:
            self._submit(block)
            while self._pending:
                self._take()
        return self._sha256.hexdigest()

    def _cut(self) -> bytes:
        block = b"".join(self._pieces)
        self._pieces.clear()
        self._held = 0
        self._sha256.update(block)
        return block

    def _submit(self, block: bytes) -> None:
        from threading import Event

        if self._jobs is None:
            self._jobs = self._start()
        job = _Job(block, Event())
        self._pending.append(job)
        self._jobs.put(job)
        # Two blocks for each thread keep all busy; more would only use memory.
        while len(self._pending) > 2 * self._wanted or self._pending[0].done.is_set():
            self._take()
            if not self._pending:
                break

    def _start(self) -> SimpleQueue[_Job | None]:
        from queue import SimpleQueue
        from threading import Thread

        jobs: SimpleQueue[_Job | None] = SimpleQueue()
        for number in range(self._wanted):
            thread = Thread(target=_work, args=(jobs,), name=f"pack-gzip-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return jobs

    def _take(self) -> None:
        job = self._pending.popleft()
        job.done.wait()
        if job.error is not None:
            raise job.error
        write_all(self._descriptor, job.block)


def _compressed(block: bytes) -> bytes:
    return zlib.compress(block, LEVEL, _GZIP)


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            job.block = _compressed(job.block)
        except BaseException as error:  # raised again in the caller's thread
            job.error = error
        job.done.set()
