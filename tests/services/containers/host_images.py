"""Images of busybox and programs of this machine, and of nothing else."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.services.containers.dockerd import Dockerd, busybox_root

MPI_IMAGE = "dlapp-test/mpi:1"
"""Open MPI; neither Python nor ssh."""
PYTHON_IMAGE = "dlapp-test/python:1"
"""Debian's Python with a part of its library."""
ENVIRONMENT_IMAGE = "dlapp-test/environment:1"
"""The tests' own Python, where it is here, with the packages that it has."""
_MPI = ("/usr/bin/mpirun", "/usr/bin/orted")
_MPI_PLUGINS = ("openmpi*/**/*.so", "pmix*/**/*.so")
_MPI_DATA = ("/usr/share/openmpi", "/etc/openmpi")
_PYTHON = "/usr/bin/python3"
_PYTHON_PACKAGES = ("", "collections", "email", "encodings", "html", "http", "importlib", "json", "re", "urllib")


def import_mpi_image(daemon: Dockerd) -> None:
    """Make `MPI_IMAGE`."""
    if any(shutil.which(program) is None for program in _MPI):
        pytest.skip("no Open MPI (package openmpi-bin)")
    libraries = Path(re.findall(r"/\S+/libopen-rte\.so\S*", _needed(_MPI))[0]).parent.resolve()
    plugins = [str(path) for pattern in _MPI_PLUGINS for path in libraries.glob(pattern) if path.is_file()]
    data = [str(path) for item in _MPI_DATA for path in Path(item).rglob("*")]
    _import(daemon, MPI_IMAGE, (*_MPI, *plugins), data)


def import_python_image(daemon: Dockerd) -> None:
    """Make `PYTHON_IMAGE`."""
    ask = [_PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('stdlib'))"]
    library = Path(subprocess.run(ask, capture_output=True, text=True, check=True).stdout.strip())
    modules = [str(path) for package in _PYTHON_PACKAGES for path in (library / package).glob("*.py")]
    _import(daemon, PYTHON_IMAGE, [_PYTHON], modules)


def import_environment_image(daemon: Dockerd, *, without: Iterable[str] = ()) -> None:
    """Make `ENVIRONMENT_IMAGE`.

    Args:
        daemon: gets it.
        without: names of directories of packages that are left out.
    """
    skipped = {"__pycache__", "test", "tests", *without}
    library = Path(sysconfig.get_path("stdlib"))
    python = Path(sys.executable).resolve()
    others: list[str] = []
    for top in (library, Path(sys.prefix)):
        for directory, names, files in os.walk(top):
            names[:] = [item for item in names if item not in skipped and (top != library or item != "site-packages")]
            others += [os.path.join(directory, name) for name in files]
    _import(
        daemon, ENVIRONMENT_IMAGE, [str(python), *(other for other in others if ".so" in Path(other).suffixes)], others
    )


def _import(daemon: Dockerd, image: str, programs: Iterable[str], others: Iterable[str]) -> None:
    """Make an image of programs and libraries with all that they are linked to, and of other files."""
    wanted = {*programs, *others, *re.findall(r"(/\S+)(?= \(0x)", _needed(programs))}
    files = {
        os.path.normpath(path).lstrip("/"): Path(path).read_bytes() for path in sorted(wanted) if Path(path).is_file()
    }
    daemon.docker("import", "-", image, stdin=busybox_root(files))


def _needed(programs: Iterable[str]) -> str:
    return subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
