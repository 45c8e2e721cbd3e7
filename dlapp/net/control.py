"""Control server of the ApplicationMaster: messages over HTTP/1.1. `dlapp.net.control_client` is its client.

h11 parses requests and formats answers; this module owns the sockets. The server runs in one thread. An answer may be
held back while the client waits, without a thread for each: ten thousand tasks may wait for news at once.

Anybody who can reach the port may connect, so everything has a limit. A request is admitted or refused by its head
(path and token), before its body is read. A connection has one request at a time: while its answer is pending or
unread, nothing more is read than what was already in transit. Connections without a valid token are limited, for each
address and in total, the oldest being closed first, and the unread data of their answers is bounded. Connections with a
valid token do not count, so tasks are served however many others connect. A peer that sends or reads too slowly is
disconnected.
"""

from __future__ import annotations

import contextlib
import json
import resource
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import h11

from dlapp.net.accepting import Accepted, accept_one
from dlapp.value import Record, field

MAX_HEAD_BYTES = 16 << 10
REQUEST_DEADLINE_S = 20.0
"""Time limit from the first byte of a connection, or of a later request, to the end of the request; for unauthenticated
clients also that of each other step."""
SEND_DEADLINE_S = 60.0
"""Time limit for a client to read an answer."""
IDLE_DEADLINE_S = 300.0
MAX_CONNECTIONS = 32_000
"""Maximum number of connections. Each of 10,000 tasks has one, and two for some seconds after its news; a task that
switches to a new ApplicationMaster leaves its connections open until their deadline."""
OWN_DESCRIPTORS = 256
"""Number of descriptors of the process's limit that connections leave to its other files and sockets; with a low limit
a quarter of it."""
MAX_STRANGERS_OF_AN_ADDRESS, MAX_STRANGERS = 64, 256
"""Limits of connections without a valid token yet. Each takes up to 25 KiB. They apply between a task's connection and
its first request, so any number of tasks of one address gets through."""
MAX_UNREAD_OF_STRANGERS_BYTES = 2 << 20
"""Maximum size of the unread answers of all unauthenticated clients together; the answers that have waited longest are
dropped first."""
_ACCEPT_AT_ONCE = 16
_RECEIVE_BYTES, _RECEIVE_OF_A_STRANGER_BYTES = 65536, 4096
_LINGER_S = 2.0
"""Time for which a refused connection may continue to send, so that a reset does not discard the refusal."""


class Admission(NamedTuple):
    """Decision to read a request's body.

    Args:
        max_body_bytes: a longer body is refused with 413.
        authenticated: whether it has a valid token; otherwise its connection counts against the limits for strangers.
    """

    max_body_bytes: int = 0
    authenticated: bool = False


class Refusal(NamedTuple):
    """A request that is answered with an error before any of its body is read."""

    status: int
    reason: str


Admit = Callable[[str, str, str], Admission | Refusal]
"""Function that decides on a request by its method, path and token; runs on the server's thread."""


class Request(Record):
    """A received request; answer it with `ControlServer.reply`, once, from any thread.

    ``upgrades``: whether it requests a stream, so that it may be answered with `ControlServer.connect_pair`.
    """

    method: str
    path: str
    token: str
    body: bytes
    upgrades: bool
    peer: _Peer = field(repr=False)

    def json(self) -> Any:
        """Return the body as JSON. Raises ValueError or RecursionError if it is not JSON."""
        return json.loads(self.body, parse_constant=_refuse_constant) if self.body else None

    def cache_result(self, meaning: Any) -> None:
        """Cache the parsed value of this request for the connection, replacing an earlier one."""
        self.peer.remembered = self.path, self.body, meaning

    def cached_result(self) -> Any:
        """Return the cached value of an equal request on this connection, or None; most tasks repeat the last one."""
        known = self.peer.remembered
        return known[2] if known is not None and known[:2] == (self.path, self.body) else None


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not JSON")


RelayPair = Callable[[socket.socket, socket.socket], None]
"""Function that receives the connections of two requests that form one stream; runs on the server's thread."""


