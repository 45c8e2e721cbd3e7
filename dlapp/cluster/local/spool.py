"""Public queue of a shared state directory: waiting and running applications of all users, and their order.

Each user writes only their own spool, and reads those of the others. It contains empty directories, whose names are the
data:

    application_1700000000000_0001.4096.2.1     not ended, requests this memory [MiB], vcores and gcores
    application_1700000000000_0001.starting     its runner is about to start it, or has started it
    application_1700000000000_0001.running      its runner has started it
    application_1700000000000_0001.blocked      not ended, and without a queue position yet
    application_1700000000000_0001.asks.5.3600  its priority, and the limit of its run time [s] (0: not known); missing
                                                if both are 0
    application_1700000000000_0001.gpus.1*mig   which GPUs it requests, if not any whole ones (`dlapp.gpuid.needs`)
    application_1700000000000_0001.ended        ended; with ``running``, and without ``starting``, kept for its user's
                                                usage

The queue order is the time at which the kernel created the first of these (``st_ctime_ns``), then uid and id. It is a
directory because no other user can change that time, while a hard link would change a file's. A user can only lose
their own position.

Usage is computed from the same names: an application ran from the kernel's creation time of ``running`` to that of
``ended``. A user can shorten only their own usage by removing them.

Runners decide without a shared lock, as any user could hold such a lock indefinitely:

    1. A runner whose application fits takes the application's lock and writes ``starting``.
    2. It reads all spools again. If the others' starting and running applications now leave no room, it withdraws; but
       for one that is only starting and is later in the order it waits: that runner sees this one, and withdraws.
    3. It also writes ``running``, and starts. ``starting`` stays: a process that lists a directory while a name is
       being replaced may see neither name, but always sees one that stays.

Of two simultaneous starts at least one reads the spools after both have written, so they never both start; and the
earlier one withdraws only for one that runs. Starting or running applications of others count only while their lock is
held.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Collection
from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.local.attempts import is_alive as application_is_alive
from dlapp.cluster.local.state import StateDir, is_locked
from dlapp.id_text import is_application_id
from dlapp.system import files

if TYPE_CHECKING:
    from dlapp.cluster.local.row import ApplicationRow

WAITING, STARTING, RUNNING, BLOCKED = "waiting", "starting", "running", "blocked"
ASKS, GPUS, ENDED = "asks", "gpus", "ended"
MAX_NAMES = 50_000
"""Limit of the names read in one user's spool."""
MAX_PAST = 2_000
"""Limit of the ended applications kept in a spool, the latest ones."""
_MAX_DIGITS = 12
_MAX_GPUS = 200
"""Limit of the characters about GPUs; the name of a directory has at most 255. Other users then count whole GPUs."""


class SpoolEntry(NamedTuple):
    """Application that has not ended: its queue position, owner, requested amounts and phase.

    Args:
        runs_at_most_s: limit of its run time; None: not known.
        started_ns: the kernel's creation time of its name ``running`` [ns since 1970]; 0: there is none.
        gpus: which GPUs it requests, as text; empty: any whole ones.
    """

    order: tuple[int, int, str]
    uid: int
    id: str
    memory_mib: int
    vcores: int
    gcores: int
    phase: str
    priority: int = 0
    runs_at_most_s: int | None = None
    started_ns: int = 0
    gpus: str = ""


class PastUse(NamedTuple):
    """Ended application: its owner, its amounts, and times of the kernel [ns since 1970]."""

    id: str
    uid: int
    vcores: int
    gcores: int
    arrived_ns: int
    started_ns: int
    ended_ns: int


class Spool(NamedTuple):
    """Contents of one user's spool.

    Args:
        entries: applications that have not ended, in order.
        past: ended applications whose usage is kept.
    """

    entries: list[SpoolEntry]
    past: list[PastUse]


def announce(state: StateDir, row: ApplicationRow) -> None:
    """Record that an application of this user has a queue position; the first call fixes it. May be repeated.

    Marks of its runner stay: a submission may get here when its application already runs.
    """
    _remove(state, f"{row.id}.{BLOCKED}")
    if row.priority or row.runs_at_most_s:
        _make(state, f"{row.id}.{ASKS}.{row.priority or 0}.{row.runs_at_most_s or 0}")
    if row.gpus and len(row.gpus) <= _MAX_GPUS:
        _make(state, f"{row.id}.{GPUS}.{row.gpus}")
    _make(state, f"{row.id}.{row.memory_mib}.{row.vcores}.{row.gcores}")


