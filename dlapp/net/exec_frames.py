"""Frames of an exec session: messages between a client and the keeper of its command over one byte stream.

    frame              kind (1 byte), length (4 bytes, big-endian), body

    client -> keeper   I  bytes of standard input           E  standard input is over
                       W  rows and columns (2 bytes each)   S  number of a signal (1 byte)
    keeper -> client   O  bytes of standard output          X  bytes of standard error
                       A  so many bytes of input are taken (4 bytes)
                       N  in a sweep, first: the trial and the number of its try (4 bytes each)
                       Q  the end: JSON, {"code": 0, "message": ""}

A client sends at most `WINDOW_BYTES` of input beyond what is acknowledged. So the keeper can always read, and a signal,
a new terminal size or the end of the client never waits behind input that the command does not read.
"""

from __future__ import annotations

import contextlib
import json
import select
import socket
import time
from typing import Any, NamedTuple

from dlapp.errors import UsageError
from dlapp.value import Value

INPUT, INPUT_END, SIZE, SIGNAL = b"I", b"E", b"W", b"S"
OUTPUT, ERROR, CONSUMED, END = b"O", b"X", b"A", b"Q"
TRIAL = b"N"
MAX_BODY_BYTES = 1 << 16
WINDOW_BYTES = 1 << 18
"""Window of the input; also the amount of output that each side buffers before it stops reading."""
MAX_COMMAND_BYTES = 24 << 10
"""Maximum size of a command: a request with it fits into the head of a stream."""
SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM")
"""Signals that a client may forward."""
_HEAD_BYTES = 5
_KINDS = frozenset((INPUT, INPUT_END, SIZE, SIGNAL, OUTPUT, ERROR, CONSUMED, END, TRIAL))


class StreamClosed(Exception):
    """A peer that has disconnected, or has violated the protocol."""


class ExecRequest(Value, kw_only=True):
    """Request of a client.

    Args:
        command: words of a program, which is found on the container's PATH, or a path.
        interactive: whether the client's standard input is passed on; otherwise the command's is empty.
        terminal: the command has a terminal, to which its standard output and error go together.
        rows, columns: of that terminal; 0: if unknown.
        term: its kind, the variable TERM.

    Raises:
        UsageError: there is no command, it is too long, or a word is invalid.
    """

    command: tuple[str, ...]
    interactive: bool = False
    terminal: bool = False
    rows: int = 0
    columns: int = 0
    term: str = ""

    def __post_init__(self) -> None:
        if not self.command or not self.command[0]:
            raise UsageError("there is no command to run")
        if any("\0" in word for word in self.command):
            raise UsageError("a word of the command has a NUL character")
        size = sum(len(word.encode(errors="surrogateescape")) + 1 for word in self.command)
        if size > MAX_COMMAND_BYTES:
            raise UsageError(f"the command has {size} bytes, and at most {MAX_COMMAND_BYTES} are passed on")
        if not (0 <= self.rows < 1 << 16 and 0 <= self.columns < 1 << 16):
            raise UsageError("the size of the terminal is out of range")
        if len(self.term) > 64 or not all(char.isascii() and (char.isalnum() or char in "-_+.") for char in self.term):
            raise UsageError("the kind of the terminal (TERM) is not a name")


class ExecEnd(NamedTuple):
    """End of a command: its exit code, 128 plus the number for a signal, and an optional line for the user."""

    code: int
    message: str = ""


