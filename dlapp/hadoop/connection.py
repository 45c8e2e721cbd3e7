"""One connection to a Hadoop server: the socket, the handshake, and calls one after the other.

Every wait has a deadline (a value of time.monotonic) and every answer a size limit, so a server that is slow, silent or
sends garbage takes a bounded time and causes one error. After any error the connection is closed: data in transit
cannot be distinguished from what follows.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from dlapp.hadoop.errors import ConnectionLost, HadoopError, NotHadoop, remote_error
from dlapp.hadoop.framing import (
    AUTH_NONE,
    AUTH_SASL,
    CALL_CONTEXT,
    CALL_NONE,
    CALL_SASL,
    MAX_FRAME,
    MAX_HANDSHAKE_FRAME,
    FrameReader,
    encode_frame,
    preamble,
    split_frame,
)
from dlapp.hadoop.rpc_messages import (
    FATAL,
    INITIATE,
    NEGOTIATE,
    NEGOTIATED,
    SUCCESS,
    WRAP,
    AnswerHeader,
    SaslMessage,
    connection_context,
    method_header,
    parse_answer_header,
    parse_sasl_message,
    request_header,
    sasl_message,
)
from dlapp.hadoop.tokens import Token
from dlapp.login import Login
from dlapp.value import Closeable

if TYPE_CHECKING:
    from dlapp.hadoop.sasl import Security

T = TypeVar("T")
_RECEIVE = 1 << 16
_READ_BEFORE_GIVING_UP_S = 1.0


class CallIds:
    """Client id and call ids of one client, by which a server recognizes a call that it has executed. Thread-safe.

    No call id is reused. A forked process is another client: the client id ends with the id of the process.
    """

    def __init__(self) -> None:
        self._beginning = os.urandom(12)
        self._numbers = itertools.count()

    @property
    def client_id(self) -> bytes:
        """Return the client id in this process."""
        return self._beginning + os.getpid().to_bytes(4)

    def take(self) -> int:
        """Return a call id that is not used yet."""
        return next(self._numbers) & 0x7FFFFFFF


class Connection(Closeable):
    """Open connection for calls of one protocol.

    Args:
        address: host and port.
        protocol: the Java name, ``org.apache.hadoop.yarn.api.ApplicationMasterProtocolPB``.
        proof: authentication: a token, or the login for SIMPLE authentication.
        deadline: deadline of the connection and the handshake.
        limit: maximum size of one answer [bytes].
        ids: those of the client, which repeats calls on other connections; None for ids of this connection alone.

    Raises:
        ConnectionLost: the connection failed, or no handshake before the deadline; never ``sent``.
        RemoteError: refused: TokenRefused, NotAllowed.
        NotHadoop: it is not a supported Hadoop server.
    """

    def __init__(
        self,
        address: tuple[str, int],
        protocol: str,
        *,
        proof: Token | Login,
        deadline: float,
        limit: int = MAX_FRAME,
        ids: CallIds | None = None,
    ) -> None:
        self.name = f"{address[0]}:{address[1]}"
        self._protocol = protocol
        self._ids = ids or CallIds()
        self._reader = FrameReader(min(limit, MAX_HANDSHAKE_FRAME))
        self._limit = limit
        self._security: Security | None = None
        self._sent = False
        self.state_id: int | None = None
        """State id of the last answer (`AnswerHeader`)."""
        try:
            self._socket = socket.create_connection(address, timeout=_left(deadline))
        except OSError as error:
            refused = isinstance(error, ConnectionRefusedError)
            raise ConnectionLost(f"{self.name}: {reason(error)}", sent=False, refused=refused) from error
        try:
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open(proof, deadline)
            self._reader.allow(limit)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the socket. May be repeated."""
        self._socket.close()

    @property
    def own_host(self) -> str:
        """Return this machine's address as seen by the server."""
        return str(self._socket.getsockname()[0])

    @property
    def closed(self) -> bool:
        """Return True if no further call can be made."""
        return self._socket.fileno() < 0

    def abort(self) -> None:
        """Interrupt a thread that waits on it, with an error; called by any other thread."""
        shut_down(self._socket)

    def is_fresh(self) -> bool:
        """Return whether the connection is still open, as far as visible: unsolicited data means its end."""
        return not self._reader.in_frame and is_silent(self._socket)

    def call(
        self,
        method: str,
        request: bytes,
        deadline: float,
        *,
        protocol: str | None = None,
        call_id: int | None = None,
        state_id: int | None = None,
    ) -> bytes:
        """Call a method with a serialized message; return its serialized answer.

        Args:
            method, request, deadline: see the class.
            protocol: another protocol that the server has on the same port; None: the connection's.
            call_id: from `CallIds.take`, for a call that may repeat one whose answer was lost; None: a new one. A
                NameNode that has executed it returns the same answer (its retry cache).
            state_id: for an observer, see `request_header`.

        Raises:
            ConnectionLost: no answer before the deadline; ``sent``: whether the server may have received the call.
            RemoteError: the method threw; the connection may be used again.
            NotHadoop: the answer cannot be read.
        """
        call_id = self._ids.take() if call_id is None else call_id
        header = request_header(call_id, self._ids.client_id, retries=0, state_id=state_id)
        frame = encode_frame(header, method_header(protocol or self._protocol, method), request)
        # From the first byte on the server may have received the whole call: a broken connection does not show it.
        self._sent = True
        try:
            self._send(frame, deadline)
            return self._answer(method, call_id, deadline)
        except (ConnectionLost, NotHadoop):
            self.close()
            raise

    # ---- the handshake ----

    def _open(self, proof: Token | Login, deadline: float) -> None:
        user = None if isinstance(proof, Token) else proof.user
        if isinstance(proof, Token):
            self._send_raw(preamble(AUTH_SASL), deadline)
            self._authenticate(proof, deadline)
        else:
            self._send_raw(preamble(AUTH_NONE), deadline)
        # The server answers a connection context only when it refuses it.
        header = request_header(CALL_CONTEXT, self._ids.client_id, retries=-1)
        self._send(encode_frame(header, connection_context(self._protocol, user)), deadline)

    def _authenticate(self, token: Token, deadline: float) -> None:
        # Needed only for a token, and OpenSSL takes 3 MiB.
        from dlapp.hadoop.sasl import MECHANISM, DigestMd5

        self._send_sasl(sasl_message(NEGOTIATE), deadline)
        offer = self._sasl_answer(deadline)
        auth = next((one for one in offer.auths if one.method == "TOKEN" and one.mechanism == MECHANISM), None)
        if auth is None:
            offered = ", ".join(f"{one.method} {one.mechanism}".strip() for one in offer.auths) or "SIMPLE"
            raise HadoopError(f"{self.name}: it offers {offered}; dlapp supports only TOKEN {MECHANISM}")
        digest = DigestMd5(token)
        response = digest.respond(auth.challenge)
        self._send_sasl(sasl_message(INITIATE, response, auth), deadline)
        done = self._sasl_answer(deadline)
        if done.state != NEGOTIATED:
            raise NotHadoop(f"{self.name}: it continues the SASL exchange after its end")
        digest.finish(done.token)
        self._security = digest.security

    def _send_sasl(self, message: bytes, deadline: float) -> None:
        self._send_raw(encode_frame(request_header(CALL_SASL, self._ids.client_id, retries=-1), message), deadline)

    def _sasl_answer(self, deadline: float) -> SaslMessage:
        header, rest = self._next_header(self._reader, deadline, "connect")
        if header.call_id != CALL_SASL or len(rest) != 1:
            raise NotHadoop(f"{self.name}: it answers the SASL exchange with something else")
        return self._parsed(parse_sasl_message, rest[0])

    def _parsed(self, parse: Callable[[bytes], T], data: bytes) -> T:
        try:
            return parse(data)
        except NotHadoop as error:
            raise NotHadoop(f"{self.name}: an answer that cannot be read: {error}") from error

    # ---- frames ----

    def _send(self, frame: bytes, deadline: float) -> None:
        if self._security is not None:
            wrapped = sasl_message(WRAP, self._security.wrap(frame))
            frame = encode_frame(request_header(CALL_SASL, self._ids.client_id, retries=-1), wrapped)
        self._send_raw(frame, deadline)

    def _send_raw(self, data: bytes, deadline: float) -> None:
        try:
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(data)
        except OSError as error:
            # A server that refuses us sends the reason and closes; it may still be unread on the broken connection.
            if not isinstance(error, TimeoutError):
                with suppress(ConnectionLost):
                    self._next_header(self._reader, time.monotonic() + _READ_BEFORE_GIVING_UP_S, "connect")
            raise ConnectionLost(f"{self.name}: {reason(error)}", sent=self._sent) from error

    def _answer(self, method: str, call_id: int, deadline: float) -> bytes:
        reader = self._reader if self._security is None else FrameReader(self._limit)
        header, rest = self._next_header(reader, deadline, method)
        if header.call_id != call_id or len(rest) != 1:
            raise NotHadoop(f"{self.name}: an answer to {method} that does not belong to the call")
        return rest[0]

    def _next_header(self, reader: FrameReader, deadline: float, method: str) -> tuple[AnswerHeader, list[bytes]]:
        """Return the next answer's header and messages; raise an exception in it."""
        while (frame := reader.next()) is None:
            self._receive(reader, deadline)
        messages = split_frame(frame)
        if not messages:
            raise NotHadoop(f"{self.name}: an answer without a header")
        header = self._parsed(parse_answer_header, messages[0])
        self.state_id = header.state_id
        if header.status != SUCCESS:
            if header.status == FATAL or header.call_id == CALL_NONE:
                self.close()
            raise remote_error(f"{self.name} {method}", header.java_class, header.message)
        return header, messages[1:]

    def _receive(self, reader: FrameReader, deadline: float) -> None:
        """Wait for more bytes; under a security layer, for one of its messages, whose content goes to ``reader``."""
        if self._security is not None and reader is not self._reader:
            header, rest = self._next_header(self._reader, deadline, "read")
            if header.call_id != CALL_SASL or len(rest) != 1:
                raise NotHadoop(f"{self.name}: a frame outside the protection that was agreed on")
            wrapped = self._parsed(parse_sasl_message, rest[0])
            if wrapped.state != WRAP:
                raise NotHadoop(f"{self.name}: a frame outside the protection that was agreed on")
            reader.feed(self._security.unwrap(wrapped.token))
            return
        try:
            self._socket.settimeout(_left(deadline))
            data = self._socket.recv(_RECEIVE)
        except OSError as error:
            raise ConnectionLost(f"{self.name}: {reason(error)}", sent=self._sent) from error
        if not data:
            where = "in the middle of an answer" if reader.in_frame else "without an answer"
            raise ConnectionLost(f"{self.name}: closed the connection {where}", sent=self._sent)
        reader.feed(data)


def is_silent(sock: socket.socket) -> bool:
    """Return whether a connection is open without unread data."""
    if sock.fileno() < 0:
        return False
    poll = select.poll()
    poll.register(sock, select.POLLIN)
    return not poll.poll(0)


def shut_down(sock: socket.socket) -> None:
    """Shut down a connection that another thread uses."""
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _left(deadline: float) -> float:
    """Return the remaining time [s], more than 0. Raises TimeoutError: none."""
    left = deadline - time.monotonic()
    # The socket's timeout would not detect it: a server that sends slowly has a byte for each short wait.
    if left <= 0:
        raise TimeoutError
    return left


def reason(error: OSError) -> str:
    """Return why a connection failed, as text."""
    if isinstance(error, TimeoutError):
        return "timed out"
    if isinstance(error, ConnectionRefusedError):
        return "refused"
    return (error.strerror or str(error)).lower()
