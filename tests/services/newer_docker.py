"""A newer dockerd than the one that is installed, for what only it can do: Debian's next release has it.

The packages are unpacked into a folder of our own, nothing is installed: python -m tests.services.newer_docker
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services.install import SEARCH

# Read at import: the tests give each test a home of its own.
CACHE = Path(os.environ.get("DLAPP_TEST_CACHE") or Path.home() / ".cache" / "dlapp-tests")
RELEASE = "trixie"
PACKAGES = ("docker.io", "containerd")
KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PROGRAMS = ("dockerd", "containerd", "containerd-shim-runc-v2")
_TRIES = 3


class NoNewerDocker(Exception):
    """It cannot be had here; the message says why."""


def programs() -> Path:
    """The directory with the programs, fetched if they are not there. Raises NoNewerDocker."""
    target = CACHE / f"docker-{RELEASE}"
    if target.is_dir():
        return target
    for need in ("apt-get", "dpkg"):
        if shutil.which(need, path=SEARCH) is None:
            raise NoNewerDocker(f"no {need}: a newer Docker comes as packages of Debian")
    if not os.path.exists(KEYRING):
        raise NoNewerDocker(f"no {KEYRING}: the packages of Debian cannot be verified")
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / f"docker-{RELEASE}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            _fetch(target)
    return target


def _fetch(target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="dlapp-apt-", dir=CACHE) as name:
        place = Path(name)
        for directory in ("state/lists/partial", "cache/archives/partial", "root", "programs"):
            (place / directory).mkdir(parents=True)
        sources = place / "sources.list"
        sources.write_text(f"deb [signed-by={KEYRING}] http://deb.debian.org/debian {RELEASE} main\n")
        options = {
            "Dir::State": place / "state",
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
        for words in (["update"], ["download", *PACKAGES]):
            for last in (False, False, True)[-_TRIES:]:
                done = subprocess.run([*apt, *words], cwd=place, capture_output=True, text=True)
                if done.returncode == 0:
                    break
                if last:
                    raise NoNewerDocker(f"apt-get {' '.join(words)} failed: {done.stderr.strip()[-300:]}")
        for package in place.glob("*.deb"):
            subprocess.run(["dpkg", "-x", package, place / "root"], check=True)
        for program in _PROGRAMS:
            found = next(path for path in (place / "root").rglob(program) if path.is_file())
            shutil.copy2(found, place / "programs" / program)
        (place / "programs").rename(target)


if __name__ == "__main__":
    try:
        print(programs())
    except NoNewerDocker as reason:
        print(f"Error: {reason}", file=sys.stderr)
        sys.exit(1)
