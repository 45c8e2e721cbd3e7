"""NVML in a subprocess with a deadline: the only way in which dlapp calls NVIDIA's driver.

A call into a hanging driver does not return, and the process that made it may not even be killable by SIGKILL. It keeps
its descriptors, locks among them, until it returns. So whoever needs the driver owns a `NvmlProcess`: a small process
that has nothing of its owner's open. If it does not answer in time it is killed and abandoned. No other one is started
until it is gone, and none before a pause that grows with each hang; meanwhile every request fails at once.

The subprocess ends with its owner. By itself it ends when idle for a while, unless it watches devices; the next request
starts another.
"""

from __future__ import annotations

import contextlib
import math
import os
import pickle
import select
import signal
import struct
import sys
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from dlapp.gpuid.devices import Device
from dlapp.gpuid.health import driver, nvml
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.readings import DeviceFault, DeviceSample, Reading
from dlapp.system.clock import backoff_s
from dlapp.system.files import write_all
from dlapp.system.waits import Wait
from dlapp.value import Closeable

ANSWER_S = 30.0
"""Default time limit of NVML: initializing eight GPUs without nvidia-persistenced takes ten seconds and more."""
SHORT_ANSWER_S = 4.0
"""The same for commands and the exporter, which show what they know without NVML within five seconds."""
AGAIN_S = 5.0, 60.0
"""Pauses after a hang before the driver is called again: doubled from the first to the second."""
WATCH_ANSWER_S = 10.0
"""The same for devices that are open already, because they are watched."""
IDLE_S = 5.0
_SIZE = struct.Struct("!I")
_PROGRAM = (
    # Keep nothing of the owner's: no descriptor, in particular no kernel lock, and no container's directory.
    "import os, sys; os.closerange(3, 1 << 16); os.chdir('/'); sys.path[:0] = sys.argv[2:]; "
    "from dlapp.gpuid.health.nvml_subprocess import serve; serve(float(sys.argv[1]))"
)


class DriverHangs(NvmlError):
    """The driver has not answered in time, or still has not returned from an earlier call."""


class _ProcessEnded(Exception):
    """End of the subprocess."""


class NvmlProcess(Closeable):
    """Owner of the subprocess, if there is one. Thread-safe.

    Args:
        answer_s: time limit of an answer [s]; may be set at any time.
        idle_s: time after which an idle subprocess ends [s].
        again_s: see `AGAIN_S`.
    """

    def __init__(
        self, answer_s: float = ANSWER_S, *, idle_s: float = IDLE_S, again_s: tuple[float, float] = AGAIN_S
    ) -> None:
        self.answer_s, self._idle_s, self._again_s = answer_s, idle_s, again_s
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()
        self._pid, self._to, self._from = 0, -1, -1
        self._stuck = 0
        self._hang: DriverHangs | None = None
        self._pauses_s: Iterator[float] = backoff_s(*self._again_s)
        self._again_at = 0.0

    # ---- queries ----

    def discover(self) -> tuple[Device, ...]:
        """Call `dlapp.gpuid.health.nvml.discover`. Starts no process on a machine without NVML.

        Raises:
            NvmlError: see there; `DriverHangs`: NVML does not answer in time.
        """
        if not nvml.has_library():
            return ()
        found: tuple[Device, ...] = self._request(("discover",))
        return found

    def discover_unleasable(self, known: Collection[int] = ()) -> tuple[tuple[Device, str], ...]:
        """Call `dlapp.gpuid.health.nvml.discover_unleasable`. Raises NvmlError, as `discover` does."""
        if not nvml.has_library():
            return ()
        found: tuple[tuple[Device, str], ...] = self._request(("unleasable", frozenset(known)))
        return found

    def read(self, devices: Sequence[Device], *, detailed: bool = False) -> dict[str, Reading]:
        """Call `dlapp.gpuid.health.nvml.read`. Raises NvmlError, as `discover` does."""
        found: dict[str, Reading] = self._request(("read", tuple(devices), detailed))
        return found

    def watch(self, devices: Sequence[Device]) -> WatchedDevices:
        """Open a `dlapp.gpuid.health.nvml.NvmlWatch` in the subprocess. Raises NvmlError, as `discover` does."""
        watched = WatchedDevices(self, devices)
        # One that hangs now is watched when it answers.
        with contextlib.suppress(DriverHangs):
            watched.request("open")
        return watched

    def request_of_watch(self, devices: tuple[Device, ...], what: str, answer_s: float) -> Any:
        """Call a method of the watch of ``devices``. A subprocess that has no such watch opens it first.

        Args:
            devices: the watched devices.
            what: the method.
            answer_s: time limit of the answer [s]; at most `answer_s` of this object.
        """
        return self._request(("watch", devices, what), answer_s=answer_s, shows=False)

    def close(self) -> None:
        """End the subprocess. The next query starts another."""
        self._forget_after_fork()
        with self._lock:
            self._end()

    # ---- the subprocess ----

    def _request(self, message: tuple[Any, ...], *, answer_s: float = math.inf, shows: bool = True) -> Any:
        """Return the answer, which must come within ``answer_s``; ``shows``: the wait for it is shown to the user."""
        self._forget_after_fork()
        with self._lock:
            self._refuse_while_hanging()
            answer_s = min(answer_s, self.answer_s)
            deadline = time.monotonic() + answer_s
            try:
                with Wait("NVIDIA's driver (NVML)" if shows else "", answer_s):
                    try:
                        answer = self._answer(message, deadline)
                    except _ProcessEnded:
                        self._end()  # it had waited long enough, or was killed
                        answer = self._answer(message, deadline)
            except _ProcessEnded:
                self._end()
                raise NvmlError("NVML: the process that called it died") from None
            except TimeoutError:
                self._stuck = self._pid
                self._end()
                self._again_at = time.monotonic() + next(self._pauses_s)
                slow = "" if answer_s > SHORT_ANSWER_S else ", or initializes GPUs without persistence mode"
                self._hang = DriverHangs(f"NVML: no answer in {answer_s:g} s: the driver hangs{slow}", driver.HANGS)
                raise self._hang from None
            except BaseException:
                self._end()  # an interrupted step: the next request must not get the answer to this one
                raise
            if self._hang is not None:
                self._hang, self._pauses_s = None, backoff_s(*self._again_s)
        if isinstance(answer, NvmlError):
            raise answer
        return answer

    def _refuse_while_hanging(self) -> None:
        if self._stuck and not _has_ended(self._stuck):
            problem = f"NVML: the driver hangs: process {self._stuck} that called it has not returned"
            raise DriverHangs(problem, driver.HANGS)
        self._stuck = 0
        if self._hang is not None and time.monotonic() < self._again_at:
            raise self._hang

    def _forget_after_fork(self) -> None:
        """Forget the subprocess after a fork: it is the parent's. Another thread of the parent may have had the
        lock."""
        if self._owner != os.getpid():
            self._close_pipes()
            self._begin()

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
                [sys.executable, "-I", "-c", _PROGRAM, str(self._idle_s), *path],
                os.environ,
                file_actions=[
                    (os.POSIX_SPAWN_DUP2, theirs, 0),
                    (os.POSIX_SPAWN_DUP2, back, 1),
                    # If it hangs, it must not keep the terminal or the pipe of a command open.
                    (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
                ],
                setsid=True,
            )
        finally:
            os.close(theirs)
            os.close(back)

    @property
    def pids(self) -> set[int]:
        """Return the subprocess, and one that hangs: children of this process that may never end."""
        return {self._pid, self._stuck} - {0} if self._owner == os.getpid() else set()

    def try_again(self) -> None:
        """Call the driver at the next request also if it did not answer a moment ago."""
        self._again_at = 0.0

    def _end(self) -> None:
        if self._pid and not _has_ended(self._pid):  # else another process may have its pid by now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            _has_ended(self._pid)
        self._close_pipes()

    def _close_pipes(self) -> None:
        for fd in (self._to, self._from):
            if fd >= 0:
                os.close(fd)
        self._pid, self._to, self._from = 0, -1, -1


