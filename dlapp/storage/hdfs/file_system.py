"""``hdfs://``: files on Hadoop's distributed file system.

Many files of a tree are transferred in parallel: most of a small file's time is waiting for the NameNode and a
DataNode. A file is first written under a unique temporary name, and then renamed to its final name.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from dlapp.errors import Denied, DlappError, NotFound, UsageError
from dlapp.locations import WEBHDFS, HdfsPlace, shown
from dlapp.net.http import RequestBody
from dlapp.storage.fetch_plan import run_parallel
from dlapp.storage.glob import split_pattern
from dlapp.storage.hdfs.webhdfs import INODES, FileStatus, HdfsRefused, WebHdfs, WrongAnswer, calling
from dlapp.storage.tree import OpenTree, explaining, make_directories, nodes_to_store
from dlapp.storage.values import FetchTarget, FileTotals, LeftOut, MatchedEntry, TreeNode, Workspace, ignore
from dlapp.system.files import UntrustedFile, closing_fd, is_plain_name, write_all

if TYPE_CHECKING:
    from dlapp.storage.commit.marker import OutputCommit

PARALLEL_READS = 8
"""Files on their way at a time; more do not make two cores faster, and a cluster has other users."""
PARALLEL_WRITES = 16
"""Number of parallel writes. Closing a small file takes up to 400 ms in which both sides wait: the NameNode has no
report of its block yet. Measured with 600 files of 4 KiB on two cores: 16 at a time take 0.6 of the time of 8, 32 take
as long as 16."""
PROBE_BYTES = 4096
"""Enough for a DataNode to pass on to the others of its pipeline."""
BATCH_FILES, BATCH_BYTES = 64, 1 << 20
"""Maximum number and total size of small files in one request to a DataNode, by `WebHdfs.read_small`."""
SMALL_BYTES = 1 << 20
"""Files of up to this size are many, and most of their time is waiting: see `WebHdfs.fetch`, ``direct_to_datanode``."""
RANGE_BYTES = 128 << 20
"""Size of a range that is fetched at once: HDFS' usual block, so that ranges come from different DataNodes."""
MAX_NODES = 1 << 22
"""Files and directories in one tree that is read."""
_REPLICATION = "REPLICATION"
"""The erasure coding policy of a directory that has none in one that has. Source: ErasureCodeConstants."""
MAX_PATH = 8000
"""The longest path [characters]. Source: org.apache.hadoop.hdfs.protocol.HdfsConstants, MAX_PATH_LENGTH."""


