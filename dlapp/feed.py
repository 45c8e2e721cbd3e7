"""Records of an input with ``mode=feed``: the part of `dlapp.context` loaded only by programs that read a feed.

A program in a container imports this file as ``dlapp_feed``, beside ``dlapp_context``, which calls its functions. It
uses only the standard library and runs on Python 3.6 and later; pyarrow is imported for the parquet format.

A dlapp process sends open files over a Unix socket, in the order of the feed. Each is a part of an input file, at its
original offset in an otherwise empty file. The reader acknowledges what it has read, and the sender then sends more. A
broken connection is opened again, at the byte that was reached.
"""

import array
import contextlib
import io
import json
import os
import random
import socket
import struct
import sys
import time
import warnings
import zlib
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Tuple

__all__ = ["Feed", "FeedError"]

POSITIONS = "dlapp_feed.json"
"""File in a checkpoint's directory with the feed positions of the process that reported the checkpoint."""
MAX_FDS = 64
"""Maximum number of files per message."""
MESSAGE_BYTES = 256 << 10
_TRIES = 60
"""Number of connection attempts without any data; they take a minute."""
_BLOCK_RECORDS, _BLOCK_BYTES = 1000, 64 << 20
"""Shuffle window: this many records of one file, or this many bytes."""
_MAX_POSITIONS_BYTES = 16 << 20


class FeedError(RuntimeError):
    """Error of a feed that cannot continue; the text is the reason."""


class Feed:
    """Records of this process's part of the input, for all remaining epochs.

    The process (or the PyTorch DataLoader worker) that starts to iterate opens it.

    Args:
        path: the path of the socket.
        name: the name of the section of the input.
        part: see `dlapp.context.feed`.
        start: a position; None: the one in the checkpoint's directory, if any.
    """

    def __init__(
        self, path: str, name: str = "", part: Optional[Tuple[int, int]] = None, start: Optional[Dict[str, Any]] = None
    ) -> None:
        self._path, self._name, self._part, self._start = path, name, part, start
        self._records = None  # type: Optional[Iterator[Tuple[int, Any, bool]]]
        self._position = {}  # type: Dict[str, Any]
        self.format = ""
        self.epochs = 0

    @property
    def epoch(self) -> int:
        """Return the number of the epoch of the last record, from 0."""
        return int(self._position.get("epoch", 0))

    def position(self) -> Dict[str, Any]:
        """Return the position after the last record: a small value of JSON types, for ``start``."""
        if self._records is None:
            self._begin()
        return dict(self._position)

    def __iter__(self) -> Iterator[Any]:
        """Return an iterator over the records of all remaining epochs."""
        return (record for _, record, is_end in self._begun() if not is_end)

    def by_epoch(self) -> Iterator[Tuple[int, Iterator[Any]]]:
        """Yield each remaining epoch: its number, and an iterator over its records, to be read to its end."""
        steps = self._begun()
        while True:
            first = next(steps, None)
            if first is None:
                return
            epoch = first[0]
            yield epoch, _until_end(first, steps)

    # ---- how ----

    def _begun(self) -> Iterator[Tuple[int, Any, bool]]:
        if self._records is None:
            self._begin()
        assert self._records is not None
        return self._records

    def _begin(self) -> None:
        part = self._part or _worker()
        key = _key(part)
        start = self._start if self._start is not None else _resumed(self._name, key)
        self._position = {"epoch": 0, "file": 0, "record": 0, "part": key, "files": ""}
        if start:
            self._position.update(start)
            if self._position["part"] != key:
                raise FeedError(
                    "the position is of part {}, and this process reads part {}".format(self._position["part"], key)
                )
        connection = _FeedConnection(self._path, part, self._position)
        self.format, self.epochs = connection.welcome["format"], connection.welcome["epochs"]
        self._position["files"] = connection.welcome["files"]
        seed = connection.welcome["shuffle"]
        self._records = self._read(connection, seed)
        _OPEN.append(self)

    def _read(self, connection: "_FeedConnection", seed: Optional[int]) -> Iterator[Tuple[int, Any, bool]]:
        """Yield epoch, record and False for each record; epoch, None and True at the end of each epoch."""
        parse = _PARSERS[self.format]
        place, skip = self._position, int(self._position["record"])
        with contextlib.closing(connection):
            while True:
                item = connection.next()
                if item is None:
                    return
                if item.fd < 0:
                    place.update(epoch=item.epoch + 1, file=0, record=0)
                    yield item.epoch, None, True
                    continue
                place.update(epoch=item.epoch, file=item.file, record=0)
                file = _SourceFile(connection, item)
                order = None if seed is None else random.Random("{}:{}:{}".format(seed, item.epoch, item.name))
                for number, record in enumerate(parse(file, order), 1):
                    if number > skip:
                        place["record"] = number
                        yield item.epoch, record, False
                file.finish()
                skip = 0


