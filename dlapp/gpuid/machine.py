"""The machine's GPU ledger: a directory with a file for each card, held by kernel locks (`dlapp.gpuid.records`).

It is one for the machine, whoever asks, so two users with two queues never get one card. What it promises:

- Exclusive. A card is reserved for one application, then leased to one of its containers; both are locks that exactly
  the processes concerned hold, so they end with the last of them, however it ends, and never before.
- All or none. An ask that does not get all its cards lets go of those that it had got.
- First come, first served, machine-wide. Who waits has a ticket: a locked file whose name sorts by the time of the
  submission. While an earlier ticket waits nobody later is served, so an ask for many cards is not starved by asks for
  few. One whose holder is stopped is passed over until it goes on.
- What cannot be known frees nothing.

A card in quarantine says so on a page of its own file, which whoever finds it out may write: on one machine the ledger
is an agreement among its users, as the cards' device files are open to all of them.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlapp.errors import AskTooLarge
from dlapp.gpuid import nvml, records, rules
from dlapp.gpuid.choice import choose
from dlapp.gpuid.devices import Device, Holder
from dlapp.gpuid.evidence import Witnesses
from dlapp.gpuid.finding import ALIVE, GONE, UNKNOWN, Finding
from dlapp.gpuid.holds import Held, Lease, Reservation, Ticket
from dlapp.gpuid.ledger import Inspect, Looked, uninspected
from dlapp.gpuid.records import HEALTH, LEASED, RESERVED, Record
from dlapp.gpuid.rules import Ask, DeviceRecord, HostRecord, LeaseRecord, LedgerError, NotEnough, Quarantine
from dlapp.gpuid.stored import quarantine_from_json, quarantine_to_json

DEVICES_LAST_S = 30.0
"""How long what NVML said is good: initializing it can take a second."""
_RETRY_S = (0.005, 0.03)
_CLEAR_EVERY_S = 0.5
PASSED_OVER_S = 15.0
"""Who waits and has not looked for so long (it is stopped, or hangs) keeps its place and holds up nobody meanwhile."""
_TICKET = "ticket-"
_CARD = re.compile(r"(GPU|MIG)-[A-Za-z0-9_.-]+", re.ASCII)


class MachineLedger:
    """The ledger of this machine.

    Args:
        directory: where it lies; made like /tmp if it is missing.
        discover: what cards there are.
        witnesses: who is heard about a payload.
        inspect: looks at the cards before they are given.
    """

    def __init__(
        self,
        directory: str,
        *,
        discover: Callable[[], tuple[Device, ...]] = nvml.discover,
        witnesses: Witnesses | None = None,
        inspect: Inspect = uninspected,
        choose: rules.Choose = choose,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = directory
        self.host = os.uname().nodename
        self._witnesses, self._inspect, self._choose = witnesses or Witnesses(), inspect, choose
        self._leases: dict[str, Lease] = {}
        self._discover, self._clock, self._sleep = discover, clock, sleep
        self._devices: tuple[Device, ...] | None = None
        self._devices_at = 0.0
        self._boot_id = self._witnesses.boot_id

    # ---- looking ----

    def devices(self) -> tuple[Device, ...]:
        """All devices of this machine, in PCI bus order; as they were at most `DEVICES_LAST_S` ago."""
        if self._devices is None or self._clock() - self._devices_at > DEVICES_LAST_S:
            self._devices, self._devices_at = self._discover(), self._clock()
        return self._devices

    def capacity(self) -> int:
        """How many devices can be leased when all are free."""
        return len(self.devices())

    def holders(self) -> dict[str, Holder]:
        """Who holds what, by uuid; a device that is not named is free. Needs no NVML.

        Raises:
            LedgerError: the directory or a file in it is not what it must be.
        """
        found = {}
        try:
            with self._open_directory(make=False) as directory:
                for name in sorted(os.listdir(directory)):
                    if _CARD.fullmatch(name):
                        with contextlib.suppress(FileNotFoundError), self._card(directory, name) as fd:
                            if (holder := self._holder(fd, name)) is not None:
                                found[holder.uuid] = holder
        except FileNotFoundError:
            return {}
        return found

    # ---- waiting ----

    def ticket(self, application: str, user: str, count: int, *, since_ms: int) -> Ticket:
        """Take a place in the machine's queue: behind all who came before ``since_ms`` [ms since 1970].

        Raises:
            AskTooLarge: this machine has not so many devices: it would hold up everybody for ever.
        """
        self._refuse_too_many(count)
        safe = re.sub(r"[^A-Za-z0-9_-]", "_", application)[:80]
        name = f"{_TICKET}{since_ms:020d}-{safe}-{os.getpid()}-{random.getrandbits(32):08x}"
        with self._open_directory() as directory:
            # Locked before it has its name, so a ticket without a lock is one whose holder is gone.
            flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
            fd = os.open(f".{name}", flags, 0o644, dir_fd=directory)
            try:
                os.fchmod(fd, 0o644)
                records.try_lock(fd, 0)
                record = {"application": application, "user": user, "count": count, "since_ms": since_ms}
                ticket = Ticket(self.directory, name, fd, record, self._clock)
                os.rename(f".{name}", name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.close(fd)
                raise
        return ticket

    def _earlier(self, directory: int, name: str) -> Record | None:
        """The first that waits before ``name`` and is at it; None: nobody does."""
        for other in sorted(one for one in os.listdir(directory) if one.startswith(_TICKET) and one < name):
            with contextlib.suppress(FileNotFoundError), self._card(directory, other) as fd:
                if records.is_locked(fd, 0):
                    record = records.read_record(fd, RESERVED) or {}
                    looked_s = record.get("looked_s")
                    # The clock of all processes since the start of the machine, which nobody sets.
                    if isinstance(looked_s, float) and self._clock() - looked_s > PASSED_OVER_S:
                        continue
                    return record
                with contextlib.suppress(OSError):
                    os.unlink(other, dir_fd=directory)
        return None

    # ---- taking ----

    def acquire(self, ask: Ask, *, timeout_s: float = 0.0) -> Lease:
        """Reserve and lease in one; see `dlapp.gpuid.ledger.Ledger`. Who waits has a place in the machine's queue."""
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

    def _lease_of(self, ask: Ask, reservation: Reservation) -> Lease:
        record: Record = {"application": ask.application, "container": ask.container, "user": ask.user}
        if ask.evidence:
            record["evidence"] = dict(ask.evidence)
        with self._open_directory() as directory:
            fds = self._take(directory, reservation.devices, LEASED, record, lambda fd: not self._doubt(fd))
        if fds is None:
            raise LedgerError(f"{self.host}: a card that is reserved for {ask.application} was leased by another")
        return Lease(reservation.devices, fds, LEASED, reservation)

    def reserve(
        self,
        application: str,
        user: str,
        count: int,
        *,
        ticket: Ticket | None = None,
        uuids: Collection[str] = (),
        spread: bool = False,
    ) -> Reservation:
        """Reserve ``count`` devices for an application: all or none, and none while somebody waits who came before.

        Args:
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
        self._look_at_cards()
        if ticket is not None:
            ticket.looks()
        looked = False
        with self._open_directory() as directory:
            while True:
                free, held, out = self._look(directory, devices)
                if (first := self._earlier(directory, ticket.name if ticket else "ticket-~")) is not None:
                    raise NotEnough(self.host, _behind(first), count, len(free), held)
                if uuids:
                    exactly = tuple(one for one in devices if one.uuid in uuids)
                    chosen = exactly if len(exactly) == count and free.issuperset(uuids) else None
                else:
                    chosen = self._choose(devices, free, count, spread)
                if chosen is None:
                    if any(one.doubt for one in held) and not looked:
                        looked = True
                        self.collect()
                        continue
                    raise NotEnough(
                        self.host, _in_the_way(count, free, [*map(str, held), *out]), count, len(free), held
                    )
                record = {"application": application, "user": user}
                if (fds := self._take(directory, chosen, RESERVED, record, self._is_unused)) is not None:
                    return Reservation(chosen, fds, RESERVED)
                # Somebody took one of them after we looked; each such round serves somebody, so this ends.
                self._sleep(random.uniform(*_RETRY_S))

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
    ) -> Lease:
        """Lease ``gcores`` of the devices that are reserved for ``application`` to one of its containers.

        In the place of one that is lost or in quarantine, another is reserved for this lease alone.

        Args:
            timeout_s: how long to wait for devices that a container before this one is giving back.
            evidence: for a payload that does not inherit ``fds``: ``fifo``, the path of the lifeline that it reads.
            spread: as in `reserve`.

        Raises:
            NotEnough: not in time; it says who holds what.
            LedgerError: the ledger is not what it must be.
        """
        if gcores == 0:
            return Lease((), (), LEASED)
        deadline, clear_at = self._clock() + timeout_s, self._clock()
        devices = self.devices()
        extra: Reservation | None = None
        record: Record = {"application": application, "container": container, "user": user}
        if evidence is not None:
            record["evidence"] = dict(evidence)

        def is_ours(fd: int) -> bool:
            reserved = records.read_record(fd, RESERVED) or {}
            return reserved.get("application") == application and records.is_locked(fd, RESERVED)

        with self._open_directory() as directory, contextlib.ExitStack() as kept:
            while True:
                ours, free, held = [], set(), []
                broken = self._vanished(directory, devices, is_ours)
                for device in devices:
                    with self._card(directory, _file_name(device.uuid), create=True) as fd:
                        if not is_ours(fd):
                            continue
                        ours.append(device)
                        if records.is_locked(fd, LEASED) or self._doubt(fd):
                            held.append(self._holder(fd, device.uuid) or Holder(device.uuid, device.index, ""))
                        elif (quarantine := _health(fd)[0]) is not None:
                            broken.append(f"gpu{device.index} {quarantine}")
                        else:
                            free.add(device.uuid)
                if (chosen := self._choose(devices, free, gcores, spread)) is not None:
                    fds = self._take(directory, chosen, LEASED, record, is_ours)
                    if fds is not None:
                        if extra is not None and set(extra.devices).isdisjoint(chosen):
                            extra.close()  # a container before this one gave one back meanwhile
                            extra = None
                        kept.pop_all()
                        return Lease(chosen, fds, LEASED, extra)
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
                    reason = f"asked for {gcores} gcores, {len(ours)} are reserved for {application}"
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

    def hold(self, devices: Sequence[Device], ask: Ask, *, token: str) -> Held | dict[str, Holder]:
        """Lock exactly these cards for a lease of a cluster's ledger, so that nobody of this machine gets them besides.

        Whoever comes by a cluster's ledger does not stand in this machine's queue: its engine has had it wait.

        Args:
            token: the lease's; it stands in the cards' files, for whoever judges that lease by their locks.

        Returns:
            What holds them; or, where one cannot be had, who has which of all cards, by uuid.

        Raises:
            LedgerError: the ledger is not what it must be.
        """
        record: Record = {"application": ask.application, "container": ask.container, "user": ask.user, "token": token}
        if ask.evidence:
            record["evidence"] = dict(ask.evidence)
        with self._open_directory() as directory, contextlib.ExitStack() as taken:
            cards: dict[str, int] = {}
            fds = []
            # All in one order: of two that want the same cards one gets them.
            for device in sorted(devices, key=lambda one: one.uuid):
                name = _file_name(device.uuid)
                fd = records.open_card(directory, name, self.directory, write=True, create=True)
                taken.callback(os.close, fd)
                if not records.try_lock(fd, RESERVED, 2):
                    return self._who_has(directory)
                if not records.is_current(fd, directory, name) or self._doubt(fd):
                    return self._who_has(directory)
                fds.append((device, fd))
                cards[name] = os.fstat(fd).st_ino
            now_ms = time.time_ns() // 1_000_000
            for device, fd in fds:
                whole = {**record, "uuid": device.uuid, "index": device.index, "since_ms": now_ms}
                records.write_record(fd, LEASED, {**whole, "boot_id": self._boot_id})
            taken.pop_all()
        return Held(devices, [fd for _, fd in fds], {"directory": self.directory, "token": token, "cards": cards})

    def _who_has(self, directory: int) -> dict[str, Holder]:
        found = {}
        for device in self.devices():
            with self._card(directory, _file_name(device.uuid), create=True) as fd:
                if (holder := self._holder(fd, device.uuid)) is not None:
                    found[device.uuid] = replace(holder, index=device.index)
        return found

    def _vanished(self, directory: int, devices: Sequence[Device], is_ours: Callable[[int], bool]) -> list[str]:
        """Cards of the application that are not there any more, as text."""
        there, found = {_file_name(one.uuid) for one in devices}, []
        for name in os.listdir(directory):
            if _CARD.fullmatch(name) and name not in there:
                with contextlib.suppress(FileNotFoundError), self._card(directory, name) as fd:
                    if is_ours(fd):
                        found.append(f"{name} is not there any more")
        return found

    def clear_gone(self, application: str) -> None:
        """End the leases of an application whose payloads are seen to be gone.

        For whoever may look at that evidence when others may not: its user, after its end.
        """
        self._collect(application)

    def collect(self) -> list[Looked]:
        """See `dlapp.gpuid.ledger.Ledger`."""
        return self._collect(None)

    def _collect(self, application: str | None) -> list[Looked]:
        found: dict[tuple[str, str], tuple[list[str], Finding]] = {}
        with contextlib.suppress(FileNotFoundError), self._open_directory(make=False) as directory:
            for name in sorted(filter(_CARD.fullmatch, os.listdir(directory))):
                with contextlib.suppress(FileNotFoundError), self._card(directory, name, write=True) as fd:
                    record = records.read_record(fd, LEASED)
                    if record == {} or (application is not None and (record or {}).get("application") != application):
                        continue
                    if records.is_locked(fd, LEASED):
                        finding = Finding(ALIVE, "a process of it still holds it")
                    else:
                        finding = self._judge(record)
                        if finding.state == ALIVE and self._end_what_is_left(record):
                            finding = self._judge(record)
                        if finding.state == GONE and records.try_lock(fd, LEASED):
                            records.write_record(fd, LEASED, {})
                    who = str((record or {}).get("container", "")), str((record or {}).get("application", ""))
                    found.setdefault(who, ([], finding))[0].append(str((record or {}).get("uuid", name)))
        return [
            Looked(container, whose, tuple(uuids), finding.state, finding.why)
            for (container, whose), (uuids, finding) in found.items()
        ]

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
        """See `dlapp.gpuid.ledger.Ledger`."""
        self._refuse_other_host(host)
        now_ms = time.time_ns() // 1_000_000
        old = self.record()
        new = rules.quarantine(old, name, cause=cause, detail=detail, by=by, now_ms=now_ms)
        self._write_health(old, new)

    def heal(self, name: str, *, forgive: bool = True, host: str | None = None) -> None:
        """See `dlapp.gpuid.ledger.Ledger`."""
        self._refuse_other_host(host)
        old = self.record()
        self._write_health(old, rules.heal(old, name, forgive=forgive))

    def record(self) -> HostRecord:
        """See `dlapp.gpuid.ledger.Ledger`. A device that is only reserved is shown as a lease without a container."""
        devices: list[DeviceRecord] = []
        leases: dict[tuple[str, str], LeaseRecord] = {}
        there = {_file_name(one.uuid): one for one in self.devices()}
        names: list[str] = list(there)
        with contextlib.ExitStack() as stack:
            directory: int | None = None
            with contextlib.suppress(FileNotFoundError):
                directory = stack.enter_context(self._open_directory(make=False))
                names += sorted(one for one in os.listdir(directory) if _CARD.fullmatch(one) and one not in there)
            for name in names:
                holder, quarantine, failures = None, None, 0
                evidence: dict[str, Any] = {}
                with contextlib.suppress(FileNotFoundError):
                    if directory is not None:
                        with self._card(directory, name) as fd:
                            holder = self._holder(fd, name)
                            quarantine, failures = _health(fd)
                            evidence = (records.read_record(fd, LEASED) or {}).get("evidence") or {}
                if name not in there and holder is None and quarantine is None:
                    continue
                device = there.get(name)
                if device is None:
                    index = holder.index if holder is not None and holder.index is not None else -1
                    device = Device(holder.uuid if holder else name, index, -1)
                devices.append(DeviceRecord(device, name in there, failures, quarantine))
                if holder is not None:
                    key = holder.application, holder.container
                    old = leases.get(key)
                    leases[key] = LeaseRecord(
                        container=holder.container,
                        application=holder.application,
                        user=holder.user,
                        devices=(*(old.devices if old else ()), device.uuid),
                        since_ms=holder.since_ms,
                        boot_id=self._boot_id,
                        evidence=evidence,
                        doubt=holder.doubt,
                    )
        return HostRecord(
            self.host, tuple(devices), tuple(leases.values()), "", self._boot_id, time.time_ns() // 1_000_000
        )

    def close(self) -> None:
        """See `dlapp.gpuid.ledger.Ledger`: there is nothing to let go of."""

    def _look_at_cards(self) -> None:
        if self._inspect is not uninspected:
            old = self.record()
            if (new := self._inspect(old)) != old:
                # What runs on a card that somebody got in between is no fault of it.
                held = self.holders()
                unheld = [one for one in new.devices if _file_name(one.uuid) not in held and one.uuid not in held]
                self._write_health(old, replace(new, devices=tuple(unheld)))

    def _write_health(self, old: HostRecord, new: HostRecord) -> None:
        before = {one.uuid: one for one in old.devices}
        with self._open_directory() as directory:
            for one in new.devices:
                if one == before.get(one.uuid):
                    continue
                with self._card(directory, _file_name(one.uuid), write=True, create=True) as fd:
                    while not records.try_lock(fd, HEALTH):
                        self._sleep(random.uniform(*_RETRY_S))
                    page: Record = {"failures": one.failures} if one.failures else {}
                    if one.quarantine is not None:
                        page["quarantine"] = quarantine_to_json(one.quarantine)
                    records.write_record(fd, HEALTH, page)

    def _refuse_other_host(self, host: str | None) -> None:
        if host not in (None, self.host):
            raise LedgerError(f"{host}: this ledger is of {self.host} only")

    # ---- one card ----

    def _look(self, directory: int, devices: Sequence[Device]) -> tuple[set[str], list[Holder], list[str]]:
        """What is free, who holds the others, and what is in quarantine, as text."""
        free, held, out = set(), [], []
        for device in devices:
            with self._card(directory, _file_name(device.uuid), create=True) as fd:
                if (holder := self._holder(fd, device.uuid)) is not None:
                    held.append(replace(holder, index=device.index))
                elif (quarantine := _health(fd)[0]) is not None:
                    out.append(f"gpu{device.index} {quarantine}")
                else:
                    free.add(device.uuid)
        return free, held, out

    def _take(
        self,
        directory: int,
        devices: Sequence[Device],
        byte: int,
        record: Record,
        still: Callable[[int], bool],
    ) -> list[int] | None:
        """Lock one byte of all ``devices`` and write who has it; None: one could not be had, and none was kept."""
        with contextlib.ExitStack() as taken:
            fds = []
            for device in devices:
                name = _file_name(device.uuid)
                fd = records.open_card(directory, name, self.directory, write=True, create=True)
                taken.callback(os.close, fd)
                # Looked at once more under the lock: what was seen before it may be history.
                if not (records.try_lock(fd, byte) and records.is_current(fd, directory, name) and still(fd)):
                    return None
                fds.append(fd)
            now_ms = time.time_ns() // 1_000_000
            for device, fd in zip(devices, fds, strict=True):
                whole = {**record, "uuid": device.uuid, "index": device.index, "since_ms": now_ms}
                records.write_record(fd, byte, {**whole, "boot_id": self._boot_id})
            taken.pop_all()
        return fds

    def _is_unused(self, fd: int) -> bool:
        return not records.is_locked(fd, LEASED) and not self._doubt(fd) and _health(fd)[0] is None

    def _doubt(self, fd: int) -> str:
        """Why a lease whose lock is free may still be in use; empty: it is not."""
        finding = self._judge(records.read_record(fd, LEASED))
        if finding.state == GONE:
            return ""
        if finding.state == ALIVE:
            return "its payload is still running"
        return "it is not known if its payload is gone"

    def _judge(self, record: Record | None) -> Finding:
        """Whether the payload of a lease whose lock is free is gone. Without evidence the lock said it all."""
        if record is None:
            return Finding(UNKNOWN, "its record cannot be read")
        if not (evidence := record.get("evidence")):
            return Finding(GONE)
        if not isinstance(evidence, dict):
            return Finding(UNKNOWN, "its evidence cannot be read")
        boot_id, uuid = record.get("boot_id"), record.get("uuid")
        if boot_id != self._boot_id:
            return Finding(GONE)
        return self._witnesses.judge(evidence, str(boot_id), [uuid] if isinstance(uuid, str) else [])

    def _end_what_is_left(self, record: Record | None) -> bool:
        evidence = (record or {}).get("evidence")
        return isinstance(evidence, dict) and self._witnesses.end_what_is_left(evidence, self._boot_id)

    def _holder(self, fd: int, name: str) -> Holder | None:
        reserved, leased = records.is_locked(fd, RESERVED), records.is_locked(fd, LEASED)
        doubt = "" if leased else self._doubt(fd)
        if not (reserved or leased or doubt):
            return None
        of_lease = records.read_record(fd, LEASED) or {}
        record = (of_lease if leased or doubt else records.read_record(fd, RESERVED)) or {}
        index, since_ms = record.get("index"), record.get("since_ms")
        return Holder(
            uuid=str(record.get("uuid", name)),
            index=index if isinstance(index, int) else None,
            application=str(record.get("application", "")),
            container=str(record.get("container", "")),
            user=str(record.get("user", "")),
            since_ms=since_ms if isinstance(since_ms, int) else 0,
            doubt=doubt,
        )

    @contextlib.contextmanager
    def _card(self, directory: int, name: str, *, write: bool = False, create: bool = False) -> Iterator[int]:
        fd = records.open_card(directory, name, self.directory, write=write, create=create)
        try:
            yield fd
        finally:
            os.close(fd)

    # ---- the directory ----

    @contextlib.contextmanager
    def _open_directory(self, *, make: bool = True) -> Iterator[int]:
        """Open it anew each time: one that was removed and made again must not be two ledgers for long."""
        path = self.directory
        try:
            try:
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            except FileNotFoundError:
                if not make:
                    raise
                self._make_directory()
                fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise
        except NotADirectoryError as error:
            # With O_DIRECTORY a symbolic link is answered so, too.
            raise LedgerError(f"gpuid.lock_dir: {path} is a link or no directory; remove it") from error
        except OSError as error:
            raise LedgerError(f"gpuid.lock_dir: {path}: {error.strerror}") from error
        try:
            if not stat.S_ISDIR(os.fstat(fd).st_mode):
                raise LedgerError(f"gpuid.lock_dir: {path} is not a directory")
            yield fd
        finally:
            os.close(fd)

    def _make_directory(self) -> None:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(self.directory, 0o700)
                os.chmod(self.directory, 0o1777)
        except OSError as error:
            raise LedgerError(
                f"gpuid.lock_dir: {self.directory} cannot be made: {error.strerror} "
                f"(as root: install -d -m 1777 {self.directory})"
            ) from error

    def _refuse_too_many(self, count: int) -> None:
        if count < 1:
            raise LedgerError(f"asked for {count} gcores, the least is 1")
        if count > (there := self.capacity()):
            raise AskTooLarge(f"asked for {count} gcores, this machine has {there}")


def _in_the_way(asked: int, free: set[str], others: Sequence[str]) -> str:
    text = f"needs {asked} gcores, {len(free)} free"
    return f"{text}: {', '.join(others)}" if others else text


def _health(fd: int) -> tuple[Quarantine | None, int]:
    """A card's quarantine, and how often it was in one."""
    if (page := records.read_record(fd, HEALTH)) == {}:
        return None, 0
    try:
        if page is None:
            raise ValueError("is no object")
        failures = page.get("failures", 0)
        raw = page.get("quarantine")
        return None if raw is None else quarantine_from_json(raw), failures if isinstance(failures, int) else 0
    except ValueError as error:
        return Quarantine("unreadable", f"its state cannot be read: {error}"), 0


def _behind(first: Record) -> str:
    who = f"{first.get('application', 'an application')} ({first.get('user', 'unknown')})"
    return f"{who} came first and waits for {first.get('count', 'some')} gcores"


def _file_name(uuid: str) -> str:
    # The uuid of a MIG device of older drivers has slashes in it.
    return re.sub(r"[^A-Za-z0-9_.-]", "_", uuid)
