"""What a process holds of the machine's GPU ledger: cards, reserved or leased, and a place in the queue for them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from typing import Any

from dlapp.gpuid import records
from dlapp.gpuid.devices import Device
from dlapp.gpuid.records import LEASED, RESERVED, Record

_LOOKED_EVERY_S = 1.0


class _Locked:
    """Locked cards. Closing lets go of this process's part; the cards are free when every process that inherited the
    descriptors has done so, or is gone."""

    def __init__(self, devices: Sequence[Device], fds: Sequence[int], byte: int) -> None:
        self.devices, self.fds = tuple(devices), tuple(fds)
        self._byte, self._open = byte, True

    def close(self) -> None:
        """Close the descriptors. May be repeated."""
        if self._open:
            self._open = False
            for fd in self.fds:
                os.close(fd)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Reservation(_Locked):
    """Devices that are reserved for an application; ``fds`` (not inherited unless passed on) hold them."""


class Lease(_Locked):
    """Devices that a container has; ``fds`` (not inherited unless passed on) hold them."""

    def __init__(
        self, devices: Sequence[Device], fds: Sequence[int], byte: int, reservation: Reservation | None = None
    ) -> None:
        super().__init__(devices, (*fds, *(reservation.fds if reservation else ())), byte)
        self._own = tuple(fds)

    @property
    def is_open(self) -> bool:
        """Whether this object still holds it."""
        return self._open

    def release(self) -> bool:
        """Give the devices back: the payload is gone, its evidence need not be looked at. May be repeated."""
        if self._open:
            for fd in self._own:
                records.write_record(fd, self._byte, {})
        self.close()
        return True


class Held(_Locked):
    """Cards that are locked for a lease of a cluster's ledger; ``evidence``: where to look whether they still are."""

    def __init__(self, devices: Sequence[Device], fds: Sequence[int], evidence: Record) -> None:
        super().__init__(devices, fds, LEASED)
        self.evidence = evidence

    def release(self) -> None:
        """Let go of them, and of what stands in their files: the payload is gone. May be repeated."""
        if self._open:
            for fd in self.fds:
                records.write_record(fd, LEASED, {})
        self.close()


class Ticket:
    """A place in the machine's queue for GPUs, held until it is closed or the process ends."""

    def __init__(self, directory: str, name: str, fd: int, record: Record, clock: Callable[[], float]) -> None:
        self._path, self.name, self._fd = os.path.join(directory, name), name, fd
        self._record, self._clock, self._looked_s = record, clock, -_LOOKED_EVERY_S
        self.looks()

    def looks(self) -> None:
        """Say that whoever waits here is at it."""
        if (now_s := self._clock()) - self._looked_s >= _LOOKED_EVERY_S:
            self._looked_s = now_s
            records.write_record(self._fd, RESERVED, {**self._record, "looked_s": now_s})

    def close(self) -> None:
        """Leave the queue. May be repeated."""
        if self._fd >= 0:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
