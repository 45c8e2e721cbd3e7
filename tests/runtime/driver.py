"""A test's side of `tests/runtime/payload_process.py`: payloads run by a small process that a test may kill."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest

from tests.services import polling
from tests.services.users import interpreter_for_everybody

USER = 12_345
"""The ordinary user that root becomes; no account of that number is needed."""

PROGRAM = str(Path(__file__).with_name("payload_process.py"))
PATIENCE_S = 120.0


class Driven:
    """A driver that runs one payload, and what a test looks at."""

    def __init__(self, home: Path, *, as_user: bool, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.marker = f"1000.{int.from_bytes(os.urandom(6), 'big')}"
        """Seconds to sleep, in a number that no other process has on its command line."""
        self.docker: dict[str, Any] = {}
        """Settings that make `run` use Docker; set by the test."""
        self.moment_s: float | None = None
        """Another `dlapp.runtime.guardian.MOMENT_S`."""
        self.within: list[str] = []
        """Words before the driver's command."""
        self._as_user = as_user
        self._env = env or {}
        self._heard = b""
        self.process: subprocess.Popen[bytes] | None = None

    def run(
        self, script: str | bytes | None, *args: str, mode: int = 0o644, pass_fds: tuple[int, ...] = (), **payload: Any
    ) -> Driven:
        """Start the driver with a payload; MARKER in the script becomes `marker`."""
        workspace = self.home / "workspace"
        workspace.mkdir(exist_ok=True)
        (self.home / "tmp").mkdir(exist_ok=True)
        if script is not None:
            data = script.encode() if isinstance(script, str) else script
            path = workspace / "run.sh"
            path.write_bytes(data.replace(b"MARKER", self.marker.encode()))
            path.chmod(mode)
        fields: dict[str, Any] = {
            "application_id": "application_1700000000000_0001",
            "container_id": f"container_{self.marker.replace('.', '_')}",
            "directory": str(self.home),
            "script": "run.sh",
            "args": args,
            "env": {"PATH": os.environ["PATH"], "TMPDIR": str(self.home / "tmp")} if "image" not in payload else {},
        }
        described = self.home / "payload.json"
        described.write_text(json.dumps(fields | payload))
        become, python = [], sys.executable
        if self._as_user and os.geteuid() == 0:
            for path in (self.home, *self.home.rglob("*")):
                os.chown(path, USER, USER)
            become = ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
            python = str(interpreter_for_everybody())
        self.process = subprocess.Popen(
            [*self.within, *become, python, PROGRAM, str(described)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
            pass_fds=pass_fds,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), **self._moment(), **self._env},
        )
        return self

    def _moment(self) -> dict[str, str]:
        return {} if self.moment_s is None else {"MOMENT_S": str(self.moment_s)}

    def order(self, word: str) -> None:
        """Give the driver an order."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(word.encode() + b"\n")
        self.process.stdin.flush()

    def hear(self, what: str) -> dict[str, Any]:
        """Wait for a line of the driver."""
        assert self.process is not None
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_S
        while b"\n" in self._heard or select.select([self.process.stdout], [], [], deadline - time.monotonic())[0]:
            if b"\n" not in self._heard:
                if not (data := os.read(self.process.stdout.fileno(), 65536)):
                    raise AssertionError(f"the driver ended without {what!r}")
                self._heard += data
                continue
            line, _, self._heard = self._heard.partition(b"\n")
            message: dict[str, Any] = json.loads(line)
            if message["what"] == what:
                return message
            assert message["what"] not in ("ended", "refused"), message
        raise AssertionError(f"the driver did not say {what!r} in {PATIENCE_S:g} s")

    def end(self) -> dict[str, Any]:
        """Wait for the payload's end, and the driver's."""
        message = self.hear("ended")
        assert self.process is not None
        self.process.wait(timeout=PATIENCE_S)
        return message

    def out(self) -> bytes:
        """Return what the payload printed."""
        return (self.home / "stdout").read_bytes() if (self.home / "stdout").exists() else b""

    def err(self) -> bytes:
        """Return what it printed as errors."""
        return (self.home / "stderr").read_bytes() if (self.home / "stderr").exists() else b""

    def wait_for_out(self, text: bytes) -> None:
        """Wait until the payload has printed something."""
        wait_until(lambda: text in self.out(), f"the payload prints {text!r}")

    def payload_pids(self) -> list[int]:
        """Live processes of the payload: those with the marker on their command line."""
        return [pid for pid in pids() if self.marker in command_line(pid)]

    def guardian_pids(self) -> tuple[int, int]:
        """The guardian's two processes, outer and inner."""
        assert self.process is not None
        (outer,) = children(self.process.pid)
        (inner,) = children(outer)
        return outer, inner

    def close(self) -> None:
        """Leave nothing behind, whatever a failed test left."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            for stream in (self.process.stdin, self.process.stdout):
                assert stream is not None
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        for pid in self.payload_pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def pids() -> list[int]:
    """All processes."""
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_line(pid: int) -> str:
    """A process's command line; empty when it is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ""


def children(pid: int) -> list[int]:
    """Live children of a process."""
    found = []
    for item in pids():
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{item}/stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == pid and fields[0] != "Z":
                found.append(item)
    return found


def own_pid(pid: int) -> int:
    """The number that a process has for itself, in its pid namespace."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("\nNSpid:")[2].partition("\n")[0].split()[-1])


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = PATIENCE_S) -> None:
    """Wait for a condition."""
    polling.wait_until(condition, timeout_s, what)


@pytest.fixture
def place() -> Generator[Path, None, None]:
    """A directory that an ordinary user can be given too: pytest's own are closed to others."""
    directory = Path(tempfile.mkdtemp(prefix="dlapp-test-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture(params=["namespace", "subreaper"])
def runner(request: pytest.FixtureRequest, place: Path) -> Generator[Driven, None, None]:
    """A driver that may make a pid namespace, and one of an ordinary user, who may not."""
    if request.param == "namespace" and os.geteuid() != 0:
        pytest.skip("a pid namespace needs root")
    driven = Driven(place, as_user=request.param == "subreaper")
    yield driven
    driven.close()


@pytest.fixture
def plain(place: Path) -> Generator[Driven, None, None]:
    """A driver as the tests' own user, for what is the same in both."""
    driven = Driven(place, as_user=False)
    yield driven
    driven.close()


def has_holder(path: str) -> bool:
    """Return whether anybody holds the reading end of a lifeline, or waits to; of an absent FIFO nobody does."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
    except FileNotFoundError:
        return False
    except OSError as error:
        if error.errno == errno.ENXIO:
            return False
        raise
    return True
