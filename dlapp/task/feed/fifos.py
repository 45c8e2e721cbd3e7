"""Byte stream of a feed, for programs in any language: a FIFO for each epoch, ``epoch-0`` and so on, in one directory.

The program that opens a FIFO reads the records of this container, to the end of the epoch. Then that FIFO is removed,
and the next epoch's is created, if there is one. The bytes are

    lines, tfrecord    the files one after the other; a file of lines ends with a line end
    files, tar         one tar archive: of the files, or of the archives one after the other (``tar --ignore-zeros``)

and there are none for parquet. One program reads an epoch to its end; a FIFO that is closed earlier starts again, or is
removed. The payload can write to the directory: anything in place of a FIFO is not written to.

A reader cannot distinguish the end of an epoch from the death of this process. So the task gets a message before the
first byte is written, and ends the payload if this process dies after that; and a FIFO is not closed after an error.
"""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable

from dlapp.errors import DlappError
from dlapp.locations import shown
from dlapp.system.files import closing_fd, write_all
from dlapp.task.feed.buffer import ReaderQueue
from dlapp.task.feed.order import EpochEnd, FeedPosition, Segment
from dlapp.task.feed.sockets import FeedContent
from dlapp.values.spec import FeedFormat

_BLOCK = 512
"""Block size of a tar archive [bytes]. Source: POSIX.1-2017, pax, "ustar Interchange Format"."""


def fifo_name(epoch: int) -> str:
    """Return the name of the FIFO of an epoch."""
    return f"epoch-{epoch}"


class FifoWriter:
    """Writer of one feed's FIFOs.

    Args:
        directory: descriptor of the directory, which contains the first FIFO.
        content: waits for the feed's content and returns it.
        send_status: reports the state to the task.
    """

    def __init__(
        self,
        directory: int,
        content: Callable[[], FeedContent],
        note: Callable[[str], None],
        send_status: Callable[[], None],
    ) -> None:
        self._directory, self._content, self._note, self._send_status = directory, content, note, send_status
        self.in_use = False
        """True while a FIFO has a reader: the reader would mistake the end of this process for the end of an epoch."""

    def run(self) -> None:
        """Serve one reader after another, until all epochs have ended."""
        epoch, queue = 0, None
        try:
            epochs = self._content().spec.epochs
            while epoch < epochs:
                name = fifo_name(epoch)
                with closing_fd(
                    os.open(name, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._directory)
                ) as fd:
                    if not stat.S_ISFIFO(os.fstat(fd).st_mode):
                        raise DlappError(f"{name} is no FIFO any more")
                    if not self.in_use:
                        self.in_use = True
                        self._send_status()
                    try:
                        queue = queue or self._content().queue(0, 1, FeedPosition(epoch))
                        self._write_epoch(fd, queue)
                    except BrokenPipeError:
                        if queue is not None:
                            queue.close()
                        queue = None
                        continue
                    except (DlappError, OSError) as error:
                        self._note(f"the FIFO {name} of the feed could not be finished: {error}")
                        self._send_status()
                        threading.Event().wait()  # the task ends the reader, which must not see an end of file
                    # Before the reader sees the end of this one: it may open the next immediately.
                    if epoch + 1 < epochs:
                        os.mkfifo(fifo_name(epoch + 1), 0o600, dir_fd=self._directory)
                    else:
                        self.in_use = False
                        self._send_status()
                    os.unlink(name, dir_fd=self._directory)
                epoch += 1
            if queue is not None:
                queue.close()
        except (DlappError, OSError) as error:
            self._note(f"the FIFOs of the feed are not served: {error}")

    def _write_epoch(self, fd: int, queue: ReaderQueue) -> None:
        kind = self._content().spec.format
        while True:
            for item, source in queue.take(1):
                if isinstance(item, EpochEnd):
                    if kind is FeedFormat.FILES:
                        write_all(fd, bytes(2 * _BLOCK))
                    queue.acknowledge(1)
                    return
                with closing_fd(source):
                    _write_segment(fd, item, source, kind)
                queue.acknowledge(1)


def _write_segment(fd: int, item: Segment, source: int, kind: FeedFormat) -> None:
    is_first, is_last = item.start == 0, item.end == item.node.size_bytes
    if is_first and kind is FeedFormat.FILES:
        write_all(fd, _tar_header(item.node.source, item.node.size_bytes))
    at = item.start
    while at < item.end:
        count = os.sendfile(fd, source, at, item.end - at)
        if not count:
            raise DlappError(f"{shown(item.node.source)} became shorter")
        at += count
    if is_last and kind is FeedFormat.FILES:
        write_all(fd, bytes(-item.node.size_bytes % _BLOCK))
    if is_last and kind is FeedFormat.LINES and item.node.size_bytes and os.pread(source, 1, item.end - 1) != b"\n":
        write_all(fd, b"\n")


def _tar_header(location: str, size_bytes: int) -> bytes:
    """Return the tar header of a file. Its name is the path in the location, so that names are unique."""
    import tarfile

    # A local location is a path.
    info = tarfile.TarInfo((location.partition("://")[2] or location).partition("/")[2])
    info.size = size_bytes
    return info.tobuf(tarfile.PAX_FORMAT, errors="surrogateescape")
