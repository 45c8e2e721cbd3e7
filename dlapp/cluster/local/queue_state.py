"""State of this machine's queue, as input of the scheduler: this user's rows and, in a shared queue, all spools.

Every reader, a runner or a command, of any user, computes the same order: places, owners and usage are those of the
spools (`dlapp.cluster.local.spool`), also for the reader's own applications, and the policy is the operator's.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.local import spool
from dlapp.cluster.local.attempts import DEVICES_RETURNED
from dlapp.cluster.local.row import RUNNING, WAITING, ApplicationRow
from dlapp.cluster.local.schedule import amounts_of
from dlapp.cluster.local.spool import PastUse, SpoolEntry
from dlapp.scheduler.amounts import Amounts
from dlapp.scheduler.usage import Use, hours_by_user
from dlapp.scheduler.values import Policy, QueueState, RunningJob, WaitingJob
from dlapp.system.owners import user_name

if TYPE_CHECKING:
    from dlapp.cluster.local.gpu_sets import GpuSets
    from dlapp.cluster.local.state import StateDir

UNLIMITED = 1 << 30
POLICY_FILE = "/etc/dlapp/node.yaml"


class QueueContents(NamedTuple):
    """Applications of this machine's queue.

    Args:
        waiting: waiting applications of all users, in any order.
        running: starting or running ones: this user's by their rows, others' if their lock is held.
        past: usage by ended applications; in a shared queue only.
    """

    waiting: list[ApplicationRow]
    running: list[ApplicationRow]
    past: list[PastUse]


class QueueReader:
    """Reader of a machine's queue, for the user of a state directory; unchangeable data is cached."""

    def __init__(self, state: StateDir) -> None:
        self._state = state
        self._known: dict[int, dict[str, PastUse]] = {}

    def read(self, rows: Iterable[ApplicationRow]) -> QueueContents:
        """Read the queue.

        Args:
            rows: this user's waiting and running rows. In a shared queue their places and start times are taken from
                the spool; a row that is not in it has no place.
        """
        waiting = [row for row in rows if row.state == WAITING]
        running = [row for row in rows if row.state == RUNNING]
        if not self._state.shared:
            count_returned(self._state, running)
            for row in waiting:
                row.order, row.arrived_ns = (row.number, row.uid, row.id), row.submitted_ms * 1_000_000
            return QueueContents(waiting, running, [])
        own = self._read(self._state)
        past = list(own.past)
        entries = {one.id: one for one in own.entries}
        waiting = [row for row in waiting if row.id in entries]
        for row in (*waiting, *running):
            if (entry := entries.get(row.id)) is not None:
                row.order, row.arrived_ns, row.used_since_ns = entry.order, entry.order[0], entry.started_ns
        for other in self._state.others():
            try:
                found = self._read(other)
            except OSError:
                continue  # a spool that cannot be read counts as empty
            past += found.past
            for entry in found.entries:
                if entry.phase == spool.WAITING:
                    waiting.append(row_of(entry))
                elif spool.is_alive(other, entry.id):
                    running.append(row_of(entry))
        count_returned(self._state, running)
        return QueueContents(waiting, running, past)

    def _read(self, state: StateDir) -> spool.Spool:
        return spool.read(state, self._known.setdefault(state.uid, {}))


def count_returned(state: StateDir, running: Iterable[ApplicationRow]) -> None:
    """Set the GPUs of applications that have released theirs, and only store output, to zero.

    Another user's directory is trusted in this: a wrong statement only costs that user a place in the order, and GPUs
    are leased by the ledger alone.

    Args:
        running: rows of any user; they are changed. After their end, usage counts the GPUs for the whole time.
    """
    for row in running:
        if row.gcores and os.path.lexists(os.path.join(state.of(row.uid).application(row.id), DEVICES_RETURNED)):
            row.gcores = 0


def row_of(entry: SpoolEntry) -> ApplicationRow:
    """Return another user's application as a row."""
    values = {
        "order": entry.order,
        "id": entry.id,
        "uid": entry.uid,
        "submitter": user_name(entry.uid),
        "state": entry.phase,
        "memory_mib": entry.memory_mib,
        "vcores": entry.vcores,
        "gcores": entry.gcores,
        "gpus": entry.gpus,
        "priority": entry.priority,
        "runs_at_most_s": entry.runs_at_most_s,
        "started_ms": entry.started_ns // 1_000_000 or None,
        "arrived_ns": entry.order[0],
        "used_since_ns": entry.started_ns,
    }
    return ApplicationRow(list(values), list(values.values()))


