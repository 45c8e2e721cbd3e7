"""View of the configured GPU ledger, and the operator's operations on it.

Hosts are yielded one by one, as dictionaries: a cluster has thousands of them. A host:

    {"host": "host03", "here": true, "seen_ms": …, "forgotten_ms": 0, "error": "", "devices": [one each, PCI bus order]}

If NVML does not work, ``error`` says why, and ``devices`` has what the ledger knows. On this host it also has the GPUs
that no ledger leases: those in MIG mode without instances, and those that do not answer, whose uuid is empty.

A device has the fields of `dlapp.gpuid.devices.Device`, and

    label                          gpu0, or gpu0:1 for a MIG device
    state                          free, unavailable, held, quarantined, absent
    problem                        why a request would not lease it now although nobody holds it (unavailable); known
                                   for this host
    application container user     who holds it; container is empty while it is only reserved
    role container_index           of the container in its application; empty where that is not known
    since_ms doubt                 since when, and why it is not free although its holder seems to be gone
    quarantine                     null, or cause, detail, since_ms, count, probe_at_ms, by, boot_id, driver
    xids                           code -> times and last_ms of the Xid errors that tasks on this host have seen on it
    utilization used_mib temperature_c   now, if the host is this one and the GPU reports it; else null
    unverified                     why it cannot be said that nobody uses it: the driver lists no processes; else empty
    notes                          what an operator should know of its links, clocks and NVML's answers
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from dlapp.errors import Denied, NotFound, UsageError
from dlapp.gpuid import rules
from dlapp.gpuid.counts import count_devices
from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.factory import (
    configured,
    of_machine,
    open_cluster_ledger,
    open_ledger,
    web_certificates,
    yarn_assigns_gpus,
)
from dlapp.gpuid.ledger import reclaim_all
from dlapp.gpuid.liveness.result import UNKNOWN
from dlapp.gpuid.needs import WHOLE_GPU, Demand, DeviceNeed, too_few
from dlapp.gpuid.record_json import fields_to_json, quarantine_from_json
from dlapp.gpuid.rules import CONDITIONS, NEEDS_REBOOT, NEEDS_RESET, HostRecord, LedgerError, Quarantine
from dlapp.gpuid.selection import choose_for
from dlapp.gpuid.stores.device_files import file_name
from dlapp.gpuid.stores.xid_files import XidCount, read_xids
from dlapp.system import clock
from dlapp.value import Closeable

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.gpuid.health.readings import Reading
    from dlapp.gpuid.ledger import ClusterLedger, Ledger

SCRAPED_EVERY_S = 130.0
"""Most of the usual intervals between two scrapes of an exporter: up to two minutes."""
ENDED_S = 3600.0
"""How long an application must have ended before its lease may be released without force."""
MAX_HOSTS_NAMED = 20
"""Maximum number of hosts in the message of `GpuLedger.why` if none can satisfy the request."""


class GpuLedger(Closeable):
    """The GPU ledger of a configuration; a context manager.

    Args:
        config: the configuration.
        is_display: only shows what there is: NVML gets less time to answer, and its process stays for the next look.
    """

    def __init__(self, config: Config, *, is_display: bool = False) -> None:
        from dlapp.gpuid.health.nvml_subprocess import SHORT_ANSWER_S, NvmlProcess

        self._nvml = NvmlProcess(SHORT_ANSWER_S, idle_s=SCRAPED_EVERY_S) if is_display else NvmlProcess()
        is_on_zookeeper = config.gpuid.zookeeper.ensemble is not None
        self._is_of_nodes = is_on_zookeeper and yarn_assigns_gpus(config)
        settings = of_machine(config) if self._is_of_nodes else configured(config)
        self._config = config.gpuid
        self._cluster: ClusterLedger | None = None
        if settings.covers_cluster:
            self._cluster = open_cluster_ledger(settings, web_certificates(config, settings), nvml=self._nvml)
        self._ledger: Ledger = self._cluster or open_ledger(settings, nvml=self._nvml)

    def close(self) -> None:
        """Close the connection to ZooKeeper, if there is one, and end the process that calls NVML."""
        self._ledger.close()
        self._nvml.close()

    @property
    def host_name(self) -> str:
        """Return the name of this host in the ledger."""
        return self._ledger.host

    @property
    def problems(self) -> dict[str, str]:
        """Return the invalid entries in the last read of this machine's ledger: path -> problem."""
        return dict(self._ledger.problems)

    @property
    def is_cluster(self) -> bool:
        """Return True if the ledger is a cluster's; False if it covers this machine only."""
        return self._cluster is not None

    @property
    def is_of_nodes(self) -> bool:
        """Return True if each host of the cluster has its own ledger: YARN assigns the GPUs (yarn.io/gpu)."""
        return self._is_of_nodes

    def _check_host(self, host: str | None) -> None:
        """Refuse another host whose ledger is only there. Raises UsageError."""
        if self._is_of_nodes and host not in (None, self.host_name):
            text = (
                f"run this on {host}: YARN assigns the GPUs of this cluster (yarn.io/gpu), so their ledger is on their"
            )
            raise UsageError(f"{text} host ({self._ledger.directory}), not in ZooKeeper")

    # ---- reading ----

    def hosts(
        self, host: str | None = None, *, forgotten: bool = False, is_read: bool = True
    ) -> Iterator[dict[str, Any]]:
        """Yield all hosts by name, or only the given one; forgotten ones only on request.

        Args:
            host: None: all.
            forgotten: also those that were forgotten.
            is_read: read the GPUs of this host; otherwise only the ledger.

        Raises:
            NotFound: the host is not in the ledger.
            Unreachable: the ledger does not answer.
        """
        problems: list[str] = []
        for name, record in self._records(host, problems):
            if isinstance(record, LedgerError):
                yield {"host": name, "here": name == self.host_name, "error": str(record), "devices": []}
            elif host is not None or forgotten or not record.forgotten_ms:
                elsewhere = self._unrecorded_holders(name)
                here = name == self.host_name
                yield self._host_view(record, "".join(problems), here=here, is_read=is_read, elsewhere=elsewhere)

    def _host_view(
        self, record: HostRecord, problem: str, *, here: bool, is_read: bool, elsewhere: Mapping[str, Holder]
    ) -> dict[str, Any]:
        """Return a host as the module's docstring describes it; ``problem``: why NVML does not work."""
        readings: Mapping[str, Reading] = {}
        unleasable: Sequence[dict[str, Any]] = ()
        if here and is_read and not problem:
            readings, problem = self._readings(record)
            if not problem:
                unleasable, problem = self._unleasable_views(record)
                readings = {} if problem else readings
        faults = self._faults(readings)
        holders = {**elsewhere, **{uuid: one for one in record.leases for uuid in one.devices}}
        xids = {name: _xid_facts(found) for name, found in read_xids(self._ledger.directory).items()} if here else {}
        devices = []
        for one in record.devices:
            device, holder, reading = one.device, holders.get(one.uuid), readings.get(one.uuid)
            fault = "" if holder or one.quarantine else faults.get(one.uuid, "")
            free = "unavailable" if fault else "free"
            state = "held" if holder else "quarantined" if one.quarantine else free if one.present else "absent"
            devices.append(
                {
                    "label": device.label,
                    "state": state,
                    "problem": fault,
                    **_device_facts(device),
                    "present": one.present,
                    **(_holder_facts(holder) if holder else _NOBODY),
                    "quarantine": _quarantine_facts(one.quarantine) if one.quarantine else None,
                    "xids": xids.get(file_name(one.uuid), {}) if xids else {},
                    **(_reading_facts(reading) if reading else _UNREAD),
                }
            )
        if unleasable:
            devices = sorted((*devices, *unleasable), key=lambda one: (one["index"] < 0, one["index"], one["mig"]))
        return {
            "host": record.host,
            "here": here,
            "seen_ms": record.seen_ms,
            "forgotten_ms": record.forgotten_ms,
            "error": problem,
            "devices": devices,
        }

    def _inspected(self, record: HostRecord) -> tuple[Mapping[str, str], str]:
        """Return what makes GPUs of this host unavailable, by uuid, and why that is not known if NVML does not work."""
        readings, problem = self._readings(record)
        return self._faults(readings), problem

    def _faults(self, readings: Mapping[str, Reading]) -> dict[str, str]:
        """Return what makes GPUs unavailable, by uuid."""
        if not readings:
            return {}
        from dlapp.gpuid.health.inspection import classify_reading, limits_in

        limits = limits_in(self._config)
        faults = {uuid: classify_reading(one, limits) for uuid, one in readings.items()}
        return {uuid: fault.detail for uuid, fault in faults.items() if fault is not None}

    def original(self, host: str | None = None) -> Iterator[tuple[str, dict[str, str]]]:
        """Yield the mapping from host and GPU to application, for each host with held GPUs: the format of the original
        dlapp.
        """
        for _, record in self._records(host, []):
            if isinstance(record, HostRecord) and not record.forgotten_ms:
                yield from rules.original_map([record]).items()

    def why(self, count: int, kind: str = WHOLE_GPU) -> dict[str, Any]:
        """Return whether a request for ``count`` GPUs can be met now on some host, and if not, why.

        Args:
            count: how many.
            kind: as `dlapp.values.spec.Placement.gpu`.

        Returns:
            ``can``; ``host`` and ``devices`` (labels) of a host that can; ``lines``: a line for each host that cannot,
            those with the most free GPUs first, at most `MAX_HOSTS_NAMED`; ``hosts``: their number.

        Raises:
            UsageError: the count is below one, or above one for slices.
            SpecError: there is no such kind.
        """
        from dlapp.values.spec import check_gpu_kind

        check_gpu_kind("KIND", kind)
        if count < 1:
            raise UsageError(f"asked for {count} GPUs, the minimum is 1")
        if count > 1 and kind != WHOLE_GPU:
            raise UsageError(f"asked for {count} slices, the maximum is 1: a program sees one slice only")
        now_ms, hosts, demands = clock.now_ms(), 0, (Demand(count, DeviceNeed(kind)),)
        short: list[tuple[int, str, str]] = []
        for name, record in self._records(None):
            hosts += 1
            if isinstance(record, LedgerError):
                short.append((1, name, str(record)))
                continue
            if record.forgotten_ms:
                hosts -= 1
                continue
            there = [one.device for one in record.devices if one.present]
            if shortage := too_few(demands, there, "it has"):
                short.append((0, name, f"{name}: {shortage.text}"))
                continue
            elsewhere = self._unrecorded_holders(name)
            faults, problem = self._inspected(record) if name == self.host_name else ({}, "")
            if problem:
                short.append((1, name, f"{name}: {problem}"))
                continue
            unavailable = elsewhere.keys() | faults.keys()
            chosen = choose_for(there, {one.uuid for one in record.free()} - unavailable, demands)
            if chosen is not None:
                labels = [one.label for one in chosen]
                return {"can": True, "host": name, "devices": labels, "lines": [], "hosts": hosts}
            reason = rules.shortage_reason(record, demands, now_ms, elsewhere, faults)
            short.append((-count_devices(record, demands, unavailable).free, name, f"{name}: {reason}"))
            if len(short) > 4 * MAX_HOSTS_NAMED:
                short = sorted(short)[:MAX_HOSTS_NAMED]
        lines = [line for _, _, line in sorted(short)[:MAX_HOSTS_NAMED]]
        return {"can": False, "host": "", "devices": [], "lines": lines, "hosts": hosts}

    def _records(
        self, host: str | None, problems: list[str] | None = None
    ) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        """Yield the records of all hosts, or of one.

        Args:
            host: None: all.
            problems: takes why NVML does not work; the record of this machine then has what its files know. None: that
                is an error.
        """
        if self._cluster is None:
            self._check_host(host)
            if host not in (None, self.host_name):
                raise NotFound(f"the GPU ledger of this machine knows {self.host_name} only, not {host}")
            from dlapp.gpuid.health.nvml import NvmlError
            from dlapp.gpuid.stores.machine import MachineLedger

            try:
                record = self._ledger.record()
            except NvmlError as error:
                if problems is None or not isinstance(self._ledger, MachineLedger):
                    raise
                problems.append(str(error))
                record = self._ledger.record_of_files()
            yield self.host_name, record
        elif host is None:
            yield from self._cluster.hosts()
        else:
            record = self._cluster.record_of(host)
            if not record.devices and not record.seen_ms:
                raise NotFound(f"{host}: the GPU ledger knows no such host")
            yield host, record

    def _readings(self, record: HostRecord) -> tuple[Mapping[str, Reading], str]:
        """Return the readings of this host's GPUs by uuid, and why there are none if NVML does not work. Those that an
        operator took out of use are not opened."""
        from dlapp.gpuid.health import nvml

        is_closed = {one.uuid: one.quarantine is not None and bool(one.quarantine.by) for one in record.devices}
        devices = [one.device for one in record.devices if one.present and not is_closed[one.uuid]]
        if not devices or not nvml.has_library():
            return {}, ""
        try:
            return self._nvml.read(devices, detailed=True), ""
        except nvml.NvmlError as error:
            return {}, str(error)

    def _unleasable_views(self, record: HostRecord) -> tuple[Sequence[dict[str, Any]], str]:
        """Return the views of this host's GPUs that are not in its record, and why there are none if NVML does not
        work."""
        from dlapp.gpuid.health import nvml

        if not nvml.has_library():
            return (), ""
        try:
            others = self._nvml.discover_unleasable({one.device.index for one in record.devices})
        except nvml.NvmlError as error:
            return (), str(error)
        return [_unleasable_view(*one) for one in others], ""

    def unleasable(self) -> Sequence[tuple[Device, str]]:
        """Return the GPUs of this host that are not in the ledger, with the reason; none if NVML does not work. Of a
        GPU that is split by MIG the ledger has only the slices, which have uuids of their own."""
        from dlapp.gpuid.health import nvml

        try:
            return self._nvml.discover_unleasable() if nvml.has_library() else ()
        except nvml.NvmlError:
            return ()

    def read(self, uuids: Collection[str]) -> Mapping[str, Reading]:
        """Return the readings of GPUs of this host by uuid, also of those that an operator took out of use.

        Raises:
            NvmlError: NVML does not work.
        """
        from dlapp.gpuid.health import nvml

        devices = [one.device for one in self._ledger.record().devices if one.uuid in uuids and one.present]
        return self._nvml.read(devices) if devices and nvml.has_library() else {}

    @property
    def allowed_programs(self) -> Collection[str]:
        """Return the names of programs that may run on a GPU that is not leased."""
        return self._config.allowed_processes

    def _unrecorded_holders(self, host: str) -> Mapping[str, Holder]:
        """Return the holders of a host's GPUs that are missing in its record; known for this host only."""
        if self._cluster is None or host != self.host_name:
            return {}
        return self._cluster.host_holders()

    # ---- changing ----

    def reclaim(self) -> list[dict[str, Any]]:
        """End every lease of this host whose payload is gone.

        Returns:
            For each lease found: ``container``, ``application``, ``devices`` (labels), ``state`` (``gone``: it was
            ended; ``alive``, ``unknown``: it stays), ``why``.
        """
        return reclaim_all(self._ledger)

    def quarantine(self, device: str, *, host: str | None, reason: str, by: str) -> None:
        """Exclude a GPU from new leases until `heal`; a current holder keeps it. Raises NotFound.

        Args:
            device: uuid, ``gpu0`` or PCI bus id.
            host: its name; None for this one.
            reason: one line for other operators.
            by: name of the operator.
        """
        self._check_host(host)
        self._ledger.quarantine(device, cause="operator", detail=reason or f"by {by}", by=by, host=host)

    def heal(self, device: str, *, host: str | None) -> bool:
        """Allow new leases of a GPU again, and reset its failure count. Return whether it was in quarantine.

        Args:
            device: uuid, ``gpu0`` or PCI bus id.
            host: its name; None for this one.

        Raises:
            NotFound: there is no such GPU.
        """
        self._check_host(host)
        return self._ledger.heal(device, host=host)

    def restore(self, device: str, former: Mapping[str, Any], *, host: str | None) -> None:
        """Put a GPU back into the quarantine that it was in before an operator's. Raises NotFound.

        Args:
            device: its uuid.
            former: the quarantine, as in a view.
            host: its name; None for this one.
        """
        found = quarantine_from_json(former)
        until = found.cause if found.boot_id and found.cause in (NEEDS_RESET, NEEDS_REBOOT) else ""
        self._ledger.heal(device, forgive=False, host=host)
        self._ledger.quarantine(device, cause=found.cause, detail=found.detail, host=host, until=until)

    def release(
        self,
        device: str,
        *,
        host: str | None,
        by: str,
        ended_ms: Callable[[str], int | None] | None,
    ) -> dict[str, Any]:
        """End the lease of a GPU without proof that its payload is gone.

        Args:
            device: uuid, ``gpu0`` or PCI bus id; the container loses all its GPUs.
            host: its name; None for this one.
            by: name of the operator, recorded in the ledger.
            ended_ms: returns when an application ended according to its engine, None if it has not [ms since 1970]; it
                must be `ENDED_S` ago. None to skip this check.

        Returns:
            ``host``, ``container``, ``application``, ``devices`` (labels).

        Raises:
            NotFound: there is no such GPU, or it is not held.
            Denied: its payload is running, or there is no evidence that its application ended long ago.
            UsageError: the ledger is this machine's.
        """
        if self._cluster is None:
            raise UsageError(
                "release is for the ledger of a cluster; on one machine the lease's owner or root removes "
                "its file, which dlapp-gpu gc names"
            )
        name = host or self.host_name
        lease = self._cluster.record_of(name).lease_on(device)
        if name == self.host_name:
            for one in self._cluster.reclaim():
                if one.container == lease.container and one.state != UNKNOWN:
                    raise Denied(f"{name}: {device} is not released by force: {one.why or 'it is free now'}")
        if ended_ms is not None:
            at_ms = ended_ms(lease.application)
            if at_ms is None or clock.now_ms() - at_ms < ENDED_S * 1000:
                when = "has not ended" if at_ms is None else "ended less than an hour ago"
                raise Denied(f"{name}: {device} is held by {lease.application}, which {when} (--force releases it)")
        self._cluster.force_release(device, token=lease.token, by=by, host=name)
        label = {one.uuid: one.device.label for one in self._cluster.record_of(name).devices}
        devices = [label.get(uuid, uuid) for uuid in lease.devices]
        return {"host": name, "container": lease.container, "application": lease.application, "devices": devices}

    def forget(self, host: str, *, by: str) -> None:
        """Mark a host as permanently gone, so that it is not listed any more.

        Raises:
            NotFound: the host is not in the ledger.
            UsageError: the ledger is this machine's.
        """
        if self._cluster is None:
            raise UsageError("forget is for the ledger of a cluster; this one is of this machine only")
        self._cluster.forget(host, by=by)


