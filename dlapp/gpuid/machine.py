"""The machine's GPU ledger: a directory with a file for each card, held by kernel locks (`dlapp.gpuid.records`).

It is one for the machine, whoever asks, so two users with two queues never get one card. What it promises:

- Exclusive. A card is reserved for one application, then leased to one of its containers; both are locks that exactly
  the processes concerned hold, so they end with the last of them, however it ends, and never before.
- All or none. An ask that does not get all its cards lets go of those that it had got.
- First come, first served, machine-wide. Who waits has a ticket: a locked file whose name sorts by the time of the
  submission. While an earlier ticket waits nobody later is served, so an ask for many cards is not starved by asks for
  few.
- What cannot be known frees nothing.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from dlapp.errors import AskTooLarge, DlappError
from dlapp.gpuid import nvml, records
from dlapp.gpuid.devices import Device, Holder, choose
from dlapp.gpuid.records import LEASED, RESERVED, LedgerError, Record

DEVICES_LAST_S = 30.0
"""How long what NVML said is good: initializing it can take a second."""
_RETRY_S = (0.005, 0.03)
_TICKET = "ticket-"
_CARD = re.compile(r"(GPU|MIG)-[A-Za-z0-9_.-]+", re.ASCII)


class NotEnough(DlappError):
    """Fewer devices are free than were asked for.

    Args:
        reason: without the machine's name, as one that waits shows it.
        holders: who holds what.
    """

    def __init__(self, reason: str, asked: int, free: int, holders: Sequence[Holder] = ()) -> None:
        super().__init__(f"{os.uname().nodename}: {reason}")
        self.reason, self.asked, self.free, self.holders = reason, asked, free, tuple(holders)


class _Held:
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


class Reservation(_Held):
    """Devices that are reserved for an application; ``fds`` (not inherited unless passed on) hold them."""


class Lease(_Held):
    """Devices that a container has; ``fds`` (not inherited unless passed on) hold them."""

    def release(self) -> None:
        """Give the devices back: the payload is gone, its evidence need not be looked at. May be repeated."""
        if self._open:
            for fd in self.fds:
                records.write_record(fd, self._byte, {})
        self.close()


class Ticket:
    """A place in the machine's queue for GPUs, held until it is closed or the process ends."""

    def __init__(self, directory: str, name: str, fd: int) -> None:
        self._path, self.name, self._fd = os.path.join(directory, name), name, fd

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


