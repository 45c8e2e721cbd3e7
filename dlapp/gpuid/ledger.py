"""The ledger as its users see it: one interface, two stores.

`dlapp.gpuid.machine` keeps it in files of one machine, `dlapp.gpuid.zookeeper` in an ensemble for many; the rules
(`dlapp.gpuid.rules`) and the evidence (`dlapp.gpuid.evidence`) are the same. `dlapp.gpuid.stores` opens them.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from dlapp.gpuid.devices import Device
from dlapp.gpuid.rules import Ask, HostRecord

Inspect = Callable[[HostRecord], HostRecord]
"""Looks at the cards of a record of this host, and puts them into quarantine or heals them there."""


def uninspected(record: HostRecord) -> HostRecord:
    """The cards are as the record says."""
    return record


class Lease(Protocol):
    """Devices that a container has, until `release`, or until its processes are gone."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """In PCI bus order."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Descriptors that hold them; the payload inherits them where it can."""

    def release(self) -> bool:
        """Give the devices back: the payload is gone. May be repeated. False: the store cannot be reached now; it is
        done later or, should this process end before, left to evidence."""

    def close(self) -> None:
        """Let go without a word; the devices are free when evidence says so. May be repeated."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...


class Looked(NamedTuple):
    """What came of looking at a lease whose task may be gone.

    Args:
        state: ``gone``: it was ended. ``alive``, ``unknown``: it stays, for ``why``.
    """

    container: str
    application: str
    devices: tuple[str, ...]
    state: str
    why: str


def collected(ledger: Ledger) -> list[dict[str, Any]]:
    """`Ledger.collect`, of each lease ``container``, ``application``, ``devices`` (labels), ``state``, ``why``."""
    label = {one.uuid: one.device.label for one in ledger.record().devices}
    return [{**one._asdict(), "devices": [label.get(uuid, uuid) for uuid in one.devices]} for one in ledger.collect()]


class Ledger(Protocol):
    """Who holds which device of a host."""

    @property
    def host(self) -> str:
        """Its name in the ledger."""

    def acquire(self, ask: Ask, *, timeout_s: float = 0.0) -> Lease:
        """Lease all that ``ask`` wants, or nothing; wait up to ``timeout_s`` for devices that are held now.

        A container that asks again gets what it has. Leases whose payloads are gone are ended where their devices are
        needed, and what a dead task left in Docker is removed first.

        Raises:
            NotEnough: not in time; it says who holds what.
            AskTooLarge: this host has not so many.
            UsageError: fewer than one was asked for.
            NotFound: a device that was asked for by name is not there.
            LedgerError: the ledger is not what it must be.
            Unreachable: the store does not answer; it may have the lease all the same, until evidence ends it.
        """

    def record(self) -> HostRecord:
        """All that is known of this host."""

    def collect(self) -> list[Looked]:
        """End every lease of this host whose payload is gone, and say what is known of the others."""

    def quarantine(
        self,
        name: str,
        *,
        cause: str,
        detail: str = "",
        by: str = "",
        host: str | None = None,
    ) -> None:
        """Give a device out no more; ``name``: uuid, ``gpu0`` or PCI bus id. Raises NotFound.

        Args:
            by: the operator, who must heal it; empty: dlapp itself, and it is looked at again, the later the more
                often it was ill.
        """

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> None:
        """Give a device out again. Raises NotFound."""

    def close(self) -> None:
        """Let go of connections. Leases stay."""
