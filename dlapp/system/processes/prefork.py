"""A process of ours that is started before there is anything for it to do.

    whoever will need it                     the spare
      starts it, on a pair of sockets  ───>  loads what its role needs, waits
      command line and descriptors     ───>  is that process, as if it had been started so
      its socket closed                ───>  ends

Python and our modules take longer to load than all else that an application's start needs. A runner that waits for a
submission to come has an ApplicationMaster do that meanwhile, and that has a task do it. A command line that nobody
read any more takes its descriptors, and with them the application's or the container's lock, away with it: that is a
start that did not begin.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
import sys
from collections.abc import Sequence

from dlapp.system.processes.spawn import FIRST_KEPT, spawn

MOST_KEPT = 253
"""Descriptors in one message. Source: unix(7), SCM_RIGHTS."""
_MOST_BYTES = 1 << 16
_ROOM = 1024
"""How many bytes more than at first its command line may have."""


class PreforkedProcess:
    """A spare process, as whoever started it has it. It is a child: ``pid`` is its own until it is collected.

    Args:
        program: how our processes are started.
        role: the word after the program's: ``am`` or ``task``.
        log: where it writes until it is somebody's.
        words: further ones, for who looks at the processes of a machine.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, program: Sequence[str], role: str, log: str, words: Sequence[str] = ()) -> None:
        ours, its_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours, its_end:
            # Above the numbers that are still to be given to this very process, if it is a spare one itself.
            fd = fcntl.fcntl(ours.fileno(), fcntl.F_DUPFD_CLOEXEC, FIRST_KEPT + MOST_KEPT)
            self._channel = socket.socket(fileno=fd)
            argv = [*program, role, "--spare-fd", str(FIRST_KEPT), *words, " " * _ROOM]
            try:
                self.pid = spawn(argv, keep=[its_end.fileno()], log=log)
            except BaseException:
                self._channel.close()
                raise

    def become(self, argv: Sequence[str], *, keep: Sequence[int], log: str) -> None:
        """Make it what `spawn` would have started with the words after the role's.

        Raises:
            OSError: it did not take that; it ends.
        """
        with self._channel:
            if sum(len(os.fsencode(word)) + 1 for word in argv) > _ROOM:
                raise OSError("its command line has no room for that")
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
            raise OSError("what came for the spare process was cut short")
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
    _show_command_line(words)
    return words


def _show_command_line(words: Sequence[str]) -> None:
    """Have /proc show the command line that this process would have been started with, in place of the spare's.

    Tasks and ApplicationMasters are found by it. It lies in this process's memory, between two addresses. Source:
    proc(5), /proc/pid/stat, fields 48 and 49.
    """
    import ctypes

    with open("/proc/self/stat", "rb") as file:
        fields = file.read().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    line = [*sys.orig_argv[: sys.orig_argv.index("--spare-fd")], *words]
    text = b"".join(os.fsencode(word) + b"\0" for word in line)
    if not 0 < len(text) <= end - start:
        raise OSError("the command line of the spare process has no room for another")
    ctypes.memmove(start, text.ljust(end - start, b"\0"), end - start)
