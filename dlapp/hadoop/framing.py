"""Framing of Hadoop RPC version 9: bytes to frames to messages and back, without I/O.

    client                                         server
    preamble  "hrpc" 09 00 auth     ------------>            once; auth is 00 (none follows) or DF (SASL follows)
    frame     length | message ...  ------------>
                                    <------------  frame     length | message ...

After the preamble both directions consist of frames, each with a header message and at most two more.

Source: org.apache.hadoop.ipc.Client, Server and RpcConstants; the same from Hadoop 2.7 to 3.5.
"""

from __future__ import annotations

import struct

from dlapp.hadoop.errors import NotHadoop

AUTH_NONE = 0x00
AUTH_SASL = 0xDF
MAX_FRAME = 128 << 20
"""Frame size limit [bytes]: the default of servers and Java clients. Source: ipc.maximum.data.length,
-.response.length."""

MAX_HANDSHAKE_FRAME = 64 << 10
"""Frame size limit for a server that is not authenticated yet [bytes]."""
_MAX_MESSAGES = 8
"""Maximum number of messages in a frame."""

CALL_CONTEXT = -3
CALL_SASL = -33
CALL_NONE = -1
"""Call ids below 0 are not calls: the connection context, SASL, and an error before a call was identified."""

_LENGTH = struct.Struct("!I")
_BYTES = tuple(bytes([value]) for value in range(0x80))


def preamble(auth: int) -> bytes:
    """Return the first seven bytes of a connection."""
    return b"hrpc\x09\x00" + bytes([auth])


def encode_varint(value: int) -> bytes:
    """Encode a protobuf varint: seven bits per byte, the least significant first."""
    if value < 0x80:
        return _BYTES[value]
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode_frame(*messages: bytes) -> bytes:
    """Join serialized messages into one frame.

        +------------------------------------------+
        | uint32, big-endian: number of bytes left |
        +------------------------------------------+
        | varint length, message   (each in turn)  |
        +------------------------------------------+

    Source: org.apache.hadoop.ipc.Client, sendRpcRequest.
    """
    body = b"".join(encode_varint(len(message)) + message for message in messages)
    return _LENGTH.pack(len(body)) + body


def split_frame(body: bytes) -> list[bytes]:
    """Return the messages of a frame's body.

    Raises:
        NotHadoop: the lengths in it are inconsistent.
    """
    messages, at = list[bytes](), 0
    while at < len(body):
        if len(messages) == _MAX_MESSAGES:
            raise NotHadoop(f"a frame of {len(body)} bytes has more than {_MAX_MESSAGES} messages")
        length, shift = 0, 0
        while True:
            if at == len(body) or shift > 28:
                raise NotHadoop(f"a frame of {len(body)} bytes ends inside a length")
            byte = body[at]
            at += 1
            length |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                break
        if at + length > len(body):
            raise NotHadoop(f"a frame of {len(body)} bytes has a message of {length} bytes at byte {at}")
        messages.append(body[at : at + length])
        at += length
    return messages


def signed_call_id(call_id: int) -> int:
    """Return the call id of an answer: a plain uint32, while a request has a zig-zag number."""
    return call_id - (1 << 32) if call_id >= 1 << 31 else call_id


class FrameReader:
    """Splitter of a byte stream into frames.

    Args:
        limit: maximum size of a frame [bytes].
    """

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self._limit = limit
        self._buffer = bytearray()

    def allow(self, limit: int) -> None:
        """Set another maximum frame size."""
        self._limit = limit

    def feed(self, data: bytes) -> None:
        """Add received bytes."""
        self._buffer += data

    def next(self) -> bytes | None:
        """Return the body of the next complete frame, or None.

        Raises:
            NotHadoop: its length exceeds the limit; usually the server speaks another protocol.
        """
        if len(self._buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(self._buffer)
        if length > self._limit:
            raise NotHadoop(_what_begins_like(bytes(self._buffer[: _LENGTH.size]), length, self._limit))
        if len(self._buffer) < _LENGTH.size + length:
            return None
        body = bytes(self._buffer[_LENGTH.size : _LENGTH.size + length])
        del self._buffer[: _LENGTH.size + length]
        return body

    @property
    def in_frame(self) -> bool:
        """Return True if a frame is incomplete."""
        return bool(self._buffer)


def _what_begins_like(start: bytes, length: int, limit: int) -> str:
    if start == b"HTTP":
        return "it answers HTTP: this is a web port, not an RPC port"
    if start[0] in (0x15, 0x16) and start[1] == 0x03:
        return "it answers TLS: this is a web port, not an RPC port"
    if start == b"\xff\xff\xff\xff":
        return "it uses a version of Hadoop RPC before 9 (Hadoop 1)"
    return f"it announces a frame of {length} bytes, the maximum is {limit}"