def short_notes(device: Mapping[str, Any]) -> list[str]:
    """Return the notes of a device's view on its links and clocks, without their explanations."""
    return [text.partition(":")[0] for text in device["notes"] if not text.startswith("nvml")]


def _unleasable_view(device: Device, reason: str) -> dict[str, Any]:
    """Return the view of a GPU of this host that is not in its record; nobody can hold it."""
    state = {"label": device.label, "state": "unavailable", "problem": reason, "present": True}
    return {**state, **_device_facts(device), **_NOBODY, "quarantine": None, "xids": {}, **_UNREAD}


def _xid_facts(found: Mapping[int, XidCount]) -> dict[str, Any]:
    return {str(code): count._asdict() for code, count in found.items()}


def _quarantine_facts(one: Quarantine) -> dict[str, Any]:
    """Return the fields of a quarantine. A condition is due for inspection from its beginning on."""
    said = fields_to_json(one)
    return {**said, "probe_at_ms": one.since_ms} if one.cause in CONDITIONS and not one.by else said


def _facts(*names: str) -> Callable[[object], dict[str, Any]]:
    """Return a function that returns these attributes of a value; a list of all hosts calls it for each GPU."""
    values = attrgetter(*names)
    return lambda one: dict(zip(names, values(one), strict=True))


_device_facts = _facts(
    *("uuid", "index", "mig", "minor", "name", "memory_mib", "pci_bus_id", "compute_mode", "numa", "links")
)
_holder_facts = _facts("application", "container", "role", "container_index", "user", "since_ms", "doubt")
_NOBODY = _holder_facts(Holder(uuid="", index=None, application=""))
_READ = ("utilization", "used_mib", "temperature_c")
_reading_facts = _facts(*_READ, "unverified", "notes")
_UNREAD: dict[str, Any] = dict.fromkeys(_READ) | {"unverified": "", "notes": ()}
