"""``hdfs://``: files on Hadoop's distributed file system, by WebHDFS.

Trees travel many files at once: most of a small file's time is waiting for the NameNode and a DataNode. What is written
goes first under a name that is the caller's alone, and only a rename gives it the one that others look at.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Sequence
from typing import IO, TypeVar

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.storage import DiskFull, Entry, HdfsPlace, Moved, Progress, shown
from dlapp.storage.files import check_free_names, counter
from dlapp.storage.glob import split_pattern
from dlapp.storage.tree import Node, explained, free_bytes, human_size, nodes_to_store, room_at
from dlapp.storage.webhdfs import Status, WebHdfs

AT_ONCE = 8
"""Files on their way at a time; more do not make two cores faster, and a cluster has other users."""

T = TypeVar("T")


class HdfsFiles:
    """The `dlapp.storage.FileSystem` of ``hdfs://`` locations, and small files of our own there. Any thread may call.

    Args:
        web: who makes the calls; default: a new one for ``place``.
    """

    def __init__(self, place: HdfsPlace, web: WebHdfs | None = None) -> None:
        self.place = place
        self.web = web or WebHdfs(place)

    # ---- FileSystem ----

    def matches(self, pattern: str) -> list[Entry]:
        """See `FileSystem.matches`."""
        found: dict[str, Entry] = {}
        for components in split_pattern(self.place.path(pattern)):
            for path, status in self._matching(components):
                size = 0 if status.is_dir else status.size_bytes
                found[path] = Entry(self.place.location + path, status.is_dir, size)
        return [found[path] for path in sorted(found)]

    def exists(self, location: str) -> bool:
        """See `FileSystem.exists`."""
        return self.web.status(self.place.path(location)) is not None

    def fetch(self, entries: Sequence[Entry], into: str, *, progress: Progress | None = None) -> Moved:
        """See `FileSystem.fetch`. Permissions and modification times are kept; the new owner can read and write all."""
        into = into.rstrip("/") or "/"
        trees: list[tuple[str, list[Node]]] = []
        for entry in entries:
            path = self.place.path(entry.location)
            trees.append((os.path.join(into, path.rpartition("/")[2]), self._nodes(path)))
        check_free_names(trees)
        files = [(node, f"{landing}/{node.name}".rstrip("/")) for landing, nodes in trees for node in nodes]
        total = sum(node.size_bytes for node, _ in files)
        if total > free_bytes(into):
            raise DiskFull(f"the input has {human_size(total)}, more than {shown(into)} can take; {room_at(into)}")
        directories = [(node, path) for node, path in files if node.is_dir]
        files = [(node, path) for node, path in files if node.is_file]
        _make_directories([into, *(path for _, path in directories)])
        done = counter(total, progress)
        _all_at_once(lambda one, tell: self._fetch_file(one[0], one[1], tell), files, done)
        self._check_unchanged(trees, entries)
        for node, path in reversed(directories):
            os.chmod(path, node.mode & 0o777 | 0o700)
            os.utime(path, ns=(node.mtime_ns, node.mtime_ns))
        return Moved(len(files), total)

    def store(
        self,
        local: str,
        location: str,
        *,
        move: bool = False,
        seen_as: Sequence[str] = (),
        note: Callable[[str], None] | None = None,
    ) -> Moved:
        """See `FileSystem.store`. Permissions, modification times and empty directories are kept.

        HDFS has no links: one to a file becomes a copy of it, one to a directory or to nothing is noted. ``move`` makes
        no difference: all of it is sent.
        """
        top, note = self.place.path(location), note or _nothing
        if not os.path.exists(local):
            raise NotFound(f"{shown(local)}: there is no such file or directory to store")
        nodes = _without_links(nodes_to_store(local, seen_as=seen_as, note=note)[0], note)
        _check_names(nodes, top)
        self._remove(top)
        self.web.make_directory(top.rpartition("/")[0] or "/")
        directories = [(node, f"{top}/{node.name}".rstrip("/")) for node in nodes if node.is_dir]
        files = [(node, f"{top}/{node.name}".rstrip("/")) for node in nodes if node.is_file]
        # One at a time and parents first, so that no directory gets the permissions of a parent made on the way.
        for _, path in directories:
            self.web.make_directory(path, 0o700)
        _all_at_once(lambda one, _: self._store_file(*one), files, _ignore)
        self._check_stored(top, files)
        for node, path in reversed(directories):
            self.web.set_mode(path, node.mode & 0o777)
            self.web.set_mtime(path, node.mtime_ns // 1_000_000)
        return Moved(len(files), sum(node.size_bytes for node, _ in files))

    def check_writable(self, target: str) -> None:
        """See `FileSystem.check_writable`. It tries, in the nearest directory above the target that is there."""
        path = self.place.path(target)
        if path == "/":
            raise UsageError(f"{shown(target)} is the root of HDFS; output needs a name inside it")
        _check_name(path)
        above, found = path, None
        while found is None:
            above = above.rpartition("/")[0] or "/"
            found = self.web.status(above)
        if not found.is_dir:
            raise UsageError(f"{shown(target)} cannot be made: {shown(self.place.location + above)} is not a directory")
        probe = f"{above.rstrip('/')}/.dlapp-probe-{os.urandom(6).hex()}"
        try:
            self.web.make_directory(probe, 0o700)
        finally:
            self.web.delete(probe)
        there = self.web.status(path)
        if there and found.mode & stat.S_ISVTX and self.place.user not in (there.owner, found.owner):
            raise Denied(f"{shown(target)} belongs to {there.owner}, and {shown(above)} lets only owners replace")

    def remove(self, location: str) -> None:
        """See `FileSystem.remove`."""
        self._remove(self.place.path(location))

    # ---- small files of our own ----

    def read_bytes(self, location: str) -> bytes:
        """All of a small file. Raises NotFound."""
        return self.web.read_bytes(self.place.path(location))

    def write_atomic(self, location: str, data: bytes, mode: int = 0o644) -> None:
        """Put a small file there, in place of one that is: a reader sees the one or the other, whole."""
        self._write_new(location, data, mode, overwrite=True)

    def create_exclusive(self, location: str, data: bytes, mode: int = 0o644) -> bool:
        """Put a small file there, whole, if nothing is; False: something is. Of many at once, one gets True."""
        return self._write_new(location, data, mode, overwrite=False)

    def names(self, location: str) -> list[str]:
        """The names in a directory, sorted. A log is written as files of their own, one for each piece, in order.

        Raises:
            NotFound: it is not there.
        """
        return [one.name for one in self.web.children(self.place.path(location))]

    def make_directory(self, location: str, mode: int = 0o755) -> None:
        """Make a directory with those above it; one that is there stays as it is."""
        self.web.make_directory(self.place.path(location), mode)

    # ---- how ----

    def _matching(self, components: Sequence[str | re.Pattern[str]]) -> list[tuple[str, Status]]:
        paths: list[tuple[str, Status | None]] = [("", None)]
        for component in components:
            if isinstance(component, str):
                # Looked at only when it matters: at a wildcard, or at the end.
                paths = [(f"{path}/{component}", None) for path, _ in paths]
                continue
            paths = [
                (f"{path}/{one.name}", one)
                for path, status in paths
                if status is None or status.is_dir
                for one in self._children_if_any(path or "/")
                if component.fullmatch(one.name)
            ]
        looked = ((path or "/", status or self.web.status(path or "/")) for path, status in paths)
        return [(path, status) for path, status in looked if status is not None]

    def _children_if_any(self, path: str) -> list[Status]:
        try:
            return [one for one in self.web.children(path) if one.name]
        except NotFound:
            return []

    def _nodes(self, top: str) -> list[Node]:
        """All of a tree on HDFS, parents first."""
        status = self.web.status(top)
        if status is None:
            raise NotFound(f"{shown(self.place.location + top)} is gone")
        nodes, todo = [], [("", status)]
        while todo:
            name, status = todo.pop()
            path = f"{top}/{name}".rstrip("/") or "/"
            if status.link is not None:
                raise DlappError(f"{shown(self.place.location + path)} is a symbolic link, which HDFS itself gave up")
            nodes.append(_node(self.place.location + path, name, status))
            if status.is_dir:
                inner = [(f"{name}/{one.name}".lstrip("/"), one) for one in self.web.children(path)]
                todo.extend(reversed(inner))
        return nodes

    def _fetch_file(self, node: Node, path: str, tell: Callable[[int], None]) -> None:
        try:
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise explained(error, path, "written") from error
        with open(target, "wb", buffering=0) as file:
            for piece in self.web.read(self.place.path(node.source), node.size_bytes):
                _write_all(file, piece, path)
                tell(len(piece))
            os.fchmod(target, node.mode & 0o777 | 0o600)
            os.utime(target, ns=(node.mtime_ns, node.mtime_ns))

    def _check_unchanged(self, trees: Sequence[tuple[str, list[Node]]], entries: Sequence[Entry]) -> None:
        for entry, (_, nodes) in zip(entries, trees, strict=True):
            now = {node.source: node for node in self._nodes(self.place.path(entry.location))}
            for node in nodes:
                if node.is_file and now.get(node.source) != node:
                    raise DlappError(f"{shown(node.source)} changed while it was fetched")

    def _store_file(self, node: Node, path: str) -> None:
        def opened() -> IO[bytes]:
            try:
                return open(node.source, "rb")
            except OSError as error:
                raise explained(error, node.source, "read") from error

        self.web.write(path, opened if node.size_bytes else b"", node.mode & 0o777)
        self.web.set_mtime(path, node.mtime_ns // 1_000_000)

    def _check_stored(self, top: str, files: Sequence[tuple[Node, str]]) -> None:
        """Compare with what was to be stored; a DataNode takes its own mask off permissions."""
        there = {node.source: node for node in self._nodes(top)}
        for node, path in files:
            stored = there.get(self.place.location + path)
            if stored is None or stored.size_bytes != node.size_bytes:
                has = "nothing" if stored is None else f"{stored.size_bytes} bytes"
                raise DlappError(
                    f"{shown(node.source)} changed while it was stored: it had {node.size_bytes} bytes, "
                    f"{shown(path)} has {has}"
                )
            if stored.mode & 0o777 != node.mode & 0o777:
                self.web.set_mode(path, node.mode & 0o777)

    def _remove(self, path: str) -> None:
        try:
            self.web.delete(path)
        except Denied:
            # Of a directory that may not be written, HDFS removes nothing; its owner may change that.
            status = self.web.status(path)
            if status is None or not status.is_dir:
                raise
            self._open_up(path)
            self.web.delete(path)

    def _open_up(self, path: str) -> None:
        self.web.set_mode(path, 0o700)
        for one in self.web.children(path):
            if one.is_dir:
                self._open_up(f"{path}/{one.name}")

    def _write_new(self, location: str, data: bytes, mode: int, *, overwrite: bool) -> bool:
        path = self.place.path(location)
        _check_name(path)
        directory, _, name = path.rpartition("/")
        temporary = f"{directory}/.{name[:200]}.{os.urandom(6).hex()}"
        try:
            self.web.write(temporary, data, mode)
            done = self.web.rename(temporary, path, overwrite=overwrite)
        except BaseException:
            self._forget(temporary)
            raise
        if not done:
            self._forget(temporary)
        return done

    def _forget(self, temporary: str) -> None:
        try:
            self.web.delete(temporary)
        except DlappError:
            return  # What is to be said is already on its way; a hidden file stays.


def _node(location: str, name: str, status: Status) -> Node:
    kind = stat.S_IFDIR if status.is_dir else stat.S_IFREG
    size = 0 if status.is_dir else status.size_bytes
    return Node(location, name, kind | status.mode, size, status.mtime_ms * 1_000_000)


def _check_names(nodes: Iterable[Node], top: str) -> None:
    for node in nodes:
        _check_name(f"{top}/{node.name}")


def _check_name(path: str) -> None:
    """Source: org.apache.hadoop.hdfs.DFSUtilClient.isValidName."""
    for part in path.split("/"):
        if ":" in part:
            raise UsageError(f"{shown(path)}: HDFS has no names with a colon")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{shown(path)}: names on HDFS are UTF-8, and this one is not") from None


def _without_links(nodes: Sequence[Node], note: Callable[[str], None]) -> list[Node]:
    kept = []
    for node in nodes:
        if node.link is not None:
            try:
                status = os.stat(node.source)
            except OSError:
                note(f"{shown(node.source)} is not stored: it is a link to nothing, and HDFS has no links")
                continue
            if not stat.S_ISREG(status.st_mode):
                note(f"{shown(node.source)} is not stored: it is a link to a directory, and HDFS has no links")
                continue
            node = Node(node.source, node.name, status.st_mode, status.st_size, status.st_mtime_ns)
        kept.append(node)
    return kept


def _make_directories(paths: Sequence[str]) -> None:
    for path in paths:
        try:
            os.makedirs(path, exist_ok=True)
        except OSError as error:
            raise explained(error, path, "made") from error


def _write_all(file: IO[bytes], piece: bytes, path: str) -> None:
    left = memoryview(piece)
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        raise explained(error, path, "written") from error


def _all_at_once(
    work: Callable[[T, Callable[[int], None]], None], items: Sequence[T], done: Callable[[int], None]
) -> None:
    """Do ``work`` with every item, `AT_ONCE` at a time; after the first failure no further one is begun.

    ``done`` hears, in the caller's thread, what the workers tell.
    """
    import queue
    import threading

    todo: queue.SimpleQueue[T] = queue.SimpleQueue()
    heard: queue.SimpleQueue[int | None] = queue.SimpleQueue()
    failures: list[BaseException] = []
    for item in items:
        todo.put(item)

    def run() -> None:
        try:
            while not failures:
                work(todo.get_nowait(), heard.put)
        except queue.Empty:
            pass
        except BaseException as error:
            failures.append(error)
        finally:
            heard.put(None)

    threads = [threading.Thread(target=run, name=f"hdfs-{number}") for number in range(min(AT_ONCE, len(items)))]
    for thread in threads:
        thread.start()
    try:
        running = len(threads)
        while running:
            told = heard.get()
            if told is None:
                running -= 1
            else:
                done(told)
    except BaseException as error:
        failures.append(error)
        raise
    finally:
        for thread in threads:
            thread.join()
    if failures:
        raise failures[0]


def _nothing(_line: str) -> None:
    pass


def _ignore(_count: int) -> None:
    pass
