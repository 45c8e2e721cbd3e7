"""Opening files in directories that other users can write to, and the walk and removal of trees that programs made.

A name in such a directory may be a symbolic link, a FIFO, a device, another user's file, or a huge file, and may be
replaced between two calls. So no decision is based on a path: each name is opened relative to the descriptor of its
directory with O_NOFOLLOW and O_NONBLOCK, and the opened file is checked by fstat before any byte is read or written.
After that only the descriptor is used.

Guarantees: no link is followed, no open blocks, no device is opened for reading or writing, no file of an unexpected
owner is used, and no read exceeds its limit. The content is not guaranteed: a file of the expected owner is still data.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Collection, Iterator
from typing import Any

from dlapp.errors import Denied, DlappError
from dlapp.value import Record, field

NAME_MAX = 255
"""The longest name of a file [bytes]. Source: limits.h."""
PATH_MAX = 4095
"""The longest path [bytes], without the NUL at its end. Source: limits.h."""

OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
_NOT_IN_NAMES = re.compile("[/\\x00-\\x1f\\x7f-\\x9f]")
_KINDS = (
    (stat.S_ISLNK, "a symbolic link"),
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISREG, "a regular file"),
)


class UntrustedFile(DlappError, OSError):
    """A file is not used because another user may have put it there.

    Attributes:
        path: the path of the file.
        problem: why it is not used, e.g. ``"is a symbolic link"``.
    """

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.path, self.problem), vars(self)  # OSError's own would only contain the text

    def __str__(self) -> str:
        return f"{self.path}: {self.problem}"


def is_plain_name(name: str) -> bool:
    """Return whether an untrusted name is a single directory entry: no path, no control characters."""
    try:
        size = len(name) if name.isascii() else len(os.fsencode(name))
    except UnicodeEncodeError:
        return False  # half of a surrogate pair, which JSON allows
    return 0 < size <= NAME_MAX and name not in (".", "..") and not _NOT_IN_NAMES.search(name)


def is_plain_path(path: str) -> bool:
    """Return whether an untrusted path is relative and consists of plain names, so that it cannot leave its
    directory.
    """
    return all(map(is_plain_name, path.split("/")))


class NoHome(FileNotFoundError):
    """The user's home directory does not exist."""

    def __init__(self, home: str) -> None:
        super().__init__(errno.ENOENT, "this home directory does not exist", home)


def is_inside(path: str, directory: str) -> bool:
    """Return whether a path is ``directory`` or inside it; neither is resolved. Both are absolute, or both are relative
    and not ``.``.
    """
    return path == directory or path.startswith(directory.rstrip("/") + "/")


def make_below_home(path: str, mode: int = 0o777) -> None:
    """Create a directory and those above it, as `os.makedirs` does, but not the user's home.

    Users such as nobody have a home that must not exist (/nonexistent), and root could create it.

    Raises:
        NoHome: it lies in a home that does not exist.
    """
    home = os.path.expanduser("~")
    if is_inside(path, home) and not os.path.isdir(home):
        raise NoHome(home)
    os.makedirs(path, mode, exist_ok=True)


