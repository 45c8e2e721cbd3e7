"""Files of the machine's GPU ledger: a file to lock for each device, and the records of who holds which.

    GPU-…                       byte 0 locked: the device is reserved for an application
                                byte 1 locked: it is leased to a container
    reserved-<random>           who locked byte 0 of which devices, as JSON
    leased-<random>             who locked byte 1
    health-GPU-…-<random>       why that device must not be given out
    ticket-…                    a place in the queue (`dlapp.gpuid.stores.queue_tickets`)

A device's file is everybody's (0666): nothing in it is read, only its locks count. A record belongs to whoever wrote it
(0644), so nobody else can change, lock or remove it: the user shown is the file's owner, as the kernel has it. What
stands in it is that user's word about themselves and nothing more.

A record of a hold is *live* while its file is write-locked. Its lock is taken before it has its name, and is inherited
together with the lock of its device, so it ends with the last process of the hold. Who takes a device locks its file,
writes a live record, and only then looks for live records of others; one of two that do so at the same time sees the
other. So a device is not given twice even where its file was exchanged or cannot be locked. A file that is no regular
file of mode 0666, or has a second name, is not used at all: a name holds nothing.

Records of ended holds are nothing, but for one case: a payload in Docker is no child of ours and inherits no lock, so
`dlapp.gpuid.liveness.probes` is heard. Of one user's ended records of a device only the newest counts: whoever took a
device again knew that the hold before it was over.

A record names its own file, so a hard link of it under another name is none. One that is over is emptied before its
name goes: where fs.protected_hardlinks is 0 anybody can keep a link of it, and give it its name again. Such a link also
changes a file's ctime, so which of a user's records is the newest is told by mtime, which that user alone can set.

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
from dlapp.system.files import UntrustedFile, json_object, open_file
from dlapp.system.owners import user_text
from dlapp.system.shared_directory import create_shared_file

RESERVED, LEASED = 0, 1
MAX_BYTES = 32 << 10
"""The longest record."""
_MOST_DEVICES = 512
HELD = ("reserved", "leased")
"""Kinds of records of a hold, each at the place of the byte that its device's file has locked."""
HEALTH = "health"
MOST_NAMES = 2048
"""How many entries of one user are read: at most three for each of a machine's devices, and its tickets."""
_WRITTEN_IN_S = 60.0
"""What is older and has no name of a record yet was left by a process that was killed while it wrote it."""
_MOST_OPEN = 128
_NAME = re.compile(r"(?:(reserved|leased)|(reserved|leased|health)-([A-Za-z0-9_.-]+))-[0-9a-f]{16}", re.ASCII)
"""With a device: of that one alone."""

Record = dict[str, Any]


