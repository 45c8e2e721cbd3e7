"""Files of the machine's GPU ledger: one lock file per device, and the records of the holders.

    GPU-…                       byte 0 locked: the device is reserved for an application
                                byte 1 locked: it is leased to a container
    reserved-<random>           who locked byte 0 of which devices, as JSON
    leased-<random>             who locked byte 1
    health-GPU-…-<random>       why that device must not be given out
    ticket-…                    a place in the queue (`dlapp.gpuid.stores.queue_tickets`)

A device's file belongs to all users (0666): its content is never read, only its locks count. A record belongs to its
author (0644), so no other user can change, lock or remove it: the user shown is the file's owner, as reported by the
kernel. Its content is a claim of that user about their own processes, nothing more.

The record of a hold is *live* while its file is write-locked. The lock is taken before the file gets its name, and is
inherited together with the device's lock, so it ends with the last process of the hold. To take a device, a process

1. locks the device's file,
2. writes a live record,
3. only then reads the live records of others; of two processes that do this at the same time, one sees the other.

So a device is not given twice even if its file was replaced or cannot be locked. A file that is not a regular file of
mode 0666, or has a second link, is not used at all: a name alone holds nothing.

Records of ended holds do not count, with one exception: a payload in Docker is not a child process and inherits no
lock, so `dlapp.gpuid.liveness.probes` checks it. Of one user's ended records of a device only the newest counts:
the process that leased the device again knew that the previous hold had ended.

A record contains its own file name, so a hard link under another name is invalid. An ended record is emptied before its
name is removed: with fs.protected_hardlinks=0 any user can keep a link to it and restore its name. Such a link also
changes the file's ctime, so the newest of a user's records is chosen by mtime, which only that user can set.

Locks are open file description locks (`dlapp.system.locks`).
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import stat
import time
from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

from dlapp.gpuid.rules import LedgerError
from dlapp.system import locks
from dlapp.system.files import UntrustedFile, closing_fd, json_object, open_file
from dlapp.system.owners import user_text
from dlapp.system.shared_directory import create_shared_file

RESERVED, LEASED = 0, 1
MAX_BYTES = 32 << 10
"""Maximum size of a record."""
_MAX_DEVICES = 512
HELD = ("reserved", "leased")
"""Kinds of records of a hold; the position is the byte that is locked in the device's file."""
HEALTH = "health"
MAX_NAMES = 2048
"""Limit of the entries read per user: at most three for each device of a machine, and its tickets."""
_WRITTEN_IN_S = 60.0
"""An older file without the final name of a record was left by a process that was killed while writing it."""
_MAX_OPEN = 128
_NAME = re.compile(r"(?:(reserved|leased)|(reserved|leased|health)-([A-Za-z0-9_.-]+))-[0-9a-f]{16}", re.ASCII)
"""Names of records: the kind, the device unless the record is about several, and a random number."""

Record = dict[str, Any]


class Entry(NamedTuple):
    """Record in the directory about one device.

    Args:
        device: name of the device's file.
        uid: the uid of its owner.
        changed_ns: the kernel's change time of its file (ctime) [ns since 1970].
        written_ns: modification time (mtime), which its owner can set to any value [ns since 1970].
        record: the record, with ``uuid`` and ``index`` of the device.
        is_live: whether its file is write-locked by another open file description.
    """

    name: str
    kind: str
    device: str
    uid: int
    changed_ns: int
    written_ns: int
    is_live: bool
    record: Record

    @property
    def is_lease(self) -> bool:
        """Return whether it records a lease."""
        return self.kind == HELD[LEASED]

    @property
    def is_reservation(self) -> bool:
        """Return whether it records a reservation."""
        return self.kind == HELD[RESERVED]

    @property
    def is_health(self) -> bool:
        """Return whether it records the state of the device."""
        return self.kind == HEALTH


class OwnedName(NamedTuple):
    """File by its owner. Many links to one file may be made by other users: of a user's files they come last."""

    negative_links: int
    written_ns: int
    name: str
    uid: int


