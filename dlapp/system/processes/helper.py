"""A child process of dlapp with one purpose, which ends when its parent ends, even if that is killed.

It is one of dlapp's own processes (``dlapp/__main__.py ROLE``), started when first needed. Its standard input is one
end of a message socket; the parent holds the other. When the parent dies, the kernel closes its end, and the child,
which always reads the socket, ends. It is in the parent's session and process group, so a signal to the group also
reaches it. It inherits only the log on standard error: no lock and no lifeline.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
from collections.abc import Sequence

from dlapp.system.processes.spawn import PROGRAM, close_all_but, environment
from dlapp.value import Closeable

_FROM_BUNDLE = "import sys; sys.path.insert(0, sys.argv.pop(1)); from dlapp.__main__ import main; main(sys.argv[1:])"
MAX_MESSAGE_BYTES = 128 << 10
"""Above it a message does not fit into the kernel's buffer everywhere. Source: socket(7), wmem_default."""


class HelperProcess(Closeable):
    """The parent's handle of a helper, which is started by the first message, and again if it was killed.

    Thread-safe.

    Args:
        role: its name in `dlapp.__main__`.
        program: command line that starts dlapp's own processes.
    """

    def __init__(self, role: str, program: Sequence[str] | None = None) -> None:
        self._argv = [*(program or own_program()), role]
        self._lock = threading.Lock()
        self._channel: socket.socket | None = None
        self._pidfd = -1
        self._is_closed = False
        self.starts = 0
        """Number of processes started so far."""

    def start(self) -> None:
        """Start the helper ahead of its first message, unless it runs. Raises OSError: it cannot be started."""
        with self._lock:
            if self._channel is None and not self._is_closed:
                self._start()

    def send(self, data: bytes, fds: Sequence[int] = ()) -> None:
        """Send a message, with descriptors that the caller keeps open.

        Raises:
            OSError: the helper cannot be started, does not read its messages, or this handle is closed.
        """
        with self._lock:
            if self._is_closed:
                raise BrokenPipeError("the helper process is closed")
            if self._channel is not None:
                try:
                    socket.send_fds(self._channel, [data], fds)
                    return
                except (BrokenPipeError, ConnectionResetError):
                    self._end()  # it was killed
            socket.send_fds(self._start(), [data], fds)

    def received(self) -> list[bytes]:
        """Return the messages of the helper that have arrived."""
        found: list[bytes] = []
        with self._lock, contextlib.suppress(OSError):
            while self._channel is not None and (data := self._channel.recv(MAX_MESSAGE_BYTES)):
                found.append(data)
        return found

    def close(self) -> None:
        """End the helper; return when it has ended. Idempotent."""
        with self._lock:
            self._is_closed = True
            self._end()

    def _start(self) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            ours.setblocking(False)
            pid = os.posix_spawn(
                self._argv[0],
                self._argv,
                environment(),
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs.fileno(), 0)],
                setsigmask=(),
                setsigdef=(signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM),
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        # Once reaped by other code, its pid may belong to another process.
        self._pidfd = os.pidfd_open(pid)
        self._channel = ours
        self.starts += 1
        return ours

    def _end(self) -> None:
        if self._channel is None:
            return
        self._channel.close()
        self._channel = None
        # It has no state worth waiting for.
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._pidfd, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitid(os.P_PIDFD, self._pidfd, os.WEXITED)
        os.close(self._pidfd)


def own_program() -> tuple[str, ...]:
    """Return the command line that starts dlapp's own processes, from an installation or from the bundle of a
    cluster.
    """
    if os.path.exists(PROGRAM[-1]):
        return PROGRAM
    # The start of a bundle writes a file that this process may have open.
    return (*PROGRAM[:-1], "-c", _FROM_BUNDLE, PROGRAM[-1].removesuffix("/dlapp/__main__.py"))


def own_channel() -> socket.socket:
    """Return the helper's end of the socket, in the helper; close all other inherited descriptors."""
    close_all_but([0])
    channel = socket.socket(fileno=os.dup(0))
    channel.set_inheritable(False)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdin = None
    return channel
