"""What a process holds of the machine's GPU ledger: devices, reserved or leased, and a place in the queue for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores import device_files
from dlapp.gpuid.stores.device_files import Directory, Record
from dlapp.system import locks
from dlapp.system.files import UntrustedFile

_LOOKED_EVERY_S = 1.0
TICKET = "ticket-"
_LOOKED_AT = 1 << 40
"""Where in a ticket's file the lock lies that says when its holder last looked: so many bytes and tenths of seconds."""
_FUTURE_S = 1.0


class PublishedHolds(NamedTuple):
    """A record of this process in the ledger's directory."""

    name: str
    fd: int


class _LockedDevices:
    """Locked devices. Closing lets go of this process's part; the devices are free when every process that inherited
    the descriptors has done so, or is gone."""

    def __init__(
        self,
        devices: Sequence[Device],
        lock_by_name: Mapping[str, int],
        published: Sequence[PublishedHolds],
        directory: str,
    ) -> None:
        self.devices = tuple(devices)
        self._locks, self._published, self._directory = tuple(lock_by_name.values()), tuple(published), directory
        self.fds = (*self._locks, *(one.fd for one in published))
        self._open = True

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        if self._open:
            self._open = False
            # The record first: when the device's lock is free, no live record of it may remain.
            for fd in (*(one.fd for one in self._published), *self._locks):
                os.close(fd)

    def _withdraw(self) -> None:
        for one in self._published:
            device_files.withdraw(self._directory, one.name, one.fd)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reservation(_LockedDevices):
    """Devices that are reserved for an application; ``fds`` (not inherited unless passed on) hold them."""

    def close(self) -> None:
        """Close the descriptors, and remove the records if nobody else holds them. May be repeated."""
        if not self._open:
            return
        again = []
        for one in self._published:
            with contextlib.suppress(OSError):
                # Opened anew, it sees the lock of those who inherited the descriptor.
                again.append((one.name, os.open(f"/proc/self/fd/{one.fd}", os.O_RDWR | os.O_CLOEXEC)))
        super().close()
        for name, fd in again:
            try:
                if not locks.is_write_locked(fd):
                    device_files.withdraw(self._directory, name, fd)
            finally:
                os.close(fd)


class MachineLease(_LockedDevices):
    """Devices that a container has; ``fds`` (not inherited unless passed on) hold them."""

    def __init__(
        self,
        devices: Sequence[Device],
        lock_by_name: Mapping[str, int],
        published: Sequence[PublishedHolds],
        directory: str,
        reservation: Reservation | None = None,
    ) -> None:
        super().__init__(devices, lock_by_name, published, directory)
        self._reservation = reservation
        if reservation is not None:
            self.fds = (*self.fds, *reservation.fds)

    @property
    def is_open(self) -> bool:
        """Return whether this object still holds it."""
        return self._open

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        super().close()
        if self._reservation is not None:
            self._reservation.close()

    def release(self) -> bool:
        """Give the devices back: the payload is gone, its evidence need not be looked at. May be repeated."""
        if self._open:
            self._withdraw()
        self.close()
        return True


class HeldDevices(_LockedDevices):
    """Devices that are locked for a lease of a cluster's ledger; ``evidence``: where to look whether they still are."""

    def __init__(
        self,
        devices: Sequence[Device],
        lock_by_name: Mapping[str, int],
        published: Sequence[PublishedHolds],
        directory: str,
        evidence: Record,
    ) -> None:
        super().__init__(devices, lock_by_name, published, directory)
        self.evidence = evidence

    def release(self) -> None:
        """Let go of them, and remove their records: the payload is gone. May be repeated."""
        if self._open:
            self._withdraw()
        self.close()


class QueueTicket:
    """A place in the machine's queue for GPUs, held until it is closed or the process ends.

    Its file is never written again once it has its name, so the kernel's time of its last change is when it came. That
    its holder still looks is said by where a lock of that file lies, which nobody but its owner can place.
    """

    def __init__(self, directory: Directory, name: str, record: Record, clock: Callable[[], float]) -> None:
        import json

        self._path, self.name, self._clock = os.path.join(directory.path, name), name, clock
        self._looked_s = -_LOOKED_EVERY_S
        self._fd = directory.write(name, json.dumps({**record, "name": name}).encode(), self._lock)

    def _lock(self, fd: int) -> None:
        locks.try_lock(fd, 0, 1)
        self._fd = fd
        self.looks()

    def looks(self) -> None:
        """Say that whoever waits here is at it."""
        if (now_s := self._clock()) - self._looked_s >= _LOOKED_EVERY_S:
            before, self._looked_s = self._looked_s, now_s
            locks.try_lock(self._fd, _LOOKED_AT + int(now_s * 10), 1)
            if before >= 0 and int(before * 10) != int(now_s * 10):
                locks.unlock(self._fd, _LOOKED_AT + int(before * 10), 1)

    def close(self) -> None:
        """Leave the queue. May be repeated."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> QueueTicket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Waiting(NamedTuple):
    """A ticket whose holder lives.

    Args:
        uid: of its owner.
        came_ns: when it came, as the kernel has it [ns since 1970].
        since_ms: what its holder says about that.
        looked_s: when its holder last looked [s, monotonic]; None: it does not say, or says what cannot be.
    """

    name: str
    uid: int
    came_ns: int
    since_ms: int
    looked_s: float | None
    record: Record


def waiting(directory: Directory, now_s: float, names: list[str]) -> list[Waiting]:
    """Return the tickets of the living, the first one first; those of this user's dead are removed."""
    found = []
    for name in names:
        if name.startswith(TICKET) and (one := _ticket(directory, name, now_s)) is not None:
            found.append(one)
    return in_order(found)


def in_order(tickets: Sequence[Waiting]) -> list[Waiting]:
    """Return tickets in the order of the queue.

    Among users the kernel's time counts, for anybody may claim to have come long ago. Among the tickets of one user
    what the user says counts: they are ordered by it, on the places that they have together.
    """
    places = sorted((one.came_ns, one.uid, one.name) for one in tickets)
    by_user: dict[int, list[Waiting]] = {}
    for one in sorted(tickets, key=lambda one: (one.since_ms, one.came_ns, one.name), reverse=True):
        by_user.setdefault(one.uid, []).append(one)
    return [by_user[uid].pop() for _, uid, _ in places]


def _ticket(directory: Directory, name: str, now_s: float) -> Waiting | None:
    try:
        file = directory.open_to_read(name)
        is_live = locks.is_write_locked(file.fd, 0, 1)
        start = locks.write_lock_start(file.fd, _LOOKED_AT)
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
    looked_s = None if start is None else (start - _LOOKED_AT) / 10
    if looked_s is not None and looked_s > now_s + _FUTURE_S:
        looked_s = None
    return Waiting(name, about.st_uid, about.st_ctime_ns, since_ms, looked_s, record)
