"""NVML in a subprocess with a deadline, for callers that must not hang with a hanging driver.

A call into a hanging driver does not return, and the process may not even be killable by SIGKILL. So the runner of the
embedded engine, on which a machine's whole queue depends, uses a small subprocess. If it does not answer it is killed
and abandoned, and no other one is started until it is gone.

It ends with its parent, and by itself when idle for a while; the next query starts another.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import nvml
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.readings import Reading
from dlapp.system.files import write_all
from dlapp.system.waits import Wait

ANSWER_S = 30.0
"""Time limit of NVML: initializing eight GPUs without nvidia-persistenced takes ten seconds and more."""
IDLE_S = 5.0
_SIZE = struct.Struct("!I")
_PROGRAM = (
    # Close everything inherited from the parent, in particular kernel locks.
    "import os, sys; os.closerange(3, 1 << 16); sys.path[:0] = sys.argv[1:]; "
    "from dlapp.gpuid.health.nvml_subprocess import serve; serve()"
)


def discover() -> tuple[Device, ...]:
    """Call `dlapp.gpuid.health.nvml.discover` in a subprocess. Raises NvmlError also if NVML does not answer within
    `ANSWER_S`."""
    if not nvml.has_library():
        return ()
    found: tuple[Device, ...] = _process.request(("discover",))
    return found


def read(devices: Sequence[Device]) -> dict[str, Reading]:
    """Call `dlapp.gpuid.health.nvml.read` in a subprocess. Raises NvmlError also if NVML does not answer within
    `ANSWER_S`."""
    found: dict[str, Reading] = _process.request(("read", tuple(devices)))
    return found


class _ProcessEnded(Exception):
    """End of the subprocess."""


class _NvmlProcess:
    """The current subprocess, if any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid, self._to, self._from = 0, -1, -1
        self._stuck = 0

    def request(self, message: tuple[Any, ...]) -> Any:
        with self._lock:
            if self._stuck and not _has_ended(self._stuck):
                raise NvmlError(f"NVML: the driver hangs: process {self._stuck} that called it has not returned")
            self._stuck = 0
            deadline = time.monotonic() + ANSWER_S
            try:
                with Wait("NVIDIA's driver (NVML)", ANSWER_S):
                    try:
                        answer = self._answer(message, deadline)
                    except _ProcessEnded:
                        self._end()  # it had waited long enough, or was killed
                        answer = self._answer(message, deadline)
            except _ProcessEnded:
                self._end()
                raise NvmlError("NVML: the process that called it died") from None
            except TimeoutError:
                stuck = self._pid
                self._end()
                self._stuck = stuck
                raise NvmlError(f"NVML: no answer in {ANSWER_S:g} s: the driver hangs") from None
        if isinstance(answer, str):
            raise NvmlError(answer)
        return answer

    def reset_after_fork(self) -> None:
        """Forget the subprocess after a fork: it is the parent's."""
        self._lock = threading.Lock()
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._pid, self._to, self._from, self._stuck = 0, -1, -1, 0

    def _answer(self, message: tuple[Any, ...], deadline: float) -> Any:
        if not self._pid:
            self._start()
        try:
            _write(self._to, message)
        except BrokenPipeError:
            raise _ProcessEnded from None
        return pickle.loads(_read(self._from, deadline))

    def _start(self) -> None:
        theirs, self._to = os.pipe()
        self._from, back = os.pipe()
        path = [os.path.abspath(one) for one in sys.path if one]
        try:
            self._pid = os.posix_spawn(
                sys.executable,
                [sys.executable, "-I", "-c", _PROGRAM, *path],
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, theirs, 0), (os.POSIX_SPAWN_DUP2, back, 1)],
                setsid=True,
            )
        finally:
            os.close(theirs)
            os.close(back)

    def _end(self) -> None:
        for fd in (self._to, self._from):
            os.close(fd)
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
        _has_ended(self._pid)
        self._pid, self._to, self._from = 0, -1, -1


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _write(fd: int, message: Any) -> None:
    data = pickle.dumps(message)
    write_all(fd, _SIZE.pack(len(data)) + data)


def _read(fd: int, deadline: float | None) -> bytes:
    def exactly(count: int) -> bytes:
        data = b""
        while len(data) < count:
            if deadline is not None and not select.select([fd], [], [], max(0.0, deadline - time.monotonic()))[0]:
                raise TimeoutError
            if not (more := os.read(fd, count - len(data))):
                raise _ProcessEnded
            data += more
        return data

    return exactly(_SIZE.unpack(exactly(_SIZE.size))[0])


def serve() -> None:
    """Answer the queries from standard input on standard output."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with contextlib.suppress(_ProcessEnded, BrokenPipeError):
        while select.select([0], [], [], IDLE_S)[0]:
            what, *words = pickle.loads(_read(0, None))
            answer: Any
            try:
                answer = nvml.discover() if what == "discover" else nvml.read(*words)
            except NvmlError as error:
                answer = str(error)
            _write(1, answer)


_process = _NvmlProcess()
os.register_at_fork(after_in_child=_process.reset_after_fork)
