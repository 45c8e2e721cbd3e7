"""Relay of a stream: data is copied between two connected sockets in both directions.

`copy_both` serves both directions from one thread. Data that one side does not accept is buffered, and reading stops
meanwhile, so a slow reader slows its sender, and a stream takes at most `CHUNK_BYTES` for each direction beside the
kernel's buffers. The end of one direction is passed on and leaves the other one open. If one side breaks, the other one
is reset: a broken stream must not look like a complete one.

`main` is the process that does this for an ApplicationMaster, so that neither its server nor its loop waits for
copying. It receives each pair of sockets over its channel (`dlapp.system.processes.helper`), and reports when a pair
has ended. If the channel is closed, for example by the ApplicationMaster's death, the process ends with all its
streams.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import struct
import threading
from collections.abc import Sequence

CHUNK_BYTES = 256 << 10
IDLE_S = 86_400.0
"""Time without a byte after which a stream is ended. If a machine is gone, keepalive detects it within minutes."""
_KEEP_IDLE_S, _KEEP_EVERY_S, _KEEP_TRIES = 60, 15, 4
_RESET = struct.pack("ii", 1, 0)
"""struct linger: close sends a reset. Source: socket(7)."""
_READS_IN_TURN = 16
"""Number of consecutive reads in one direction, before the other direction has its turn; each saves a poll."""
_UNWATCHED = -1
PAIR, OVER = b"p", b"o"
"""Messages on the channel of the process: a pair of sockets follows; a stream has ended."""


def tune(sock: socket.socket) -> None:
    """Set a connection to send small pieces at once, and to detect a dead peer."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _KEEP_IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _KEEP_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _KEEP_TRIES)


class _Direction:
    """One direction of a stream, from ``source`` to ``sink``.

    Attributes:
        pending: data that is read and not sent yet.
        is_over: whether the source has ended, and the sink was shut down.
    """

    def __init__(self, source: socket.socket, sink: socket.socket) -> None:
        self.source, self.sink = source, sink
        self._buffer = memoryview(bytearray(CHUNK_BYTES))  # the kernel allocates only the memory that is used
        self.pending = self._buffer[:0]
        self.is_over = False

    @property
    def reads(self) -> bool:
        """Return True if more data must be read now."""
        return not self.pending and not self.is_over

    def pump(self) -> None:
        """Send and read alternately, while the sink accepts data and the source has some.

        Raises:
            OSError: a side is broken.
        """
        with contextlib.suppress(BlockingIOError):
            for _ in range(_READS_IN_TURN):
                if self.pending:
                    self.pending = self.pending[self.sink.send(self.pending) :]
                    if self.pending:
                        return
                if not (count := self.source.recv_into(self._buffer)):
                    self.is_over = True
                    self.sink.shutdown(socket.SHUT_WR)
                    return
                self.pending = self._buffer[:count]


def reset(connection: socket.socket) -> None:
    """Reset a connection, so that its peer does not mistake it for a complete one."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    connection.close()


def copy_both(left: socket.socket, right: socket.socket, *, idle_s: float = IDLE_S) -> None:
    """Copy between two connected sockets until both directions have ended, or one side breaks or idles; close both."""
    ended = False
    try:
        for one in (left, right):
            one.setblocking(False)
            tune(one)
        ended = _copy(left, right, idle_s)
    except OSError:
        pass  # a side is gone; the other one is reset below
    finally:
        for one in (left, right):
            if ended:
                one.close()
            else:
                reset(one)


def _copy(left: socket.socket, right: socket.socket, idle_s: float) -> bool:
    """Copy until both directions have ended. Return False if the stream was idle for too long; raises OSError."""
    there, back = _Direction(left, right), _Direction(right, left)
    reading, writing = {left.fileno(): there, right.fileno(): back}, {right.fileno(): there, left.fileno(): back}
    poll, watched = select.poll(), dict.fromkeys(reading, 0)
    for fd in reading:
        poll.register(fd, 0)  # an error is always reported
    while not (there.is_over and back.is_over):
        for fd, before in watched.items():
            wanted = (select.POLLIN if reading[fd].reads else 0) | (select.POLLOUT if writing[fd].pending else 0)
            if wanted and before == _UNWATCHED:
                poll.register(fd, wanted)
            elif wanted != before != _UNWATCHED:
                poll.modify(fd, wanted)
            else:
                continue
            watched[fd] = wanted
        if not (events := poll.poll(idle_s * 1000)):
            return False
        for fd, event in events:
            if event & (select.POLLERR | select.POLLNVAL):
                return False
            if event & select.POLLOUT:
                writing[fd].pump()
            if event & select.POLLIN or (event & select.POLLHUP and reading[fd].reads):
                reading[fd].pump()
            elif event & select.POLLHUP and not watched[fd]:
                # Both directions of this socket have ended, and data read from it is still to be sent. Until then this
                # event would be reported continuously.
                poll.unregister(fd)
                watched[fd] = _UNWATCHED
    return True


def main(argv: Sequence[str]) -> int:
    """Relay the streams whose sockets arrive over standard input, until that is closed."""
    from dlapp.system.processes.helper import own_channel

    channel = own_channel()
    while True:
        data, fds, _, _ = socket.recv_fds(channel, 16, 2)
        if not data:
            os._exit(0)  # the ApplicationMaster is gone, and the threads with the streams end, too
        if data == PAIR and len(fds) == 2:
            left, right = (socket.socket(fileno=fd) for fd in fds)
            threading.Thread(target=_relay, args=(channel, left, right), name="relay", daemon=True).start()
        else:
            for fd in fds:
                os.close(fd)


def _relay(channel: socket.socket, left: socket.socket, right: socket.socket) -> None:
    copy_both(left, right)
    with contextlib.suppress(OSError):
        channel.send(OVER)
