"""An ApplicationMaster that is started before there is an application for it.

    runner                                   the spare
      starts it, on a pair of sockets  ───>  loads what an ApplicationMaster needs, waits
      command line and descriptors     ───>  is that ApplicationMaster, as if it had been started so
      its socket closed                ───>  ends

Python and our modules take longer to load than all else that an application's start needs; a runner that waits for a
submission to come has that done meanwhile. A command line that nobody read any more takes its descriptors, and with
them the application's lock, away with it: that is a start that did not begin.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence

from dlapp.system.processes.spawn import FIRST_KEPT, spawn

MOST_KEPT = 253
"""Descriptors in one message. Source: unix(7), SCM_RIGHTS."""
_MOST_BYTES = 1 << 16


class PreforkedMaster:
    """A spare ApplicationMaster, as the runner has it. It is a child: ``pid`` is its own until it is collected.

    Args:
        program: how our processes are started.
        state: the state directory, for who looks at the processes of a machine.
        log: where it writes until it is somebody's.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, program: Sequence[str], state: str, log: str) -> None:
        self._channel, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            words = [*program, "am", "--spare-fd", str(FIRST_KEPT), "--state", state]
            self.pid = spawn(words, keep=[its_end.fileno()], log=log)
        except BaseException:
            self._channel.close()
            raise
        finally:
            its_end.close()

    def become(self, argv: Sequence[str], *, keep: Sequence[int], log: str) -> None:
        """Make it what `spawn` would have started with the words after the program's.

        Raises:
            OSError: it did not take that; it ends.
        """
        with self._channel:
            socket.send_fds(self._channel, [json.dumps([list(argv), log]).encode()], keep)

    def close(self) -> None:
        """Let it end."""
        self._channel.close()


def wait_for_assignment(fd: int) -> list[str] | None:
    """Wait, as the spare, for a command line, and be as if started with it. Return None if none will come.

    Args:
        fd: the socket; closed by this.
    """
    with socket.socket(fileno=fd) as channel:
        try:
            text, fds, flags, _ = socket.recv_fds(channel, _MOST_BYTES, MOST_KEPT)
        except ConnectionError:
            return None
        if not text:
            return None
        if flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
            raise OSError("what came for the spare ApplicationMaster was cut short")
        argv, log = json.loads(text)
        out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for one in (1, 2):
        os.dup2(out, one)
    os.close(out)
    # The kernel gave them the lowest numbers above the socket's: each is moved down, over none that is still to move.
    for number, one in enumerate(fds, FIRST_KEPT):
        if one != number:
            os.dup2(one, number)
            os.close(one)
    words: list[str] = argv
    return words
