"""The machine's GPU ledger: a directory of all users with a file for each device, held by kernel locks
(`dlapp.gpuid.stores.device_files`).

It is one for the machine, whoever asks, so two users with two queues never get one device. What it promises:

- Exclusive. A device is reserved for one application, then leased to one of its containers; both are locks that exactly
  the processes concerned hold, so they end with the last of them, however it ends, and never before.
- All or none. An ask that does not get all its devices lets go of those that it had got.
- First come, first served, machine-wide. Who waits has a ticket, a locked file. While an earlier ticket waits nobody
  later is served, so an ask for many devices is not starved by asks for few. One whose holder is stopped is passed over
  until it goes on. Among users "earlier" is what the kernel says of the tickets.
- What cannot be known of a user's own payloads frees nothing for that user.
- What others wrote costs nobody anything by itself. A name, a link, a FIFO or a file that is no record holds and frees
  no device; `problems` names it.

Not promised: a process of another user that lives can lock devices and stand in the queue as long as it likes; it is
shown under its user's name, or as an unknown process. And of another user's record whose locks are free, only what can
be verified here keeps the device: its task, a reader of its lifeline, its containers at this process's own dockerd, or
what computes on the device. What cannot be verified is reported, with who can remove the record, and keeps the device
from its own user alone.

A device in quarantine has a record that says so. It binds its author, and everybody if the author is root; others look
at the device themselves before they take it.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from dlapp.errors import AskTooLarge, Denied
from dlapp.gpuid import rules
from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.health import nvml
from dlapp.gpuid.ledger import Inspect, LeaseStatus, uninspected
from dlapp.gpuid.liveness.probes import LivenessProbes
from dlapp.gpuid.liveness.result import ALIVE, GONE, UNKNOWN, Liveness
from dlapp.gpuid.record_json import quarantine_from_json, quarantine_to_json
from dlapp.gpuid.rules import DeviceRecord, HostRecord, LeaseRecord, LeaseRequest, LedgerError, NotEnough, Quarantine
from dlapp.gpuid.selection import ChoiceCache, choose
from dlapp.gpuid.stores import device_files
from dlapp.gpuid.stores.device_files import (
    HEALTH,
    HELD,
    LEASED,
    RESERVED,
    Directory,
    Entry,
    OpenFile,
    Record,
    file_name,
    parts,
    text_of,
)
from dlapp.gpuid.stores.locked_devices import (
    TICKET,
    HeldDevices,
    MachineLease,
    PublishedHolds,
    QueueTicket,
    Reservation,
    Waiting,
    waiting,
)
from dlapp.system import locks as system_locks
from dlapp.system.files import UntrustedFile
from dlapp.system.owners import user_text
from dlapp.system.shared_directory import open_shared_directory
from dlapp.system.text import counted

DEVICES_LAST_S = 30.0
"""How long what NVML said is good: initializing it can take a second."""
_RETRY_S = (0.005, 0.03)
_CLEAR_EVERY_S = 0.5
PASSED_OVER_S = 15.0
"""Who waits and has not looked for so long (it is stopped, or hangs) keeps its place and holds up nobody meanwhile."""
RECLAIM_S = 5.0
"""What hearing the witnesses of all leases of the machine may take; of those left over nothing is known."""
REMOVE_S = 60.0
"""The same where containers are removed meanwhile."""
_ONE_USER = 0.4
"""The part of these that the records of one user may take, so that they do not use up that of others."""
_MOST_ROUNDS = 100
_DEVICE = re.compile(r"(GPU|MIG)-[A-Za-z0-9_.-]+", re.ASCII)
_UNKNOWN_PROCESS = "locked by an unknown process"

Entries = Mapping[str, Sequence[Entry]]


class _Taken(NamedTuple):
    """Devices that are locked, and the records of that."""

    lock_by_name: dict[str, int]
    published: tuple[PublishedHolds, ...]


class MachineLedger:
    """The ledger of this machine.

    Args:
        directory: where it lies; `dlapp.system.shared_directory` says whom it serves, and makes it.
        docker_host: this process's own dockerd, ``unix:///var/run/docker.sock``, where ``witnesses`` are not given;
            no other one is asked, whatever a record says.
        discover: what GPUs there are.
        witnesses: who is heard about a payload.
        inspect: looks at the GPUs before they are given.
        application: whose reservation `acquire` takes from; empty: it reserves what it leases.
    """

    def __init__(
        self,
        directory: str,
        *,
        docker_host: str = "",
        discover: Callable[[], tuple[Device, ...]] = nvml.discover,
        witnesses: LivenessProbes | None = None,
        inspect: Inspect = uninspected,
        application: str = "",
        choose: rules.Choose = choose,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = directory
        self.host = os.uname().nodename
        self.problems: dict[str, str] = {}
        """Problems and remarks by path of a directory entry."""
        self._witnesses = witnesses or LivenessProbes(docker_host=docker_host)
        self._inspect, self._choose, self._application = inspect, ChoiceCache(choose), application
        self._leases: dict[str, MachineLease] = {}
        self._discover, self._clock, self._sleep = discover, clock, sleep
        self._devices: tuple[Device, ...] | None = None
        self._devices_at = 0.0
        self._boot_id = self._witnesses.boot_id
        self._until = 0.0
        self._patience_s = 0.0
        self._left_s: dict[int, float] = {}
        self._gone: set[tuple[str, str, int]] = set()
        self._files: dict[str, OpenFile] = {}

    # ---- looking ----

    def devices(self) -> tuple[Device, ...]:
        """Return all devices of this machine, in PCI bus order; as they were at most `DEVICES_LAST_S` ago."""
        if self._devices is None or self._clock() - self._devices_at > DEVICES_LAST_S:
            self._devices, self._devices_at = self._discover(), self._clock()
        return self._devices

    def capacity(self) -> int:
        """Return the number of devices that can be leased when all are free."""
        return len(self.devices())

    def holders(self) -> dict[str, Holder]:
        """Return the holders by uuid; a device that is not named is free. Needs no NVML.

        Raises:
            LedgerError: the directory or a file in it is not what it must be.
        """
        found = {}
        try:
            with self._open_directory(make=False) as directory:
                names = directory.names()
                entries = self._entries(directory, names=names)
                for name in sorted({*entries, *filter(_DEVICE.fullmatch, names)}):
                    if (holder := self._holder(directory, name, entries.get(name, ()))) is not None:
                        found[holder.uuid] = holder
        except FileNotFoundError:
            return {}
        return found

    # ---- waiting ----

    def ticket(self, application: str, user: str, count: int, *, since_ms: int) -> QueueTicket:
        """Take a place in the machine's queue, behind the entries of other users that exist.

        Args:
            application: that waits.
            user: its name for messages.
            count: how many devices it needs.
            since_ms: behind this user's own applications from before this time [ms since 1970].

        Raises:
            AskTooLarge: this machine has fewer devices, so the entry would block the queue for ever.
        """
        self._refuse_too_many(count)
        safe = re.sub(r"[^A-Za-z0-9_-]", "_", application)[:80]
        name = f"{TICKET}{since_ms:020d}-{safe}-{os.getpid()}-{random.getrandbits(32):08x}"
        record = {"application": application, "user": user, "count": count, "since_ms": since_ms}
        with self._open_directory() as directory:
            return QueueTicket(directory, name, record, self._clock)

    def _earlier(self, directory: Directory, name: str | None, names: list[str]) -> Waiting | None:
        """Return the first live entry of the queue before ``name`` (None: of all); None if there is none.

        Args:
            names: what is in the directory, listed since ``name`` came: whoever came before is in it.
        """
        now_s = self._clock()
        for one in waiting(directory, now_s, names):
            if one.name == name:
                return None
            if one.looked_s is not None and now_s - one.looked_s <= PASSED_OVER_S:
                return one
        return None

    # ---- taking ----

    def acquire(self, ask: LeaseRequest, *, timeout_s: float = 0.0) -> MachineLease:
        """Lease from the application's reservation, or reserve and lease in one; see `dlapp.gpuid.ledger.Ledger`.

        Without a reservation, an asker who waits has a place in the machine's queue.
        """
        if self._application:
            return self.lease(
                application=self._application,
                container=ask.container,
                user=ask.user,
                gcores=ask.gcores,
                timeout_s=timeout_s,
                evidence=ask.evidence or None,
                spread=ask.spread,
            )
        if (again := self._leases.get(ask.container)) is not None and again.is_open:
            if len(again.devices) != ask.gcores:
                raise LedgerError(f"{self.host}: {ask.container} holds {len(again.devices)} gcores already")
            return again
        deadline = self._clock() + timeout_s
        rules.check_amount(self.host, ask.gcores, self.capacity())
        if ask.uuids:
            known = self.record()
            for name in ask.uuids:
                known.device(name)
        with contextlib.ExitStack() as waiting:
            now_ms = time.time_ns() // 1_000_000
            place = (
                waiting.enter_context(self.ticket(ask.application, ask.user, ask.gcores, since_ms=now_ms))
                if timeout_s > 0
                else None
            )
            while True:
                try:
                    reservation = self.reserve(
                        ask.application, ask.user, ask.gcores, ticket=place, uuids=ask.uuids, spread=ask.spread
                    )
                    break
                except NotEnough as error:
                    if self._clock() < deadline:
                        self._sleep(random.uniform(*_RETRY_S))
                        continue
                    if error.free >= ask.gcores and not ask.uuids:
                        raise  # enough are free; somebody came first
                    reason = rules.in_the_way(self.record(), ask.gcores, time.time_ns() // 1_000_000)
                    raise NotEnough(self.host, reason, ask.gcores, error.free, error.holders) from error
        try:
            lease = self._lease_of(ask, reservation)
        except BaseException:
            reservation.close()
            raise
        self._leases[ask.container] = lease
        return lease

    def _lease_of(self, ask: LeaseRequest, reservation: Reservation) -> MachineLease:
        record: Record = {"application": ask.application, "container": ask.container}
        if ask.evidence:
            record["evidence"] = dict(ask.evidence)
        with self._open_directory() as directory:
            taken = self._take(directory, reservation.devices, LEASED, record, self._is_free_of_leases)
        if taken is None:
            raise LedgerError(
                f"{self.host}: a GPU that is reserved for {ask.application} was leased by another application"
            )
        return MachineLease(reservation.devices, *taken, self.directory, reservation)

    def reserve(
        self,
        application: str,
        user: str,
        count: int,
        *,
        ticket: QueueTicket | None = None,
        uuids: Collection[str] = (),
        spread: bool = False,
    ) -> Reservation:
        """Reserve ``count`` devices for an application: all or none, and none while somebody waits who came before.

        Args:
            application: the one that they are kept for.
            user: its user, for those who find them held.
            count: how many devices.
            ticket: the asker's place; None: behind everybody who waits now.
            uuids: exactly these; empty: any.
            spread: far from each other and from those in use, not close together.

        Raises:
            NotEnough: not now; it says who holds what, or who is first.
            AskTooLarge: this machine has not so many.
            LedgerError: the ledger is not what it must be.
        """
        self._refuse_too_many(count)
        devices = self.devices()
        self._look_at_devices()
        if ticket is not None:
            ticket.looks()
        looked = False
        with self._open_directory() as directory:
            for _ in range(_MOST_ROUNDS):
                names = directory.names()
                free, held, out = self._look(directory, devices, names)
                if (first := self._earlier(directory, ticket.name if ticket else None, names)) is not None:
                    raise NotEnough(self.host, _behind(first), count, len(free), held)
                if uuids:
                    exactly = tuple(one for one in devices if one.uuid in uuids)
                    chosen = exactly if len(exactly) == count and free.issuperset(uuids) else None
                else:
                    chosen = self._choose(devices, free, count, spread)
                if chosen is None:
                    if any(one.doubt for one in held) and not looked:
                        looked = True
                        self.reclaim()
                        continue
                    raise NotEnough(
                        self.host, _in_the_way(count, free, [*map(str, held), *out]), count, len(free), held
                    )
                record = {"application": application}
                if (taken := self._take(directory, chosen, RESERVED, record, self._is_unused)) is not None:
                    return Reservation(chosen, *taken, self.directory)
                # Another request took one of them after the read. Without malice each such round serves one request.
                self._sleep(random.uniform(*_RETRY_S))
        raise NotEnough(self.host, f"needs {count} gcores, which others are taking", count, len(free), held)

    def lease(
        self,
        *,
        application: str,
        container: str,
        user: str,
        gcores: int,
        timeout_s: float = 0.0,
        evidence: Mapping[str, str] | None = None,
        spread: bool = False,
    ) -> MachineLease:
        """Lease ``gcores`` of the devices that are reserved for ``application`` to one of its containers.

        In the place of one that is lost or in quarantine, another is reserved for this lease alone.

        Args:
            application: the one that has reserved them.
            container: the one that gets them.
            user: the application's, for those who find them held.
            gcores: how many devices.
            timeout_s: how long to wait for devices that a container before this one is giving back.
            evidence: for a payload that does not inherit ``fds``: ``fifo``, the path of the lifeline that it reads.
            spread: as in `reserve`.

        Raises:
            NotEnough: not in time; it says who holds what.
            LedgerError: the ledger is not what it must be.
        """
        if gcores == 0:
            return MachineLease((), {}, (), self.directory)
        deadline, clear_at = self._clock() + timeout_s, self._clock()
        devices = self.devices()
        extra: Reservation | None = None
        record: Record = {"application": application, "container": container}
        if evidence is not None:
            record["evidence"] = dict(evidence)

        def is_ours(_: str, entries: Sequence[Entry], __: int | None = None) -> bool:
            return any(
                one.is_live
                and one.kind == HELD[RESERVED]
                and one.uid == os.geteuid()
                and one.record.get("application") == application
                for one in entries
            )

        with self._open_directory() as directory, contextlib.ExitStack() as kept:
            while True:
                ours, free, held = [], set(), []
                entries = self._entries(directory)
                there = {file_name(one.uuid) for one in devices}
                lost = [name for name in entries if name not in there and is_ours(name, entries[name])]
                broken = [f"{name} is not there any more" for name in lost]
                for device in devices:
                    name = file_name(device.uuid)
                    those = entries.get(name, ())
                    if not is_ours(name, those):
                        continue
                    ours.append(device)
                    holder = self._holder(directory, name, those, device)
                    if holder is not None and (holder.container or holder.doubt):
                        held.append(holder)
                    elif (quarantine := self._health(those)[0]) is not None:
                        broken.append(f"gpu{device.index} {quarantine}")
                    else:
                        free.add(device.uuid)
                if (chosen := self._choose(devices, free, gcores, spread)) is not None:
                    taken = self._take(directory, chosen, LEASED, record, is_ours)
                    if taken is not None:
                        if extra is not None and set(extra.devices).isdisjoint(chosen):
                            extra.close()  # a container before this one gave one back meanwhile
                            extra = None
                        kept.pop_all()
                        return MachineLease(chosen, *taken, self.directory, extra)
                elif broken and extra is None:
                    count = min(len(broken), gcores - len(free))
                    try:
                        extra = kept.enter_context(self.reserve(application, user, count, spread=spread))
                        continue
                    except (NotEnough, AskTooLarge) as error:
                        if self._clock() >= deadline:
                            why = f"{', '.join(broken)}, and in place of it: {getattr(error, 'reason', error)}"
                            raise NotEnough(self.host, why, gcores, len(free), held) from error
                elif gcores > len(ours):
                    reason = f"asked for {counted(gcores, 'gcores')}, {len(ours)} are reserved for {application}"
                    raise NotEnough(self.host, reason, gcores, len(free), held)
                if any(one.doubt for one in held) and self._clock() >= clear_at:
                    # What a task of Docker's left that died is there until somebody removes it.
                    clear_at = self._clock() + _CLEAR_EVERY_S
                    self.clear_gone(application)
                    continue
                if self._clock() >= deadline:
                    reason = _in_the_way(gcores, free, list(map(str, held)))
                    raise NotEnough(self.host, reason, gcores, len(free), held)
                self._sleep(random.uniform(*_RETRY_S))

    def hold(self, devices: Sequence[Device], ask: LeaseRequest, *, token: str) -> HeldDevices | dict[str, Holder]:
        """Lock exactly these GPUs for a lease of a cluster's ledger, so that nobody of this machine gets them besides.

        Whoever comes by a cluster's ledger does not stand in this machine's queue: its engine has had it wait.

        Args:
            token: the lease's; it stands in the GPUs' files, for whoever judges that lease by their locks.

        Returns:
            What holds them; or, where one cannot be had, who has which of all GPUs, by uuid.

        Raises:
            LedgerError: the ledger is not what it must be.
        """
        record: Record = {"application": ask.application, "container": ask.container, "token": token}
        if ask.evidence:
            record["evidence"] = dict(ask.evidence)
        ordered = sorted(
            devices, key=lambda one: one.uuid
        )  # in one order, so of two requests for the same devices one gets them all
        with self._open_directory() as directory:
            taken = self._take(directory, ordered, RESERVED, record, self._is_free_of_leases, both=True)
            if taken is None:
                return self._who_has(directory)
            inodes = {file_name(one.uuid): 0 for one in ordered}
            inodes |= {name: os.fstat(fd).st_ino for name, fd in taken.lock_by_name.items()}
        evidence = {"directory": self.directory, "token": token, "cards": inodes, "records": True}
        return HeldDevices(devices, *taken, self.directory, evidence)

    def _who_has(self, directory: Directory) -> dict[str, Holder]:
        found = {}
        entries = self._entries(directory)
        for device in self.devices():
            name = file_name(device.uuid)
            if (holder := self._holder(directory, name, entries.get(name, ()), device)) is not None:
                found[device.uuid] = holder
        return found

    def clear_gone(self, application: str) -> None:
        """End the leases of an application whose payloads are seen to be gone.

        For whoever may look at that evidence when others may not: its user, after its end.
        """
        self._reclaim(application)

    def reclaim(self) -> list[LeaseStatus]:
        """See `dlapp.gpuid.ledger.Ledger`."""
        return self._reclaim(None)

    def _reclaim(self, application: str | None) -> list[LeaseStatus]:
        found: dict[tuple[str, str, int], tuple[list[str], Liveness]] = {}
        with contextlib.suppress(FileNotFoundError), self._open_directory(make=False) as directory:
            entries = self._entries(directory, patience_s=REMOVE_S)
            self._remove_unnamed(directory)
            for one in (one for name in sorted(entries) for one in entries[name]):
                if application is not None and one.record.get("application") != application:
                    continue
                if one.kind == HELD[RESERVED] and not one.is_live:
                    self._remove(directory, one)
                if one.kind != HELD[LEASED]:
                    continue
                ended = False
                if one.is_live:
                    finding = Liveness(ALIVE, "a process of it still holds it")
                else:
                    finding = self._judge(one)
                    if finding.state == ALIVE and self._end_what_is_left(one):
                        finding, ended = self._judge(one), True
                    if finding.state == GONE and not self._remove(directory, one) and not ended:
                        continue  # another user's; that user removes it
                    if finding.state == UNKNOWN:
                        finding = finding._replace(why=_who_removes(one, finding.why))
                key = text_of(one.record, "container"), text_of(one.record, "application"), one.uid
                found.setdefault(key, ([], finding))[0].append(_uuid_of(one))
        return [
            LeaseStatus(container, whose, tuple(uuids), finding.state, finding.why)
            for (container, whose, _), (uuids, finding) in found.items()
        ]

    def _remove(self, directory: Directory, one: Entry) -> bool:
        """Remove a record that says nothing any more, if that is ours to do."""
        if os.geteuid() not in (0, one.uid) or not self._is_over(one):
            return False
        directory.remove(one.name)
        return True

    def _remove_unnamed(self, directory: Directory) -> None:
        """Remove what this user's killed processes began to write, or had emptied to remove it."""
        for name in directory.names():
            kinds = (*(f"{kind}-" for kind in (*HELD, HEALTH)), TICKET)
            began = name.startswith(".") and name[1:].startswith(kinds)
            if began or name.startswith(kinds):
                with contextlib.suppress(OSError), directory.own_unlocked(name, None if began else 0):
                    directory.remove(name)

    # ---- health ----

    def quarantine(
        self,
        name: str,
        *,
        cause: str,
        detail: str = "",
        by: str = "",
        host: str | None = None,
    ) -> None:
        """Give a device out no more; see `dlapp.gpuid.ledger.Ledger`.

        Args:
            name, cause, detail, by, host: as there.
        """
        self._refuse_other_host(host)
        now_ms = time.time_ns() // 1_000_000
        old = self.record()
        new = rules.quarantine(old, name, cause=cause, detail=detail, by=by, now_ms=now_ms)
        self._write_health(old, new)

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> None:
        """See `dlapp.gpuid.ledger.Ledger`."""
        self._refuse_other_host(host)
        old = self.record()
        device = old.device(name)
        self._refuse_others_quarantine(device.device)
        self._write_health(old, rules.heal(old, name, forgive=forgive))
        if os.geteuid() == 0:
            file = file_name(device.uuid)
            with self._open_directory() as directory:
                for one in self._entries(directory, {file}).get(file, ()):
                    if one.kind == HEALTH and one.record.get("quarantine") is not None:
                        directory.remove(one.name)

    def _refuse_others_quarantine(self, device: Device) -> None:
        """Raise Denied if a device is in quarantine by others alone: its author heals it, or root."""
        me, name = os.geteuid(), file_name(device.uuid)
        with contextlib.suppress(FileNotFoundError), self._open_directory(make=False) as directory:
            authors = {
                one.uid
                for one in self._entries(directory, {name}).get(name, ())
                if one.kind == HEALTH and one.record.get("quarantine") is not None
            }
            if authors and me != 0 and (0 in authors or me not in authors):
                names = ", ".join(user_text(uid) for uid in sorted(authors - {me}))
                raise Denied(f"{self.host}: {device.label} was put into quarantine by {names}; they or root heal it")

    def record(self) -> HostRecord:
        """See `dlapp.gpuid.ledger.Ledger`. A device that is only reserved is shown as a lease without a container."""
        devices: list[DeviceRecord] = []
        leases: dict[tuple[str, str, str], LeaseRecord] = {}
        there = {file_name(one.uuid): one for one in self.devices()}
        with contextlib.ExitStack() as stack:
            directory: Directory | None = None
            entries: Entries = {}
            more: set[str] = set()
            with contextlib.suppress(FileNotFoundError):
                directory = stack.enter_context(self._open_directory(make=False))
                listed = directory.names()
                entries = self._entries(directory, names=listed)
                more = {*entries, *filter(_DEVICE.fullmatch, listed)} - there.keys()
                self._tell_of_others(directory, entries)
            for name in (*there, *sorted(more)):
                holder, quarantine, failures = None, None, 0
                those = entries.get(name, ())
                if directory is not None:
                    holder = self._holder(directory, name, those, there.get(name))
                    quarantine, failures = self._health(those)
                if name not in there and holder is None and quarantine is None:
                    continue
                device = there.get(name)
                if device is None:
                    index = holder.index if holder is not None and holder.index is not None else -1
                    device = Device(holder.uuid if holder else name, index, -1)
                devices.append(DeviceRecord(device, name in there, failures, quarantine))
                if holder is not None:
                    key = holder.application, holder.container, holder.user
                    old = leases.get(key)
                    leases[key] = LeaseRecord(
                        container=holder.container,
                        application=holder.application,
                        user=holder.user,
                        devices=(*(old.devices if old else ()), device.uuid),
                        since_ms=holder.since_ms,
                        boot_id=self._boot_id,
                        evidence=_evidence_of(those, holder),
                        doubt=holder.doubt,
                    )
        return HostRecord(
            self.host, tuple(devices), tuple(leases.values()), "", self._boot_id, time.time_ns() // 1_000_000
        )

    def close(self) -> None:
        """See `dlapp.gpuid.ledger.Ledger`: there is nothing to let go of."""

    def _look_at_devices(self) -> None:
        if self._inspect is not uninspected:
            old = self.record()
            if (new := self._inspect(old)) != old:
                # What runs on a GPU that somebody got in between is no fault of it.
                with self._open_directory() as directory:
                    held = self._who_has(directory)
                self._write_health(old, replace(new, devices=tuple(one for one in new.devices if one.uuid not in held)))

    def _write_health(self, old: HostRecord, new: HostRecord) -> None:
        """Write what changed, as this user's word."""
        before, me = {one.uuid: one for one in old.devices}, os.geteuid()
        with self._open_directory() as directory:
            for one in new.devices:
                if one == before.get(one.uuid):
                    continue
                name = file_name(one.uuid)
                those = [entry for entry in self._entries(directory, {name}).get(name, ()) if entry.kind == HEALTH]
                page: Record = {"failures": one.failures} if one.failures else {}
                if one.quarantine is not None:
                    page["quarantine"] = quarantine_to_json(one.quarantine)
                # What root wrote and this user found well again stays for the others: that is said, too.
                if page or any(entry.uid == 0 != me for entry in those):
                    os.close(directory.publish(HEALTH, page, name)[1])
                for entry in those:
                    if entry.uid == me:
                        directory.remove(entry.name)

    def _health(self, entries: Sequence[Entry]) -> tuple[Quarantine | None, int]:
        """Return the quarantine of a device that binds this user, and how often the device was in one.

        A quarantine that root set by command binds everybody. One that a program of root found binds until this user's
        own inspection, when it is due, disagrees. One that this user wrote binds this user. No other binds anybody.
        """
        said: dict[int, tuple[int, Quarantine | None, int]] = {}
        of_health = [one for one in entries if one.kind == HEALTH]
        if not of_health:
            return None, 0
        for one in of_health:
            if one.uid in (0, os.geteuid()):
                raw, failures = one.record.get("quarantine"), one.record.get("failures", 0)
                try:
                    quarantine = None if raw is None else quarantine_from_json(raw)
                except ValueError as error:
                    self.problems[os.path.join(self.directory, one.name)] = str(error)
                    continue
                said[one.uid] = one.written_ns, quarantine, failures if isinstance(failures, int) else 0
        of_root, mine = said.get(0), said.get(os.geteuid())
        if of_root is not None and mine is not None and of_root is not mine:
            by_operator = of_root[1] is not None and of_root[1].by
            return (of_root if by_operator or of_root[0] > mine[0] else mine)[1:]
        return (of_root or mine or (0, None, 0))[1:]

    def _tell_of_others(self, directory: Directory, entries: Entries) -> None:
        """Note what other users found of devices; it does not bind this one."""
        for one in (one for those in entries.values() for one in those):
            if one.kind == HEALTH and one.uid not in (0, os.geteuid()) and one.record.get("quarantine") is not None:
                with contextlib.suppress(ValueError):
                    quarantine = quarantine_from_json(one.record["quarantine"])
                    what = (
                        f"{user_text(one.uid)} found {one.device} {quarantine}; this binds {user_text(one.uid)} alone"
                    )
                    directory.report(one.name, UntrustedFile(one.name, what[:300]))

    def _refuse_other_host(self, host: str | None) -> None:
        if host not in (None, self.host):
            raise LedgerError(f"{host}: this ledger is of {self.host} only")

    # ---- one device ----

    def _entries(
        self,
        directory: Directory,
        devices: Collection[str] | None = None,
        *,
        but: Collection[str] = (),
        names: list[str] | None = None,
        patience_s: float = RECLAIM_S,
    ) -> Entries:
        """Return the valid records; checking them takes at most ``patience_s`` [s]."""
        self._until, self._patience_s, self._left_s = time.monotonic() + patience_s, _ONE_USER * patience_s, {}
        return directory.entries(devices, but=but, names=names)

    def _look(
        self, directory: Directory, devices: Sequence[Device], names: list[str]
    ) -> tuple[set[str], list[Holder], list[str]]:
        """Return as text which devices are free, who holds the others, and which are in quarantine."""
        free, held, out = set(), [], []
        entries = self._entries(directory, names=names)
        for device in devices:
            name = file_name(device.uuid)
            those = entries.get(name, ())
            if (holder := self._holder(directory, name, those, device)) is not None:
                held.append(holder)
            elif (quarantine := self._health(those)[0]) is not None:
                out.append(f"gpu{device.index} {quarantine}")
            else:
                free.add(device.uuid)
        return free, held, out

    def _take(
        self,
        directory: Directory,
        devices: Sequence[Device],
        byte: int,
        record: Record,
        still: Callable[[str, Sequence[Entry], int | None], bool],
        *,
        both: bool = False,
    ) -> _Taken | None:
        """Lock all ``devices`` and write whose they are; None: one could not be had, and none was kept.

        Args:
            byte: the one to lock, which also says what kind of hold it is.
            record: what to write.
            still: looks once more at a device that is locked: what was seen before may be history.
            both: lock both bytes, and write that they are leased.
        """
        kind = HELD[LEASED] if both else HELD[byte]
        against = (kind,) if byte == LEASED else HELD
        locks: dict[str, int] = {}
        published: PublishedHolds | None = None
        is_taken = False
        try:
            names = [file_name(one.uuid) for one in devices]
            for name in names:
                if (fd := directory.open_device(name, create=True)) is not None:
                    locks[name] = fd
                    if not _lock(directory, name, fd, byte, 2 if both else 1) or not directory.is_current(fd, name):
                        return None
            whole = {**record, "devices": {one.uuid: one.index for one in devices}, "boot_id": self._boot_id}
            published = PublishedHolds(*directory.publish(kind, whole))
            # 1. A and B lock one device; in between a user replaced its file or made it impossible to lock.
            # 2. Each writes its live record before it reads those of others.
            # 3. So at least the later one sees the other's record: one of them gets the device, or neither, never both.
            entries = self._entries(directory, names, but={published.name})
            for name in names:
                those = entries.get(name, ())
                if any(one.is_live and one.kind in against for one in those):
                    return None
                if not still(name, those, locks.get(name)):
                    return None
            for one in (one for name in names for one in entries.get(name, ())):
                if one.uid == os.geteuid() and not one.is_live and one.kind in against and self._is_over(one):
                    directory.remove(one.name)
            is_taken = True
            return _Taken(locks, (published,))
        finally:
            if not is_taken:
                if published is not None:
                    device_files.withdraw(directory.path, *published)
                    os.close(published.fd)
                for fd in locks.values():
                    os.close(fd)

    def _is_unused(self, name: str, entries: Sequence[Entry], lock: int | None) -> bool:
        if lock is not None and system_locks.is_write_locked(lock, LEASED, 1):
            return False
        return self._is_free_of_leases(name, entries, lock) and self._health(entries)[0] is None

    def _is_free_of_leases(self, _: str, entries: Sequence[Entry], __: int | None) -> bool:
        return not any(self._doubt(one) for one in entries)

    def _doubt(self, one: Entry) -> str:
        """Why a lease whose lock is free may still be in use; empty: it is not."""
        if one.kind != HELD[LEASED] or one.is_live or (finding := self._judge(one)).state == GONE:
            return ""
        if finding.state == ALIVE:
            return "its payload is still running"
        if one.uid == os.geteuid():
            return "it is not known if its payload is gone"
        # Anybody can write a record of a payload that nobody here can know of.
        self.problems[os.path.join(self.directory, one.name)] = f"holds no GPU: {_who_removes(one, finding.why)}"
        return ""

    def _is_over(self, one: Entry) -> bool:
        """Return whether a record with a free lock holds none of its devices any more."""
        return one.kind == HELD[RESERVED] or all(self._judge(part).state == GONE for part in parts(one))

    def _judge(self, one: Entry) -> Liveness:
        """Return whether the payload of a lease with a free lock is gone; without evidence the lock decides.

        Of a record of several devices that is judged for each: a process on one of them keeps no other one.
        """
        evidence, boot_id = one.record.get("evidence"), one.record.get("boot_id")
        key = one.name, one.device, one.changed_ns
        if key in self._gone or not isinstance(evidence, dict) or not evidence or boot_id != self._boot_id:
            return Liveness(GONE)
        # Its own lock is known to be free, and no other directory is looked into.
        others = {name: value for name, value in evidence.items() if name != "lock"}
        began_s = time.monotonic()
        until = min(self._until, began_s + self._left_s.get(one.uid, self._patience_s))
        finding = self._witnesses.check(others, str(boot_id), [_uuid_of(one)], owner=one.uid, until=until)
        self._left_s[one.uid] = until - time.monotonic()
        if finding.state == UNKNOWN and one.uid != os.geteuid():
            # Whoever may not ask dockerd still sees, by the driver, what computes.
            computing = self._witnesses.computing([_uuid_of(one)])
            return computing if computing.state == ALIVE else finding
        if finding.state == GONE:
            self._gone.add(key)
        return finding

    def _end_what_is_left(self, one: Entry) -> bool:
        evidence = {name: value for name, value in one.record["evidence"].items() if name != "lock"}
        return self._witnesses.end_what_is_left(evidence, self._boot_id, owner=one.uid, until=self._until)

    def _holder(
        self, directory: Directory, name: str, entries: Sequence[Entry], device: Device | None = None
    ) -> Holder | None:
        """Return the holder of a device, as the kernel's locks and owners show it; None if it is free."""
        locked = directory.locked(name)
        if not entries and locked == (False, False):
            return None
        live = [one for one in entries if one.is_live and one.kind in HELD]
        of_lease = [one for one in live if one.kind == HELD[LEASED]]
        doubt = ""
        if not of_lease and not locked[LEASED]:
            in_doubt = [(one, why) for one in entries if (why := self._doubt(one))]
            of_lease, doubt = [one for one, _ in in_doubt], in_doubt[0][1] if in_doubt else ""
        shown = of_lease or ([] if locked[LEASED] else live)
        if not shown:
            if not any(locked):
                return None
            uuid, index = (device.uuid, device.index) if device is not None else (name, None)
            return Holder(uuid, index, "", doubt=_UNKNOWN_PROCESS)
        first, users = shown[0], sorted({user_text(one.uid) for one in shown})
        index = first.record.get("index") if device is None else device.index
        return Holder(
            uuid=_uuid_of(first) if device is None else device.uuid,
            index=index if isinstance(index, int) else None,
            application=text_of(first.record, "application"),
            container=text_of(first.record, "container"),
            user=", ".join(users),
            since_ms=first.changed_ns // 1_000_000,
            doubt=doubt or ("several users claim it" if len(users) > 1 else ""),
        )

    # ---- the directory ----

    @contextlib.contextmanager
    def _open_directory(self, *, make: bool = True) -> Iterator[Directory]:
        """Open it anew each time: one that was removed and made again must not be two ledgers for long."""
        try:
            fd = open_shared_directory(self.directory, make=make)
        except UntrustedFile as error:
            raise LedgerError(f"gpuid.lock_dir: {error}") from error
        self.problems.clear()
        try:
            yield Directory(fd, self.directory, self.problems, self._files)
        finally:
            os.close(fd)

    def _refuse_too_many(self, count: int) -> None:
        if count < 1:
            raise LedgerError(f"asked for {count} gcores, the least is 1")
        if count > (there := self.capacity()):
            raise AskTooLarge(f"asked for {counted(count, 'gcores')}, this machine has {there}", "resources.gcores")


