"""Other file systems, for input: all that fsspec supports, by scheme (s3, gcs, abfs, http and more).

Names below a bucket are literal, without escapes, and patterns are Hadoop's as everywhere. A web address is one file;
its ``?``, ``*`` and ``%`` are part of the address.

An object store keeps no permissions, and some no modification time: files get default permissions, and the time of the
fetch. Output cannot be stored there (`dlapp.storage.open.open_output`): none of them can replace a directory
atomically.

fsspec finds the credentials: on the machine that fetches, where its libraries look for them.

If a location names a server (``ftp://host/name``), each thread has its own connection to it: not every library lets
threads share one, or reconnects by itself.
"""

from __future__ import annotations

import math
import os
import re
import stat
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from dlapp.errors import Denied, DlappError, NotFound, Unreachable, UsageError
from dlapp.locations import shown
from dlapp.storage.fetch_plan import run_parallel
from dlapp.storage.glob import split_pattern
from dlapp.storage.tree import explaining, make_directories
from dlapp.storage.values import FetchTarget, MatchedEntry, TreeNode
from dlapp.system.clock import backoff_s
from dlapp.system.files import closing_fd, is_plain_name, write_all
from dlapp.system.waits import Wait

PARALLEL_READS = 8
RANGE_BYTES = 16 << 20
"""Size of one request; an incomplete answer is requested again."""
MAX_NODES, MAX_PATH, MAX_LENGTH = 1 << 22, 8000, 1 << 50
"""Files and directories in one tree, characters of a path, bytes of a file: more than there are."""
TRIES, FIRST_PAUSE_S = 5, 0.2
_WEB = frozenset({"http", "https"})
_TIMES = ("mtime", "LastModified", "last_modified", "updated", "modified", "created")