def mark(state: StateDir, application_id: str, phase: str) -> None:
    """Record that an application of this user waits again, is not to be started yet, starts or runs. May be repeated.

    Only the user's runner does so, except for ``BLOCKED``: other processes do not know what it is starting.
    """
    if phase != WAITING:
        _make(state, f"{application_id}.{phase}")
        return
    for name in (STARTING, RUNNING, ENDED):
        _remove(state, f"{application_id}.{name}")


def end(state: StateDir, application_id: str) -> None:
    """Record that an application of this user has ended; if it ran, its usage is kept. May be repeated."""
    was_started = os.path.isdir(os.path.join(state.spool, f"{application_id}.{RUNNING}"))
    if was_started:
        _make(state, f"{application_id}.{ENDED}")
    for name in _names(state):
        found, _, mark = name.partition(".")
        if found == application_id and not (was_started and _is_of_past(mark)):
            _remove(state, name)


def ids(state: StateDir) -> set[str]:
    """Return the ids in this user's spool, except those kept only for usage."""
    names = _names(state)
    return {name.partition(".")[0] for name in names} - {name.partition(".")[0] for name in names if _is_end(name)}


def remove(state: StateDir, application_ids: Collection[str]) -> None:
    """Remove entries of this user's applications, except kept usage."""
    if application_ids:
        names = _names(state)
        kept = {name.partition(".")[0] for name in names if _is_end(name)}
        for name in names:
            if (found := name.partition(".")[0]) in application_ids and found not in kept:
                _remove(state, name)


def forget_past(state: StateDir, before_ns: int) -> int:
    """Remove usage of this user that ended before a time [ns since 1970], or exceeds the limit; return the number."""
    past = sorted(read(state).past, key=lambda one: one.ended_ns, reverse=True)
    old = {one.id for one in past[MAX_PAST:]} | {one.id for one in past if one.ended_ns < before_ns}
    for name in _names(state):
        if name.partition(".")[0] in old:
            _remove(state, name)
    return len(old)


def _is_end(name: str) -> bool:
    return name.endswith(f".{ENDED}")


def _is_of_past(mark: str) -> bool:
    return mark in (RUNNING, ENDED) or _amounts_in(mark) is not None


def _names(state: StateDir) -> list[str]:
    with os.scandir(state.spool) as entries:
        return [entry.name for entry in entries]


def _remove(state: StateDir, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.rmdir(os.path.join(state.spool, name))


def _make(state: StateDir, name: str) -> None:
    path = os.path.join(state.spool, name)
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o750)


def entries_of(state: StateDir) -> list[SpoolEntry]:
    """Return the entries of a user's spool, in order; anything else in it is ignored.

    Raises:
        OSError: there is no spool, or it is not that user's.
    """
    return read(state).entries


def read(state: StateDir, known: dict[str, PastUse] | None = None) -> Spool:
    """Read a user's spool; names in other forms are ignored.

    Args:
        known: usage of that user that was read before, by application; it is not read again, and new usage is added.

    Raises:
        OSError: there is no spool, or it is not that user's.
    """
    known = {} if known is None else known
    found, past = list[SpoolEntry](), list[PastUse]()
    marks_by_id: dict[str, set[str]] = {}
    with state.opened("spool") as place, files.closing_fd(files.open_directory(f"{place}/.")) as fd:
        for name in files.list_names(fd, limit=MAX_NAMES):
            application_id, _, mark = name.partition(".")
            marks_by_id.setdefault(application_id, set()).add(mark)
        for application_id, marks in marks_by_id.items():
            if not is_application_id(application_id):
                continue
            is_past = ENDED in marks and RUNNING in marks and STARTING not in marks
            if is_past and application_id in known:
                past.append(known[application_id])
            elif is_past:
                if (use := _past_use(fd, state.uid, application_id, marks)) is not None:
                    known[application_id] = use
                    past.append(use)
            elif (entry := _entry(fd, state.uid, application_id, marks)) is not None:
                found.append(entry)
    for gone in known.keys() - marks_by_id.keys():
        del known[gone]
    return Spool(sorted(found), past)


