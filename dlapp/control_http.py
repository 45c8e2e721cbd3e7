"""Control messages over HTTP/1.1: a connection for those who ask, a server for the ApplicationMaster.

h11 turns bytes into requests and answers; this file owns the sockets. Everything has a limit: a message's size, a
request's time, the number of connections. The server answers from one thread, and an answer may be held back for as
long as its asker waits, without a thread for each: ten thousand tasks may wait for news at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import h11

from dlapp.errors import Denied, DlappError, NotFound, Unreachable

MAX_BODY_BYTES = 4 << 20
"""A report is below 4 KiB, a view of 10,000 containers some 3 MiB; the limit is for who sends something else."""
MAX_VIEW_BYTES = 64 << 20
REQUEST_DEADLINE_S = 20.0
"""From a connection's first byte to the end of its request."""
IDLE_DEADLINE_S = 300.0
MAX_CONNECTIONS = 20_000


class ControlConnection:
    """One asker's connection to an ApplicationMaster; opened at the first call, kept for the next.

    Every call may be repeated (that is part of the messages: `dlapp.control`), so one that meets a connection which
    the server has closed meanwhile is sent again, once, over a new one.

    Args:
        url: ``http://host:port``.
        token: what goes into the Authorization header; None for calls that need none.
    """

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = url
        host, _, port = url.removeprefix("http://").rstrip("/").rpartition(":")
        if not url.startswith("http://") or not host or not port.isdigit():
            raise Unreachable(f"{url!r} is not a control address like http://node7:40123")
        self._host, self._port, self._token = host.strip("[]"), int(port), token
        self._socket: socket.socket | None = None
        self._http = h11.Connection(h11.CLIENT)
        self._lock = threading.Lock()
        self._ended = False

    def call(self, method: str, path: str, body: Any = None, *, timeout_s: float = 10.0) -> Any:
        """Send one request, return what its JSON answer says.

        Raises:
            Unreachable: nobody answered, or not in time, or not in our language.
            Denied: 401 or 403. NotFound: 404. DlappError: any other refusal, with the server's words.
        """
        with self._lock:
            deadline = time.monotonic() + timeout_s
            reused = self._socket is not None
            try:
                status, answer = self._exchange(method, path, body, deadline)
            except (OSError, h11.RemoteProtocolError, _Closed) as error:
                self._drop()
                if not reused or isinstance(error, TimeoutError):
                    raise self._unreachable(error, timeout_s) from error
                try:
                    status, answer = self._exchange(method, path, body, deadline)
                except (OSError, h11.RemoteProtocolError, _Closed) as again:
                    self._drop()
                    raise self._unreachable(again, timeout_s) from again
        return self._result(status, answer)

    def close(self) -> None:
        """End the connection; a call in progress elsewhere fails with Unreachable, and so does every later one."""
        self._ended = True
        if (sock := self._socket) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._drop()

    def __enter__(self) -> ControlConnection:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _unreachable(self, error: Exception, timeout_s: float) -> Unreachable:
        why = f"no answer in {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error) or type(error).__name__
        return Unreachable(f"ApplicationMaster at {self.url}: {why}")

    def _drop(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket, self._http = None, h11.Connection(h11.CLIENT)

    def _exchange(self, method: str, path: str, body: Any, deadline: float) -> tuple[int, bytes]:
        if self._ended:
            raise _Closed("the connection was ended")
        sock = self._socket
        if sock is None:
            sock = self._socket = socket.create_connection((self._host, self._port), timeout=_left(deadline))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self._ended:  # `close` may have looked for a socket just before there was one
                raise _Closed("the connection was ended")
        payload = b"" if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = [("Host", f"{self._host}:{self._port}"), ("Content-Length", str(len(payload)))]
        if self._token:
            headers.append(("Authorization", f"Bearer {self._token}"))
        out = self._http.send(h11.Request(method=method, target=path, headers=headers)) or b""
        out += self._http.send(h11.Data(payload)) or b""
        out += self._http.send(h11.EndOfMessage()) or b""
        sock.settimeout(_left(deadline))
        sock.sendall(out)
        status, parts, size = 0, [], 0
        while True:
            event = self._http.next_event()
            if event is h11.NEED_DATA:
                sock.settimeout(_left(deadline))
                self._http.receive_data(data := sock.recv(65536))
                if not data and self._http.their_state is not h11.SEND_BODY:
                    raise _Closed("the connection was closed")
            elif isinstance(event, h11.Response):
                status = event.status_code
            elif isinstance(event, h11.Data):
                size += len(event.data)
                if size > MAX_VIEW_BYTES:
                    raise h11.RemoteProtocolError(f"an answer of more than {MAX_VIEW_BYTES >> 20} MiB")
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage):
                break
            elif isinstance(event, h11.ConnectionClosed):
                raise _Closed("the connection was closed")
        if self._http.our_state is h11.MUST_CLOSE or self._http.their_state in (h11.MUST_CLOSE, h11.CLOSED):
            self._drop()
        else:
            self._http.start_next_cycle()
        return status, b"".join(parts)

    def _result(self, status: int, answer: bytes) -> Any:
        try:
            data = json.loads(answer) if answer else None
        except ValueError as error:
            raise Unreachable(f"ApplicationMaster at {self.url}: the answer is not JSON") from error
        if status == 200:
            return data
        message = data.get("error", "") if isinstance(data, dict) else ""
        kind = {401: Denied, 403: Denied, 404: NotFound}.get(status, DlappError)
        raise kind(message or f"ApplicationMaster at {self.url}: HTTP {status}")


