"""A Podman for tests that answers as Docker does: its own data and state, and a socket of its own.

It touches nothing of another Podman of the machine. It needs root. One of another release than the machine's runs in a
root file system of its own, in which it sees the machine's /tmp and this repository.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from dlapp.net.dockerd import Dockerd
from tests.services import needs
from tests.services.containers import gpu_programs
from tests.services.containers.dockerd import busybox_root
from tests.services.install import SEARCH

IMAGE = "localhost/dlapp-test/gpu:latest"
"""busybox, with an nvidia-smi."""
_START_S = 120.0
_REPOSITORY = Path(__file__).parents[3]
_IN_ROOT = """
set -e
root=$1 repository=$2 directory=$3
shift 3
mount --bind "$root" "$root"
for place in /proc /sys /dev /tmp; do mount --rbind "$place" "$root$place"; done
mkdir -p "$root$repository" "$root$directory" "$root/etc/cdi"
mount --bind "$repository" "$root$repository"
mount --bind "$directory" "$root$directory"
mount --bind "$directory/cdi" "$root/etc/cdi"
cd "$root"
pivot_root . old
cd /
exec "$@"
"""


class Podman:
    """The service, in ``directory``; its socket and version, and CDI's specifications in ``cdi``."""

    def __init__(self, directory: Path, root: Path | None = None) -> None:
        self.directory, self.cdi = directory, directory / "cdi"
        self.docker = Dockerd(f"unix://{directory}/podman.sock", 120)
        self.host = self.docker.host
        self.version = ""
        self._root = root
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, wait until it listens, and make the image."""
        self.cdi.mkdir()
        conf = self.directory / "containers.conf"
        conf.write_text('[engine]\nlock_type = "file"\n')
        env = {**os.environ, "PATH": SEARCH, "CONTAINERS_CONF": str(conf), "PODMAN_IGNORE_CGROUPSV1_WARNING": "1"}
        places = [f"--{name}={self.directory}/{name}" for name in ("root", "runroot", "tmpdir")]
        # What works with neither systemd nor a disk of its own.
        program = ["podman", *places, "--storage-driver=vfs", "--cgroup-manager=cgroupfs", "--events-backend=file"]
        within: list[str] = []
        if self._root is not None:
            words = [self._root, _REPOSITORY, self.directory]
            within = ["unshare", "--mount", "sh", "-c", _IN_ROOT, "sh", *map(str, words)]
            program.append("--runtime=runc")  # crun does not work everywhere
        asked = subprocess.run([*within, "podman", "--version"], env=env, capture_output=True, text=True, check=True)
        self.version = asked.stdout.split()[-1]
        with open(self.directory / "log", "wb") as log:
            self._process = subprocess.Popen(
                [*within, *program, "system", "service", "--time=0", self.host],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=env,
                start_new_session=True,
            )
        deadline = time.monotonic() + _START_S
        while not self._listens():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("podman does not start:\n" + (self.directory / "log").read_text())
            time.sleep(0.02)
        query = {"fromSrc": "-", "repo": IMAGE.removesuffix(":latest"), "changes": "ENV NVIDIA_VISIBLE_DEVICES=all"}
        body = busybox_root({"bin/nvidia-smi": gpu_programs.NVIDIA_SMI.encode()})
        self.docker.call("POST", "/images/create", query=query, body=body)

    def _listens(self) -> bool:
        # Its socket is there a moment before it listens on it.
        with socket.socket(socket.AF_UNIX) as link:
            return link.connect_ex(str(self.directory / "podman.sock")) == 0

    def containers(self) -> list[str]:
        """Names of all containers, whatever their state."""
        return [item.name for item in self.docker.labelled([])]

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.terminate()
            try:
                self._process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


@contextlib.contextmanager
def own_podman(root: Path | None = None) -> Generator[Podman, None, None]:
    """A service for some tests; ``root``: a file system that has another Podman than the machine's."""
    needs.check("docker")
    if os.geteuid() != 0:
        pytest.skip("a Podman of the tests' own needs root")
    if root is None and shutil.which("podman", path=SEARCH) is None:
        pytest.skip("no podman (make test installs it on Debian and Ubuntu)")
    directory = Path(tempfile.mkdtemp(prefix="dlapp-podman-"))
    podman = Podman(directory, root)
    try:
        podman.start()
        yield podman
    finally:
        podman.stop()
        shutil.rmtree(directory, ignore_errors=True)
