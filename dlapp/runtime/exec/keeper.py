"""Keeper of a command beside a plain payload: the parent of all of the command's processes, in the payload's process
tree.

    guardian's inner ── payload ...
                     └─ keeper ── command ...

The guardian forks it, so it has the payload's cgroup, limits and namespaces, and ends with the payload, whichever
process is killed. It holds the client's stream itself and ends all of its descendants when the command has ended or the
client has disconnected.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pty
import signal
import socket
import struct
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NoReturn

from dlapp.net import exec_frames as frames
from dlapp.net.exec_frames import ExecEnd, ExecRequest, FrameStream, StreamClosed
from dlapp.runtime.exec.session import ExecSession, send_end
from dlapp.system.processes import kernel
from dlapp.system.processes.children import keep_only_descriptors, kill_descendants, reset_signals
from dlapp.system.processes.proc import descendants, set_name
from dlapp.values.serialization import from_json

NOT_FOUND, NOT_EXECUTABLE = 127, 126
NAME = "dlapp-exec"
"""Name of a keeper's process (`proc.set_name`)."""
_PATIENCE_S = 1.0
"""Time between SIGHUP with SIGTERM, and SIGKILL, for the remaining processes of a command."""
_LOOK_EVERY_S = 0.02
_MAX_REQUEST_BYTES = 256 << 10
_READ_BYTES = 1 << 16


def run_keeper(channel: socket.socket, env: Mapping[str, str], cwd: str, kept_fds: Sequence[int]) -> NoReturn:
    """Run as the keeper of one command. Called in a separate process, which ends with the command.

    Args:
        channel: delivers the request as a line of JSON (`ExecRequest`), with the client's stream.
        env: the environment of the payload.
        cwd: the working directory of the payload.
        kept_fds: descriptors that the payload also has: they hold locks.
    """
    set_name(NAME)
    kernel.become_subreaper()
    os.setsid()
    received = _receive(channel)
    channel.close()
    if received is None:
        os._exit(0)
    request, stream = received
    try:
        target = PlainTarget(request, env, cwd, kept_fds)
    except OSError as error:
        code = NOT_FOUND if isinstance(error, FileNotFoundError) else NOT_EXECUTABLE
        with contextlib.suppress(StreamClosed):
            send_end(stream, ExecEnd(code, f"{error.filename}: {error.strerror}"))
        os._exit(0)
    ExecSession(stream, target).run()
    os._exit(0)


def send_request(channel: socket.socket, request: Mapping[str, object], stream: socket.socket) -> None:
    """Send a keeper its request and the client's stream.

    Args:
        stream: may be closed here afterwards.

    Raises:
        OSError: the keeper is gone.
    """
    data = json.dumps(request).encode() + b"\n"
    sent = socket.send_fds(channel, [data], [stream.fileno()])
    channel.sendall(data[sent:])


def _receive(channel: socket.socket) -> tuple[ExecRequest, FrameStream] | None:
    heard, fds = b"", list[int]()
    while not heard.endswith(b"\n"):
        data, more, _, _ = socket.recv_fds(channel, _READ_BYTES, 1)
        fds += more
        if not data or len(heard) > _MAX_REQUEST_BYTES:
            return None
        heard += data
    request = from_json(ExecRequest, json.loads(heard))
    return request, FrameStream(socket.socket(fileno=fds[0]))


