"""Server of dlapp-run's requests: it runs a command for each one, and sends back its output.

Both use a directory that they share (in Docker it is mounted read-only): ``dlapp-run.sh`` describes its content. A
FIFO needs nothing but a shell to be used, so dlapp-run works in images without Python, and it can be written where
nothing else can. Whoever can write into the request FIFO may submit the shell's application as the caller.

The programs inside are not trusted. A reply's FIFO is created and opened in the session's directory, which is not
mounted, and only then moved to the shared one; from then on its descriptor is used and never its name. So a link, or
another FIFO under that name, has no effect.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote_to_bytes

from dlapp.system import files
from dlapp.value import Closeable

_HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT, RC_SCRIPT = os.path.join(_HERE, "dlapp-run.sh"), os.path.join(_HERE, "shell-rc.sh")
SHARED_DIRECTORY = "shared"
"""The part of a session's directory that the shell sees, in Docker as /dlapp/shell."""
REQUESTS = "requests"
"""The FIFO that dlapp-run writes to."""
LIFE = "life"
"""A FIFO that is open for writing while dlapp-shell lives: a reader sees its end of file when that is gone."""
BIN = "bin"
RC = "bashrc"
"""File that bash reads at its start in place of ~/.bashrc."""
START_VARIABLE = "DLAPP_SHELL_START"
DIRECTORY_VARIABLE = "DLAPP_SHELL_DIR"
READER_TIMEOUT_S = 10.0

END_TIMEOUT_S = 10.0
"""Time for an interrupted submission to end before it is killed; a submission is atomic."""

MAX_REQUESTS = 8
"""Requests that are served at the same time; each costs a process outside. One more is not answered."""

_REQUEST = re.compile(rb"([0-9]{1,10})((?: (?:[A-Za-z0-9_.=-]|%[0-9A-F]{2})+| %)*) ?", re.ASCII)
_MAX_LINE_BYTES = 4096
"""Maximum length of a message: longer ones could be interleaved with others. Source: pipe(7), PIPE_BUF."""


def install(session: str) -> None:
    """Put into a session's directory what the shell needs: its start file, dlapp-run, and the FIFO of requests."""
    directory = os.path.join(session, SHARED_DIRECTORY)
    os.makedirs(os.path.join(directory, BIN), 0o755)
    for source, name, mode in ((SCRIPT, os.path.join(BIN, "dlapp-run"), 0o755), (RC_SCRIPT, RC, 0o644)):
        path = os.path.join(directory, name)
        shutil.copyfile(source, path)
        os.chmod(path, mode)
    for name in (REQUESTS, LIFE):
        os.mkfifo(os.path.join(directory, name), 0o600)


