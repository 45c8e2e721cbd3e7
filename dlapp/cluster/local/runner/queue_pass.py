"""Turns of the users of a machine's queue: each runner makes the same pass, and starts what is its own user's.

A runner counts what is another user's turn as started. So it waits for a runner that hangs, or that decides otherwise
(an earlier version of dlapp); after `PASSED_OVER_S` that user is passed over, until the application whose turn it was
has started or is gone.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

from dlapp.cluster.local import queue_state, spool
from dlapp.cluster.local.queue_state import QueueContents, QueueReader, state_of
from dlapp.scheduler.decisions import decide

if TYPE_CHECKING:
    from dlapp.cluster.local.queue import ApplicationRow
    from dlapp.cluster.local.state import StateDir
    from dlapp.scheduler.amounts import Amounts
    from dlapp.scheduler.values import Policy, Schedule

PASSED_OVER_S = 30.0
"""How long a runner may take to start what is its user's turn."""
USAGE_HALF_LIVES = 10
"""After so many half-lives usage is forgotten: a thousandth of it counts."""


class QueuePasses:
    """Passes over the queue, for one runner.

    Args:
        state: the state directory of the runner's user.
    """

    def __init__(self, state: StateDir) -> None:
        self._state, self._reader = state, QueueReader(state)
        self._policy: Policy | None = None
        self._policy_file: tuple[int, ...] | None = None  # identity and times of the file that it was read from
        self._turns: dict[str, float] = {}  # ids of others' applications -> since when it is their turn [s, monotonic]
        self._passed_over: dict[int, str] = {}  # uids of users who did not take their turn -> the application

    def read(self, rows: Iterable[ApplicationRow]) -> QueueContents:
        """Read the queue; see `QueueReader.read`."""
        return self._reader.read(rows)

    def decide(self, contents: QueueContents, capacity: Amounts, others_gcores: int) -> Schedule:
        """Decide on all that waits.

        Args:
            contents: of the queue.
            capacity: of the machine.
            others_gcores: how many GPUs are held outside of this queue, or cannot be leased.

        Raises:
            ConfigError: the operator's file is not to be trusted, or something in it cannot be meant.
        """
        own, waiting = self._state.uid, {row.id for row in contents.waiting}
        self._passed_over = {uid: one for uid, one in self._passed_over.items() if one in waiting}
        users = {row.uid for row in contents.waiting} - {own}
        absent = {uid for uid in users if not spool.has_runner(self._state.of(uid))} | self._passed_over.keys()
        policy, now_s = self._read_policy(), time.time()
        state = state_of(contents, capacity, policy, now_s, absent=absent, others_gcores=others_gcores)
        found = decide(state, policy, now_s)
        turns = {one.job.id: one.job.user for one in found.decisions if one.starts and one.job.user != own}
        now = time.monotonic()
        self._turns = {one: self._turns.get(one, now) for one in turns}
        for one, since in self._turns.items():
            if now - since >= PASSED_OVER_S:
                self._passed_over[turns[one]] = one
        return found

    def forget_usage(self, now_s: float) -> None:
        """Forget usage of this user that counts no more."""
        if self._state.shared and self._policy is not None:
            spool.forget_past(self._state, int((now_s - USAGE_HALF_LIVES * self._policy.half_life_s) * 1e9))

    def _read_policy(self) -> Policy:
        """Return the operator's policy; it is read again when its file has changed."""
        found = None
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            about = os.stat(queue_state.POLICY_FILE)
            found = (about.st_dev, about.st_ino, about.st_mtime_ns, about.st_ctime_ns)
        if self._policy is None or found != self._policy_file:
            self._policy, self._policy_file = queue_state.read_policy(), found
        return self._policy