def write_positions(directory: str) -> None:
    """Write the positions of this process's feeds into the directory of a checkpoint."""
    positions = {}  # type: Dict[str, Dict[str, Any]]
    for feed in _OPEN:
        position = feed.position()
        positions.setdefault(feed._name, {})[position["part"]] = position
    if not positions:
        return
    path = os.path.join(directory, POSITIONS)
    new = "{}.{}".format(path, os.getpid())
    with open(new, "w") as file:
        json.dump(positions, file)
    os.replace(new, path)


_OPEN = []  # type: List[Feed]
"""Feeds that this process reads."""


def _forget() -> None:
    del _OPEN[:]


if hasattr(os, "register_at_fork"):  # Python 3.7
    os.register_at_fork(after_in_child=_forget)


def _until_end(first: Tuple[int, Any, bool], steps: Iterator[Tuple[int, Any, bool]]) -> Iterator[Any]:
    step = first  # type: Optional[Tuple[int, Any, bool]]
    while step is not None and not step[2]:
        yield step[1]
        step = next(steps, None)


def _worker() -> Tuple[int, int]:
    """Return the number of this PyTorch DataLoader worker, and the number of workers; outside of workers 0 of 1."""
    module = sys.modules.get("torch.utils.data")
    info = module.get_worker_info() if module is not None else None
    return (0, 1) if info is None else (info.id, info.num_workers)


def _key(part: Tuple[int, int]) -> str:
    """Return the name of the part of the records that this process reads: ``worker/0 of 4, 1 of 2``."""
    env = os.environ
    role, index = env.get("DLAPP_ROLE", "worker"), env.get("DLAPP_ROLE_INDEX", "0")
    return "{}/{} of {}, {} of {}".format(role, index, env.get("DLAPP_ROLE_SIZE", "1"), part[0], part[1])


def _resumed(name: str, key: str) -> Optional[Dict[str, Any]]:
    """Return the position in the checkpoint from which this program resumes; None: there is no checkpoint."""
    directory = os.environ.get("DLAPP_RESUME_FROM")
    if not directory:
        return None
    path = os.path.join(directory, POSITIONS)
    try:
        with open(path) as file:
            positions = json.loads(file.read(_MAX_POSITIONS_BYTES)).get(name, {})
    except FileNotFoundError:
        warnings.warn("{} is not there, so the feed begins anew".format(path), RuntimeWarning, stacklevel=4)
        return None
    if key not in positions:
        there = "; ".join(sorted(positions)) or "none"
        raise FeedError(
            "{} has no position of part {} of the feed (there: {}); pass start=, or start={{}} to begin anew".format(
                path, key, there
            )
        )
    return dict(positions[key])


# ---- the connection ----


class _Item:
    """Part of a file, with its descriptor; or the end of an epoch, with descriptor -1."""

    def __init__(self, epoch: int, file: int = 0, name: str = "", size: int = 0, start: int = 0, end: int = 0) -> None:
        self.epoch, self.file, self.name, self.size, self.start, self.end = epoch, file, name, size, start, end
        self.fd = -1


