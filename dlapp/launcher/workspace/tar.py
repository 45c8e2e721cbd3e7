"""Bytes of a tar archive: headers only, pure functions.

The format is GNU's, not pax: names are bytes of any length and encoding; sizes are unlimited; holes of sparse files are
kept; and every tar reads it, including Python's tarfile. Owner and group are 0, without names.

    offset  bytes                                   offset  bytes
         0    100  name                                156      1  type: 0 file, 5 directory, 2 symbolic link,
       100      8  mode, octal                                     L, K long name or link text of the next one,
       108      8  uid, octal                                      S sparse file
       116      8  gid, octal                          157    100  link text
       124     12  size of the data that follows       257      8  "ustar", two spaces, NUL
       136     12  mtime, octal                        386     96  sparse: four pieces, 12 bytes offset, 12 size
       148      8  checksum: sum of all 512 bytes,     482      1  sparse: further pieces follow in a block of 21
                   its own taken as spaces             483     12  sparse: size of the whole file

Source: GNU tar 1.35, src/tar.h (struct oldgnu_header, struct sparse_header) and its manual, "Basic Tar Format".
"""

from __future__ import annotations

from collections.abc import Sequence

BLOCK = 512
END = bytes(2 * BLOCK)

FILE, DIRECTORY, LINK, LONG_NAME, LONG_LINK, SPARSE = b"0", b"5", b"2", b"L", b"K", b"S"
MAX_PIECES = 100_000
"""Maximum number of pieces of a sparse file: the unpacking process holds their offsets in memory, and needs somewhat
more."""

MTIME = 315_619_200
"""Modification time of all packed entries: 1980-01-02 00:00 UTC. ZIP has no year before 1980, and in time zones west of
Greenwich the 1st was still 1979."""

_MAX_OCTAL = 8**11
_IN_HEADER, _IN_BLOCK = 4, 21
_LONG = b"././@LongLink"

_cache: dict[tuple[int, bytes], tuple[bytes, bytes, int]] = {}


def header(name: bytes, mode: int, size: int, kind: bytes = FILE, link: bytes = b"") -> bytes:
    """Return the header of one member, with those of a long name or link text before it.

    Args:
        name: the name of the member.
        mode: its permissions.
        size: the size of the data that follows [bytes].
        kind: its type flag.
        link: the text of a link.
    """
    before = b""
    if len(name) > 100:
        before += _long(name, LONG_NAME)
        name = name[:100]
    if len(link) > 100:
        before += _long(link, LONG_LINK)
        link = link[:100]
    # The part that depends only on mode and kind is the same for thousands of files, and so is its share of the
    # checksum.
    parts = _cache.get((mode, kind))
    if parts is None:
        start = b"%07o\0" % mode + b"0000000\0" * 2
        middle = b"%011o\0" % MTIME
        parts = _cache[mode, kind] = (start, middle, sum(start) + sum(middle) + 8 * 32 + sum(kind) + sum(b"ustar  \0"))
    start, middle, known = parts
    length = _number(size)
    checksum = known + sum(name) + sum(length) + sum(link)
    return b"%b%b%b%b%b%06o\0 %b%b%b%b" % (
        before,
        name.ljust(100, b"\0"),
        start,
        length,
        middle,
        checksum,
        kind,
        link.ljust(100, b"\0"),
        b"ustar  \0",
        bytes(247),
    )


def sparse_header(name: bytes, mode: int, size: int, pieces: Sequence[tuple[int, int]]) -> bytes:
    """Return the header of a file with holes; the data of its pieces follow, one after the other.

    Args:
        name: the name of the member.
        mode: its permissions.
        size: the size of the whole file, holes included.
        pieces: offset and length of the data ranges. All but the last have whole blocks; the last ends at the end of
            the file, with length 0 if there is a hole.
    """
    before_and_plain = header(name, mode, sum(length for _, length in pieces), SPARSE)
    before, plain = before_and_plain[:-BLOCK], bytearray(before_and_plain[-BLOCK:])
    table = [_number(at) + _number(length) for at, length in pieces]
    first, rest = table[:_IN_HEADER], table[_IN_HEADER:]
    plain[386 : 386 + 24 * len(first)] = b"".join(first)
    plain[482] = 1 if rest else 0
    plain[483:495] = _number(size)
    plain[148:156] = b"        "
    plain[148:156] = b"%06o\0 " % sum(plain)
    blocks = [before, bytes(plain)]
    while rest:
        here, rest = rest[:_IN_BLOCK], rest[_IN_BLOCK:]
        blocks.append(b"".join(here).ljust(504, b"\0") + (b"\1" if rest else b"\0") + bytes(7))
    return b"".join(blocks)


def padding(size: int) -> bytes:
    """Return the padding of the last block of ``size`` bytes."""
    return bytes(-size % BLOCK)


def _long(text: bytes, kind: bytes) -> bytes:
    text += b"\0"
    return header(_LONG, 0o644, len(text), kind) + text + padding(len(text))


def _number(value: int) -> bytes:
    # Above 8 GiB, octal digits do not suffice: a set first bit marks a binary number.
    if value < _MAX_OCTAL:
        return b"%011o\0" % value
    return b"\x80" + value.to_bytes(11, "big")