class PlainTarget:
    """The `ExecTarget` of a command that is a child of this process.

    Args:
        env, cwd, kept_fds: see `run_keeper`.

    Raises:
        OSError: it could not be started; ``filename`` names what was not found or not executable.
    """

    def __init__(self, request: ExecRequest, env: Mapping[str, str], cwd: str, kept_fds: Sequence[int]) -> None:
        self._is_stopped = False
        self._status: int | None = None
        self._left_until: float | None = None  # the remaining processes of the command are killed then
        self._has_children = True
        self._wake, self._tell = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(self._tell, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2):
            signal.signal(number, lambda _number, _frame: None)
        for number in (signal.SIGTERM, signal.SIGABRT):  # to the whole payload, which is being stopped
            signal.signal(number, self._stop)
        self._outputs: dict[int, bytes] = {}
        self._input: int | None = None
        self._terminal: int | None = None
        if request.terminal:
            master, slave = pty.openpty()
            self._terminal = self._input = master
            self._outputs[master] = frames.OUTPUT
            self.resize(request.rows, request.columns)
            theirs = (slave, slave, slave)
        else:
            read, self._input = os.pipe2(os.O_CLOEXEC)
            out, to_out = os.pipe2(os.O_CLOEXEC)
            err, to_err = os.pipe2(os.O_CLOEXEC)
            self._outputs = {out: frames.OUTPUT, err: frames.ERROR}
            theirs = (read, to_out, to_err)
        for fd in (*self._outputs, self._input):
            os.set_blocking(fd, False)
        if request.terminal and request.term:
            env = {**env, "TERM": request.term}
        self._pid = self._start(partial(_exec, request, env, cwd, kept_fds, theirs), request.command[0], theirs)
        if not request.interactive and not request.terminal:
            self.end_input()

    def _stop(self, _number: int, _frame: object) -> None:
        self._is_stopped = True

    def _start(self, become: Callable[[], NoReturn], program: str, theirs: tuple[int, int, int]) -> int:
        failed, tell = os.pipe2(os.O_CLOEXEC)
        pid = os.fork()
        if pid == 0:
            try:
                become()
            except OSError as error:
                os.write(tell, json.dumps([error.errno, error.filename or program]).encode())
            finally:
                os._exit(NOT_EXECUTABLE)
        for fd in {*theirs, tell}:
            os.close(fd)
        with open(failed, "rb") as file:
            if said := file.read():
                os.waitpid(pid, 0)
                number, name = json.loads(said)
                raise OSError(number, os.strerror(number), name)
        return pid

    def output_fds(self) -> list[int]:
        return list(self._outputs)

    def read(self, fd: int) -> list[tuple[bytes, bytes]]:
        try:
            data = os.read(fd, _READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:  # of a terminal that no process has open any more
            data = b""
        kind = self._outputs[fd]
        if data:
            return [(kind, data)]
        del self._outputs[fd]
        if fd != self._terminal:
            os.close(fd)
        return []

    def input_fd(self) -> int | None:
        return self._input

    def write(self, data: bytes) -> int:
        assert self._input is not None
        try:
            return os.write(self._input, data)
        except BlockingIOError:
            return 0
        except OSError:  # it has closed its standard input
            self._close_input()
            return len(data)

    def end_input(self) -> None:
        """Send the end of the input, like Ctrl-D."""
        if self._terminal is not None and self._input is not None:
            self.write(b"\x04")  # as Ctrl-D does
        self._close_input()

    def _close_input(self) -> None:
        if self._input is not None and self._terminal is None:
            os.close(self._input)
        self._input = None

    def resize(self, rows: int, columns: int) -> None:
        if self._terminal is not None:
            fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def send_signal(self, number: int) -> None:
        if self._status is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._pid, number)

    def wake_fd(self) -> int:
        return self._wake

    def wait_s(self) -> float | None:
        return _LOOK_EVERY_S if self._left_until is not None and self._has_children else None

    def ended(self) -> ExecEnd | None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wake, 4096)
        self._reap()
        if self._has_children and (self._is_stopped or self._status is not None):
            self._end_remaining()
        if self._has_children:
            return None
        status = self._status if self._status is not None else signal.SIGKILL
        code = os.waitstatus_to_exitcode(status)
        return ExecEnd(code if code >= 0 else 128 - code, "the container is being stopped" if self._is_stopped else "")

    def _reap(self) -> None:
        try:
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self._pid:
                    self._status = status
        except ChildProcessError:
            self._has_children = False

    def _end_remaining(self) -> None:
        """Ask the remaining processes to end, and kill them after a second."""
        if self._left_until is None:
            self._left_until = time.monotonic() + _PATIENCE_S
            for pid in descendants(os.getpid()):
                for number in (signal.SIGHUP, signal.SIGTERM, signal.SIGCONT):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(pid, number)
        elif time.monotonic() >= self._left_until:
            kill_descendants()

    def end(self) -> None:
        self._is_stopped = True
        if self._terminal is not None:
            with contextlib.suppress(OSError):
                os.close(self._terminal)  # all processes that it controls get SIGHUP
            self._outputs.pop(self._terminal, None)
            self._terminal = self._input = None
        while self.ended() is None:
            time.sleep(_LOOK_EVERY_S)


def _exec(
    request: ExecRequest, env: Mapping[str, str], cwd: str, kept_fds: Sequence[int], theirs: tuple[int, int, int]
) -> NoReturn:
    """Become the command. Raises OSError: it cannot be executed."""
    reset_signals()
    kernel.die_with_parent(signal.SIGKILL)  # a killed keeper leaves no process that is never reaped
    os.setsid()
    if request.terminal:
        fcntl.ioctl(theirs[0], termios.TIOCSCTTY, 0)
    for place, fd in enumerate(theirs):
        os.dup2(fd, place)
    os.chdir(cwd)
    keep_only_descriptors(kept_fds)
    try:
        os.execvpe(request.command[0], list(request.command), env)
    except OSError as error:
        raise OSError(error.errno, error.strerror, request.command[0]) from error
