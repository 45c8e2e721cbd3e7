"""Prestarted ApplicationMaster, not yet assigned to an application.

    runner                                   the standby
      starts it, on a pair of sockets  ───>  loads what an ApplicationMaster needs, waits
      command line and descriptors     ───>  is that ApplicationMaster, as if it had been started so
      its socket closed                ───>  ends

Loading Python and our modules takes longer than the rest of an application's start; a runner that waits for a
submission does it meanwhile. If the standby dies before it reads a command line, the descriptors sent with it close,
and the application's lock is released: that counts as a failed start.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

from dlapp.system.processes.spawn import FIRST_KEPT, spawn

MAX_FDS = 253
"""Maximum number of descriptors in one message. Source: unix(7), SCM_RIGHTS."""
_MAX_BYTES = 1 << 16


class PreforkedMaster:
    """Runner's handle of a standby ApplicationMaster. It is a child: ``pid`` is not reused until it is reaped.

    Args:
        program: how dlapp's own processes are started.
        state: the state directory, shown in the process list.
        log: log file until it is assigned.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, program: Sequence[str], state: str, log: str) -> None:
        self._channel, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            arguments = [*program, "am", "--spare-fd", str(FIRST_KEPT), "--state", state]
            self.pid = spawn(arguments, keep=[its_end.fileno()], log=log)
        except BaseException:
            self._channel.close()
            raise
        finally:
            its_end.close()

    def become(self, argv: Sequence[str], *, keep: Sequence[int], log: str) -> None:
        """Make it the process that `spawn` would have started with the words after the program's.

        Raises:
            OSError: it did not accept the command line; it ends.
        """
        with self._channel:
            socket.send_fds(self._channel, [json.dumps([list(argv), log]).encode()], keep)

    def close(self) -> None:
        """End it."""
        self._channel.close()


def wait_for_assignment(fd: int) -> list[str] | None:
    """Wait, as the standby, for a command line, and continue as if started with it. Return None if none will come.

    Args:
        fd: the socket; closed by this.
    """
    with socket.socket(fileno=fd) as channel:
        try:
            text, fds, flags, _ = socket.recv_fds(channel, _MAX_BYTES, MAX_FDS)
        except ConnectionError:
            return None
        if not text:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise OSError("the message for the standby ApplicationMaster was truncated")
        argv, log = json.loads(text)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for one in (1, 2):
        os.dup2(out, one)
    os.close(out)
    # The kernel assigned the lowest free numbers above the socket's: move each down, without overwriting another.
    for number, one in enumerate(fds, FIRST_KEPT):
        if one != number:
            os.dup2(one, number)
            os.close(one)
    arguments: list[str] = argv
    return arguments
