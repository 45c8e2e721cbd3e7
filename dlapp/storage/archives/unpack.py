"""Unpacking of untrusted tar and zip files.

Nothing is written outside the destination directory: absolute names, names with ``..``, and names that pass through a
link are refused. Links are created last, after all writes, and only those that stay inside. Nothing is overwritten.
Archives that expand out of proportion are refused before the disk is full. Devices, FIFOs and passwords are refused,
and so are archives that need more than 64 MiB of memory above their own size: zip files may use the methods stored and
deflate only (zipfile decompresses the others without a limit), headers are short, and the recorded directories and
links are limited. Permissions (without setuid and the like) and times are kept, owners are not.

Files unpacked before a refusal stay; the caller must discard the directory then.
"""

from __future__ import annotations

import os
import stat
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, Any

from dlapp.errors import DlappError
from dlapp.locations import shown
from dlapp.storage.links import link_kept_inside, link_reader
from dlapp.storage.tree import explained, explaining, make_directories
from dlapp.storage.values import DiskFull, FileTotals
from dlapp.system.disk_space import free_bytes, free_space_text, mount_point
from dlapp.system.files import closing_fd, is_plain_name, write_all
from dlapp.system.text import human_size

MAX_GROWTH = 200
"""Maximum ratio of an archive's content to its size; text and logs have 10 to 50."""
ALWAYS_ALLOWED = 1 << 30
_MEMBER_BYTES = 512
"""Size that a member counts in addition to its content, so that a million empty ones are limited, too."""
_PIECE = 1 << 20
_MAX_NAME = 4096
"""Maximum length of a member's path [characters]; the kernel accepts no longer one."""
_MAX_REMEMBERED = 32 << 20
"""Size limit of the names of directories and links in memory, each with `_REMEMBERED` bytes more for its objects."""
_REMEMBERED = 400
_MAX_DEPTH = 255
"""Maximum depth of a member. Data sets have ten levels; each level costs the kernel a look-up for each file below."""
_ZIP_MEMBER_BYTES = 1000
"""Memory of zipfile for one member; measured: 0.7 to 0.9 KiB."""
_ZIP_MEMORY_BYTES = 48 << 20
_MAGIC = (
    (b"PK\x03\x04", "zip"),
    (b"PK\x05\x06", "zip"),  # an empty one
    (b"\x1f\x8b", "gz"),
    (b"BZh", "bz2"),
    (b"\xfd7zXZ\x00", "xz"),
)


class ArchiveRefused(DlappError):
    """An archive that is invalid, is damaged, or has content that is not allowed."""


def unpack_archive(
    path: str, into: str, *, name: str | None = None, done: Callable[[int], None] = lambda count: None
) -> FileTotals:
    """Unpack the tar (plain, gzip, bzip2, xz) or zip file ``path`` into the directory ``into``.

    Args:
        path: the path of the archive.
        into: the directory.
        name: the name of the archive in messages.
        done: called with the number of archive bytes consumed, after each piece.

    Raises:
        ArchiveRefused: see the module's docstring.
        DiskFull: there is not enough space.
        DlappError: an existing file conflicts with a member.
    """
    with explaining(path, "read"), open(path, "rb") as file:
        return _ArchiveUnpacking(file, into, shown(name or path), done).run()


def _kind_of(file: IO[bytes]) -> str | None:
    head = file.read(512)
    file.seek(0)
    for magic, kind in _MAGIC:
        if head.startswith(magic):
            return kind
    return "tar" if head[257:262] == b"ustar" else None


