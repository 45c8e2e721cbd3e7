"""The ledger as its users see it: one interface, two stores.

`dlapp.gpuid.stores.machine` keeps it in files of one machine, `dlapp.gpuid.stores.zookeeper` in an ensemble for many;
the rules (`dlapp.gpuid.rules`) and the evidence (`dlapp.gpuid.liveness.probes`) are the same. `dlapp.gpuid.factory`
opens them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.rules import HostRecord, LeaseRequest, LedgerError

Inspect = Callable[[HostRecord], HostRecord]
"""Looks at the GPUs of a record of this host, and puts them into quarantine or heals them there."""


def uninspected(record: HostRecord) -> HostRecord:
    """The GPUs are as the record says."""
    return record


class Lease(Protocol):
    """Devices that a container has, until `release`, or until its processes are gone."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Devices in PCI bus order."""

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


class LeaseStatus(NamedTuple):
    """Result of probing a lease whose task may be gone.

    Args:
        state: ``gone``: it was ended. ``alive``, ``unknown``: it stays, for ``why``.
    """

    container: str
    application: str
    devices: tuple[str, ...]
    state: str
    why: str


def reclaim_all(ledger: Ledger) -> list[dict[str, Any]]:
    """`Ledger.reclaim`, of each lease ``container``, ``application``, ``devices`` (labels), ``state``, ``why``."""
    label = {one.uuid: one.device.label for one in ledger.record().devices}
    return [{**one._asdict(), "devices": [label.get(uuid, uuid) for uuid in one.devices]} for one in ledger.reclaim()]


class Ledger(Protocol):
    """Leases of the devices of a host."""

    @property
    def host(self) -> str:
        """Name of the host in the ledger."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Problems and remarks that the last look at this machine's files found, by path."""

    def reach(self, *, timeout_s: float) -> None:
        """Return once the store can be asked. Raises Unreachable: it cannot within ``timeout_s``."""

    def acquire(self, ask: LeaseRequest, *, timeout_s: float = 0.0) -> Lease:
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
        """Return all that is known of this host."""

    def reclaim(self) -> list[LeaseStatus]:
        """End every lease of this host whose payload is gone, and say what is known of the others."""

    def quarantine(self, name: str, *, cause: str, detail: str = "", by: str = "", host: str | None = None) -> None:
        """Give a device out no more. Raises NotFound.

        Args:
            name: uuid, ``gpu0`` or PCI bus id.
            cause: one word, as in ``operator`` or ``ecc``.
            detail: for those who find it, in a line.
            by: the operator, who must heal it; empty: dlapp itself, and it is looked at again, the later the more
                often it was ill.
            host: its host; None: this one.
        """

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> None:
        """Give a device out again. Raises NotFound."""

    def close(self) -> None:
        """Let go of connections; a later call connects anew. Leases stay."""


class ClusterLedger(Ledger, Protocol):
    """A ledger of many hosts."""

    def hosts(self, *, timeout_s: float = 30.0) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        """Return all hosts by name, one by one; in the place of a record, why it cannot be read. Raises Unreachable."""

    def short_hosts(self, *, timeout_s: float = 30.0) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        """Return the hosts with a GPU in quarantine, as `hosts` does: as far as they are known, and quickly.

        Nothing may depend on it: a host may be missing until a request there gets too few GPUs.
        """

    def record_of(self, host: str) -> HostRecord:
        """Return what is known of a host; of one that the ledger does not know, an empty record."""

    def elsewhere(self) -> Mapping[str, Holder]:
        """Return who holds devices of this host that its record does not name: uuid -> holder."""

    def force_release(self, name: str, *, token: str, by: str, host: str | None = None) -> None:
        """End the lease of a device on an operator's word. Raises NotFound, LedgerError.

        Args:
            name: uuid, ``gpu0`` or PCI bus id.
            token: the lease's; another one is not ended.
            by: the operator; the record keeps who it was, and when.
            host: its host; None: this one.
        """

    def forget(self, host: str, *, by: str) -> None:
        """Mark a host that does not come back. Raises NotFound."""