class Entry(NamedTuple):
    """Record in the directory on one device.

    Args:
        device: name of the device's file.
        uid: of its owner.
        changed_ns: when the kernel last changed its file (ctime) [ns since 1970].
        written_ns: when it was written (mtime); its owner can set it to anything [ns since 1970].
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


class OpenFile:
    """A file of the directory, open for reading until nobody refers to it any more.

    Attributes:
        fd: its descriptor.
        about: of the file, when it was opened.
        record: what was read in it; None: nothing yet.
        by_device: what it says of each device; None: not looked at yet.
        has_other_name: whether it has another name for good; None: not looked at yet.
    """

    def __init__(self, fd: int) -> None:
        self.fd, self.about = fd, os.fstat(fd)
        self.record: Record | None = None
        self.by_device: dict[str, Record] | None = None
        self.has_other_name: bool | None = None

    def is_still(self, now: os.stat_result) -> bool:
        """Return whether what has the name now is this file, and nobody changed it."""
        # Its inode number cannot be another file's while it is open.
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
        problems: takes what is wrong with entries: path -> what.
        files: what stays open between two looks at the directory, by name. Opening and reading is most of what a look
            costs, and who waits looks often; whether a file is locked is asked each time.
    """

    def __init__(self, fd: int, path: str, problems: dict[str, str], files: dict[str, OpenFile] | None = None) -> None:
        self.fd, self.path, self.problems = fd, path, problems
        self._files = {} if files is None else files
        self._listed: set[str] | None = None

    def names(self) -> list[str]:
        """Return the names in it, sorted; of a user with more than `MOST_NAMES`, those that were written last."""
        names = sorted(os.listdir(self.fd))
        self._listed = set(names)
        if len(names) > MOST_NAMES:
            names = self._without_excess(names)
        for gone in self._files.keys() - self._listed:
            self._files.pop(gone, None)
        return names

    def _without_excess(self, names: list[str]) -> list[str]:
        by_uid: dict[int, list[tuple[int, int, str]]] = {}
        for name in names:
            with contextlib.suppress(OSError):
                about = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
                # Many links of one file are not its owner's doing: they come last.
                by_uid.setdefault(about.st_uid, []).append((-about.st_nlink, about.st_mtime_ns, name))
        kept = []
        for uid, those in by_uid.items():
            if len(those) > MOST_NAMES:
                what = f"{user_text(uid)} has {len(those)} files there; of these the newest {MOST_NAMES} are read"
                self.problems[self.path] = what
                those = sorted(those)[-MOST_NAMES:]
            kept += [name for _, _, name in those]
        return sorted(kept)

    def open_to_read(self, name: str, max_bytes: int | None = MAX_BYTES) -> OpenFile:
        """Return a regular file of the directory: `files.open_file` opens it, or it is open since an earlier look.

        Args:
            max_bytes: the largest size [bytes]; None: any.

        Raises:
            FileNotFoundError: it is not there.
            OSError: it cannot be opened, or is not used (`UntrustedFile`).
        """
        known = self._files.get(name)
        if known is not None and known.is_still(os.stat(name, dir_fd=self.fd, follow_symlinks=False)):
            return known
        self._files.pop(name, None)
        found = OpenFile(open_file(name, dir_fd=self.fd, path=name, max_bytes=max_bytes))
        if len(self._files) < _MOST_OPEN:
            self._files[name] = found
        return found

    def read_record(self, file: OpenFile, name: str) -> Record | None:
        """Return the record in a file; None: its hold was just given back.

        Raises:
            UntrustedFile: it is none, or that of another name.
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
        """Note what is wrong with an entry."""
        what = error.problem if isinstance(error, UntrustedFile) else error.strerror or str(error)
        self.problems[os.path.join(self.path, name)] = what

    # ---- a device's file ----

    def open_device(self, name: str, *, create: bool = False) -> int | None:
        """Open a device's file to lock it; None: there is none, or it cannot be used and that was reported.

        Args:
            create: make it where it is missing.
        """
        try:
            try:
                file = self._open_to_lock(name)
            except FileNotFoundError:
                if not create:
                    return None
                create_shared_file(name, self.fd)
                file = self._open_to_lock(name)
            # The same file, whatever has its name by now.
            return os.open(f"/proc/self/fd/{file.fd}", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.report(name, error)
            return None

    def _open_to_lock(self, name: str) -> OpenFile:
        file = self.open_to_read(name, None)
        # A file that not everybody may lock is another's, linked here: its locks mean something else.
        if (mode := stat.S_IMODE(file.about.st_mode)) != 0o666:
            raise UntrustedFile(name, f"has mode {mode:o}, not 666")
        # Anybody can link one file as those of two devices: who locks one has locked the other.
        if file.about.st_nlink > 1 and self._has_other_name(file):
            raise UntrustedFile(name, "has another name, whose locks would be its own")
        return file

    def _has_other_name(self, file: OpenFile) -> bool:
        """Return whether a device's file has a second name by which it may be locked.

        One with a dot is none: nobody locks by it, and `create_shared_file` leaves it where its process is killed.
        """
        if file.has_other_name is None:
            hidden = 0
            for other in os.listdir(self.fd):
                if other.startswith("."):
                    with contextlib.suppress(OSError):
                        hidden += os.path.samestat(os.stat(other, dir_fd=self.fd, follow_symlinks=False), file.about)
            # Asked after the names: one that went meanwhile is not counted.
            file.has_other_name = os.fstat(file.fd).st_nlink - hidden > 1
        return file.has_other_name

    def is_current(self, fd: int, name: str) -> bool:
        """Return whether an open file is still the one of that name."""
        try:
            now = os.stat(name, dir_fd=self.fd, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(now, os.fstat(fd))

    def inode(self, name: str) -> int | None:
        """Return the inode of an entry; None: it is not there."""
        try:
            return os.stat(name, dir_fd=self.fd, follow_symlinks=False).st_ino
        except FileNotFoundError:
            return None

    def locked(self, name: str) -> tuple[bool, bool]:
        """Return whether a device's file has byte 0 and byte 1 locked by anybody; not if `names` did not find it."""
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
        """Return the records that count, by device: all live ones, and of the others each owner's newest.

        Args:
            devices: only of these devices; None: of all.
            but: names of entries to leave out.
            names: what is in the directory; None: look.
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
        """Write a record of this process, live until the descriptor and all that inherit it are closed.

        Args:
            kind: one of `HELD`, or `HEALTH`.
            record: of a hold: with ``devices``, uuid -> index.
            device: whose health it is; empty: it is a hold.

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
        """Make an entry of this user that appears complete and locked; its descriptor. Raises LedgerError."""
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
    def own_unlocked(self, name: str, max_bytes: int | None = None) -> Iterator[None]:
        """Run the block if an old file is this user's, unlocked and no larger. Raises OSError if it is not."""
        fd = open_file(name, dir_fd=self.fd, path=name, owners=[os.geteuid()], max_bytes=max_bytes)
        try:
            if locks.is_write_locked(fd) or time.time() - os.fstat(fd).st_ctime < _WRITTEN_IN_S:
                raise UntrustedFile(name, "is in use")
            yield
        finally:
            os.close(fd)

    def remove(self, name: str) -> None:
        """Empty a record of this user, as root of anybody, and remove its name. One that is gone is no error."""
        try:
            with contextlib.suppress(UntrustedFile):  # it is no record, and its name alone can go
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
    """Return the name of a device's file."""
    # The uuid of a MIG device of older drivers has slashes in it.
    return re.sub(r"[^A-Za-z0-9_.-]", "_", uuid)


def parts(one: Entry) -> list[Entry]:
    """Return what the same record says of all of its devices."""
    if not isinstance(one.record.get("devices"), dict):
        return [one]
    return [one._replace(device=device, record=record) for device, record in _by_device(one.record, one.name).items()]


def withdraw(directory: str, name: str, fd: int) -> None:
    """Remove a record of this process, whose descriptor is closed by the caller."""
    # Emptied first: a hard link to it must not be a record any more.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(directory, name))


def text_of(record: Record, name: str) -> str:
    """Return a text of a record for people, at most 200 characters; empty where it is none."""
    value = record.get(name)
    return value[:200] if isinstance(value, str) else ""


def _by_device(record: Record, name: str) -> dict[str, Record]:
    devices = record.get("devices")
    if not isinstance(devices, dict) or not 0 < len(devices) <= _MOST_DEVICES:
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
