"""Trees of local files: what is in one, copying it, removing it."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dlapp.errors import Denied, DlappError, NotFound
from dlapp.storage import DiskFull, shown
from dlapp.storage.links import link_kept_inside, link_reader

COPY_CHUNK = 64 << 20
READ_CHUNK = 1 << 20

Note = Callable[[str], None]


class Node(NamedTuple):
    """One thing in a tree.

    Args:
        source: where it is.
        name: its path in the tree, empty for the tree itself.
        link: what the link is to say where the tree lands; None: it is no link.
    """

    source: str
    name: str
    mode: int
    size_bytes: int
    mtime_ns: int
    link: str | None = None

    @property
    def is_dir(self) -> bool:
        """Whether it is a directory."""
        return self.link is None and stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Whether it is a regular file."""
        return self.link is None and stat.S_ISREG(self.mode)


def explained(error: OSError, path: str, doing: str) -> DlappError:
    """The error of ours that says what became of ``path``."""
    line = f"{shown(path)} cannot be {doing}: {error.strerror}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(f"{line}; {room_at(path)}")
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return NotFound(line)
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return Denied(line)
    return DlappError(line)


def room_at(path: str) -> str:
    """How much is free where ``path`` is or would be, in words."""
    return f"{human_size(free_bytes(path))} are free there"


def free_bytes(path: str) -> int:
    """Bytes that may still be written where ``path`` is or would be."""
    there = existing_above(path)
    room = os.statvfs(there)
    return room.f_bavail * room.f_frsize


def existing_above(path: str) -> str:
    """``path`` or the nearest directory above it that is there."""
    while not os.path.exists(path):
        path = os.path.dirname(path)
    return path


def human_size(size_bytes: float) -> str:
    """A size in words: ``512 bytes``, ``1.5 GiB``."""
    if size_bytes < 1024:
        return f"{size_bytes:.0f} bytes"
    units = ["KiB", "MiB", "GiB", "TiB"]
    while size_bytes >= 1024 * 1024 and len(units) > 1:
        size_bytes /= 1024
        del units[0]
    return f"{size_bytes / 1024:.1f} {units[0]}"