def _in_the_way(asked: int, free: set[str], others: Sequence[str]) -> str:
    text = f"needs {counted(asked, 'gcores')}, {len(free)} free"
    return f"{text}: {', '.join(others)}" if others else text


def _lock(directory: Directory, name: str, fd: int, byte: int, count: int) -> bool:
    """Lock bytes of a device's file; False: somebody else has them.

    Whoever can read the file can place a read lock in the way. That proves no hold, so it is reported and done without:
    the records keep two from taking the device.
    """
    for _ in range(3):
        if device_files.try_lock(fd, byte, count):
            return True
        if system_locks.is_write_locked(fd, byte, count):
            return False
    directory.report(name, UntrustedFile(name, "is read-locked by an unknown process"))
    return True


def _uuid_of(one: Entry) -> str:
    """Return the uuid in a record if it is that of the device's file; else the file's name."""
    uuid = text_of(one.record, "uuid")
    return uuid if file_name(uuid) == one.device else one.device


def _who_removes(one: Entry, why: str) -> str:
    who = user_text(one.uid) if one.uid == 0 else f"{user_text(one.uid)} or root"
    return f"{why}; if nothing of it runs, {who} removes {one.name}"


def _evidence_of(entries: Sequence[Entry], holder: Holder) -> dict[str, Any]:
    for one in entries:
        evidence = one.record.get("evidence")
        if one.kind == HELD[LEASED] and one.record.get("container") == holder.container and isinstance(evidence, dict):
            return evidence
    return {}


def _behind(first: Waiting) -> str:
    who = f"{text_of(first.record, 'application') or 'an application'} ({user_text(first.uid)})"
    count = first.record.get("count")
    return f"{who} came first and waits for {count if isinstance(count, int) else 'some'} gcores"
