"""TensorBoard as a process of this machine, while a command runs."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time

from dlapp.errors import DlappError, NotFound
from dlapp.system.network.readiness import ReadinessProbe
from dlapp.system.processes import kernel
from dlapp.tensorboard import ARGUMENTS_VARIABLE, COMMAND, NOT_INSTALLED, arguments, new_prefix

_HOST = "127.0.0.1"
_POLL_INTERVAL_S, _TERM_TIMEOUT_S = 0.1, 10.0
_LOG = "tensorboard.log"


class TensorBoardProcess:
    """TensorBoard over a directory, in a ``with`` block. It ends with this process, even if that is killed.

    Args:
        directory: that it reads.
        work_directory: directory for its own files; exclusive to the caller.
        port: to listen on, at an address that only this machine can reach; None for any free port.

    Raises:
        NotFound: it is not installed.
        DlappError: it ended.
    """

    def __init__(self, directory: str, work_directory: str, port: int | None) -> None:
        self._log, self._prefix = os.path.join(work_directory, _LOG), new_prefix()
        self._address = _HOST, port or _free_port()
        argv = arguments(directory, *self._address, self._prefix)
        python = sys.executable if _is_installed() else COMMAND[0]
        with open(self._log, "wb") as log:
            try:
                self._process = subprocess.Popen(
                    (python, *COMMAND[1:]),
                    env={**os.environ, "TMPDIR": work_directory, ARGUMENTS_VARIABLE: json.dumps(argv)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    preexec_fn=lambda: kernel.die_with_parent(signal.SIGKILL),
                )
            except FileNotFoundError as error:
                raise NotFound(f"there is no {python} on PATH, with which TensorBoard could run") from error

    @property
    def url(self) -> str:
        """Return the URL of its pages, with a secret path."""
        return f"http://{self._address[0]}:{self._address[1]}{self._prefix}"

    def __enter__(self) -> TensorBoardProcess:
        """Wait until it answers."""
        probe = ReadinessProbe(self._address, self._prefix, os.getuid())
        try:
            while not probe.is_ready:
                self.check()
                probe.check(time.monotonic())
                time.sleep(_POLL_INTERVAL_S)
        except BaseException:
            self._end()
            raise
        finally:
            probe.close()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def check(self) -> None:
        """Raise NotFound or DlappError if it has ended."""
        code = self._process.poll()
        if code is None:
            return
        if code == NOT_INSTALLED:
            raise NotFound("tensorboard is not installed here: pip install tensorboard")
        with open(self._log, encoding="utf-8", errors="replace") as file:
            lines = [line.strip() for line in file.read().split("\n") if line.strip()]
        raise DlappError(f"TensorBoard ended with exit code {code}: {lines[-1] if lines else 'it printed nothing'}")

    def _end(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(_TERM_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _is_installed() -> bool:
    """Return whether the Python that runs this command has TensorBoard."""
    import importlib.util

    return importlib.util.find_spec("tensorboard") is not None


def _free_port() -> int:
    with socket.create_server((_HOST, 0)) as one:
        return int(one.getsockname()[1])