class _ArchiveUnpacking:
    """Unpacking of one archive."""

    def __init__(self, file: IO[bytes], into: str, name: str, done: Callable[[int], None]) -> None:
        self._file, self._into, self._name, self._done = file, into, name, done
        self._size = os.fstat(file.fileno()).st_size
        self._most = max(ALWAYS_ALLOWED, MAX_GROWTH * self._size)
        self._free = free_bytes(into)
        self._count = self._files = self._bytes = self._told = self._remembered = 0
        self._directories: dict[str, tuple[int, float] | None] = {"": None}
        self._links: dict[str, str] = {}

    def run(self) -> FileTotals:
        kind = _kind_of(self._file)
        if kind is None:
            raise ArchiveRefused(f"{self._name} is neither a tar (plain, gzip, bzip2, xz) nor a zip file")
        make_directories(self._into)
        if kind == "zip":
            self._zip()
        else:
            self._tar(kind)
        self._make_links()
        for name, kept in reversed(self._directories.items()):
            if kept is not None:
                mode, mtime = kept
                os.chmod(self._at(name), mode & 0o777 | 0o700)
                with self._damage_named():  # a header may contain any time
                    os.utime(self._at(name), (mtime, mtime))
        self._report(self._size)
        return FileTotals(self._files, self._bytes)

    # ---- formats ----

    def _tar(self, kind: str) -> None:
        import tarfile

        from dlapp.storage.archives.streams import BoundedTarInfo, TarStream

        stream = TarStream(self._file, kind)
        source: Any = stream
        with (
            self._damage_named(tarfile.TarError),
            tarfile.open(
                fileobj=source, mode="r|", errorlevel=2, tarinfo=BoundedTarInfo, errors="surrogateescape"
            ) as tar,
        ):
            for member in tar:
                self._report(self._file.tell())
                stream.begin_content()
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
                    self._regular(name, content, member.mode, member.mtime, stream.begin_content)
                else:
                    raise ArchiveRefused(f"{self._name}: {shown(name)} is a device or a FIFO")
                tar.members.clear()  # type: ignore[attr-defined]  # else all of them stay in memory
                stream.begin_content()
            while piece := stream.read(_PIECE):
                # The checksum of the compressed data is at the end.
                stream.begin_content()
                self._check_size(len(piece))

    def _zip(self) -> None:
        import struct
        import zipfile

        damage = (zipfile.BadZipFile, NotImplementedError, struct.error, IndexError)
        with self._damage_named(*damage):
            self._check_members_of_zip()
        with self._damage_named(*damage), zipfile.ZipFile(self._file) as zip_file:
            used = 0
            for member in zip_file.infolist():
                name, mode = self._checked(member.filename), member.external_attr >> 16
                if member.flag_bits & 1:
                    raise ArchiveRefused(f"{self._name}: {shown(name)} needs a password")
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    method = zipfile.compressor_names.get(member.compress_type, str(member.compress_type))  # type: ignore[attr-defined]
                    raise ArchiveRefused(
                        f"{self._name}: {shown(name)} has the compression {method}; a zip may have stored and deflate"
                    )
                used += member.compress_size
                if used > self._size:
                    raise ArchiveRefused(f"{self._name} is an archive bomb: its members overlap")
                mtime = time.mktime((*member.date_time, 0, 0, -1))
                if member.is_dir():
                    self._directory(name, mode or 0o755, mtime)
                    continue
                with zip_file.open(member) as content:
                    if stat.S_ISLNK(mode):
                        self._link(name, os.fsdecode(content.read(_MAX_NAME)))
                    elif stat.S_IFMT(mode) in (0, stat.S_IFREG):
                        self._regular(name, content, mode or 0o644, mtime)
                    else:
                        raise ArchiveRefused(f"{self._name}: {shown(name)} is a device or a FIFO")
                self._report(used)

    def _check_members_of_zip(self) -> None:
        """Count the members before zipfile loads all of them into memory."""
        import zipfile

        record: Any = zipfile._EndRecData(self._file)  # type: ignore[attr-defined]
        if not record:
            raise zipfile.BadZipFile("it has no end")
        size = int(record[5])  # of the central directory
        self._file.seek(max(0, self._size - size - (1 << 17)))  # and the bytes that may follow it
        count, before = 0, b""
        while piece := self._file.read(_PIECE):
            count += (before + piece).count(b"PK\x01\x02")
            before = piece[-3:]
        self._file.seek(0)
        if max(count, 1) * _ZIP_MEMBER_BYTES + size > self._size + _ZIP_MEMORY_BYTES:
            raise ArchiveRefused(f"{self._name} has {count} members in {human_size(self._size)}; pack it as a tar")

    @contextmanager
    def _damage_named(self, *kinds: type[Exception]) -> Iterator[None]:
        import lzma

        others = (zlib.error, lzma.LZMAError, EOFError, ValueError, OverflowError, RuntimeError)
        damage: tuple[type[Exception], ...] = (*kinds, *others)
        try:
            yield
        except DlappError:
            raise
        except damage as error:
            raise ArchiveRefused(f"{self._name} is damaged: {error}") from error
        except OSError as error:
            if error.errno is not None:
                raise
            raise ArchiveRefused(f"{self._name} is damaged: {error}") from error  # how gzip and bz2 report it

    # ---- members ----

    def _checked(self, text: str) -> str:
        """Return a member's name as a path below ``into``. Raises ArchiveRefused."""
        self._check_size(_MEMBER_BYTES)
        parts = [part for part in text.split("/") if part not in ("", ".")] if len(text) <= _MAX_NAME else []
        if text.startswith("/") or "\0" in text:
            raise ArchiveRefused(
                f"{self._name} has a member that is named {shown(text[:200])}: that is not a relative path"
            )
        if ".." in parts:
            raise ArchiveRefused(f"{self._name} has a member that would land elsewhere: {shown(text[:200])}")
        if len(parts) > _MAX_DEPTH:
            deep = f"{len(parts)} levels deep, {_MAX_DEPTH} are the maximum"
            raise ArchiveRefused(f"{self._name} has a member that is {deep}: {shown(text[:200])}")
        if len(text) > _MAX_NAME or not all(map(is_plain_name, parts)):
            raise ArchiveRefused(
                f"{self._name} has a member that is named {shown(text[:200])}: that is not a file name"
            )
        return "/".join(parts)

    def _directory(self, name: str, mode: int, mtime: float) -> None:
        if not name:
            return
        self._parent_of(f"{name}/")
        self._directories[name] = (mode, mtime)

    def _parent_of(self, name: str) -> None:
        """Create the parent directories of ``name``; none of them may be a link."""
        above = name.rpartition("/")[0]
        if above in self._directories:
            return
        missing = []
        while above and above not in self._directories:
            missing.append(above)
            above = above.rpartition("/")[0]
        for directory in reversed(missing):
            self._make_directory(directory, name)

    def _make_directory(self, directory: str, name: str) -> None:
        self._remember(len(directory))
        path = self._at(directory)
        no_directory = ArchiveRefused(
            f"{self._name}: {shown(name)} cannot be unpacked: {shown(path)} is not a directory"
        )
        if directory in self._links:
            raise no_directory
        try:
            os.mkdir(path, 0o755)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(path).st_mode):
                raise no_directory from None
        except OSError as error:
            raise explained(error, path, "made") from error
        self._directories[directory] = None

    def _remember(self, size: int) -> None:
        self._remembered += size + _REMEMBERED
        if self._remembered > _MAX_REMEMBERED:
            raise ArchiveRefused(f"{self._name} has too many directories and links")

    def _regular(
        self,
        name: str,
        content: IO[bytes],
        mode: int,
        mtime: float,
        goes_on: Callable[[], None] = lambda: None,
    ) -> None:
        """Write a file; ``goes_on`` is called after each piece."""
        path = self._free_place(name)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        with explaining(path, "written"), closing_fd(os.open(path, flags, 0o600)) as target:
            while piece := content.read(_PIECE):
                goes_on()
                self._check_size(len(piece))
                write_all(target, piece)
                self._bytes += len(piece)
            os.fchmod(target, mode & 0o777 | 0o600)
            os.utime(target, (mtime, mtime))
        self._files += 1

    def _hard_link(self, name: str, other: str) -> None:
        source = self._at(other)
        # The target must be a file from this archive, or exist here: never through a link.
        if other.rpartition("/")[0] not in self._directories or not os.path.isfile(source) or os.path.islink(source):
            raise ArchiveRefused(f"{self._name}: {shown(name)} is a link to {shown(other)}, which is not before it")
        with open(source, "rb") as content:
            status = os.fstat(content.fileno())
            self._regular(name, content, status.st_mode, status.st_mtime)

    def _link(self, name: str, text: str) -> None:
        self._free_place(name)
        if not text or len(text) > _MAX_NAME or "\0" in text:
            raise ArchiveRefused(f"{self._name}: {shown(name)} is a link to what cannot be a name")
        self._remember(len(name) + len(text))
        self._links[name] = text

    def _free_place(self, name: str) -> str:
        path = self._at(name)
        if not name:
            raise ArchiveRefused(f"{self._name} has a member without a name")
        self._parent_of(name)
        if name in self._links or os.path.lexists(path):
            raise DlappError(f"{self._name} cannot be unpacked: {shown(path)} already exists")
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

    def _check_size(self, count: int) -> None:
        self._count += count
        if self._count > self._most:
            raise ArchiveRefused(
                f"{self._name} is an archive bomb: {human_size(self._size)} become more than {human_size(self._most)}"
            )
        if self._bytes + count > self._free:
            raise DiskFull(
                f"{self._name} unpacked is more than {shown(self._into)} can take; {free_space_text(self._into)}",
                place=mount_point(self._into),
            )

    def _report(self, used: int) -> None:
        if used > self._told:
            self._done(used - self._told)
            self._told = used

    def _at(self, name: str) -> str:
        return f"{self._into}/{name}" if name else self._into
