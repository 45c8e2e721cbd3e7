"""Packing a workspace: one archive, named by the digest of its content.

The same content always gives the same archive. So neither owners nor modification times are kept: every entry gets one
fixed time (`dlapp.launcher.workspace.tar.MTIME`). So ``make`` and similar tools consider nothing in an unpacked
workspace out of date; a program that builds there must force it (``make -B``) or exclude earlier build results. Names,
contents, permissions (read, write, execute; not set-uid and the like), links inside the workspace, empty directories,
and the holes of sparse files are kept, as the file system reports them.

The digest is of the uncompressed tar, so it does not depend on the version of zlib.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from dlapp.errors import UsageError
from dlapp.launcher.workspace.gzip_blocks import GzipBlocks
from dlapp.launcher.workspace.scan import SPARSE_FROM, Scan, ScanEntry, scan_workspace, too_large
from dlapp.launcher.workspace.tar import BLOCK, DIRECTORY, END, LINK, MAX_PIECES, header, padding, sparse_header
from dlapp.locations import shown
from dlapp.storage.tree import explaining
from dlapp.system.disk_space import FULL
from dlapp.system.files import make_below_home
from dlapp.value import Value

__all__ = ["Packed", "Scan", "ScanEntry", "pack", "scan_workspace"]

Progress = Callable[[int, int], None]

_CHUNK = 1 << 20
_MAX_THREADS = 8
_TEMPORARY = ".packing"


class Packed(Value):
    """A packed workspace.

    Args:
        archive: absolute path, ``<digest>.tar.gz``.
        digest: ``sha256-<hex>``.
        size_bytes: size of the archive.
        files: number of files in it.
        warnings: lines for the user on files that changed or disappeared while they were read.
        reused: whether the same content had been packed before, and that archive is used.
    """

    archive: str
    digest: str
    size_bytes: int
    files: int
    warnings: tuple[str, ...]
    reused: bool


def pack(scan: Scan, archive_dir: str, *, limit_bytes: int, progress: Progress | None = None) -> Packed:
    """Pack the scanned files into ``archive_dir``, which is created if missing. Reads everything once.

    The archive gets its name when it is complete and synced. An existing one with the same bytes is kept, and its
    modification time is set to now, so that a cache sees it as used; one with other bytes is damaged or from another
    zlib, and is replaced. Processes that have it open continue to read the old file.

    Args:
        scan: files to pack.
        archive_dir: directory of the archives.
        limit_bytes: maximum size of a workspace.
        progress: called with the bytes read and the total.

    Raises:
        UsageError: the workspace exceeds the limit (the message names the largest entries), or a file cannot be read.
        DiskFull: there is no space for the archive.
    """
    if scan.size_bytes > limit_bytes:
        raise too_large(scan, limit_bytes)
    threads = min(_MAX_THREADS, len(os.sched_getaffinity(0)))
    archive_dir = os.path.abspath(archive_dir)
    with explaining(archive_dir, "written"):
        make_below_home(archive_dir, 0o700)
        with _temporary_file(archive_dir) as (descriptor, temporary):
            with GzipBlocks(descriptor, threads=threads) as out:
                writer = _Writer(scan, out, progress)
                writer.write_all()
                digest = f"sha256-{out.finish()}"
            archive = f"{archive_dir}/{digest}.tar.gz"
            size_bytes = os.fstat(descriptor).st_size
            reused = _reuse_archive(archive, descriptor)
            if not reused:
                os.fsync(descriptor)
                os.rename(temporary, archive)
    return Packed(archive, digest, size_bytes, writer.files, tuple(writer.warnings), reused)


def _reuse_archive(archive: str, fresh: int) -> bool:
    """Mark an archive as used now, if it exists and is identical to the one packed just now."""
    try:
        descriptor = os.open(archive, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        size = os.fstat(fresh).st_size
        if os.fstat(descriptor).st_size != size:
            return False
        # Costs a tenth of the packing time; a damaged archive would make every task fail.
        if any(os.pread(descriptor, _CHUNK, at) != os.pread(fresh, _CHUNK, at) for at in range(0, size, _CHUNK)):
            return False
        os.utime(archive)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return True


@contextmanager
def _temporary_file(directory: str) -> Iterator[tuple[int, str]]:
    """Yield a new file in ``directory``, which is removed at the end if it still has its name.

    It is locked, so that leftovers of killed processes can be distinguished from files being written, and are removed
    here.
    """
    import fcntl

    for name in os.listdir(directory):
        if name.startswith(_TEMPORARY):
            with suppress(OSError):  # in use, or already removed
                _remove_unlocked(f"{directory}/{name}")
    while True:
        path = f"{directory}/{_TEMPORARY}-{os.getpid()}-{os.urandom(4).hex()}"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        # Another process that cleans up may have removed it between the two lines above.
        if os.fstat(descriptor).st_nlink:
            break
        os.close(descriptor)
    try:
        yield descriptor, path
    finally:
        with suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def _remove_unlocked(path: str) -> None:
    import fcntl

    descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    finally:
        os.close(descriptor)


class _Writer:
    """Writer of the entries of one scan as a tar stream, with counters."""

    def __init__(self, scan: Scan, out: GzipBlocks, progress: Progress | None) -> None:
        self._scan, self._write, self._progress = scan, out.write, progress
        self._root = os.path.realpath(scan.root).rstrip("/")
        self._done = self._told = 0
        self.files = 0
        self.warnings: list[str] = []

    def _place(self, entry: ScanEntry) -> str:
        return f"{self._root}/{entry.name}"

    def write_all(self) -> None:
        """Write all entries, and the end of the archive."""
        for entry in self._scan.entries:
            if entry.link is not None:
                self._write(header(os.fsencode(entry.name), 0o777, 0, LINK, os.fsencode(entry.link)))
            elif stat.S_ISDIR(entry.mode):
                self._write(header(os.fsencode(entry.name) + b"/", entry.mode & 0o777, 0, DIRECTORY))
            else:
                self._write_file(entry)
        self._write(END)
        if self._progress:
            self._progress(self._scan.size_bytes, self._scan.size_bytes)

    def _write_file(self, entry: ScanEntry) -> None:
        try:
            # No link is followed, and a FIFO that replaced the file does not block.
            descriptor = os.open(
                f"{self._scan.root}/{entry.name}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            )
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                self._warn(entry, "disappeared while the workspace was packed, so it is not in it")
            elif error.errno in (errno.ELOOP, errno.ENXIO):
                self._warn(entry, "was replaced while the workspace was packed, so it is not in it")
            else:
                raise _unreadable(entry, error) from error
            return
        try:
            before = os.fstat(descriptor)
            # Also no link in place of a parent directory: the file must be where the scan found it.
            if not stat.S_ISREG(before.st_mode) or os.readlink(f"/proc/self/fd/{descriptor}") != self._place(entry):
                self._warn(entry, "was replaced while the workspace was packed, so it is not in it")
                return
            missing = self._write_content(os.fsencode(entry.name), descriptor, before)
            after = os.fstat(descriptor)
            self.files += 1
        except OSError as error:
            if error.errno in FULL:
                raise  # of the archive, which is written here
            raise _unreadable(entry, error) from error
        finally:
            os.close(descriptor)
        if missing:
            self._warn(entry, f"shrank while it was packed; its last {missing} bytes are zeros now")
        elif (before.st_size, before.st_mtime_ns) != (after.st_size, after.st_mtime_ns):
            self._warn(entry, "changed while it was packed; its copy may be inconsistent")

    def _write_content(self, name: bytes, descriptor: int, status: os.stat_result) -> int:
        """Write header and data; return the number of bytes that were missing at the end and were written as zeros."""
        size, mode = status.st_size, status.st_mode & 0o777
        if size <= _CHUNK and (size < SPARSE_FROM or status.st_blocks * 512 >= size):
            # The usual case, in which the size is known to be right before the header is written.
            data = os.read(descriptor, size)
            while len(data) < size and (more := os.read(descriptor, size - len(data))):
                data += more
            self._write(header(name, mode, len(data)))
            self._write(data)
            self._write(padding(len(data)))
            self._count(size)
            return 0
        pieces = _data_pieces(descriptor, size) if status.st_blocks * 512 < size else [(0, size)]
        if pieces == [(0, size)]:
            self._write(header(name, mode, size))
        else:
            self._write(sparse_header(name, mode, size, pieces))
        missing = sum(self._write_piece(descriptor, at, length) for at, length in pieces)
        self._write(padding(sum(length for _, length in pieces)))
        return missing

    def _write_piece(self, descriptor: int, at: int, length: int) -> int:
        """Write ``length`` bytes; return how many of them did not exist any more."""
        end = at + length
        while at < end:
            data = os.pread(descriptor, min(_CHUNK, end - at), at)
            if not data:
                break
            self._write(data)
            self._count(len(data))
            at += len(data)
        for rest in range(at, end, _CHUNK):
            self._write(bytes(min(_CHUNK, end - rest)))
        return end - at

    def _count(self, size: int) -> None:
        self._done += size
        if self._progress and self._done - self._told >= _CHUNK:
            self._told = self._done
            self._progress(min(self._done, self._scan.size_bytes), self._scan.size_bytes)

    def _warn(self, entry: ScanEntry, what: str) -> None:
        self.warnings.append(f"{shown(entry.name)} {what}")


def _data_pieces(descriptor: int, size: int) -> list[tuple[int, int]]:
    """Return the data ranges of a file: offset and length, in whole blocks except the last, which ends at the end of
    the file."""
    pieces: list[tuple[int, int]] = []
    at = 0
    while at < size:
        try:
            start = os.lseek(descriptor, at, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            break  # only a hole is left
        at = min(size, os.lseek(descriptor, start, os.SEEK_HOLE))
        start, end = start // BLOCK * BLOCK, min(size, -(-at // BLOCK) * BLOCK)
        if pieces and start <= sum(pieces[-1]):
            start, _ = pieces.pop()
        pieces.append((start, end - start))
        at = end
    if not pieces or sum(pieces[-1]) < size:
        pieces.append((size, 0))
    return pieces if len(pieces) <= MAX_PIECES else [(0, size)]


def _unreadable(entry: ScanEntry, error: OSError) -> UsageError:
    return UsageError(f"{shown(entry.name)} cannot be read: {error.strerror}; make it readable or exclude it")