class _Peer(Record):
    """A connection, and the state of its current request.

    Args:
        deadline: when to close it, unless an answer is pending [s, monotonic].
        http: None before the first byte, so that an idle connection costs little more than its descriptor.
        out: unsent part of an answer.
        begun: whether the first byte of the next request has arrived, so that the deadline is that request's.
        paused: whether reading is stopped until the pending answer is sent.
        draining: whether it was refused; further data is discarded, so that the client can read the reason.
        events: registered with the selector.
        remembered: see `Request.cache_result`.
    """

    sock: socket.socket
    address: str
    deadline: float
    http: h11.Connection | None = None
    out: deque[memoryview] = field(default_factory=deque)
    head: h11.Request | None = None
    body: bytearray = field(default_factory=bytearray)
    admission: Admission = Admission()
    asked: Request | None = None
    authenticated: bool = False
    begun: bool = False
    paused: bool = False
    draining: bool = False
    events: int = 0
    closed: bool = False
    remembered: tuple[str, bytes, Any] | None = None


class ControlServer:
    """Server on one port that passes each admitted request to ``handler`` and sends the answers given to `reply`.

    ``handler`` runs on the server's thread and must not block: it answers at once by calling `reply`, or keeps the
    request and answers later. A context manager: leaving it closes all connections and joins the thread.

    Args:
        admit: decides on each request by its head. A refused one is answered without reading a body.
    """

    def __init__(
        self, handler: Callable[[Request], None], host: str = "127.0.0.1", port: int = 0, *, admit: Admit
    ) -> None:
        self._handler, self._admit = handler, admit
        self._listener = socket.create_server((host, port), backlog=1024)
        self._listener.setblocking(False)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._replies: deque[tuple[Request, int, bytes, str]] = deque()
        self._joined: deque[tuple[Request, Request, RelayPair]] = deque()
        self._peers: set[_Peer] = set()
        # Connections that never had a valid token, the oldest first; in total, and by address.
        self._strangers: dict[_Peer, None] = {}
        self._strangers_of: dict[str, dict[_Peer, None]] = {}
        self._stopping = self._deaf = False
        self._most = max_connections()
        self._thread = threading.Thread(target=self._run, name="am-control", daemon=True)

    def __enter__(self) -> ControlServer:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stopping = True
        self._wake()
        self._thread.join()
        for peer in list(self._peers):
            self._close(peer)
        self._listener.close()
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()

    def reply(self, request: Request, status: int, body: Any, content_type: str = "application/json") -> None:
        """Answer a request.

        Args:
            request: the request.
            status: the HTTP status.
            body: sent as JSON unless it is bytes, or text of another ``content_type``.
            content_type: the content type of the body.
        """
        if isinstance(body, bytes):
            data = body
        elif content_type == "application/json":
            data = json.dumps(body, separators=(",", ":")).encode()
        else:
            data = str(body).encode()
        self._replies.append((request, status, data, content_type))
        self._wake()

    def connect_pair(self, first: Request, second: Request, relay: RelayPair) -> None:
        """Answer two requests for an upgrade with a switch of protocols, and hand over their connections, which the
        server then forgets. If one client has disconnected, refuse the other.

        Args:
            relay: receives the two non-blocking sockets, and closes them.
        """
        self._joined.append((first, second, relay))
        self._wake()

    def _wake(self) -> None:
        if threading.current_thread() is not self._thread:
            # A full pipe wakes the thread, too.
            with contextlib.suppress(BlockingIOError):
                self._wake_out.send(b"\0")

    def _run(self) -> None:
        sweep_at = time.monotonic() + 1.0
        while not self._stopping:
            for key, events in self._selector.select(timeout=1.0):
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._wake_in:
                    with contextlib.suppress(BlockingIOError):
                        self._wake_in.recv(4096)
                else:
                    self._serve(key.data, events)
            while self._replies:
                self._send_reply(*self._replies.popleft())
            while self._joined:
                self._connect_pair(*self._joined.popleft())
            if (now := time.monotonic()) >= sweep_at:
                sweep_at = now + 1.0
                if self._deaf:
                    self._selector.register(self._listener, selectors.EVENT_READ)
                    self._deaf = False
                for peer in [p for p in self._peers if p.asked is None and p.deadline < now]:
                    self._close(peer)
        # Answers given just before the end are still sent: a task's last report waits for one.
        while self._replies:
            self._send_reply(*self._replies.popleft())

    # ---- connections ----

    def _accept(self) -> None:
        # A few at a time: data of accepted connections is read before more are accepted.
        for _ in range(_ACCEPT_AT_ONCE):
            accepted = accept_one(self._listener, self._begin_peer)
            if accepted is Accepted.FULL and not self._evict(self._strangers):
                # Waiting clients stay in the backlog; the listening socket would wake us continuously.
                self._selector.unregister(self._listener)
                self._deaf = True
            if accepted is not Accepted.ONE:
                return

    def _begin_peer(self, sock: socket.socket, address: Any) -> None:
        if len(self._peers) >= self._most and not self._evict(self._strangers):
            sock.close()
            return
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        peer = _Peer(sock, _origin(address[0]), time.monotonic() + REQUEST_DEADLINE_S)
        self._peers.add(peer)
        self._strangers[peer] = None
        self._strangers_of.setdefault(peer.address, {})[peer] = None
        self._watch(peer)
        # A task sends its request at once, so it is authenticated before later connections can displace it.
        self._serve(peer, selectors.EVENT_READ)
        # Close the oldest: a client with a token had time to send it. A task that was too slow retries.
        if len(self._strangers_of.get(peer.address, ())) > MAX_STRANGERS_OF_AN_ADDRESS:
            self._evict(self._strangers_of[peer.address])
        elif len(self._strangers) > MAX_STRANGERS:
            self._evict(self._strangers)

    def _evict(self, peers: Iterable[_Peer]) -> bool:
        """Close the first of some connections; return False if there is none."""
        if (oldest := next(iter(peers), None)) is None:
            return False
        self._close(oldest)
        return True

    def _mark_trusted(self, peer: _Peer) -> None:
        """Remove a connection from the strangers: it had a valid token, or is closed."""
        if peer in self._strangers:
            del self._strangers[peer]
            same = self._strangers_of[peer.address]
            del same[peer]
            if not same:
                del self._strangers_of[peer.address]

    def _close(self, peer: _Peer) -> None:
        if not peer.closed:
            peer.closed = True
            self._peers.discard(peer)
            self._mark_trusted(peer)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.sock)
            peer.sock.close()
            peer.out.clear()

    def _watch(self, peer: _Peer) -> None:
        """Register the events that a connection needs now."""
        if peer.closed:
            return
        wanted = (0 if peer.paused else selectors.EVENT_READ) | (selectors.EVENT_WRITE if peer.out else 0)
        if wanted == peer.events:
            return
        if not wanted:
            self._selector.unregister(peer.sock)
        elif not peer.events:
            self._selector.register(peer.sock, wanted, peer)
        else:
            self._selector.modify(peer.sock, wanted, peer)
        peer.events = wanted

    def _serve(self, peer: _Peer, events: int) -> None:
        if peer.closed:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and not peer.closed:
                self._receive(peer)
        except BlockingIOError:
            return
        except h11.RemoteProtocolError as error:
            self._refuse(peer, error.error_status_hint, "not a valid request")
        except OSError:
            self._close(peer)
        except Exception:
            _log_internal_error()
            self._close(peer)

    # ---- requests ----

    def _receive(self, peer: _Peer) -> None:
        data = peer.sock.recv(_RECEIVE_BYTES if peer.authenticated else _RECEIVE_OF_A_STRANGER_BYTES)
        if peer.draining:
            if not data:
                self._close(peer)
            return
        if peer.asked is not None or peer.out:
            if not data:
                self._close(peer)  # the client has disconnected
                return
            # The next request waits in the kernel's buffer until this one is answered.
            peer.paused = True
        if peer.http is None:
            peer.http = h11.Connection(h11.SERVER, max_incomplete_event_size=MAX_HEAD_BYTES)
        elif not peer.begun:
            peer.deadline = time.monotonic() + REQUEST_DEADLINE_S
        peer.begun = True
        peer.http.receive_data(data)
        self._next_request(peer)
        self._watch(peer)

    def _next_request(self, peer: _Peer) -> None:
        assert peer.http is not None
        while peer.asked is None and not peer.out and not peer.draining and not peer.closed:
            event = peer.http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                self._begin(peer, event)
            elif isinstance(event, h11.Data):
                peer.body += event.data
                if len(peer.body) > peer.admission.max_body_bytes:
                    self._refuse(peer, 413, f"a body of more than {peer.admission.max_body_bytes} bytes")
            elif isinstance(event, h11.EndOfMessage) and peer.head is not None:
                method, path, token = _read_head(peer.head)
                upgrades = any(name == b"upgrade" for name, _ in peer.head.headers)
                body = bytes(peer.body)
                peer.asked = Request(method=method, path=path, token=token, body=body, upgrades=upgrades, peer=peer)
                peer.head, peer.body = None, bytearray()
                self._dispatch(peer.asked)
            elif isinstance(event, h11.ConnectionClosed):
                self._close(peer)

    def _begin(self, peer: _Peer, head: h11.Request) -> None:
        """Decide on a request by its head."""
        admission = self._admit(*_read_head(head))
        if isinstance(admission, Refusal):
            self._refuse(peer, admission.status, admission.reason)
            return
        if admission.authenticated:
            peer.authenticated = True
            self._mark_trusted(peer)
        peer.head, peer.body, peer.admission = head, bytearray(), admission
        length = next((value for name, value in head.headers if name == b"content-length"), b"0")
        if int(length) > admission.max_body_bytes:
            self._refuse(peer, 413, f"a body of more than {admission.max_body_bytes} bytes")

    def _dispatch(self, request: Request) -> None:
        try:
            self._handler(request)
        except Exception:
            # An internal error costs this request its answer, never the application its control server.
            _log_internal_error()
            self.reply(request, 500, {"error": "internal error; see its log"})

    # ---- answers ----

    def _refuse(self, peer: _Peer, status: int, why: str) -> None:
        peer.draining, peer.paused, peer.head, peer.body = True, False, None, bytearray()
        peer.deadline = time.monotonic() + _LINGER_S
        with contextlib.suppress(h11.LocalProtocolError):
            data = json.dumps({"error": why}).encode()
            if peer.http is not None:
                peer.out.extend(map(memoryview, _answer(peer.http, status, data, "application/json", close=True)))
        self._flush(peer)

    def _send_reply(self, request: Request, status: int, data: bytes, content_type: str) -> None:
        peer = request.peer
        if peer.closed or peer.asked is not request or peer.http is None:
            return  # the client has disconnected; it will retry
        peer.asked = None
        peer.deadline = time.monotonic() + (SEND_DEADLINE_S if peer.authenticated else REQUEST_DEADLINE_S)
        try:
            peer.out.extend(map(memoryview, _answer(peer.http, status, data, content_type)))
            self._flush(peer)
            if peer.out and not peer.authenticated:
                self._limit_unread_of_strangers(peer)
        except h11.RemoteProtocolError as error:
            self._refuse(peer, error.error_status_hint, "not a valid request")
        except (h11.ProtocolError, OSError):
            self._close(peer)
        except Exception:
            _log_internal_error()
            self._close(peer)

    def _connect_pair(self, first: Request, second: Request, relay: RelayPair) -> None:
        there = [one for one in (first, second) if not one.peer.closed and one.peer.asked is one]
        for one in there:
            assert one.peer.http is not None
            if one.peer.http.trailing_data[0]:  # it did not wait for the switch
                self._close(one.peer)
        there = [one for one in there if not one.peer.closed]
        if len(there) < 2:
            for one in there:
                self._send_reply(one, 410, b'{"error":"the other end of the stream is gone"}', "application/json")
            return
        ours, theirs = (self._switch(one.peer) for one in (first, second))
        if ours is not None and theirs is not None:
            relay(ours, theirs)
            return
        for sock in filter(None, (ours, theirs)):
            sock.close()

    def _switch(self, peer: _Peer) -> socket.socket | None:
        """Confirm to a client that its connection is a stream now; return the connection, None if it is closed."""
        from dlapp.net.streams import UPGRADE  # most applications have none

        assert peer.http is not None
        headers = [("Upgrade", UPGRADE), ("Connection", "Upgrade")]
        try:
            data = peer.http.send(h11.InformationalResponse(status_code=101, headers=headers)) or b""
            if peer.sock.send(data) == len(data):
                sock = peer.sock.dup()
                sock.setblocking(False)
                return sock
        except (h11.ProtocolError, OSError):
            pass
        finally:
            self._close(peer)
        return None

    def _limit_unread_of_strangers(self, last: _Peer) -> None:
        unread = {peer: size for peer in self._strangers if (size := sum(map(len, peer.out)))}
        total = sum(unread.values())
        for peer, size in unread.items():
            if total <= MAX_UNREAD_OF_STRANGERS_BYTES:
                return
            if peer is not last:
                self._close(peer)
                total -= size

    def _flush(self, peer: _Peer) -> None:
        """Send what the client accepts now; after the last byte wait for the next request, or close."""
        assert peer.http is not None
        try:
            while peer.out:
                sent = peer.sock.sendmsg(peer.out)  # head and body together
                while peer.out and sent >= len(peer.out[0]):
                    sent -= len(peer.out.popleft())
                if sent:
                    peer.out[0] = peer.out[0][sent:]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        if not peer.out and not peer.closed:
            if peer.draining:
                with contextlib.suppress(OSError):
                    peer.sock.shutdown(socket.SHUT_WR)
            elif peer.http.our_state is h11.MUST_CLOSE or peer.http.their_state is h11.MUST_CLOSE:
                self._close(peer)
            elif peer.asked is None and peer.http.our_state is h11.DONE:
                peer.paused = peer.begun = False
                peer.deadline = time.monotonic() + (IDLE_DEADLINE_S if peer.authenticated else REQUEST_DEADLINE_S)
                peer.http.start_next_cycle()
                self._next_request(peer)
        self._watch(peer)


