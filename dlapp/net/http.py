"""HTTP/1.1 client over TCP, TLS and Unix sockets: reused connections; bodies in memory, in pieces, or from and to
files, which the kernel copies.

The usual libraries cost too much: http.client takes 17 ms to load and 0.2 ms of CPU time for each request, requests ten
times as much, and in all of them every byte of a file passes through Python. A cluster's files are many or large. The
client accepts everything that servers may send (RFC 9112): bodies by length, in chunks, or up to the end of the
connection; `dlapp.net.http_framing` refuses a response whose end is ambiguous. Proxies of the environment and .netrc
are ignored: both are meant for the internet.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any, TypeVar

from dlapp.net.http_framing import (
    MAX_CHUNK_LINE_BYTES,
    MAX_FIELDS,
    MAX_HEAD_BYTES,
    FramingError,
    Head,
    Headers,
    check_trailer,
    parse_chunk_line,
    parse_head,
)
from dlapp.system.network.host_connection import check_peer, connect_first, look_up
from dlapp.system.text import lazy_pattern
from dlapp.system.waits import Wait
from dlapp.value import Value

MAX_INTERIM = 16
"""Maximum number of interim responses (1xx) before a response."""
MAX_BODY_BYTES = 256 << 20
"""Size limit of an answer in memory; larger ones are written to a file."""
MAX_REFUSAL_BYTES = 1 << 20
"""Size limit of an answer with the reason of a refusal."""
PIECE = 1 << 20
_STREAM_PIECE = 1 << 16
_BEGINNING = b"HTTP/1."
IDLE_S = 20.0
"""Time after which an idle connection is not reused: servers close theirs eventually (Jetty after 30 s)."""
ADDRESS_S = 30.0
"""How long the addresses of a host are cached: with DataNodes each file needs a new connection."""
_EARLY = "closed the connection in the middle of an answer"
PLAIN, TLS = "uses plain HTTP, not TLS", "uses TLS, not plain HTTP"
"""Words of `IncompleteResponse` where one side speaks TLS and the other does not."""
_ALERT = 21
"""First byte of a TLS server's alert to a client that does not use TLS (RFC 8446, 5.1), if it sends one."""
_PROBE_S = 3.0
"""Time limit for a TLS probe of a server that did not answer in plain HTTP."""
_HASTE_S = 2.0
"""How long to wait for the reason of a server that closes the connection while it receives a body."""
_TARGET = lazy_pattern(r"[!-~]+")
_VALUE = lazy_pattern(r"[ -~]*")
_URL = lazy_pattern(r"(https?://(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::([0-9]{1,5}))?)(/[!->@-~]*)?(?:\?([!-~]*))?")
"""Server, port, path and query. Source: RFC 3986; no user name, nothing that is not ASCII. It matches in one way only,
so in linear time."""
_T = TypeVar("_T")


class IncompleteResponse(OSError):
    """Missing or incomplete response.

    Args:
        sent: whether the server may have received the request.
        answered: whether the beginning of a successful response had arrived.
        received: number of bytes of the body that had arrived.
        lasting: whether waiting will not help.
    """

    def __init__(
        self, message: str, *, sent: bool, answered: bool = False, received: int = 0, lasting: bool = False
    ) -> None:
        super().__init__(message)
        self.sent, self.answered, self.received, self.lasting = sent, answered, received, lasting

    @property
    def timed_out(self) -> bool:
        """Return True if the response timed out."""
        return isinstance(self.__cause__, TimeoutError)

    @property
    def too_large(self) -> bool:
        """Return True if the body exceeds the limit."""
        return isinstance(self.__cause__, _BodyTooLarge)


class _BodyTooLarge(FramingError):
    """A body above the limit for memory."""


class SourceShrank(Exception):
    """A file that was being sent became shorter."""


class RequestBody(Value):
    """A body to send: ``size`` bytes of an open file, from its beginning."""

    fd: int
    size: int


class ResponseSink(Value):
    """Destination of the body of a successful response.

    Args:
        fd: an open file, written from ``offset`` on.
        limit: maximum number of bytes to accept.
        report: called with the number of bytes after each piece.
    """

    fd: int
    offset: int
    limit: int
    report: Callable[[int], None]


class HttpResponse(Value):
    """A server's response; ``body`` is empty if it was written to a file.

    Args:
        received: number of bytes of the body.
    """

    status: int
    headers: Headers
    body: bytes
    received: int

    @property
    def good(self) -> bool:
        """Return True if the request succeeded."""
        return 200 <= self.status < 300


