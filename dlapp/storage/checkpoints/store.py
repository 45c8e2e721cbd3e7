"""Places of checkpoints: a directory of this machine or on HDFS that is exclusive to the user."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Protocol

from dlapp.errors import DlappError, NotFound
from dlapp.locations import HdfsPlace, is_on_hdfs, local_path, shown
from dlapp.net.http import RequestBody
from dlapp.storage.fetch_plan import run_parallel
from dlapp.storage.hdfs.file_system import PARALLEL_WRITES, SMALL_BYTES, HdfsFiles
from dlapp.storage.open import open_output
from dlapp.storage.tree import copy_beginning, explaining, make_own_directory
from dlapp.system.files import closing_fd, open_file, open_own_directory, sync_file_system, write_all

ReportBytes = Callable[[int], None]
OBJECTS = "objects"
_TEMPORARY_PREFIX = "."
"""Prefix of names that are being written."""


class CopyAborted(DlappError):
    """Abort of a copy by its owner."""


class CheckpointStore(Protocol):
    """Place of checkpoints. Names are ``NAME`` or ``objects/NAME``. Thread-safe; every call is idempotent."""

    def __enter__(self) -> CheckpointStore:
        """Return itself."""

    def __exit__(self, *error: object) -> None:
        """Close open files and connections."""

    def prepare(self) -> None:
        """Create missing directories.

        Raises:
            UntrustedFile: others own one of them or can write to it.
        """

    def sizes(self, directory: str) -> dict[str, int]:
        """Return name -> size [bytes] of the files in the place (empty) or in ``objects``; none if it is missing."""

    def put(self, name: str, fd: int, size: int, check: Callable[[], None], report: ReportBytes) -> None:
        """Write an object from an open file atomically, replacing one of this name.

        Args:
            name: the name of the object.
            fd, size: the file.
            check: called before the object gets its name; its errors abort the call.
            report: called with the bytes done, and with 0 from time to time; its errors abort the call.
        """

    def create(self, name: str, data: bytes) -> bool:
        """Create a small file atomically; return False if the name exists. All earlier writes are on disk by then."""

    def read(self, name: str, max_bytes: int) -> bytes:
        """Return the content of a small file. Raises NotFound."""

    def fetch(self, name: str, fd: int, size: int, report: ReportBytes) -> None:
        """Write the content of an object to an open, empty file.

        Args:
            name: the name of the object.
            fd: the file.
            size: the size of the object [bytes].
            report: see `put`.

        Raises:
            NotFound: it does not exist.
            DlappError: it is shorter.
        """

    def remove(self, name: str) -> None:
        """Remove a file; a missing one is no error."""

    def run_parallel(self, work: Callable[[int, ReportBytes], None], count: int) -> None:
        """Call ``work`` with the numbers from 0 to ``count``, with the parallelism that suits this place. The first
        error aborts the other calls and is raised."""

    def aborting(self) -> AbstractContextManager[Callable[[], None]]:
        """Abort the calls of the other threads in this place, and those that they start in the block, with Unreachable.
        The result breaks the connections that they use; call it until they have ended."""


def open_store(location: str, hdfs: HdfsPlace | None = None) -> CheckpointStore:
    """Return the place at the location of a directory, on HDFS or of this machine; nothing is created yet.

    Raises:
        UsageError: checkpoints cannot be stored there.
    """
    files = open_output(location, hdfs)
    if is_on_hdfs(location):
        assert isinstance(files, HdfsFiles)
        return _HdfsStore(files, files.place.path(location).rstrip("/"))
    return _LocalStore(local_path(location).rstrip("/"))


def is_temporary(name: str) -> bool:
    """Return whether the name is that of a partial file, of a running or killed writer."""
    return name.startswith(_TEMPORARY_PREFIX)


def _temporary(name: str) -> str:
    """Return a unique temporary name beside ``name``."""
    above, slash, last = name.rpartition("/")
    return f"{above}{slash}{_TEMPORARY_PREFIX}{last[:100]}.{os.urandom(6).hex()}"


class _LocalStore:
    """`CheckpointStore` on this machine, accessed through the descriptors of its two directories."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fds: dict[str, int] = {}

    def __enter__(self) -> _LocalStore:
        return self

    def __exit__(self, *error: object) -> None:
        while self._fds:
            os.close(self._fds.popitem()[1])

    def prepare(self) -> None:
        for directory in ("", OBJECTS):
            make_own_directory(f"{self._path}/{directory}".rstrip("/"))
        self._open()

    def sizes(self, directory: str) -> dict[str, int]:
        found: dict[str, int] = {}
        if not self._open():
            return found
        with explaining(self._shown(directory), "read"), os.scandir(self._fds[directory]) as entries:
            for entry in entries:
                status = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(status.st_mode):
                    found[entry.name] = status.st_size
        return found

    def put(self, name: str, fd: int, size: int, check: Callable[[], None], report: ReportBytes) -> None:
        with self._new_file(name) as (target, temporary, dir_fd):
            copy_beginning(fd, target, size, report)  # if the file became shorter, the check tells it
            check()
            os.rename(temporary, name.rpartition("/")[2], src_dir_fd=dir_fd, dst_dir_fd=dir_fd)

    def create(self, name: str, data: bytes) -> bool:
        with self._new_file(name) as (target, temporary, dir_fd):
            write_all(target, data)
            sync_file_system(dir_fd)
            try:
                os.link(temporary, name, src_dir_fd=dir_fd, dst_dir_fd=dir_fd)
            except FileExistsError:
                return False
            os.fsync(dir_fd)
        return True

    def read(self, name: str, max_bytes: int) -> bytes:
        with self._opened(name, max_bytes) as (fd, size), explaining(self._shown(name), "read"):
            data = b""
            while len(data) < size and (piece := os.read(fd, size - len(data))):
                data += piece
            return data

    def fetch(self, name: str, fd: int, size: int, report: ReportBytes) -> None:
        with self._opened(name, None) as (source, _), explaining(self._shown(name), "read"):
            if copy_beginning(source, fd, size, report) != size:
                raise DlappError(f"{shown(self._shown(name))} has fewer than {size} bytes")

    def remove(self, name: str) -> None:
        above, _, last = name.rpartition("/")
        with explaining(self._shown(name), "removed"), contextlib.suppress(FileNotFoundError):
            os.unlink(last, dir_fd=self._fds[above])

    def run_parallel(self, work: Callable[[int, ReportBytes], None], count: int) -> None:
        # Sequential, since there is one disk.
        for number in range(count):
            work(number, lambda _: None)

    def aborting(self) -> AbstractContextManager[Callable[[], None]]:
        return contextlib.nullcontext(lambda: None)  # no call here blocks

    def _open(self) -> bool:
        """Open the two directories; return False if they do not exist."""
        try:
            for directory in ("", OBJECTS):
                if directory not in self._fds:
                    path = f"{self._path}/{directory}".rstrip("/")
                    self._fds[directory] = open_own_directory(path)
        except FileNotFoundError:
            return False
        return True

    def _shown(self, name: str) -> str:
        return f"{self._path}/{name}"

    @contextlib.contextmanager
    def _opened(self, name: str, max_bytes: int | None) -> Iterator[tuple[int, int]]:
        above, _, last = name.rpartition("/")
        if not self._open():
            raise NotFound(f"{shown(self._shown(name))} is not there")
        with explaining(self._shown(name), "read"):
            fd = open_file(last, dir_fd=self._fds[above], path=self._shown(name), max_bytes=max_bytes)
        with closing_fd(fd):
            yield fd, os.fstat(fd).st_size

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[tuple[int, str, int]]:
        """Yield the descriptor of a new file, its temporary name, and the descriptor of its directory; a file that
        still has that name at the end is removed."""
        dir_fd, temporary = self._fds[name.rpartition("/")[0]], _temporary(name).rpartition("/")[2]
        with explaining(self._shown(name), "written"):
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=dir_fd)
            try:
                with closing_fd(fd):
                    yield fd, temporary, dir_fd
            finally:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=dir_fd)


