"""Streams through an ApplicationMaster: its two clients, the user's command and the task.

    command  POST /v1/streams                       StreamRequest, tools token     ─┐ both answered with
    task     POST /v1/tasks/<container id>/stream   StreamAnswer, its own token    ─┘ 101 at the same time

Each request has the header ``Upgrade: dlapp-stream``. After the 101 the connection is one end of a byte stream to the
other client. A refused stream is answered with an error in JSON, like any request.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Any

from dlapp.errors import Denied, DlappError, NotFound, Unreachable
from dlapp.net.http_framing import FramingError, parse_head
from dlapp.net.relay import tune
from dlapp.system.network.host_connection import check_peer, connect_first, look_up

UPGRADE = "dlapp-stream"
NOT_RUNNING, NOT_OPEN, BUSY = "not_running", "not_open", "busy"
"""Reasons of a `StreamRefused` that a program may act on."""
_MAX_HEAD_BYTES, _MAX_BODY_BYTES = 16 << 10, 64 << 10
_SWITCHED = b"HTTP/1.1 101 "


class StreamRefused(DlappError):
    """A stream cannot be opened, now or at all.

    Args:
        message: for the user.
        reason: `NOT_RUNNING`: the container does not run a program now; `NOT_OPEN`: nothing listens on the port;
            `BUSY`: there are too many streams; empty: another one.
    """

    def __init__(self, message: str, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


def open_stream(
    url: str, token: str, path: str, body: Any, *, timeout_s: float, owner: int | None = None
) -> socket.socket:
    """Request a stream from an ApplicationMaster, and wait until the other end is connected.

    Args:
        url: the control address, ``http://host:port``.
        token: the token of the client.
        path: the path of the request.
        body: a JSON value.
        timeout_s: for the whole operation [s].
        owner: user who must own the server process on this machine to receive the token; None to not check.

    Returns:
        The connection, blocking; the caller closes it.

    Raises:
        Unreachable: there is no answer in time.
        NotFound, Denied, StreamRefused: the ApplicationMaster refuses, with its message.
    """
    data = json.dumps(body, separators=(",", ":")).encode()
    host, _, port = url.removeprefix("http://").rpartition(":")
    if not url.startswith("http://") or not port.isdigit():
        raise Unreachable(f"{url!r} is not a control address like http://node7:40123")
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}:{port}\r\nAuthorization: Bearer {token}\r\n"
        f"Connection: Upgrade\r\nUpgrade: {UPGRADE}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    )
    deadline = time.monotonic() + timeout_s
    try:
        sock = connect_first(look_up(host.strip("[]"), int(port)), lambda: max(0.001, deadline - time.monotonic()))
    except OSError as error:
        raise Unreachable(f"ApplicationMaster at {url}: {error.strerror or error}") from error
    try:
        tune(sock)
        if owner is not None:
            check_peer(sock, owner, deadline)
        sock.sendall(head.encode("ascii") + data)
        answer = _receive_head(sock, deadline)
        if answer.startswith(_SWITCHED):
            sock.settimeout(None)
            return sock
        status, said = _receive_error(sock, answer, deadline)
    except (OSError, FramingError) as error:
        sock.close()
        why = f"no answer in {timeout_s:g} s" if isinstance(error, TimeoutError) else str(error)
        raise Unreachable(f"ApplicationMaster at {url}: {why}") from error
    sock.close()
    message = str(said.get("error", "")) or f"ApplicationMaster at {url}: HTTP {status}"
    if status in (401, 403):
        raise Denied(message)
    if status == 404:
        raise NotFound(message)
    raise StreamRefused(message, str(said.get("reason", "")))


def _receive_head(sock: socket.socket, deadline: float) -> bytes:
    """Return the head of the response, with its final empty line, and leave the following bytes in the kernel's buffer:
    they may belong to the stream. Raises OSError, FramingError."""
    seen = 0
    while True:
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        data = sock.recv(_MAX_HEAD_BYTES, socket.MSG_PEEK)
        if (end := data.find(b"\r\n\r\n")) >= 0:
            return sock.recv(end + 4, socket.MSG_WAITALL)
        if len(data) >= _MAX_HEAD_BYTES:
            raise FramingError("the head is too long")
        if not data:
            raise FramingError("the connection was closed without an answer")
        if time.monotonic() >= deadline:
            raise TimeoutError
        if len(data) == seen:
            poll = select.poll()
            poll.register(sock, select.POLLRDHUP)  # a part of the head keeps `recv` from reporting the end
            if poll.poll(5) and len(sock.recv(_MAX_HEAD_BYTES, socket.MSG_PEEK)) == seen:
                raise FramingError("the connection was closed in the middle of the answer")
        seen = len(data)


def _receive_error(sock: socket.socket, answer: bytes, deadline: float) -> tuple[int, dict[str, Any]]:
    """Return status and JSON object of a response that is not a switch of protocols. Raises OSError, FramingError."""
    head = parse_head(answer.removesuffix(b"\r\n\r\n"))
    body = b""
    while head.length is not None and len(body) < min(head.length, _MAX_BODY_BYTES):
        sock.settimeout(max(0.001, deadline - time.monotonic()))
        if not (data := sock.recv(_MAX_BODY_BYTES)):
            break
        body += data
    with contextlib.suppress(ValueError, RecursionError):
        said = json.loads(body)
        if isinstance(said, dict):
            return head.status, said
    return head.status, {}
