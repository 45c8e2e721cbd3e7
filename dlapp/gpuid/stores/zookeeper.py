"""The GPU ledger of a cluster, in ZooKeeper: one znode per host.

    <root>/hosts/<host>     the host's record (`dlapp.gpuid.rules`), as JSON
    <root>/short            names of hosts with GPUs in quarantine (`dlapp.gpuid.stores.short_hosts`)

A change is a compare-and-set: read, change, write if the version is unchanged. So there is no lock that a dead client
could hold, and a request gets all of its devices or none. There are no ephemeral nodes: an expired session has no
effect, and an outage stops no payload. A lease ends by release, or because its own host finds that its payload is gone
(`dlapp.gpuid.liveness.probes`).

A process that leases a GPU here also locks it in the ledger of the machine (`dlapp.gpuid.stores.machine`), before the
write. So no application of the embedded engine on the same host gets it, and the lock held by the task and its
descendants is evidence of life.

The answer to a successful write can be lost. The next read then finds the lease with our token. A lease written by a
call that gave up is released by a later call of this process (`dlapp.gpuid.stores.deferred_releases`), or by evidence.

A record may still be where earlier versions kept those of all clusters (``former_root``). It is read there, with its
leases, until the host's first change is written here. The old record stays unchanged. A task of an earlier version that
leases a GPU there also locks it on the machine, so the GPU is not leased here.
"""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dlapp.errors import Denied, NotFound, TimedOut, Unreachable
from dlapp.gpuid import rules
from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.health.driver_load import driver_load
from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
from dlapp.gpuid.ledger import Inspect, LeaseStatus, uninspected
from dlapp.gpuid.liveness import probes as liveness_probes
from dlapp.gpuid.liveness.applications import ENDED_S, INSTALLED_ANEW_S, ApplicationProbe
from dlapp.gpuid.liveness.probes import LivenessProbes, docker_label
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.record_json import from_bytes, to_bytes
from dlapp.gpuid.rules import HostRecord, LeaseRecord, LeaseRequest, LedgerError, NotEnough, OtherMachine
from dlapp.gpuid.selection import ChoiceCache, Choose, choose
from dlapp.gpuid.stores.deferred_releases import DeferredReleases
from dlapp.gpuid.stores.ensemble import Ensemble, OutcomeUnknown, TlsFiles, VersionConflict
from dlapp.gpuid.stores.host_lock import HostWriteLock, HostWriteLockHold
from dlapp.gpuid.stores.locked_devices import HeldDevices
from dlapp.gpuid.stores.machine import MachineLedger
from dlapp.gpuid.stores.machine_reader import RECLAIM_S
from dlapp.gpuid.stores.short_hosts import ShortHosts, is_short
from dlapp.system import clock
from dlapp.system.clock import backoff_s
from dlapp.system.machine import machine_id
from dlapp.value import Closeable, replace
from dlapp.values.launch_spec import LedgerSettings

MIN_WAIT_S = 5.0
"""Minimum time limit of an ensemble's answer, even without waiting for devices."""
RELEASE_WAIT_S = 10.0
"""How long a release waits for the ensemble before it is deferred."""
_CONFLICT_S = 0.05
_POLL_S = (0.05, 1.0)
_TRIES = 5

Change = Callable[[HostRecord], HostRecord]


class ZooKeeperLease(Closeable):
    """The `dlapp.gpuid.ledger.Lease` in ZooKeeper. Closing it frees nothing by itself."""

    def __init__(
        self, ledger: ZooKeeperLedger, record: LeaseRecord, devices: tuple[Device, ...], held: HeldDevices
    ) -> None:
        self.devices, self.fds = devices, held.fds
        self.record = record
        self._ledger, self._held = ledger, held
        self._is_released = False

    def release(self) -> bool:
        if self.is_open:
            # Release the machine's lock first: a process that finds the GPU free there also gets it here.
            self._held.release()
            self._is_released = self._ledger._release(self.record)
        return self._is_released

    def close(self) -> None:
        if self.is_open:
            self._ledger._open.pop(self.record.container, None)
            self._held.close()

    @property
    def is_open(self) -> bool:
        """Return whether this object still holds the lease."""
        return self._held.is_open


