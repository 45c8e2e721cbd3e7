"""Scheduling passes over a machine's queue: each user's runner makes the same pass, and starts its own user's
applications.

A runner counts another user's turn as started. So it waits for a runner that hangs, or that decides otherwise (an
earlier version of dlapp); after `PASSED_OVER_S` that user is skipped, until one of that user's applications has
started. A new submission of the user does not restart this time.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING

from dlapp.cluster.local import queue_state, spool
from dlapp.cluster.local.queue_state import QueueContents, state_of
from dlapp.scheduler.decisions import decide

if TYPE_CHECKING:
    from dlapp.cluster.local.gpu_sets import GpuSets
    from dlapp.cluster.local.state import StateDir
    from dlapp.scheduler.amounts import Amounts
    from dlapp.scheduler.values import Policy, Schedule

PASSED_OVER_S = 30.0
"""How long a runner may take to start its user's application, in total since the user's last start."""
FORGIVEN_S = 3600.0
"""After this time a skipped user has a turn again."""
USAGE_HALF_LIVES = 10
"""Number of half-lives after which usage is dropped: a thousandth of it counts."""


class QueuePasses:
    """Scheduling passes of one runner, with the state directory of its user."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._policy: Policy | None = None
        self._policy_file: tuple[int, ...] | None = None  # identity and times of the file that it was read from
        self._turns: set[int] = set()  # uids of other users whose turn it was in the last pass
        self._decided_at = 0.0  # the last pass [s, monotonic]
        self._idle_s: dict[int, float] = {}  # by uid, how long it was the user's turn since the last start
        self._passed_over: dict[int, float] = {}  # uids of users who did not take their turn -> since when
        self._started_ns: dict[int, int] = {}  # by uid, the last known start [ns since 1970]

    def decide(
        self, contents: QueueContents, capacity: Amounts, others_gcores: int, sets: GpuSets | None = None
    ) -> Schedule:
        """Decide on all waiting applications.

        Args:
            contents: contents of the queue.
            capacity: amounts of the machine.
            others_gcores: number of GPUs that are held outside of this queue, or cannot be leased.
            sets: sets of GPUs to count; None: all GPUs serve all requests.

        Raises:
            ConfigError: the operator's file is not trusted, or is invalid.
        """
        own, now = self._state.uid, time.monotonic()
        self._count_turns(contents, now)
        users = {row.uid for row in contents.waiting} - {own}
        absent = {uid for uid in users if not spool.has_runner(self._state.of(uid))} | self._passed_over.keys()
        policy, now_s = self._read_policy(), time.time()
        state = state_of(contents, capacity, policy, now_s, absent=absent, others_gcores=others_gcores, sets=sets)
        found = decide(state, policy, now_s)
        self._turns, self._decided_at = {one.job.user for one in found.decisions if one.starts} - {own}, now
        return found

    def _count_turns(self, contents: QueueContents, now: float) -> None:
        """Count how long users have not taken their turn; each start of theirs resets it."""
        passed_s = now - self._decided_at
        for uid in self._turns if passed_s <= PASSED_OVER_S else ():  # after a longer pause nothing is known
            self._idle_s[uid] = self._idle_s.get(uid, 0.0) + passed_s
        starts = [(one.uid, one.started_ns) for one in contents.past]
        for uid, started_ns in (*starts, *((row.uid, row.used_since_ns) for row in contents.running)):
            if started_ns > self._started_ns.get(uid, 0):
                self._started_ns[uid] = started_ns
                self._idle_s.pop(uid, None)
                self._passed_over.pop(uid, None)
        for uid, idle_s in list(self._idle_s.items()):
            if idle_s >= PASSED_OVER_S and now - self._passed_over.setdefault(uid, now) >= FORGIVEN_S:
                del self._idle_s[uid], self._passed_over[uid]

    def forget_usage(self, now_s: float) -> None:
        """Drop usage of this user that no longer counts."""
        if self._state.shared and self._policy is not None:
            spool.forget_past(self._state, int((now_s - USAGE_HALF_LIVES * self._policy.half_life_s) * 1e9))

    def _read_policy(self) -> Policy:
        """Return the operator's policy; it is read again if its file has changed."""
        found = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = os.stat(queue_state.POLICY_FILE)
            found = (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
        if self._policy is None or found != self._policy_file:
            self._policy, self._policy_file = queue_state.read_policy(), found
        return self._policy