class Pace:
    """How fast bytes come, in words.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._began, self._first = clock, clock(), -1

    def words(self, done: int, total: int) -> str:
        """``1.2 GiB of 5.0 GiB, 310.5 MiB/s, 13 s left``; what was there at the first call counts as no speed."""
        now = self._clock()
        if self._first < 0:
            self._began, self._first = now, done
        passed_s, came = now - self._began, done - self._first
        said = f"{human_size(done)} of {human_size(total)}"
        if passed_s <= 0 or came <= 0:
            return said
        return f"{said}, {human_size(came / passed_s)}/s, {_duration((total - done) * passed_s / came)} left"


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 120:
        return f"{whole} s"
    return f"{whole // 60} min" if whole < 7200 else f"{whole / 3600:.1f} h"


def nodes_to_store(top: str, *, seen_as: Sequence[str] = (), note: Note) -> tuple[list[Node], list[Node]]:
    """All of the tree ``top`` that can be kept, parents first; and what is not to stay there as it is.

    Links that lead out, sockets, FIFOs and devices are left out and noted. The second list has those, without
    ``link``, and the links that have to say something else than they do.
    """
    roots = [os.path.abspath(top), os.path.realpath(top), *(path.rstrip("/") for path in seen_as)]
    read_link = link_reader(top)
    nodes: list[Node] = []
    changed: list[Node] = []
    todo = [_node(top, "", os.stat(top))]
    while todo:
        node = todo.pop()
        if stat.S_ISLNK(node.mode):
            text = os.readlink(node.source)
            kept = link_kept_inside(node.name, text, roots, read_link)
            if kept is None:
                note(f"{shown(node.source)} is not stored: it is a link out of the output, to {shown(text)}")
            else:
                nodes.append(node._replace(link=kept))
            if kept != text:
                changed.append(node._replace(link=kept))
        elif node.is_dir:
            nodes.append(node)
            todo.extend(reversed(_children(node)))
        elif node.is_file:
            nodes.append(node)
        else:
            note(f"{shown(node.source)} is not stored: it is {kind_in_words(node.mode)}")
            changed.append(node)
    return nodes, changed


def nodes_to_fetch(top: str) -> list[Node]:
    """All of the tree ``top``, parents first. Links inside it stay links; what one that leads out names is taken.

    Raises:
        DlappError: something that is neither file nor directory, or links that lead in a circle.
        NotFound: a link that leads out of the tree, to nothing.
    """
    nodes: list[Node] = []
    # Each directory to look at, with the identities of the trees around it: itself, and those whose link led here.
    todo: list[tuple[str, str, tuple[tuple[int, int], ...]]] = [(top, "", ())]
    while todo:
        start, prefix, around = todo.pop()
        try:
            status = os.stat(start)
        except OSError as error:
            raise explained(error, start, "read") from error
        if not stat.S_ISDIR(status.st_mode):
            nodes.append(_fetchable(_node(start, prefix, status)))
            continue
        identity = (status.st_dev, status.st_ino)
        if identity in around:
            raise DlappError(f"{shown(start)} is a link to a directory above it, so it has no end")
        real = os.path.realpath(start)
        roots, read_link = [os.path.abspath(start), real], link_reader(real)
        inner = [_node(real, "", status)]
        while inner:
            node = inner.pop()
            name = f"{prefix}/{node.name}".strip("/") if node.name else prefix
            if stat.S_ISLNK(node.mode):
                kept = link_kept_inside(node.name, os.readlink(node.source), roots, read_link)
                if kept is None:
                    todo.append((node.source, name, (*around, identity)))
                else:
                    nodes.append(node._replace(name=name, link=kept))
                continue
            nodes.append(_fetchable(node._replace(name=name)))
            if node.is_dir:
                inner.extend(reversed(_children(node)))
    # What a link named was found late; its parents have come before it all the same.
    return nodes


def _fetchable(node: Node) -> Node:
    if not (node.is_dir or node.is_file):
        raise DlappError(f"{shown(node.source)} is neither a file nor a directory, but {kind_in_words(node.mode)}")
    return node


def _node(source: str, name: str, status: os.stat_result) -> Node:
    return Node(source, name, status.st_mode, status.st_size, status.st_mtime_ns)


def _children(node: Node) -> list[Node]:
    try:
        with os.scandir(node.source) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        return [
            _node(entry.path, f"{node.name}/{entry.name}".lstrip("/"), entry.stat(follow_symlinks=False))
            for entry in entries
        ]
    except OSError as error:
        raise explained(error, node.source, "read") from error


def kind_in_words(mode: int) -> str:
    """What a file of this mode is."""
    kinds = (
        (stat.S_ISFIFO, "a FIFO"),
        (stat.S_ISSOCK, "a socket"),
        (stat.S_ISCHR, "a character device"),
        (stat.S_ISBLK, "a block device"),
    )
    return next((words for test, words in kinds if test(mode)), "of an unknown kind")


def copy_nodes(
    nodes: Sequence[Node],
    into: str,
    *,
    merge: bool = False,
    owner_bits: int = 0,
    done: Callable[[int], None],
) -> None:
    """Make ``nodes`` anew under ``into``, with their permissions and modification times.

    Args:
        into: what the tree itself becomes; its parent is there.
        merge: directories may be there already; files and links never.
        owner_bits: permissions that the owner has in any case, of 0o600; directories get the x with them.
        done: told the number of bytes after each piece.

    Raises:
        DiskFull, Denied, NotFound, DlappError: it names the file.
    """
    made: list[tuple[str, Node]] = []
    for node in nodes:
        path = f"{into}/{node.name}" if node.name else into
        if node.link is not None:
            _make_link(node.link, path)
            os.utime(path, ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)
        elif node.is_dir:
            try:
                os.mkdir(path, 0o700)
                made.append((path, node))
            except FileExistsError:
                if not (merge and os.path.isdir(path)):
                    raise DlappError(f"{shown(path)} is there already") from None
            except OSError as error:
                raise explained(error, path, "made") from error
        else:
            copy_file(node, path, mode=node.mode & 0o777 | owner_bits, done=done)
    for path, node in reversed(made):
        os.chmod(path, node.mode & 0o777 | owner_bits | owner_bits >> 2 & 0o100)
        os.utime(path, ns=(node.mtime_ns, node.mtime_ns))


def _make_link(text: str, path: str) -> None:
    try:
        os.symlink(text, path)
    except FileExistsError:
        raise DlappError(f"{shown(path)} is there already") from None
    except OSError as error:
        raise explained(error, path, "made") from error


def copy_file(node: Node, path: str, *, mode: int, done: Callable[[int], None]) -> None:
    """Copy one file to the new name ``path``: sharing blocks where the file system can, keeping holes.

    Raises:
        DlappError: its size changed, or ``path`` is there already.
    """
    try:
        # O_NONBLOCK: a FIFO that took the file's place does not hold us up.
        source = os.open(node.source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise explained(error, node.source, "read") from error
    try:
        target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError:
        os.close(source)
        raise DlappError(f"{shown(path)} is there already") from None
    except OSError as error:
        os.close(source)
        raise explained(error, path, "written") from error
    try:
        status = os.fstat(source)
        size = node.size_bytes
        if stat.S_ISREG(status.st_mode) and status.st_size == size:
            copied = _copy_data(source, target, size, sparse=status.st_blocks * 512 < size, done=done)
        else:
            copied = -1
        if copied != size or os.fstat(source).st_size != size:
            raise DlappError(f"{shown(node.source)} changed while it was copied: it had {size} bytes")
        os.fchmod(target, mode)
        os.utime(target, ns=(node.mtime_ns, node.mtime_ns))
    except OSError as error:
        raise explained(error, path, "written") from error
    finally:
        os.close(source)
        os.close(target)


def _copy_data(source: int, target: int, size: int, *, sparse: bool, done: Callable[[int], None]) -> int:
    """Copy ``size`` bytes; how many there were."""
    at = 0
    while at < size:
        end = size
        if sparse:
            try:
                data = os.lseek(source, at, os.SEEK_DATA)
                end = min(size, os.lseek(source, data, os.SEEK_HOLE))
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                data = end = size  # nothing but a hole is left
            done(data - at)
            at = data
        while at < end:
            count = _copy_some(source, target, at, min(COPY_CHUNK, end - at))
            if count == 0:
                return at
            at += count
            done(count)
    os.ftruncate(target, size)
    return size


def _copy_some(source: int, target: int, at: int, count: int) -> int:
    try:
        copied = os.copy_file_range(source, target, count, at, at)
        if copied:
            return copied
    except OSError as error:
        # Two file systems before Linux 5.3, or one that cannot: the bytes go through us.
        if error.errno not in (errno.EXDEV, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS, errno.EPERM):
            raise
    piece = os.pread(source, min(READ_CHUNK, count), at)
    left = memoryview(piece)
    while left:
        left = left[os.pwrite(target, left, at + len(piece) - len(left)) :]
    return len(piece)


def remove_tree(path: str) -> None:
    """Remove a file, a link or a directory with all that it holds, also what is write-protected; gone is fine.

    Raises:
        Denied, DlappError: something cannot be removed; it is named.
    """
    try:
        status = os.lstat(path)
        if not stat.S_ISDIR(status.st_mode):
            os.unlink(path)
            return
    except FileNotFoundError:
        return
    except OSError as error:
        raise explained(error, path, "removed") from error
    # A directory is emptied on its first visit and removed on its second.
    todo: list[tuple[str, bool]] = [(path, False)]
    while todo:
        here, emptied = todo.pop()
        try:
            if emptied:
                os.rmdir(here)
                continue
            if os.lstat(here).st_mode & 0o700 != 0o700:
                os.chmod(here, 0o700)
            todo.append((here, True))
            with os.scandir(here) as found:
                for entry in found:
                    if entry.is_dir(follow_symlinks=False):
                        todo.append((entry.path, False))
                    else:
                        os.unlink(entry.path)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise explained(error, here, "removed") from error
