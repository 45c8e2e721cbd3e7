"""Hadoop's tokens and the files that contain them (``container_tokens``), in Hadoop's Writable format.

    "HDTS" 00   vint count, each: text alias, token            version 0: all releases and dlapp write it
                vint count, each: text alias, vint length, secret
    "HDTS" 01   varint length, CredentialsProto                version 1: Hadoop 3 reads it and may write it

    token = vint length, identifier; vint length, password; text kind; text service
    text = vint length, UTF-8                                  vint: Hadoop's format, not protobuf's

Identifier and password are opaque: they are returned to the server unchanged.

Source: org.apache.hadoop.security.Credentials, security.token.Token, io.WritableUtils.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dlapp.hadoop.errors import HadoopError
from dlapp.value import Value, field

if TYPE_CHECKING:
    from dlapp.hadoop.wire import Fields

AM_RM_KIND = "YARN_AM_RM_TOKEN"
_MAGIC = b"HDTS"
_MAX_FILE = 16 << 20


class Token(Value):
    """Credential of one kind for one service; never shown, because it contains the password."""

    identifier: bytes = field(repr=False)
    password: bytes = field(repr=False)
    kind: str
    service: str = ""

    def to_url(self) -> str:
        """Return the form that REST accepts: URL-safe base64 of the Writable, without padding."""
        import base64  # only here; a task never sends one to a web server

        return base64.urlsafe_b64encode(_encode_token(self)).rstrip(b"=").decode()


class Credentials(Value):
    """Tokens and secrets by their alias."""

    tokens: Mapping[str, Token] = field(default_factory=dict)
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)

    def of_kind(self, kind: str) -> Token | None:
        """Return the first token of a kind. The ResourceManager leaves alias and service empty, so neither identifies
        a token."""
        return next((token for token in self.tokens.values() if token.kind == kind), None)

    def without(self, kind: str) -> Credentials:
        """Return a copy without the tokens of a kind: a task gets all tokens of its ApplicationMaster but the
        ApplicationMaster's own."""
        return Credentials({a: t for a, t in self.tokens.items() if t.kind != kind}, self.secrets)

    def encode(self) -> bytes:
        """Return the bytes of the file in version 0."""
        out = [_MAGIC, b"\0", encode_vint(len(self.tokens))]
        for alias, token in self.tokens.items():
            out += [_text(alias), _encode_token(token)]
        out.append(encode_vint(len(self.secrets)))
        for alias, secret in self.secrets.items():
            out += [_text(alias), encode_vint(len(secret)), secret]
        return b"".join(out)

    @classmethod
    def decode(cls, data: bytes) -> Credentials:
        """Parse the bytes of a file of either version.

        Raises:
            HadoopError: the bytes are truncated, or of an unknown version.
        """
        if data[:4] != _MAGIC:
            raise HadoopError(f"not Hadoop credentials: they begin with {data[:4].hex()}")
        if data[4:5] == b"\0":
            return _WritableReader(data, 5).credentials()
        if data[4:5] == b"\1":
            return _decode_protobuf(data[5:])
        raise HadoopError(f"Hadoop credentials of an unknown version: {data[4:5].hex() or 'cut off'}")


def read_container_credentials(environ: Mapping[str, str] = os.environ) -> Credentials:
    """Return the credentials that a NodeManager passed to this process.

    Raises:
        HadoopError: there are none, or the file is truncated.
    """
    path = environ.get("HADOOP_TOKEN_FILE_LOCATION")
    if not path:
        raise HadoopError("HADOOP_TOKEN_FILE_LOCATION is not set: this process was not started by a NodeManager")
    try:
        with open(path, "rb") as file:
            data = file.read(_MAX_FILE + 1)
    except OSError as error:
        raise HadoopError(f"{path}: {error.strerror}") from error
    if len(data) > _MAX_FILE:
        raise HadoopError(f"{path}: larger than {_MAX_FILE} bytes, not Hadoop credentials")
    return Credentials.decode(data)


def encode_vint(value: int) -> bytes:
    """Encode Hadoop's variable integer: one byte from -112 to 127, else a byte for sign and length, then big-endian."""
    if -112 <= value <= 127:
        return (value & 0xFF).to_bytes(1, "big")
    first, rest = (-112, value) if value >= 0 else (-120, ~value)
    length = max(1, (rest.bit_length() + 7) // 8)
    return (first - length & 0xFF).to_bytes(1, "big") + rest.to_bytes(length, "big")


class _WritableReader:
    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at

    def take(self, count: int) -> bytes:
        if count < 0 or self._at + count > len(self._data):
            raise HadoopError(f"Hadoop credentials are cut off at byte {len(self._data)}")
        self._at += count
        return self._data[self._at - count : self._at]

    def vint(self) -> int:
        first = int.from_bytes(self.take(1), "big", signed=True)
        if first >= -112:
            return first
        negative = first < -120
        rest = int.from_bytes(self.take(-120 - first if negative else -112 - first), "big")
        return ~rest if negative else rest

    def bytes(self) -> bytes:
        return self.take(self.vint())

    def text(self) -> str:
        try:
            return self.bytes().decode()
        except UnicodeDecodeError as error:
            raise HadoopError("Hadoop credentials have a name that is not UTF-8") from error

    def token(self) -> Token:
        return Token(self.bytes(), self.bytes(), self.text(), self.text())

    def credentials(self) -> Credentials:
        tokens = {self.text(): self.token() for _ in range(self.vint())}
        return Credentials(tokens, {self.text(): self.bytes() for _ in range(self.vint())})


def _text(text: str) -> bytes:
    data = text.encode()
    return encode_vint(len(data)) + data


def _encode_token(token: Token) -> bytes:
    parts = [encode_vint(len(token.identifier)), token.identifier, encode_vint(len(token.password)), token.password]
    return b"".join([*parts, _text(token.kind), _text(token.service)])


def _decode_protobuf(data: bytes) -> Credentials:
    # A command only encodes credentials, and does without these modules.
    from dlapp.hadoop.framing import split_frame
    from dlapp.hadoop.wire import Fields

    try:
        (body,) = split_frame(data)
        said = Fields(body)
        tokens, secrets = ([Fields(one) for one in said.all_data(field)] for field in (1, 2))
        return Credentials(
            {one.text(1): parse_token(one.message(2)) for one in tokens},
            {one.text(1): one.data(3, b"") for one in secrets},
        )
    except (ValueError, HadoopError) as error:
        raise HadoopError("Hadoop credentials of version 1 are not whole") from error


def parse_token(said: Fields) -> Token:
    """Return a TokenProto. Raises NotHadoop: it lacks a field.

    Source: Security.proto.
    """
    return Token(said.data(1), said.data(2), said.text(3), said.text(4))
