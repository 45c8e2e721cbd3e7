"""Order of this machine's queue, as commands show it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dlapp.cluster.local import spool
from dlapp.cluster.local.queue_state import QueueReader, state_of
from dlapp.cluster.local.row import ApplicationRow
from dlapp.cluster.local.schedule import Obstacle, QueuedApplication, QueueOrder, amounts_of
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.decisions import decide
from dlapp.scheduler.values import Policy, RunningJob

if TYPE_CHECKING:
    from dlapp.cluster.local.state import StateDir


def order_of(
    state: StateDir, rows: Iterable[ApplicationRow], policy: Policy, capacity_of: Callable[[], Amounts] | None = None
) -> QueueOrder:
    """Return the order in which all that waits is to start.

    Whether an application could start now is not considered: all of the machine counts as used.

    Args:
        state: the caller's state directory.
        rows: the rows of this user that wait or run.
        policy: the operator's.
        capacity_of: returns the memory and the vcores of the machine; None: see `QueueOrder`.
    """
    contents = QueueReader(state).read(rows)
    now_s = time.time()
    if not contents.waiting:
        return QueueOrder(hours=state_of(contents, Amounts(0, 0, 0), policy, now_s).hours)
    by_id = {row.id: row for row in contents.waiting}
    users = {row.uid for row in contents.waiting} - {state.uid}
    absent = {uid for uid in users if not spool.has_runner(state.of(uid))}
    capacity = Amounts(*map(max, zip(*map(amounts_of, contents.waiting), strict=True)))
    found = state_of(contents, capacity, policy, now_s, absent=absent)
    nothing_free = RunningJob(None, capacity)
    schedule = decide(found._replace(running=[*found.running, nothing_free]), policy, now_s)
    entries, obstacles = [], {}
    for one in schedule.decisions:
        row = by_id[one.job.id]
        if one.ahead is None:
            obstacles[row.id] = Obstacle(one.message, one.code)
        else:
            entries.append(QueuedApplication(row.id, row.submitter, amounts_of(row), row.gpus))
    free = None if capacity_of is None else lambda: capacity_of().without(contents.running)
    return QueueOrder(entries, obstacles, found.hours, free)