def _log_internal_error() -> None:
    import traceback

    with contextlib.suppress(OSError):  # the log's disk is full
        traceback.print_exc()


def max_connections(limit: int | None = None) -> int:
    """Return the number of connections that a limit of open files allows a server.

    Args:
        limit: the limit; None: that of this process.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0] if limit is None else limit
    if files == resource.RLIM_INFINITY:
        return MAX_CONNECTIONS
    return min(MAX_CONNECTIONS, files - min(OWN_DESCRIPTORS, files // 4))


def _read_head(head: h11.Request) -> tuple[str, str, str]:
    """Return method, path and token of a request."""
    token = next((value for name, value in head.headers if name == b"authorization"), b"").decode("latin-1")
    return head.method.decode("ascii"), head.target.decode("latin-1"), token.removeprefix("Bearer ").strip()


def _origin(host: str) -> str:
    """Return the key for the limits: the machine itself, an IPv4 address, or an IPv6 network of 64 bits."""
    host = host.rpartition("%")[0] or host
    if ":" in host and "." not in host:
        return "local" if host == "::1" else socket.inet_pton(socket.AF_INET6, host)[:8].hex()
    host = host.rpartition(":")[2]
    return "local" if host.startswith("127.") else host


def _answer(
    http: h11.Connection, status: int, data: bytes, content_type: str, *, close: bool = False
) -> tuple[bytes, ...]:
    headers = [
        ("Content-Type", content_type),
        ("Content-Length", str(len(data))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if close:
        headers.append(("Connection", "close"))
    head = http.send(h11.Response(status_code=status, headers=headers)) or b""
    http.send_with_data_passthrough(h11.Data(data))
    http.send(h11.EndOfMessage())
    # Without a copy: one answer may be sent to many clients.
    return (head, data) if data else (head,)
