"""Session of one command: bytes between the client's stream and the command, until either ends.

The command, wherever it runs, is an `ExecTarget`. Only the poll blocks, so a signal, a new terminal size or the end of
the client is handled whatever the command does. Only a bounded amount of output is read ahead of the client; input is
limited by a window (`dlapp.net.exec_frames`).
"""

from __future__ import annotations

import select
import signal
from collections.abc import Sequence
from typing import Protocol

from dlapp.net import exec_frames as frames
from dlapp.net.exec_frames import ExecEnd, FrameStream, StreamClosed

_END_TIMEOUT_S = 30.0
"""How long to try to report the end to a client that does not read."""


def send_end(stream: FrameStream, end: ExecEnd) -> None:
    """Send the client the end of the command, and wait until it has received that. Raises StreamClosed."""
    stream.send(frames.END, frames.end_body(end))
    stream.finish(_END_TIMEOUT_S)


class ExecTarget(Protocol):
    """A running command."""

    def output_fds(self) -> list[int]:
        """Return the descriptors to poll for output; empty at the end of the output."""

    def read(self, fd: int) -> list[tuple[bytes, bytes]]:
        """Return the available data of one of them: OUTPUT or ERROR, and bytes."""

    def input_fd(self) -> int | None:
        """Return the descriptor to poll for writing input; None if the command accepts none any more."""

    def write(self, data: bytes) -> int:
        """Write input to the command; return the number of bytes accepted."""

    def end_input(self) -> None:
        """Signal the end of the input."""

    def resize(self, rows: int, columns: int) -> None:
        """Change the size of the terminal."""

    def send_signal(self, number: int) -> None:
        """Send a signal to the command."""

    def wake_fd(self) -> int | None:
        """Return a descriptor that is readable when `ended` may have changed."""

    def wait_s(self) -> float | None:
        """Return when to call `ended` again [s]; None to wait for a descriptor."""

    def ended(self) -> ExecEnd | None:
        """Return how the command ended, once all of its processes have; None before."""

    def end(self) -> None:
        """End all processes of the command; return when they have ended. Idempotent."""


class ExecSession:
    """The loop of one session."""

    def __init__(self, stream: FrameStream, target: ExecTarget) -> None:
        self._stream, self._target = stream, target
        self._input = bytearray()
        self._is_input_over = False

    def run(self, early: Sequence[tuple[bytes, bytes]] = ()) -> None:
        """Pass bytes until the command has ended or the client has disconnected; then end all processes of the command.

        Args:
            early: output that was already read, in the form of `ExecTarget.read`.
        """
        try:
            for kind, data in early:
                self._stream.send(kind, data)
            self._pass_bytes()
        except StreamClosed:
            pass  # the client has disconnected
        finally:
            self._target.end()
            self._stream.close()

    def _pass_bytes(self) -> None:
        target, stream = self._target, self._stream
        while True:
            end = target.ended()
            may_read = stream.unsent_bytes < frames.WINDOW_BYTES
            outputs = target.output_fds() if may_read else []
            if end is not None and may_read and not outputs:
                break
            self._poll(outputs, end)
        send_end(stream, end)

    def _poll(self, outputs: list[int], end: ExecEnd | None) -> None:
        target, stream = self._target, self._stream
        poll = select.poll()
        poll.register(stream, select.POLLIN | (select.POLLOUT if stream.unsent_bytes else 0))
        for fd in outputs:
            poll.register(fd, select.POLLIN)
        input_fd = target.input_fd() if self._input and end is None else None
        if input_fd is not None:
            # A socket or a terminal is one descriptor for both directions.
            poll.register(input_fd, select.POLLOUT | (select.POLLIN if input_fd in outputs else 0))
        if (wake_fd := target.wake_fd()) is not None:
            poll.register(wake_fd, select.POLLIN)
        wait_s = target.wait_s()
        events = dict(poll.poll(None if wait_s is None else max(1, int(wait_s * 1000))))
        if stream.fileno() in events:
            stream.flush()
            for kind, body in stream.receive():
                self._handle_frame(kind, body)
        for fd in outputs:
            if fd in events and (fd != input_fd or events[fd] & ~select.POLLOUT):
                for kind, data in target.read(fd):
                    stream.send(kind, data)
        if input_fd is not None and events.get(input_fd, 0) & ~select.POLLIN:
            self._write_input()

    def _handle_frame(self, kind: bytes, body: bytes) -> None:
        match kind:
            case frames.INPUT:
                self._input += body
                if len(self._input) > frames.WINDOW_BYTES:
                    raise StreamClosed("more input than the command has taken")
                self._write_input()
            case frames.INPUT_END:
                self._is_input_over = True
                self._write_input()
            case frames.SIZE:
                self._target.resize(*frames.read_size(body))
            case frames.SIGNAL:
                if len(body) == 1 and body[0] in _SIGNALS:
                    self._target.send_signal(body[0])
            case _:
                raise StreamClosed("a frame that only the keeper sends")

    def _write_input(self) -> None:
        if self._input:
            if self._target.input_fd() is None:
                taken = len(self._input)  # it will never be read
            else:
                taken = self._target.write(bytes(self._input[: frames.MAX_BODY_BYTES]))
            del self._input[:taken]
            if taken:
                self._stream.send(frames.CONSUMED, taken.to_bytes(4))
        if self._is_input_over and not self._input:
            self._target.end_input()


_SIGNALS = frozenset(getattr(signal, f"SIG{name}") for name in frames.SIGNALS)