class _FeedConnection:
    """Connection to the sending process, opened again if it breaks.

    Args:
        path: the path of its socket.
        part: which part of the container's records, and the number of parts.
        position: where to start.
    """

    def __init__(self, path: str, part: Tuple[int, int], position: Dict[str, Any]) -> None:
        self._path, self.part, self._files = path, part, position["files"]
        self._next = (int(position["epoch"]), int(position["file"]), 0)
        self._ready = []  # type: List[_Item]
        self._read = 0  # not yet acknowledged
        self._is_over = False
        self._tries = 0  # since the last data
        self._socket = None  # type: Optional[socket.socket]
        self.welcome = self._connect()
        self._files = self.welcome["files"]

    def close(self) -> None:
        """Close the connection and the received, unread files."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        while self._ready:
            _close(self._ready.pop(0))

    def next(self) -> Optional[_Item]:
        """Return the next item; None: all epochs are over."""
        while not self._ready:
            if self._is_over:
                return None
            self._acknowledge()
            self._receive()
        if self._read >= MAX_FDS // 4:
            self._acknowledge()
        item = self._ready.pop(0)
        self._read += 1
        if item.fd < 0:
            self._next = (item.epoch + 1, 0, 0)
        elif item.end >= item.size:
            self._next = (item.epoch, item.file + 1, 0)
        else:
            self._next = (item.epoch, item.file, item.end)
        return item

    def _acknowledge(self) -> None:
        if self._read and self._socket is not None:
            with contextlib.suppress(OSError):  # the next receive fails, too
                self._socket.send(str(self._read).encode())
        self._read = 0

    def _receive(self) -> None:
        try:
            assert self._socket is not None
            message, fds = _receive(self._socket)
        except (ConnectionError, EOFError):
            self._connect()
            return
        if "error" in message:
            raise FeedError(message["error"])
        if message.get("over"):
            self._is_over = True
            return
        self._tries = 0
        for said in message["items"]:
            item = _Item(*said)
            if len(said) > 1:
                item.fd = fds.pop(0)
                os.lseek(item.fd, item.start, os.SEEK_SET)
            self._ready.append(item)

    def _connect(self) -> Dict[str, Any]:
        self.close()
        self._read = 0
        error = None  # type: Optional[BaseException]
        while self._tries < _TRIES:
            if self._tries:
                time.sleep(min(0.05 * 2 ** (self._tries - 1), 1.0))
            self._tries += 1
            try:
                return self._connect_once()
            except (OSError, EOFError) as caught:
                error = caught
        raise FeedError("the process that feeds is not there: {}".format(error or "it ends each time"))

    def _connect_once(self) -> Dict[str, Any]:
        epoch, file, at = self._next
        hello = {"part": self.part, "epoch": epoch, "file": file, "at": at, "files": self._files}
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            # The path may exceed the size of a socket address.
            directory = os.open(os.path.dirname(self._path), os.O_RDONLY)
            try:
                made.connect("/proc/self/fd/{}/{}".format(directory, os.path.basename(self._path)))
            finally:
                os.close(directory)
            made.send(json.dumps(hello).encode())
            # The sender lists a large input first, which takes time.
            welcome, _ = _receive(made)
        except BaseException:
            made.close()
            raise
        if "error" in welcome:
            made.close()
            raise FeedError(welcome["error"])
        self._socket = made
        return welcome


def _receive(connection: socket.socket) -> Tuple[Dict[str, Any], List[int]]:
    """Return the next message with its descriptors. Raises EOFError."""
    fds = array.array("i")
    space = socket.CMSG_SPACE(MAX_FDS * fds.itemsize)
    data, ancillary, flags, _ = connection.recvmsg(MESSAGE_BYTES, space, getattr(socket, "MSG_CMSG_CLOEXEC", 0))
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % fds.itemsize])
    if not data:
        raise EOFError("the connection was closed")
    if flags & socket.MSG_CTRUNC:
        raise FeedError("this process has too many open files: raise its limit (ulimit -n)")
    return json.loads(data.decode()), list(fds)


def _close(item: _Item) -> None:
    if item.fd >= 0:
        os.close(item.fd)
        item.fd = -1


class _SourceFile(io.RawIOBase):
    """Input file that arrives in parts; not seekable.

    Args:
        connection: connection that delivers the parts after the first.
        item: the first part.
    """

    def __init__(self, connection: _FeedConnection, item: _Item) -> None:
        self._connection, self._item, self._at = connection, item, item.start
        self.name, self.size = item.name, item.size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read into a buffer and return the number of bytes; 0 at the end."""
        if not self._advance():
            return 0
        view = memoryview(buffer).cast("B")[: self._item.end - self._at]
        count = os.readv(self._item.fd, [view])
        return self._count(count)

    def read(self, size: int = -1) -> bytes:
        """Return this many bytes, fewer only at the end; a negative number: the rest."""
        if size < 0:
            return self.readall()
        pieces, left = [], size
        while left and self._advance():
            piece = os.read(self._item.fd, min(left, self._item.end - self._at))
            self._count(len(piece))
            pieces.append(piece)
            left -= len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def peek(self, size: int) -> bytes:
        """Return the next bytes of this part without consuming them."""
        return os.pread(self._item.fd, min(size, self._item.end - self._at), self._at)

    def readall(self) -> bytes:
        """Return the rest."""
        pieces = []
        while self._advance():
            piece = os.read(self._item.fd, self._item.end - self._at)
            self._count(len(piece))
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def whole(self) -> Any:
        """Return the file as a seekable one; it must have come in one part, of which nothing was read."""
        if (self._item.start, self._item.end) != (0, self.size):
            text = "{} has {} MiB, and each of {} processes that share the feed has its part of feed.buffer: raise it"
            raise FeedError(text.format(self.name, -(-self.size >> 20), self._connection.part[1]))
        os.lseek(self._item.fd, 0, os.SEEK_SET)
        fd, self._item.fd, self._at = self._item.fd, -1, self.size
        return os.fdopen(fd, "rb")

    def finish(self) -> None:
        """Skip the rest."""
        while self._item.end < self.size:
            self._follow()
        _close(self._item)

    def _count(self, count: int) -> int:
        if not count:
            raise FeedError("{} came with fewer bytes than it has".format(self.name))
        self._at += count
        return count

    def _advance(self) -> bool:
        """Return whether there is data to read, after receiving the next part if needed."""
        if self._at >= self._item.end:
            if self._item.end >= self.size:
                _close(self._item)
                return False
            self._follow()
        return True

    def _follow(self) -> None:
        _close(self._item)
        item = self._connection.next()
        if item is None or (item.name, item.start) != (self.name, self._item.end):
            raise FeedError("{} was not sent to its end".format(self.name))
        self._item, self._at = item, item.start


