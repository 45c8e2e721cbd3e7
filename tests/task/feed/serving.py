"""A feed in this process, of files in memory: its real order, buffer and socket, and readers of `dlapp.feed`."""

from __future__ import annotations

import contextlib
import io
import os
import random
import socket
import stat
import struct
import tarfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType

from dlapp.feed import Feed, _Item, _SourceFile
from dlapp.storage.values import TreeNode
from dlapp.task.feed.buffer import FeedBuffer
from dlapp.task.feed.order import FeedOrder, ReaderPart, Segment
from dlapp.task.feed.sockets import FeedContent, SocketReaders
from dlapp.values.spec import FeedFormat, FeedSpec

WHOLE = ReaderPart(0, 1)


def nodes_of(files: Mapping[str, bytes]) -> list[TreeNode]:
    """The files as a file system lists them."""
    return [TreeNode(name, name, stat.S_IFREG | 0o644, len(files[name]), 1) for name in sorted(files)]


class _Listener(socket.socket):
    """A listener that keeps what it accepts, so that a test can break it."""

    accepted: list[socket.socket]

    def accept(self) -> tuple[socket.socket, object]:
        connection, address = super().accept()
        self.accepted.append(connection)
        return connection, address


class ServedFeed:
    """The feed of one container. A context manager.

    Args:
        directory: for the socket, and what is on the disk.
        files: name -> content.
        spec: of the feed.
        part: of this container.
        fetch: brings a segment in place of the content; None: the content is brought.
        end_epoch: as of `FeedBuffer`.
    """

    def __init__(
        self,
        directory: Path,
        files: Mapping[str, bytes],
        spec: FeedSpec,
        part: ReaderPart = WHOLE,
        fetch: Callable[[Segment, int], None] | None = None,
        end_epoch: Callable[[int], None] = lambda _: None,
    ) -> None:
        self.path, self.fetched = str(directory / "feed.sock"), list[Segment]()

        def bring(item: Segment, fd: int) -> None:
            self.fetched.append(item)
            os.pwrite(fd, files[item.node.source][item.start : item.end], item.start)

        self.buffer = FeedBuffer(fetch or bring, end_epoch, str(directory), spec.buffer_bytes, 0.0)
        self.content = FeedContent(spec, FeedOrder(nodes_of(files), spec.shuffle, spec.epochs), self.buffer, part)
        self._listener = _Listener(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.accepted = []
        self._listener.bind(self.path)
        self._listener.listen()
        self.notes: list[str] = []
        readers = SocketReaders(self._listener, lambda: self.content, self.notes.append, lambda: None)
        threading.Thread(target=readers.run, daemon=True).start()

    def break_connections(self) -> None:
        """Do to readers what the death of the process does."""
        for item in self._listener.accepted:
            with contextlib.suppress(OSError):  # it has ended
                item.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ServedFeed:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self.break_connections()
        self.buffer.close()
        self._listener.close()

    def read(self, start: dict[str, object] | None = None, part: tuple[int, int] = (0, 1)) -> Feed:
        """A new reader."""
        return Feed(self.path, part=part, start={} if start is None else start)


def source_of(content: bytes, name: str = "t.tar") -> _SourceFile:
    """A file of the input that came whole; it is closed when it was read to its end, or with `finish`."""
    item = _Item(0, 0, name, len(content), 0, len(content))
    item.fd = os.memfd_create("source", os.MFD_CLOEXEC)
    os.pwrite(item.fd, content, 0)
    return _SourceFile(None, item)  # type: ignore[arg-type]  # nothing follows


def tar_of(samples: Mapping[str, bytes]) -> bytes:
    """A tar archive."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, content in samples.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def tfrecords_of(records: list[bytes]) -> bytes:
    """A TFRecord file; its checksums are not right."""
    return b"".join(struct.pack("<Q", len(record)) + b"crc_" + record + b"crc_" for record in records)


def files_of(kind: FeedFormat, files: int, dice: random.Random) -> tuple[dict[str, bytes], list[bytes]]:
    """Some files of a format, and all their records: no two are the same."""
    content, all_records = dict[str, bytes](), list[bytes]()
    for number in range(files):
        records = [f"{number}:{each}".encode() for each in range(dice.choice((0, 1, 2, 7)))]
        if kind is FeedFormat.FILES:
            records = [f"{number}".encode()]
            content[f"f{number}"] = records[0]
        elif kind is FeedFormat.LINES:
            content[f"f{number}"] = b"\n".join(records) + (b"\n" if dice.random() < 0.5 and records else b"")
        elif kind is FeedFormat.TFRECORD:
            content[f"f{number}"] = tfrecords_of(records)
        else:
            content[f"f{number}"] = tar_of({f"d/{i}.txt": one for i, one in enumerate(records)})
        all_records += records
    return content, all_records


def record_of(kind: FeedFormat, record: object) -> bytes:
    """Content of a record."""
    if kind is FeedFormat.FILES:
        return bytes(record.read())  # type: ignore[attr-defined]
    return bytes(record["txt"]) if isinstance(record, dict) else bytes(record)  # type: ignore[call-overload]
