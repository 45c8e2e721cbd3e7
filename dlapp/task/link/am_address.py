"""Address of the ApplicationMaster, as published by its current attempt in the application's directory."""

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
"""Time after the loss of the ApplicationMaster in which its address is polled frequently, so that a new one is found
quickly."""
OFTEN_PAUSES_S = 1.0, 5.0
SELDOM_PAUSES_S = 30.0, 60.0
"""Pauses after the first, shorter ones. 10,000 tasks send 220 requests per second to the NameNode;
`dlapp.am.model.state.Timing.recovery_ms` is twice the longest pause."""
_TASKS_PER_S = 600.0
"""Minimum number of tasks of a large application that read the address each second, a third more on average: all of
10,000 in 17 s. A NameNode on one core answers 2,000 requests per second."""
_MAX_BYTES = 4096
"""Size limit of the file on one machine, which has a few short fields."""


def longest_pause_s(containers: int) -> float:
    """Return the longest pause between two frequent reads of a task, by the number of tasks [s].

    If all tasks read every few seconds, the NameNode could not answer them in time.
    """
    return min(max(OFTEN_PAUSES_S[1], containers / _TASKS_PER_S), SELDOM_PAUSES_S[0])


class Files(Protocol):
    """Reader of HDFS; `dlapp.storage.hdfs.staging.HdfsStagingFiles` implements it."""

    def names(self, location: str) -> list[str]:
        """Return the names in a directory; empty if it does not exist."""

    def lacks(self, location: str) -> bool | None:
        """Return whether the path is proven to be missing; None if unknown."""


class AmFinder(Protocol):
    """Search for the ApplicationMaster."""

    def find_url(self) -> str | None:
        """Return its URL; None if it cannot be read, or if its process on this machine has died. Any thread may call,
        at any rate.
        """

    def reset(self) -> None:
        """Record that the ApplicationMaster has answered: the next search starts from the beginning."""


def am_finder(launch: LaunchSpec, warn: Callable[[str], None]) -> AmFinder | None:
    """Return a finder for the address of the next ApplicationMaster; None if there is no address file."""
    if not launch.am_file:
        return None
    if not launch.on_a_cluster:
        return LocalAmFinder(launch.am_file)
    if launch.hdfs is None:
        return None
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    # The caller retries.
    return HdfsAmFinder(
        HdfsStagingFiles(launch.hdfs, patience_s=2.0), launch.am_file, warn, containers=launch.containers
    )


class HdfsAmFinder:
    """Finder that reads a directory on HDFS and limits the load on the NameNode: ten thousand tasks search at the same
    time.

    Between two reads it returns the last result. A read is one operation, a listing: the address is a file name.

    Args:
        clock: the clock of the pauses [s].
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
        self._read_lock = threading.Lock()
        self._url: str | None = None
        self.is_there: bool | None = None
        """True if the last read found an address; None: it was inconclusive."""
        self._next_read_at = 0.0
        self._since: float | None = None
        self.reset()

    def reset(self) -> None:
        """Restart with short pauses; see `AmFinder`."""
        self._since = None
        least_s, most_s = OFTEN_PAUSES_S
        self._pauses_s = backoff_s(least_s if self._pause_s == most_s else self._pause_s, self._pause_s)
        self._is_often = True

    def find_url(self) -> str | None:
        """Return the address of the last read; None if none could be read so far."""
        if self._read_lock.acquire(blocking=False):
            try:
                if self._is_due():
                    self._read_address()
            finally:
                self._read_lock.release()
        return self._url

    def is_directory_missing(self) -> bool | None:
        """Return whether the application's directory is proven to be gone; None if unknown."""
        return self._staging.lacks(self._location.rpartition("/")[0])

    def _is_due(self) -> bool:
        now, since = self._clock(), self._since
        if since is None:
            # All tasks lose their ApplicationMaster in the same second, and starting another one takes seconds.
            self._since, self._next_read_at = now, now + random_s(0.0, self._pause_s)
            return False
        if now < self._next_read_at:
            return False
        if now - since < OFTEN_FOR_S + self._pause_s:
            pause_s = next(self._pauses_s)
        else:
            # The first pause spreads the tasks over its whole length.
            least_s, most_s = SELDOM_PAUSES_S
            pause_s, self._is_often = random_s(0.0 if self._is_often else least_s, most_s), False
        self._next_read_at = now + pause_s
        return True

    def _read_address(self) -> None:
        try:
            self.is_there = None
            url = latest_address(self._staging.names(self._location))
            self.is_there = url is not None
            if url is None:
                raise NotFound(f"nothing in {self._location}")
            self._url = url
        except DlappError as error:
            self._warn(f"no address of an ApplicationMaster: {error}")


class LocalAmFinder:
    """Finder that reads a file of this machine, which also shows whether the process lives."""

    def __init__(self, path: str) -> None:
        self._path = path

    def reset(self) -> None:
        """Do nothing: reading this file is cheap."""

    def find_url(self) -> str | None:
        """Return the address in the file; None if it cannot be read, or the process has died."""
        try:
            found = files.read_json_object(self._path, owners={os.geteuid()}, max_bytes=_MAX_BYTES)
            # The pid may have been reused by another process.
            started = start_time(int(found["pid"]))
            return None if started is None or started != found["start_time"] else str(found["control_url"])
        except (DlappError, OSError, ValueError, LookupError, TypeError):
            return None
