"""SASL with Hadoop's servers: DIGEST-MD5 with a token. No I/O.

    client                                  server
    NEGOTIATE            ---------------->
                         <----------------  NEGOTIATE, what it offers: TOKEN with a first challenge, SIMPLE, KERBEROS
    INITIATE, response   ---------------->
                         <----------------  SUCCESS, rspauth: it knows the password too

With qop ``auth`` the exchange ends here; with ``auth-int`` and ``auth-conf`` every later frame is inside a WRAP
message, signed and, with auth-conf, encrypted.

Source: org.apache.hadoop.security.SaslRpcClient; RFC 2831.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import re
import struct
from collections.abc import Iterable, Mapping

from dlapp.hadoop.errors import HadoopError, NotHadoop
from dlapp.hadoop.tokens import Token

MECHANISM = "DIGEST-MD5"
REALM = "default"
_URI = f"/{REALM}"
_NC = "00000001"
_MAX_BUFFER = 65536
_ATTRIBUTE = re.compile(r'\s*([A-Za-z-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^",\s]*))\s*(?:,|$)')
_MAX_CHALLENGE = 2048
"""Bytes. Source: RFC 2831, 2.1.1."""
_PLAIN = re.compile(r'[^"\\\x00-\x1f\x7f]*')
_ZEROS = ":" + "0" * 32
_MAGIC: Mapping[tuple[str, str], bytes] = {
    ("sign", "out"): b"Digest session key to client-to-server signing key magic constant",
    ("sign", "in"): b"Digest session key to server-to-client signing key magic constant",
    ("seal", "out"): b"Digest H(A1) to client-to-server sealing key magic constant",
    ("seal", "in"): b"Digest H(A1) to server-to-client sealing key magic constant",
}


def parse_attributes(text: str) -> dict[str, str]:
    """Parse the attributes of a challenge or an answer: ``realm="default",nonce="...",qop="auth"``.

    Raises:
        NotHadoop: it is malformed.
    """
    found, at = {}, 0
    while at < len(text):
        if not (match := _ATTRIBUTE.match(text, at)):
            raise NotHadoop(f"a DIGEST-MD5 challenge that cannot be read, at its character {at}")
        found[match[1].lower()] = re.sub(r"\\(.)", r"\1", match[2]) if match[2] is not None else match[3]
        at = match.end()
    return found


class DigestMd5:
    """Client side of one exchange with one token; afterwards it wraps and unwraps.

    Args:
        token: its identifier is the user name and its password the password, both as base64 text.
        cnonce: set only in tests.
    """

    def __init__(self, token: Token, cnonce: str | None = None) -> None:
        self._user = base64.b64encode(token.identifier).decode()
        self._password = base64.b64encode(token.password).decode()
        self._cnonce = cnonce or base64.b64encode(os.urandom(16)).decode()
        self._nonce = self.qop = ""
        self._key = b""
        self.security: Security | None = None

    def respond(self, challenge: bytes) -> bytes:
        """Return the answer to the server's challenge.

        Raises:
            NotHadoop: the challenge is malformed.
            HadoopError: the server requires an unsupported protection.
        """
        if len(challenge) > _MAX_CHALLENGE:
            raise NotHadoop(f"a DIGEST-MD5 challenge of {len(challenge)} bytes")
        asked = parse_attributes(challenge.decode("utf-8", "replace"))
        if not (nonce := asked.get("nonce")) or asked.get("algorithm", "md5-sess") != "md5-sess":
            raise NotHadoop("a DIGEST-MD5 challenge without nonce, or of another algorithm than md5-sess")
        self._nonce = nonce
        self.qop = _choose_qop(asked.get("qop", "auth").split(","), asked.get("cipher", "").split(","))
        realm = asked.get("realm", REALM)
        if not _PLAIN.fullmatch(nonce) or not _PLAIN.fullmatch(realm):
            raise NotHadoop("a DIGEST-MD5 challenge whose nonce or realm cannot be quoted")
        secret = _md5(f"{self._user}:{realm}:{self._password}".encode())
        self._key = _md5(secret + f":{nonce}:{self._cnonce}".encode())
        answer = (
            f'charset=utf-8,username="{self._user}",realm="{realm}",nonce="{nonce}",nc={_NC},cnonce="{self._cnonce}",'
            f'digest-uri="{_URI}",maxbuf={_MAX_BUFFER},response={self._proof("AUTHENTICATE")},qop={self.qop}'
        )
        return (answer + (',cipher="rc4"' if self.qop == "auth-conf" else "")).encode()

    def finish(self, answer: bytes) -> None:
        """Check the server's final message: it must know the password, too.

        Raises:
            HadoopError: it does not; it is not the expected server.
        """
        if len(answer) > _MAX_CHALLENGE:
            raise NotHadoop(f"a DIGEST-MD5 answer of {len(answer)} bytes")
        said = parse_attributes(answer.decode("utf-8", "replace")).get("rspauth", "")
        if not hmac.compare_digest(said.encode(), self._proof("").encode()):
            raise HadoopError("the server could not prove that it knows the token's password")
        if self.qop != "auth":
            self.security = Security(self._key, seal=self.qop == "auth-conf")

    def _proof(self, direction: str) -> str:
        suffix = "" if self.qop == "auth" else _ZEROS
        ha1, ha2 = self._key.hex(), _md5(f"{direction}:{_URI}{suffix}".encode()).hex()
        return _md5(f"{ha1}:{self._nonce}:{_NC}:{self._cnonce}:{self.qop}:{ha2}".encode()).hex()


class Security:
    """Security layer: signs outgoing messages, with ``seal`` also encrypts them by RC4, and verifies incoming ones.

    A wrapped message is the data, 10 bytes of HMAC-MD5, 00 01 and a sequence number per direction; if sealed, data and
    signature are encrypted together by a stream cipher that continues from message to message.

    Args:
        key: H(A1), 16 bytes.
        server: act as the server, for tests.
    """

    def __init__(self, key: bytes, *, seal: bool, server: bool = False) -> None:
        there, back = ("in", "out") if server else ("out", "in")
        self._sign = {"out": _md5(key + _MAGIC["sign", there]), "in": _md5(key + _MAGIC["sign", back])}
        self._ciphers = (
            {"out": _Rc4(_md5(key + _MAGIC["seal", there])), "in": _Rc4(_md5(key + _MAGIC["seal", back]))}
            if seal
            else None
        )
        self._numbers = {"out": 0, "in": 0}

    def wrap(self, data: bytes) -> bytes:
        """Return the wrapped form of ``data``."""
        mac, number = self._mac("out", data)
        body = data + mac
        return (self._ciphers["out"].apply(body) if self._ciphers else body) + b"\0\1" + number

    def unwrap(self, data: bytes) -> bytes:
        """Return the unwrapped message.

        Raises:
            NotHadoop: the signature or the sequence number is wrong.
        """
        if len(data) < 16:
            raise NotHadoop(f"a wrapped message of {len(data)} bytes, the minimum is 16")
        body, trailer = data[:-6], data[-6:]
        if self._ciphers:
            body = self._ciphers["in"].apply(body)
        mac, number = self._mac("in", body[:-10])
        if not hmac.compare_digest(mac, body[-10:]) or trailer != b"\0\1" + number:
            raise NotHadoop("a wrapped message does not carry the server's signature")
        return body[:-10]

    def _mac(self, direction: str, data: bytes) -> tuple[bytes, bytes]:
        number = struct.pack("!I", self._numbers[direction])
        self._numbers[direction] += 1
        # The protocol requires MD5; a FIPS build that refuses it cannot connect.
        return hmac.digest(self._sign[direction], number + data, "md5")[:10], number


class _Rc4:
    """RC4, which neither Python nor the used libraries have; some microseconds per byte, for small messages."""

    def __init__(self, key: bytes) -> None:
        state = list(range(256))
        j = 0
        for i in range(256):
            j = (j + state[i] + key[i % len(key)]) & 0xFF
            state[i], state[j] = state[j], state[i]
        self._state, self._i, self._j = state, 0, 0

    def apply(self, data: bytes) -> bytes:
        state, i, j = self._state, self._i, self._j
        out = bytearray(len(data))
        for at, byte in enumerate(data):
            i = (i + 1) & 0xFF
            a = state[i]
            j = (j + a) & 0xFF
            b = state[j]
            state[i], state[j] = b, a
            out[at] = byte ^ state[(a + b) & 0xFF]
        self._i, self._j = i, j
        return bytes(out)


def _choose_qop(offered: Iterable[str], ciphers: Iterable[str]) -> str:
    """Return the first of the server's protections that is supported: its order is its preference."""
    names = [name.strip() for name in offered]
    for name in names:
        if name in ("auth", "auth-int") or (name == "auth-conf" and "rc4" in [one.strip() for one in ciphers]):
            return name
    raise HadoopError(
        f"the server asks for the protection {', '.join(names)} (hadoop.rpc.protection); "
        "what dlapp has is auth, auth-int, and auth-conf with rc4"
    )


def _md5(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).digest()
