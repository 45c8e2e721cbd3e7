"""Encoding and decoding of protobuf messages (proto2), field by field, without the protobuf library.

In its pure Python form, which runs on any node, the library took an ApplicationMaster 52 to 77 ms of CPU time and
4.5 MiB more at the start (docs/dependencies.md).

A field that is no list and comes twice has its last value, where protobuf merges messages: no server sends one twice.

Source: "Encoding" in the documentation of Protocol Buffers.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.framing import encode_varint

MAX_FIELDS = 1 << 18
"""Maximum number of fields in a message; a listing of some thousand entries has one field for each."""
_MAX_SHIFT = 63
_UNSIGNED = (1 << 64) - 1
_FLOAT = struct.Struct("<f")


def encode(*fields: tuple[int, int | float | bytes | str | None]) -> bytes:
    """Encode a message.

    Args:
        fields: number and value of each field; None: the field is omitted. An int is an integer (but not sint), a bool
            or an enumeration; a float has 32 bits; a string or bytes is the field's content; a message is passed as its
            bytes.
    """
    parts = []
    for number, value in fields:
        if value is None:
            continue
        if isinstance(value, int):
            parts.append(encode_varint(number << 3) + encode_varint(value & _UNSIGNED))
        elif isinstance(value, float):
            parts.append(encode_varint(number << 3 | 5) + _FLOAT.pack(value))
        else:
            data = value.encode() if isinstance(value, str) else value
            parts.append(encode_varint(number << 3 | 2) + encode_varint(len(data)) + data)
    return b"".join(parts)


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the number at an offset, and the offset after it. Raises NotHadoop: it is truncated, or too long."""
    value = shift = 0
    while True:
        if at >= len(data) or shift > _MAX_SHIFT:
            raise NotHadoop("a message ends inside a number")
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _UNSIGNED, at
        shift += 7


class Fields:
    """Fields of a received message.

    Raises:
        NotHadoop: the bytes are not a message. Each method raises it, too, if the field is missing, or has another type
            or size.
    """

    __slots__ = ("_found",)

    def __init__(self, data: bytes) -> None:
        self._found: dict[int, list[int | bytes]] = {}
        at, end, count = 0, len(data), 0
        found = self._found
        while at < end:
            count += 1
            key = data[at]
            at += 1
            if key > 0x7F:
                key, at = read_varint(data, at - 1)
            kind = key & 7
            value: int | bytes
            if kind == 0 or kind == 2:
                # Most numbers have one byte; a function call for each takes as long as everything else here.
                if at < end and (number := data[at]) < 0x80:
                    at += 1
                else:
                    number, at = read_varint(data, at)
                if kind == 0:
                    value = number
                else:
                    value = data[at : at + number]
                    at += number
            elif kind == 1 or kind == 5:
                size = 8 if kind == 1 else 4
                value = data[at : at + size]
                at += size
            else:
                raise NotHadoop(f"a message has a field of the form {kind}")
            if at > end:
                raise NotHadoop("a message ends inside a field")
            if count > MAX_FIELDS or key < 8:
                raise NotHadoop(f"a message has more than {MAX_FIELDS} fields, or one without a number")
            if key >> 3 in found:
                found[key >> 3].append(value)
            else:
                found[key >> 3] = [value]

    def has(self, field: int) -> bool:
        """Return whether the message has a field."""
        return field in self._found

    def number(self, field: int, default: int | None = None, *, below: int = 1 << 63) -> int:
        """Return an unsigned number.

        Args:
            field: number of the field.
            default: the value if the field is missing; None: the field is required.
            below: the limit that the value must be below.
        """
        values = self._found.get(field)
        if values is None and default is not None:
            return default
        if values is None:
            raise NotHadoop(f"a message lacks field {field}")
        value = values[-1]
        if not isinstance(value, int) or value >= below:
            raise NotHadoop(f"a message has {str(value)[:40]!r} as field {field}, a number below {below}")
        return value

    def signed(self, field: int, default: int | None = None, *, bits: int = 32) -> int:
        """Return a signed number, cut to its lowest ``bits`` as protobuf does; ``default`` as for `number`."""
        value = self.number(field, default, below=1 << 64)
        half = 1 << bits - 1
        return (value + half & (half << 1) - 1) - half

    def numbers(self, field: int, *, below: int = 1 << 63) -> list[int]:
        """Return the numbers of a repeated field, packed or not."""
        found: list[int] = []
        for value in self._found.get(field, ()):
            if isinstance(value, int):
                found.append(value)
                continue
            at = 0
            while at < len(value):
                number, at = read_varint(value, at)
                found.append(number)
        if any(one >= below for one in found):
            raise NotHadoop(f"a message has a number in field {field} that is not below {below}")
        return found

    def data(self, field: int, default: bytes | None = None) -> bytes:
        """Return a field of bytes; ``default`` as for `number`."""
        values = self._found.get(field)
        if values is None and default is not None:
            return default
        value = values[-1] if values else None
        if not isinstance(value, bytes):
            raise NotHadoop(f"a message lacks field {field}")
        return value

    def text(self, field: int, default: str | None = None) -> str:
        """Return a field of text; ``default`` as for `number`."""
        try:
            return self.data(field, None if default is None else default.encode()).decode()
        except UnicodeDecodeError as error:
            raise NotHadoop(f"a message has a text in field {field} that is not UTF-8") from error

    def all_data(self, field: int) -> list[bytes]:
        """Return the values of a repeated field of bytes or messages."""
        found = self._found.get(field, [])
        if not all(isinstance(one, bytes) for one in found):
            raise NotHadoop(f"a message has a number as field {field}")
        return [one for one in found if isinstance(one, bytes)]

    def values(self, field: int) -> Sequence[int | bytes]:
        """Return the values of a repeated field in any form."""
        return self._found.get(field, ())

    def message(self, field: int, default: bytes | None = None) -> Fields:
        """Return a field that is a message; ``default`` as for `number`."""
        return Fields(self.data(field, default))
