"""Buffer of a feed: threads prefetch segments for each reader, in its own order and within bounds.

A reader's queue may use at most its share of the buffer: of bytes on disk, of bytes in memory, and of open files.
Segments that were sent and not acknowledged count, so a slow reader stops its prefetching. One segment is always
allowed.

A segment is an unnamed file, which the kernel removes when its last descriptor is closed. So nothing remains of a
buffer when its process and its readers have ended, even if they were killed. For plain payloads small files are in
memory. A reader can keep and re-read received files for as long as it wants, and in a container that memory would not
be charged to the container; so there all segments are on disk, and the kernel's page cache holds what fits.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator

from dlapp.errors import Unreachable
from dlapp.system.clock import backoff_s
from dlapp.task.feed.order import EpochEnd, Segment

AT_ONCE = 8
"""Segments on their way at a time, of all readers; as `dlapp.storage.hdfs.file_system.PARALLEL_READS`."""
SMALL_BYTES = 1 << 20
MEMORY_BYTES = 64 << 20
SEGMENT_BYTES = 16 << 20
MAX_ITEMS = 512
"""Segments of a container that are fetched ahead; each is an open file."""
_AGAIN_S = 0.5, 10.0
Fetch = Callable[[Segment, int], None]


class _Slot:
    """A segment that is being fetched or is ready."""

    def __init__(self, item: Segment | EpochEnd) -> None:
        self.item, self.fd, self.ready = item, -1, False
        self.error: Exception | None = None


class ReaderQueue:
    """Queue of one reader; made by `FeedBuffer.open`."""

    def __init__(
        self, buffer: FeedBuffer, items: Iterator[Segment | EpochEnd], readers: int, clock: Callable[[], float]
    ):
        self._buffer, self._items, self._clock = buffer, items, clock
        self._share_bytes = max(1, buffer.limit_bytes // readers)
        self._memory_bytes, self._most_items = MEMORY_BYTES // readers, max(4, MAX_ITEMS // readers)
        self._next: Segment | EpochEnd | None = None
        self._slots: deque[_Slot] = deque()
        self._sent: deque[_Slot] = deque()
        self._used_bytes = self._used_memory_bytes = 0
        self._waits_since: float | None = clock()
        self._waited_s = 0.0
        self.changed = threading.Condition(buffer.lock)
        self.closed = self.exhausted = False

    # ---- for the prefetch threads, with the lock held ----

    def admitted(self) -> _Slot | None:
        """Return the next slot to fetch; None if there is no room for it, or nothing is left."""
        if self.closed or self.exhausted:
            return None
        if self._next is None:
            self._next = next(self._items, None)
            if self._next is None:
                self.exhausted = True
                self.changed.notify_all()
                return None
        item, count = self._next, len(self._slots) + len(self._sent)
        memory = self._buffer.memory_bytes(item)
        if count and (
            count >= self._most_items
            or self._used_bytes + item.size_bytes > self._share_bytes
            or (memory and self._used_memory_bytes + memory > self._memory_bytes)
        ):
            return None
        self._next, slot = None, _Slot(item)
        self._slots.append(slot)
        self._used_bytes += item.size_bytes
        self._used_memory_bytes += memory
        return slot

    # ---- for the reader's own thread ----

    def take(self, most: int) -> list[tuple[Segment | EpochEnd, int]]:
        """Wait for items, and return at most ``most``; none if there are no more, or the queue was closed.

        Each has its descriptor, or -1 for the end of an epoch; the caller closes them.

        Raises:
            DlappError, OSError: a segment could not be fetched.
        """
        with self._buffer.lock:
            while not self.closed and not (self._slots and self._slots[0].ready):
                if self.exhausted and not self._slots:
                    break
                self.changed.wait()
            found: list[tuple[Segment | EpochEnd, int]] = []
            while self._slots and self._slots[0].ready and len(found) < most and not self.closed:
                if (error := self._slots[0].error) is not None:
                    if found:
                        break  # earlier segments are delivered first
                    self._buffer.failure = self._buffer.failure or error
                    raise error
                slot = self._slots.popleft()
                self._sent.append(slot)
                found.append((slot.item, slot.fd))
                slot.fd = -1
            if found and self._waits_since is not None:
                self._waited_s += self._clock() - self._waits_since
                self._waits_since = None
            return found

    def acknowledge(self, count: int) -> None:
        """Acknowledge ``count`` items that the reader has read; a greater number acknowledges all."""
        with self._buffer.lock:
            for _ in range(min(count, len(self._sent))):
                slot = self._sent.popleft()
                self._used_bytes -= slot.item.size_bytes
                self._used_memory_bytes -= self._buffer.memory_bytes(slot.item)
            if not self._sent and self._waits_since is None:
                self._waits_since = self._clock()
            self._buffer.wake()

    def close(self) -> None:
        """Discard everything. Idempotent."""
        with self._buffer.lock:
            self.closed = True
            for slot in self._slots:
                if slot.ready and slot.fd >= 0:
                    os.close(slot.fd)
                    slot.fd = -1
            self.changed.notify_all()
            self._buffer.remove_queue(self)

    def waited_s(self) -> float:
        """Return how long the reader has waited for input so far [s]; call with the lock held."""
        since = self._waits_since
        return self._waited_s + (self._clock() - since if since is not None else 0.0)


class FeedBuffer:
    """All queues of one feed, and the threads that fill them.

    Args:
        fetch: writes a segment to its own range of an open file.
        end_epoch: called at the end of an epoch, before the readers get it.
        directory: for files on disk; only this process's user can write to it.
        limit_bytes: size of the buffer, for all readers together.
        patience_s: how long a server may be away.
        in_memory: whether small files are held in memory.
        clock: seconds.
    """

    def __init__(
        self,
        fetch: Fetch,
        end_epoch: Callable[[int], None],
        directory: str,
        limit_bytes: int,
        patience_s: float,
        *,
        in_memory: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fetch, self._end_epoch, self._directory = fetch, end_epoch, directory
        self.limit_bytes, self._patience_s, self._clock = limit_bytes, patience_s, clock
        self._in_memory = in_memory
        self.lock = threading.Lock()
        self._work = threading.Condition(self.lock)
        self._queues: list[ReaderQueue] = []
        self._turn = 0
        self._closed = False
        self._former_waited_s = 0.0
        self.failure: Exception | None = None
        """An error that a reader has met; None: none has."""
        self.away = ""
        """Why a server does not answer now; empty: no thread waits for one."""
        self.fetched_bytes = 0
        for number in range(AT_ONCE):
            threading.Thread(target=self._run, name=f"feed-{number}", daemon=True).start()

    def open(self, items: Iterator[Segment | EpochEnd], readers: int) -> ReaderQueue:
        """Return a new queue of items; ``readers`` is the number of readers that share the buffer."""
        queue = ReaderQueue(self, items, readers, self._clock)
        with self.lock:
            self._queues.append(queue)
            self.wake()
        return queue

    def segment_bytes(self, readers: int) -> int:
        """Return the largest segment size for a number of readers that share the buffer."""
        return max(1 << 20, min(SEGMENT_BYTES, self.limit_bytes // readers // 4))

    def memory_bytes(self, item: Segment | EpochEnd) -> int:
        """Return the number of bytes of an item that are held in memory."""
        is_small = self._in_memory and isinstance(item, Segment) and item.size_bytes <= SMALL_BYTES
        return item.size_bytes if is_small else 0

    def waits(self) -> tuple[float, int]:
        """Return the total time that readers have waited [s], and their current number."""
        with self.lock:
            return self._former_waited_s + sum(one.waited_s() for one in self._queues), len(self._queues)

    def close(self) -> None:
        """End the threads after their current segments."""
        with self.lock:
            self._closed = True
            self._work.notify_all()

    def wake(self) -> None:
        """Wake the threads; call with the lock held."""
        self._work.notify_all()

    def remove_queue(self, queue: ReaderQueue) -> None:
        """Remove a closed queue; call with the lock held."""
        if queue in self._queues:
            self._queues.remove(queue)
            self._former_waited_s += queue.waited_s()

    def _run(self) -> None:
        while True:
            with self.lock:
                while (found := self._admitted()) is None:
                    if self._closed:
                        return
                    self._work.wait()
            queue, slot = found
            fd, error = -1, None
            try:
                fd = self._fetched(slot.item)
            except Exception as caught:
                error = caught
            with self.lock:
                slot.error = error
                if error is None:
                    self.fetched_bytes += slot.item.size_bytes
                else:
                    queue.exhausted = True  # nothing follows it
                if queue.closed:
                    if fd >= 0:
                        os.close(fd)
                    continue
                slot.fd, slot.ready = fd, True
                if queue._slots and queue._slots[0] is slot:
                    queue.changed.notify_all()

    def _admitted(self) -> tuple[ReaderQueue, _Slot] | None:
        if self._closed:
            return None
        for number in range(len(self._queues)):
            queue = self._queues[(self._turn + number) % len(self._queues)]
            if (slot := queue.admitted()) is not None:
                self._turn += number + 1
                return queue, slot
        return None

    def _fetched(self, item: Segment | EpochEnd) -> int:
        """Return the descriptor of a segment that is ready, at its first byte; -1 for the end of an epoch."""
        if isinstance(item, EpochEnd):
            self._retry_unreachable(lambda: self._end_epoch(item.epoch))
            return -1
        in_memory = self.memory_bytes(item) > 0
        fd = os.memfd_create("dlapp-feed", os.MFD_CLOEXEC) if in_memory else _disk_file(self._directory)
        try:
            self._retry_unreachable(lambda: self._fetch(item, fd))
            return fd
        except BaseException:
            os.close(fd)
            raise

    def _retry_unreachable(self, call: Callable[[], None]) -> None:
        """Retry while a server is away, for at most `patience_s`."""
        until = self._clock() + self._patience_s
        for pause_s in backoff_s(*_AGAIN_S):
            try:
                call()
                self.away = ""
                return
            except Unreachable as error:
                self.away = str(error)
                if self._clock() >= until or self._closed:
                    raise
            time.sleep(pause_s)


def _disk_file(directory: str) -> int:
    """Open a new unnamed file."""
    with contextlib.suppress(OSError):  # unsupported by some file systems: overlayfs before Linux 6.3
        return os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    path = os.path.join(directory, os.urandom(8).hex())
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.unlink(path)
    return fd
