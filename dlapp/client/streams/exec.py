"""Commands in the containers of a running application: the user's side of `dlapp.net.exec_frames`."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from dlapp.errors import DlappError, UsageError
from dlapp.net import exec_frames as frames
from dlapp.net.exec_frames import ExecEnd, ExecRequest, FrameStream, StreamClosed
from dlapp.system.files import write_all
from dlapp.system.terminal import raw_terminal
from dlapp.values.access import STREAM_EXEC
from dlapp.values.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dlapp.client import Client
    from dlapp.client.operations.connections import AnyApplication

GONE = 128 + signal.SIGKILL
"""Exit code where the command ended with its container."""
_KNOWN_S, _POLL_INTERVAL_S = 5.0, 0.2
"""Time limit for the end of a container to be reported, and the interval of the polls."""
_TRIAL_KNOWN_S = 15.0
"""Time limit for the end of a trial: on a cluster the results of a sweep are written every 5 s."""
_READ_BYTES = 1 << 16
_WRITE_BYTES = 4096
"""Number of bytes that a pipe accepts without blocking once poll reports it as writable. Source: pipe(7), PIPE_BUF."""


def exec_request(command: Sequence[str], *, interactive: bool, terminal: bool) -> ExecRequest:
    """Return the request to run a command, with this process's terminal if requested.

    Raises:
        UsageError: there is no command, or no terminal here.
    """
    if not terminal:
        return ExecRequest(command=tuple(command), interactive=interactive)
    if interactive and not os.isatty(0):
        raise UsageError("-t needs a terminal as standard input; leave it out to pass on bytes as they are")
    rows, columns = _terminal_size()
    term = os.environ.get("TERM", "")
    return ExecRequest(
        command=tuple(command), interactive=interactive, terminal=True, rows=rows, columns=columns, term=term
    )


def exec_command(
    client: Client, application: AnyApplication, container: str | None, request: ExecRequest, trial: int | None = None
) -> ExecEnd:
    """Run a command in a container, connected to standard input, output and error of this process.

    Args:
        client: the client of the user.
        application: the running application.
        container: CONTAINER_INDEX, or ``ROLE`` or ``ROLE:NUMBER`` of its role; None: that of the trial, or the first.
        request: from `exec_request`.
        trial: number of the trial of a sweep beside which it runs; None: the only one of the container.

    Raises:
        NotFound, Denied, Unreachable, StreamRefused: see `Client.stream_opener`.
        DlappError: the stream broke, and the container still runs.
    """
    index: int | None
    if container is None:
        index = 0 if trial is None else None
    elif container.isascii() and container.isdecimal() and len(container) < 10:
        index = int(container)
    else:
        from dlapp.client.streams.opening import read_role_index

        index = client.index_of(application, *read_role_index(container))
    connection = client.stream_opener(application)(index, STREAM_EXEC, to_json(request), trial=trial)
    running = ExecClient(connection, request)
    if (end := running.run()) is not None:
        return end
    if running.trial is not None:
        return _end_with_trial(client, application, *running.trial)
    from dlapp.values.messages import Phase

    deadline = time.monotonic() + _KNOWN_S
    while time.monotonic() < deadline:
        view = client.status(application)
        one = next((one for one in view.containers if one.index == index), None)
        if view.state.ended or one is None or one.finished_ms is not None or one.phase is not Phase.RUNNING:
            return ExecEnd(GONE, "the program of the container has ended, and the command with it")
        time.sleep(_POLL_INTERVAL_S)
    raise DlappError(f"the connection to container {index} broke, which ended the command; its program still runs")


def _end_with_trial(client: Client, application: AnyApplication, number: int, try_number: int) -> ExecEnd:
    """Return the end of a command whose stream broke because its trial has ended. Raises DlappError: it still runs."""
    from dlapp.sweep.results import TrialState

    sweep, deadline = client.sweep(application), time.monotonic() + _TRIAL_KNOWN_S
    while time.monotonic() < deadline:
        found = next((one for one in sweep.results(curves=False).trials if one.number == number), None)
        if found is not None and (found.state is not TrialState.RUNNING or found.tries != try_number):
            return ExecEnd(GONE, f"the program of trial {number} has ended, and the command with it")
        time.sleep(_POLL_INTERVAL_S)
    raise DlappError(f"the connection to trial {number} broke, which ended the command; its program still runs")


class ExecClient:
    """Client of one command, in the process that the user started: its streams, its terminal and its signals.

    Args:
        connection: to the command's keeper; closed at the end.
        request: the request of the command.

    Attributes:
        trial: in a sweep the trial beside which the command runs, and its try; None: it is none, or not known.
    """

    def __init__(self, connection: socket.socket, request: ExecRequest) -> None:
        self._stream, self._request = FrameStream(connection), request
        self._output = {1: bytearray(), 2: bytearray()}
        self._untaken_bytes = 0
        self._reads_input = request.interactive
        self._signals: list[int] = []
        self._passed_on: set[int] = set()
        self._end: ExecEnd | None = None
        self.trial: tuple[int, int] | None = None

    def run(self) -> ExecEnd | None:
        """Pass bytes and signals until the command has ended. Return its end; None if the stream ended before."""
        raw = self._request.terminal and self._request.interactive
        try:
            with self._caught_signals() as wake_fd, raw_terminal() if raw else contextlib.nullcontext():
                if not self._request.interactive:
                    self._stream.send(frames.INPUT_END)
                if self._request.terminal:
                    self._signals.append(signal.SIGWINCH)  # it may have changed since the request
                while self._end is None:
                    self._read_signals()
                    self._poll(wake_fd)
        except StreamClosed:
            pass
        finally:
            self._stream.close()
        for fd, data in self._output.items():
            write_all(fd, bytes(data))
        return self._end

    @contextlib.contextmanager
    def _caught_signals(self) -> Iterator[int]:
        """Collect signals during the block; the descriptor is readable when there is one."""
        wake_fd, write_fd = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before_fd = signal.set_wakeup_fd(write_fd, warn_on_full_buffer=False)
        numbers = [getattr(signal, f"SIG{name}") for name in frames.SIGNALS]
        if self._request.terminal:
            numbers.append(signal.SIGWINCH)
        before = {number: signal.signal(number, lambda number, _: self._signals.append(number)) for number in numbers}
        try:
            yield wake_fd
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
            signal.set_wakeup_fd(before_fd)
            os.close(wake_fd)
            os.close(write_fd)

    def _read_signals(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            if number == signal.SIGWINCH:
                self._stream.send(frames.SIZE, frames.size_body(*_terminal_size()))
            elif number == signal.SIGHUP or number in self._passed_on or self._request.terminal:
                # A terminal sends its keys as bytes, so this signal is for us. The command ends with the stream.
                self._end = ExecEnd(128 + number)
            else:
                # Only once: a second signal is for this process.
                self._passed_on.add(number)
                self._stream.send(frames.SIGNAL, bytes([number]))

    def _poll(self, wake_fd: int) -> None:
        if self._end is not None:
            return
        stream = self._stream
        is_full = sum(map(len, self._output.values())) >= frames.WINDOW_BYTES
        room = frames.WINDOW_BYTES - self._untaken_bytes
        poll = select.poll()
        poll.register(wake_fd, select.POLLIN)
        poll.register(stream, (0 if is_full else select.POLLIN) | (select.POLLOUT if stream.unsent_bytes else 0))
        if self._reads_input and room > 0:
            poll.register(0, select.POLLIN)
        for fd, data in self._output.items():
            if data:
                poll.register(fd, select.POLLOUT)
        events = dict(poll.poll())
        if wake_fd in events:
            with contextlib.suppress(BlockingIOError):
                os.read(wake_fd, 4096)
        for fd, data in self._output.items():
            if data and fd in events:
                del data[: os.write(fd, data[:_WRITE_BYTES])]
        if 0 in events:
            self._read_input(min(room, _READ_BYTES))
        if stream.fileno() in events:
            stream.flush()
            if not is_full:
                self._receive()

    def _read_input(self, most: int) -> None:
        try:
            data = os.read(0, most)
        except OSError:  # the terminal is gone
            data = b""
        self._untaken_bytes += len(data)
        if data:
            self._stream.send(frames.INPUT, data)
        else:
            self._reads_input = False
            self._stream.send(frames.INPUT_END)

    def _receive(self) -> None:
        for kind, body in self._stream.receive():
            match kind:
                case frames.OUTPUT:
                    self._output[1] += body
                case frames.ERROR:
                    self._output[2] += body
                case frames.CONSUMED if len(body) == 4:
                    self._untaken_bytes -= int.from_bytes(body)
                case frames.TRIAL:
                    self.trial = frames.read_trial(body)
                case frames.END:
                    self._end = frames.read_end(body)
                    return
                case _:
                    raise StreamClosed("a frame that only the client sends")


def _terminal_size() -> tuple[int, int]:
    """Return rows and columns of this process's terminal; 0 if unknown."""
    for fd in (0, 1, 2):
        with contextlib.suppress(OSError):
            size = os.get_terminal_size(fd)
            return size.lines, size.columns
    return 0, 0
