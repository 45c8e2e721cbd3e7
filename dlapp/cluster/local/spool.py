"""The queue that users of a shared state directory see: what waits, what runs, in which order.

Each user writes only the own spool, and reads those of the others. It has empty directories; all is in their names:

    application_1700000000000_0001.4096.2.1     it has not ended, and asks for so much memory [MiB], vcores and gcores
    application_1700000000000_0001.starting     its runner is about to start it, or has started it
    application_1700000000000_0001.running      its runner has started it
    application_1700000000000_0001.blocked      it has not ended, and has no place in the order yet

The order in the queue is the time at which the kernel made the first of these (``st_ctime_ns``), then uid and id. It is
a directory because nobody else can change that time: a hard link to a file would. A user can only lose the place.

Runners decide without a lock that all share, since anybody could keep that one for ever:

    1. A runner whose application fits takes the application's lock and writes ``starting``.
    2. It reads all spools again. If with all that others start or run there is no room any more, it withdraws; but for
       one that only starts and is later in the order it waits: that runner sees this one, and withdraws.
    3. It writes ``running`` besides, and starts. ``starting`` stays: who lists a directory while a name is replaced may
       see neither name, but surely sees one that is there all the time.

Of two that start at the same moment at least one reads the spools after both have written, so both never start; and the
earlier one withdraws only for one that runs. What others start or run counts only while the application's lock is held.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterable
from typing import NamedTuple

from dlapp.cluster.local.attempts import is_alive as application_is_alive
from dlapp.cluster.local.state import StateDir, is_locked
from dlapp.id_text import is_application_id
from dlapp.system import files

WAITING, STARTING, RUNNING, BLOCKED = "waiting", "starting", "running", "blocked"
MAX_NAMES = 10_000
"""How many names of one user's spool are looked at."""
_MAX_DIGITS = 12


class SpoolEntry(NamedTuple):
    """An application that has not ended: its place in the order, its owner, the amounts it asks for, its phase."""

    order: tuple[int, int, str]
    uid: int
    id: str
    memory_mib: int
    vcores: int
    gcores: int
    phase: str


def announce(state: StateDir, application_id: str, memory_mib: int, vcores: int, gcores: int) -> None:
    """Write that an application of this user waits; this fixes its place in the order. May be repeated.

    Args:
        state: this user's state directory.
        application_id: the application.
        memory_mib: of all its containers [MiB].
        vcores: of all its containers.
        gcores: of all its containers.
    """
    _make(state, f"{application_id}.{memory_mib}.{vcores}.{gcores}")


def mark(state: StateDir, application_id: str, phase: str) -> None:
    """Write that an application of this user waits (again), is not to be started yet, starts or runs. May be
    repeated."""
    if phase != WAITING:
        _make(state, f"{application_id}.{phase}")
        return
    for name in (STARTING, RUNNING, BLOCKED):
        with contextlib.suppress(FileNotFoundError):
            os.rmdir(os.path.join(state.spool, f"{application_id}.{name}"))


def remove(state: StateDir, application_ids: Iterable[str] | None = None, *, but: Iterable[str] = ()) -> None:
    """Remove the entries of ended applications of this user: of the given ones, or of all but the given ones."""
    kept, gone = set(but), None if application_ids is None else set(application_ids)
    with os.scandir(state.spool) as entries:
        names = [entry.name for entry in entries]
    for name in names:
        application_id = name.partition(".")[0]
        if application_id not in kept and (gone is None or application_id in gone):
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
    with state.opened("spool") as place:
        fd = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            names = files.list_names(fd, limit=MAX_NAMES)
            there, found = frozenset(names), []
            for name in names:
                application_id, *numbers = name.split(".")
                if len(numbers) != 3 or not is_application_id(application_id) or not all(map(_is_number, numbers)):
                    continue
                try:
                    info = os.stat(name, dir_fd=fd, follow_symlinks=False)
                except FileNotFoundError:
                    continue
                if not stat.S_ISDIR(info.st_mode) or info.st_uid != state.uid:
                    continue
                phase = next((one for one in (RUNNING, STARTING) if f"{application_id}.{one}" in there), WAITING)
                memory_mib, vcores, gcores = map(int, numbers)
                order = (info.st_ctime_ns, state.uid, application_id)
                found.append(SpoolEntry(order, state.uid, application_id, memory_mib, vcores, gcores, phase))
        finally:
            os.close(fd)
    return sorted(found)


def blocked_ids(state: StateDir) -> set[str]:
    """Return the applications of a user that have no place in the order yet. Raises OSError as `entries_of`."""
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
    with contextlib.suppress(OSError), state.opened("applications", application_id) as home:
        return application_is_alive(home, state.uid)
    return False


def has_runner(state: StateDir) -> bool:
    """Return whether a user of a shared directory has a runner."""
    with contextlib.suppress(OSError), state.opened() as place:
        return is_locked(os.path.join(place, os.path.basename(state.runner_sign(state.uid))), state.uid)
    return False


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= _MAX_DIGITS