class _HdfsStore:
    """`CheckpointStore` on HDFS."""

    def __init__(self, files: HdfsFiles, path: str) -> None:
        self._files, self._web, self._path = files, files.web, path
        self._threads: set[int] = set()

    def __enter__(self) -> _HdfsStore:
        return self

    def __exit__(self, *error: object) -> None:
        self._web.close()

    def prepare(self) -> None:
        self._threads.add(threading.get_ident())
        for directory in ("", OBJECTS):
            path = f"{self._path}/{directory}".rstrip("/")
            self._web.make_directory(path, 0o700)
            self._files.check_own_directory(path)

    def sizes(self, directory: str) -> dict[str, int]:
        self._threads.add(threading.get_ident())
        path = f"{self._path}/{directory}".rstrip("/")
        try:
            self._files.check_own_directory(path)
            return {one.name: one.size_bytes for one in self._web.children(path) if one.name and not one.is_dir}
        except NotFound:
            return {}

    def put(self, name: str, fd: int, size: int, check: Callable[[], None], report: ReportBytes) -> None:
        with self._new_file(name) as temporary:
            source = RequestBody(fd, size) if size else b""
            direct = size <= SMALL_BYTES
            self._web.write(temporary, source, 0o600, parents=False, direct_to_datanode=direct, report=report)
            check()
            self._web.rename(temporary, f"{self._path}/{name}", overwrite=True)
        report(size)

    def create(self, name: str, data: bytes) -> bool:
        with self._new_file(name) as temporary:
            self._web.write(temporary, data, 0o600, parents=False)
            if self._web.rename(temporary, f"{self._path}/{name}"):
                return True
            self._forget(temporary)
        return False

    def read(self, name: str, max_bytes: int) -> bytes:
        return self._web.read_bytes(f"{self._path}/{name}", max_bytes)

    def fetch(self, name: str, fd: int, size: int, report: ReportBytes) -> None:
        self._web.fetch(f"{self._path}/{name}", fd, 0, size, report, direct_to_datanode=size <= SMALL_BYTES)

    def remove(self, name: str) -> None:
        self._web.delete(f"{self._path}/{name}")

    def run_parallel(self, work: Callable[[int, ReportBytes], None], count: int) -> None:
        """See `CheckpointStore.run_parallel`."""

        def run(number: int, report: ReportBytes) -> None:
            self._threads.add(threading.get_ident())
            work(number, report)

        run_parallel(run, range(count), lambda _: None, parallelism=PARALLEL_WRITES, abort_calls=self._web.abort_calls)

    @contextlib.contextmanager
    def aborting(self) -> Iterator[Callable[[], None]]:
        with self._web.abort_calls(self._threads - {threading.get_ident()}) as cut:
            yield cut

    @contextlib.contextmanager
    def _new_file(self, name: str) -> Iterator[str]:
        """Yield a path for a new file; after an error it is removed, if necessary by a later copy."""
        temporary = f"{self._path}/{_temporary(name)}"
        try:
            yield temporary
        except BaseException:
            self._forget(temporary)
            raise

    def _forget(self, temporary: str) -> None:
        with contextlib.suppress(DlappError):
            self._web.clear(temporary, file=True)