class FrameStream:
    """One end of the stream. It never blocks: data that the peer does not accept now is buffered.

    Args:
        sock: connected; `close` closes it.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._received, self._unsent = bytearray(), bytearray()

    def fileno(self) -> int:
        """Return the socket's descriptor, for polling."""
        return self._sock.fileno()

    @property
    def unsent_bytes(self) -> int:
        """Return the number of buffered bytes."""
        return len(self._unsent)

    def receive(self) -> list[tuple[bytes, bytes]]:
        """Return the frames that have arrived, kind and body. Raises StreamClosed."""
        try:
            data = self._sock.recv(MAX_BODY_BYTES)
        except BlockingIOError:
            return []
        except OSError as error:
            raise StreamClosed(str(error)) from error
        if not data:
            raise StreamClosed("the stream has ended")
        self._received += data
        frames: list[tuple[bytes, bytes]] = []
        at = 0
        while len(self._received) - at >= _HEAD_BYTES:
            kind, size = bytes(self._received[at : at + 1]), int.from_bytes(self._received[at + 1 : at + _HEAD_BYTES])
            if kind not in _KINDS or size > MAX_BODY_BYTES:
                raise StreamClosed("this is not a frame")
            if len(self._received) - at < _HEAD_BYTES + size:
                break
            frames.append((kind, bytes(self._received[at + _HEAD_BYTES : at + _HEAD_BYTES + size])))
            at += _HEAD_BYTES + size
        del self._received[:at]
        return frames

    def send(self, kind: bytes, body: bytes = b"") -> None:
        """Send a frame, or buffer it; a large body is split into several frames. Raises StreamClosed."""
        for at in range(0, len(body) or 1, MAX_BODY_BYTES):
            piece = body[at : at + MAX_BODY_BYTES]
            self._unsent += kind + len(piece).to_bytes(_HEAD_BYTES - 1) + piece
        self.flush()

    def flush(self) -> None:
        """Send buffered data that the peer accepts now. Raises StreamClosed."""
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError as error:
            raise StreamClosed(str(error)) from error

    def finish(self, timeout_s: float) -> None:
        """Send buffered data, and wait until the peer has closed the stream.

        Closing a socket with unread input resets it, and the peer loses data that it has not received yet.

        Raises:
            StreamClosed: the peer disconnected before it had received everything.
        """
        deadline, is_open = time.monotonic() + timeout_s, True
        while (left_s := deadline - time.monotonic()) > 0:
            if not self._unsent and is_open:
                with contextlib.suppress(OSError):
                    self._sock.shutdown(socket.SHUT_WR)
                is_open = False
            poll = select.poll()
            poll.register(self._sock, select.POLLIN | (select.POLLOUT if self._unsent else 0))
            poll.poll(left_s * 1000)
            self.flush()
            try:
                if not self._sock.recv(MAX_BODY_BYTES):
                    return
            except BlockingIOError:
                continue
            except OSError:
                return

    def close(self) -> None:
        """Close the stream. Idempotent."""
        self._sock.close()


def size_body(rows: int, columns: int) -> bytes:
    """Return the body of a frame with the size of a terminal."""
    return rows.to_bytes(2) + columns.to_bytes(2)


def read_size(body: bytes) -> tuple[int, int]:
    """Return rows and columns. Raises StreamClosed."""
    if len(body) != 4:
        raise StreamClosed("this is not the size of a terminal")
    return int.from_bytes(body[:2]), int.from_bytes(body[2:])


def trial_body(number: int, try_number: int) -> bytes:
    """Return the body of a frame with a trial and its try."""
    return number.to_bytes(4) + try_number.to_bytes(4)


def read_trial(body: bytes) -> tuple[int, int]:
    """Return the number of a trial, and of its try. Raises StreamClosed."""
    if len(body) != 8:
        raise StreamClosed("this is not a trial")
    return int.from_bytes(body[:4]), int.from_bytes(body[4:])


def end_body(end: ExecEnd) -> bytes:
    """Return the body of the last frame."""
    return json.dumps({"code": end.code, "message": end.message[:2000]}).encode()


def read_end(body: bytes) -> ExecEnd:
    """Return the end in the last frame. Raises StreamClosed."""
    try:
        said: Any = json.loads(body)
        code, message = said["code"], said["message"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StreamClosed("this is not the end of a command") from error
    if not (isinstance(code, int) and 0 <= code <= 255 and isinstance(message, str)):
        raise StreamClosed("this is not the end of a command")
    return ExecEnd(code, message)
