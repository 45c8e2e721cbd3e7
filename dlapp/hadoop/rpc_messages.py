"""Messages of the Hadoop RPC protocol: headers of calls and answers, the connection context, the SASL exchange.

Source: RpcHeader.proto, IpcConnectionContext.proto and ProtobufRpcEngine.proto of Hadoop 2.7 to 3.5. State ids exist
    since 3.1.
"""

from __future__ import annotations

from typing import NamedTuple

from dlapp.hadoop.errors import NotHadoop
from dlapp.hadoop.framing import signed_call_id
from dlapp.hadoop.wire import Fields, encode

SUCCESS, ERROR, FATAL = 0, 1, 2
NEGOTIATED, NEGOTIATE, INITIATE, WRAP = 0, 1, 2, 5
"""States of the SASL exchange; `NEGOTIATED` is Hadoop's SUCCESS."""
_PROTOBUF, _FINAL_PACKET = 2, 0
_MAX_AUTHS = 64
_NO_STATE = 1 << 63
"""Numbers from this on are negative state ids, which mean that there is none."""


class AnswerHeader(NamedTuple):
    """Header of an answer.

    Args:
        call_id: id of the call.
        status: `SUCCESS`, `ERROR` or `FATAL`.
        java_class, message: class and message of an exception.
        state_id: id of the NameNode's last transaction; None: not sent.
    """

    call_id: int
    status: int
    java_class: str
    message: str
    state_id: int | None = None


class SaslAuth(NamedTuple):
    """Authentication method offered by the server; ``encoded`` is all of it except the challenge."""

    method: str
    mechanism: str
    challenge: bytes
    encoded: bytes


class SaslMessage(NamedTuple):
    """Message of the SASL exchange."""

    state: int
    token: bytes
    auths: tuple[SaslAuth, ...]


def request_header(call_id: int, client_id: bytes, *, retries: int, state_id: int | None = None) -> bytes:
    """Encode the header of a call.

    Args:
        call_id, client_id: together they identify a call to the server.
        retries: number of earlier tries of the same call; -1: not a call.
        state_id: transaction that an observer must have before it answers; None: observers refuse the call.
    """
    return encode(
        (1, _PROTOBUF),
        (2, _FINAL_PACKET),
        (3, _zigzag(call_id)),
        (4, client_id),
        (5, _zigzag(retries)),
        (8, state_id),
    )


def method_header(protocol: str, method: str) -> bytes:
    """Return the prefix of a call's message."""
    return encode((1, method), (2, protocol), (3, 1))


def connection_context(protocol: str, user: str | None) -> bytes:
    """Encode the connection context. Without a user the server uses the token's."""
    return encode((2, None if user is None else encode((1, user))), (3, protocol))


def parse_answer_header(data: bytes) -> AnswerHeader:
    """Return the header of an answer. Raises NotHadoop: it is invalid."""
    said = Fields(data)
    call_id = signed_call_id(said.number(1) & 0xFFFFFFFF)
    state_id = said.number(9, below=1 << 64) if said.has(9) else _NO_STATE
    return AnswerHeader(
        call_id,
        said.number(2, below=FATAL + 1),
        said.text(4, ""),
        said.text(5, ""),
        state_id if state_id < _NO_STATE else None,
    )


def sasl_message(state: int, token: bytes | None = None, auth: SaslAuth | None = None) -> bytes:
    """Encode a message of the SASL exchange; ``auth``: the chosen method."""
    return encode((2, state), (3, token), (4, auth and auth.encoded))


def parse_sasl_message(data: bytes) -> SaslMessage:
    """Return a message of the SASL exchange. Raises NotHadoop: it is invalid."""
    said = Fields(data)
    offered = said.all_data(4)
    if len(offered) > _MAX_AUTHS:
        raise NotHadoop(f"a server that offers {len(offered)} ways to authenticate")
    return SaslMessage(said.number(2, below=WRAP + 1), said.data(3, b""), tuple(map(_parse_auth, offered)))


def _parse_auth(data: bytes) -> SaslAuth:
    said = Fields(data)
    method, mechanism = said.text(1), said.text(2)
    # The server compares the chosen method with its offer field by field, including present but empty ones.
    others = [(field, said.text(field)) for field in (3, 4) if said.has(field)]
    return SaslAuth(method, mechanism, said.data(5, b""), encode((1, method), (2, mechanism), *others))


def _zigzag(value: int) -> int:
    return value << 1 ^ value >> 63
