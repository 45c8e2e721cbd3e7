"""Trees of files that programs may have made: of any depth, with links and modes of their choice."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator

from dlapp.errors import Denied, DlappError
from dlapp.system.files import UntrustedFile, closing_fd, shown_path
from dlapp.value import Record, field

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
