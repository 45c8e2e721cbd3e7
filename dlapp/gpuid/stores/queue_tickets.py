"""Queue for the machine's GPUs: one locked file per waiting application, and their order."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlapp.gpuid.needs import Demand, from_text
from dlapp.gpuid.stores.device_files import Directory, Record, text_of
from dlapp.system import locks
from dlapp.system.files import UntrustedFile
from dlapp.system.owners import user_text
from dlapp.value import Closeable

TICKET = "ticket-"
POLL_TIMEOUT_S = 15.0
"""Time without a poll after which the holder of a ticket counts as stopped or hanging: its ticket keeps its position,
but does not block others."""
_POLL_RECORD_EVERY_S = 1.0
_POLL_LOCK_OFFSET = 1 << 40
"""Offset in a ticket's file of the lock that encodes its holder's last poll: this many bytes plus tenths of seconds."""
_FUTURE_S = 1.0


class QueueTicket(Closeable):
    """Position in the machine's queue for GPUs, held until it is closed or the process ends.

    Its file is never written again once it has its name, so the kernel's change time is its arrival time. The holder's
    last poll is encoded in the offset of a lock on that file, which only its owner can place.
    """

    def __init__(self, directory: Directory, name: str, record: Record, clock: Callable[[], float]) -> None:
        self._path, self.name, self._clock = os.path.join(directory.path, name), name, clock
        self._polled_s = -_POLL_RECORD_EVERY_S
        self._fd = directory.write(name, json.dumps({**record, "name": name}).encode(), self._lock)

    def _lock(self, fd: int) -> None:
        locks.try_lock(fd, 0, 1)
        self._fd = fd
        self.record_poll()

    def record_poll(self) -> None:
        """Record that this holder is still polling."""
        if (now_s := self._clock()) - self._polled_s >= _POLL_RECORD_EVERY_S:
            before, self._polled_s = self._polled_s, now_s
            locks.try_lock(self._fd, _POLL_LOCK_OFFSET + int(now_s * 10), 1)
            if before >= 0 and int(before * 10) != int(now_s * 10):
                locks.unlock(self._fd, _POLL_LOCK_OFFSET + int(before * 10), 1)

    def close(self) -> None:
        """Leave the queue. May be repeated."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1


class WaitingTicket(NamedTuple):
    """Ticket whose holder is alive.

    Args:
        uid: the uid of its owner.
        arrived_ns: its arrival time by the kernel [ns since 1970].
        since_ms: its arrival time as claimed by its holder [ms since 1970].
        polled_s: its holder's last poll [s, monotonic]; None: not recorded, or invalid.
    """

    name: str
    uid: int
    arrived_ns: int
    since_ms: int
    polled_s: float | None
    record: Record

    @property
    def demands(self) -> tuple[Demand, ...]:
        """Return what its holder waits for; a ticket of an earlier version waits for whole GPUs."""
        return from_text(text_of(self.record, "gpus"), 1)

    def __str__(self) -> str:
        who = f"{text_of(self.record, 'application') or 'an application'} ({user_text(self.uid)})"
        count = self.record.get("count")
        return f"{who} came first and waits for {count if isinstance(count, int) else 'some'} gcores"


def ticket_name(application: str, since_ms: int) -> str:
    """Return a name for a new ticket."""
    safe = re.sub(r"[^A-Za-z0-9_-]", "_", application)[:80]
    return f"{TICKET}{since_ms:020d}-{safe}-{os.getpid()}-{random.getrandbits(32):08x}"


def live_before(directory: Directory, name: str | None, names: list[str], now_s: float) -> list[WaitingTicket]:
    """Return the live tickets of the queue before ``name`` (None: all), in order.

    Args:
        directory: directory of the ledger.
        name: name of the caller's own ticket.
        names: listing of the directory, made after ``name`` arrived: it contains all earlier tickets.
        now_s: the time [s, monotonic].
    """
    found = []
    for one in waiting(directory, now_s, names):
        if one.name == name:
            break
        if one.polled_s is not None and now_s - one.polled_s <= POLL_TIMEOUT_S:
            found.append(one)
    return found


def waiting(directory: Directory, now_s: float, names: list[str]) -> list[WaitingTicket]:
    """Return the live tickets in order; remove those of this user's dead processes."""
    found = (_ticket(directory, name, now_s) for name in names if name.startswith(TICKET))
    return sort_tickets([one for one in found if one is not None])


def sort_tickets(tickets: Sequence[WaitingTicket]) -> list[WaitingTicket]:
    """Return tickets in queue order.

    Between users the kernel's time counts, as anyone may claim an early arrival. Among the tickets of one user the
    user's claim counts: they are ordered by it, on the positions that they have together.
    """
    places = sorted((one.arrived_ns, one.uid, one.name) for one in tickets)
    by_user: dict[int, list[WaitingTicket]] = {}
    for one in sorted(tickets, key=lambda one: (one.since_ms, one.arrived_ns, one.name), reverse=True):
        by_user.setdefault(one.uid, []).append(one)
    return [by_user[uid].pop() for _, uid, _ in places]


def _ticket(directory: Directory, name: str, now_s: float) -> WaitingTicket | None:
    try:
        file = directory.open_to_read(name)
        is_live = locks.is_write_locked(file.fd, 0, 1)
        start = locks.write_lock_start(file.fd, _POLL_LOCK_OFFSET)
        record, about = directory.read_record(file, name) or {}, file.about
        since_ms = record.get("since_ms")
        if type(since_ms) is not int:
            raise UntrustedFile(name, "is not a ticket")
        if not is_live:
            if about.st_uid == os.geteuid():
                directory.remove(name)
            return None
    except FileNotFoundError:
        return None
    except OSError as error:
        directory.report(name, error)
        return None
    polled_s = None if start is None else (start - _POLL_LOCK_OFFSET) / 10
    if polled_s is not None and polled_s > now_s + _FUTURE_S:
        polled_s = None
    return WaitingTicket(name, about.st_uid, about.st_ctime_ns, since_ms, polled_s, record)