class OpenFile:
    """File of the directory, open for reading while it is referenced.

    Attributes:
        fd: its descriptor.
        about: stat result of the file when it was opened.
        record: its parsed record; None: not read yet.
        by_device: its record of each device; None: not parsed yet.
        has_other_name: whether it has a second permanent name; None: not checked yet.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.about = fd, os.fstat(fd)
        self.record: Record | None = None
        self.by_device: dict[str, Record] | None = None
        self.has_other_name: bool | None = None

    def is_still(self, now: os.stat_result) -> bool:
        """Return whether the name still refers to this file, unchanged."""
        # Its inode number cannot be reused while the file is open.
        about = self.about
        return (
            now.st_ino == about.st_ino
            and now.st_ctime_ns == about.st_ctime_ns
            and now.st_size == about.st_size
            and now.st_mode == about.st_mode
            and now.st_dev == about.st_dev
        )

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        close(self.fd)


class Directory:
    """The ledger's directory, open.

    Args:
        fd: its descriptor; not closed here.
        path: for messages.
        problems: receives the problems of entries: path -> problem.
        files: files kept open between two listings, by name. Opening and reading is most of the cost of a listing, and
            waiting processes list often; the locks are checked each time.
        owners: owners of files, kept between two listings like ``files``, while the directory has too many.
    """

    def __init__(
        self,
        fd: int,
        path: str,
        problems: dict[str, str],
        files: dict[str, OpenFile] | None = None,
        owners: dict[str, OwnedName] | None = None,
    ) -> None:
        self.fd, self.path, self.problems = fd, path, problems
        self._files = {} if files is None else files
        self._owners = {} if owners is None else owners
        self._listed: set[str] | None = None

    def names(self) -> list[str]:
        """Return its names, sorted; of a user with more than `MAX_NAMES`, only the most recently written ones."""
        names = sorted(os.listdir(self.fd))
        self._listed = set(names)
        if len(names) > MAX_NAMES:
            names = self._without_excess(names)
        for gone in self._files.keys() - self._listed:
            self._files.pop(gone, None)
        return names

    def _without_excess(self, names: list[str]) -> list[str]:
        kept = []
        for uid, those in self._by_owner(names).items():
            if len(those) > MAX_NAMES:
                what = f"{user_text(uid)} has {len(those)} files there; of these the newest {MAX_NAMES} are read"
                self.problems[self.path] = f"{what} (dlapp-gpu gc as root removes the others)"
                those = sorted(those)[-MAX_NAMES:]
            kept += [one.name for one in those]
        return sorted(kept)

    def _by_owner(self, names: list[str]) -> dict[int, list[OwnedName]]:
        """Return files by their owners' uids. The owner of a name is read once: reading 200,000 takes a second."""
        for name in names:
            if name not in self._owners:
                with contextlib.suppress(OSError):
                    about = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
                    self._owners[name] = OwnedName(-about.st_nlink, about.st_mtime_ns, name, about.st_uid)
        found: dict[int, list[OwnedName]] = {}
        for gone in self._owners.keys() - set(names):
            del self._owners[gone]
        for one in self._owners.values():
            found.setdefault(one.uid, []).append(one)
        return found

    def remove_excess(self) -> None:
        """Remove the files of users with more than `MAX_NAMES` that `names` does not return.

        Only root may remove other users' files. What is locked or was just written stays, and what has a second name:
        another user may have linked a record here, to have it removed.
        """
        every = sorted(os.listdir(self.fd))
        excess = set(every) - set(self.names()) if len(every) > MAX_NAMES else ()
        for name in excess:
            with contextlib.suppress(OSError), self._unlocked(name, None, None) as fd:
                if os.fstat(fd).st_nlink == 1:
                    self.remove(name)

    def open_to_read(self, name: str, max_bytes: int | None = MAX_BYTES) -> OpenFile:
        """Return a regular file of the directory, opened by `files.open_file` or open since an earlier listing.

        Args:
            max_bytes: size limit [bytes]; None: none.

        Raises:
            FileNotFoundError: it does not exist.
            OSError: it cannot be opened, or is rejected (`UntrustedFile`).
        """
        known = self._files.get(name)
        if known is not None and known.is_still(os.stat(name, dir_fd=self.fd, follow_symlinks=False)):
            return known
        self._files.pop(name, None)
        found = OpenFile(open_file(name, dir_fd=self.fd, path=name, max_bytes=max_bytes))
        if len(self._files) < _MAX_OPEN:
            self._files[name] = found
        return found

    def read_record(self, file: OpenFile, name: str) -> Record | None:
        """Return the record in a file; None: its hold has just ended.

        Raises:
            UntrustedFile: it is not a record, or has another file's name.
        """
        if file.record is None:
            if not (text := os.pread(file.fd, MAX_BYTES, 0)):
                return None
            record = json_object(text, path=name)
            if record.get("name") != name.removeprefix("."):
                raise UntrustedFile(name, "is the record of another name")
            file.record = record
        return file.record

    def report(self, name: str, error: OSError) -> None:
        """Record a problem of an entry."""
        what = error.problem if isinstance(error, UntrustedFile) else error.strerror or str(error)
        self.problems[os.path.join(self.path, name)] = what

    # ---- a device's file ----

    def open_device(self, name: str) -> int | None:
        """Open a device's file for locking; create a missing one. None: it is unusable, which was reported."""
        try:
            try:
                file = self._open_to_lock(name)
            except FileNotFoundError:
                create_shared_file(name, self.fd)
                file = self._open_to_lock(name)
            # The same file, under whatever name.
            return os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.report(name, error)
            return None

    def _open_to_lock(self, name: str) -> OpenFile:
        file = self.open_to_read(name, None)
        # A file that not everyone may lock is another file, linked here: its locks have another meaning.
        if (mode := stat.S_IMODE(file.about.st_mode)) != 0o666:
            raise UntrustedFile(name, f"has mode {mode:o}, not 666")
        # Any user can link one file as those of two devices: locking one would lock the other.
        if file.about.st_nlink > 1 and self._has_other_name(file):
            raise UntrustedFile(name, "has another name, whose locks would be its own")
        return file

    def _has_other_name(self, file: OpenFile) -> bool:
        """Return whether a device's file has a second name under which it may be locked.

        A dot file does not count: it is never locked, and `create_shared_file` leaves one if its process is killed.
        """
        if file.has_other_name is None:
            hidden = 0
            for other in os.listdir(self.fd):
                if other.startswith("."):
                    with contextlib.suppress(OSError):
                        hidden += os.path.samestat(os.stat(other, dir_fd=self.fd, follow_symlinks=False), file.about)
            # Checked after the listing: a file that has since been removed does not count.
            file.has_other_name = os.fstat(file.fd).st_nlink - hidden > 1
        return file.has_other_name

    def is_current(self, fd: int, name: str) -> bool:
        """Return whether an open file still has that name."""
        try:
            now = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(fd))

    def inode(self, name: str) -> int | None:
        """Return the inode of an entry; None: it does not exist."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def locked(self, name: str) -> tuple[bool, bool]:
        """Return whether byte 0 and byte 1 of a device's file are locked by anyone; no if `names` did not list it."""
        if self._listed is not None and name not in self._listed:
            return False, False
        try:
            file = self._open_to_lock(name)
        except FileNotFoundError:
            return False, False
        except OSError as error:
            self.report(name, error)
            return False, False
        if not locks.is_write_locked(file.fd, RESERVED, 2):
            return False, False
        return locks.is_write_locked(file.fd, RESERVED, 1), locks.is_write_locked(file.fd, LEASED, 1)

    # ---- records ----

    def entries(
        self, devices: Collection[str] | None = None, *, but: Collection[str] = (), names: list[str] | None = None
    ) -> dict[str, list[Entry]]:
        """Return the valid records by device: all live ones, and each owner's newest one of the others.

        Args:
            devices: only of these devices; None: of all.
            but: names of entries to ignore.
            names: the directory's listing; None: list it.
        """
        found: dict[str, list[Entry]] = {}
        for name in self.names() if names is None else names:
            match = _NAME.fullmatch(name)
            if match is None or name in but or (devices is not None and match[3] and match[3] not in devices):
                continue
            for entry in self._entries_of(name, match[1] or match[2], match[3]):
                if devices is None or entry.device in devices:
                    found.setdefault(entry.device, []).append(entry)
        return {device: those if len(those) == 1 else _that_count(those) for device, those in found.items()}

    def _entries_of(self, name: str, kind: str, device: str | None) -> list[Entry]:
        try:
            file = self.open_to_read(name)
            is_live = locks.is_write_locked(file.fd)
            if (by_device := file.by_device) is None:
                if (record := self.read_record(file, name)) is None:
                    return []
                file.by_device = by_device = {device: record} if device else _by_device(record, name)
        except FileNotFoundError:
            return []
        except OSError as error:
            self.report(name, error)
            return []
        about = file.about
        uid, changed_ns, written_ns = about.st_uid, about.st_ctime_ns, about.st_mtime_ns
        return [
            Entry(name, kind, one, uid, changed_ns, written_ns, is_live, record) for one, record in by_device.items()
        ]

    def publish(self, kind: str, record: Record, device: str = "") -> tuple[str, int]:
        """Write a record of this process, live until all copies of the descriptor are closed.

        Args:
            kind: one of `HELD`, or `HEALTH`.
            record: for a hold with ``devices``, uuid -> index.
            device: device of a health record; empty: it is a hold.

        Returns:
            The entry's name and its descriptor.

        Raises:
            LedgerError: it cannot be written, or is too long.
        """
        name = f"{kind}-{device}{device and '-'}{os.urandom(8).hex()}"
        text = json.dumps({**record, "name": name}).encode()
        if len(text) > MAX_BYTES:
            raise LedgerError(f"a record of {len(text)} bytes in the GPU ledger: {MAX_BYTES} are the most")
        return name, self.write(name, text)

    def write(self, name: str, text: bytes, lock: Callable[[int], object] = locks.try_lock) -> int:
        """Create an entry of this user that appears complete and locked; return its descriptor. Raises LedgerError."""
        try:
            fd = os.open(f".{name}", os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=self.fd)
            try:
                os.fchmod(fd, 0o644)
                lock(fd)
                os.pwrite(fd, text, 0)
                os.rename(f".{name}", name, src_dir_fd=self.fd, dst_dir_fd=self.fd)
            except BaseException:
                os.close(fd)
                with contextlib.suppress(OSError):
                    os.unlink(f".{name}", dir_fd=self.fd)
                raise
        except OSError as error:
            raise LedgerError(f"{self.path}: the GPU ledger cannot be written: {error.strerror}") from error
        return fd

    @contextlib.contextmanager
    def own_unlocked(self, name: str, max_bytes: int | None) -> Iterator[None]:
        """Run the block if an old file is this user's, unlocked and of the expected size or less; else raise
        OSError."""
        with self._unlocked(name, [os.geteuid()], max_bytes):
            yield

    @contextlib.contextmanager
    def _unlocked(self, name: str, owners: Collection[int] | None, max_bytes: int | None) -> Iterator[int]:
        with closing_fd(open_file(name, dir_fd=self.fd, path=name, owners=owners, max_bytes=max_bytes)) as fd:
            if locks.is_write_locked(fd) or time.time() - os.fstat(fd).st_ctime < _WRITTEN_IN_S:
                raise UntrustedFile(name, "is in use")
            yield fd

    def remove(self, name: str) -> None:
        """Empty a record of this user (as root: of any user) and remove its name. No error if it does not exist."""
        try:
            with contextlib.suppress(UntrustedFile):  # not a record: remove its name only
                file = self.open_to_read(name)
                if self.read_record(file, name):
                    os.truncate(f"/proc/self/fd/{file.fd}", 0)
            os.unlink(name, dir_fd=self.fd)
        except FileNotFoundError:
            pass
        except OSError as error:
            self.report(name, error)


