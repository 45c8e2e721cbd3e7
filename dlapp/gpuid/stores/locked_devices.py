"""Devices of the machine's GPU ledger that a process has locked, reserved or leased: taking them, and letting go."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from dlapp.gpuid.devices import Device
from dlapp.gpuid.stores import device_files
from dlapp.gpuid.stores.device_files import HELD, LEASED, Directory, Entry, Record, file_name
from dlapp.gpuid.stores.machine_reader import MachineReader
from dlapp.system import locks
from dlapp.system.files import UntrustedFile
from dlapp.value import Closeable

IsStillFree = Callable[[MachineReader, Sequence[Entry], int | None], bool]
"""Checks a device once more when it is locked, by its records and the descriptor of its lock."""


class Taken(NamedTuple):
    """Locks of devices: the descriptors of their files, by name, and the names and descriptors of the records of that
    in ``directory``."""

    directory: str
    lock_by_name: Mapping[str, int]
    published: tuple[tuple[str, int], ...]


class _LockedDevices(Closeable):
    """Locked devices. Closing lets go of this process's part; the devices are free when every process that inherited
    the descriptors (``fds``, not inherited unless passed on) has done so, or is gone."""

    def __init__(self, devices: Sequence[Device], taken: Taken) -> None:
        self.devices = tuple(devices)
        self._locks, self._published, self._directory = (
            tuple(taken.lock_by_name.values()),
            taken.published,
            taken.directory,
        )
        self.fds = (*self._locks, *(fd for _, fd in self._published))
        self.is_open = True

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        if self.is_open:
            self.is_open = False
            # The record first: when the device's lock is free, no live record of it may remain.
            for fd in (*(fd for _, fd in self._published), *self._locks):
                os.close(fd)

    def release(self) -> bool:
        """Give the devices back: the payload is gone, its evidence need not be looked at. May be repeated."""
        if self.is_open:
            for name, fd in self._published:
                device_files.withdraw(self._directory, name, fd)
        self.close()
        return True


class Reservation(_LockedDevices):
    """Devices that are reserved for an application."""

    def close(self) -> None:
        """Close the descriptors, and remove the records if nobody else holds them. May be repeated."""
        if not self.is_open:
            return
        again = []
        for name, fd in self._published:
            with contextlib.suppress(OSError):
                # Opened anew, it sees the lock of those who inherited the descriptor.
                again.append((name, os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)))
        super().close()
        for name, fd in again:
            try:
                if not locks.is_write_locked(fd):
                    device_files.withdraw(self._directory, name, fd)
            finally:
                os.close(fd)


class MachineLease(_LockedDevices):
    """Devices that a container has."""

    def __init__(self, devices: Sequence[Device], taken: Taken, reservation: Reservation | None = None) -> None:
        super().__init__(devices, taken)
        self._reservation = reservation
        if reservation is not None:
            self.fds = (*self.fds, *reservation.fds)

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        super().close()
        if self._reservation is not None:
            self._reservation.close()


class HeldDevices(_LockedDevices):
    """Devices that are locked for a lease of a cluster's ledger; ``evidence``: where to look whether they still are."""

    def __init__(self, devices: Sequence[Device], taken: Taken, evidence: Record) -> None:
        super().__init__(devices, taken)
        self.evidence = evidence


def take(
    ledger: MachineReader,
    devices: Sequence[Device],
    byte: int,
    record: Record,
    still: IsStillFree,
    *,
    both: bool = False,
) -> Taken | None:
    """Lock all ``devices`` and write whose they are; None: one could not be had, and none was kept.

    Args:
        ledger: where they are.
        devices: to lock, in this order.
        byte: the one to lock, which also says what kind of hold it is.
        record: what to write.
        still: whether one of them may be taken; what was seen before may be history.
        both: lock both bytes, and write that they are leased.
    """
    directory, liveness = ledger.directory, ledger.liveness
    kind = HELD[LEASED] if both else HELD[byte]
    against = (kind,) if byte == LEASED else HELD
    lock_by_name: dict[str, int] = {}
    published: tuple[str, int] | None = None
    is_taken = False
    try:
        names = [file_name(one.uuid) for one in devices]
        for name in names:
            if (fd := directory.open_device(name, create=True)) is not None:
                lock_by_name[name] = fd
                if not _lock(directory, name, fd, byte, 2 if both else 1) or not directory.is_current(fd, name):
                    return None
        whole = {**record, "devices": {one.uuid: one.index for one in devices}, "boot_id": liveness.boot_id}
        published = directory.publish(kind, whole)
        # 1. A and B lock one device; in between a user replaced its file or made it impossible to lock.
        # 2. Each writes its live record before it reads those of others.
        # 3. So at least the later one sees the other's record: one of them gets the device, or neither, never both.
        entries = ledger.entries(names, but={published[0]})
        for name in names:
            those = entries.get(name, ())
            if any(one.is_live and one.kind in against for one in those):
                return None
            if not still(ledger, those, lock_by_name.get(name)):
                return None
        for one in (one for name in names for one in entries.get(name, ())):
            if one.uid == os.geteuid() and not one.is_live and one.kind in against and liveness.is_over(one):
                directory.remove(one.name)
        is_taken = True
        return Taken(directory.path, lock_by_name, (published,))
    finally:
        if not is_taken:
            if published is not None:
                device_files.withdraw(directory.path, *published)
                os.close(published[1])
            for fd in lock_by_name.values():
                os.close(fd)


def is_unused(ledger: MachineReader, entries: Sequence[Entry], lock: int | None) -> bool:
    """Return whether a device is neither leased nor in quarantine."""
    if lock is not None and locks.is_write_locked(lock, LEASED, 1):
        return False
    return is_free_of_leases(ledger, entries) and ledger.health(entries)[0] is None


def is_free_of_leases(ledger: MachineReader, entries: Sequence[Entry], _: int | None = None) -> bool:
    """Return whether no payload of an ended lease may still use a device."""
    return not any(ledger.liveness.doubt(one) for one in entries)


def _lock(directory: Directory, name: str, fd: int, byte: int, count: int) -> bool:
    """Lock bytes of a device's file; False: somebody else has them.

    Whoever can read the file can place a read lock in the way. That proves no hold, so it is reported and done without:
    the records keep two from taking the device.
    """
    for _ in range(3):
        if locks.try_lock(fd, byte, count):
            return True
        if locks.is_write_locked(fd, byte, count):
            return False
    directory.report(name, UntrustedFile(name, "is read-locked by an unknown process"))
    return True