class ShellRequestServer(Closeable):
    """Server of the requests of one session, in a thread that the ``with`` block ends.

    Args:
        session: its directory, after `install`; nobody but this user can write it.
        command: executes a request; the request's options are appended.
        environment: the environment of the command.
    """

    def __init__(self, session: str, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> None:
        self._command, self._cwd = list(command), cwd
        self._environment = dict(environment)
        mine = (os.geteuid(),)
        self._private = files.open_directory(session, owners=mine)
        self._shared = files.open_directory(
            SHARED_DIRECTORY, dir_fd=self._private, path=os.path.join(session, SHARED_DIRECTORY), owners=mine
        )
        # Also opened for writing: so reads never return end of file while there is no request.
        self._requests = files.open_file(REQUESTS, dir_fd=self._shared, owners=mine, write=True, kind=stat.S_IFIFO)
        self._life = files.open_file(LIFE, dir_fd=self._shared, owners=mine, write=True, kind=stat.S_IFIFO)
        self._closing, self._close = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="shell-requests")
        self._replies: list[threading.Thread] = []

    def __enter__(self) -> ShellRequestServer:
        self._thread.start()
        return self

    def close(self) -> None:
        """End: interrupt a running submission, as by Ctrl-C."""
        os.close(self._close)
        self._thread.join()
        for thread in self._replies:
            thread.join()
        for fd in (self._closing, self._life, self._requests, self._shared, self._private):
            os.close(fd)

    def _serve(self) -> None:
        received = b""
        while True:
            ready, _, _ = select.select([self._requests, self._closing], [], [])
            if self._closing in ready:
                return
            with contextlib.suppress(BlockingIOError):
                received += os.read(self._requests, _MAX_LINE_BYTES)
            *lines, received = received.split(b"\n")
            received = received[-_MAX_LINE_BYTES:]
            for line in lines:
                self._replies = [one for one in self._replies if one.is_alive()]
                if (match := _REQUEST.fullmatch(line)) and len(self._replies) < MAX_REQUESTS:
                    arguments = [_decode_argument(text) for text in match[2].split()]
                    if not all(word.isascii() and word.isprintable() for word in arguments):
                        continue
                    thread = threading.Thread(
                        target=self._reply, args=(match[1].decode(), arguments), name="shell-reply"
                    )
                    thread.start()
                    self._replies.append(thread)

    def _reply(self, number: str, arguments: Sequence[str]) -> None:
        # This thread has no caller to report to; dlapp-run reports that it got no answer.
        with contextlib.suppress(OSError), self._reply_fifo(f"reply.{number}") as fifo:
            if (reply := self._open_for_reader(fifo)) is not None:
                with files.closing_fd(reply):
                    self._relay(reply, arguments)

    @contextlib.contextmanager
    def _reply_fifo(self, name: str) -> Iterator[int]:
        """Create a FIFO that the shell sees under ``name`` while the block runs; yield an O_PATH descriptor of it.

        No descriptor here can read it: between fork and exec each process that another thread starts would have it
        too, and would be taken for the shell.
        """
        os.mkfifo(name, 0o600, dir_fd=self._private)
        try:
            with files.closing_fd(
                os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._private)
            ) as handle:
                # Replaces the FIFO of a killed request with the same number.
                os.rename(name, name, src_dir_fd=self._private, dst_dir_fd=self._shared)
                try:
                    yield handle
                finally:
                    with contextlib.suppress(OSError):  # a plain shell has the same uid and may have removed it
                        os.unlink(name, dir_fd=self._shared)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._private)

    def _open_for_reader(self, fifo: int) -> int | None:
        """Open a FIFO for writing as soon as there is a reader; None if there is none, or the shell closes."""
        deadline = time.monotonic() + READER_TIMEOUT_S
        while True:
            try:
                return os.open(f"/proc/self/fd/{fifo}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            except OSError as error:
                if error.errno != errno.ENXIO:  # there is no reader. Source: fifo(7)
                    raise
            if time.monotonic() >= deadline or _readable(self._closing):
                return None
            time.sleep(0.01)

    def _relay(self, reply: int, arguments: Sequence[str]) -> None:
        process = subprocess.Popen(
            [*self._command, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self._environment,
            cwd=self._cwd,
            start_new_session=True,  # the terminal's signals are for the shell
        )
        assert process.stdout is not None
        assert process.stderr is not None
        with process:
            marks = {process.stdout.fileno(): b"o ", process.stderr.fileno(): b"e "}
            rests = dict.fromkeys(marks, b"")
            is_read, killed_at = True, float("inf")
            while marks:
                poll = select.poll()
                for fd in marks:
                    poll.register(fd, select.POLLIN)
                if is_read:
                    poll.register(reply, 0)  # POLLERR is always reported once the reader is gone
                    poll.register(self._closing, select.POLLIN)
                left_s = killed_at - time.monotonic()
                events = poll.poll(None if left_s == float("inf") else max(0, left_s) * 1000)
                if not events:
                    _signal_group(process.pid, signal.SIGKILL)
                    killed_at = float("inf")
                for fd, _event in events:
                    listening = fd in marks
                    if listening:
                        data = os.read(fd, 65536)
                        *lines, rests[fd] = (rests[fd] + data).split(b"\n")
                        if not data and rests[fd]:
                            lines.append(rests[fd])
                        text = b"".join(marks[fd] + line + b"\n" for line in lines)
                        if not data:
                            del marks[fd]
                        listening = not is_read or self._send(reply, text)
                    if is_read and not listening:
                        is_read, killed_at = False, time.monotonic() + END_TIMEOUT_S
                        _signal_group(process.pid, signal.SIGINT)
            code = process.wait()
        if is_read:
            self._send(reply, b"x %d\n" % (code if code >= 0 else 128 - code))

    def _send(self, reply: int, data: bytes) -> bool:
        """Write all data, as fast as it is read; return False if the reader is gone, or the shell closes."""
        while data:
            try:
                data = data[os.write(reply, data) :]
            except BlockingIOError:
                select.select([self._closing], [reply], [])
                if _readable(self._closing):
                    return False
            except BrokenPipeError:
                return False
        return True


def _decode_argument(text: bytes) -> str:
    """Return the value of an encoded word of a request."""
    return "" if text == b"%" else unquote_to_bytes(text).decode("latin-1")


def _signal_group(pid: int, number: signal.Signals) -> None:
    """Send a signal as the terminal does: to the command and the children that it waits for, not to a runner that it
    started.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