@functools.lru_cache(maxsize=1024)
def file_name(uuid: str) -> str:
    """Return the file name of a device."""
    # With older drivers the uuid of a MIG device contains slashes.
    return re.sub(r"[^A-Za-z0-9_.-]", "_", uuid)


def parts(one: Entry) -> list[Entry]:
    """Return the entries of the same record for all its devices."""
    if not isinstance(one.record.get("devices"), dict):
        return [one]
    return [one._replace(device=device, record=record) for device, record in _by_device(one.record, one.name).items()]


def withdraw(directory: str, name: str, fd: int) -> None:
    """Remove a record of this process; the caller closes its descriptor."""
    # Emptied first: a hard link to it must not remain a valid record.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, name))


def text_of(record: Record, name: str) -> str:
    """Return a text field of a record for display, at most 200 characters; empty if it is not a text."""
    value = record.get(name)
    return value[:200] if isinstance(value, str) else ""


def _by_device(record: Record, name: str) -> dict[str, Record]:
    devices = record.get("devices")
    if not isinstance(devices, dict) or not 0 < len(devices) <= _MAX_DEVICES:
        raise UntrustedFile(name, "names no devices, or too many")
    return {file_name(uuid): {**record, "uuid": uuid, "index": index} for uuid, index in devices.items()}


def _that_count(entries: list[Entry]) -> list[Entry]:
    newest: dict[tuple[int, str], Entry] = {}
    for one in entries:
        if not one.is_live:
            key = one.uid, one.kind
            if key not in newest or one.written_ns > newest[key].written_ns:
                newest[key] = one
    return sorted(
        (one for one in entries if one.is_live or newest[one.uid, one.kind] is one),
        key=lambda one: (one.changed_ns, one.name),
    )
