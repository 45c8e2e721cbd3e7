"""Readers of a feed on its Unix socket (`dlapp.feed`): JSON messages, one per packet, with open files.

    reader                                       feed
    {"part": [0, 1], "epoch": 0, "file": 0,
     "at": 0, "files": ""}              ->       begin there; ``files``: the digest of the list that the position is of
                                        <-       {"format": "tar", "epochs": 3, "shuffle": 7, "files": "5f1c..."}
                                        <-       {"items": [[0, 0, "hdfs://nn/a.tar", 9000, 0, 9000], [0], ...]}
    2                                   ->       two of these were read
                                        <-       {"over": true}, or {"error": "..."} in place of any message

An item of six elements is a part of a file: epoch, number of the file in the part, location, size, first byte, end. Its
descriptor is sent with the message. An item of one element is the end of an epoch.

A reader is a user's program: its messages are bounded, and contain no names that are used.
"""

from __future__ import annotations

import array
import contextlib
import errno
import itertools
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from dlapp.errors import DlappError, UsageError
from dlapp.feed import MAX_FDS, MESSAGE_BYTES
from dlapp.net.accepting import Accepted, accept_one
from dlapp.task.feed.buffer import FeedBuffer, ReaderQueue
from dlapp.task.feed.order import EpochEnd, FeedOrder, FeedPosition, ReaderPart, Segment
from dlapp.values.spec import FeedSpec

MAX_READERS = 256
_HELLO_BYTES, _HELLO_S = 64 << 10, 30.0
_ITEMS_BYTES = MESSAGE_BYTES // 2
_MAX_NUMBER = 1 << 53


class FeedContent(NamedTuple):
    """Content of a feed, for its readers.

    Args:
        part: files of this container.
    """

    spec: FeedSpec
    order: FeedOrder
    buffer: FeedBuffer
    part: ReaderPart

    def queue(self, index: int, size: int, start: FeedPosition) -> ReaderQueue:
        """Return the queue of a new reader, for part ``index`` of ``size`` of this container's files.

        Raises:
            UsageError: the part or position does not exist.
        """
        most_bytes = self.buffer.segment_bytes(size)
        if self.spec.format.reads_whole_files:
            most_bytes = self.buffer.limit_bytes // size
        items = self.order.segments(self.part.within(index, size), start, most_bytes)
        first = list(itertools.islice(items, 1))  # a position beyond the input concerns this reader only
        return self.buffer.open(itertools.chain(first, items), size)


class SocketReaders:
    """Server of the readers of one feed.

    Args:
        listener: the listening socket; the caller closes it.
        content: waits for the feed's content and returns it.
        send_status: reports the state to the task, before a reader gets an error.
    """

    def __init__(
        self,
        listener: socket.socket,
        content: Callable[[], FeedContent],
        note: Callable[[str], None],
        send_status: Callable[[], None],
    ) -> None:
        self._listener, self._content, self._note, self._send_status = listener, content, note, send_status
        self._slots = threading.BoundedSemaphore(MAX_READERS)

    def run(self) -> None:
        """Serve readers until the process ends."""
        while True:
            try:
                accepted = accept_one(self._listener, self._begin, self._note)
            except OSError:
                return  # the task closed it
            if accepted is Accepted.FULL:
                time.sleep(0.05)

    def _begin(self, connection: socket.socket, _: object) -> None:
        self._slots.acquire()
        try:
            threading.Thread(target=self._serve, args=(connection,), name="feed-reader", daemon=True).start()
        except RuntimeError:  # no more threads
            self._slots.release()
            raise

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection:
                try:
                    self._feed(connection)
                except (ConnectionError, TimeoutError):
                    raise
                except Exception as error:
                    self._refuse(connection, error)
        except OSError:
            return  # the reader has ended; another one may resume at its position
        finally:
            self._slots.release()

    def _refuse(self, connection: socket.socket, error: Exception) -> None:
        """Send a reader the reason why it receives nothing more."""
        if not isinstance(error, DlappError | OSError):
            self._note(f"a reader of the feed is refused: {error!r}")
        self._send_status()
        _send(connection, {"error": str(error) or repr(error)})

    def _feed(self, connection: socket.socket) -> None:
        connection.settimeout(_HELLO_S)
        index, size, start, files = _hello(connection.recv(_HELLO_BYTES))
        connection.settimeout(None)
        content = self._content()
        if files not in ("", content.order.digest):
            raise UsageError("the input has changed since the position was taken, so it cannot be continued from there")
        queue = content.queue(index, size, start)
        welcome = {
            "format": content.spec.format.value,
            "epochs": content.spec.epochs,
            "shuffle": content.spec.shuffle,
            "files": content.order.digest,
        }
        receiver = threading.Thread(target=_acknowledge, args=(connection, queue), name="feed-acks", daemon=True)
        try:
            _send(connection, welcome)
            receiver.start()
            try:
                while batch := queue.take(MAX_FDS):
                    _send_items(connection, batch)
            except (ConnectionError, TimeoutError):
                raise
            except Exception as error:
                self._refuse(connection, error)
            else:
                if not queue.closed:
                    _send(connection, {"over": True})
        finally:
            queue.close()
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            if receiver.ident is not None:
                receiver.join()