def sync_file_system(fd: int) -> None:
    """Sync a whole file system: one call; syncing file by file would wait for the disk for each.

    Raises:
        OSError: it failed; write errors are reported since Linux 5.8. Source: syncfs(2).
    """
    import ctypes

    if ctypes.CDLL(None, use_errno=True).syncfs(fd) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def sync_directory(path: str) -> None:
    """Sync the names in a directory."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as fd:
        os.fsync(fd)


def write_all(fd: int, data: bytes | memoryview) -> None:
    """Write all data: one call may write only a part, for example when the disk becomes full."""
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def open_directory(
    name: str, *, dir_fd: int | None = None, path: str = "", owners: Collection[int] | None = None
) -> int:
    """Open a directory without following a link in its last component; the descriptor is not inherited.

    Args:
        name: one component below ``dir_fd``, or a path whose parents only trusted users can write to.
        dir_fd: descriptor of the directory of ``name``.
        path: absolute path, for messages; empty for ``name``.
        owners: allowed owners; None for any.

    Raises:
        FileNotFoundError: it does not exist.
        UntrustedFile: it is not a directory, or belongs to another user.
    """
    where = path or name
    try:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            raise UntrustedFile(where, f"is {_kind_of(name, dir_fd)}, not a directory") from error
        raise
    if owners is not None:
        with closing_on_error(fd):
            _check_owner(os.fstat(fd), where, owners)
    return fd


def open_file(
    name: str,
    *,
    dir_fd: int | None = None,
    path: str = "",
    owners: Collection[int] | None = None,
    write: bool = False,
    max_bytes: int | None = None,
    kind: int = stat.S_IFREG,
) -> int:
    """Open an existing file, without following a link or blocking; the descriptor is not inherited.

    Args:
        name: one component below ``dir_fd``, or a path whose parents only trusted users can write to.
        dir_fd: descriptor of the directory of ``name``.
        path: absolute path, for messages; empty for ``name``.
        owners: allowed owners; None for any.
        write: whether to open it for reading and writing.
        max_bytes: maximum size [bytes]; None for no limit.
        kind: required type: ``stat.S_IFREG`` or ``stat.S_IFIFO``.

    Raises:
        FileNotFoundError: it does not exist.
        PermissionError: this process may not open it.
        UntrustedFile: it has another type, belongs to another user, or is larger than ``max_bytes``.
    """
    where = path or name
    # O_PATH first: opening a device or a FIFO can have side effects (a tape rewinds, a reader sees a writer).
    with closing_fd(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as handle:
        found = os.fstat(handle)
        if stat.S_IFMT(found.st_mode) != kind:
            raise UntrustedFile(where, f"is {_kind(found.st_mode)}, not {_kind(kind)}")
        _check_owner(found, where, owners)
        if max_bytes is not None and found.st_size > max_bytes:
            raise UntrustedFile(where, f"has {found.st_size} bytes, at most {max_bytes} are allowed")
        access = os.O_RDWR if write else os.O_RDONLY
        # The same file, even if the name was replaced. Source: open(2), O_PATH; proc(5), /proc/pid/fd.
        try:
            return os.open(f"/proc/self/fd/{handle}", access | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            error.filename = where
            raise


def has_reader(name: str, *, dir_fd: int | None = None, path: str = "", owners: Collection[int] | None = None) -> bool:
    """Return whether any process has a FIFO open for reading; errors as of `open_file`.

    Args:
        name, dir_fd, path, owners: see `open_file`.

    Raises:
        UntrustedFile: also if it is not a FIFO.
    """
    with closing_fd(os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=dir_fd)) as handle:
        found = os.fstat(handle)
        if not stat.S_ISFIFO(found.st_mode):
            raise UntrustedFile(path or name, f"is {_kind(found.st_mode)}, not a FIFO")
        _check_owner(found, path or name, owners)
        try:
            os.close(os.open(f"/proc/self/fd/{handle}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC))
        except OSError as error:
            if error.errno == errno.ENXIO:  # Source: fifo(7)
                return False
            raise
        return True


def read_file(
    name: str, *, dir_fd: int | None = None, path: str = "", owners: Collection[int] | None = None, max_bytes: int
) -> bytes:
    """Return the content of a regular file; errors as of `open_file`.

    Args:
        name, dir_fd, path, owners, max_bytes: see `open_file`.

    Raises:
        UntrustedFile: also if it grew beyond ``max_bytes`` while it was read.
    """
    fd = open_file(name, dir_fd=dir_fd, path=path, owners=owners, max_bytes=max_bytes)
    with os.fdopen(fd, "rb", buffering=0) as file:
        pieces, left = [], max_bytes + 1
        while left and (piece := file.read(left)):
            pieces.append(piece)
            left -= len(piece)
    if not left:
        raise UntrustedFile(path or name, f"has more than {max_bytes} bytes")
    return b"".join(pieces)


def read_json_object(
    name: str, *, dir_fd: int | None = None, path: str = "", owners: Collection[int] | None = None, max_bytes: int
) -> dict[str, Any]:
    """Return the JSON object in a regular file; errors as of `read_file`.

    Args:
        name, dir_fd, path, owners, max_bytes: see `open_file`.

    Raises:
        UntrustedFile: also if it is not a JSON object, or nested too deeply.
    """
    return json_object(read_file(name, dir_fd=dir_fd, path=path, owners=owners, max_bytes=max_bytes), path=path or name)


def json_object(data: bytes, *, path: str) -> dict[str, Any]:
    """Parse untrusted bytes as a JSON object.

    Raises:
        UntrustedFile: they are not a JSON object, or nested too deeply.
    """
    import json

    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UntrustedFile(path, f"is not JSON: {str(error)[:200]}") from error
    if not isinstance(value, dict):
        raise UntrustedFile(path, "is not a JSON object")
    return value


def list_names(dir_fd: int, *, limit: int) -> list[str]:
    """Return the names in a directory, sorted, at most ``limit`` of them."""
    found: list[str] = []
    with os.scandir(dir_fd) as entries:
        for entry in entries:
            if len(found) >= limit:
                break
            found.append(entry.name)
    return sorted(found)


@contextlib.contextmanager
def closing_fd(fd: int) -> Iterator[int]:
    """Yield an open descriptor, and close it at the end."""
    try:
        yield fd
    finally:
        os.close(fd)


@contextlib.contextmanager
def closing_on_error(fd: int) -> Iterator[None]:
    """Close an open descriptor if the block raises."""
    try:
        yield
    except BaseException:
        os.close(fd)
        raise


def open_own_directory(name: str, *, dir_fd: int | None = None, path: str = "", uid: int | None = None) -> int:
    """Open a directory that only a user, and root, can write to; errors as of `open_directory`.

    Args:
        name, dir_fd, path: see `open_file`.
        uid: the user; None for the caller.

    Raises:
        UntrustedFile: also if others can write to it.
    """
    fd = open_directory(name, dir_fd=dir_fd, path=path, owners={os.geteuid() if uid is None else uid})
    if os.fstat(fd).st_mode & OTHERS_WRITE:
        os.close(fd)
        raise UntrustedFile(path or name, "others may write there; remove it, or chmod go-w it if all in it is yours")
    return fd


def check_own_directory(path: str, uid: int | None = None) -> None:
    """Refuse a directory that `open_own_directory` refuses, with its errors."""
    os.close(open_own_directory(path, uid=uid))


def shown_path(path: str) -> str:
    """Return a path for a message; one below a descriptor is shown with the descriptor's path."""
    words = path.split("/")
    if words[1:4] == ["proc", "self", "fd"]:
        with contextlib.suppress(OSError):
            return os.path.join(os.readlink("/".join(words[:5])), *words[5:])
    return path


