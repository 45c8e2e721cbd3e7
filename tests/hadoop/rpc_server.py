"""A server of Hadoop RPC in Python, for what a real one does not do on demand: other protections, bad answers."""

from __future__ import annotations

import hashlib
import socket
import threading
from collections.abc import Callable
from contextlib import suppress

from dlapp.hadoop.framing import AUTH_NONE, FrameReader, encode_frame, split_frame
from dlapp.hadoop.rpc_messages import ERROR, FATAL, NEGOTIATE, NEGOTIATED, SUCCESS, WRAP, sasl_message
from dlapp.hadoop.sasl import DigestMd5, Security, parse_attributes
from dlapp.hadoop.tokens import Token
from dlapp.hadoop.wire import Fields, encode

Handler = Callable[[str, bytes], bytes]
NONCE = "c2VydmVyIG5vbmNl"


class Refuse(Exception):
    """Raised by a handler: answer with this Java class and message."""

    def __init__(self, java_class: str, message: str) -> None:
        self.java_class, self.message = java_class, message


class RpcServer:
    """Answers ``handler(method, request) -> answer`` to whoever knows ``token``; counts connections and calls.

    Args:
        qop: the protection that it offers.
        offers: method and mechanism of each way in, in the server's order; DIGEST-MD5 is the one that it can do.
        host: where it listens; empty: on all addresses, of which this machine alone has thousands (127.0.0.0/8).
        state_id: says the last transaction, as a NameNode has it, for answers; None: they have none.
    """

    def __init__(
        self,
        handler: Handler,
        token: Token | None = None,
        qop: str = "auth",
        offers: tuple[tuple[str, str], ...] = (("TOKEN", "DIGEST-MD5"),),
        host: str = "127.0.0.1",
        state_id: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.handler, self.token, self.qop, self.offers = handler, token, qop, offers
        self.state_id = state_id
        self.connections, self.calls = 0, 0
        self.heard_state: int | None = None
        """State id of the last call; each handler may look at it."""
        self.traffic_bytes = 0
        """Frames of requests and answers, after the handshake of a connection."""
        self._listening = socket.create_server((host, 0), backlog=1024)
        self.address: tuple[str, int] = self._listening.getsockname()
        self._threads = [threading.Thread(target=self._accept)]
        self._open: list[socket.socket] = []
        self._closing = False
        self._threads[0].start()

    def __enter__(self) -> RpcServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._closing = True
        self._listening.close()
        with suppress(OSError):
            socket.create_connection(self.address, timeout=0.1).close()
        self.cut_all()
        for thread in self._threads:
            thread.join()

    def cut_all(self) -> None:
        """Cut all connections."""
        for item in self._open:
            with suppress(OSError):
                item.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            try:
                link, _ = self._listening.accept()
            except OSError:
                return
            link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._open.append(link)
            if self._closing:  # it was accepted last
                self.cut_all()
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(link,))
            self._threads.append(thread)
            thread.start()

    def _serve(self, link: socket.socket) -> None:
        with link, suppress(OSError, EOFError):
            _Session(self, link).run()


