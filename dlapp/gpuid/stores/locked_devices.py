"""Devices of the machine's GPU ledger that a process has locked, reserved or leased: lock and release."""

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
from dlapp.system.files import UntrustedFile, closing_fd
from dlapp.value import Closeable

IsStillFree = Callable[[MachineReader, Sequence[Entry], int | None], bool]
"""Function that checks a locked device again, by its records and the descriptor of its lock."""


class DeviceLocks(NamedTuple):
    """Locks of devices: the descriptors of their files, by name, and the names and descriptors of their records in
    ``directory``."""

    directory: str
    lock_by_name: Mapping[str, int]
    published: tuple[tuple[str, int], ...]


class _LockedDevices(Closeable):
    """Locked devices. Closing ends this process's hold; the devices are free when every process that inherited the
    descriptors (``fds``, not inherited unless passed on) has closed them, or is gone."""

    def __init__(self, devices: Sequence[Device], device_locks: DeviceLocks) -> None:
        self.devices = tuple(devices)
        self._locks, self._published = tuple(device_locks.lock_by_name.values()), device_locks.published
        self._directory = device_locks.directory
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
        """Release the devices: the payload is gone, and its evidence need not be checked. May be repeated."""
        if self.is_open:
            for name, fd in self._published:
                device_files.withdraw(self._directory, name, fd)
        self.close()
        return True


class Reservation(_LockedDevices):
    """Devices that are reserved for an application."""

    def close(self) -> None:
        """Close the descriptors, and remove the records if no other process holds them. May be repeated."""
        if not self.is_open:
            return
        again = []
        for name, fd in self._published:
            with contextlib.suppress(OSError):
                # Opened again, it conflicts with the lock of processes that inherited the descriptor.
                again.append((name, os.open(f"/proc/self/fd/{fd}", os.O_RDWR | os.O_CLOEXEC)))
        super().close()
        for name, fd in again:
            with closing_fd(fd):
                if not locks.is_write_locked(fd):
                    device_files.withdraw(self._directory, name, fd)


class MachineLease(_LockedDevices):
    """Devices leased to a container."""

    def __init__(
        self, devices: Sequence[Device], device_locks: DeviceLocks, reservation: Reservation | None = None
    ) -> None:
        super().__init__(devices, device_locks)
        self._reservation = reservation
        if reservation is not None:
            self.fds = (*self.fds, *reservation.fds)

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        super().close()
        if self._reservation is not None:
            self._reservation.close()


class HeldDevices(_LockedDevices):
    """Devices locked for a lease of a cluster's ledger; ``evidence``: how to check whether they still are."""

    def __init__(self, devices: Sequence[Device], device_locks: DeviceLocks, evidence: Record) -> None:
        super().__init__(devices, device_locks)
        self.evidence = evidence


def lock_devices(
    ledger: MachineReader,
    devices: Sequence[Device],
    byte: int,
    record: Record,
    is_still_free: IsStillFree,
    *,
    both: bool = False,
) -> DeviceLocks | None:
    """Lock all ``devices`` and write their record; None: one was not available, and none is kept.

    Args:
        ledger: their directory.
        devices: devices to lock, in this order.
        byte: byte to lock, which identifies the kind of hold.
        record: record to write.
        is_still_free: whether a device may be taken; checked again under the lock.
        both: lock both bytes, and record a lease.
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
            if (fd := directory.open_device(name)) is not None:
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
            if not is_still_free(ledger, those, lock_by_name.get(name)):
                return None
        for one in (one for name in names for one in entries.get(name, ())):
            if one.uid == os.geteuid() and not one.is_live and one.kind in against and liveness.has_ended(one):
                directory.remove(one.name)
        is_taken = True
        return DeviceLocks(directory.path, lock_by_name, (published,))
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
    return is_free_of_leases(ledger, entries) and ledger.health(entries).quarantine is None


def is_free_of_leases(ledger: MachineReader, entries: Sequence[Entry], _: int | None = None) -> bool:
    """Return whether no payload of an ended lease can still use a device."""
    return not any(ledger.liveness.doubt(one) for one in entries)


def _lock(directory: Directory, name: str, fd: int, byte: int, count: int) -> bool:
    """Lock bytes of a device's file; False: another process has them.

    Any user who can read the file can place a conflicting read lock. It is not a hold, so it is reported and ignored:
    the records prevent that two processes take the device.
    """
    for _ in range(3):
        if locks.try_lock(fd, byte, count):
            return True
        if locks.is_write_locked(fd, byte, count):
            return False
    directory.report(name, UntrustedFile(name, "is read-locked by an unknown process"))
    return True