def state_of(
    contents: QueueContents,
    capacity: Amounts,
    policy: Policy,
    now_s: float,
    *,
    absent: Collection[int] = (),
    others_gcores: int = 0,
    sets: GpuSets | None = None,
) -> QueueState:
    """Return the state of the queue for the scheduler.

    Args:
        contents: contents of the queue.
        capacity: amounts of the machine.
        policy: defines the unit of usage.
        now_s: the time [s since 1970].
        absent: uids of users who start nothing now.
        others_gcores: number of GPUs that are held outside of this queue, or cannot be leased.
        sets: sets of GPUs to count; None: all GPUs serve all requests, or it is not known which do.
    """
    if sets is not None:
        # Unless fewer are configured than there are, the sum limits nothing that the sets do not limit: a reservation
        # of a GPU in it would keep a free slice from those who want one.
        gcores = capacity.gcores if capacity.gcores < len(sets.devices) else UNLIMITED
        capacity = capacity._replace(gcores=gcores, by_set=sets.count_in(sets.devices))
    running = [
        RunningJob(
            row.uid,
            amounts_of(row) if sets is None else amounts_of(row)._replace(by_set=sets.count_held(row.id)),
            _end_s(row, now_s),
            row.used_since_ns / 1e9 or None,
        )
        for row in contents.running
    ]
    if others_gcores:
        by_set = () if sets is None else sets.count_in(sets.unavailable)
        running.append(RunningJob(None, Amounts(0, 0, others_gcores, by_set)))
    uses = list(_uses(contents, policy))
    starts: dict[int, list[tuple[float, float]]] = {}
    for one in contents.past:
        starts.setdefault(one.uid, []).append((one.arrived_ns / 1e9, one.started_ns / 1e9))
    for row in contents.running:
        if row.used_since_ns:
            starts.setdefault(row.uid, []).append((row.arrived_ns / 1e9, row.used_since_ns / 1e9))
    waiting = [_job_of(row, sets) for row in contents.waiting]
    return QueueState(capacity, running, waiting, hours_by_user(uses, now_s, policy.half_life_s), starts, absent)


def _job_of(row: ApplicationRow, sets: GpuSets | None) -> WaitingJob:
    limit_s = None if row.runs_at_most_s is None else float(row.runs_at_most_s)
    amounts = amounts_of(row) if sets is None else amounts_of(row)._replace(by_set=sets.count_asked(row))
    return WaitingJob(row.id, row.uid, amounts, row.arrived_ns / 1e9, row.order, row.priority or 0, limit_s)


def _end_s(row: ApplicationRow, now_s: float) -> float | None:
    """Return the latest end of a running application [s since 1970]; None: not known."""
    if row.runs_at_most_s is None:
        return None
    return (now_s if row.started_ms is None else row.started_ms / 1e3) + row.runs_at_most_s


def _uses(contents: QueueContents, policy: Policy) -> Iterable[Use]:
    boot_s = _boot_s()
    for one in contents.past:
        amount = policy.charged(Amounts(0, one.vcores, one.gcores))
        started_s, ended_s = one.started_ns / 1e9, one.ended_ns / 1e9
        # Nothing survives a reboot, but the end was recorded later.
        yield Use(one.uid, amount, started_s, min(ended_s, boot_s) if started_s < boot_s else ended_s)
    for row in contents.running:
        if row.used_since_ns:
            yield Use(row.uid, policy.charged(amounts_of(row)), row.used_since_ns / 1e9)


def _boot_s() -> float:
    """Return the boot time of the machine [s since 1970]."""
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


def read_policy() -> Policy:
    """Return the operator's policy for the queue; the defaults if there is none.

    Raises:
        ConfigError: the file is not trusted, or is invalid.
    """
    if not os.path.lexists(POLICY_FILE):
        return Policy()
    from dlapp.node_policy import node_policy

    found = node_policy(POLICY_FILE).queue
    return Policy(
        half_life_s=found.half_life_s,
        raise_after_s=found.raise_after_s,
        max_priority=found.max_priority,
        max_priority_by_user=_by_uid(found.max_priority_of or ()),
        user_gcores=found.user_gcores,
        user_gcores_by_user=_by_uid(found.user_gcores_of or ()),
        user_queued=found.user_queued,
        charge=found.charge,
    )


def _by_uid(amounts: Sequence[tuple[str, int]]) -> dict[int, int]:
    """Return amounts by uid; users unknown to the machine are left out."""
    if not amounts:
        return {}
    import pwd

    found = {}
    for user, amount in amounts:
        if user.isdecimal():
            found[int(user)] = amount
            continue
        try:
            found[pwd.getpwnam(user).pw_uid] = amount
        except KeyError:
            continue
    return found