# ---- formats ----


def _files(file: _SourceFile, _order: Optional[random.Random]) -> Iterator[Any]:
    yield io.BufferedReader(file, 64 << 10) if file.size > 64 << 10 else io.BufferedReader(file)


def _lines(file: _SourceFile, order: Optional[random.Random]) -> Iterable[bytes]:
    return _shuffled(map(_without_end, io.BufferedReader(file, 1 << 20)), order, len)


def _without_end(line: bytes) -> bytes:
    return line[: -2 if line.endswith(b"\r\n") else -1] if line.endswith(b"\n") else line


def _tfrecords(file: _SourceFile, order: Optional[random.Random]) -> Iterable[bytes]:
    return _shuffled(_tfrecords_in_order(file), order, len)


def _tfrecords_in_order(file: _SourceFile) -> Iterator[bytes]:
    """Yield the records; their own checksums are not verified, as HDFS has verified the bytes.

    Source: tensorflow.org/tutorials/load_data/tfrecord, "TFRecords format details".
    """
    reader, left = io.BufferedReader(file, 1 << 20), file.size
    while left:
        head = reader.read(12)
        length = struct.unpack("<Q", head[:8])[0] if len(head) == 12 else -1
        if not 0 <= length <= left - 16:
            raise FeedError(
                "{} is not a TFRecord file, or not whole: see its byte {}".format(file.name, file.size - left)
            )
        yield reader.read(length)
        reader.read(4)
        left -= length + 16


