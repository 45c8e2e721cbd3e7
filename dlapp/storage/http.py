"""Enough of HTTP/1.1 to move files: connections that are kept, bodies that the kernel moves from and to files.

No library that is usual for this is here: http.client takes 17 ms to load and 0.2 ms of a processor for each request,
requests ten times as much, and in all of them every byte of a file passes through Python. A cluster's files are many or
large. What is read of the protocol is what servers may send (RFC 9112): bodies by length, in chunks, or up to the end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

MOST_HEAD = 1 << 16
MOST_BODY = 256 << 20
"""The most of an answer that is kept in memory; what is larger goes to a file."""
PIECE = 1 << 20
IDLE_S = 20.0
"""A connection that was not used for this long is not used again: servers close theirs in time (Jetty after 30 s)."""
ADDRESS_S = 30.0
"""How long a host's addresses are taken for its own: a DataNode makes us connect anew for each file."""
_HEADERS = re.compile(r"\r\n(connection|transfer-encoding|content-length|location)[ \t]*:[ \t]*([^\r]*[^\r \t])", re.I)
_EARLY = "closed the connection in the middle of an answer"
PLAIN, TLS = "speaks plain HTTP, and not TLS", "speaks TLS, and not plain HTTP"
"""Words of `Broken` where one side speaks TLS and the other does not."""
_ALERT = 21
"""The first byte of what a server of TLS says to one who does not speak it (RFC 8446, 5.1), if it says anything."""
_PROBE_S = 3.0
"""How long a server is tried in TLS that did not answer in plain HTTP."""
_HASTE_S = 2.0
"""How long a server that breaks off the sending of a body has to say why."""


class Broken(OSError):
    """No whole answer came.

    Args:
        sent: the server may have seen the request.
        answered: the beginning of a good answer had come.
        received: bytes of its body that had come.
        lasting: it will not come by waiting.
    """

    def __init__(
        self, words: str, *, sent: bool, answered: bool = False, received: int = 0, lasting: bool = False
    ) -> None:
        super().__init__(words)
        self.sent, self.answered, self.received, self.lasting = sent, answered, received, lasting


class SourceShrank(Exception):
    """A file that was being sent has fewer bytes than it had."""


class Source(NamedTuple):
    """A body to send: ``size`` bytes of an open file, from its beginning."""

    fd: int
    size: int


class Sink(NamedTuple):
    """Where the body of a good answer goes.

    Args:
        fd: an open file that is written from ``offset`` on.
        limit: more than this many bytes are not taken.
        tell: told the number of bytes after each piece.
    """

    fd: int
    offset: int
    limit: int
    tell: Callable[[int], None]


class Answer(NamedTuple):
    """A server's answer; ``body`` is empty where it went to a file.

    Args:
        headers: those that matter here, names in small letters.
        received: bytes of the body.
    """

    status: int
    headers: dict[str, str]
    body: bytes
    received: int

    @property
    def good(self) -> bool:
        """Whether the request was carried out."""
        return 200 <= self.status < 300