def _hello(data: bytes) -> tuple[int, int, FeedPosition, str]:
    """Return the fields of a reader's request: index and size of its part, start position, digest of its file list.

    Raises:
        UsageError: the message is malformed.
    """
    try:
        said = json.loads(data)
        index, size = said["part"]
        numbers = [index, size, said["epoch"], said["file"], said["at"]]
        files = said["files"]
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UsageError("not a request for a feed") from None
    if any(type(one) is not int or not 0 <= one < _MAX_NUMBER for one in numbers) or not isinstance(files, str):
        raise UsageError("not a request for a feed: its numbers are not possible")
    if not 1 <= size <= MAX_READERS:
        raise UsageError(f"part {index} of {size}: at most {MAX_READERS} processes can share a feed")
    return index, size, FeedPosition(*numbers[2:]), files


def _acknowledge(connection: socket.socket, queue: ReaderQueue) -> None:
    """Read acknowledgements until the reader disconnects."""
    try:
        while (data := connection.recv(32)) and data.isdigit():
            queue.acknowledge(int(data))
    except OSError:
        pass
    queue.close()


def _send_items(connection: socket.socket, batch: list[tuple[Segment | EpochEnd, int]]) -> None:
    """Send items, in several messages if their names are long; their descriptors are always closed."""
    try:
        for message, fds in _messages(batch):
            _send(connection, message, fds)
    finally:
        for _, fd in batch:
            if fd >= 0:
                os.close(fd)


def _messages(batch: list[tuple[Segment | EpochEnd, int]]) -> Iterator[tuple[dict[str, Any], list[int]]]:
    items: list[list[Any]] = []
    fds: list[int] = []
    size = 0
    for item, fd in batch:
        if isinstance(item, EpochEnd):
            said: list[Any] = [item.epoch]
        else:
            said = [item.epoch, item.number, item.node.source, item.node.size_bytes, item.start, item.end]
        length = len(item.node.source) * 6 + 200 if isinstance(item, Segment) else 20  # maximum size as JSON
        if items and size + length > _ITEMS_BYTES:
            yield {"items": items}, fds
            items, fds, size = [], [], 0
        items.append(said)
        size += length
        if fd >= 0:
            fds.append(fd)
    yield {"items": items}, fds


def _send(connection: socket.socket, message: dict[str, Any], fds: list[int] | None = None) -> None:
    data = json.dumps(message).encode()
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    while True:
        try:
            connection.sendmsg([data], ancillary)
            return
        except OSError as error:
            if error.errno != errno.ETOOMANYREFS:  # too many descriptors are in flight, to all readers
                raise
            time.sleep(0.01)