class ResponseStream:
    """A response whose body is read in pieces, once. Read it to its end or close it: it occupies a connection.

    Args:
        head: the head of the response.
        pieces: the pieces of its body.
        release: called once with whether everything was read.
    """

    def __init__(self, head: Head, pieces: Iterator[bytes], release: Callable[[bool], None]) -> None:
        self.status, self.headers, self._pieces, self._release = head.status, head.headers, pieces, release

    def __iter__(self) -> Iterator[bytes]:
        """Yield the pieces. Raises IncompleteResponse: the connection broke."""
        whole = False
        try:
            yield from self._pieces
            whole = True
        finally:
            self._release(whole)

    def close(self) -> None:
        """Stop reading. Idempotent."""
        self._release(False)


class HttpClient:
    """Connections to any number of servers. Thread-safe; each request has its own connection.

    A server is ``http://host:port``, ``https://host:port`` or ``unix:///path``.

    Args:
        connect_s, silence_s: time limits for connecting; and for a response's head, for the next byte of a body that is
            written to a file, for each piece of a streamed one, and for any other body as a whole.
        ca: file with the trusted CA certificates; None for OpenSSL's default.
        certificates: CA certificates (PEM) that are trusted in addition; empty: none.
        idle_s: idle time after which a connection is not reused.
        what: the servers' kind, for users: a wait for one is shown as ``HDFS at node7:9864`` (`dlapp.system.waits`);
            empty: waits are not shown, because to wait there is nothing special.
        owner: user who must own the server processes, which are all on this machine; None to not check.
    """

    def __init__(
        self,
        connect_s: float,
        silence_s: float,
        ca: str | None = None,
        certificates: str = "",
        *,
        idle_s: float = IDLE_S,
        what: str = "",
        owner: int | None = None,
    ) -> None:
        self._connect_s, self._silence_s, self._idle_s = connect_s, silence_s, idle_s
        self._ca, self._certificates = ca, certificates
        self._what, self._owner = what, owner
        self._idle: dict[str, list[_PooledConnection]] = {}
        self._busy: dict[_PooledConnection, int] = {}  # by the thread that uses it
        self._known: set[str] = set()  # servers that have responded
        self._lock = threading.Lock()
        self._ended = False
        self._tls: Any = None
        self._addresses: dict[tuple[str, int], tuple[list[tuple[int, Any]], float]] = {}

    def request(
        self,
        method: str,
        server: str,
        target: str,
        body: bytes | RequestBody | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        sink: ResponseSink | None = None,
        max_bytes: int = MAX_BODY_BYTES,
        until: float | None = None,
        repeatable: bool = False,
    ) -> HttpResponse:
        """Send one request and read the response.

        Args:
            method: the method of the request.
            server: see above.
            target: path and query.
            body: the body of the request.
            headers: added to the default ones, or replacing them.
            sink: destination of the body of a successful response; None for memory.
            max_bytes: maximum size of a successful response in memory [bytes].
            until: deadline of the whole request [s, monotonic], replacing ``connect_s`` and ``silence_s``; None to use
                these. Not for bodies from or to files.
            repeatable: whether it is resent if a reused connection turns out to be closed.

        Raises:
            IncompleteResponse: there was none, or an incomplete one.
            OSError: writing to the sink's file failed.
            SourceShrank: the body's file has fewer bytes than announced.
        """
        head = _request_head(method, server, target, body, headers)
        connection, response = self._exchange(
            server, lambda one: one.exchange(method, head, body, sink, max_bytes), until, repeatable=repeatable
        )
        self._release(server, connection, stays=connection.stays)
        return response

    def stream(
        self,
        method: str,
        server: str,
        target: str,
        *,
        headers: Mapping[str, str] | None = None,
        repeatable: bool = False,
    ) -> ResponseStream:
        """Send one request without a body and read the response's head; the caller iterates over the body. Raises the
        errors of `request`.

        Args:
            method, server, target, headers, repeatable: see `request`.
        """
        request = _request_head(method, server, target, None, headers)
        connection, head = self._exchange(server, lambda one: one.begin(request, None), None, repeatable=repeatable)
        return ResponseStream(
            head,
            connection.pieces(method, head),
            lambda whole: self._release(server, connection, stays=whole and connection.stays),
        )

    def _exchange(
        self, server: str, work: Callable[[_PooledConnection], _T], until: float | None, *, repeatable: bool
    ) -> tuple[_PooledConnection, _T]:
        """Return a connection, which the caller must release, and the result of ``work`` on it."""
        while True:
            kept = self._kept(server)
            connection = kept or self._new(server, until)
            connection.until = until
            self._busy[connection] = threading.get_ident()
            try:
                if self._ended:
                    raise IncompleteResponse("the connection was ended", sent=False)
                with connection.explained():
                    result = work(connection)
            except BaseException as error:
                # Also if a signal interrupted us: the next bytes on it are unknown.
                self._release(server, connection, stays=False)
                if not isinstance(error, IncompleteResponse) or connection.is_cut or self._ended:
                    raise
                if repeatable and kept and isinstance(error.__cause__, OSError) and not error.timed_out:
                    continue
                if until is None and connection.may_be_tls and self._wants_tls(server, error):
                    raise IncompleteResponse(TLS, sent=False, lasting=True) from error
                raise
            self._known.add(server)
            return connection, result

    def _wait_for(self, server: str, longest_s: float) -> Wait:
        place = server if server.startswith("unix") else server.partition("://")[2]
        return Wait(f"{self._what} at {place}" if self._what else "", longest_s)

    def _release(self, server: str, connection: _PooledConnection, *, stays: bool) -> None:
        """Keep a connection for the next request if it ``stays``, else close it. Only the first call has an effect."""
        if self._busy.pop(connection, None) is None:
            return
        if not stays:
            connection.close()
            return
        connection.used_at = time.monotonic()
        with self._lock:
            self._idle.setdefault(server, []).append(connection)

    def abort(self, threads: Collection[int]) -> None:
        """Abort the requests of some threads (idents): they raise `IncompleteResponse`."""
        for connection, thread in list(self._busy.items()):
            if thread in threads:
                connection.abort()

    def end(self) -> None:
        """Close all connections: a request in progress, and every later one, raises `IncompleteResponse`."""
        # A request that is still connecting checks this afterwards; see `_exchange`.
        self._ended = True
        self.abort(set(self._busy.values()))
        self.close()

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for one in connections:
                one.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _kept(self, server: str) -> _PooledConnection | None:
        while True:
            with self._lock:
                idle = self._idle.get(server)
                one = idle.pop() if idle else None
            if one is None or one.is_fresh(self._idle_s):
                return one
            one.close()

    def _new(self, server: str, until: float | None) -> _PooledConnection:
        with self._wait_for(server, self._connect_s):
            return self._newly_connected(server, until)

    def _newly_connected(self, server: str, until: float | None) -> _PooledConnection:
        scheme, host, port = _address(server)
        wait = self._wait_for(server, self._silence_s)
        try:
            if scheme == "unix":
                sock = connect_first([(socket.AF_UNIX, host)], lambda: _left(self._connect_s, until))
                return _PooledConnection(sock, self._silence_s, wait, in_kernel=True)
            sock = self._connected_by_name(host, port, until)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if self._owner is not None:
                    check_peer(sock, self._owner, time.monotonic() + _left(self._connect_s, until))
                if scheme == "https":
                    sock = self._secured(sock, host)
            except BaseException:
                sock.close()
                raise
        except IncompleteResponse:
            raise
        except OSError as error:
            if untrusted := getattr(error, "verify_message", ""):
                message = f"has a certificate that is not trusted ({untrusted})"
                raise IncompleteResponse(message, sent=False, lasting=True) from error
            # OpenSSL's error names for data that is not TLS; they differ between its versions.
            if getattr(error, "reason", "") in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                raise IncompleteResponse(PLAIN, sent=False, lasting=True) from error
            raise IncompleteResponse(_error_text(error), sent=False) from error
        return _PooledConnection(sock, self._silence_s, wait, in_kernel=scheme != "https")

    def _wants_tls(self, server: str, broken: IncompleteResponse) -> bool:
        """Return True if a server that did not respond to plain HTTP would respond to TLS."""
        scheme, host, port = _address(server)
        if scheme != "http" or server in self._known or broken.timed_out:
            return False
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # Nothing is sent to it, so its certificate does not matter.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((host, port), timeout=min(_PROBE_S, self._connect_s)) as sock,
                context.wrap_socket(sock, server_hostname=host),
            ):
                return True
        except (OSError, ValueError):
            return False

    def _connected_by_name(self, host: str, port: int, until: float | None) -> socket.socket:
        """Connect to the first of a host's addresses that accepts."""
        found, since = self._addresses.get((host, port), ([], 0.0))
        if not found or time.monotonic() - since > ADDRESS_S:
            found = look_up(host, port)
            self._addresses[host, port] = (found, time.monotonic())
        try:
            return connect_first(found, lambda: _left(self._connect_s, until))
        except OSError:
            self._addresses.pop((host, port), None)
            raise

    def _secured(self, sock: socket.socket, host: str) -> socket.socket:
        import ssl

        if self._tls is None:
            try:
                tls = ssl.create_default_context(cafile=self._ca)
                if self._certificates:
                    tls.load_verify_locations(cadata=self._certificates)
            except OSError as error:
                raise IncompleteResponse(
                    f"cannot be trusted: {self._ca}: {_error_text(error)}", sent=False, lasting=True
                ) from error
            self._tls = tls
        secured: socket.socket = self._tls.wrap_socket(sock, server_hostname=host)
        return secured