class Connections:
    """Connections to any number of servers. Any thread may ask; each request has a connection to itself.

    Args:
        connect_s, silence_s: how long to wait for a connection; and for an answer's head, for the next byte of a body
            that goes to a file, and for any other body as a whole.
        ca: file of the certificates that servers are trusted by; None: what OpenSSL has.
    """

    def __init__(self, connect_s: float, silence_s: float, ca: str | None = None) -> None:
        self._connect_s, self._silence_s, self._ca = connect_s, silence_s, ca
        self._idle: dict[str, list[_Connection]] = {}
        self._busy: dict[_Connection, int] = {}  # with the thread that uses it
        self._known: set[str] = set()  # servers that have answered
        self._lock = threading.Lock()
        self._tls: Any = None
        self._addresses: dict[tuple[str, int], tuple[list[tuple[int, Any]], float]] = {}

    def ask(
        self, method: str, server: str, target: str, body: bytes | Source | None = None, *, sink: Sink | None = None
    ) -> Answer:
        """Send one request to ``server`` (``http://host:port``) and read the answer.

        Raises:
            Broken: it did not come, or not whole.
            OSError: the sink's file cannot be written.
            SourceShrank: the body's file has fewer bytes than were promised.
        """
        kept = self._kept(server)
        connection = kept or self._new(server)
        self._busy[connection] = threading.get_ident()
        try:
            answer, again = connection.ask(method, target, body, sink)
        except BaseException as error:
            # Also where a signal cut us off: what comes next on it is not known.
            connection.close()
            if isinstance(error, Broken) and connection.may_be_tls and self._wants_tls(server, error):
                raise Broken(TLS, sent=False, lasting=True) from error
            raise
        finally:
            self._busy.pop(connection, None)
        self._known.add(server)
        if again:
            connection.used_at = time.monotonic()
            with self._lock:
                self._idle.setdefault(server, []).append(connection)
        else:
            connection.close()
        return answer

    def cut(self, threads: Collection[int]) -> None:
        """Break what some threads use, by their identifiers: whoever waits for an answer has `Broken`."""
        for connection, thread in list(self._busy.items()):
            if thread in threads:
                connection.cut()

    def close(self) -> None:
        """Close what is not in use."""
        with self._lock:
            idle, self._idle = self._idle, {}
        for connections in idle.values():
            for one in connections:
                one.close()

    def __del__(self) -> None:
        with contextlib.suppress(Exception):
            self.close()

    def _kept(self, server: str) -> _Connection | None:
        while True:
            with self._lock:
                idle = self._idle.get(server)
                one = idle.pop() if idle else None
            if one is None or one.is_fresh():
                return one
            one.close()

    def _new(self, server: str) -> _Connection:
        scheme, host, port = _address(server)
        try:
            sock = self._connected(host, port)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                if scheme == "https":
                    sock = self._secured(sock, host)
                sock.settimeout(self._silence_s)
            except BaseException:
                sock.close()
                raise
        except Broken:
            raise
        except OSError as error:
            if untrusted := getattr(error, "verify_message", ""):
                words = f"has a certificate that is not trusted ({untrusted})"
                raise Broken(words, sent=False, lasting=True) from error
            # OpenSSL's names for what is no TLS; they differ between its versions.
            if getattr(error, "reason", "") in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE"):
                raise Broken(PLAIN, sent=False, lasting=True) from error
            raise Broken(_words(error), sent=False) from error
        return _Connection(sock, server.partition("://")[2], self._silence_s, in_kernel=scheme != "https")

    def _wants_tls(self, server: str, broken: Broken) -> bool:
        """Whether a server that gave no answer to plain HTTP would have given one in TLS."""
        scheme, host, port = _address(server)
        if scheme == "https" or server in self._known or isinstance(broken.__cause__, TimeoutError):
            return False
        import ssl

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # It is told nothing, so its certificate does not matter.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        try:
            with (
                socket.create_connection((host, port), timeout=min(_PROBE_S, self._connect_s)) as sock,
                context.wrap_socket(sock, server_hostname=host),
            ):
                return True
        except (OSError, ValueError):
            return False

    def _connected(self, host: str, port: int) -> socket.socket:
        """A socket at the first of a host's addresses that takes it."""
        found, since = self._addresses.get((host, port), ([], 0.0))
        if not found or time.monotonic() - since > ADDRESS_S:
            found = [(one[0], one[4]) for one in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
            self._addresses[host, port] = (found, time.monotonic())
        failure: OSError | None = None
        for family, address in found:
            try:
                sock = socket.socket(family, socket.SOCK_STREAM)
            except OSError as error:
                # This machine has no IPv6, say. Where another address says more, that counts.
                failure = failure or error
                continue
            try:
                sock.settimeout(self._connect_s)
                sock.connect(address)
            except BaseException as error:
                sock.close()
                if not isinstance(error, OSError):
                    raise
                failure = error
            else:
                return sock
        self._addresses.pop((host, port), None)
        raise failure or OSError("has no address")

    def _secured(self, sock: socket.socket, host: str) -> socket.socket:
        import ssl

        if self._tls is None:
            try:
                self._tls = ssl.create_default_context(cafile=self._ca)
            except OSError as error:
                raise Broken(f"cannot be trusted: {self._ca}: {_words(error)}", sent=False, lasting=True) from error
        secured: socket.socket = self._tls.wrap_socket(sock, server_hostname=host)
        return secured


def _address(server: str) -> tuple[str, str, int]:
    """Scheme, host and port of a server, ``http://host:port``."""
    scheme, _, place = server.partition("://")
    host, _, port = place.rpartition(":")
    if not host or not port.isdigit():
        host, port = place, "443" if scheme == "https" else "80"
    return scheme, host.strip("[]"), int(port)


class _Connection:
    """One connection to one server, asked one thing at a time."""

    def __init__(self, sock: socket.socket, host: str, silence_s: float, *, in_kernel: bool) -> None:
        self._sock, self._host, self._silence_s, self._in_kernel = sock, host, silence_s, in_kernel
        self._buffer = b""
        self._body_of: _Body | None = None
        self._ends_at: float | None = None  # of what is being received as a whole
        self.may_be_tls = True  # nothing but an alert of TLS came, and we did not end it ourselves
        self.used_at = time.monotonic()

    def close(self) -> None:
        """End it."""
        self._sock.close()

    def cut(self) -> None:
        """Let a thread that waits on it go on; for any other thread."""
        self.may_be_tls = False
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)

    def is_fresh(self) -> bool:
        """Whether the server, as far as we can see, still listens on it."""
        if self._buffer or time.monotonic() - self.used_at > IDLE_S:
            return False
        return not _ready(self._sock, select.POLLIN, 0)  # what comes unasked is the end

    def ask(self, method: str, target: str, body: bytes | Source | None, sink: Sink | None) -> tuple[Answer, bool]:
        """The answer, and whether the connection can be used again. Raises Broken."""
        size = 0 if body is None else len(body) if isinstance(body, bytes) else body.size
        head = f"{method} {target} HTTP/1.1\r\nHost: {self._host}\r\nAccept: */*\r\n"
        if body is not None or method in ("PUT", "POST"):
            head += f"Content-Type: application/octet-stream\r\nContent-Length: {size}\r\n"
        self._body_of = None
        try:
            cut = self._send(head.encode("ascii") + b"\r\n", body)
            try:
                answer, again = self._answer(method, sink)
            except OSError as error:
                raise cut or error from None
            return answer, again and cut is None
        except _FileFailed as failed:
            raise failed.why from None
        except OSError as error:
            raise self._broken(_words(error)) from error
        except (ValueError, IndexError) as error:
            raise self._broken("answered in another language than HTTP") from error

    def _broken(self, words: str) -> Broken:
        out = self._body_of
        return Broken(words, sent=True, answered=out is not None, received=0 if out is None else out.count)

    # ---- sending ----

    def _send(self, head: bytes, body: bytes | Source | None) -> OSError | None:
        """Send a request. A server that refuses may close before it has all; the error counts only if it is mute."""
        try:
            if not isinstance(body, Source):
                self._sock.sendall(head + (body or b""))
            else:
                self._sock.sendall(head)
                self._send_file(body)
        except (BrokenPipeError, ConnectionResetError) as error:
            self._sock.settimeout(_HASTE_S)
            return error
        return None

    def _send_file(self, body: Source) -> None:
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
                self._sock.sendall(piece)
                sent = len(piece)
            if sent == 0:
                raise SourceShrank
            at += sent

    # ---- receiving ----

    def _answer(self, method: str, sink: Sink | None) -> tuple[Answer, bool]:
        self._as_a_whole(self._sock.gettimeout())
        while True:
            status, headers, newer = self._head()
            if status >= 200:
                break
        stays = headers.get("connection", "keep-alive" if newer else "close").lower() == "keep-alive"
        good = 200 <= status < 300
        out = _Body(sink if good else None)
        self._body_of = out if good else None
        self._as_a_whole(self._silence_s)
        stays = self._body(method, status, headers, out) and stays
        return Answer(status, headers, b"".join(out.parts), out.count), stays

    def _as_a_whole(self, limit_s: float | None) -> None:
        """What is received from now on has so long in all, for a server may trickle; None: each piece has its time."""
        self._ends_at = None if limit_s is None else time.monotonic() + limit_s
        self._sock.settimeout(self._silence_s)

    def _receive(self, most: int) -> bytes:
        if self._ends_at is not None:
            if (left := self._ends_at - time.monotonic()) <= 0:
                raise TimeoutError
            self._sock.settimeout(left)
        return self._sock.recv(most)

    def _head(self) -> tuple[int, dict[str, str], bool]:
        while (end := self._buffer.find(b"\r\n\r\n")) < 0:
            if len(self._buffer) > MOST_HEAD:
                raise ValueError("a head without end")
            self._buffer += self._some()
        head = self._buffer[:end].decode("latin-1")
        self._buffer = self._buffer[end + 4 :]
        version, _, rest = head.partition(" ")
        if not version.startswith("HTTP/1."):
            raise ValueError("no HTTP")
        headers = {name.lower(): value for name, value in _HEADERS.findall(head)}
        return int(rest[:3]), headers, version != "HTTP/1.0"

    def _body(self, method: str, status: int, headers: dict[str, str], out: _Body) -> bool:
        """Read the body; whether the connection is at the beginning of the next answer after it."""
        if method == "HEAD" or status in (204, 304):
            return True
        if headers.get("transfer-encoding", "").lower() == "chunked":
            while (size := int(self._line().partition(b";")[0], 16)) > 0:
                self._take(size, out)
                self._line()
            while self._line():
                pass
            return True
        if "content-length" in headers:
            self._take(int(headers["content-length"]), out)
            return True
        while True:
            self._buffer = self._buffer or self._receive(PIECE)
            if not self._buffer:
                return False
            self._take(len(self._buffer), out)

    def _take(self, size: int, out: _Body) -> None:
        if out.sink is None:
            if out.count + size > MOST_BODY:
                raise ValueError("an answer without end")
            self._take_all(size, out)
        else:
            self._as_a_whole(None)
            self._take_all(size, out)
            self._as_a_whole(self._silence_s)

    def _take_all(self, size: int, out: _Body) -> None:
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
        """Let the kernel move bytes from the socket to the file, by way of a pipe (splice(2))."""
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
                out.take_from(inner, count)
                size -= count
        finally:
            os.close(inner)
            os.close(outer)

    def _line(self) -> bytes:
        while (end := self._buffer.find(b"\r\n")) < 0:
            if len(self._buffer) > MOST_HEAD:
                raise ValueError("a line without end")
            self._buffer += self._some()
        line, self._buffer = self._buffer[:end], self._buffer[end + 2 :]
        return line

    def _some(self) -> bytes:
        piece = self._receive(MOST_HEAD)
        if not piece:
            raise ConnectionResetError(_EARLY)
        self.may_be_tls = self.may_be_tls and piece[0] == _ALERT
        return piece

    def _wait(self, event: int) -> None:
        if not _ready(self._sock, event, self._silence_s):
            raise TimeoutError


