"""The machine's GPU ledger: a directory shared by all users, with one file per device and kernel locks on it
(`dlapp.gpuid.stores.device_files`).

There is one ledger per machine, so two users with two queues never get the same device. Guarantees:

- Exclusive. A device is reserved for one application, then leased to one of its containers. Both are locks held by
  exactly the processes concerned: they end with the last of these processes, however it ends, and not before.
- All or none. A request that does not get all its devices releases those it got.
- First come, first served, machine-wide. Each waiting request has a ticket, a locked file. While an earlier ticket
  waits no later one gets a device that it could use, so a request for many devices is not starved by requests for few.
  A ticket whose process is stopped (SIGSTOP) is skipped until the process continues. Between users, the kernel's file
  times decide which ticket is earlier.
- The unknown state of a user's own payloads never frees a device for that user.
- Files of other users cannot block anyone by themselves. A name, a link, a FIFO or an invalid record neither holds nor
  frees a device; `problems` lists it.

Not guaranteed: a live process of another user can lock devices and wait in the queue indefinitely; it is shown under
its user's name, or as an unknown process. If the locks of another user's record are free, the device stays in use only
by evidence that can be verified here: its task, a reader of its lifeline, its containers at this process's own dockerd,
or processes that compute on the device. Evidence that cannot be verified is reported, with who can remove the record,
and keeps the device only from the record's own user.

A device in quarantine has a record. The record binds its author, and all users if the author is root; others inspect
the device themselves before they take it.
"""

from __future__ import annotations

import contextlib
import os
import random
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import NamedTuple

from dlapp.errors import Denied, RequestTooLarge
from dlapp.gpuid import needs, rules
from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.health.driver_load import driver_load
from dlapp.gpuid.health.nvml import NvmlError
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.ledger import Inspect, LeaseStatus, uninspected
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.needs import PLAIN, Demand
from dlapp.gpuid.rules import DeviceRecord, HostRecord, LeaseRequest, LedgerError, NotEnough
from dlapp.gpuid.selection import ChoiceCache, Choose, choose, choose_for
from dlapp.gpuid.stores.device_files import (
    HEALTH,
    HELD,
    LEASED,
    RESERVED,
    Directory,
    Entry,
    OpenFile,
    OwnedName,
    Record,
    file_name,
    text_of,
)
from dlapp.gpuid.stores.device_health import quarantines, write_health
from dlapp.gpuid.stores.locked_devices import (
    DeviceLocks,
    HeldDevices,
    MachineLease,
    Reservation,
    is_free_of_leases,
    is_unused,
    lock_devices,
)
from dlapp.gpuid.stores.machine_reader import MachineReader
from dlapp.gpuid.stores.queue_tickets import TICKET, QueueTicket, live_before, ticket_name
from dlapp.gpuid.stores.record_liveness import RecordLiveness, uuid_of, who_removes
from dlapp.system import clock
from dlapp.system.files import UntrustedFile, closing_fd
from dlapp.system.owners import user_text
from dlapp.system.shared_directory import open_shared_directory
from dlapp.value import replace

DEVICES_LAST_S = 30.0
"""How long NVML's answer is cached: initializing NVML can take a second."""
_RETRY_S = (0.005, 0.03)
_CLEAR_EVERY_S = 0.5
REMOVE_S = 60.0
"""Time limit of a check of all the machine's leases, which may remove containers."""
_MAX_ROUNDS = 100


class _ReservedDevices(NamedTuple):
    """Devices that are reserved for one application.

    Args:
        devices: those of them that this machine still has.
        free: uuids of those that can be leased now.
        held: holders of the others.
        broken: texts about those that cannot be leased at all.
    """

    devices: list[Device]
    free: set[str]
    held: list[Holder]
    broken: list[str]


