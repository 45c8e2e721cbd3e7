"""Command in the container of a payload, by Docker's own exec.

Docker gives it the container's user, limits, devices and environment, and does not end it when its client disconnects.
So it has a lifeline like the payload's own (`dlapp.runtime.exec.lifelines`): a shell in the container that reads it
ends the command's whole session when the last writer is gone. The end of the container also ends it.

Variables that were added at the payload's start are in a file that the container's own wrapper also reads.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import time

from dlapp.net import exec_frames as frames
from dlapp.net.dockerd import Dockerd, DockerError, DockerRefused, DockerSilent
from dlapp.net.exec_frames import ExecEnd, ExecRequest
from dlapp.runtime.docker.container_factory import EXEC
from dlapp.runtime.exec.lifelines import END
from dlapp.runtime.lifeline import Lifeline
from dlapp.system.clock import backoff_s

NO_ANSWER = 125
"""Exit code if Docker does not report how a command ended; Docker's own programs use it, too."""
_END_S = 5.0
_LOOK_AGAIN_S = 0.002, 0.1
"""Pauses between two requests for the exit code, which Docker has some milliseconds after the end of the output."""
_READ_BYTES = 1 << 16
_HEAD_BYTES = 8
_KINDS = {0: frames.OUTPUT, 1: frames.OUTPUT, 2: frames.ERROR}
"""Kinds of Docker's frames. A frame's length has 4 bytes, so its content is passed on as it arrives, and not
buffered."""
_SCRIPT = f"""
exec 4<"$1" || exit 125
shift
read -r _dlapp_word <&4 && [ "$_dlapp_word" = go ] || exit 125
if [ -f /dlapp/run/env.sh ]; then . /dlapp/run/env.sh || exit 125; fi
unset TINI_KILL_PROCESS_GROUP _dlapp_word
(
    trap '' HUP INT QUIT USR1 USR2 TERM ABRT PIPE
    exec </dev/null >/dev/null 2>&1
    read -r own rest </proc/self/stat
    send() {{
        for entry in /proc/[0-9]*; do
            read -r line <"$entry/stat" || continue
            # 17 (a name) S parent group session ...
            set -- ${{line##*) }}
            [ "$4" = "$$" ] && [ "${{entry#/proc/}}" != "$own" ] || continue
            found=1
            kill -s "$signal" "${{entry#/proc/}}"
        done
    }}
    while read -r word <&4 && [ "$word" != {END} ]; do kill -s "$word" -- "-$$"; done
    found=
    for signal in HUP TERM CONT; do send; done
    [ -z "$found" ] || sleep 1
    signal=KILL
    send
) &
exec 4<&-
command -v "$1" >/dev/null 2>&1 || {{ echo "dlapp-exec: $1: not found in the container" >&2; exit 127; }}
exec "$@"
"""
"""Plain POSIX sh, as the first process of the command's session: the parent of none, for it becomes the command."""


