"""Reader of one container's log in the file to which a node aggregated an application's logs.

When an application has ended, the node writes a TFile (Hadoop's key-value file) for it to HDFS. All numbers are
big-endian; V is TFile's variable-length integer, S is a V and that many bytes of text, U two bytes of length and text.

    +--------------------------------------------------------------------------+
    | magic, 16 bytes                                                          |
    | data blocks, each compressed as a whole:                                 |
    |     entries: V length, key; the value in chunks: V length n, |n| bytes,  |
    |     the last chunk has n >= 0                                            |
    | data:BCFile.index: S compression; V count; each block: V offset,         |
    |     V stored size, V raw size                                            |
    | meta index: V count; each: S name, S compression, V offset, V stored     |
    |     size, V raw size                                                     |
    | 8 bytes: offset of the meta index; 4 bytes: version; magic, 16 bytes     |
    +--------------------------------------------------------------------------+

A key is a U: VERSION, APPLICATION_ACL, APPLICATION_OWNER, then container ids, whose values contain for each log file U
name, U length in decimal, content. Of an uncompressed file only the needed parts are read.

Source: org.apache.hadoop.io.file.tfile.{TFile, BCFile, Utils}, AggregatedLogFormat; files written by 3.4.2.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

from dlapp.errors import DlappError

MAGIC = bytes.fromhex("d111d36891b5d7b639df414092bae150")
_TAIL = struct.Struct("!QHH16s")
_PIECE = 1 << 20
_MIN_READ_BYTES = 1 << 12
_MAX_BLOCKS = 100_000
"""Maximum compressed size of a block; a block has one MiB."""
_MAX_RATIO = 1100
"""Maximum compression ratio accepted for zlib; its maximum is 1032."""
_MAX_DIGITS = 19
_MAX_WORD = 1 << 16

ReadAt = Callable[[int, int], bytes]
"""Function that returns bytes of the file: from an offset, this many, fewer at the end."""


class NotReadable(DlappError):
    """An aggregated log file is invalid, or has an unknown compression."""


class Block(NamedTuple):
    """Region of the file: its offset, its stored size, and its uncompressed size."""

    offset: int
    stored: int
    raw: int


def log_of(read_at: ReadAt, size: int, container: str, name: str) -> Iterator[bytes] | None:
    """Return the content of one log file of one container, in chunks; None if there is none.

    Args:
        read_at: reads the file: offset and count to bytes.
        size: size of the file [bytes].
        container: id of the container.
        name: name of the log, as in ``stdout``.

    Raises:
        NotReadable: the file is damaged, or of another kind.
    """
    compression, blocks = _index(read_at, size)
    for block in blocks:
        stream = _opened(read_at, block, compression)
        while not stream.at_end():
            value = _entry(stream, container)
            if value is None:
                continue
            while not value.at_end():
                found = _text(value)
                length = _text(value)
                if not length.isascii() or not length.isdecimal() or len(length) > _MAX_DIGITS:
                    raise NotReadable(f"{container}: the length of {found[:100]!r} is {length[:100]!r}")
                if found == name:
                    return value.pieces(int(length))
                value.skip(int(length))
            return None
    return None


def _entry(stream: ByteReader, wanted: str) -> _Value | None:
    """Return the value of the next entry, if it has this key; else skip it."""
    key = stream.take(_length(stream, _MAX_WORD))
    value = _Value(stream)
    if key == struct.pack("!H", len(wanted)) + wanted.encode():
        return value
    value.skip_all()
    return None


# ---- the parts of the file ----


def _index(read_at: ReadAt, size: int) -> tuple[str, list[Block]]:
    """Return the compression and the region of the data."""
    if size < len(MAGIC) + _TAIL.size or (tail := read_at(size - _TAIL.size, _TAIL.size))[-16:] != MAGIC:
        raise NotReadable("not a TFile (only Hadoop's log server can read the indexed format)")
    offset, major, _, _ = _TAIL.unpack(tail)
    if major != 1:
        raise NotReadable(f"it is a TFile of version {major}")
    metas = _Plain(read_at, offset, size - _TAIL.size)
    for _ in range(_length(metas, 1000)):
        name, compression = _short(metas), _short(metas)
        block = _block(metas, size)
        if name == "data:BCFile.index":
            data = _opened(read_at, block, compression)
            default, count = _short(data), _length(data, _MAX_BLOCKS)
            return default, [_block(data, size) for _ in range(count)]
    raise NotReadable("it has no index of its blocks")


def _block(stream: ByteReader, size: int) -> Block:
    block = Block(_number(stream), _number(stream), _number(stream))
    if min(block) < 0 or block.offset + block.stored > size or block.raw > _MAX_RATIO * (block.stored + 1):
        raise NotReadable(f"it has no such block: {tuple(block)}")
    return block


def _opened(read_at: ReadAt, block: Block, compression: str) -> ByteReader:
    plain = _Plain(read_at, block.offset, block.offset + block.stored)
    if compression == "none":
        return plain
    if compression == "gz":
        return _Inflated(plain, block)
    setting = "yarn.nodemanager.log-aggregation.compression-type"
    raise NotReadable(f"it is compressed with {compression}, which is not known here ({setting})")


class ByteReader(Protocol):
    """Forward-only stream of bytes."""

    def take(self, count: int) -> bytes:
        """Return this many bytes. Raises NotReadable if there are fewer."""

    def skip(self, count: int) -> None:
        """Skip this many bytes."""

    def at_end(self) -> bool:
        """Return whether the end is reached."""


class _Plain:
    """Uncompressed region of the file; skipped bytes are not read."""

    def __init__(self, read_at: ReadAt, start: int, end: int) -> None:
        self._read_at, self._at, self._end = read_at, start, end
        self._window, self._window_at = b"", start

    def take(self, count: int) -> bytes:
        if count > self._end - self._at:
            raise NotReadable("it ends too early")
        place = self._at - self._window_at
        if place < 0 or place + count > len(self._window):
            self._window = self._read_at(self._at, min(max(count, _MIN_READ_BYTES), self._end - self._at))
            self._window_at, place = self._at, 0
            if len(self._window) < count:
                raise NotReadable("it ends too early")
        self._at += count
        return self._window[place : place + count]

    def skip(self, count: int) -> None:
        if count > self._end - self._at:
            raise NotReadable("it ends too early")
        self._at += count

    def at_end(self) -> bool:
        return self._at >= self._end

    def some(self) -> bytes:
        """Return the next bytes, at most one chunk."""
        return self.take(min(_PIECE, self._end - self._at))


class _Inflated:
    """Compressed region."""

    def __init__(self, stored: _Plain, block: Block) -> None:
        self._stored, self._left = stored, block.raw
        # Hadoop writes the output of java.util.zip.Deflater, with a zlib or gzip header.
        self._inflate = zlib.decompressobj(wbits=zlib.MAX_WBITS | 32)
        self._ready = b""

    def take(self, count: int) -> bytes:
        if count > self._left:
            raise NotReadable("it ends too early")
        parts, missing = [], count
        while missing:
            if not self._ready:
                self._fill()
            part, self._ready = self._ready[:missing], self._ready[missing:]
            parts.append(part)
            missing -= len(part)
        self._left -= count
        return b"".join(parts)

    def skip(self, count: int) -> None:
        while count:
            count -= len(self.take(min(count, _PIECE)))

    def at_end(self) -> bool:
        return self._left <= 0

    def _fill(self) -> None:
        try:
            # Unconsumed input must be passed in again before more is read.
            data = self._inflate.unconsumed_tail or (b"" if self._stored.at_end() else self._stored.some())
            self._ready = self._inflate.decompress(data, _PIECE)
        except zlib.error as error:
            raise NotReadable(f"it cannot be decompressed: {error}") from error
        if not self._ready and not data:
            raise NotReadable("it ends too early")


class _Value:
    """Value of an entry: length-prefixed chunks."""

    def __init__(self, stream: ByteReader) -> None:
        self._stream = stream
        self._left, self._last = 0, False
        self._next()

    def _next(self) -> None:
        """Advance to the next byte of the value, or to its end."""
        while not self._left and not self._last:
            count = _number(self._stream)
            self._left, self._last = abs(count), count >= 0

    def at_end(self) -> bool:
        return not self._left and self._last

    def take(self, count: int) -> bytes:
        return b"".join(self.pieces(count))

    def skip(self, count: int) -> None:
        while count:
            if self.at_end():
                raise NotReadable("a log ends too early")
            part = min(count, self._left)
            self._stream.skip(part)
            self._left -= part
            count -= part
            self._next()

    def skip_all(self) -> None:
        """Skip the rest."""
        while not self.at_end():
            self.skip(self._left)

    def pieces(self, count: int) -> Iterator[bytes]:
        """Yield this many bytes, as they arrive."""
        while count:
            if self.at_end():
                raise NotReadable("a log ends too early")
            part = min(count, self._left, _PIECE)
            yield self._stream.take(part)
            self._left -= part
            count -= part
            self._next()


# ---- numbers and texts ----


def _number(stream: ByteReader) -> int:
    """Return TFile's variable-length integer. Source: org.apache.hadoop.io.file.tfile.Utils.readVLong."""
    first = stream.take(1)[0]
    signed = first - 256 if first > 127 else first
    if signed >= -32:
        return signed
    kind = (signed + 128) >> 3
    if kind >= 7:
        return ((signed + 52) << 8) | stream.take(1)[0]
    if kind >= 3:
        return ((signed + 88) << 16) | int.from_bytes(stream.take(2), "big")
    if kind >= 1:
        return ((signed + 112) << 24) | int.from_bytes(stream.take(3), "big")
    return int.from_bytes(stream.take(signed + 129), "big", signed=True)


def _length(stream: ByteReader, most: int) -> int:
    found = _number(stream)
    if not 0 <= found <= most:
        raise NotReadable(f"{found} is not a length")
    return found


def _short(stream: ByteReader) -> str:
    return stream.take(_length(stream, _MAX_WORD)).decode(errors="replace")


def _text(stream: ByteReader) -> str:
    # Java's modified UTF-8 equals UTF-8 for the names that we look for.
    return stream.take(int.from_bytes(stream.take(2), "big")).decode(errors="replace")