class MachineLedger:
    """The `dlapp.gpuid.ledger.Ledger` of this machine.

    Args:
        directory: its path; `dlapp.system.shared_directory` defines whom it serves, and creates it.
        docker_host: this process's own dockerd, ``unix:///var/run/docker.sock``, used if ``probes`` is not given; no
            other dockerd is asked, whatever a record says.
        nvml: calls NVML; None: a process of its own.
        discover: lists the GPUs; None: NVML does.
        inspect: checks the health of GPUs before they are leased.
        application: whose reservation `acquire` uses; empty: it reserves what it leases.
    """

    def __init__(
        self,
        directory: str,
        *,
        docker_host: str = "",
        nvml: NvmlProcess | None = None,
        discover: Callable[[], tuple[Device, ...]] | None = None,
        probes: LivenessProbes | None = None,
        inspect: Inspect = uninspected,
        application: str = "",
        choose: Choose = choose,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = directory
        self.host = os.uname().nodename
        self.problems: dict[str, str] = {}
        """Problems and remarks by path of a directory entry."""
        nvml = nvml or NvmlProcess()
        self._liveness = RecordLiveness(
            probes or LivenessProbes(docker_host=docker_host, nvml=nvml), self.problems, self.directory
        )
        self._inspect, self._choose, self._application = inspect, ChoiceCache(choose), application
        self._leases: dict[str, MachineLease] = {}
        self._discover, self._clock, self._sleep = discover or nvml.discover, clock, sleep
        self._devices: tuple[Device, ...] | None = None
        self._devices_at = 0.0
        self._files: dict[str, OpenFile] = {}
        self._owners: dict[str, OwnedName] = {}

    # ---- reading ----

    def devices(self) -> tuple[Device, ...]:
        """Return all devices of this machine, in PCI bus order, at most `DEVICES_LAST_S` old."""
        if self._devices is None or self._clock() - self._devices_at > DEVICES_LAST_S:
            self._devices, self._devices_at = self._discover(), self._clock()
        return self._devices

    def holders(self) -> dict[str, Holder]:
        """Return the holders by uuid; a device without an entry is free. Needs no NVML.

        Raises:
            LedgerError: the directory or a file in it is invalid.
        """
        try:
            with self._open(make=False) as ledger:
                return ledger.holders()
        except FileNotFoundError:
            return {}

    # ---- waiting ----

    def ticket(self, application: str, count: int, *, since_ms: int, demands: Sequence[Demand] = ()) -> QueueTicket:
        """Enter the machine's queue, behind the existing entries of other users.

        Args:
            application: the waiting application.
            count: how many devices it needs.
            since_ms: behind this user's own applications older than this time [ms since 1970].
            demands: which devices these are; empty: any whole GPUs.

        Raises:
            RequestTooLarge: this machine has fewer devices, so the entry would block the queue forever.
        """
        self._refuse_too_many(count, demands or (Demand(count, PLAIN),))
        record = {"application": application, "count": count, "since_ms": since_ms}
        if text := needs.to_text(demands):
            record["gpus"] = text
        with self._open() as ledger:
            return QueueTicket(ledger.directory, ticket_name(application, since_ms), record, self._clock)

    # ---- taking ----

    def reach(self, *, timeout_s: float) -> None:
        """Do nothing: the store is a directory."""

    def acquire(self, request: LeaseRequest, *, timeout_s: float = 0.0) -> MachineLease:
        """Lease from the application's reservation, or reserve and lease in one step; see `dlapp.gpuid.ledger.Ledger`.

        Without a reservation, a waiting request has a place in the machine's queue.
        """
        if self._application:
            return self.lease(replace(request, application=self._application), timeout_s=timeout_s)
        if (again := self._leases.get(request.container)) is not None and again.is_open:
            if len(again.devices) != request.gcores:
                raise LedgerError(f"{self.host}: {request.container} holds {len(again.devices)} gcores already")
            return again
        deadline = self._clock() + timeout_s
        rules.check_request(self.host, request, self.devices())
        demands = request.demands
        if request.uuids:
            known = self.record()
            for name in request.uuids:
                known.device(name)
        with contextlib.ExitStack() as waiting:
            place = None
            if timeout_s > 0:
                place = waiting.enter_context(
                    self.ticket(request.application, request.gcores, since_ms=clock.now_ms(), demands=demands)
                )
            while True:
                try:
                    reservation = self.reserve(
                        request.application,
                        request.gcores,
                        ticket=place,
                        uuids=request.uuids,
                        spread=request.spread,
                        demands=demands,
                    )
                    break
                except NotEnough as error:
                    if self._clock() < deadline:
                        self._sleep(random.uniform(*_RETRY_S))
                        continue
                    if error.free >= request.gcores and not request.uuids:
                        raise  # enough are free; another ticket is first
                    reason = rules.shortage_reason(self.record(), demands, clock.now_ms())
                    raise NotEnough(self.host, reason, request.gcores, error.free, error.holders) from error
        with contextlib.ExitStack() as kept:
            kept.enter_context(reservation)
            with self._open() as ledger:
                device_locks = lock_devices(
                    ledger, reservation.devices, LEASED, _hold_record(request), is_free_of_leases
                )
            if device_locks is None:
                raise LedgerError(
                    f"{self.host}: a GPU that is reserved for {request.application} was leased by another application"
                )
            kept.pop_all()
        self._leases[request.container] = lease = MachineLease(reservation.devices, device_locks, reservation)
        return lease

    def reserve(
        self,
        application: str,
        count: int,
        *,
        ticket: QueueTicket | None = None,
        uuids: Collection[str] = (),
        spread: bool = False,
        demands: Sequence[Demand] = (),
    ) -> Reservation:
        """Reserve ``count`` devices for an application: all or none, and none that an earlier ticket waits for.

        Args:
            application: the application to reserve for.
            count: how many devices.
            ticket: queue ticket of the request; None: it is behind all tickets that wait now.
            uuids: exactly these devices; empty: any.
            spread: far from each other and from those in use, not close together.
            demands: which devices these are, the strictest first; empty: any whole GPUs.

        Raises:
            NotEnough: not now; names the holders, or the first in the queue.
            RequestTooLarge: this machine has fewer devices.
            LedgerError: the ledger is invalid.
        """
        demands = demands or (Demand(count, PLAIN),)
        self._refuse_too_many(count, () if uuids else demands)
        devices = self.devices()
        self._discover_devices()
        if ticket is not None:
            ticket.record_poll()
        looked = False
        with self._open() as ledger:
            for _ in range(_MAX_ROUNDS):
                names = ledger.directory.names()
                free, held, out = ledger.usable(devices, names)
                own = ticket.name if ticket else None
                wanted = [one for one in devices if one.uuid in uuids] if uuids else needs.eligible(devices, demands)
                usable = {one.uuid for one in wanted if one.uuid in free}
                for earlier in live_before(ledger.directory, own, names, self._clock()):
                    # An application that waits for whole GPUs does not wait for slices, and the other way round.
                    if theirs := {one.uuid for one in needs.eligible(wanted, earlier.demands)}:
                        if self._chosen(devices, free - theirs, demands, spread, uuids) is None:
                            raise NotEnough(self.host, str(earlier), count, len(usable), held)
                        free = free - theirs
                chosen = self._chosen(devices, free, demands, spread, uuids)
                if chosen is None:
                    if any(one.doubt for one in held) and not looked:
                        looked = True
                        self.reclaim()
                        continue
                    reason = _shortage_reason(demands, devices, free, held, out)
                    raise NotEnough(self.host, reason, count, len(usable), held)
                if (
                    device_locks := lock_devices(ledger, chosen, RESERVED, {"application": application}, is_unused)
                ) is not None:
                    return Reservation(chosen, device_locks)
                # Another request took one of them after the read. Unless it is malicious, each such round serves one
                # request.
                self._sleep(random.uniform(*_RETRY_S))
        raise NotEnough(self.host, f"needs {count} gcores, which others are taking", count, len(free), held)

    def shortage(self, demands: Sequence[Demand]) -> str:
        """Return why demands are not met now, with the holders of devices that would serve them; empty: they are met.

        Raises:
            LedgerError: the ledger is invalid.
        """
        devices = self.devices()
        with self._open() as ledger:
            free, held, out = ledger.usable(devices, ledger.directory.names())
        return "" if choose_for(devices, free, demands) else _shortage_reason(demands, devices, free, held, out)

    def _chosen(
        self,
        devices: tuple[Device, ...],
        free: set[str],
        demands: Sequence[Demand],
        spread: bool,
        uuids: Collection[str],
    ) -> tuple[Device, ...] | None:
        """Return the devices to reserve; None: not enough are free."""
        if uuids:
            exactly = tuple(one for one in devices if one.uuid in uuids)
            return exactly if len(exactly) == sum(one.gcores for one in demands) and free.issuperset(uuids) else None
        return choose_for(devices, free, demands, spread, choose=self._choose)

    def join_reservation(self, application: str) -> Reservation | None:
        """Add a second reservation of the devices that processes of an application still have reserved.

        Both reservations are valid, and each ends with its own processes. None: no process has them reserved.

        Raises:
            LedgerError: the ledger is invalid.
        """
        with self._open() as ledger:
            # 1. A process of the application holds the device: nobody else can take it.
            # 2. We publish a record of our own. From now on nobody else can take it whether or not (1) still holds.
            # 3. (1) still holds, so nobody took it in between.
            mine = _reserved_names(ledger, application)
            if not mine:
                return None
            uuids = {file_name(one.uuid): one for one in self.devices()}
            devices = [uuids[name] for name in sorted(mine & uuids.keys())]
            record = {"application": application, "devices": {one.uuid: one.index for one in devices}}
            record["boot_id"] = self._liveness.boot_id
            published = ledger.directory.publish(HELD[RESERVED], record)
            reservation = Reservation(devices, DeviceLocks(self.directory, {}, (published,)))
            if devices and mine <= _reserved_names(ledger, application, but={published[0]}):
                return reservation
            reservation.close()
            return None

    def lease(self, request: LeaseRequest, *, timeout_s: float = 0.0) -> MachineLease:
        """Lease ``request.gcores`` of the devices reserved for ``request.application`` to one of its containers.

        A reserved device that is lost or in quarantine is replaced by another one, for this lease only.

        Args:
            request: its evidence is for a payload that does not inherit ``fds``: ``fifo``, the path of the lifeline
                that the payload reads.
            timeout_s: how long to wait for devices that a previous container is releasing.

        Raises:
            NotEnough: not in time; names the holders.
            LedgerError: the ledger is invalid.
        """
        application, gcores, spread, need = request.application, request.gcores, request.spread, request.need
        if gcores == 0:
            return MachineLease((), DeviceLocks(self.directory, {}, ()))
        deadline, clear_at = self._clock() + timeout_s, self._clock()
        devices = self.devices()
        extra: Reservation | None = None
        record = _hold_record(request)
        with self._open() as ledger, contextlib.ExitStack() as kept:
            while True:
                ours = _reserved(ledger, devices, application)
                free, held = {one.uuid for one in devices if one.uuid in ours.free and need.accepts(one)}, ours.held
                # Of what is reserved for several roles, each takes the least that it needs.
                chosen = choose_for(devices, free, request.demands, spread, choose=self._choose, least=True)
                if chosen is not None:
                    device_locks = lock_devices(ledger, chosen, LEASED, record, partial(_is_reserved, application))
                    if device_locks is not None:
                        if extra is not None and set(extra.devices).isdisjoint(chosen):
                            extra.close()  # a previous container has released one meanwhile
                            extra = None
                        kept.pop_all()
                        return MachineLease(chosen, device_locks, extra)
                elif ours.broken and extra is None:
                    count = min(len(ours.broken), gcores - len(free))
                    try:
                        demands = (Demand(count, need),)
                        extra = kept.enter_context(self.reserve(application, count, spread=spread, demands=demands))
                        continue
                    except (NotEnough, RequestTooLarge) as error:
                        if self._clock() >= deadline:
                            why = f"{', '.join(ours.broken)}, and in place of it: {getattr(error, 'reason', error)}"
                            raise NotEnough(self.host, why, gcores, len(free), held) from error
                elif gcores > (total := sum(map(need.accepts, ours.devices))):
                    asked = needs.asked_text(request.demands, devices)
                    reason = f"asked for {asked}, {total} are reserved for {application}"
                    raise NotEnough(self.host, reason, gcores, len(free), held)
                if any(one.doubt for one in held) and self._clock() >= clear_at:
                    # Leftovers of a dead task in Docker stay until they are removed.
                    clear_at = self._clock() + _CLEAR_EVERY_S
                    self.reclaim(application)
                    continue
                if self._clock() >= deadline:
                    reason = _shortage_reason(request.demands, devices, free, held)
                    raise NotEnough(self.host, reason, gcores, len(free), held)
                self._sleep(random.uniform(*_RETRY_S))

    def hold(self, devices: Sequence[Device], request: LeaseRequest, *, token: str) -> HeldDevices | dict[str, Holder]:
        """Lock exactly these GPUs for a lease of a cluster's ledger, so that no local application gets them.

        Requests from a cluster's ledger do not wait in this machine's queue: they have waited in their engine's queue.

        Args:
            token: token of the lease; written to the GPUs' files, to verify that lease by their locks.

        Returns:
            The held GPUs; or, if one is not available, the holders of all GPUs by uuid.

        Raises:
            LedgerError: the ledger is invalid.
        """
        record = _hold_record(request) | {"token": token}
        # In a fixed order, so of two requests for the same devices one gets them all.
        ordered = sorted(devices, key=lambda one: one.uuid)
        with self._open() as ledger:
            device_locks = lock_devices(ledger, ordered, RESERVED, record, is_free_of_leases, both=True)
            if device_locks is None:
                return ledger.holders_of(self.devices())
            inodes = {file_name(one.uuid): 0 for one in ordered}
            inodes |= {name: os.fstat(fd).st_ino for name, fd in device_locks.lock_by_name.items()}
        evidence = {"directory": self.directory, "token": token, "cards": inodes, "records": True}
        return HeldDevices(devices, device_locks, evidence)

    def inspect_held(self, held: HeldDevices) -> tuple[DeviceRecord, ...]:
        """Inspect devices that this process holds before their payload starts, and record the result.

        Returns:
            Those that are in quarantine.
        """
        uuids = {one.uuid for one in held.devices}
        for _ in range(_MAX_ROUNDS):
            whole = self.record()
            old = replace(whole, devices=tuple(one for one in whole.devices if one.uuid in uuids), leases=())
            if (new := self._inspect(old)) == old:
                break
            with self._open() as ledger:
                if self._write_inspection(ledger, old, new):
                    break
        return tuple(one for one in new.devices if one.quarantine is not None)

    def remove_excess(self) -> None:
        """See `dlapp.gpuid.ledger.Ledger`."""
        if os.geteuid() == 0:
            with contextlib.suppress(FileNotFoundError), self._open(make=False) as ledger:
                ledger.directory.remove_excess()

    def reclaim(self, application: str | None = None) -> list[LeaseStatus]:
        """See `dlapp.gpuid.ledger.Ledger`.

        Args:
            application: check only its leases, as a user who may read their evidence when others may not: its owner,
                after its end.
        """
        found: dict[tuple[str, str, int], tuple[list[str], Liveness]] = {}
        with contextlib.suppress(FileNotFoundError), self._open(make=False) as ledger:
            entries = ledger.entries(patience_s=REMOVE_S)
            _remove_unnamed(ledger.directory)
            for one in (one for name in sorted(entries) for one in entries[name]):
                if application is not None and one.record.get("application") != application:
                    continue
                if one.is_reservation and not one.is_live:
                    _remove(ledger, one)
                if not one.is_lease:
                    continue
                ended = False
                if one.is_live:
                    finding = Liveness(ALIVE, "a process of it still holds it")
                else:
                    finding = ledger.liveness.check(one)
                    if finding.state == ALIVE and ledger.liveness.remove_leftovers(one):
                        finding, ended = ledger.liveness.check(one), True
                    if finding.state == GONE and not _remove(ledger, one) and not ended:
                        continue  # another user's; that user removes it
                    if finding.state == UNKNOWN:
                        finding = finding._replace(why=who_removes(one, finding.why))
                key = text_of(one.record, "container"), text_of(one.record, "application"), one.uid
                found.setdefault(key, ([], finding))[0].append(uuid_of(one))
        return [
            LeaseStatus(container, whose, tuple(uuids), finding.state, finding.why)
            for (container, whose, _), (uuids, finding) in found.items()
        ]

    # ---- health ----

    def quarantine(
        self, name: str, *, cause: str, detail: str = "", by: str = "", host: str | None = None, until: str = ""
    ) -> None:
        """Put a device into quarantine; see `dlapp.gpuid.ledger.Ledger`.

        Args:
            name, cause, detail, by, host, until: as there.
        """
        self._refuse_other_host(host)
        now_ms, driver = clock.now_ms(), driver_load()
        old = self._record_for_change()
        new = rules.quarantine(old, name, cause=cause, detail=detail, by=by, now_ms=now_ms, until=until, driver=driver)
        with self._open() as ledger:
            write_health(ledger.directory, old, new)

    def quarantine_all(self, *, cause: str, detail: str = "") -> None:
        """See `dlapp.gpuid.ledger.Ledger`. The GPUs are those that NVML last reported, and those of the files."""
        old = self._record_of(self._devices or ())
        new = rules.quarantine_all(old, cause=cause, detail=detail, now_ms=clock.now_ms())
        with self._open() as ledger:
            write_health(ledger.directory, old, new)

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> bool:
        self._refuse_other_host(host)
        old = self._record_for_change()
        device = old.device(name).device
        file, me = file_name(device.uuid), os.geteuid()
        with self._open() as ledger:
            there = quarantines(ledger.entries({file}).get(file, ()))
            authors = {one.uid for one in there}
            if authors and me != 0 and (0 in authors or me not in authors):
                names = ", ".join(user_text(uid) for uid in sorted(authors - {me}))
                raise Denied(f"{self.host}: {device.label} was put into quarantine by {names}; they or root heal it")
            new = rules.heal(old, name, forgive=forgive, now_ms=clock.now_ms())
            write_health(ledger.directory, old, new)
            if me == 0:
                for one in quarantines(ledger.entries({file}).get(file, ())):
                    ledger.directory.remove(one.name)
        return bool(there)

    def record(self) -> HostRecord:
        """See `dlapp.gpuid.ledger.Ledger`. A device that is only reserved appears as a lease without a container."""
        return self._record_of(self.devices())

    def _record_for_change(self) -> HostRecord:
        """Return the record also while the driver does not work, which is often the reason for a quarantine: with the
        GPUs that NVML last reported, and those of the files."""
        try:
            return self.record()
        except NvmlError:
            return self._record_of(self._devices or ())

    def record_of_files(self) -> HostRecord:
        """Return what the files say of this host, without NVML: the GPUs that somebody holds or that are in quarantine.
        Whether they are there is not known."""
        record = self._record_of(())
        return replace(record, devices=tuple(replace(one, present=True) for one in record.devices))

    def _record_of(self, devices: tuple[Device, ...]) -> HostRecord:
        try:
            with self._open(make=False) as ledger:
                return ledger.record(self.host, devices)
        except FileNotFoundError:
            boot_id, now_ms = self._liveness.boot_id, clock.now_ms()
            return HostRecord(self.host, tuple(map(DeviceRecord, devices)), boot_id=boot_id, seen_ms=now_ms)

    def close(self) -> None:
        """See `dlapp.gpuid.ledger.Ledger`: there is nothing to close."""

    def _discover_devices(self) -> None:
        if self._inspect is uninspected:
            return
        for _ in range(_MAX_ROUNDS):
            old = self.record()
            if (new := self._inspect(old)) == old:
                return
            with self._open() as ledger:
                # If a GPU was leased in the meantime, processes on it are not a defect.
                if self._write_inspection(ledger, old, new, but=ledger.holders_of(self.devices())):
                    return

    def _write_inspection(
        self, ledger: MachineReader, old: HostRecord, new: HostRecord, *, but: Collection[str] = ()
    ) -> bool:
        """Write the result of an inspection, except that of GPUs which an operator has closed or healed since its
        begin: it is from before that.

        Args:
            ledger: the opened ledger.
            old, new: the record before and after the inspection.
            but: uuids of other GPUs whose result does not count.

        Returns:
            Whether no GPU was closed or healed.
        """
        now = {one.uuid: one for one in ledger.record(self.host, self.devices()).devices}
        before = {one.uuid: one for one in old.devices}
        valid = [one for one in new.devices if _is_unchanged(before.get(one.uuid), now.get(one.uuid))]
        write_health(ledger.directory, old, replace(new, devices=tuple(one for one in valid if one.uuid not in but)))
        return len(valid) == len(new.devices)

    def _refuse_other_host(self, host: str | None) -> None:
        if host not in (None, self.host):
            raise LedgerError(f"{host}: this ledger is of {self.host} only")

    # ---- the directory ----

    @contextlib.contextmanager
    def _open(self, *, make: bool = True) -> Iterator[MachineReader]:
        """Open the directory anew each time: a removed and recreated directory must not stay two ledgers for long."""
        try:
            fd = open_shared_directory(self.directory, make=make)
        except UntrustedFile as error:
            raise LedgerError(f"gpuid.lock_dir: {error}") from error
        self.problems.clear()
        with closing_fd(fd):
            yield MachineReader(Directory(fd, self.directory, self.problems, self._files, self._owners), self._liveness)

    def _refuse_too_many(self, count: int, demands: Sequence[Demand]) -> None:
        if count < 1:
            raise LedgerError(f"asked for {count} gcores, the minimum is 1")
        if shortage := needs.too_few(demands, self.devices(), "this machine has"):
            raise RequestTooLarge(shortage.text, f"resources.{shortage.key}")


def _hold_record(request: LeaseRequest) -> Record:
    record: Record = {"application": request.application, "container": request.container}
    if request.role:
        record |= {"role": request.role, "container_index": request.container_index}
    return {**record, "evidence": dict(request.evidence)} if request.evidence else record


def _is_reserved(application: str, _: MachineReader, entries: Sequence[Entry], __: int | None = None) -> bool:
    """Return whether this user's processes have reserved a device for an application."""
    return any(
        one.is_live and one.is_reservation and one.uid == os.geteuid() and one.record.get("application") == application
        for one in entries
    )


def _reserved_names(ledger: MachineReader, application: str, but: Collection[str] = ()) -> set[str]:
    """Return the names of the devices that this user's processes have reserved for an application."""
    entries = ledger.entries(but=but)
    return {name for name, those in entries.items() if _is_reserved(application, ledger, those)}


def _reserved(ledger: MachineReader, devices: Sequence[Device], application: str) -> _ReservedDevices:
    entries = ledger.entries()
    ours = {name for name, those in entries.items() if _is_reserved(application, ledger, those)}
    free, held = set(), []
    there = {file_name(one.uuid): one for one in devices}
    broken = [f"{name} is not there any more" for name in entries if name in ours - there.keys()]
    for name, device in there.items():
        if name not in ours:
            continue
        holder = ledger.holder(name, entries[name], device)
        if holder is not None and (holder.container or holder.doubt):
            held.append(holder)
        elif (quarantine := ledger.health(entries[name]).quarantine) is not None:
            broken.append(f"{device.label} {quarantine}")
        else:
            free.add(device.uuid)
    return _ReservedDevices([one for name, one in there.items() if name in ours], free, held, broken)


def _remove(ledger: MachineReader, one: Entry) -> bool:
    """Remove an obsolete record, if this user may."""
    if os.geteuid() not in (0, one.uid) or not ledger.liveness.has_ended(one):
        return False
    ledger.directory.remove(one.name)
    return True


def _remove_unnamed(directory: Directory) -> None:
    """Remove files that this user's killed processes left half written or emptied."""
    kinds = (*(f"{kind}-" for kind in (*HELD, HEALTH)), TICKET)
    for name in directory.names():
        began = name.startswith(".") and name[1:].startswith(kinds)
        if began or name.startswith(kinds):
            with contextlib.suppress(OSError), directory.own_unlocked(name, None if began else 0):
                directory.remove(name)


def _shortage_reason(
    demands: Sequence[Demand],
    devices: Sequence[Device],
    free: set[str],
    held: Sequence[Holder],
    out: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """Return why demands are not met now, with the holders of devices that would serve them.

    Args:
        demands: what is asked for.
        devices: all of the machine.
        free: uuids of those that are free.
        held: holders of others.
        out: what is said of those that are in quarantine, by uuid.
    """
    wanted = {one.uuid for one in needs.eligible(devices, demands)}
    others = [str(one) for one in held if one.uuid in wanted] + [text for uuid, text in out.items() if uuid in wanted]
    there = needs.free_text(demands, [one for one in devices if one.uuid in free])
    text = f"needs {needs.asked_text(demands, devices)}, {there}"
    return f"{text}: {', '.join(others)}" if others else text


def _is_unchanged(before: DeviceRecord | None, now: DeviceRecord | None) -> bool:
    """Return whether nobody has closed or healed a device between two readings."""
    if before is None or now is None:
        return True
    return (before.healed_ms, before.quarantine) == (now.healed_ms, now.quarantine)
