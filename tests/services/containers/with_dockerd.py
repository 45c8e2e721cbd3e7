"""Run a command with a Docker daemon of its own: python -m tests.services.containers.with_dockerd COMMAND [ARGUMENT...]

The command finds the daemon by ``DOCKER_HOST``. When it ends, the daemon goes, with its images and containers. What is
missing on Debian and Ubuntu is installed. It needs root.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.services.containers.dockerd import Dockerd
from tests.services.install import SEARCH, install

NEEDS = {"dockerd": "docker.io", "docker": "docker.io", "debootstrap": "debootstrap"}
"""Programs, and the Debian package that has each."""


def main(command: list[str]) -> int:
    """Run it; its own exit code, or 1 where there can be no daemon."""
    if os.geteuid() != 0:
        print("Error: a Docker daemon of its own, and debootstrap, need root; try sudo", file=sys.stderr)
        return 1
    if absent := [program for program in NEEDS if shutil.which(program, path=SEARCH) is None]:
        install(sorted({NEEDS[program] for program in absent}))
    if absent := [program for program in NEEDS if shutil.which(program, path=SEARCH) is None]:
        packages = sorted({NEEDS[program] for program in absent})
        print(f"Error: no {absent[0]}; install {' and '.join(packages)}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    directory = Path(tempfile.mkdtemp(prefix="dlapp-dockerd-"))
    daemon = Dockerd(directory)
    # Programs in images use Docker's bridge by default. Its namespace keeps it from the machine's network.
    daemon.bridge, daemon.within = True, ["unshare", "--net"]
    try:
        daemon.start()
        return subprocess.run(command, env={**os.environ, "DOCKER_HOST": daemon.host, "PATH": SEARCH}).returncode
    except KeyboardInterrupt:
        return 130
    finally:
        daemon.stop()
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
