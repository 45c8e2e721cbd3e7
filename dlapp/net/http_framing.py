"""Framing of HTTP/1.1 responses: the end of a head, a chunk and a body. Pure functions of bytes.

Two parsers that disagree on the end of a response disagree on which bytes belong to the next one, and bytes of the
framing become content. So nothing is guessed: everything that RFC 9112 does not allow is refused, also where it lets a
client be lenient (folded lines, bare LF, Content-Length beside Transfer-Encoding), because no server of Hadoop sends
it. Everything that h11 0.16 refuses is refused.

Source: RFC 9112, sections 4 to 7.
"""

from __future__ import annotations

import re

from dlapp.system.text import lazy_pattern
from dlapp.value import NamedTuple

MAX_HEAD_BYTES = 1 << 16
"""Size limit of a head, and of all trailers of a body."""
MAX_FIELDS = 256
"""Maximum number of header fields of a head, and of trailers."""
MAX_CHUNK_LINE_BYTES = 1 << 12
"""Size limit of a chunk's length with its extensions."""

# Values contain no control characters except the tab. Each pattern matches in one way only, so in linear time.
_FIELD = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+:[\t\x20-\x7e\x80-\xff]*"
_HEAD = lazy_pattern(rb"HTTP/1\.[0-9] [1-9][0-9]{2}(?: [\t\x20-\x7e\x80-\xff]*)?(?:\r\n" + _FIELD + rb")*")
_TRAILER = lazy_pattern(_FIELD)
_FRAMING = lazy_pattern(rb"\r\n(connection|transfer-encoding|content-length|location):[ \t]*([^\r]*)", re.I)
_LENGTH = lazy_pattern(rb"[0-9]{1,19}")
_CHUNK_LINE = lazy_pattern(rb"([0-9A-Fa-f]{1,15})(?:;[\t\x20-\x7e\x80-\xff]*|[ \t]*)")


class FramingError(ValueError):
    """A response that is not HTTP, or whose end is ambiguous."""


class Headers:
    """Header fields of a response, parsed on demand: most responses are used without any.

    Args:
        head: the head of the response, valid.
    """

    def __init__(self, head: bytes) -> None:
        self._head = head

    def get(self, name: str) -> str:
        """Return the value of a field, ignoring case; empty if it is missing.

        Several fields of one name form one list, with commas (RFC 9110, 5.3).
        """
        found = re.findall(rb"\r\n%s:[ \t]*([^\r]*)" % name.encode("ascii"), self._head, re.I)
        return ",".join(dict.fromkeys(value.rstrip(b" \t").decode("latin-1") for value in found))


class Head(NamedTuple):
    """The head of a response.

    Args:
        is_persistent: whether the connection can serve another request after this response.
        length: size of the body [bytes]; None if it is chunked, or ends with the connection.
    """

    status: int
    headers: Headers
    is_persistent: bool
    length: int | None
    is_chunked: bool


def parse_head(head: bytes) -> Head:
    """Parse a response's head, without its final empty line. Raises FramingError."""
    if len(head) > MAX_HEAD_BYTES or head.count(b"\r\n") > MAX_FIELDS:
        raise FramingError("the head is too long")
    if not _HEAD.fullmatch(head):
        raise FramingError("not the head of an HTTP response")
    fields: dict[bytes, bytes] = {}
    for name, value in _FRAMING.findall(head):
        name, value = name.lower(), value.rstrip(b" \t")
        if name == b"location" and fields.get(name, value) != value:
            raise FramingError("two different Location")
        fields[name] = fields[name] + b"," + value if name in fields else value
    status, newer = int(head[9:12]), head[5:8] != b"1.0"
    if status == 101:
        raise FramingError("a switch to another protocol that was not requested")
    persistent = fields.get(b"connection", b"keep-alive" if newer else b"close").lower() == b"keep-alive"
    coding, lengths = fields.get(b"transfer-encoding"), fields.get(b"content-length")
    if coding is not None:
        if coding.lower() != b"chunked" or not newer:
            raise FramingError(f"Transfer-Encoding {coding[:40]!r}")
        if lengths is not None:
            raise FramingError("Content-Length beside Transfer-Encoding")
        return Head(status, Headers(head), persistent, None, True)
    if lengths is None:
        return Head(status, Headers(head), persistent, None, False)
    length, *others = {one.strip(b" \t") for one in lengths.split(b",")}
    if others or not _LENGTH.fullmatch(length):
        raise FramingError(f"Content-Length {lengths[:40]!r}")
    return Head(status, Headers(head), persistent, int(length), False)


def parse_chunk_line(line: bytes) -> int:
    """Return the chunk length [bytes] in this line, given without CRLF. Raises FramingError."""
    match = _CHUNK_LINE.fullmatch(line)
    if match is None or len(line) > MAX_CHUNK_LINE_BYTES:
        raise FramingError("not the length of a chunk")
    return int(match[1], 16)


def check_trailer(line: bytes) -> None:
    """Refuse an invalid trailer line after the last chunk. Raises FramingError."""
    if not _TRAILER.fullmatch(line):
        raise FramingError("not a trailer field")
