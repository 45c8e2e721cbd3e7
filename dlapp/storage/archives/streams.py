"""Reading of untrusted tar and zip files in bounded memory and time.

The standard library reads a tar's extended header whole, however long, searches it in quadratic time, and gives a
decompressor as much memory as the archive requires. Here each header has a limit, extended headers are parsed in one
pass, and the output of one decompression call is limited for every method.
"""

from __future__ import annotations

import bz2
import lzma
import tarfile
import zlib
from collections.abc import Callable, Mapping
from typing import IO, Any

MAX_EXTENDED_BYTES = 1 << 20
"""Size limit of one extended header or long name of a tar, and of all global headers together."""
MAX_HEADER_BYTES = 4 << 20
"""All headers of one member, with the map of a sparse file."""
XZ_MEMORY_BYTES = 48 << 20
"""Memory limit of decompression; xz -8 takes 33 MiB, and -9 takes 65 MiB."""
_PIECE = 256 << 10
_GZIP = 31
"""zlib's wbits for a gzip header and trailer (zlib manual, inflateInit2)."""

_DECOMPRESSORS: Mapping[str, Callable[[], Any]] = {
    "gz": lambda: _Gzip(),
    "bz2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=XZ_MEMORY_BYTES),
}


class _Gzip:
    """zlib's decompressor with the interface of the others."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(_GZIP)
        self._full = False

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    @property
    def needs_input(self) -> bool:
        return not self._full and not self._inner.unconsumed_tail

    def decompress(self, data: bytes, max_length: int) -> bytes:
        piece = self._inner.decompress(self._inner.unconsumed_tail + data, max_length)
        self._full = len(piece) == max_length
        return piece


class TarStream:
    """The uncompressed bytes of a tar: all compressed streams of the file, one after another.

    Args:
        kind: ``tar``, ``gz``, ``bz2`` or ``xz``.

    Raises:
        ValueError, EOFError, zlib.error, lzma.LZMAError, OSError: (`read`) the file is damaged, or a header is too
        long.
    """

    def __init__(self, file: IO[bytes], kind: str) -> None:
        self._file, self._make = file, _DECOMPRESSORS.get(kind)
        self._inner = self._make() if self._make is not None else None
        self._header_bytes = 0

    def begin_content(self) -> None:
        """Lift the header limit: content follows, then the next header."""
        self._header_bytes = 0

    def read(self, count: int) -> bytes:
        """Return at most ``count`` bytes; empty at the end."""
        piece = self._some(min(count, _PIECE))
        self._header_bytes += len(piece)
        if self._header_bytes > MAX_HEADER_BYTES:
            raise ValueError("the headers of a member are too long")
        return piece

    def _some(self, count: int) -> bytes:
        if self._inner is None or self._make is None:
            return self._file.read(count)
        while True:
            if self._inner.eof:
                data = self._inner.unused_data.lstrip(b"\0") or self._next_data()
                if not data:
                    return b""
                self._inner = self._make()
            elif self._inner.needs_input:
                data = self._file.read(_PIECE)
                if not data:
                    raise EOFError("it is cut short")
            else:
                data = b""
            piece: bytes = self._inner.decompress(data, count)
            if piece:
                return piece

    def _next_data(self) -> bytes:
        """Return the bytes after the end of a stream, without its zero padding."""
        while data := self._file.read(_PIECE):
            if data := data.lstrip(b"\0"):
                return data
        return b""


class BoundedTarInfo(tarfile.TarInfo):
    """A tar header with a size limit: it is refused before it is read if it, or its extended headers, are too long."""

    def _proc_member(self, tar: Any) -> Any:
        kind = self.type
        if self.size < 0:
            raise tarfile.ReadError("a size is negative")
        if kind in (tarfile.XHDTYPE, tarfile.SOLARIS_XHDTYPE, tarfile.XGLTYPE, *_LONG):
            if self.size > MAX_EXTENDED_BYTES:
                raise tarfile.ReadError(f"an extended header has {self.size} bytes")
            if kind not in _LONG:
                return self._proc_pax(tar)
        elif self.size and kind not in (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE):
            self.size = 0 if kind in (tarfile.DIRTYPE, tarfile.LNKTYPE, tarfile.SYMTYPE) else self.size
        return super()._proc_member(tar)  # type: ignore[misc]

    def _proc_pax(self, tar: Any) -> Any:
        """Parse a pax header like the standard library, whose searches take quadratic time before 3.11.10."""
        records = parse_pax(tar.fileobj.read(self._block(self.size)), self.size)  # type: ignore[attr-defined]
        if any(key.startswith("GNU.sparse.") for key in records):
            raise tarfile.ReadError("it has sparse files of the pax format; pack it without --sparse")
        if self.type == tarfile.XGLTYPE:
            tar.global_bytes = getattr(tar, "global_bytes", 0) + self.size
            if tar.global_bytes > MAX_EXTENDED_BYTES:
                raise tarfile.ReadError("its global headers are too long")
            tar.pax_headers.update(records)
        try:
            following: Any = self.fromtarfile(tar)
        except tarfile.HeaderError as error:
            raise tarfile.SubsequentHeaderError(str(error)) from None  # type: ignore[attr-defined]
        if self.type != tarfile.XGLTYPE:
            following._apply_pax_info(tar.pax_headers | records, tar.encoding, tar.errors)
            following.offset = self.offset
            if following.size < 0:
                raise tarfile.ReadError("a size is negative")
            if "size" in records and following.isreg():
                tar.offset = following.offset_data + following._block(following.size)
        return following


_LONG = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)


def parse_pax(data: bytes, size: int) -> dict[str, str]:
    """Return the records of an extended header, in one pass.

    Args:
        data: the header, padded to whole blocks.
        size: the size of the header without padding [bytes].

    Raises:
        tarfile.ReadError: the header is damaged.

    Source: POSIX.1-2017, pax, "pax Extended Header": "%d %s=%s\\n".
    """
    if len(data) < size:
        raise tarfile.ReadError("an extended header is cut short")
    records: dict[str, str] = {}
    at = 0
    while at < size and data[at]:
        space = data.find(b" ", at, at + 8)
        digits = data[at:space] if space > 0 else b""
        end = at + int(digits) if digits.isdigit() else 0
        equals = data.find(b"=", space, end)
        if end > size or equals < 0 or end <= equals or data[end - 1] != 0x0A:
            raise tarfile.ReadError("an extended header is damaged")
        key = data[space + 1 : equals].decode("utf-8", "surrogateescape")
        records[key] = data[equals + 1 : end - 1].decode("utf-8", "surrogateescape")
        at = end
    return records
