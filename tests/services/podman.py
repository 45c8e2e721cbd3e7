"""A Podman for tests that answers as Docker does: its own data and state, and a socket of its own.

It touches nothing of another Podman of the machine. It needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.services.install import SEARCH

_START_S = 30.0


class Podman:
    """The service, in ``directory``."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.host = f"unix://{directory}/podman.sock"
        (directory / "containers.conf").write_text('[engine]\nlock_type = "file"\n')
        self._env = {**os.environ, "CONTAINERS_CONF": str(directory / "containers.conf")}
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def _words(self) -> list[str]:
        program = shutil.which("podman", path=SEARCH)
        assert program is not None
        places = [f"--{name}={self.directory}/{name}" for name in ("root", "runroot", "tmpdir")]
        # What works with neither systemd nor a disk of its own.
        return [program, *places, "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file"]

    @property
    def version(self) -> str:
        """As the program tells it."""
        return self.podman("version", "--format={{.Client.Version}}").strip()

    def podman(self, *words: str, stdin: bytes = b"") -> str:
        """Run the command."""
        done = subprocess.run([*self._words, *words], input=stdin, env=self._env, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def start(self) -> None:
        """Start it and wait until it listens."""
        with open(self.directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*self._words, "system", "service", "--time=0", self.host],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self._env,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not (self.directory / "podman.sock").exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("podman does not start:\n" + (self.directory / "log").read_text())
            time.sleep(0.02)

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextlib.contextmanager
def own_podman() -> Generator[Podman, None, None]:
    """A service for some tests."""
    if os.geteuid() != 0:
        pytest.skip("a Podman of the tests' own needs root")
    if shutil.which("podman", path=SEARCH) is None:
        pytest.skip("no podman (make test installs it on Debian and Ubuntu)")
    directory = Path(tempfile.mkdtemp(prefix="dlapp-podman-"))
    podman = Podman(directory)
    try:
        podman.start()
        yield podman
    finally:
        podman.stop()
        shutil.rmtree(directory, ignore_errors=True)
