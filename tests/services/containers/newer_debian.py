"""A newer Docker and Podman than those that are installed, for what only they can do: Debian's next release has them.

The packages are unpacked into a folder of our own, nothing is installed:

    python -m tests.services.containers.newer_debian docker
    python -m tests.services.containers.newer_debian podman
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.services.install import SEARCH

# Read at import: the tests give each test a home of its own.
CACHE = Path(os.environ.get("DLAPP_TEST_CACHE") or Path.home() / ".cache" / "dlapp-tests")
RELEASE = "trixie"
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_DOCKERS = ("dockerd", "containerd", "containerd-shim-runc-v2")
_TRIES = 3


class NotToBeHad(Exception):
    """Error: it cannot be had here; the message says why."""


def docker() -> Path:
    """The directory with dockerd and its helpers, fetched if they are not there. Raises NotToBeHad."""

    def programs(place: Path) -> Path:
        _unpack(["download", "docker.io", "containerd"], place)
        (place / "programs").mkdir()
        for program in _DOCKERS:
            found = next(path for path in (place / "root").rglob(program) if path.is_file())
            shutil.copy2(found, place / "programs" / program)
        return place / "programs"

    return _kept(f"docker-{RELEASE}", programs)


def podman() -> Path:
    """A root file system that has Podman, with all that it needs, fetched if it is not there. Raises NotToBeHad."""

    def root(place: Path) -> Path:
        words = ["install", "-y", "--download-only", "--no-install-recommends", "podman", "runc", "catatonit"]
        _unpack(words, place)
        for name in ("old", "proc", "sys", "dev", "tmp", "var/tmp"):
            (place / "root" / name).mkdir(parents=True, exist_ok=True)
        return place / "root"

    return _kept(f"podman-{RELEASE}", root)


def _kept(name: str, make: Callable[[Path], Path]) -> Path:
    """Return what ``make`` made, in a directory that it is given, once for all runs of the tests."""
    target = CACHE / name
    if target.is_dir():
        return target
    for need in ("apt-get", "dpkg-deb"):
        if shutil.which(need, path=SEARCH) is None:
            raise NotToBeHad(f"no {need}: {name} comes as packages of Debian")
    if not os.path.exists(KEYRING):
        raise NotToBeHad(f"no {KEYRING}: the packages of Debian cannot be verified")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            with tempfile.TemporaryDirectory(prefix="dlapp-apt-", dir=CACHE) as place:
                make(Path(place)).rename(target)
    return target


def _unpack(words: list[str], place: Path) -> None:
    """Have apt-get fetch packages, and unpack them into the directory ``root``."""
    root, archives = place / "root", place / "cache" / "archives"
    for directory in (place / "state" / "lists" / "partial", archives / "partial"):
        directory.mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        (root / "usr" / name).mkdir(parents=True)
        (root / name).symlink_to(f"usr/{name}")
    sources, status = place / "sources.list", place / "status"
    sources.write_text(f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {RELEASE} main\n")
    status.touch()  # nothing is installed
    options = {
        "Dir::State": place / "state",
        "Dir::State::status": status,
        "Dir::Cache": place / "cache",
        "Dir::Etc::sourcelist": sources,
        "Dir::Etc::sourceparts": "/dev/null",
        "APT::Sandbox::User": "root",
        "Acquire::Retries": 3,
        "Acquire::Languages": "none",
        "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled": "false",
        "Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled": "false",
    }
    apt = ["apt-get", "-q", *(f"-o{name}={value}" for name, value in options.items())]
    for command in (["update"], words):
        for last in (False, False, True)[-_TRIES:]:
            done = subprocess.run([*apt, *command], cwd=archives, capture_output=True, text=True)
            if done.returncode == 0:
                break
            if last:
                raise NotToBeHad(f"apt-get {' '.join(command)} failed: {done.stderr.strip()[-300:]}")
    for package in archives.glob("*.deb"):
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", package], stdout=subprocess.PIPE) as files:
            # Packages name directories that are links here.
            command = ["tar", "-x", "--keep-directory-symlink", "--exclude=./usr/share/doc", "-C", str(root)]
            subprocess.run(command, stdin=files.stdout, check=True)


if __name__ == "__main__":
    try:
        print({"docker": docker, "podman": podman}[sys.argv[1]]())
    except NotToBeHad as reason:
        print(f"Error: {reason}", file=sys.stderr)
        sys.exit(1)
