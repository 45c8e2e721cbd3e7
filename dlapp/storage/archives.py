"""Unpacking somebody's tar and zip files, without trust in them.

Nothing is written outside the directory that they are unpacked into: a name that is absolute or has ``..`` is refused,
so is one that passes through a link. Links are made last, when nothing is written any more, and only those that
stay inside. Nothing is written over. Archives that grow out of all proportion are refused before the disk is full.
Devices, FIFOs and passwords are refused. Permissions (without setuid and the like) and times are kept, owners are not.

What was unpacked before a refusal stays; the caller's directory is worthless then.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any, NamedTuple

from dlapp.errors import DlappError
from dlapp.storage import DiskFull, shown
from dlapp.storage.links import link_kept_inside, link_reader
from dlapp.storage.tree import explained, free_bytes, human_size, room_at

MOST_GROWTH = 200
"""How many times its own size an archive may become; text and logs become 10 to 50 times as large."""
ALWAYS_ALLOWED = 1 << 30
_MEMBER_BYTES = 512
"""What a member counts besides its content, so that a million empty ones are not free."""
_PIECE = 1 << 20
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),  # an empty one
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
)


class Unpacked(NamedTuple):
    """How many files an archive had, with how many bytes together."""

    files: int
    size_bytes: int


class ArchiveRefused(DlappError):
    """No archive, a damaged one, or one that does what none should."""


def unpack_archive(
    path: str, into: str, *, name: str | None = None, done: Callable[[int], None] = lambda count: None
) -> Unpacked:
    """Unpack the tar (plain, gzip, bzip2, xz) or zip file ``path`` into the directory ``into``.

    Args:
        name: what messages call the archive.
        done: told how many bytes of the archive are used up, after each piece.

    Raises:
        ArchiveRefused: see the module's text.
        DiskFull: it is more than there is room for.
        DlappError: something is in the way of what comes.
    """
    try:
        with open(path, "rb") as file:
            return _Unpacking(file, into, shown(name or path), done).run()
    except OSError as error:
        if isinstance(error, DlappError):
            raise
        raise explained(error, path, "read") from error


def _kind_of(file: IO[bytes]) -> str | None:
    head = file.read(512)
    file.seek(0)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return "tar" if head[257:262] == b"ustar" else None


class _Unpacking:
    """One archive on its way."""

    def __init__(self, file: IO[bytes], into: str, name: str, done: Callable[[int], None]) -> None:
        self._file, self._into, self._name, self._done = file, into, name, done
        self._size = os.fstat(file.fileno()).st_size
        self._most = max(ALWAYS_ALLOWED, MOST_GROWTH * self._size)
        self._free = free_bytes(into)
        self._count = self._files = self._bytes = self._told = 0
        self._directories: dict[str, tuple[int, float] | None] = {"": None}
        self._links: dict[str, str] = {}

    def run(self) -> Unpacked:
        kind = _kind_of(self._file)
        if kind is None:
            raise ArchiveRefused(f"{self._name} is neither a tar (plain, gzip, bzip2, xz) nor a zip file")
        _make(self._into)
        if kind == "zip":
            self._zip()
        else:
            self._tar(kind)
        self._make_links()
        for name, kept in reversed(self._directories.items()):
            if kept is not None:
                mode, mtime = kept
                os.chmod(self._at(name), mode & 0o777 | 0o700)
                os.utime(self._at(name), (mtime, mtime))
        self._tell(self._size)
        return Unpacked(self._files, self._bytes)

    # ---- kinds ----

    def _tar(self, kind: str) -> None:
        import tarfile

        with (
            self._damage_named(tarfile.TarError),
            _decompressed(self._file, kind) as stream,
            tarfile.open(fileobj=stream, mode="r|", errorlevel=2) as tar,
        ):
            for member in tar:
                self._tell(self._file.tell())
                name = self._checked(member.name)
                if member.isdir():
                    self._directory(name, member.mode, member.mtime)
                elif member.issym():
                    self._link(name, member.linkname)
                elif member.islnk():
                    self._hard_link(name, self._checked(member.linkname))
                elif member.isfile():
                    content = tar.extractfile(member)
                    assert content is not None
                    self._regular(name, content, member.mode, member.mtime)
                else:
                    raise ArchiveRefused(f"{self._name}: {shown(name)} is a device or a FIFO")
                tar.members.clear()  # type: ignore[attr-defined]  # else all of them stay in memory
            while piece := stream.read(_PIECE):
                # What compressed it has its checksum at the end.
                self._weigh(len(piece))

    def _zip(self) -> None:
        import zipfile

        with self._damage_named(zipfile.BadZipFile, NotImplementedError), zipfile.ZipFile(self._file) as zip_file:
            used = 0
            for member in zip_file.infolist():
                name, mode = self._checked(member.filename), member.external_attr >> 16
                if member.flag_bits & 1:
                    raise ArchiveRefused(f"{self._name}: {shown(name)} needs a password")
                used += member.compress_size
                if used > self._size:
                    raise ArchiveRefused(f"{self._name} is a bomb: its members lie over each other")
                mtime = time.mktime((*member.date_time, 0, 0, -1))
                if member.is_dir():
                    self._directory(name, mode or 0o755, mtime)
                    continue
                with zip_file.open(member) as content:
                    if stat.S_ISLNK(mode):
                        self._link(name, os.fsdecode(content.read(1 << 16)))
                    elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                        self._regular(name, content, mode or 0o644, mtime)
                    else:
                        raise ArchiveRefused(f"{self._name}: {shown(name)} is a device or a FIFO")
                self._tell(used)

    @contextmanager
    def _damage_named(self, *kinds: type[Exception]) -> Iterator[None]:
        import lzma

        damage: tuple[type[Exception], ...] = (
            *kinds,
            zlib.error,
            lzma.LZMAError,
            EOFError,
            ValueError,
            OverflowError,
            RuntimeError,
        )
        try:
            yield
        except DlappError:
            raise
        except damage as error:
            raise ArchiveRefused(f"{self._name} is damaged: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise ArchiveRefused(f"{self._name} is damaged: {error}") from error  # gzip and bz2 say it so

    # ---- members ----

    def _checked(self, text: str) -> str:
        """A member's name as a path below ``into``. Raises ArchiveRefused."""
        self._weigh(_MEMBER_BYTES)
        if text.startswith("/") or "\0" in text:
            raise ArchiveRefused(f"{self._name} has a member that is named {shown(text)}: that is no relative path")
        parts = [part for part in text.split("/") if part not in ("", ".")]
        if ".." in parts:
            raise ArchiveRefused(f"{self._name} has a member that would land elsewhere: {shown(text)}")
        return "/".join(parts)

    def _directory(self, name: str, mode: int, mtime: float) -> None:
        if not name:
            return
        self._parent_of(f"{name}/")
        self._directories[name] = (mode, mtime)

    def _parent_of(self, name: str) -> None:
        """Make the directories above ``name``; none of them may be a link."""
        above = name.rpartition("/")[0]
        if above in self._directories:
            return
        self._parent_of(above)
        path = self._at(above)
        no_directory = ArchiveRefused(f"{self._name}: {shown(name)} cannot be unpacked: {shown(path)} is no directory")
        if above in self._links:
            raise no_directory
        try:
            os.mkdir(path, 0o755)
            self._directories[above] = None
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise no_directory from None
            self._directories[above] = None
        except OSError as error:
            raise explained(error, path, "made") from error

    def _regular(self, name: str, content: IO[bytes], mode: int, mtime: float) -> None:
        path = self._free_place(name)
        with _created(path) as target:
            while piece := content.read(_PIECE):
                self._weigh(len(piece))
                left = memoryview(piece)
                while left:
                    left = left[os.write(target, left) :]
                self._bytes += len(piece)
            os.fchmod(target, mode & 0o777 | 0o600)
            os.utime(target, (mtime, mtime))
        self._files += 1

    def _hard_link(self, name: str, other: str) -> None:
        source = self._at(other)
        # What it names must be a file that came out of this archive, or lies here: never through a link.
        if other.rpartition("/")[0] not in self._directories or not os.path.isfile(source) or os.path.islink(source):
            raise ArchiveRefused(f"{self._name}: {shown(name)} is a link to {shown(other)}, which is not before it")
        with open(source, "rb") as content:
            status = os.fstat(content.fileno())
            self._regular(name, content, status.st_mode, status.st_mtime)

    def _link(self, name: str, text: str) -> None:
        self._free_place(name)
        self._links[name] = text

    def _free_place(self, name: str) -> str:
        path = self._at(name)
        if not name:
            raise ArchiveRefused(f"{self._name} has a member without a name")
        self._parent_of(name)
        if name in self._links or os.path.lexists(path):
            raise DlappError(f"{self._name} cannot be unpacked: {shown(path)} is there already")
        return path

    def _make_links(self) -> None:
        read_real = link_reader(self._into)
        read = lambda name: self._links.get(name) or read_real(name)  # noqa: E731
        for name, text in self._links.items():
            kept = link_kept_inside(name, text, (), read)
            if kept is None:
                raise ArchiveRefused(f"{self._name}: {shown(name)} is a link that leads out of it, to {shown(text)}")
        for name, text in self._links.items():
            os.symlink(text, self._at(name))

    # ---- limits ----

    def _weigh(self, count: int) -> None:
        self._count += count
        if self._count > self._most:
            raise ArchiveRefused(
                f"{self._name} is a bomb: its {human_size(self._size)} become more than {human_size(self._most)}"
            )
        if self._bytes + count > self._free:
            raise DiskFull(f"{self._name} unpacked is more than {shown(self._into)} can take; {room_at(self._into)}")

    def _tell(self, used: int) -> None:
        if used > self._told:
            self._done(used - self._told)
            self._told = used

    def _at(self, name: str) -> str:
        return f"{self._into}/{name}" if name else self._into


@contextmanager
def _decompressed(file: IO[bytes], kind: str) -> Iterator[Any]:
    if kind == "tar":
        yield file
        return
    import bz2
    import gzip
    import lzma

    openers: dict[str, Callable[[IO[bytes]], Any]] = {"gz": gzip.open, "bz2": bz2.open, "xz": lzma.open}
    with openers[kind](file) as stream:
        yield stream


@contextmanager
def _created(path: str) -> Iterator[int]:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        target = os.open(path, flags, 0o600)
    except OSError as error:
        raise explained(error, path, "written") from error
    try:
        yield target
    except OSError as error:
        if isinstance(error, DlappError) or error.errno is None:
            raise
        raise explained(error, path, "written") from error
    finally:
        os.close(target)


def _make(path: str) -> None:
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise explained(error, path, "made") from error