def split_url(url: str) -> tuple[str, str, str]:
    """Return server, path and query of a URL. Raises ValueError: it is unsupported."""
    match = _URL.fullmatch(url)
    if match is None or int(match[2] or 0) > 0xFFFF:
        raise ValueError(f"{url[:200]!r} is not a web address")
    return match[1], match[3] or "/", match[4] or ""


def _left(limit_s: float, until: float | None) -> float:
    """Return the time until a deadline, or ``limit_s`` if there is none [s]. Raises TimeoutError: it has passed."""
    if until is None:
        return limit_s
    if (left_s := until - time.monotonic()) <= 0:
        raise TimeoutError
    return left_s


def _request_head(
    method: str, server: str, target: str, body: bytes | RequestBody | None, headers: Mapping[str, str] | None
) -> bytes:
    """Return the head of a request. Raises ValueError: it contains characters that would change its structure."""
    scheme, _, place = server.partition("://")
    fields = {"Host": "localhost" if scheme == "unix" else place, "Accept": "*/*"}
    if body is not None or method in ("PUT", "POST"):
        size = 0 if body is None else len(body) if isinstance(body, bytes) else body.size
        fields |= {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
    if headers:
        fields |= headers
    if not _TARGET.fullmatch(target) or not all(map(_VALUE.fullmatch, (headers or {}).values())):
        raise ValueError("a request with characters that HTTP does not allow there")
    lines = "\r\n".join([f"{name}: {value}" for name, value in fields.items()])
    return f"{method} {target} HTTP/1.1\r\n{lines}\r\n\r\n".encode("ascii")


def _address(server: str) -> tuple[str, str, int]:
    """Return scheme, host and port of a server; for a Unix socket its path, and 0."""
    scheme, _, place = server.partition("://")
    if scheme == "unix":
        return scheme, place, 0
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        host, port = place, "443" if scheme == "https" else "80"
    return scheme, host.strip("[]"), int(port)


class _PooledConnection:
    """One connection to one server, with one request at a time.

    Args:
        wait: for the server.
        in_kernel: whether the kernel can copy bytes between it and files.
    """

    def __init__(self, sock: socket.socket, silence_s: float, wait: Wait, *, in_kernel: bool) -> None:
        self._sock, self._silence_s, self._in_kernel = sock, silence_s, in_kernel
        self._buffer = b""
        self._body_of: _Body | None = None
        self._ends_at: float | None = None  # of the current receive as a whole
        self.until: float | None = None  # of the request
        self.wait = wait
        self.stays = False  # it is, or will be, at the beginning of the next response once the body is read
        self.may_be_tls = True  # only a TLS alert arrived
        self.is_cut = False
        self.used_at = time.monotonic()

    def close(self) -> None:
        """End it."""
        self._sock.close()

    def abort(self) -> None:
        """Wake a thread that waits on it; for any other thread."""
        self.is_cut = True
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def is_fresh(self, idle_s: float) -> bool:
        """Return whether the server has the connection still open, as far as is visible here."""
        if self._buffer or time.monotonic() - self.used_at > idle_s:
            return False
        return not _ready(self._sock, select.POLLIN, 0)  # unrequested data means the end

    def exchange(
        self, method: str, request: bytes, body: bytes | RequestBody | None, sink: ResponseSink | None, max_bytes: int
    ) -> HttpResponse:
        """Return the response to a request. Raises errors for `explained`."""
        head = self.begin(request, body)
        good = 200 <= head.status < 300
        out = _Body(sink, max_bytes) if good else _Body(None, MAX_REFUSAL_BYTES)
        self._body_of = out if good else None
        for size in self._parts(method, head):
            self._copy(size, out)
        return HttpResponse(head.status, head.headers, out.kept.getvalue(), out.count)

    def begin(self, request: bytes, body: bytes | RequestBody | None) -> Head:
        """Send a request, given by its head, and return the response's head. Raises errors for `explained`."""
        self._body_of = None
        self._sock.settimeout(_left(self._silence_s, self.until))
        send_error = self._send(request, body)
        try:
            self._as_a_whole(self._sock.gettimeout())
            for _ in range(MAX_INTERIM):
                head = self._head()
                if head.status >= 200:
                    break
            else:
                raise FramingError("interim responses without end")
        except OSError as error:
            raise send_error or error from None
        self._as_a_whole(self._silence_s)
        self.stays = head.is_persistent and send_error is None
        return head

    def pieces(self, method: str, head: Head) -> Iterator[bytes]:
        """Yield the body after a head. Raises IncompleteResponse."""
        with self.explained():
            for size in self._parts(method, head):
                left = size
                while left:
                    piece, self._buffer = self._buffer[:left], self._buffer[left:]
                    if not (piece := piece or self._receive(min(_STREAM_PIECE, left))):
                        raise ConnectionResetError(_EARLY)
                    left -= len(piece)
                    yield piece
                    self._as_a_whole(self._silence_s)

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Convert errors that mean an incomplete response to IncompleteResponse."""
        try:
            yield
        except _FileFailed as failed:
            raise failed.why from None
        except OSError as error:
            raise self._broken(_error_text(error)) from error
        except (ValueError, IndexError) as error:
            raise self._broken("sent no valid HTTP response") from error

    def _broken(self, message: str) -> IncompleteResponse:
        out = self._body_of
        return IncompleteResponse(
            message, sent=True, answered=out is not None, received=0 if out is None else out.count
        )

    # ---- sending ----

    def _send(self, head: bytes, body: bytes | RequestBody | None) -> OSError | None:
        """Send a request. Return the error if the server closes early, which counts only if there is no response."""
        try:
            with self.wait.renew():
                self._sock.sendall(head if isinstance(body, RequestBody) else head + (body or b""))
            if isinstance(body, RequestBody):
                self._send_file(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._sock.settimeout(_HASTE_S)
            return error
        return None

    def _send_file(self, body: RequestBody) -> None:
        at = 0
        while at < body.size:
            count = min(PIECE, body.size - at)
            if self._in_kernel:
                try:
                    sent = os.sendfile(self._sock.fileno(), body.fd, at, count)
                except BlockingIOError:
                    self._wait(select.POLLOUT)
                    continue
            else:
                piece = os.pread(body.fd, count, at)
                with self.wait.renew():
                    self._sock.sendall(piece)
                sent = len(piece)
            if sent == 0:
                raise SourceShrank
            at += sent

    # ---- receiving ----

    def _as_a_whole(self, limit_s: float | None) -> None:
        """Set a deadline for all that a slow server sends from now on; None for a limit on each piece."""
        self._ends_at = self.until
        if self.until is None:
            if limit_s is None:
                self._sock.settimeout(self._silence_s)
            else:
                self._ends_at = time.monotonic() + limit_s

    def _receive(self, max_bytes: int) -> bytes:
        if self._ends_at is not None:
            self._sock.settimeout(_left(0.0, self._ends_at))
        with self.wait.renew():
            return self._sock.recv(max_bytes)

    def _head(self) -> Head:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MAX_HEAD_BYTES:
                raise FramingError("a head without end")
            self._buffer += self._some()
            if not self._buffer.startswith(_BEGINNING[: len(self._buffer)]):
                raise FramingError("not the head of an HTTP response")
        head, self._buffer = self._buffer[:end], self._buffer[end + 4 :]
        return parse_head(head)

    def _parts(self, method: str, head: Head) -> Iterator[int]:
        """Yield the length of each part of a body; the caller reads this number of bytes before the next iteration."""
        if method == "HEAD" or head.status in (204, 304):
            return
        if head.is_chunked:
            while (size := parse_chunk_line(self._line(MAX_CHUNK_LINE_BYTES))) > 0:
                yield size
                if self._line(0):
                    raise FramingError("a chunk is longer than its length")
            self._trailers()
        elif head.length is not None:
            yield head.length
        else:
            self.stays = False
            self._buffer = self._buffer or self._receive(PIECE)
            while self._buffer:
                yield len(self._buffer)
                self._buffer = self._receive(PIECE)

    def _trailers(self) -> None:
        left = MAX_HEAD_BYTES
        for _ in range(MAX_FIELDS):
            line = self._line(left)
            if not line:
                return
            check_trailer(line)
            left -= len(line)
        raise FramingError("trailers without end")

    def _copy(self, size: int, out: _Body) -> None:
        if out.sink is None:
            if out.count + size > out.max_bytes:
                raise _BodyTooLarge("a body too large")
            self._copy_all(size, out)
        else:
            self._as_a_whole(None)
            self._copy_all(size, out)
            self._as_a_whole(self._silence_s)

    def _copy_all(self, size: int, out: _Body) -> None:
        end = out.count + size
        if self._buffer:
            out.add(self._buffer[:size])
            self._buffer = self._buffer[size:]
        if out.sink is not None and self._in_kernel and end - out.count >= 1 << 16:
            self._splice(end - out.count, out)
        while out.count < end:
            piece = self._receive(min(PIECE, end - out.count))
            if not piece:
                raise ConnectionResetError(_EARLY)
            out.add(piece)

    def _splice(self, size: int, out: _Body) -> None:
        """Let the kernel copy bytes from the socket to the file, through a pipe (splice(2))."""
        inner, outer = os.pipe2(os.O_CLOEXEC)
        try:
            with contextlib.suppress(OSError):
                import fcntl

                fcntl.fcntl(outer, fcntl.F_SETPIPE_SZ, PIECE)
            while size:
                try:
                    count = os.splice(self._sock.fileno(), outer, min(size, PIECE))
                except BlockingIOError:
                    self._wait(select.POLLIN)
                    continue
                if count == 0:
                    raise ConnectionResetError(_EARLY)
                out.splice_from(inner, count)
                size -= count
        finally:
            os.close(inner)
            os.close(outer)

    def _line(self, max_bytes: int) -> bytes:
        """Return the next line, of at most ``max_bytes`` bytes."""
        while (end := self._buffer.find(b"\r\n", 0, max_bytes + 2)) < 0:
            if len(self._buffer) >= max_bytes + 2:
                raise FramingError("a line without end")
            self._buffer += self._some()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _some(self) -> bytes:
        piece = self._receive(MAX_HEAD_BYTES)
        if not piece:
            raise ConnectionResetError(_EARLY)
        self.may_be_tls = self.may_be_tls and piece[0] == _ALERT
        return piece

    def _wait(self, event: int) -> None:
        with self.wait.renew():
            is_ready = _ready(self._sock, event, self._silence_s)
        if not is_ready:
            raise TimeoutError


class _Body:
    """A body that is being received in memory, up to ``max_bytes`` bytes, or in a file."""

    def __init__(self, sink: ResponseSink | None, max_bytes: int) -> None:
        self.sink, self.max_bytes, self.count = sink, max_bytes, 0
        self.kept = io.BytesIO()

    def add(self, piece: bytes) -> None:
        """Add bytes from memory."""
        if self.sink is None:
            self.kept.write(piece)
            self.count += len(piece)
            return
        left = memoryview(piece)
        while left:
            try:
                written = os.pwrite(self.sink.fd, left, self._place(len(left)))
            except OSError as error:
                raise _FileFailed(error) from error
            left = left[written:]
            self._wrote(written)

    def splice_from(self, pipe: int, count: int) -> None:
        """Add bytes from a pipe."""
        assert self.sink is not None
        while count:
            try:
                moved = os.splice(pipe, self.sink.fd, count, offset_dst=self._place(count))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise _FileFailed(error) from error
                # The file system does not support splice.
                moved = len(piece := os.read(pipe, count))
                self.add(piece)
            else:
                self._wrote(moved)
            count -= moved

    def _place(self, more: int) -> int:
        assert self.sink is not None
        if self.count + more > self.sink.limit:
            raise FramingError("more bytes than were requested")
        return self.sink.offset + self.count

    def _wrote(self, count: int) -> None:
        assert self.sink is not None
        self.count += count
        self.sink.report(count)


class _FileFailed(Exception):
    """An error of the local file, not of the server; ``why`` is the error to raise."""

    def __init__(self, why: OSError) -> None:
        super().__init__(str(why))
        self.why = why


def _ready(sock: socket.socket, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), event)
    return bool(poll.poll(int(timeout_s * 1000)))


def _error_text(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "host not found"
    if isinstance(error, TimeoutError):
        return "timed out"
    if error.errno is None:
        return str(error) or "failed"
    return (error.strerror or str(error)).lower()
