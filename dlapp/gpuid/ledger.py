"""Interface of the GPU ledger, with two stores.

`dlapp.gpuid.stores.machine` keeps it in files of one machine, `dlapp.gpuid.stores.zookeeper` in an ensemble for many
machines; both use the same rules (`dlapp.gpuid.rules`) and evidence (`dlapp.gpuid.liveness.probes`).
`dlapp.gpuid.factory` opens them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, Self

from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.rules import HostRecord, LeaseRequest, LedgerError

Inspect = Callable[[HostRecord], HostRecord]
"""Function that inspects the GPUs of this host's record, and starts or ends their quarantine in it."""


def uninspected(record: HostRecord) -> HostRecord:
    """Return the record unchanged: no inspection."""
    return record


class Lease(Protocol):
    """Devices leased to a container, until `release`, or until its processes are gone."""

    @property
    def devices(self) -> tuple[Device, ...]:
        """Return the devices in PCI bus order."""

    @property
    def fds(self) -> tuple[int, ...]:
        """Return the descriptors that hold them; the payload inherits them where it can."""

    def release(self) -> bool:
        """Release the devices: the payload is gone. Idempotent. Returns False if the store is unreachable now; the
        release then follows later."""

    def close(self) -> None:
        """Close without releasing; the devices become free by evidence. May be repeated."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class LeaseStatus(NamedTuple):
    """Result of probing a lease whose task may be gone.

    Args:
        state: ``gone``: the lease was ended. ``alive``, ``unknown``: it stays, for the reason in ``why``.
    """

    container: str
    application: str
    devices: tuple[str, ...]
    state: str
    why: str


def reclaim_all(ledger: Ledger) -> list[dict[str, Any]]:
    """Collect for ``dlapp-gpu gc``: remove the files in excess, and return the result of `Ledger.reclaim` as JSON.

    Returns:
        ``container``, ``application``, ``devices`` (labels), ``state`` and ``why`` of each lease.
    """
    ledger.remove_excess()
    label = {one.uuid: one.device.label for one in ledger.record().devices}
    return [{**one._asdict(), "devices": [label.get(uuid, uuid) for uuid in one.devices]} for one in ledger.reclaim()]


class Ledger(Protocol):
    """Ledger of the devices of a host."""

    @property
    def host(self) -> str:
        """Return the name of the host in the ledger."""

    @property
    def directory(self) -> str:
        """Return the path of the directory of this machine's ledger."""

    @property
    def problems(self) -> Mapping[str, str]:
        """Return the problems and remarks from the last listing of this machine's files, by path."""

    def reach(self, *, timeout_s: float) -> None:
        """Wait until the store is available. Raises Unreachable: it is not within ``timeout_s``."""

    def acquire(self, request: LeaseRequest, *, timeout_s: float = 0.0) -> Lease:
        """Lease all devices of ``request``, or none; wait up to ``timeout_s`` for devices that are in use.

        A container that repeats its request gets the same lease. Leases whose payloads are gone are ended if their
        devices are needed; leftovers of a dead task in Docker are removed first.

        Raises:
            NotEnough: not in time; names the holders.
            RequestTooLarge: this host has fewer devices.
            UsageError: fewer than one device was requested.
            NotFound: a device requested by name does not exist.
            LedgerError: the ledger is invalid.
            Unreachable: the store does not answer; it may have the lease nevertheless, until evidence ends it.
        """

    def record(self) -> HostRecord:
        """Return the record of this host."""

    def remove_excess(self) -> None:
        """Remove files that are not read from this machine's ledger, of users who have too many; only root does."""

    def reclaim(self) -> list[LeaseStatus]:
        """End every lease of this host whose payload is gone, and report the state of the others."""

    def quarantine(
        self, name: str, *, cause: str, detail: str = "", by: str = "", host: str | None = None, until: str = ""
    ) -> None:
        """Put a device into quarantine. Raises NotFound.

        Args:
            name: uuid, ``gpu0`` or PCI bus id.
            cause: one word, as in ``operator`` or ``ecc``.
            detail: one line for people.
            by: the operator, who must heal it; empty: dlapp itself, which probes it again, after longer waits for
                repeated failures.
            host: host of the device; None: this one.
            until: ``needs-reset`` or ``needs-reboot``: an inspection without findings ends it only after that.
        """

    def quarantine_all(self, *, cause: str, detail: str = "") -> None:
        """Put all devices of this host into quarantine that are not in it already, without the driver: it hangs. See
        `quarantine`."""

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> bool:
        """End the quarantine of a device. Return whether there was one. Raises NotFound."""

    def close(self) -> None:
        """Close connections; a later call opens new ones. Leases stay."""


class ClusterLedger(Ledger, Protocol):
    """Ledger of many hosts."""

    def hosts(self, *, timeout_s: float = 30.0) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        """Yield all hosts by name; instead of an unreadable record, the error. Raises Unreachable."""

    def short_hosts(self, *, timeout_s: float = 30.0) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        """Yield the known hosts with a GPU in quarantine, as `hosts` does, but quickly.

        It is incomplete: a host may be missing until a request there gets too few GPUs.
        """

    def record_of(self, host: str) -> HostRecord:
        """Return the record of a host; an empty record if the ledger has none."""

    def host_holders(self) -> Mapping[str, Holder]:
        """Return the holders of this host's devices, by uuid, that the host knows, also those that its record lacks."""

    def force_release(self, name: str, *, token: str, by: str, host: str | None = None) -> None:
        """End the lease of a device on an operator's order. Raises NotFound, LedgerError.

        Args:
            name: uuid, ``gpu0`` or PCI bus id.
            token: token of the lease; a lease with another token is not ended.
            by: the operator; recorded with the time.
            host: host of the device; None: this one.
        """

    def forget(self, host: str, *, by: str) -> None:
        """Mark a host as removed. Raises NotFound."""
