"""Attempts of an application: its ApplicationMasters, one after the other, each with a lock of its own.

Every process of an application inherits the lock of the attempt that started it, so the application is alive while one
of these locks is held. An attempt is counted when it has registered (``am.json``). The next one is started when its
process is dead, and takes its lock first: so no two of them run at once, whoever starts them. Its tasks may live on.

A restart of the machine leaves no process, and no attempt follows it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.local.outcome import has_outcome, kill_request
from dlapp.cluster.local.state import is_locked, read_json
from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.cluster.local.queue import ApplicationRow

MOST = 100
"""The largest value of ``local.am_attempts``."""
DEVICES_RETURNED = "devices-returned"
"""A file in the application directory: its payloads are over, and its devices are nobody's or others'."""
MAX_STARTS = 3
"""How often an ApplicationMaster that does not register is started."""


class RegisteredAttempt(NamedTuple):
    """The last attempt that registered: its number, and its process by pid and start time; 0: not known."""

    attempt: int
    pid: int
    started: int


def alive_lock(home: str, attempt: int) -> str:
    """Return the path of the lock of one attempt."""
    return os.path.join(home, "alive" if attempt == 1 else f"alive-{attempt}")


def alive_locks(home: str) -> Iterator[str]:
    """Yield the paths of the locks of all attempts so far, the first one's always."""
    for attempt in range(1, MOST + 1):
        path = alive_lock(home, attempt)
        if attempt > 1 and not os.path.lexists(path):
            return
        yield path


def is_alive(home: str, owner: int | None = None) -> bool:
    """Return whether a process of an application is there; arguments and errors as of `is_locked`.

    Args:
        home: the application directory.
        owner: whose the locks must be.
    """
    # In order: who takes a later lock while another is held has it before that one is free.
    return any(is_locked(path, owner) for path in alive_locks(home))


def registration(home: str) -> RegisteredAttempt | None:
    """Return which attempt registered last; None: none has."""
    try:
        if (found := read_json(os.path.join(home, "am.json"))) is None:
            return None
    except DlappError:
        found = {}  # a power cut may leave it empty
    numbers = (found.get(name) for name in ("attempt", "pid", "start_time"))
    attempt, pid, started = (one if isinstance(one, int) else 0 for one in numbers)
    return RegisteredAttempt(max(attempt, 1), pid, started)


def next_attempt(row: ApplicationRow, home: str, boot_id: str) -> int | None:
    """Return the number of the attempt that follows when the ApplicationMaster of a running row has died.

    Args:
        row: of the queue.
        home: the application directory.
        boot_id: of the running kernel.

    Returns:
        None: none does, because it has ended, the attempts are used up, somebody asked for a kill, or the machine was
            restarted.
    """
    if has_outcome(home):
        return None  # its last processes are just ending
    if row.aftermaths or row.boot_id != boot_id or (last := registration(home)) is None:
        return None
    if last.attempt >= _most_attempts(home) or row.starts >= last.attempt + MAX_STARTS:
        return None
    return last.attempt + 1 if kill_request(home) is None else None


def _most_attempts(home: str) -> int:
    """Return how many attempts an application may have, by the configuration at its submission."""
    try:
        settings = (read_json(os.path.join(home, "engine.json")) or {}).get("settings")
    except (DlappError, OSError):
        return 1
    most = settings.get("am_attempts") if isinstance(settings, dict) else None
    return most if isinstance(most, int) and not isinstance(most, bool) else 1  # an earlier version has no such number