class ZooKeeperLedger(Closeable):
    """The `dlapp.gpuid.ledger.ClusterLedger` in ZooKeeper, as used by one process of one host. Thread-safe.

    Args:
        host: this host's name in the ledger; None: the machine's.
        nvml: calls NVML; None: a process of its own.
        discover: lists the GPUs; None: NVML does.
        inspect: checks the health of GPUs before they are leased.
        machine: this machine's id; None: from /etc/machine-id.
        applications: reports which applications have ended; None: the cluster's ResourceManagers.
    """

    def __init__(
        self,
        settings: LedgerSettings,
        *,
        host: str | None = None,
        nvml: NvmlProcess | None = None,
        discover: Callable[[], tuple[Device, ...]] | None = None,
        probes: LivenessProbes | None = None,
        inspect: Inspect = uninspected,
        choose: Choose = choose,
        machine: str | None = None,
        applications: ApplicationProbe | None = None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.settings = settings
        self.host = rules.check_host(host if host is not None else os.uname().nodename)
        nvml = nvml or NvmlProcess()
        self._discover, self._inspect = discover or nvml.discover, inspect
        self._choose = ChoiceCache(choose)
        self._probes = probes or LivenessProbes(docker_host=settings.docker_host, nvml=nvml)
        self._machine_id = machine_id() if machine is None else machine
        self._applications = applications or ApplicationProbe(settings.resource_managers, settings.login)
        self._machine = MachineLedger(settings.lock_dir, discover=self._discover, probes=self._probes)
        self._clock, self._sleep = clock, sleep
        self._hosts_path = f"{settings.root.rstrip('/')}/hosts"
        self._ensemble = Ensemble(
            settings.ensemble,
            root=settings.root,
            credentials=settings.credentials,
            session_timeout_s=settings.session_timeout_s,
            clock=clock,
            sleep=sleep,
            tls=TlsFiles(settings.certificates, settings.client_certificate) if settings.tls else None,
        )
        self._former_path = f"{settings.former_root.rstrip('/')}/hosts" if settings.former_root else ""
        self._short = ShortHosts(self._ensemble, settings.root, clock)
        self._turns = HostWriteLock(settings.lock_dir, clock=clock, sleep=sleep)
        self._lock = threading.Lock()
        self._known: dict[str, tuple[HostRecord, int]] = {}
        self._open: dict[str, ZooKeeperLease] = {}
        self._later = DeferredReleases(self._release_now, at_once_s=MIN_WAIT_S)

    # ---- taking and giving back ----

    def reach(self, *, timeout_s: float) -> None:
        self._ensemble.connect(self._clock() + timeout_s)

    def acquire(self, request: LeaseRequest, *, timeout_s: float = 0.0) -> ZooKeeperLease:
        if (again := self._open.get(request.container)) is not None and again.is_open:
            if again.record.application == request.application and len(again.devices) == request.gcores:
                return again
            raise LedgerError(f"{self.host}: {request.container} holds {len(again.devices)} gcores already")
        deadline = self._clock() + max(timeout_s, MIN_WAIT_S)
        devices = self._discover()
        rules.check_request(self.host, request, devices)
        self._later.flush(request.container)
        token = os.urandom(8).hex()
        task = {"task": liveness_probes.this_task(), **request.evidence}
        if (cgroup := liveness_probes.cgroup_of_container(request.container)) is not None:
            task["cgroup"] = cgroup
        holding = _DeviceHold(self._machine, request, token, devices, self._sleep)
        try:
            granted = self._lease(
                replace(request, evidence=task), devices, holding, self._clock() + timeout_s, deadline
            )
        except BaseException as error:
            if isinstance(error, (Unreachable, TimedOut)):
                # It may have been written nevertheless; then it must be released, or found by evidence.
                self._later.put(
                    LeaseRecord(request.container, request.application, request.user, (), token=token, evidence=task)
                )
            holding.release()
            raise
        assert holding.held is not None
        lease = ZooKeeperLease(self, granted, holding.devices_of(granted), holding.held)
        self._open[request.container] = lease
        return lease

    def _lease(
        self,
        request: LeaseRequest,
        devices: tuple[Device, ...],
        holding: _DeviceHold,
        wait_until: float,
        deadline: float,
    ) -> LeaseRecord:
        granted: list[LeaseRecord] = []

        def change(record: HostRecord) -> HostRecord:
            record = self._with_inventory(record, devices)
            while True:
                new, one = rules.lease(
                    record,
                    request,
                    token=holding.token,
                    now_ms=clock.now_ms(),
                    choose=self._choose,
                    unrecorded_holders=holding.lock_holders,
                )
                granted[:] = [one]
                if new is record:
                    return record
                if holding.lock_devices(one):
                    return rules.adopt(new, request.container, token=one.token, evidence=holding.evidence(request))

        pauses_s, is_listed = backoff_s(*_POLL_S), False
        while True:
            try:
                self._change(self.host, change, deadline)
                break
            except OtherMachine:
                if not any(one.state == GONE for one in self._reclaim(deadline)):
                    raise
            except NotEnough:
                # A GPU that was found unhealthy may be the reason: write that for other hosts to see.
                now = self._change(self.host, lambda record: self._with_inventory(record, devices), deadline)
                if is_short(now) and not is_listed:
                    self._short.put(self.host)
                    is_listed = True
                # Check for dead payloads only now: that can take a while (dockerd).
                freed = any(one.state == GONE for one in self._reclaim(deadline))
                holding.forget_lock_holders()
                if not freed and self._clock() >= wait_until:
                    self._change(self.host, change, deadline)
                    break
                if self._clock() < wait_until:
                    self._sleep(min(next(pauses_s), max(0.0, wait_until - self._clock())))
        mine = granted[0]
        if mine.token != holding.token:
            return self._adopt(mine, request, holding, deadline)
        if not holding.lock_devices(mine):  # written by a try whose answer was lost, and taken by another since
            self._release_now(mine, RELEASE_WAIT_S)
            raise LedgerError(f"{self.host}: {holding.in_use()}")
        return mine

    def _adopt(self, old: LeaseRecord, request: LeaseRequest, holding: _DeviceHold, deadline: float) -> LeaseRecord:
        """Adopt the container's own lease, written by an earlier call that did not receive the answer."""
        if old.evidence.get("task") != liveness_probes.this_task():
            found = self._probes.check(old.evidence, old.boot_id, old.devices)
            if found.state != GONE:
                raise LedgerError(f"{self.host}: {request.container} has its lease already, and {found.why}")
        if not holding.lock_devices(old):
            raise LedgerError(f"{self.host}: {request.container} has its lease already, and {holding.in_use()}")
        token = holding.token

        def change(record: HostRecord) -> HostRecord:
            now = record.lease_of(request.container)
            if now is None or now.token not in (old.token, token):
                raise LedgerError(f"{self.host}: the lease of {request.container} changed while it was taken over")
            return rules.adopt(record, request.container, token=token, evidence=holding.evidence(request))

        mine = self._change(self.host, change, deadline).lease_of(request.container)
        assert mine is not None
        return mine

    def _release(self, lease: LeaseRecord) -> bool:
        self._open.pop(lease.container, None)
        try:
            self._release_now(lease, RELEASE_WAIT_S)
        except (Unreachable, TimedOut):
            self._later.put(lease)
            return False
        return True

    def _release_now(self, lease: LeaseRecord, wait_s: float) -> None:
        def change(record: HostRecord) -> HostRecord:
            return rules.release(record, lease.container, application=lease.application, token=lease.token)

        self._change(self.host, change, self._clock() + wait_s)

    # ---- reading ----

    def record(self) -> HostRecord:
        return self.record_of(self.host)

    def record_of(self, host: str, *, timeout_s: float = RELEASE_WAIT_S) -> HostRecord:
        """Return the record of a host; an empty record if there is none."""
        return self._read(rules.check_host(host), self._clock() + timeout_s, newest=True)[0]

    def hosts(self, *, timeout_s: float = 30.0) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        """Yield all hosts by name, each with its record or its problem; forgotten ones too.

        Args:
            timeout_s: time limit of each answer of the ensemble.

        Raises:
            Unreachable: the ensemble does not answer.
        """
        deadline = self._clock() + timeout_s
        paths: dict[str, str] = {}
        for above in filter(None, (self._former_path, self._hosts_path)):
            paths |= {host: f"{above}/{host}" for host in self._ensemble.names(above, deadline)}
        yield from self._records(paths, timeout_s)

    def _records(self, paths: Mapping[str, str], timeout_s: float) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        hosts = sorted(paths)
        data = self._ensemble.read_all([paths[host] for host in hosts], lambda: self._clock() + timeout_s)
        for host, one in zip(hosts, data, strict=True):
            try:
                yield host, from_bytes(one, host)
            except LedgerError as error:
                yield host, error

    def short_hosts(self, *, timeout_s: float = 30.0) -> Iterator[tuple[str, HostRecord | LedgerError]]:
        names = self._short.names(self._clock() + timeout_s)
        if names is None:
            with contextlib.suppress(Denied):
                self._short.begin(self._clock() + timeout_s)
            for host, record in self.hosts(timeout_s=timeout_s):
                if isinstance(record, HostRecord) and is_short(record):
                    self._short.put(host)
                    yield host, record
            self._short.end(self._clock() + timeout_s)
            return
        for host, record in self._records({one: f"{self._hosts_path}/{one}" for one in names}, timeout_s):
            if isinstance(record, HostRecord) and not record.devices:
                record = self.record_of(host, timeout_s=timeout_s)  # it may be where earlier versions kept it
            if isinstance(record, LedgerError) or is_short(record):
                yield host, record
            else:
                self._short.remove(host, still=lambda host=host: is_short(self.record_of(host)))  # type: ignore[misc]

    @property
    def directory(self) -> str:
        """Return the path of the directory of this machine's ledger."""
        return self.settings.lock_dir

    @property
    def problems(self) -> dict[str, str]:
        """Return the invalid entries of this machine's directory: path -> problem."""
        return self._machine.problems

    def host_holders(self) -> dict[str, Holder]:
        """Return the holders of this machine's GPUs by uuid, applications of the embedded engine included."""
        return self._machine.holders()

    def remove_excess(self) -> None:
        self._machine.remove_excess()

    def reclaim(self) -> list[LeaseStatus]:
        deadline = self._clock() + RELEASE_WAIT_S
        looked = self._reclaim(deadline)
        # Known only to the machine: leases of the embedded engine, and locks without a written lease.
        known = {one.container for one in looked}
        return [*looked, *(one for one in self._machine.reclaim() if one.container not in known)]

    def _reclaim(self, deadline: float) -> list[LeaseStatus]:
        record = self._read(self.host, deadline, newest=True)[0]
        looked, gone, doubts = [], [], {}
        until = time.monotonic() + RECLAIM_S
        swept = False
        is_others = self._is_of_other_machine(record)
        for one in record.leases:
            if is_others:
                found = self._applications.check(one.application, ended_s=INSTALLED_ANEW_S, until=until)
                if found.state == GONE:
                    gone.append(one)
                else:
                    found = Liveness(UNKNOWN, f"it is of another machine of this name, and {found.why}")
                looked.append(LeaseStatus(one.container, one.application, one.devices, found.state, found.why))
                continue
            found = self._probes.check(one.evidence, one.boot_id, one.devices, until=until)
            if found.state == ALIVE and not found.is_task_alive and docker_label(one.evidence) and not swept:
                # This record may have been written by anyone with the credentials. Leftovers of a dead task in Docker
                # are removed only by the machine's ledger, whose records have an owner and a lock.
                swept = True
                self._machine.reclaim()
                until = time.monotonic() + RECLAIM_S
                found = self._probes.check(one.evidence, one.boot_id, one.devices, until=until)
            if found.state == UNKNOWN and self._has_ended(one, until):
                found = Liveness(GONE)
            if found.state == GONE:
                gone.append(one)
            else:
                doubts[one.container] = "" if found.is_task_alive else found.why
            looked.append(LeaseStatus(one.container, one.application, one.devices, found.state, found.why))
        if gone or any(record.lease_of(name).doubt != why for name, why in doubts.items()):  # type: ignore[union-attr]
            keys = {(one.container, one.token) for one in gone}
            self._change(self.host, lambda record: rules.reclaim(record, keys, doubts), deadline)
        return looked

    def _has_ended(self, lease: LeaseRecord, until: float) -> bool:
        """Return whether a lease's application ended long ago and no process computes on its GPUs."""
        ended = self._applications.check(lease.application, ended_s=ENDED_S, until=until)
        return ended.state == GONE and self._probes.check_gpu_processes(lease.devices).state == GONE

    # ---- operators ----

    def quarantine(
        self, name: str, *, cause: str, detail: str = "", by: str = "", host: str | None = None, until: str = ""
    ) -> None:
        """Put a device into quarantine; see `dlapp.gpuid.ledger.Ledger`.

        Args:
            name, cause, detail, by, host, until: as there.
        """
        driver = driver_load() if host in (None, self.host) else ""

        def change(record: HostRecord) -> HostRecord:
            now_ms = clock.now_ms()
            return rules.quarantine(
                record, name, cause=cause, detail=detail, now_ms=now_ms, by=by, until=until, driver=driver
            )

        self._change_known(host or self.host, change)

    def quarantine_all(self, *, cause: str, detail: str = "") -> None:
        """See `dlapp.gpuid.ledger.Ledger`."""
        self._change_known(
            self.host,
            lambda record: rules.quarantine_all(record, cause=cause, detail=detail, now_ms=clock.now_ms()),
        )

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> bool:
        found: list[bool] = []

        def change(record: HostRecord) -> HostRecord:
            found[:] = [record.device(name).quarantine is not None]
            return rules.heal(record, name, forgive=forgive, now_ms=clock.now_ms())

        self._change_known(host or self.host, change)
        return found[0]

    def forget(self, host: str, *, by: str) -> None:
        """Mark a host as removed. Its record stays. Raises NotFound."""
        self._change_known(host, lambda record: rules.forget(record, by=by, now_ms=clock.now_ms()))

    def _change_known(self, host: str, change: Change) -> None:
        rules.check_host(host)

        def known(record: HostRecord) -> HostRecord:
            if not record.devices and not record.seen_ms:
                raise NotFound(f"{host}: the GPU ledger knows no such host")
            return change(record)

        self._change(host, known, self._clock() + RELEASE_WAIT_S)

    def force_release(self, name: str, *, token: str, by: str, host: str | None = None) -> None:
        """See `dlapp.gpuid.ledger.ClusterLedger`.

        Args:
            name, token, by, host: as there.
        """

        def change(record: HostRecord) -> HostRecord:
            if record.lease_on(name).token != token:
                raise LedgerError(f"{record.host}: another container holds {name} by now")
            return rules.force_release(record, name, by=by, now_ms=clock.now_ms())

        self._change_known(host or self.host, change)

    def update_inventory(self) -> HostRecord:
        """Write the current inventory and health of this host's GPUs."""
        devices = self._discover()
        return self._change(
            self.host, lambda record: self._with_inventory(record, devices), self._clock() + RELEASE_WAIT_S
        )

    def close(self) -> None:
        """Close the connection until a later call. Leases stay; deferred releases are left to evidence."""
        self._later.close()
        self._ensemble.close()
        self._turns.close()

    # ---- one record ----

    def _with_inventory(self, record: HostRecord, devices: tuple[Device, ...]) -> HostRecord:
        now = rules.with_inventory(
            record,
            devices,
            boot_id=self._probes.boot_id,
            now_ms=clock.now_ms(),
            machine=self._machine_id,
            full_name=self.settings.full_name,
        )
        return self._inspect(now)

    def _change(self, host: str, change: Change, deadline: float) -> HostRecord:
        """Change a host's record, and retry while other writers interfere.

        If our last write was still the newest version the last time, it is assumed to be the newest again, which saves
        the read; if it is not, the write fails. No request is refused and no change omitted on the basis of such a
        cached record, or of a plain read, as a server of the ensemble may lag: the newest version is read for that.

        Raises:
            Unreachable: no answer in time.
            TimedOut: other writers always came first.
            Denied: the ledger does not accept the credentials.
        """
        tries = 0
        while True:
            with self._turns.acquire() if host == self.host else contextlib.nullcontext(HostWriteLockHold()) as turn:
                changed = self._try_to_change(host, change, turn, deadline)
            if changed is not None:
                return changed
            tries += 1
            if self._clock() >= deadline:
                raise TimedOut(f"{host}: its record in the GPU ledger changed {tries} times while we tried")
            # Long pauses help all writers: one that is not interrupted needs one write per change and no read.
            self._sleep(random.uniform(0, _CONFLICT_S * min(tries, 8)))

    def _try_to_change(self, host: str, change: Change, turn: HostWriteLockHold, deadline: float) -> HostRecord | None:
        """Write a change and return the new record; None: another process has written it meanwhile."""
        with self._lock:
            kept = self._known.pop(host, None)
        if kept and turn.is_stale(kept[1]):
            kept = None
        record, version = kept or self._read(host, deadline)
        is_newest = False
        while True:
            new, refusal = record, None
            try:
                new = change(record)
            except Exception as error:
                refusal = error
            if new is record:
                if not is_newest:
                    before, is_newest = version, True
                    found, version = self._read(host, deadline, newest=True)
                    if version != before:
                        record = found
                        continue
                if refusal is not None:
                    raise refusal
                return record
            try:
                written = self._write(host, to_bytes(new), version, deadline)
            except VersionConflict:
                return None
            except OutcomeUnknown:
                record, version = self._read(host, deadline, newest=True)
                is_newest = True
                continue
            turn.record_version(written)
            with self._lock:
                self._known[host] = (new, written)
            if (now_short := is_short(new)) != (version >= 0 and is_short(record)):
                self._short.put(host) if now_short else self._short.remove(host)
            return new

    def _read(self, host: str, deadline: float, *, newest: bool = False) -> tuple[HostRecord, int]:
        """Return the record and its version; -1: there is none yet."""
        found = self._ensemble.read(f"{self._hosts_path}/{host}", deadline, newest=newest)
        if found is None:
            return self._read_former(host, deadline, newest=newest), -1
        return from_bytes(found[0], host), found[1]

    def _read_former(self, host: str, deadline: float, *, newest: bool) -> HostRecord:
        """Return the record of a host from the location of earlier versions, or an empty one."""
        if not self._former_path:
            return HostRecord(host)
        found = self._ensemble.read(f"{self._former_path}/{host}", deadline, newest=newest)
        record = HostRecord(host) if found is None else from_bytes(found[0], host)
        # All clusters shared it.
        return HostRecord(host) if host == self.host and self._is_of_other_machine(record) else record

    def _is_of_other_machine(self, record: HostRecord) -> bool:
        return rules.is_of_other_machine(
            record, boot_id=self._probes.boot_id, machine=self._machine_id, full_name=self.settings.full_name
        )

    def _write(self, host: str, data: bytes, version: int, deadline: float) -> int:
        """Write if the version is still ``version``; return the new version. Raises VersionConflict, OutcomeUnknown."""
        path = f"{self._hosts_path}/{host}"
        if version < 0:
            return self._ensemble.make(path, data, deadline)
        return self._ensemble.write(path, data, version, deadline)


class _DeviceHold:
    """GPUs of one acquire, locked on the machine."""

    def __init__(
        self,
        machine: MachineLedger,
        request: LeaseRequest,
        token: str,
        devices: Sequence[Device],
        sleep: Callable[[float], None],
    ) -> None:
        self.token = token
        self.lock_holders: dict[str, Holder] = {}
        self._machine, self._request, self._sleep = machine, request, sleep
        self._by_uuid = {one.uuid: one for one in devices}
        self.held: HeldDevices | None = None

    def devices_of(self, lease: LeaseRecord) -> tuple[Device, ...]:
        return tuple(self._by_uuid[uuid] for uuid in lease.devices)

    def lock_devices(self, lease: LeaseRecord) -> bool:
        """Lock the GPUs of a lease, and no others; False: another process holds one (see `lock_holders`)."""
        devices = self.devices_of(lease)
        if self.held is not None and self.held.devices == devices:
            return True
        self.release()
        for _ in range(_TRIES):
            found = self._machine.hold(devices, self._request, token=self.token)
            if not isinstance(found, dict):
                self.held = found
                return True
            if found:
                break
            self._sleep(random.uniform(0.001, 0.005))  # another process held one for a moment
        else:
            found = {
                one.uuid: Holder(one.uuid, one.index, "", doubt="it is being taken", mig=one.mig) for one in devices
            }
        self.lock_holders |= found
        return False

    def forget_lock_holders(self) -> None:
        """Forget failed locks: their holders may have released them."""
        if any(one.doubt for one in self.lock_holders.values()):
            self._machine.reclaim()
        self.lock_holders.clear()

    def in_use(self) -> str:
        """Return the holders of the GPUs that could not be locked."""
        return f"its GPUs are in use: {', '.join(map(str, self.lock_holders.values()))}"

    def evidence(self, request: LeaseRequest) -> dict[str, Any]:
        assert self.held is not None
        return {**request.evidence, "lock": self.held.evidence}

    def release(self) -> None:
        if self.held is not None:
            self.held.release()
            self.held = None