class _Body:
    """A body on its way to memory or to a file."""

    def __init__(self, sink: Sink | None) -> None:
        self.sink, self.count = sink, 0
        self.parts: list[bytes] = []

    def add(self, piece: bytes) -> None:
        """Take bytes that we have."""
        if self.sink is None:
            self.parts.append(piece)
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

    def take_from(self, pipe: int, count: int) -> None:
        """Take bytes that are in a pipe."""
        assert self.sink is not None
        while count:
            try:
                moved = os.splice(pipe, self.sink.fd, count, offset_dst=self._place(count))
            except OSError as error:
                if error.errno not in (errno.EINVAL, errno.ENOSYS):
                    raise _FileFailed(error) from error
                # A file system that has no such way in.
                moved = len(piece := os.read(pipe, count))
                self.add(piece)
            else:
                self._wrote(moved)
            count -= moved

    def _place(self, more: int) -> int:
        assert self.sink is not None
        if self.count + more > self.sink.limit:
            raise ValueError("more bytes than were asked for")
        return self.sink.offset + self.count

    def _wrote(self, count: int) -> None:
        assert self.sink is not None
        self.count += count
        self.sink.tell(count)


class _FileFailed(Exception):
    """It is the file here that failed, not the server; ``why`` is the error to raise."""

    def __init__(self, why: OSError) -> None:
        super().__init__(str(why))
        self.why = why


def _ready(sock: socket.socket, event: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), event)
    return bool(poll.poll(int(timeout_s * 1000)))


def _words(error: OSError) -> str:
    if isinstance(error, socket.gaierror):
        return "is a name that nobody knows"
    if isinstance(error, TimeoutError):
        return "timed out"
    if error.errno is None:
        return str(error) or "failed"
    return (error.strerror or str(error)).lower()
