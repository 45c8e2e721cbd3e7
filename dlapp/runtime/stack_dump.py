"""Stacks of a hung payload, read by py-spy if the node has it.

py-spy reads the memory of a Python process from outside, so it also shows the stacks of a process that handles no
signal (PYTHONFAULTHANDLER is not set, or a library has replaced the handler) or whose threads hang in C code. It stops
the process meanwhile and changes nothing in it. The kernel decides who may do that (ptrace(2), "Ptrace access mode
checking"): a task may, if it has the payload's uid, unless Yama or a container forbids it. Failures are noted, and the
payload gets SIGABRT as without py-spy.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO

from dlapp.system.processes.proc import read_proc

_LIMIT_S = 5.0
"""Time limit for all processes of a payload. Measured: 16 ms for one with two threads, 0.17 s with a thousand."""


def find_py_spy() -> str | None:
    """Return the path of py-spy: beside the running Python, or on the PATH; None if the node has none."""
    places = [os.path.dirname(sys.executable), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
    return shutil.which("py-spy", path=os.pathsep.join(place for place in places if os.path.isabs(place)))


class StackDump:
    """Runner of py-spy on the Python processes of a payload, one after another, so that their stacks do not mix.

    Args:
        path: the path of the file to which the stacks are appended.
        note: called with failures.

    Attributes:
        poll_s: how often to call `is_done`.
    """

    poll_s = 0.02

    def __init__(self, list_pids: Callable[[], list[int]], path: str, note: Callable[[str], None]) -> None:
        self._list_pids, self._path, self._note = list_pids, path, note
        self._program = find_py_spy()
        self._waiting = list(list_pids()) if self._program is not None else []
        self._deadline = time.monotonic() + _LIMIT_S
        self._process: subprocess.Popen[bytes] | None = None
        self._pid = 0  # of the current process

    def is_done(self) -> bool:
        """Continue: start the next one if the last has ended. Return True if none remains, or the time limit is
        over."""
        if self._process is not None:
            if self._process.poll() is None and time.monotonic() < self._deadline:
                return False
            self._end(self._process)
        while self._waiting and self._process is None:
            # Processes other than Python also take time to check: a payload may have thousands with as many mappings.
            if time.monotonic() >= self._deadline:
                self._note(f"no stacks of {len(self._waiting)} processes: {_LIMIT_S:g} s are over")
                self._waiting = []
                break
            self._begin(self._waiting.pop(0))
        return self._process is None

    def close(self) -> None:
        """End the running one. Idempotent."""
        self._waiting = []
        if self._process is not None:
            self._end(self._process)

    def _begin(self, pid: int) -> None:
        # Checked again: the pid may have been reused.
        if self._program is None or not _is_python(pid) or pid not in self._list_pids():
            return
        self._pid = pid
        try:
            with _open_to_append(self._path) as file:
                self._process = subprocess.Popen(
                    [self._program, "dump", "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.PIPE,
                    env={},
                    cwd="/",
                )
        except OSError as error:
            self._note(f"no stacks of process {pid}: {error}")

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill it, if it still runs, and note the problem."""
        process.kill()
        status = process.wait()
        self._process = None
        assert process.stderr is not None
        with process.stderr as pipe:
            os.set_blocking(pipe.fileno(), False)
            said = " ".join((pipe.read(4096) or b"").decode(errors="replace").split())
        if status:
            self._note(f"no stacks of process {self._pid}: py-spy: {said[:300] or f'status {status}'}")


def _is_python(pid: int) -> bool:
    """Return whether a process has Python mapped; also False if this process may not inspect it."""
    return b"python" in read_proc(pid, "maps")


def _open_to_append(path: str) -> IO[bytes]:
    """Open a file that the payload may have replaced meanwhile."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(os.path.realpath(path), flags)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(f"{path} is no file")
    return open(fd, "ab", buffering=0)
