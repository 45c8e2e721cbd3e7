"""Address of the ApplicationMaster, as the current attempt leaves it in the application's directory."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from dlapp.errors import DlappError, NotFound
from dlapp.system import files
from dlapp.system.clock import backoff_s, random_s
from dlapp.system.processes.proc import start_time
from dlapp.values.launch_spec import LaunchSpec
from dlapp.values.messages import latest_address

OFTEN_FOR_S = 30.0
"""An ApplicationMaster that is back so long after it was missed first is found at one of the frequent looks."""
OFTEN_PAUSES_S = 1.0, 5.0
SELDOM_PAUSES_S = 30.0, 60.0
"""After the frequent looks. 10,000 tasks ask the NameNode 220 times a second; `dlapp.am.model.state.Timing.recovery_ms`
is twice the longest pause."""
_TASKS_PER_S = 600.0
"""Of a large application so many tasks a second look at least, and a third more on average: all of 10,000 in 17 s. A
NameNode on one core answers 2,000."""
_MAX_BYTES = 4096
"""Of the file on one machine, which has a few short fields."""


def longest_pause_s(containers: int) -> float:
    """Return the longest pause between two frequent looks of a task, by how many tasks there are [s].

    If all looked every few seconds, the NameNode would answer none of them in time.
    """
    return min(max(OFTEN_PAUSES_S[1], containers / _TASKS_PER_S), SELDOM_PAUSES_S[0])


class Files(Protocol):
    """Reader of HDFS, as `dlapp.storage.hdfs.staging.HdfsStagingFiles` is one."""

    def names(self, location: str) -> list[str]:
        """Return the names in a directory; none where there is no directory."""

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
        launch: names the file, or the directory and the HDFS that it is on.
        warn: takes lines for dlapp's own log.
    """
    if not launch.am_file:
        return None
    if not launch.on_a_cluster:
        return FindHere(launch.am_file)
    if launch.hdfs is None:
        return None
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    # The caller asks again.
    return FindOnHdfs(HdfsStagingFiles(launch.hdfs, patience_s=2.0), launch.am_file, warn, containers=launch.containers)


class FindOnHdfs:
    """Finds the address in a directory on HDFS, and spares the NameNode: ten thousand tasks search at the same time.

    Between two looks it returns what the last one found. A look is one operation, a listing: the address is a name.

    Args:
        staging: the file system.
        location: of the directory.
        warn: takes lines for dlapp's own log.
        clock: of the pauses [s].
        containers: how many tasks search.
    """

    def __init__(
        self,
        staging: Files,
        location: str,
        warn: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        containers: int = 1,
    ) -> None:
        self._staging, self._location, self._warn, self._clock = staging, location, warn, clock
        self._pause_s = longest_pause_s(containers)
        self._looking = threading.Lock()
        self._url: str | None = None
        self.is_there: bool | None = None
        """True if the last look found an address; None: it could not tell."""
        self._look_at = 0.0
        self._since: float | None = None
        self.heard()

    def heard(self) -> None:
        """Begin anew with short pauses; see `Find`."""
        self._since = None
        least_s, most_s = OFTEN_PAUSES_S
        self._pauses_s = backoff_s(least_s if self._pause_s == most_s else self._pause_s, self._pause_s)
        self._is_often = True

    def look(self) -> str | None:
        """Return the address that is there, or was at the last look; None: none could be read so far."""
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
            self._since, self._look_at = now, now + random_s(0.0, self._pause_s)
            return False
        if now < self._look_at:
            return False
        if now - since < OFTEN_FOR_S + self._pause_s:
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
            url = latest_address(self._staging.names(self._location))
            self.is_there = url is not None
            if url is None:
                raise NotFound(f"nothing in {self._location}")
            self._url = url
        except DlappError as error:
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