class DockerTarget:
    """The `ExecTarget` of a command in a container. It starts when created; `begin` waits for the start.

    Args:
        directory: the directory of the lifelines, on this host.

    Raises:
        DockerRefused: the container does not run, with status 409; or another refusal.
        DockerSilent: Docker does not answer.
    """

    def __init__(self, docker: Dockerd, container: str, directory: str, request: ExecRequest) -> None:
        self._docker, self._request = docker, request
        self._buffer = bytearray()
        self._kind, self._left = frames.OUTPUT, 0  # of the frame that is being read
        self._end: ExecEnd | None = None
        self._is_over = self._is_input_over = False
        name = secrets.token_hex(8)
        self._path = os.path.join(directory, name)
        self._lifeline = Lifeline(self._path)
        self._exec_id = ""
        self._stream: socket.socket | None = None
        try:
            self._exec_id = docker.create_exec(
                container,
                {
                    "AttachStdin": request.interactive,
                    "AttachStdout": True,
                    "AttachStderr": True,
                    "Tty": request.terminal,
                    "Cmd": ["/bin/sh", "-c", _SCRIPT, "dlapp-exec", f"{EXEC}/{name}", *request.command],
                    "Env": [f"TERM={request.term}"] if request.terminal and request.term else [],
                },
            )
            self._stream = docker.start_exec(self._exec_id, terminal=request.terminal)
        except DockerError:
            self._close_lifeline()
            raise

    def begin(self) -> list[tuple[bytes, bytes]]:
        """Wait until the command has started. Return its output so far, for the start of the session.

        Raises:
            DockerRefused, DockerSilent: it has not started, and this object is closed.
        """
        assert self._stream is not None
        try:
            self._buffer += self._docker.await_exec(self._stream)
        except DockerError as error:
            self._end = ExecEnd(NO_ANSWER, str(error))
            self.end()
            raise
        self._stream.setblocking(False)
        if self._request.rows and self._request.columns:
            self.resize(self._request.rows, self._request.columns)
        return self._pieces()

    def output_fds(self) -> list[int]:
        return [] if self._stream is None or self._is_over else [self._stream.fileno()]

    def read(self, fd: int) -> list[tuple[bytes, bytes]]:
        assert self._stream is not None
        assert fd == self._stream.fileno()
        try:
            data = self._stream.recv(_READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        self._is_over = not data
        self._buffer += data
        return self._pieces()

    def _pieces(self) -> list[tuple[bytes, bytes]]:
        if self._request.terminal:
            data = bytes(self._buffer)
            self._buffer.clear()
            return [(frames.OUTPUT, data)] if data else []
        found: list[tuple[bytes, bytes]] = []
        at = 0
        while at < len(self._buffer):
            if self._left:
                piece = bytes(self._buffer[at : at + self._left])
                found.append((self._kind, piece))
                self._left -= len(piece)
                at += len(piece)
                continue
            start = at + _HEAD_BYTES
            if len(self._buffer) < start:
                break
            kind = _KINDS.get(self._buffer[at])
            if kind is None:
                self._is_over = True  # what follows cannot be read
                at = len(self._buffer)
                break
            self._kind, self._left = kind, int.from_bytes(self._buffer[at + 4 : start])
            at = start
        del self._buffer[:at]
        return found

    def input_fd(self) -> int | None:
        return None if self._stream is None or self._is_over or self._is_input_over else self._stream.fileno()

    def write(self, data: bytes) -> int:
        assert self._stream is not None
        try:
            return self._stream.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self._is_input_over = True
            return len(data)

    def end_input(self) -> None:
        if self._stream is None or self._is_input_over:
            return
        self._is_input_over = True
        with contextlib.suppress(OSError):
            if self._request.terminal:
                self._stream.send(b"\x04")  # like Ctrl-D; Docker does not pass on the end of the stream
            else:
                self._stream.shutdown(socket.SHUT_WR)

    def resize(self, rows: int, columns: int) -> None:
        if self._request.terminal and not self._is_over:
            with contextlib.suppress(DockerError):  # it has just ended
                self._docker.resize_exec(self._exec_id, rows, columns)

    def send_signal(self, number: int) -> None:
        self._lifeline.send(signal.Signals(number).name.removeprefix("SIG"))

    def wake_fd(self) -> None:
        """See `ExecTarget.wake_fd`. Docker's stream ends with the command."""

    def wait_s(self) -> float | None:
        return None

    def ended(self) -> ExecEnd | None:
        if self._is_over and self._end is None:
            self._end = self._wait_for_end()
            self._close_lifeline()
        return self._end

    def _wait_for_end(self) -> ExecEnd:
        deadline, why = time.monotonic() + _END_S, "it still runs"
        for pause_s in backoff_s(*_LOOK_AGAIN_S):
            try:
                about = self._docker.inspect_exec(self._exec_id)
                if not about.get("Running") and isinstance(code := about.get("ExitCode"), int):
                    return ExecEnd(code & 255)
            except DockerRefused as error:
                # Docker forgets the commands of a removed container.
                return ExecEnd(128 + signal.SIGKILL, f"the container has ended ({error})")
            except DockerSilent as error:
                why = str(error)
            if time.monotonic() > deadline:
                return ExecEnd(NO_ANSWER, f"Docker does not say how the command ended: {why}")
            time.sleep(pause_s)
        raise AssertionError

    def end(self) -> None:
        self._close_lifeline()
        if self._stream is not None:
            self._stream.close()
            self._stream = None
            if self._end is None:
                self._end = self._wait_for_end()

    def _close_lifeline(self) -> None:
        self._lifeline.close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path)
