"""Install the programs that the tests talk to: python -m tests.services.install

As root on Debian and Ubuntu, what is missing comes with apt-get (``DLAPP_INSTALL=no`` leaves the machine as it is). As
anybody else, or without apt-get, a line says which tests are skipped. In CI (``CI=true``) and where ``DLAPP_REQUIRE``
is set, missing is a failure.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass

SEARCH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/local/sbin", "/usr/sbin", "/sbin"])
"""Daemons lie in sbin, which an ordinary user's PATH often lacks."""


@dataclass(frozen=True)
class Need:
    """A program (or a file, by its path), the Debian package that has it, and what cannot be tested without it."""

    program: str
    package: str
    without: str


ZOOKEEPER_JAR = "/usr/share/java/zookeeper.jar"
TORCH = "/usr/lib/python3/dist-packages/torch/__init__.py"
MPI4PY = "/usr/lib/python3/dist-packages/mpi4py/__init__.py"
NUMPY = "/usr/lib/python3/dist-packages/numpy/__init__.py"

NEEDS = (
    Need("dockerd", "docker.io", "payloads in Docker"),
    Need("busybox", "busybox-static", "payloads in Docker (the tests build their image from it)"),
    Need("podman", "podman", "Podman in the place of Docker"),
    Need("setpriv", "util-linux", "two users on one machine"),
    Need("ip", "iproute2", "containers that meet over IPv6"),
    Need("strace", "strace", "what root's commands do over another user's state"),
    Need("tmux", "tmux", "the display in a real terminal"),
    Need("zsh", "zsh", "completion in zsh"),
    Need("fish", "fish", "completion in fish"),
    Need("java", "default-jre-headless", "a real Hadoop"),
    Need("mvn", "maven", "a real Hadoop (its jars come from Maven Central, once)"),
    Need(ZOOKEEPER_JAR, "zookeeper", "a real ZooKeeper"),
    Need("prometheus", "prometheus", "metrics in a real Prometheus"),
    Need("chromium", "chromium", "pages in a browser"),
    Need(TORCH, "python3-torch", "distributed training with PyTorch"),
    Need("mpirun", "openmpi-bin", "distributed training with Open MPI"),
    Need("mpicc", "libopenmpi-dev", "Open MPI in Docker"),
    Need(MPI4PY, "python3-mpi4py", "distributed training with Open MPI"),
    Need(NUMPY, "python3-numpy", "distributed training with Open MPI"),
)


def missing() -> list[Need]:
    """Return what is not installed."""
    return [need for need in NEEDS if not _is_there(need.program)]


def _is_there(program: str) -> bool:
    return os.path.exists(program) if program.startswith("/") else shutil.which(program, path=SEARCH) is not None


def required() -> bool:
    """Return whether a test that cannot run is a failure."""
    return os.environ.get("CI") == "true" or bool(os.environ.get("DLAPP_REQUIRE"))


def install(packages: list[str]) -> bool:
    """Install Debian packages; False where this user or this machine cannot."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None or os.environ.get("DLAPP_INSTALL") == "no":
        return False
    print(f"installing {' '.join(packages)} for the tests", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    command = ["apt-get", "install", "-y", "-q", "--no-install-recommends", *packages]
    # A fresh machine has no lists, an old one lists of packages that are gone: the second try is with new lists.
    for prepare in (None, ["apt-get", "update", "-q"]):
        if prepare is not None and subprocess.run(prepare, env=environment).returncode != 0:
            break
        done = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True)
        if done.returncode == 0:
            return True
    print(done.stdout + done.stderr, file=sys.stderr)
    return False


def nvidia_devices() -> int:
    """Return how many GPUs of NVIDIA this machine shows; no program brings one."""
    return len([name for name in os.listdir("/dev") if name.startswith("nvidia") and name[6:].isdigit()])


def main() -> int:
    """Install, then say what is still missing."""
    if absent := missing():
        install(sorted({need.package for need in absent}))
    absent = missing()
    for need in absent:
        print(f"no {need.program} (package {need.package}): tests of {need.without} are skipped", file=sys.stderr)
    if absent and required():
        print("Error: the tests must be complete here (CI or DLAPP_REQUIRE is set)", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