def _entry(fd: int, uid: int, application_id: str, marks: set[str]) -> SpoolEntry | None:
    if (found := _amounts(fd, uid, application_id, marks)) is None:
        return None
    (memory_mib, vcores, gcores), arrived_ns = found
    phase = next((one for one in (RUNNING, STARTING) if one in marks), WAITING)
    started_ns = _made_ns(fd, uid, f"{application_id}.{RUNNING}") if phase == RUNNING else None
    priority, runs_at_most_s = next(filter(None, map(_asks_in, marks)), (0, 0))
    return SpoolEntry(
        (arrived_ns, uid, application_id),
        *(uid, application_id, memory_mib, vcores, gcores, phase, priority, runs_at_most_s or None),
        started_ns or 0,
        next((one.removeprefix(f"{GPUS}.") for one in sorted(marks) if one.startswith(f"{GPUS}.")), ""),
    )


def _past_use(fd: int, uid: int, application_id: str, marks: set[str]) -> PastUse | None:
    found = _amounts(fd, uid, application_id, marks)
    started_ns = _made_ns(fd, uid, f"{application_id}.{RUNNING}")
    ended_ns = _made_ns(fd, uid, f"{application_id}.{ENDED}")
    if found is None or started_ns is None or ended_ns is None:
        return None
    (_, vcores, gcores), arrived_ns = found
    return PastUse(application_id, uid, vcores, gcores, arrived_ns, started_ns, ended_ns)


def _amounts(fd: int, uid: int, application_id: str, marks: set[str]) -> tuple[tuple[int, int, int], int] | None:
    """Return the amounts of an application, and the kernel's creation time of the name with them [ns since 1970]."""
    for mark in sorted(marks):
        if (amounts := _amounts_in(mark)) is None:
            continue
        if (made_ns := _made_ns(fd, uid, f"{application_id}.{mark}")) is not None:
            return amounts, made_ns
    return None


def _made_ns(fd: int, uid: int, name: str) -> int | None:
    """Return the kernel's creation time of a user's directory; None: it is not one."""
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
    except FileNotFoundError:
        return None
    return info.st_ctime_ns if stat.S_ISDIR(info.st_mode) and info.st_uid == uid else None


def _amounts_in(mark: str) -> tuple[int, int, int] | None:
    numbers = mark.split(".")
    if len(numbers) != 3 or not all(map(_is_number, numbers)):
        return None
    return int(numbers[0]), int(numbers[1]), int(numbers[2])


def _asks_in(mark: str) -> tuple[int, int] | None:
    name, *numbers = mark.split(".")
    if name != ASKS or len(numbers) != 2 or not all(map(_is_number, numbers)):
        return None
    return int(numbers[0]), int(numbers[1])


def blocked_ids(state: StateDir) -> set[str]:
    """Return the applications of a user without a queue position. Raises OSError as `entries_of`."""
    with state.opened("spool") as place, files.closing_fd(files.open_directory(f"{place}/.")) as fd:
        names = (name.split(".") for name in files.list_names(fd, limit=MAX_NAMES))
        return {name[0] for name in names if name[1:] == [BLOCKED] and is_application_id(name[0])}


def entries_of_others(state: StateDir) -> list[SpoolEntry]:
    """Return the entries of all other users' spools, in order; a spool that cannot be read counts as empty."""
    found: list[SpoolEntry] = []
    for other in state.others():
        with contextlib.suppress(OSError):
            found += entries_of(other)
    return sorted(found)


def is_alive(state: StateDir, application_id: str) -> bool:
    """Return whether a process of a user's application holds one of its locks."""
    with contextlib.suppress(OSError), state.opened("applications", application_id) as application_dir:
        return application_is_alive(application_dir, state.uid)
    return False


def has_runner(state: StateDir) -> bool:
    """Return whether a user of a shared directory has a runner."""
    with contextlib.suppress(OSError), state.opened() as place:
        return is_locked(os.path.join(place, os.path.basename(state.runner_sign(state.uid))), state.uid)
    return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
