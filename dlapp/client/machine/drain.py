"""Drain of GPUs for maintenance: no new leases, and who still uses them, until when."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from dlapp.errors import DlappError, NotFound

if TYPE_CHECKING:
    from dlapp.client.machine.gpu_ledger import GpuLedger
    from dlapp.config import Config

DeviceView = Mapping[str, Any]
"""A device as `dlapp.client.machine.gpu_ledger` describes it."""


class DeviceSelection(NamedTuple):
    """Devices of one host that an operator named.

    Args:
        is_host: the whole host was named.
        devices: their views.
    """

    host: str
    is_host: bool
    devices: tuple[DeviceView, ...]

    @property
    def uuids(self) -> tuple[str, ...]:
        """Return the uuids."""
        return tuple(one["uuid"] for one in self.devices)

    @property
    def text(self) -> str:
        """Return the labels as text."""
        return ", ".join(one["label"] for one in self.devices)


class RemainingUser(NamedTuple):
    """Application that still holds devices.

    Args:
        devices: their labels.
        since_ms: since when [ms since 1970]; 0: not known.
        ends_ms: when it ends at the latest [ms since 1970]; None: not known.
        doubt: why the devices are not free although the holder seems to be gone; empty: no doubt.
    """

    application: str
    user: str
    devices: tuple[str, ...]
    since_ms: int
    ends_ms: int | None
    doubt: str


def select_devices(ledger: GpuLedger, name: str | None, host: str | None = None) -> DeviceSelection:
    """Return the devices that a name means: of a GPU, or of a host, with all its GPUs.

    Args:
        ledger: the ledger that has them.
        name: a GPU of ``host`` (index, ``gpu0``, uuid, PCI bus id), or a host; None: all of ``host``.
        host: None: this host.

    Raises:
        NotFound: there is no such GPU and no such host, or the host has no GPU.
        DlappError: the record of the host is not readable.
    """
    where = host or ledger.host_name
    if name is not None:
        # A GPU of this host is meant before a host of that name.
        try:
            found = [one for one in _devices_of(ledger, where) if name in _names_of(one)]
        except NotFound:
            found = []
        if found:
            return DeviceSelection(where, False, tuple(found))
        if host is not None:
            raise NotFound(f"{where}: there is no GPU {name!r}")
        where = name
    try:
        devices = _devices_of(ledger, where)
    except NotFound:
        if name is None:
            raise
        raise NotFound(f"{name} is neither a GPU of {ledger.host_name} nor a host of the GPU ledger") from None
    if not devices:
        raise NotFound(f"{where} has no GPU")
    return DeviceSelection(where, True, devices)


def _devices_of(ledger: GpuLedger, host: str) -> tuple[DeviceView, ...]:
    for view in ledger.hosts(host, is_read=False):
        if view["error"] and not view["devices"]:
            raise DlappError(view["error"])
        return tuple(view["devices"])  # also while the driver does not work
    return ()


def _names_of(device: DeviceView) -> Collection[str]:
    label = device["label"]
    return {device["uuid"], device["pci_bus_id"], label, label.removeprefix("gpu")} - {""}


def close_devices(ledger: GpuLedger, selection: DeviceSelection, *, reason: str, by: str) -> tuple[str, ...]:
    """Put devices into quarantine, except those that an operator has put there already.

    Args:
        ledger: the ledger that has them.
        selection: the devices.
        reason: one line for other operators.
        by: name of the operator.

    Returns:
        The uuids of those that were put there now.
    """
    closed = []
    for one in selection.devices:
        if not (one["quarantine"] and one["quarantine"].get("by")):
            ledger.quarantine(one["uuid"], host=selection.host, reason=reason, by=by)
            closed.append(one["uuid"])
    return tuple(closed)


def remaining_users(
    ledger: GpuLedger, selection: DeviceSelection, ends_ms: Callable[[str], int | None]
) -> list[RemainingUser]:
    """Return who holds devices now, one for each application, in the order of the devices.

    Args:
        ledger: the ledger that has them.
        selection: the devices.
        ends_ms: returns when an application ends at the latest [ms since 1970]; None: not known.
    """
    devices = _devices_of(ledger, selection.host)
    held: dict[tuple[str, str], list[DeviceView]] = {}
    for one in devices:
        if one["uuid"] in selection.uuids and one["state"] == "held":
            held.setdefault((one["application"], one["user"]), []).append(one)
    return [
        RemainingUser(
            application=application,
            user=user,
            devices=tuple(one["label"] for one in those),
            since_ms=min(one["since_ms"] for one in those),
            ends_ms=ends_ms(application) if application else None,
            doubt=next((one["doubt"] for one in those if one["doubt"]), ""),
        )
        for (application, user), those in held.items()
    ]


def latest_ends(config: Config) -> Callable[[str], int | None]:
    """Return a function that estimates when an application ends at the latest [ms since 1970], from its max_runtime and
    kill_grace; None: it has no limit, or is not known here."""
    from dlapp.client import Client
    from dlapp.values.ids import ApplicationId

    known: dict[str, int | None] = {}

    def ends_ms(application: str) -> int | None:
        if application not in known:
            known[application] = None
            try:
                with Client(config) as client:
                    one = ApplicationId.from_text(application)
                    spec, started_ms = client.submission(one).spec, client.status(one).started_ms
            except (DlappError, ValueError, OSError):
                return None
            if spec.max_runtime_s is not None and started_ms is not None:
                known[application] = started_ms + int((spec.max_runtime_s + spec.kill_grace_s) * 1000)
        return known[application]

    return ends_ms