def _samples(file: _SourceFile, order: Optional[random.Random]) -> Iterable[Dict[str, Any]]:
    return _shuffled(_samples_in_order(file), order, lambda one: sum(map(len, one.values())))


def _samples_in_order(file: _SourceFile) -> Iterator[Dict[str, Any]]:
    """Yield a dictionary for each sample: consecutive members of a tar file with the same name up to the first dot of
    its last part, by the rest of the name; with ``__key__`` and ``__url__``, as in WebDataset."""
    sample = {}  # type: Dict[str, Any]
    archive = _TarFile(file)
    seen = set()  # hashes of keys: an archive may have millions of them
    for name in archive.members():
        key, suffix = _sample_name(name)
        if not key:
            continue
        if sample and key != sample["__key__"]:
            yield sample
            seen.add(hash(sample["__key__"]))
            sample = {}
            if hash(key) in seen:
                raise FeedError(
                    "{} has {} apart from the others of its sample: they must be consecutive".format(file.name, name)
                )
        if not sample:
            sample = {"__key__": key, "__url__": file.name}
        if suffix in sample:
            raise FeedError("{} has {} twice".format(file.name, name))
        sample[suffix] = archive.content()
    if sample:
        yield sample


def _sample_name(name: str) -> Tuple[str, str]:
    """Return the key of a member's sample and the member's suffix, split as in WebDataset; no key: not a sample's
    member.

    WebDataset uses the regular expression ``((?:.*/|)[^.]+)[.]([^/]*)``, whose run time is quadratic in the length, and
    an archive may contain a name of a million slashes.
    """
    base = name.rfind("/") + 1
    dot = name.find(".", base)
    if dot < 0:
        return "", ""
    if dot == base and (base == 0 or "." in name[name.rfind("/", 0, base - 1) + 1 : base - 1]):
        return "", ""
    return name[:dot], name[dot + 1 :].lower()