class RemoteFiles:
    """The `dlapp.storage.api.FileSystem` of a scheme that fsspec has; read-only.

    Raises:
        UsageError: fsspec, or a library that it needs for this scheme, is not installed; or the scheme is unknown.
    """

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        try:
            import fsspec
        except ImportError:
            install = "pip install '/path/to/the/clone[fsspec]'"
            raise UsageError(f"{scheme}:// needs a library that is not here: {install}") from None
        try:
            self._class: Any = fsspec.get_filesystem_class(scheme)
        except ImportError as missing:
            raise UsageError(f"{scheme}:// needs a library that is not here: {missing}") from None
        except ValueError:
            raise UsageError(f"there is no storage for {scheme}://") from None
        self._shared: Any = None
        self._own = threading.local()

    # ---- FileSystem ----

    def matches(self, pattern: str) -> list[MatchedEntry]:
        if self.scheme in _WEB:
            found = self._info(pattern)
            return [] if found is None else [_entry(pattern, found)]
        entries: dict[str, MatchedEntry] = {}
        for components in split_pattern("/" + pattern.partition("://")[2]):
            for location, info in self._matching(components):
                entries[location] = _entry(location, info)
        return [entries[location] for location in sorted(entries)]

    def exists(self, location: str) -> bool:
        return self._info(location) is not None

    def tree(self, entry: MatchedEntry) -> list[TreeNode]:
        """See `FileSystem.tree`. An unknown modification time is 0."""
        info = self._info(entry.location)
        if info is None:
            raise NotFound(f"{shown(entry.location)} is gone")
        nodes: list[TreeNode] = []
        todo = [("", entry.location.rstrip("/"), info)]
        while todo:
            name, location, info = todo.pop()
            if len(nodes) >= MAX_NODES or len(location) > MAX_PATH:
                raise DlappError(f"{shown(entry.location)} has more than {MAX_NODES} files, or a loop")
            nodes.append(_node(location, name, info))
            if _is_dir(info):
                inner = [
                    (f"{name}/{last}".lstrip("/"), f"{location}/{last}", one) for last, one in self._list(location)
                ]
                todo.extend(reversed(inner))
        return nodes

    def fetch(self, targets: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        """See `FileSystem.fetch`. Several files in parallel."""
        places = [pair for one in targets for pair in one.places()]
        directories = [(node, path) for node, path in places if node.is_dir]
        for _, path in directories:
            make_directories(path)
        files = [(node, path) for node, path in places if node.is_file]
        run_parallel(lambda one, report: self._fetch_file(*one, report), files, done, parallelism=PARALLEL_READS)
        for node, path in reversed(directories):
            if node.mtime_ns:
                os.utime(path, ns=(node.mtime_ns, node.mtime_ns))

    def read_range(self, node: TreeNode, fd: int, start: int, end: int) -> None:
        """See `FileSystem.read_range`.

        Args:
            node, fd, start, end: see there.
        """
        os.lseek(fd, start, os.SEEK_SET)
        for piece in self._pieces(node, start, end):
            write_all(fd, piece)

    # ---- reading metadata ----

    def _matching(self, components: Sequence[str | re.Pattern[str]]) -> list[tuple[str, Mapping[str, Any]]]:
        found: list[tuple[str, Mapping[str, Any] | None]] = [(f"{self.scheme}:/", None)]
        for component in components:
            if isinstance(component, str):
                found = [(f"{location}/{component}", None) for location, _ in found]
            else:
                found = [
                    (f"{location}/{name}", info)
                    for location, _ in found
                    for name, info in self._list(location)
                    if component.fullmatch(name)
                ]
        looked = ((location, info or self._info(location)) for location, info in found)
        return [(location, info) for location, info in looked if info is not None]

    def _info(self, location: str) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, Any] = self._call(location, lambda fs: fs.info(location))
        except NotFound:
            return None
        return found

    def _list(self, location: str) -> list[tuple[str, Mapping[str, Any]]]:
        """Return last name and description of all entries of a directory, sorted; empty if it is not a directory."""
        try:
            listed = self._call(location, lambda fs: fs.ls(location, detail=True))
        except NotFound:
            return []
        own = self._class._strip_protocol(location).strip("/")
        inner = {}
        for one in listed:
            path = one.get("name") if isinstance(one, Mapping) else None
            if not isinstance(path, str):
                raise DlappError(f"{shown(location)} cannot be listed: its server sent something else")
            if path.strip("/") == own:
                continue  # a file, or the marker that a console creates for an empty directory, lists itself
            name = path.rstrip("/").rpartition("/")[2]
            if not is_plain_name(name):
                raise DlappError(
                    f"{shown(location)} has something that is named {shown(name)}; that is not a file name"
                )
            inner[name] = one
        return sorted(inner.items())

    def _fs(self, location: str) -> Any:
        """Return fsspec's file system of a location."""
        try:
            options = self._class._get_kwargs_from_urls(location)
            if not options:
                self._shared = self._shared or self._class()
                return self._shared
            if getattr(self._own, "options", None) != options:
                self._own.fs, self._own.options = self._class(**options, skip_instance_cache=True), options
        except ImportError as missing:
            raise UsageError(f"{self.scheme}:// needs a library that is not here: {missing}") from None
        except TypeError as error:
            raise UsageError(
                f"{self.scheme}:// cannot be used: it needs more than a location ({_line(error)})"
            ) from None
        return self._own.fs

    def _call(self, location: str, call: Callable[[Any], Any]) -> Any:
        """Return the result of ``call``, retried several times; its errors are converted to ours."""
        wait = Wait(f"{self.scheme}://{location.partition('://')[2].partition('/')[0]}", None)
        try:
            return self._tried(location, call, wait)
        finally:
            wait.end()

    def _tried(self, location: str, call: Callable[[Any], Any], wait: Wait) -> Any:
        """Start the wait after the first failed try: a long try may be a large piece that arrives slowly."""
        for left, pause_s in zip(reversed(range(TRIES)), backoff_s(FIRST_PAUSE_S, math.inf), strict=False):
            try:
                return call(self._fs(location))
            except (FileNotFoundError, NotADirectoryError) as error:
                raise NotFound(f"{shown(location)}: nothing is there") from error
            except PermissionError as error:
                raise Denied(f"{shown(location)} may not be read: {_line(error)}") from error
            except DlappError:
                raise
            except Exception as error:
                # Each library has its own errors; which of them are transient is not known for all.
                self._own.options = None
                if not left:
                    raise Unreachable(
                        f"{shown(location)} cannot be read: {_line(error)} (tried {TRIES} times)"
                    ) from error
                wait.why = _line(error)
                wait.begin()
            time.sleep(pause_s)
        raise AssertionError

    # ---- fetching ----

    def _fetch_file(self, node: TreeNode, path: str, report: Callable[[int], None]) -> None:
        location = node.source
        with explaining(path, "written"):
            target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with closing_fd(target):
            for piece in self._pieces(node, 0, node.size_bytes):
                with explaining(path, "written"):
                    write_all(target, piece)
                report(len(piece))
            now = self._info(location)
            if now is None or _node(location, node.name, now) != node:
                raise DlappError(f"{shown(location)} changed while it was fetched")
            os.fchmod(target, node.mode & 0o777)
            if node.mtime_ns:
                os.utime(target, ns=(node.mtime_ns, node.mtime_ns))

    def _pieces(self, node: TreeNode, start: int, end: int) -> Iterator[bytes]:
        for at in range(start, end, RANGE_BYTES):
            until = min(at + RANGE_BYTES, end)
            yield self._call(node.source, lambda fs: self._piece(fs, node, at, until))  # noqa: B023

    def _piece(self, fs: Any, node: TreeNode, at: int, end: int) -> bytes:
        piece: bytes = fs.cat_file(node.source, start=at, end=end)
        if len(piece) == node.size_bytes != end - at:
            piece = piece[at:end]  # a server without range requests
        if len(piece) != end - at:
            raise OSError(f"received {len(piece)} bytes instead of {end - at}")
        return piece


def _entry(location: str, info: Mapping[str, Any]) -> MatchedEntry:
    is_dir = _is_dir(info)
    return MatchedEntry(location, is_dir, 0 if is_dir else _size(location, info))


def _node(location: str, name: str, info: Mapping[str, Any]) -> TreeNode:
    if _is_dir(info):
        return TreeNode(location, name, stat.S_IFDIR | 0o755, 0, _mtime_ns(info))
    return TreeNode(location, name, stat.S_IFREG | 0o644, _size(location, info), _mtime_ns(info))


def _is_dir(info: Mapping[str, Any]) -> bool:
    return bool(info.get("type") == "directory")


def _size(location: str, info: Mapping[str, Any]) -> int:
    size = info.get("size")
    if size is None:
        raise DlappError(f"{shown(location)}: its server does not say how large it is, so it cannot be fetched")
    if not isinstance(size, (int, float)) or not 0 <= size < MAX_LENGTH:
        raise DlappError(f"{shown(location)}: its server reports {str(size)[:40]} bytes")
    return int(size)


def _mtime_ns(info: Mapping[str, Any]) -> int:
    for name in _TIMES:
        value: Any = info.get(name)
        try:
            if hasattr(value, "timestamp"):
                value = value.timestamp()
            elif isinstance(value, str):
                from datetime import datetime

                value = datetime.fromisoformat(value).timestamp()
        except (ValueError, OverflowError):
            continue
        if isinstance(value, (int, float)) and 0 <= value < 1 << 40:
            return int(value * 1000) * 1_000_000
    return 0


def _line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__
