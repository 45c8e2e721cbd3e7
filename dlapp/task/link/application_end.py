"""End of an application whose ApplicationMaster does not answer: which evidence proves it, and how often servers are
asked.

YARN ends the containers of a finished application, except those on a node whose NodeManager is dead or was killed with
its state. Their tasks detect the end by themselves. Proof is

- a missing staging directory: the active NameNode, out of safe mode, reports it as missing twice, `APART_S` apart, in a
  directory that the user can read. This is no proof while an active ResourceManager reports that the application has
  not ended: its first ApplicationMaster may have died before writing anything;
- an application that an active ResourceManager reports as ended.

Nothing else is proof: not a missing address of an ApplicationMaster, a denial, a time-out, safe mode, or an application
id that is unknown to the ResourceManager.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Protocol

from dlapp.errors import DlappError
from dlapp.hadoop.application_state import FINAL, NOT_KNOWN, read_application_state
from dlapp.system.clock import random_s
from dlapp.task.link.am_address import AmFinder, HdfsAmFinder
from dlapp.value import NamedTuple
from dlapp.values.launch_spec import LaunchSpec

APART_S = 30.0
"""Time between the two reads that must both find no staging directory."""
STAGING_EVERY_S = 120.0, 300.0
"""Pauses between two reads of a staging directory without the address of an ApplicationMaster, as before the first one
has written it. Together with the reads of the address, 10,000 tasks send less than 300 requests per second to the
NameNode."""
STATE_EVERY_S = 45.0, 60.0
"""Pauses between two requests to the ResourceManager: at most 220 per second from 10,000 tasks."""
STATE_TIMEOUT_S = 3.0
FIRST_STATE_S = 20.0, 45.0
"""Until the first one: most often the next ApplicationMaster is there by then."""


class EndEvidence(NamedTuple):
    """Evidence that an application has ended.

    Args:
        absent_since_s, absent_at_s: the first and the last check that found no staging directory, if none since has
            found it [s, monotonic].
        state: state of the application that a ResourceManager last reported; empty if none has.
        state_at_s: time of that report.
    """

    absent_since_s: float | None = None
    absent_at_s: float = 0.0
    state: str = ""
    state_at_s: float = 0.0

    def with_staging(self, is_absent: bool | None, now_s: float) -> EndEvidence:
        """Record a check of the staging directory; None is inconclusive."""
        if is_absent is None:
            return self
        if not is_absent:
            return self._replace(absent_since_s=None)
        since_s = now_s if self.absent_since_s is None else self.absent_since_s
        return self._replace(absent_since_s=since_s, absent_at_s=now_s)

    def with_state(self, state: str, now_s: float) -> EndEvidence:
        """Record the state that a ResourceManager reports; empty if none answers."""
        return self._replace(state=state, state_at_s=now_s) if state else self

    @property
    def end_reason(self) -> str:
        """Return why the application has ended, for users; empty if that is not proven."""
        if self.state in FINAL:
            return f"the application has ended: the ResourceManager has it as {self.state}"
        if self.absent_since_s is None or self.absent_at_s - self.absent_since_s < APART_S:
            return ""
        lately_s = max(self.absent_since_s, self.absent_at_s - STATE_EVERY_S[1] - APART_S)
        if self.state not in ("", NOT_KNOWN) and self.state_at_s >= lately_s:
            return ""
        return "the application has ended: its staging directory is gone"


class Staging(Protocol):
    """The application's directory on HDFS, as the finder of the next ApplicationMaster sees it (`HdfsAmFinder`)."""

    @property
    def is_there(self) -> bool | None:
        """Return True if the last read found the address file; None if it was inconclusive."""

    def find_url(self) -> object:
        """Read the address file if that is due."""

    def is_directory_missing(self) -> bool | None:
        """Return whether the directory is proven to be gone; None if unknown."""


class ApplicationEndWatch:
    """Collector of evidence of the end, with pauses: ten thousand tasks send requests at the same time. Used by one
    thread.

    Args:
        staging: the application's directory; it is checked only if the address file is missing.
        read_state: see `read_application_state`.
        clock: the clock of the pauses [s].
    """

    def __init__(
        self, staging: Staging, read_state: Callable[[], str], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._staging, self._read_state, self._clock = staging, read_state, clock
        self.begin()

    def begin(self) -> None:
        """Start over: the ApplicationMaster has answered until now."""
        self._evidence = EndEvidence()
        self._staging_at = float("-inf")
        self._state_at = self._clock() + random_s(*FIRST_STATE_S)

    def check(self) -> str:
        """Make the queries that are due. Return why the application has ended; empty if that is not proven."""
        self._staging.find_url()
        now = self._clock()
        if self._staging.is_there:
            self._staging_at = float("-inf")
            self._evidence = self._evidence.with_staging(is_absent=False, now_s=now)
        elif self._staging.is_there is False and now >= self._staging_at:
            self._check_staging(now)
        now = self._clock()
        if now >= self._state_at:
            self._state_at = now + random_s(*STATE_EVERY_S)
            self._evidence = self._evidence.with_state(self._read_state(), now)
        return self._evidence.end_reason

    def _check_staging(self, now: float) -> None:
        try:
            is_absent = self._staging.is_directory_missing()
        except DlappError:
            is_absent = None
        if is_absent and self._evidence.absent_since_s is None:
            self._state_at = now
        if is_absent is None:
            self._staging_at = now + random_s(*STATE_EVERY_S)
        else:
            self._staging_at = now + (APART_S if is_absent else random_s(*STAGING_EVERY_S))
        self._evidence = self._evidence.with_staging(is_absent, now)


def end_watch(launch: LaunchSpec, find: AmFinder | None) -> ApplicationEndWatch | None:
    """Return the watch of a task on a cluster; None if the engine ends the task in any case."""
    if not isinstance(find, HdfsAmFinder) or launch.hdfs is None:
        return None
    read_state = partial(
        read_application_state,
        launch.resource_managers,
        launch.hdfs.login,
        str(launch.container_id.application),
        launch.hdfs.certificates,
        timeout_s=STATE_TIMEOUT_S,
    )
    return ApplicationEndWatch(find, read_state)