def _check_owner(found: os.stat_result, where: str, owners: Collection[int] | None) -> None:
    if owners is not None and found.st_uid not in owners:
        raise UntrustedFile(where, f"belongs to uid {found.st_uid}")


def _kind_of(name: str, dir_fd: int | None) -> str:
    try:
        # A path that ends in "/." may be reached by a link: `open_directory` follows all but the last component.
        return _kind(os.stat(name.removesuffix("/."), dir_fd=dir_fd, follow_symlinks=False).st_mode)
    except OSError:
        return "gone"


def _kind(mode: int) -> str:
    return next((text for test, text in _KINDS if test(mode)), "of an unknown type")


# ---- trees that programs may have made ----

_MAX_OPEN = 64
"""Directories that are open at a time."""


def walk(top: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each directory of a tree before those below it, as `os.walk` does: its path, the names of its directories
    and those of its other entries. Links are not followed; what is removed from the list of directories is not entered.

    `os.walk` of Python 3.11 calls itself for each level, so a program could end the caller by a deep tree. This one has
    a stack, and ends at the longest path that the kernel takes. A directory that cannot be read is empty.
    """
    todo = [top]
    while todo:
        directory = todo.pop()
        directories: list[str] = []
        others: list[str] = []
        with contextlib.suppress(OSError), os.scandir(directory) as entries:
            for entry in entries:
                with contextlib.suppress(OSError):
                    (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
        yield directory, directories, others
        todo += [os.path.join(directory, name) for name in reversed(directories)]


def remove_tree(path: str, *, dir_fd: int | None = None, name: str = "", number: int | None = None) -> None:
    """Remove a file, a link or a directory tree, also if write-protected; a missing one is no error.

    No link is followed, even if one replaces a directory meanwhile: all operations use descriptors.

    Args:
        path: its absolute path.
        dir_fd, name: its directory and its name there; without them ``path`` is removed.
        number: the inode number that it must have; None for any.

    Raises:
        UntrustedFile: it has another inode number than ``number``.
        Denied, DlappError: an entry cannot be removed; the message names it.
    """
    name = name or path
    with _removing(path):
        try:
            found = os.lstat(name, dir_fd=dir_fd)
            if number not in (None, found.st_ino):
                raise UntrustedFile(path, "is not what was to be removed")
            if not stat.S_ISDIR(found.st_mode):
                os.unlink(name, dir_fd=dir_fd)
                return
        except FileNotFoundError:
            return
    stack: list[_Emptied] = []
    try:
        _enter(stack, _Emptied(dir_fd, name, path, number=number))
        while stack:
            here = stack[-1]
            if here.inner:
                inner = here.inner.pop()
                below = _Emptied(here.fd, inner, f"{here.path}/{inner}")
                if len(stack) < _MAX_OPEN:
                    _enter(stack, below)
                else:
                    _hoist(stack[0], below)
                continue
            stack.pop()
            os.close(here.fd)
            with _removing(here.path), contextlib.suppress(FileNotFoundError):
                os.rmdir(here.name, dir_fd=here.above)
    finally:
        for one in stack:
            os.close(one.fd)


class _Emptied(Record):
    """A directory that is being emptied: descriptor ``fd``, with the name ``name`` in ``above``.

    Args:
        inner: names of its remaining subdirectories.
        number: the inode number that it must have; None for any.
    """

    above: int | None
    name: str
    path: str
    fd: int = -1
    inner: list[str] = field(default_factory=list)
    number: int | None = None


def _enter(stack: list[_Emptied], one: _Emptied) -> None:
    """Remove everything but subdirectories from a directory, and push it on the stack; a missing one is no error."""
    with _removing(one.path), contextlib.suppress(FileNotFoundError):
        one.fd = _open_for_removal(one)
        stack.append(one)
        if one.number not in (None, os.fstat(one.fd).st_ino):
            raise UntrustedFile(one.path, "is not what was to be removed")
        with os.scandir(one.fd) as found:
            for entry in found:
                if entry.is_dir(follow_symlinks=False):
                    one.inner.append(entry.name)
                else:
                    with contextlib.suppress(FileNotFoundError):
                        os.unlink(entry.name, dir_fd=one.fd)


def _open_for_removal(one: _Emptied) -> int:
    flags = os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        fd = os.open(one.name, os.O_RDONLY | flags, dir_fd=one.above)
    except PermissionError:
        # Its owner may change that, through a descriptor that needs no permission.
        with closing_fd(os.open(one.name, os.O_PATH | flags, dir_fd=one.above)) as handle:
            os.chmod(f"/proc/self/fd/{handle}", 0o700)
            return os.open(f"/proc/self/fd/{handle}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if os.fstat(fd).st_mode & 0o700 != 0o700:
            os.fchmod(fd, 0o700)
    except BaseException:
        os.close(fd)
        raise
    return fd


def _hoist(top: _Emptied, one: _Emptied) -> None:
    """Move a directory that is nested too deep into the outermost one, to be removed there."""
    new = f".dlapp-remove-{os.urandom(8).hex()}"
    with _removing(one.path), contextlib.suppress(FileNotFoundError):
        os.close(_open_for_removal(one))  # makes it writable, which moving a directory requires
        os.rename(one.name, new, src_dir_fd=one.above, dst_dir_fd=top.fd)
        top.inner.append(new)


@contextlib.contextmanager
def _removing(path: str) -> Iterator[None]:
    """Raise an error of the kernel as one of dlapp."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DlappError) or error.errno is None:  # the kernel's have an errno
            raise
        name = shown_path(path)
        line = f"{name if name.isprintable() else repr(name)} cannot be removed: {error.strerror}"
        raise (Denied if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) else DlappError)(line) from error