class _Session:
    def __init__(self, server: RpcServer, link: socket.socket) -> None:
        self.server, self.link = server, link
        self.outer, self.inner = FrameReader(), FrameReader()
        self.security: Security | None = None
        self.state: int | None = None

    def run(self) -> None:
        start = b""
        while len(start) < 7:
            start += self._receive(7 - len(start))
        assert start[:6] == b"hrpc\x09\x00"
        if start[6] == AUTH_NONE:
            if self.server.token is not None:
                self._fail(
                    -1, "org.apache.hadoop.security.AccessControlException", "SIMPLE authentication is not enabled."
                )
                return
        elif not self._authenticate():
            return
        call_id, _ = self._next()
        assert call_id == -3
        while True:
            call_id, rest = self._next()
            method = Fields(rest[0]).text(1)
            self.server.calls += 1
            self.server.heard_state = self.state
            try:
                answer = self.server.handler(method, rest[1])
                self.server.traffic_bytes += sum(map(len, rest)) + len(answer)
                self._answer(call_id, answer)
            except Refuse as refused:
                self._fail(call_id, refused.java_class, refused.message, fatal=False)

    def _authenticate(self) -> bool:
        assert self.server.token is not None
        call_id, _ = self._next()
        assert call_id == -33
        challenge = (
            f'realm="default",nonce="{NONCE}",qop="{self.server.qop}",charset=utf-8,cipher="rc4",algorithm=md5-sess'
        )
        offers = [
            sasl_offer(method, mechanism, challenge if mechanism == "DIGEST-MD5" else None)
            for method, mechanism in self.server.offers
        ]
        self._answer_sasl(encode((2, NEGOTIATE), *((4, offer) for offer in offers)))
        _, rest = self._next()
        parsed = Fields(rest[0])
        chosen = Fields(parsed.all_data(4)[0])
        assert chosen.has(3)
        assert not chosen.has(5)
        attributes = parse_attributes(parsed.text(3))
        # The server's side of the same sums: the client's, with the client's nonce.
        mine = DigestMd5(self.server.token, cnonce=attributes["cnonce"])
        expected = parse_attributes(mine.respond(challenge.encode()).decode())
        if attributes["response"] != expected["response"]:
            self._fail(-33, "javax.security.sasl.SaslException", "DIGEST-MD5: digest response format violation.")
            return False
        self._answer_sasl(sasl_message(NEGOTIATED, b"rspauth=" + mine._proof("").encode()))
        if self.server.qop != "auth":
            self.security = Security(mine._key, seal=self.server.qop == "auth-conf", server=True)
        return True

    def _next(self) -> tuple[int, list[bytes]]:
        """Return the id of the next call, and its messages after the header."""
        reader = self.inner if self.security else self.outer
        while (frame := reader.next()) is None:
            self._more(reader)
        head, *rest = split_frame(frame)
        parsed = Fields(head)
        self.state = parsed.number(8) if parsed.has(8) else None
        zigzag = parsed.number(3)
        return zigzag >> 1 ^ -(zigzag & 1), rest

    def _more(self, reader: FrameReader) -> None:
        if self.security is None:
            reader.feed(self._receive(1 << 16))
            return
        while (frame := self.outer.next()) is None:
            self.outer.feed(self._receive(1 << 16))
        _, body = split_frame(frame)
        reader.feed(self.security.unwrap(Fields(body).data(3)))

    def _receive(self, most: int) -> bytes:
        if not (data := self.link.recv(most)):
            raise EOFError
        return data

    def _answer(self, call_id: int, body: bytes) -> None:
        frame = encode_frame(answer_header(call_id, SUCCESS) + encode((9, self.server.state_id())), body)
        if self.security:
            # In two pieces: what is unwrapped is a stream, not messages.
            for piece in (frame[:5], frame[5:]):
                self._answer_sasl(sasl_message(WRAP, self.security.wrap(piece)))
        else:
            self.link.sendall(frame)

    def _answer_sasl(self, message: bytes) -> None:
        self.link.sendall(encode_frame(answer_header(-33, SUCCESS), message))

    def _fail(self, call_id: int, java_class: str, message: str, *, fatal: bool = True) -> None:
        header = answer_header(call_id, FATAL if fatal else ERROR, java_class, f"{message}\n\tat java.x")
        self.link.sendall(encode_frame(header))


def answer_header(call_id: int, status: int, java_class: str | None = None, message: str | None = None) -> bytes:
    """Return an RpcResponseHeaderProto, whose call id is a plain uint32."""
    return encode((1, call_id & 0xFFFFFFFF), (2, status), (3, 9), (4, java_class), (5, message))


def sasl_offer(method: str, mechanism: str, challenge: str | None) -> bytes:
    """Return a way to authenticate in an RpcSaslProto."""
    return encode((1, method), (2, mechanism), (3, ""), (4, "default"), (5, challenge))


def digest(data: bytes) -> bytes:
    """Something that depends on all of the request."""
    return hashlib.blake2b(data, digest_size=8).digest()