class _TarFile:
    """Reader of the regular files of a tar archive (POSIX, GNU or V7), which may be compressed.

    The streams of `tarfile` take twice the CPU time, as they copy each byte several times, and treat a damaged header
    as the end of the archive. Here the headers are checked against the archive's content.

    Source: POSIX.1-2017, pax, "pax Interchange Format"; the GNU tar manual, "Basic Tar Format".

    Args:
        file: file with the archive.
    """

    def __init__(self, file: _SourceFile) -> None:
        self._file, self._at = file, 0
        self._stream, self._errors = _decompressed(file)
        self._left = self._padding = 0  # of the member
        self._global = {}  # type: Dict[str, str]

    def members(self) -> Iterator[str]:
        """Yield the name of each regular file; its unread `content` is skipped."""
        own = {}  # type: Dict[str, str]
        while True:
            at, block = self._next_block()
            if not block or block == _NO_HEADER:
                return
            try:
                kind, size, name = _tar_header(block)
                if kind in _TAR_EXTENSIONS:
                    self._left, self._padding = size, -size % _TAR_BLOCK
                    if size > _MAX_EXTENSION_BYTES:
                        raise ValueError("a name of {} bytes".format(size))
                    own.update(self._extension(kind))
                    continue
                described = dict(self._global, **own) if own or self._global else own
                if kind == b"S" or "sparse" in described:
                    raise ValueError("a sparse file")
                if "size" in described:
                    size = _decimal(described["size"].encode())
            except ValueError as error:
                raise self._error(at, str(error)) from None
            name, own = described.get("path", name), {}
            if kind == b"\0" and name.endswith("/"):
                kind = b"5"  # V7 marks a directory like this
            if kind in _TAR_WITHOUT_CONTENT:
                size = 0
            self._left, self._padding = size, -size % _TAR_BLOCK
            if self._stream is self._file and size > self._file.size - self._at:
                raise self._error(at, "{} bytes are more than the file has left".format(size))
            if kind in _TAR_REGULAR:
                yield name

    def content(self) -> bytes:
        """Return the content of the member."""
        count, self._left = self._left, 0
        if self._stream is not self._file and count > _MAX_UNPACKED_BYTES:
            raise self._error(self._at, "a compressed member of {} bytes".format(count))
        content = self._read(count)
        if len(content) < count:
            raise self._error(self._at, "its end is missing")
        return content

    def _next_block(self) -> Tuple[int, bytes]:
        """Return the block after the member, and its offset; empty: the archive ends."""
        while self._left:
            count = min(self._left, _TAR_PIECE_BYTES)
            if len(self._read(count)) < count:
                raise self._error(self._at, "its end is missing")
            self._left -= count
        padding, self._padding = self._padding, 0
        block = self._read(padding + _TAR_BLOCK)[padding:]
        at = self._at - len(block)
        if len(block) not in (0, _TAR_BLOCK) or not self._at:
            raise self._error(at, "its end is missing")
        return at, block

    def _extension(self, kind: bytes) -> Dict[str, str]:
        """Return the fields of an extended header for the next member. Raises ValueError."""
        content = self.content()
        if kind == b"L":
            return {"path": _tar_text(content)}
        if kind == b"K":  # of a link
            return {}
        records = _pax_records(content)
        if kind == b"g":
            self._global.update(records)
            return {}
        return records

    def _read(self, count: int) -> bytes:
        """Return this many bytes, fewer only at the end."""
        pieces, left = [], count
        try:
            while left:
                # The size of a compressed archive is unknown, so do not allocate memory by a header's claim.
                piece = self._stream.read(left if self._stream is self._file else min(left, _TAR_PIECE_BYTES))
                if not piece:
                    break
                pieces.append(piece)
                left -= len(piece)
        except self._errors as error:
            raise self._error(self._at + count - left, str(error)) from error
        self._at += count - left
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _error(self, at: int, why: str) -> FeedError:
        text = "{} is not a tar file, or damaged: see byte {} of the archive ({})"
        return FeedError(text.format(self._file.name, at, why))


_TAR_BLOCK, _TAR_PIECE_BYTES, _MAX_EXTENSION_BYTES = 512, 1 << 20, 1 << 20
_MAX_UNPACKED_BYTES = 4 << 30
"""Size limit of a member: a small compressed archive can contain one of any size, and a record is held in memory."""
_NO_HEADER = bytes(_TAR_BLOCK)
_TAR_REGULAR, _TAR_EXTENSIONS = (b"0", b"\0", b"7"), (b"x", b"g", b"L", b"K")
_TAR_WITHOUT_CONTENT = (b"1", b"2", b"3", b"4", b"5", b"6")
"""Links, devices, directories and FIFOs: they have no content, whatever size their header has."""


def _decompressed(file: _SourceFile) -> Tuple[Any, Tuple[Any, ...]]:
    """Return a stream of the archive, and its decompression errors."""
    begin = file.peek(6)
    if begin.startswith(b"\x1f\x8b"):
        import gzip

        return gzip.GzipFile(fileobj=io.BufferedReader(file, 1 << 20)), (OSError, EOFError, zlib.error)
    if begin.startswith(b"BZh"):
        import bz2

        return bz2.BZ2File(io.BufferedReader(file, 1 << 20)), (OSError, EOFError)
    if begin.startswith((b"\xfd7zXZ\0", b"\x5d\0\0\x80")):
        import lzma

        return lzma.LZMAFile(io.BufferedReader(file, 1 << 20)), (OSError, EOFError, lzma.LZMAError)
    return file, (OSError,)


