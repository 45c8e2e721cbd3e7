"""An image of busybox and this machine's Open MPI, and of nothing else: neither Python nor ssh."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.services.containers.dockerd import Dockerd, busybox_root

MPI_IMAGE = "dlapp-test/mpi:1"
_PROGRAMS = ("/usr/bin/mpirun", "/usr/bin/orted")
_PLUGINS = ("openmpi*/**/*.so", "pmix*/**/*.so")
_DATA = ("/usr/share/openmpi", "/etc/openmpi")


def import_mpi_image(daemon: Dockerd) -> None:
    """Make the image."""
    if any(shutil.which(program) is None for program in _PROGRAMS):
        pytest.skip("no Open MPI (package openmpi-bin)")
    libraries = Path(re.findall(r"/\S+/libopen-rte\.so\S*", _needed(_PROGRAMS))[0]).parent.resolve()
    plugins = [str(path) for pattern in _PLUGINS for path in libraries.glob(pattern) if path.is_file()]
    wanted = {*_PROGRAMS, *plugins, *re.findall(r"(/\S+)(?= \(0x)", _needed((*_PROGRAMS, *plugins)))}
    wanted |= {str(path) for one in _DATA for path in Path(one).rglob("*") if path.is_file()}
    files = {path.lstrip("/"): Path(path).read_bytes() for path in sorted(wanted) if Path(path).is_file()}
    daemon.docker("import", "-", MPI_IMAGE, stdin=busybox_root(files))


def _needed(programs: Iterable[str]) -> str:
    return subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
