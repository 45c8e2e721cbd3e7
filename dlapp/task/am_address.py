"""Address of the ApplicationMaster, as the current attempt leaves it in a file of the application's directory."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from dlapp.errors import DlappError, NotFound
from dlapp.launch_spec import LaunchSpec
from dlapp.system import files
from dlapp.system.clock import backoff_s, random_s
from dlapp.system.processes.proc import start_time

if TYPE_CHECKING:
    from dlapp.locations import FileInfo

OFTEN_FOR_S = 30.0
"""So long after the ApplicationMaster was missed first the file on HDFS is looked at every few seconds."""
OFTEN_PAUSES_S = 1.0, 5.0
SELDOM_PAUSES_S = 30.0, 60.0
"""After that. 10,000 tasks ask the NameNode 220 times a second; `dlapp.am.model.state.Timing.recovery_ms` is twice the
longest pause."""
_MAX_BYTES = 4096
"""Of the file, which has a few short fields."""


class Files(Protocol):
    """Reader of HDFS, as `dlapp.storage.hdfs_staging.HdfsStagingFiles` is one."""

    def look(self, location: str) -> FileInfo | None:
        """Return what is there; None: nothing."""

    def read(self, location: str, *, max_bytes: int) -> bytes:
        """Return all of a small file. Raises NotFound."""

    def lacks(self, location: str) -> bool | None:
        """Return whether it is proven that nothing is there; None: it is not known."""


class Find(Protocol):
    """Search for the ApplicationMaster."""

    def look(self) -> str | None:
        """Return its URL; None: it cannot be read, or on one machine no process of one is there. Any thread may
        call, as often as it likes.
        """

    def heard(self) -> None:
        """Take note that the ApplicationMaster has answered: what is searched after this is searched anew."""


def finder(launch: LaunchSpec, warn: Callable[[str], None]) -> Find | None:
    """Return what finds the address of the next ApplicationMaster; None: there is no such file.

    Args:
        launch: names the file, and the HDFS that it is on.
        warn: takes lines for dlapp's own log.
    """
    if not launch.am_file:
        return None
    if not launch.on_a_cluster:
        return FindHere(launch.am_file)
    if launch.hdfs is None:
        return None
    from dlapp.storage.hdfs_staging import HdfsStagingFiles

    # The caller asks again.
    return FindOnHdfs(HdfsStagingFiles(launch.hdfs, patience_s=2.0), launch.am_file, warn)


class FindOnHdfs:
    """Finds the address in a file on HDFS, and spares the NameNode: ten thousand tasks search at the same time.

    Between two looks it returns what the last one found. A look asks for the status of the file alone; the file is read
    where the status has changed.

    Args:
        staging: the file system.
        location: of the file.
        warn: takes lines for dlapp's own log.
        clock: of the pauses [s].
    """

    def __init__(
        self,
        staging: Files,
        location: str,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._staging, self._location, self._warn, self._clock = staging, location, warn, clock
        self._looking = threading.Lock()
        self._url: str | None = None
        self._read: tuple[int, int, int] | None = None  # the status of the file when it was read
        self.is_there: bool | None = None
        """True if the last look found the file; None: it could not tell."""
        self._look_at = 0.0
        self._since: float | None = None
        self.heard()

    def heard(self) -> None:
        """Begin anew with short pauses; see `Find`."""
        self._since = None
        self._pauses_s = backoff_s(*OFTEN_PAUSES_S)
        self._is_often = True

    def look(self) -> str | None:
        """Return the address that the file has, or had at the last look; None: it could not be read so far."""
        if self._looking.acquire(blocking=False):
            try:
                if self._is_due():
                    self._look()
            finally:
                self._looking.release()
        return self._url

    def lacks_directory(self) -> bool | None:
        """Return whether it is proven that the application's directory is gone; None: it is not known."""
        return self._staging.lacks(self._location.rpartition("/")[0])

    def _is_due(self) -> bool:
        now, since = self._clock(), self._since
        if since is None:
            # All tasks miss their ApplicationMaster in the same second, and it takes seconds to start another one.
            self._since, self._look_at = now, now + random_s(0.0, OFTEN_PAUSES_S[1])
            return False
        if now < self._look_at:
            return False
        if now - since < OFTEN_FOR_S:
            pause_s = next(self._pauses_s)
        else:
            # The first of them spreads the tasks over the whole pause.
            least_s, most_s = SELDOM_PAUSES_S
            pause_s, self._is_often = random_s(0.0 if self._is_often else least_s, most_s), False
        self._look_at = now + pause_s
        return True

    def _look(self) -> None:
        try:
            self.is_there = None
            found = self._staging.look(self._location)
            self.is_there = found is not None
            if found is None:
                raise NotFound(f"{self._location} is not there")
            status = found.inode_id, found.modified_ms, found.size_bytes
            if status != self._read:
                self._url = str(json.loads(self._staging.read(self._location, max_bytes=_MAX_BYTES))["control_url"])
                self._read = status
        except (DlappError, ValueError, LookupError, TypeError, RecursionError) as error:
            self._warn(f"no address of an ApplicationMaster: {error}")


class FindHere:
    """Finds the address in a file of this machine, which also shows whether its process lives."""

    def __init__(self, path: str) -> None:
        self._path = path

    def heard(self) -> None:
        """Do nothing: this file costs nothing to read."""

    def look(self) -> str | None:
        """Return the address in the file; None: it cannot be read, or the process is gone."""
        try:
            found = files.read_json_object(self._path, owners={os.geteuid()}, max_bytes=_MAX_BYTES)
            # The pid alone may be another process's by now.
            started = start_time(int(found["pid"]))
            return None if started is None or started != found["start_time"] else str(found["control_url"])
        except (DlappError, OSError, ValueError, LookupError, TypeError):
            return None
