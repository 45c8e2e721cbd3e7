"""The outside of dlapp-run: takes what the script inside asks for, has it done, and sends back what is printed.

They meet in a directory that both see (in Docker it is mounted): ``dlapp-run.sh`` says what lies in it. A FIFO needs
nothing but a shell to be used, so dlapp-run works in images without Python. Whoever can write into the directory may
submit as the caller; it is the caller's own, mode 0700.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "dlapp-run.sh")
ASK = "ask"
BIN = "bin"
FILE_VARIABLE = "DLAPP_SHELL_FILE"
DIRECTORY_VARIABLE = "DLAPP_SHELL_DIR"
READER_COMES_WITHIN_S = 10.0

ENDS_WITHIN_S = 10.0
"""What was interrupted has this long before it is killed; submitting is all or nothing at any moment."""

_REQUEST = re.compile(rb"([0-9]{1,10})((?: [A-Za-z0-9_.=-]{1,100}){0,20}) ?", re.ASCII)
_PAGE = 4096
"""Longer words could be written in pieces that others come between. Source: pipe(7), PIPE_BUF."""


def furnish(directory: str) -> None:
    """Put into a directory what dlapp-run needs: its script, and the FIFO to ask through."""
    os.mkdir(os.path.join(directory, BIN), 0o755)
    with open(SCRIPT, "rb") as source:
        script = source.read()
    path = os.path.join(directory, BIN, "dlapp-run")
    with open(path, "wb") as file:
        file.write(script)
    os.chmod(path, 0o755)
    os.mkfifo(os.path.join(directory, ASK), 0o600)


class Desk:
    """Answers the requests of one directory, from a thread that the ``with`` block ends.

    Args:
        command: what does the work; the request's options are put behind it.
        environment: what it runs in.
    """

    def __init__(self, directory: str, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> None:
        self._directory, self._command, self._cwd = directory, list(command), cwd
        self._environment = dict(environment)
        # Opened for writing as well: so reads never find an end while nobody asks.
        self._ask = os.open(os.path.join(directory, ASK), os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._closing, self._close = os.pipe2(os.O_CLOEXEC)
        self._thread = threading.Thread(target=self._serve, name="shell-desk")
        self._answers: list[threading.Thread] = []

    def __enter__(self) -> Desk:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End: what is being submitted is interrupted, as by Ctrl-C."""
        os.close(self._close)
        self._thread.join()
        for thread in self._answers:
            thread.join()
        os.close(self._closing)
        os.close(self._ask)

    def _serve(self) -> None:
        heard = b""
        while True:
            ready, _, _ = select.select([self._ask, self._closing], [], [])
            if self._closing in ready:
                return
            with contextlib.suppress(BlockingIOError):
                heard += os.read(self._ask, _PAGE)
            *lines, heard = heard.split(b"\n")
            heard = heard[-_PAGE:]
            for line in lines:
                if match := _REQUEST.fullmatch(line):
                    words = [word.decode() for word in match[2].split()]
                    thread = threading.Thread(target=self._answer, args=(match[1].decode(), words), name="shell-answer")
                    thread.start()
                    self._answers = [one for one in self._answers if one.is_alive()] + [thread]

    def _answer(self, number: str, words: Sequence[str]) -> None:
        path = os.path.join(self._directory, f"reply.{number}")
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)  # of one with the same number that was killed
        os.mkfifo(path, 0o600)
        try:
            reply = self._open_for_reader(path)
            if reply is not None:
                try:
                    self._relay(reply, words)
                finally:
                    os.close(reply)
        finally:
            os.unlink(path)

    def _open_for_reader(self, path: str) -> int | None:
        """The writing end, once somebody reads; None: nobody came."""
        deadline = time.monotonic() + READER_COMES_WITHIN_S
        while time.monotonic() < deadline and not _readable(self._closing):
            with contextlib.suppress(OSError):  # ENXIO: nobody reads yet
                return os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            time.sleep(0.01)
        return None

    def _relay(self, reply: int, words: Sequence[str]) -> None:
        process = subprocess.Popen(
            [*self._command, *words],
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
            heard, killed_at = True, float("inf")
            while marks:
                poll = select.poll()
                for fd in marks:
                    poll.register(fd, select.POLLIN)
                if heard:
                    poll.register(reply, 0)  # POLLERR comes unasked once the reader goes away
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
                        listening = not heard or self._send(reply, text)
                    if heard and not listening:
                        heard, killed_at = False, time.monotonic() + ENDS_WITHIN_S
                        _signal_group(process.pid, signal.SIGINT)
            code = process.wait()
        if heard:
            self._send(reply, b"x %d\n" % (code if code >= 0 else 128 - code))

    def _send(self, reply: int, data: bytes) -> bool:
        """Write all of it, as fast as it is read; False: the reader went away, or the shell closes."""
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


def _signal_group(pid: int, number: signal.Signals) -> None:
    """As the terminal does it: to the command and what it waits for. A runner that it started is in no group of it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, number)


def _readable(fd: int) -> bool:
    return bool(select.select([fd], [], [], 0)[0])