class MachineLedger:
    """The ledger of this machine.

    Args:
        directory: where it lies; made like /tmp if it is missing.
        discover: what cards there are.
    """

    def __init__(
        self,
        directory: str,
        *,
        discover: Callable[[], tuple[Device, ...]] = nvml.discover,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.directory = directory
        self._discover, self._clock, self._sleep = discover, clock, sleep
        self._devices: tuple[Device, ...] | None = None
        self._devices_at = 0.0
        self._boot_id = _boot_id()

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
                records.write_record(fd, RESERVED, record)
                os.rename(f".{name}", name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                os.close(fd)
                raise
        return Ticket(self.directory, name, fd)

    def _earlier(self, directory: int, name: str) -> Record | None:
        """The first that waits before ``name``; None: nobody does."""
        for other in sorted(one for one in os.listdir(directory) if one.startswith(_TICKET) and one < name):
            with contextlib.suppress(FileNotFoundError), self._card(directory, other) as fd:
                if records.is_locked(fd, 0):
                    return records.read_record(fd, RESERVED) or {}
                with contextlib.suppress(OSError):
                    os.unlink(other, dir_fd=directory)
        return None

    # ---- taking ----

    def reserve(self, application: str, user: str, count: int, *, ticket: Ticket | None = None) -> Reservation:
        """Reserve ``count`` devices for an application: all or none, and none while somebody waits who came before.

        Args:
            ticket: the asker's place; None: behind everybody who waits now.

        Raises:
            NotEnough: not now; it says who holds what, or who is first.
            AskTooLarge: this machine has not so many.
            LedgerError: the ledger is not what it must be.
        """
        self._refuse_too_many(count)
        devices = self.devices()
        with self._open_directory() as directory:
            while True:
                free, held = self._look(directory, devices)
                if (first := self._earlier(directory, ticket.name if ticket else "ticket-~")) is not None:
                    raise NotEnough(_behind(first), count, len(free), held)
                if (chosen := choose(devices, free, count)) is None:
                    raise NotEnough(_in_the_way(count, free, held), count, len(free), held)
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
    ) -> Lease:
        """Lease ``gcores`` of the devices that are reserved for ``application`` to one of its containers.

        Args:
            timeout_s: how long to wait for devices that a container before this one is giving back.
            evidence: for a payload that does not inherit ``fds``: ``fifo``, the path of the lifeline that it reads.

        Raises:
            NotEnough: not in time; it says who holds what.
            LedgerError: the ledger is not what it must be.
        """
        if gcores == 0:
            return Lease((), (), LEASED)
        deadline = self._clock() + timeout_s
        devices = self.devices()
        record: Record = {"application": application, "container": container, "user": user}
        if evidence is not None:
            record["evidence"] = dict(evidence)

        def is_ours(fd: int) -> bool:
            reserved = records.read_record(fd, RESERVED) or {}
            return reserved.get("application") == application and records.is_locked(fd, RESERVED)

        with self._open_directory() as directory:
            while True:
                ours, free, held = [], set(), []
                for device in devices:
                    with self._card(directory, _file_name(device.uuid), create=True) as fd:
                        if not is_ours(fd):
                            continue
                        ours.append(device)
                        if records.is_locked(fd, LEASED) or self._doubt(fd):
                            held.append(self._holder(fd, device.uuid) or Holder(device.uuid, device.index, ""))
                        else:
                            free.add(device.uuid)
                if (chosen := choose(devices, free, gcores)) is not None:
                    fds = self._take(directory, chosen, LEASED, record, is_ours)
                    if fds is not None:
                        return Lease(chosen, fds, LEASED)
                elif gcores > len(ours):
                    reason = f"asked for {gcores} gcores, {len(ours)} are reserved for {application}"
                    raise NotEnough(reason, gcores, len(free), held)
                if self._clock() >= deadline:
                    raise NotEnough(_in_the_way(gcores, free, held), gcores, len(free), held)
                self._sleep(random.uniform(*_RETRY_S))

    def clear_gone(self, application: str) -> None:
        """Forget the evidence of leases of an application whose payloads are seen to be gone.

        For whoever may look at that evidence when others may not: its user, after its end.
        """
        try:
            with self._open_directory(make=False) as directory:
                for name in filter(_CARD.fullmatch, os.listdir(directory)):
                    with contextlib.suppress(FileNotFoundError), self._card(directory, name, write=True) as fd:
                        record = records.read_record(fd, LEASED)
                        if not record or record.get("application") != application:
                            continue
                        if records.evidence_of(record, self._boot_id) == records.GONE and records.try_lock(fd, LEASED):
                            records.write_record(fd, LEASED, {})
        except FileNotFoundError:
            return

    # ---- one card ----

    def _look(self, directory: int, devices: Sequence[Device]) -> tuple[set[str], list[Holder]]:
        free, held = set(), []
        for device in devices:
            with self._card(directory, _file_name(device.uuid), create=True) as fd:
                if (holder := self._holder(fd, device.uuid)) is None:
                    free.add(device.uuid)
                else:
                    held.append(replace(holder, index=device.index))
        return free, held

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
        return not records.is_locked(fd, LEASED) and not self._doubt(fd)

    def _doubt(self, fd: int) -> str:
        """Why a lease whose lock is free may still be in use; empty: it is not."""
        match records.evidence_of(records.read_record(fd, LEASED), self._boot_id):
            case records.GONE:
                return ""
            case records.ALIVE:
                return "its payload is still running"
        return "it is not known if its payload is gone"

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


def _in_the_way(asked: int, free: set[str], held: Sequence[Holder]) -> str:
    text = f"needs {asked} gcores, {len(free)} free"
    return f"{text}: {', '.join(map(str, held))}" if held else text


def _behind(first: Record) -> str:
    who = f"{first.get('application', 'an application')} ({first.get('user', 'unknown')})"
    return f"{who} came first and waits for {first.get('count', 'some')} gcores"


def _file_name(uuid: str) -> str:
    # The uuid of a MIG device of older drivers has slashes in it.
    return re.sub(r"[^A-Za-z0-9_.-]", "_", uuid)


def _boot_id() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