class WatchedDevices:
    """A `dlapp.gpuid.health.nvml.NvmlWatch` in the subprocess, with the same methods."""

    def __init__(self, process: NvmlProcess, devices: Sequence[Device]) -> None:
        self._process, self._devices = process, tuple(devices)
        self._is_open = False

    def request(self, what: str) -> Any:
        """Call a method of the watch. Raises NvmlError."""
        answer_s = WATCH_ANSWER_S if self._is_open else math.inf
        self._is_open = False
        answer = self._process.request_of_watch(self._devices, what, answer_s)
        self._is_open = True
        return answer

    def poll(self) -> dict[str, DeviceFault]:
        """Return the devices that have failed since the last call: uuid -> the failure. Raises NvmlError."""
        found: dict[str, DeviceFault] = self.request("poll")
        return found

    def take_xids(self) -> list[tuple[str, int]]:
        """Return the Xid errors since the last call: the uuid of the device, and the code. Raises NvmlError."""
        found: list[tuple[str, int]] = self.request("take_xids")
        return found

    def sample(self) -> dict[str, DeviceSample]:
        """Return the current usage of the devices, by uuid. Raises NvmlError."""
        found: dict[str, DeviceSample] = self.request("sample")
        return found

    def close(self) -> None:
        """Do nothing: the subprocess keeps the devices open until its owner closes it, for the inspection that follows
        a watch. The driver forgets the memory errors of a GPU that nobody has open."""


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


def serve(idle_s: float) -> None:
    """Answer the requests from standard input on standard output, until it closes or, without a watch, ``idle_s`` have
    passed [s]."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    watched: dict[tuple[Device, ...], nvml.NvmlWatch] = {}  # at most one
    with contextlib.suppress(_ProcessEnded, BrokenPipeError):
        while select.select([0], [], [], None if watched else idle_s)[0]:
            what, *words = pickle.loads(_read(0, None))
            answer: Any
            try:
                match what:
                    case "discover":
                        answer = nvml.discover()
                    case "unleasable":
                        answer = nvml.discover_unleasable(words[0])
                    case "read":
                        answer = nvml.read(words[0], detailed=words[1])
                    case _:
                        answer = _answer_watch(watched, *words)
            except NvmlError as error:
                answer = error
            _write(1, answer)


def _answer_watch(watched: dict[tuple[Device, ...], nvml.NvmlWatch], devices: tuple[Device, ...], what: str) -> Any:
    if devices not in watched:
        for one in watched.values():
            one.close()
        watched.clear()
        watched[devices] = nvml.NvmlWatch(devices)
    return None if what == "open" else getattr(watched[devices], what)()