class HdfsFiles:
    """The `OutputFileSystem` of ``hdfs://`` locations, and small files of dlapp's own there. Thread-safe.

    Args:
        web: makes the calls; default: a new one for ``place``.
    """

    def __init__(self, place: HdfsPlace, web: WebHdfs | None = None) -> None:
        self.place = place
        self.web = web or open_hdfs(place)
        self.lock = threading.Lock()

    # ---- FileSystem ----

    def matches(self, pattern: str) -> list[MatchedEntry]:
        found: dict[str, MatchedEntry] = {}
        for components in split_pattern(self.place.path(pattern)):
            for path, status in self._matching(components):
                size = 0 if status.is_dir else status.size_bytes
                found[path] = MatchedEntry(self.place.location + path, status.is_dir, size)
        return [found[path] for path in sorted(found)]

    def exists(self, location: str) -> bool:
        return self.web.status(self.place.path(location)) is not None

    def tree(self, entry: MatchedEntry) -> list[TreeNode]:
        return self._nodes(self.place.path(entry.location), readable=True)

    def fetch(self, targets: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        """See `FileSystem.fetch`. Many files in parallel, and several ranges of a large one."""
        directories = [(node, path) for one in targets for node, path in one.places() if node.is_dir]
        files = [(node, path) for one in targets for node, path in one.places() if node.is_file]
        for _, path in directories:
            make_directories(path)
        jobs = list(self._jobs_of(files))
        are_large = sum(node.size_bytes for node, _ in files) > len(files) * SMALL_BYTES
        parallelism = self.web.parallel_large_reads if are_large else PARALLEL_READS
        run_parallel(
            lambda job, report: job.run(report), jobs, done, parallelism=parallelism, abort_calls=self.web.abort_calls
        )
        self._check_unchanged(targets)
        for node, path in reversed(directories):
            os.chmod(path, node.mode & 0o777 | 0o700)
            os.utime(path, ns=(node.mtime_ns, node.mtime_ns))

    def read_range(self, node: TreeNode, fd: int, start: int, end: int) -> None:
        """See `FileSystem.read_range`.

        Args:
            node, fd, start, end: see there.
        """
        direct_to_datanode = node.size_bytes <= SMALL_BYTES
        self.web.fetch(self.place.path(node.source), fd, start, end, ignore, direct_to_datanode=direct_to_datanode)

    def store(
        self,
        local: str,
        location: str,
        *,
        move: bool = False,
        workspace: Workspace | None = None,
        replaces: str = "",
        note: Callable[[str], None] | None = None,
        left_out: Callable[[LeftOut], None] = ignore,
    ) -> FileTotals:
        """Store a file or a tree; see `FileSystem.store`. Permissions, modification times and empty directories are
        kept.

        HDFS has no links: each is replaced by what it leads to. ``move`` has no effect: everything is sent. HDFS
        encodes and places a file by the policies of its directory when it is written, so the policies of ``replaces``
        are applied before.

        Args:
            local, location, move, workspace, replaces, note, left_out: see there.
        """
        top, note = self.place.path(location), note or ignore
        if not os.path.exists(local):
            raise NotFound(f"{shown(local)}: there is no such file or directory to store")
        around = workspace or Workspace(local)
        with contextlib.closing(OpenTree(local, around.path)) as tree:
            found = nodes_to_store(
                tree, payload_paths=around.seen_as, note=note, keep_links=False, mounted=around.mounted
            )
            for one in found.left_out:
                left_out(one)
            nodes = found.nodes
            for node in nodes:
                _check_name(f"{top}/{node.name}")
            with self._own_parent(top) as place:
                if replaces:
                    for lack in self.copy_policies(self.place.path(replaces), place.rpartition("/")[0] or "/"):
                        note(f"{shown(replaces)}: {lack}")
                self._remove(place, self.web.clear)
                directories = [(node, f"{place}/{node.name}".rstrip("/")) for node in nodes if node.is_dir]
                files = [(node, f"{place}/{node.name}".rstrip("/")) for node in nodes if node.is_file]
                # Sequentially and parents first: no directory gets the permissions of an implicitly created parent.
                for _, path in directories:
                    self.web.make_directory(path, 0o700)
                run_parallel(
                    lambda one, report: self._store_file(tree, *one, report),
                    files,
                    ignore,
                    parallelism=PARALLEL_WRITES,
                    abort_calls=self.web.abort_calls,
                )
                self._check_stored(place, files)
                for node, path in reversed(directories):
                    self.web.set_mode(path, node.mode & 0o777)
                    self.web.set_mtime(path, node.mtime_ns // 1_000_000)
        for path in found.linked:
            around.linked(path)
        return FileTotals(len(files), sum(node.size_bytes for node, _ in files))

    @contextlib.contextmanager
    def _own_parent(self, top: str) -> Iterator[str]:
        """Yield the path for accessing ``top`` in a directory that only the user can write to, created if needed.

        The directory is addressed by its inode number, if available: others may be able to rename another one to its
        name.

        Raises:
            UntrustedFile: others own the directory or can write to it.
        """
        above, _, name = top.rpartition("/")
        self.web.make_directory(above or "/", 0o700)
        found = self.check_own_directory(above or "/")
        place = f"{INODES}/{found.inode_id}/{name}" if self.web.has_inode_paths() else top
        with calling(place, top):
            yield place

    def move_stored(self, location: str, new: str) -> None:
        old, top = self.place.path(location), self.place.path(new)
        if self.web.status(old) is None:
            return
        above, _, name = old.rpartition("/")
        found = self.check_own_directory(above)
        source = f"{INODES}/{found.inode_id}/{name}" if self.web.has_inode_paths() else old
        with self._own_parent(top) as place:
            try:
                is_renamed = self.web.rename(source, place)
            except NotFound:
                if self.web.status(place) is None:
                    raise
                return  # another process has just done it
        if not is_renamed and self.web.status(old) is not None:
            raise DlappError(f"{shown(new)} is there, so {shown(location)} cannot be renamed to it")

    def check_own_directory(self, path: str) -> FileStatus:
        """Return the status of a directory that only the user can write to.

        Raises:
            UntrustedFile: something else has that name, or others own it or can write to it.
            NotFound: it does not exist.
        """
        status, where = self.web.status(path), self.place.location + path
        if status is None:
            raise NotFound(f"{shown(where)} is gone")
        if not status.is_dir:
            raise UntrustedFile(where, "is not a directory")
        if status.owner != self.place.login.user:
            raise UntrustedFile(where, f"belongs to {shown(status.owner)}")
        if status.mode & 0o022:
            raise UntrustedFile(where, "others may write there; remove it, or chmod go-w it if all in it is yours")
        return status

    def copy_policies(self, path: str, to: str) -> list[str]:
        """Apply the effective storage policy and erasure coding policy of one directory to another.

        Returns:
            A description of those that ``to`` does not get; empty if one of the two is not a directory.
        """
        old, new = self.web.status(path), self.web.status(to)
        if old is None or new is None or not (old.is_dir and new.is_dir):
            return []
        steps: list[tuple[str, Callable[[], None]]] = []
        if old.storage_policy not in (0, new.storage_policy):
            steps.append(("storage policy", lambda: self.web.copy_storage_policy(path, to)))
        if (name := old.ec_policy or _REPLICATION) != (new.ec_policy or _REPLICATION):
            steps.append((f"erasure coding policy {name}", lambda: self.web.set_ec_policy(to, name)))
        lacks = []
        for what, step in steps:
            try:
                step()
            except (HdfsRefused, Denied, WrongAnswer) as error:
                lacks.append(f"what replaces it does not get its {what}: {error}")
        return lacks

    def probe_store(self, location: str) -> None:
        """See `OutputFileSystem.probe_store`. The file is named like a marker that is not yet valid: if the task dies
        in between, the file is removed with the directory by the commit.

        Raises:
            UntrustedFile: others own the directory of the parts or can write to it.
        """
        above = self.place.path(location).rpartition("/")[0]
        with self._own_parent(f"{above}/commit.{os.urandom(6).hex()}") as place:
            try:
                self.web.write(place, bytes(PROBE_BYTES), 0o600, parents=False)
            finally:
                with contextlib.suppress(DlappError):
                    self.web.clear(place, file=True)

    def check_writable(self, target: str, *, overwrite: bool = True) -> list[str]:
        """See `FileSystem.check_writable`. It writes a test file to the nearest existing directory above the target."""
        path = self.place.path(target)
        if path == "/":
            raise UsageError(f"{shown(target)} is the root of HDFS; output needs a name inside it")
        _check_name(path)
        self.check_one_destination(target)
        above, found = path, None
        while found is None:
            above = above.rpartition("/")[0] or "/"
            found = self.web.status(above)
        if not found.is_dir:
            raise UsageError(f"{shown(target)} cannot be made: {shown(self.place.location + above)} is not a directory")
        if overwrite and (mount := next((one for one in self.web.mounts() if f"{one}/".startswith(f"{path}/")), "")):
            what = "is" if mount == path else f"holds {shown(mount)},"
            problem = f"{what} a mount point of the HDFS Router, so it cannot be replaced; name a directory in it"
            raise UsageError(f"{shown(target)} {problem}")
        probe, lacks = f"{above.rstrip('/')}/.dlapp-probe-{os.urandom(6).hex()}", list[str]()
        there = self.web.status(path)
        try:
            self.web.make_directory(probe, 0o700)
            if there and there.is_dir:
                lacks = self.copy_policies(path, probe)
        finally:
            self.web.delete_if_empty(probe)
        if there and found.mode & stat.S_ISVTX and self.place.login.user not in (there.owner, found.owner):
            raise Denied(f"{shown(target)} belongs to {there.owner}, and {shown(above)} lets only owners replace")
        if there and there.is_dir and (problem := self._why_not_replaced(path, there, around=found)):
            raise UsageError(f"{shown(target)} {problem}, so it cannot be replaced; name a directory in it")
        return lacks

    def check_one_destination(self, location: str) -> None:
        """Refuse a path below a mount point of an HDFS Router with several destinations.

        There a directory has an inode in each destination, and a rename checks for a file of the new name only in the
        destination of the old one: no output can be committed, and of several concurrent creates of one file more than
        one succeeds.

        Raises:
            UsageError: the path is below such a mount point.

        Source: RouterClientProtocol.rename2, getRenameDestinations.
        """
        path, mounts = self.place.path(location), self.web.mounts()
        mount = max((one for one in mounts if f"{path}/".startswith(f"{one.rstrip('/')}/")), key=len, default="")
        if mounts.get(mount, 1) > 1:
            raise UsageError(
                f"{shown(location)} is below the mount point {shown(mount)} of the HDFS Router, which has "
                f"{mounts[mount]} destinations; dlapp writes only where there is one"
            )

    def _why_not_replaced(self, path: str, status: FileStatus, *, around: FileStatus) -> str:
        """Return why a directory must keep its inode, so that it cannot be replaced; empty if it can.

        Source: FSDirRenameOp.validateRenameSource; EncryptionZoneManager; DFSUtil.checkProtectedDescendants.
        """
        if status.encrypted and not around.encrypted:
            return "is the root of an encryption zone"
        for one in self.place.protected:
            if one.rstrip("/") == path:
                return "is one of fs.protected.directories"
            if one.startswith(f"{path}/"):
                return f"holds {shown(one.rstrip('/'))}, one of fs.protected.directories"
            if one.endswith("/") and path.startswith(one):
                return f"is below {shown(one.rstrip('/'))}, one of fs.protected.directories"
        if snapshots := self.web.with_snapshots(path):
            return "has snapshots" if snapshots == path else f"holds {shown(snapshots)}, which has snapshots"
        return "has a quota of its own" if self.web.has_quota(path) else ""

    def remove(self, location: str) -> None:
        self._remove(self.place.path(location), self.web.delete)

    def make_own_directory(self, location: str) -> None:
        path = self.place.path(location)
        self.web.make_directory(path, 0o700)
        self.check_own_directory(path)

    def replace_file(self, fd: int, size_bytes: int, location: str, mode: int) -> None:
        """See `OutputFileSystem.replace_file`.

        Args:
            fd, size_bytes, location, mode: see there.
        """
        self._write_new(location, RequestBody(fd, size_bytes) if size_bytes else b"", mode, overwrite=True)

    def remove_in_own(self, location: str, name: str) -> None:
        path = self.place.path(location)
        try:
            found = self.check_own_directory(path)
        except NotFound:
            return
        place = f"{INODES}/{found.inode_id}" if self.web.has_inode_paths() else path
        with calling(place, path):
            self._remove(f"{place}/{name}", self.web.clear)
            self.web.delete_if_empty(place)

    def abort_calls(self, threads: Collection[int]) -> contextlib.AbstractContextManager[Callable[[], None]]:
        return self.web.abort_calls(threads)

    def output_commit(self, target: str, app: str) -> OutputCommit:
        from dlapp.storage.commit.hdfs import HdfsCommit

        return HdfsCommit(self, target, app)

    def interrupted_commits(self, target: str) -> list[str]:
        from dlapp.storage.commit.hdfs import applications_with_marker

        return applications_with_marker(self, target)

    # ---- small files of dlapp's own ----

    def read_bytes(self, location: str, max_bytes: int) -> bytes:
        """Return the content of a small file. Raises NotFound."""
        return self.web.read_bytes(self.place.path(location), max_bytes)

    def write_atomic(self, location: str, data: bytes, mode: int = 0o644) -> None:
        """Write a small file, atomically replacing an existing one."""
        self._write_new(location, data, mode, overwrite=True)

    def create_exclusive(self, location: str, data: bytes | RequestBody, mode: int = 0o644) -> bool:
        """Create a small file atomically; return False if the name exists, for all but one of concurrent calls."""
        return self._write_new(location, data, mode, overwrite=False)

    def names(self, location: str) -> list[str]:
        """Return the names in a directory, sorted. A log is written as one file for each piece, in order.

        Raises:
            NotFound: it does not exist.
        """
        return [one.name for one in self.web.children(self.place.path(location))]

    def make_directory(self, location: str, mode: int = 0o755) -> None:
        """Create a directory and its parents; an existing one stays unchanged."""
        self.web.make_directory(self.place.path(location), mode)

    # ---- implementation ----

    def _matching(self, components: Sequence[str | re.Pattern[str]]) -> list[tuple[str, FileStatus]]:
        paths: list[tuple[str, FileStatus | None]] = [("", None)]
        for component in components:
            if isinstance(component, str):
                # Checked only when needed: at a wildcard, or at the end.
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

    def _children_if_any(self, path: str) -> list[FileStatus]:
        try:
            return [one for one in self.web.children(path) if one.name]
        except NotFound:
            return []

    def _nodes(self, top: str, *, readable: bool = False) -> list[TreeNode]:
        """Return all nodes of a tree on HDFS, parents first; with ``readable`` refuse a file that may not be read."""
        status = self.web.status(top)
        if status is None:
            raise NotFound(f"{shown(self.place.location + top)} is gone")
        nodes: list[TreeNode] = []
        todo = [("", status)]
        while todo:
            name, status = todo.pop()
            path = f"{top}/{name}".rstrip("/") or "/"
            if len(nodes) >= MAX_NODES or len(path) > MAX_PATH:
                raise DlappError(f"{shown(self.place.location + top)} has more than {MAX_NODES} files, or a loop")
            if status.link is not None:
                raise DlappError(f"{shown(self.place.location + path)} is a symbolic link, which HDFS does not support")
            nodes.append(_node(self.place.location + path, name, status))
            if readable and not status.is_dir and not (status.mode & 0o004):
                # Whether its owner, its group or an ACL allows it, only HDFS knows.
                self.web.check_readable(path)
            if status.is_dir:
                inner = [(f"{name}/{one.name}".lstrip("/"), one) for one in self.web.children(path, located=readable)]
                todo.extend(reversed(inner))
        return nodes

    def _jobs_of(self, files: Iterable[tuple[TreeNode, str]]) -> Iterator[_Range | _SmallFileBatch]:
        """Return the jobs that fetch files, each with its local path."""
        batches: dict[tuple[str, int], _SmallFileBatch] = {}
        for node, path in files:
            source = self.place.path(node.source)
            server = self.web.small_file_server(source, node.size_bytes) if node.size_bytes <= SMALL_BYTES else None
            if server is None:
                yield from self._jobs(node, path)
                continue
            job = batches.setdefault(server, _SmallFileBatch(self))
            job.add(source, node, path)
            if job.is_full:
                yield batches.pop(server)
        yield from batches.values()

    def _jobs(self, node: TreeNode, path: str) -> list[_Range]:
        """Return the jobs that fetch one file: the whole file, or ranges of it that can be fetched in parallel."""
        count = max(1, -(-node.size_bytes // RANGE_BYTES))
        left = [count]
        edges = [min(number * RANGE_BYTES, node.size_bytes) for number in range(count + 1)]
        return [_Range(self, node, path, start, end, left) for start, end in itertools.pairwise(edges)]

    def _check_unchanged(self, targets: Sequence[FetchTarget]) -> None:
        for target in targets:
            now = {node.source: node for node in self._nodes(self.place.path(target.entry.location))}
            for node in target.nodes:
                if node.is_file and now.get(node.source) != node:
                    raise DlappError(f"{shown(node.source)} changed while it was fetched")

    def _store_file(self, tree: OpenTree, node: TreeNode, path: str, report: Callable[[int], None]) -> None:
        mode, direct_to_datanode = node.mode & 0o777, node.size_bytes <= SMALL_BYTES
        with explaining(node.source, "read"):
            file = tree.open(node.source)
        with closing_fd(file):
            source = RequestBody(file, node.size_bytes) if node.size_bytes else b""
            # Its directory exists; a late retry must not recreate one that was renamed since.
            self.web.write(path, source, mode, parents=False, direct_to_datanode=direct_to_datanode, report=report)
            now = os.fstat(file)
            if (now.st_size, now.st_mtime_ns) != (node.size_bytes, node.mtime_ns):
                raise DlappError(f"{shown(node.source)} changed while it was stored: it had {node.size_bytes} bytes")
        self.web.set_mtime(path, node.mtime_ns // 1_000_000)

    def _check_stored(self, top: str, files: Sequence[tuple[TreeNode, str]]) -> None:
        """Compare with the expected permissions; a DataNode applies its own umask."""
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

    def _remove(self, path: str, delete: Callable[[str], None]) -> None:
        try:
            delete(path)
        except Denied:
            # HDFS removes nothing from a directory without write permission; its owner may change that.
            status = self.web.status(path)
            if status is None or not status.is_dir:
                raise
            self._open_up(path)
            delete(path)

    def _open_up(self, path: str) -> None:
        self.web.set_mode(path, 0o700)
        for one in self.web.children(path):
            if one.is_dir:
                self._open_up(f"{path}/{one.name}")

    def _write_new(self, location: str, data: bytes | RequestBody, mode: int, *, overwrite: bool) -> bool:
        path = self.place.path(location)
        _check_name(path)
        # Without its name, which may have all bytes of a name.
        temporary = f"{path.rpartition('/')[0]}/.dlapp-{os.urandom(8).hex()}"
        done = False
        try:
            self.web.write(temporary, data, mode)
            done = self.web.rename(temporary, path, overwrite=overwrite)
            return done
        finally:
            if not done:
                # If this fails, too, the original error is more important; a hidden file stays.
                with contextlib.suppress(DlappError):
                    self.web.delete(temporary)


def open_hdfs(place: HdfsPlace, **options: Any) -> WebHdfs:
    """Return the client of an HDFS, native or WebHDFS by ``place.protocol``; ``options``: see `WebHdfs`."""
    if place.protocol == WEBHDFS:
        return WebHdfs(place, **options)
    from dlapp.storage.hdfs.native import NativeHdfs

    return NativeHdfs(place, **options)


def _node(location: str, name: str, status: FileStatus) -> TreeNode:
    kind = stat.S_IFDIR if status.is_dir else stat.S_IFREG
    size = 0 if status.is_dir else status.size_bytes
    return TreeNode(location, name, kind | status.mode, size, status.mtime_ms * 1_000_000)


def _check_name(path: str) -> None:
    """Refuse an invalid name. Source: org.apache.hadoop.hdfs.DFSUtilClient.isValidName."""
    for part in path.split("/"):
        if ":" in part:
            raise UsageError(f"{shown(path)}: HDFS has no names with a colon")
        if part and not is_plain_name(part):
            raise UsageError(f"{shown(path)}: a name on HDFS has at most 255 bytes and no control characters")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise UsageError(f"{shown(path)}: names on HDFS are UTF-8, and this one is not") from None


class _SmallFileBatch:
    """Small files that are fetched from one DataNode."""

    def __init__(self, files: HdfsFiles) -> None:
        self._files = files
        self._todo: list[tuple[str, TreeNode, str]] = []
        self._size_bytes = 0

    def add(self, source: str, node: TreeNode, path: str) -> None:
        """Add a file: its path on HDFS, its node, and its local path."""
        self._todo.append((source, node, path))
        self._size_bytes += node.size_bytes

    @property
    def is_full(self) -> bool:
        """Return True if no further file may be added."""
        return len(self._todo) >= BATCH_FILES or self._size_bytes >= BATCH_BYTES

    def run(self, report: Callable[[int], None]) -> None:
        report(0)
        todo, count = self._todo, 0

        def on_content(content: bytes) -> None:
            nonlocal count
            _, node, path = todo[count]
            with explaining(path, "written"), closing_fd(_created(path)) as target:
                write_all(target, content)
                _finish(target, node)
            count += 1

        self._files.web.read_small([source for source, _, _ in todo], on_content)
        report(sum(node.size_bytes for _, node, _ in todo[:count]))
        for _, node, path in todo[count:]:
            for job in self._files._jobs(node, path):
                job.run(report)


class _Range:
    """Transfer of one range of a file; the last range to finish sets the file's permissions and modification time."""

    def __init__(self, files: HdfsFiles, node: TreeNode, path: str, start: int, end: int, left: list[int]) -> None:
        self._files, self._node, self._path, self._start, self._end, self._left = files, node, path, start, end, left
        self._alone = left[0] == 1

    def run(self, report: Callable[[int], None]) -> None:
        files, node = self._files, self._node
        with explaining(self._path, "written"):
            target = _created(self._path, os.O_EXCL if self._alone else 0)
        with closing_fd(target), explaining(self._path, "written"):
            source = files.place.path(node.source)
            direct_to_datanode = node.size_bytes <= SMALL_BYTES
            files.web.fetch(source, target, self._start, self._end, report, direct_to_datanode=direct_to_datanode)
            with files.lock:
                self._left[0] -= 1
                last = self._left[0] == 0
            if last:
                _finish(target, node)


def _created(path: str, flags: int = os.O_EXCL) -> int:
    return os.open(path, os.O_WRONLY | os.O_CREAT | flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


def _finish(target: int, node: TreeNode) -> None:
    os.fchmod(target, node.mode & 0o777 | 0o600)
    os.utime(target, ns=(node.mtime_ns, node.mtime_ns))