def _tar_header(block: bytes) -> Tuple[bytes, int, str]:
    """Return type, size and name of a member. Raises ValueError."""
    # The checksum field counts as spaces.
    if _tar_number(block[148:156]) != _byte_sum(block[:256]) + _byte_sum(block[256:]) - sum(block[148:156]) + 256:
        raise ValueError("no header")
    name = _tar_text(block[:100])
    if block[257:263] == b"ustar\0" and block[345]:
        name = _tar_text(block[345:500]) + "/" + name
    return block[156:157], _tar_number(block[124:136]), name


def _byte_sum(data: bytes) -> int:
    """Return the sum of up to 256 bytes: Adler-32 contains it modulo 65521, in a hundredth of the time of `sum`."""
    return (zlib.adler32(data) & 0xFFFF) - 1 if data else 0


def _tar_text(field: bytes) -> str:
    return field.partition(b"\0")[0].decode("utf-8", "surrogateescape")


def _tar_number(field: bytes) -> int:
    """Return a number in octal digits or, as GNU writes large ones, in binary. Raises ValueError."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.partition(b"\0")[0].strip(b" ")
    if digits and not digits.isdigit():
        raise ValueError("no header")
    return int(digits or b"0", 8)


def _pax_records(data: bytes) -> Dict[str, str]:
    """Return path and size from a pax extended header, whose records are ``LENGTH KEY=VALUE\\n``; ``sparse`` if it says
    so. Raises ValueError."""
    found, at, end = {}, 0, len(data.rstrip(b"\0"))
    while at < end:
        space = data.find(b" ", at, at + 20)
        until = at + _decimal(data[at:space]) if space > 0 else 0
        key, equals, value = data[space + 1 : max(until - 1, 0)].partition(b"=")
        if not equals or until > end or data[until - 1 : until] != b"\n":
            raise ValueError("no extended header")
        if key in (b"path", b"size"):
            found[key.decode()] = value.decode("utf-8", "surrogateescape")
        elif key.startswith(b"GNU.sparse."):
            found["sparse"] = ""
        at = until
    return found


def _decimal(text: bytes) -> int:
    if not text.isdigit() or len(text) > 20:
        raise ValueError("no number")
    return int(text)


def _row_groups(file: _SourceFile, order: Optional[random.Random]) -> Iterator[Any]:
    from pyarrow import ArrowException, parquet

    with file.whole() as content:
        try:
            table = parquet.ParquetFile(content)
            numbers = list(range(table.num_row_groups))
            if order is not None:
                order.shuffle(numbers)
            for number in numbers:
                yield table.read_row_group(number)
        except (ArrowException, OSError) as error:
            raise FeedError("{} is not a Parquet file, or damaged: {}".format(file.name, error)) from error


_PARSERS = {
    "files": _files,
    "lines": _lines,
    "tar": _samples,
    "tfrecord": _tfrecords,
    "parquet": _row_groups,
}  # type: Dict[str, Callable[[_SourceFile, Optional[random.Random]], Iterable[Any]]]


def _shuffled(records: Iterable[Any], order: Optional[random.Random], size: Callable[[Any], int]) -> Iterable[Any]:
    """Return the records shuffled block by block; the result depends only on them and on ``order``."""
    return records if order is None else _shuffled_blocks(records, order, size)


def _shuffled_blocks(records: Iterable[Any], order: random.Random, size: Callable[[Any], int]) -> Iterator[Any]:
    block, block_bytes = [], 0  # type: List[Any], int
    for record in records:
        block.append(record)
        block_bytes += size(record)
        if len(block) >= _BLOCK_RECORDS or block_bytes >= _BLOCK_BYTES:
            order.shuffle(block)
            yield from block
            block, block_bytes = [], 0
    order.shuffle(block)
    yield from block
