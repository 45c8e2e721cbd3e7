"""Directory in DLAPP_DIR through which a task communicates with mpirun or its daemon."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping

from dlapp.system.files import closing_fd, open_file, open_own_directory, write_all

DIRECTORY = "mpi"
"""Below DLAPP_DIR."""


class MpiFiles:
    """Directory of one payload for mpirun and its daemons; made before the payload starts.

    Args:
        run: DLAPP_DIR on the host.

    Raises:
        OSError: it cannot be created.
    """

    def __init__(self, run: str) -> None:
        with closing_fd(open_own_directory(run)) as where:
            os.mkdir(DIRECTORY, 0o700, dir_fd=where)
            self.fd = open_own_directory(DIRECTORY, dir_fd=where, path=os.path.join(run, DIRECTORY))
        self._fifos: list[int] = []

    def write(self, name: str, text: str, mode: int = 0o600) -> None:
        """Create a file. Raises OSError."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with closing_fd(os.open(name, flags, mode, dir_fd=self.fd)) as fd:
            write_all(fd, os.fsencode(text))

    def write_script(self, name: str) -> None:
        """Create a copy of one of the scripts beside this module. Raises OSError."""
        self.write(name, script(name))

    def write_variables(self, variables: Mapping[str, str]) -> None:
        """Create the file with the variables of this container's daemon. Raises OSError."""
        quoted = {name: value.replace("'", "'\\''") for name, value in variables.items()}
        self.write("node.sh", "".join(f"export {name}='{value}'\n" for name, value in quoted.items()))

    def fifo(self, name: str) -> int:
        """Create a FIFO, and return a non-blocking descriptor for reading and writing. Raises OSError."""
        os.mkfifo(name, 0o600, dir_fd=self.fd)
        fd = open_file(name, dir_fd=self.fd, write=True, kind=stat.S_IFIFO)
        self._fifos.append(fd)
        return fd

    def close(self) -> None:
        """Close all descriptors."""
        for fd in (*self._fifos, self.fd):
            os.close(fd)


def script(name: str) -> str:
    """Return the text of a script beside this module."""
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    data: bytes = __loader__.get_data(path)  # type: ignore[name-defined]
    return data.decode()