class _Closed(Exception):
    """The other side closed the connection before its answer was complete."""


def _left(deadline: float) -> float:
    if (left := deadline - time.monotonic()) <= 0:
        raise TimeoutError
    return left


@dataclass(slots=True, eq=False)
class Request:
    """One request that came in; answer it with `ControlServer.reply`, once, from any thread."""

    method: str
    path: str
    token: str
    body: bytes
    peer: _Peer = field(repr=False)

    def json(self) -> Any:
        """The body as JSON. Raises ValueError if it is none."""
        return json.loads(self.body) if self.body else None


@dataclass(slots=True, eq=False)
class _Peer:
    """A connection, and how far its current request is."""

    sock: socket.socket
    http: h11.Connection
    deadline: float
    out: bytearray = field(default_factory=bytearray)
    head: h11.Request | None = None
    body: bytearray = field(default_factory=bytearray)
    asked: Request | None = None
    closed: bool = False


class ControlServer:
    """Listens on one port, hands each request to ``handler`` and sends what `reply` is given.

    ``handler`` runs on the server's thread and must not block: it answers at once by calling `reply`, or keeps the
    request and answers later. A context manager: leaving it closes all connections and joins the thread.
    """

    def __init__(self, handler: Callable[[Request], None], host: str = "127.0.0.1", port: int = 0) -> None:
        self._handler = handler
        self._listener = socket.create_server((host, port), backlog=1024)
        self._listener.setblocking(False)
        self.host, self.port = host, int(self._listener.getsockname()[1])
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._replies: deque[tuple[Request, int, bytes, str]] = deque()
        self._peers: set[_Peer] = set()
        self._stopping = self._deaf = False
        self._thread = threading.Thread(target=self._run, name="am-control", daemon=True)

    def __enter__(self) -> ControlServer:
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_in, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        """Answer a request. ``body`` is turned to JSON unless it is text of another ``content_type``."""
        as_json = content_type == "application/json"
        data = json.dumps(body, separators=(",", ":")).encode() if as_json else str(body).encode()
        self._replies.append((request, status, data, content_type))
        if threading.current_thread() is not self._thread:
            self._wake()

    def _wake(self) -> None:
        # A full pipe wakes as well as a byte more would.
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
            if (now := time.monotonic()) >= sweep_at:
                sweep_at = now + 1.0
                if self._deaf:
                    self._selector.register(self._listener, selectors.EVENT_READ)
                    self._deaf = False
                for peer in [p for p in self._peers if p.asked is None and p.deadline < now]:
                    self._close(peer)
        # Answers given just before the end still go out: a task's last report waits for one.
        while self._replies:
            self._send_reply(*self._replies.popleft())

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    # Who waits stays in the backlog; the listener would wake us without end.
                    self._selector.unregister(self._listener)
                    self._deaf = True
                return
            if len(self._peers) >= MAX_CONNECTIONS:
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            peer = _Peer(sock, h11.Connection(h11.SERVER), time.monotonic() + REQUEST_DEADLINE_S)
            self._peers.add(peer)
            self._selector.register(sock, selectors.EVENT_READ, peer)

    def _close(self, peer: _Peer) -> None:
        if not peer.closed:
            peer.closed = True
            self._peers.discard(peer)
            with contextlib.suppress(KeyError, ValueError):
                self._selector.unregister(peer.sock)
            peer.sock.close()

    def _serve(self, peer: _Peer, events: int) -> None:
        if peer.closed:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and not peer.closed:
                data = peer.sock.recv(65536)
                peer.http.receive_data(data)
                if not data and peer.asked is not None:
                    self._close(peer)  # the asker is gone; nobody is left to answer
                    return
                self._next_request(peer)
        except BlockingIOError:
            return
        except h11.RemoteProtocolError as error:
            self._refuse(peer, error.error_status_hint, "not a request that can be understood")
        except OSError:
            self._close(peer)

    def _next_request(self, peer: _Peer) -> None:
        while peer.asked is None and not peer.closed:
            event = peer.http.next_event()
            if event is h11.NEED_DATA or event is h11.PAUSED:
                return
            if isinstance(event, h11.Request):
                peer.head, peer.body = event, bytearray()
                peer.deadline = time.monotonic() + REQUEST_DEADLINE_S
            elif isinstance(event, h11.Data):
                peer.body += event.data
                if len(peer.body) > MAX_BODY_BYTES:
                    self._refuse(peer, 413, f"a body of more than {MAX_BODY_BYTES >> 20} MiB")
            elif isinstance(event, h11.EndOfMessage) and peer.head is not None:
                token = next((v for k, v in peer.head.headers if k == b"authorization"), b"").decode("latin-1")
                peer.asked = Request(
                    method=peer.head.method.decode("ascii"),
                    path=peer.head.target.decode("latin-1"),
                    token=token.removeprefix("Bearer ").strip(),
                    body=bytes(peer.body),
                    peer=peer,
                )
                self._hand_over(peer.asked)
            elif isinstance(event, h11.ConnectionClosed):
                self._close(peer)

    def _hand_over(self, request: Request) -> None:
        try:
            self._handler(request)
        except Exception:
            # A fault of ours costs this one request an answer, never the application its control address.
            import traceback

            with contextlib.suppress(OSError):  # the log's disk is full
                traceback.print_exc()
            self.reply(request, 500, {"error": "a fault in dlapp itself; its log says more"})

    def _refuse(self, peer: _Peer, status: int, why: str) -> None:
        with contextlib.suppress(h11.LocalProtocolError):
            peer.out += _answer(peer.http, status, json.dumps({"error": why}).encode(), "application/json", close=True)
        self._flush(peer, then_close=True)

    def _send_reply(self, request: Request, status: int, data: bytes, content_type: str) -> None:
        peer = request.peer
        if peer.closed or peer.asked is not request:
            return  # the asker went away; it will ask again
        peer.asked = None
        peer.deadline = time.monotonic() + IDLE_DEADLINE_S
        try:
            peer.out += _answer(peer.http, status, data, content_type)
            done = peer.http.our_state is h11.MUST_CLOSE or peer.http.their_state is h11.MUST_CLOSE
            self._flush(peer, then_close=done)
            if not peer.closed and not done:
                peer.http.start_next_cycle()
                self._next_request(peer)
        except (h11.ProtocolError, OSError):
            self._close(peer)

    def _flush(self, peer: _Peer, *, then_close: bool = False) -> None:
        try:
            while peer.out:
                del peer.out[: peer.sock.send(peer.out)]
        except BlockingIOError:
            pass
        except OSError:
            self._close(peer)
            return
        if not peer.out and (then_close or peer.http.our_state in (h11.MUST_CLOSE, h11.ERROR)):
            self._close(peer)
        elif not peer.closed:
            wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if peer.out else 0)
            self._selector.modify(peer.sock, wanted, peer)


def _answer(http: h11.Connection, status: int, data: bytes, content_type: str, *, close: bool = False) -> bytes:
    headers = [
        ("Content-Type", content_type),
        ("Content-Length", str(len(data))),
        ("Cache-Control", "no-store"),
        ("X-Content-Type-Options", "nosniff"),
    ]
    if close:
        headers.append(("Connection", "close"))
    out = http.send(h11.Response(status_code=status, headers=headers)) or b""
    return out + (http.send(h11.Data(data)) or b"") + (http.send(h11.EndOfMessage()) or b"")


def control_host() -> str:
    """The name under which tasks on other hosts reach this one."""
    return os.uname().nodename
