"""Attempts of an application: its ApplicationMasters, one after the other, each with its own lock.

Every process of an application inherits the lock of the attempt that started it, so the application is alive while one
of these locks is held. An attempt counts once it has registered (``am.json``). The next one is started when its process
is dead, and takes its own lock first: so no two of them run at once, whichever process starts them. Tasks may survive
their attempt.

A reboot leaves no process, and no attempt follows it, unless the application is to be queued again (``requeue``): then
its next attempt starts it again when it is its turn.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.local.outcome import has_outcome, kill_request
from dlapp.cluster.local.state import is_locked, read_bytes, read_json, read_spec, write_atomically
from dlapp.errors import DlappError
from dlapp.system.processes.proc import open_process

if TYPE_CHECKING:
    from dlapp.cluster.local.row import ApplicationRow

MAX_ATTEMPTS = 100
"""Maximum of ``local.am_attempts``."""
DEVICES_RETURNED = "devices-returned"
"""File in the application directory: its payloads have ended, and it needs no devices."""
REQUEUED = "requeued"
"""File in the application directory: the number of the last attempt before the machine was rebooted."""
MAX_STARTS = 3
"""How often an ApplicationMaster that does not register is started."""


class RegisteredAttempt(NamedTuple):
    """Last attempt that registered: its number, and its process by pid and start time; 0: not known."""

    attempt: int
    pid: int
    started: int


def alive_lock(application_dir: str, attempt: int) -> str:
    """Return the path of the lock of one attempt."""
    return os.path.join(application_dir, "alive" if attempt == 1 else f"alive-{attempt}")


def alive_locks(application_dir: str) -> Iterator[str]:
    """Yield the paths of the locks of all attempts so far, always including the first one's."""
    for attempt in range(1, MAX_ATTEMPTS + 1):
        path = alive_lock(application_dir, attempt)
        if attempt > 1 and not os.path.lexists(path):
            return
        yield path


def is_alive(application_dir: str, owner: int | None = None) -> bool:
    """Return whether a process of an application exists; ``owner`` and errors as in `is_locked`."""
    # In order: a process that takes a later lock while an earlier one is held has it before that is free.
    return any(is_locked(path, owner) for path in alive_locks(application_dir))


def registration(application_dir: str) -> RegisteredAttempt | None:
    """Return the attempt that registered last; None: none has."""
    try:
        if (found := read_json(os.path.join(application_dir, "am.json"))) is None:
            return None
    except DlappError:
        found = {}  # a power failure may leave it empty
    numbers = (found.get(name) for name in ("attempt", "pid", "start_time"))
    attempt, pid, started = (one if isinstance(one, int) else 0 for one in numbers)
    return RegisteredAttempt(max(attempt, 1), pid, started)


def open_recorded(application_dir: str, uid: int) -> int | None:
    """Return a pidfd of the ApplicationMaster or clean-up process that a user's runner has recorded in ``am.pid``.

    Returns:
        None: none is recorded, or it has ended, or is another user's.
    """
    try:
        pid, started = (int(word) for word in read_bytes(os.path.join(application_dir, "am.pid"), 100).split())
    except (OSError, ValueError):
        return None
    return open_process(pid, started, uid)


def next_attempt(row: ApplicationRow, application_dir: str, boot_id: str) -> int | None:
    """Return the number of the next attempt after the ApplicationMaster of a running row has died.

    Returns:
        None: there is none, because it has ended, the attempts are used up, a kill was requested, or the machine was
            rebooted.
    """
    if has_outcome(application_dir):
        return None  # its last processes are ending
    if row.aftermaths or row.boot_id != boot_id or (last := registration(application_dir)) is None:
        return None
    if (
        last.attempt - _attempts_before(application_dir) >= _most_attempts(application_dir)
        or row.starts >= last.attempt + MAX_STARTS
    ):
        return None
    return last.attempt + 1 if kill_request(application_dir) is None else None


def is_requeued(row: ApplicationRow, application_dir: str, boot_id: str) -> bool:
    """Return whether a running row from before a reboot is to be queued again: its file has the setting, no kill was
    requested, and it had not begun to commit its output."""
    if (
        row.boot_id == boot_id
        or row.aftermaths
        or has_outcome(application_dir)
        or kill_request(application_dir) is not None
    ):
        return False
    is_requested = read_spec(application_dir).get("requeue") is True
    return is_requested and not os.path.lexists(os.path.join(application_dir, "commit.json"))


def first_attempt(application_dir: str) -> int:
    """Return the number of the attempt that starts an application from the queue: 1, or the next after a reboot."""
    last = registration(application_dir)
    return max(0 if last is None else last.attempt, _attempts_before(application_dir)) + 1


def record_requeue(application_dir: str) -> None:
    """Record that an application is queued again; the count of attempts restarts.

    A power failure may lose any file that was not synced. Journals are read in order up to the first missing one, so
    each attempt gets one.
    """
    before = first_attempt(application_dir) - 1
    while os.path.lexists(_journal(application_dir, before + 1)):
        before += 1
    for attempt in range(1, before + 1):
        os.close(
            os.open(_journal(application_dir, attempt), os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        )
    write_atomically(os.path.join(application_dir, REQUEUED), str(before), sync=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(os.path.join(application_dir, DEVICES_RETURNED))


def _journal(application_dir: str, attempt: int) -> str:
    return os.path.join(application_dir, f"journal-{attempt}.jsonl")


def _attempts_before(application_dir: str) -> int:
    """Return the number of an application's attempts before the reboot."""
    with contextlib.suppress(OSError, ValueError):
        return max(0, int(read_bytes(os.path.join(application_dir, REQUEUED), 20)))
    return 0


def _most_attempts(application_dir: str) -> int:
    """Return an application's maximum number of attempts, by the configuration at its submission."""
    try:
        settings = (read_json(os.path.join(application_dir, "engine.json")) or {}).get("settings")
    except (DlappError, OSError):
        return 1
    most = settings.get("am_attempts") if isinstance(settings, dict) else None
    return most if isinstance(most, int) and not isinstance(most, bool) else 1  # an earlier version has no such number
