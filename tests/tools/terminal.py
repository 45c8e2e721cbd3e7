"""A command on a terminal of its own, typed at and read as a user would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from tests.applications import BIN

_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")


class Terminal:
    """Runs ``command`` in a new session with a pty as its controlling terminal; the ``with`` block ends it."""

    def __init__(
        self, command: str, *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        argv = [str(BIN / command), *map(str, args)]
        whole = {**os.environ, "TERM": "xterm", "PS1": "$ ", **(env or {})}
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            try:
                _set_size(0, 40, 120)  # here: the command may ask before the other process goes on
                signal.signal(signal.SIGHUP, signal.SIG_DFL)  # who runs the tests under nohup has it ignored
                if cwd is not None:
                    os.chdir(cwd)
                os.execve(argv[0], argv, whole)
            finally:
                os._exit(126)
        os.set_inheritable(self._master, False)  # another terminal's command would keep this one open
        self.raw = b""
        self._status: int | None = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.hang_up()
        if self._status is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)

    @property
    def text(self) -> str:
        """All that was shown, without what steers the terminal."""
        return _CONTROL.sub(b"", self.raw).decode(errors="replace")

    def resize(self, lines: int, columns: int) -> None:
        """Change the window's size."""
        _set_size(self._master, lines, columns)

    def type(self, text: str) -> None:
        """Press keys; ``\\x03`` is Ctrl-C."""
        os.write(self._master, text.encode())

    def expect(self, pattern: str, timeout_s: float = 120.0) -> re.Match[str]:
        """Read until ``pattern`` is found in what was not matched before."""
        deadline = time.monotonic() + timeout_s
        start = getattr(self, "_seen", 0)
        while True:
            if match := re.compile(pattern, re.MULTILINE).search(self.text, start):
                self._seen = match.end()
                return match
            left = deadline - time.monotonic()
            assert left > 0, f"{pattern!r} did not come; there was:\n{self.text[start:]}"
            assert self._read(left), f"{pattern!r} did not come before the end; there was:\n{self.text[start:]}"

    def _read(self, timeout_s: float) -> bool:
        if not select.select([self._master], [], [], timeout_s)[0]:
            return True
        try:
            data = os.read(self._master, 65536)
        except OSError:  # EIO: nobody has it open any more
            return False
        self.raw += data
        return bool(data)

    def wait(self, timeout_s: float = 120.0) -> int:
        """Read on until the command ends: its exit code, minus the number of a signal."""
        deadline = time.monotonic() + timeout_s
        while self._status is None:
            self._read(0.02)
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._status = status
            assert time.monotonic() < deadline, f"it did not end; there was:\n{self.text}"
        # The kernel passes on what was written a moment later: until it says that nobody has the terminal open.
        while self._read(0.02):
            assert time.monotonic() < deadline, f"somebody has the terminal open; there was:\n{self.text}"
        return os.waitstatus_to_exitcode(self._status)

    def hang_up(self) -> None:
        """Close the terminal, as closing its window does. May be repeated."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1


def _set_size(fd: int, lines: int, columns: int) -> None:
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
