"""Copies of a directory: store one, or restore the newest complete one."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from dlapp.errors import DlappError, NotFound
from dlapp.locations import shown
from dlapp.storage.checkpoints.manifest import (
    MAX_BYTES,
    EntryKind,
    IncompleteCheckpoint,
    Manifest,
    ManifestEntry,
    encode_manifest,
    entry_of,
    manifest_name,
    number_of,
    parse_manifest,
)
from dlapp.storage.checkpoints.selection import DirectoryState, FileIdentity
from dlapp.storage.checkpoints.snapshot import CheckpointChanged, DirectorySnapshot, is_same_content
from dlapp.storage.checkpoints.store import OBJECTS, CheckpointStore, CopyAborted, is_temporary
from dlapp.storage.tree import READ_CHUNK, Note, explaining
from dlapp.storage.values import TreeNode, ignore
from dlapp.system.files import closing_fd, open_directory, remove_tree

MAX_LISTED = 100
"""Maximum number of the newest checkpoints that are tried for a restore."""
_FRESH_NS = 2_000_000_000
"""A file that changed so short a time ago may change again without another time: clocks of file systems have steps."""
_MAX_LOGGED = 100
"""Maximum number of log lines about entries that are not stored."""


class DirectoryPart(NamedTuple):
    """Part of a directory that is stored as a checkpoint.

    Args:
        snapshot: the directory.
        names: of its entries; None: all.
        is_fixed: discard the copy also if a file is replaced or removed meanwhile.
    """

    snapshot: DirectorySnapshot
    names: Collection[str] | None
    is_fixed: bool = False

    def of(self, state: DirectoryState) -> DirectoryState:
        """Return this part of a state of the directory."""
        return state if self.names is None else state.only(self.names)


class StoredCheckpoint(NamedTuple):
    """A stored checkpoint: its number, number of files, total bytes, and newly stored bytes."""

    number: int
    files: int
    size_bytes: int
    new_bytes: int


class Checkpoints:
    """Checkpoints of one directory at one place. Not thread-safe, except `aborting`.

    Args:
        place: the place of the checkpoints; entered by the caller.
        keep: number of checkpoints to keep.
        note: called with a line about an entry that is not stored, or a checkpoint that is not restored.
        payload_paths: other absolute paths of the directory as payloads see it; links with them are kept correct.

    Attributes:
        pinned: number of an additional checkpoint to keep, if it exists; 0 for none.
        restored: the manifest of the checkpoint that was restored last; None: none was.
    """

    def __init__(self, place: CheckpointStore, keep: int, note: Note, payload_paths: Sequence[str] = ()) -> None:
        self._store, self._keep, self._note, self._payload_paths = place, keep, note, payload_paths
        self._digests: dict[FileIdentity, str] = {}
        self._objects: dict[int, dict[str, int]] = {}  # of manifests, which are immutable
        self._is_aborted = False
        self._skipped: set[str] = set()
        self.pinned = 0
        self.restored: Manifest | None = None

    def numbers(self) -> list[int]:
        """Return the numbers of the manifests, ascending; their checkpoints may be incomplete."""
        return sorted(number for name in self._store.sizes("") if (number := number_of(name)) is not None)

    def complete(self) -> list[int]:
        """Return the numbers of the newest checkpoints whose objects all exist, ascending. Contents are not read.

        Raises:
            DlappError: the place cannot be read.
        """
        objects, found = self._store.sizes(OBJECTS), []
        for number in reversed(self.numbers()):
            try:
                self._check_objects(number, objects)
                found.append(number)
            except IncompleteCheckpoint as error:
                self._note(str(error))
            if len(found) == MAX_LISTED:
                break
        return found[::-1]

    @contextlib.contextmanager
    def aborting(self) -> Iterator[Callable[[], None]]:
        """Abort the call of the other thread with an error: a block in which its owner waits for that. Call the result
        repeatedly meanwhile."""
        self._is_aborted = True
        try:
            with self._store.aborting() as cut:
                yield cut
        finally:
            self._is_aborted = False

    def snapshot(self, directory: str) -> DirectorySnapshot:
        """Return a directory as it is now, with its newest files held open; for errors see `DirectorySnapshot`."""
        return DirectorySnapshot(directory, self._payload_paths, self._log_skipped, holds=True)

    def store(
        self,
        directory: str,
        number: int | None = None,
        check: Callable[[DirectoryState], None] = ignore,
        part: DirectoryPart | None = None,
    ) -> StoredCheckpoint:
        """Store a directory as a checkpoint, and remove surplus ones.

        Args:
            directory: its path, without links.
            number: the number of the checkpoint; None for the next number.
            check: called with the result, before the first change and before the checkpoint becomes visible; its errors
                abort the call.
            part: what to store; None: the whole directory as it is now.

        Raises:
            CheckpointChanged: the directory, or the part, changed meanwhile, or another process stored this number.
            NotFound: the directory does not exist.
            UntrustedFile: others own the place or can write to it, or the directory is reached by a link.
            DlappError: storing failed; the earlier checkpoints still exist.
        """
        if part is None:
            with DirectorySnapshot(directory, self._payload_paths, self._log_skipped) as whole:
                return self._store_part(DirectoryPart(whole, None, is_fixed=True), number, check)
        return self._store_part(part, number, check)

    def _store_part(
        self, part: DirectoryPart, number: int | None, check: Callable[[DirectoryState], None]
    ) -> StoredCheckpoint:
        snapshot, before = part.snapshot, part.of(part.snapshot.state)

        def is_same() -> bool:
            if part.is_fixed:
                return part.of(snapshot.read_again()) == before
            return all(snapshot.is_unchanged(node) for node in before.nodes if node.is_file)

        check(before)
        digests = self._digests_of(snapshot, before)
        entries = [entry_of(node, digests.get(node.name, "")) for node in before.nodes]
        place = self._store
        place.prepare()
        if number is None:
            number = max(self.numbers(), default=0) + 1
        if number_of(manifest_name(number)) is None:
            raise DlappError(f"{number} is too large for the number of a checkpoint")
        manifest = Manifest(number, tuple(entries))
        content = encode_manifest(manifest)
        self._remove_old(but=manifest.objects)
        there = place.sizes(OBJECTS)
        missing = {
            digests[node.name]: node
            for node in before.nodes
            if node.is_file and there.get(digests[node.name]) != node.size_bytes
        }
        try:
            self._put_objects(snapshot, missing, before)
            if not is_same():
                raise CheckpointChanged(f"{shown(before.nodes[0].source)} changed while it was copied")
            check(before)
            if not place.create(manifest_name(number), content):
                raise CheckpointChanged(f"checkpoint {number} already exists: another process stores, too")
        except CheckpointChanged:
            self._remove_unused()
            raise
        self._remove_old()
        files = [one for one in before.nodes if one.is_file]
        total, new = sum(one.size_bytes for one in files), sum(one.size_bytes for one in missing.values())
        return StoredCheckpoint(number, len(files), total, new)

    def restore(self, into: str, number: int | None = None) -> int | None:
        """Restore a complete checkpoint as a directory, replacing an existing one.

        Args:
            into: path of the directory; its parent must exist, and nobody else may rename entries in it.
            number: the number of the checkpoint; None for the newest complete one.

        Returns:
            Its number; None if there is none.

        Raises:
            IncompleteCheckpoint: the requested checkpoint is incomplete.
            DlappError, OSError: restoring failed; the existing directory is unchanged.
        """
        objects = self._store.sizes(OBJECTS)
        for one in reversed(self.numbers()) if number is None else (number,):
            try:
                self._check_objects(one, objects)
                manifest = self._read_manifest(one)
                self._restore_one(manifest, into)
            except IncompleteCheckpoint as error:
                if number is not None:
                    raise
                self._note(f"{error}; using the previous one")
            else:
                self.restored = manifest
                return one
        return None

    def fetch_files(
        self, number: int, is_wanted: Callable[[ManifestEntry], bool], into: str
    ) -> tuple[ManifestEntry, ...]:
        """Fetch some files of a checkpoint, each to its path in a directory; return them.

        Args:
            is_wanted: selects files; not called for links.
            into: path of the directory, which must be exclusive to the caller; created if missing.

        Raises:
            IncompleteCheckpoint: the checkpoint is incomplete, or was removed.
            DlappError, OSError: a file cannot be fetched.
        """
        entries = self._read_manifest(number).entries
        wanted = tuple(one for one in entries if one.kind is EntryKind.FILE and is_wanted(one))
        for one in wanted:
            os.makedirs(os.path.dirname(_path(into, one)), 0o700, exist_ok=True)
        self._store.run_parallel(
            lambda index, report: self._fetch(wanted[index], _path(into, wanted[index]), report), len(wanted)
        )
        return wanted

    # ---- storing ----

    def _log_skipped(self, line: str) -> None:
        """Log what is not stored, once and a bounded number of times: each copy meets it again, and a payload can
        create many such entries."""
        if line in self._skipped or len(self._skipped) > _MAX_LOGGED:
            return
        self._skipped.add(line)
        self._note(line if len(self._skipped) <= _MAX_LOGGED else "what else is not stored is not written here")

    def _digests_of(self, snapshot: DirectorySnapshot, state: DirectoryState) -> dict[str, str]:
        """Return name -> digest of all files; unchanged ones are not read again."""
        known, self._digests = self._digests, {}
        digests = {}
        for node in state.nodes:
            if not node.is_file:
                continue
            identity, now_ns = state.identities[node.name], time.time_ns()
            if (digest := known.get(identity)) is None:
                with snapshot.open(node) as fd:
                    digest = digest_of(fd, self._check_aborted)
                    if not is_same_content(fd, identity):
                        raise CheckpointChanged(f"{shown(node.source)} changed while it was copied")
            digests[node.name] = digest
            if identity.ctime_ns + _FRESH_NS < now_ns:
                self._digests[identity] = digest
        return digests

    def _check_aborted(self, _count: int = 0) -> None:
        if self._is_aborted:
            raise CopyAborted("the copy was given up")

    def _put_objects(self, snapshot: DirectorySnapshot, missing: dict[str, TreeNode], before: DirectoryState) -> None:
        items = list(missing.items())

        def put(index: int, report: Callable[[int], None]) -> None:
            digest, node = items[index]

            def progress(count: int) -> None:
                self._check_aborted()
                report(count)

            with snapshot.open(node) as fd:

                def check() -> None:
                    # The sent content is the content that was read before only if the file is still unchanged.
                    if not is_same_content(fd, before.identities[node.name]) or digest_of(fd, progress) != digest:
                        raise CheckpointChanged(f"{shown(node.source)} changed while it was copied")

                self._store.put(f"{OBJECTS}/{digest}", fd, node.size_bytes, check, progress)

        self._store.run_parallel(put, len(items))

    def _remove_old(self, but: dict[str, int] | None = None) -> None:
        """Remove all manifests but the last complete ones, then the objects in no manifest and not in ``but``."""
        objects, left = self._store.sizes(OBJECTS), self._keep
        for number in reversed(self.numbers()):
            if left <= 0:
                if number != self.pinned:
                    self._store.remove(manifest_name(number))
                continue
            try:
                self._check_objects(number, objects)
                left -= 1
            except IncompleteCheckpoint as error:
                self._note(str(error))
        self._remove_unused(but)

    def _remove_unused(self, but: dict[str, int] | None = None) -> None:
        """Remove the objects in no manifest and not in ``but``, and partial files of killed writers."""
        used = set(but or ())
        for number in self.numbers():
            with contextlib.suppress(IncompleteCheckpoint):
                used |= self._objects_of(number).keys()
        for name in self._store.sizes(""):
            if is_temporary(name):
                self._store.remove(name)
        for name in self._store.sizes(OBJECTS):
            if name not in used:
                self._store.remove(f"{OBJECTS}/{name}")

    # ---- restoring ----

    def _read_manifest(self, number: int) -> Manifest:
        """Return a manifest. Raises IncompleteCheckpoint."""
        name = manifest_name(number)
        if (size := self._store.sizes("").get(name)) is None:
            raise IncompleteCheckpoint(f"checkpoint {number} is not there")
        if size > MAX_BYTES:
            raise IncompleteCheckpoint(f"{name} has {size} bytes, at most {MAX_BYTES} are read")
        try:
            return parse_manifest(self._store.read(name, MAX_BYTES), number)
        except NotFound as error:
            raise IncompleteCheckpoint(f"checkpoint {number} is gone") from error

    def _objects_of(self, number: int) -> dict[str, int]:
        """Return digest -> size of a manifest's objects. Raises IncompleteCheckpoint."""
        if (found := self._objects.get(number)) is None:
            found = self._objects[number] = self._read_manifest(number).objects
        return found

    def _check_objects(self, number: int, objects: dict[str, int]) -> None:
        """Raise IncompleteCheckpoint if an object of a checkpoint is missing."""
        for digest, size in self._objects_of(number).items():
            if objects.get(digest) != size:
                raise IncompleteCheckpoint(
                    f"checkpoint {number} is not whole: object {digest} is missing or has another size"
                )

    def _restore_one(self, manifest: Manifest, into: str) -> None:
        above, _, name = into.rpartition("/")
        with explaining(into, "restored"), closing_fd(open_directory(above)) as above_fd:
            new, old = f".{name[:200]}.restored", f".{name[:200]}.replaced"
            inside = f"/proc/self/fd/{above_fd}"
            for rest in (new, old):
                remove_tree(f"{above}/{rest}", dir_fd=above_fd, name=rest)
            try:
                self._fill(manifest, f"{inside}/{new}")
                with contextlib.suppress(FileNotFoundError):
                    os.rename(name, old, src_dir_fd=above_fd, dst_dir_fd=above_fd)
                try:
                    os.rename(new, name, src_dir_fd=above_fd, dst_dir_fd=above_fd)
                except OSError:
                    os.rename(old, name, src_dir_fd=above_fd, dst_dir_fd=above_fd)
                    raise
            finally:
                for rest in (new, old):
                    remove_tree(f"{above}/{rest}", dir_fd=above_fd, name=rest)

    def _fill(self, manifest: Manifest, top: str) -> None:
        """Create the tree of a manifest at a new path. Links are created last: no path passes through one."""
        directories = [one for one in manifest.entries if one.kind is EntryKind.DIRECTORY]
        files = [one for one in manifest.entries if one.kind is EntryKind.FILE]
        for one in directories:
            os.mkdir(_path(top, one), 0o700)
        self._store.run_parallel(
            lambda index, report: self._fetch(files[index], _path(top, files[index]), report), len(files)
        )
        for one in manifest.entries:
            if one.kind is EntryKind.LINK:
                os.symlink(one.link, _path(top, one))
                os.utime(_path(top, one), ns=(one.mtime_ns, one.mtime_ns), follow_symlinks=False)
        for one in reversed(directories):
            os.chmod(_path(top, one), one.mode | 0o700)
            os.utime(_path(top, one), ns=(one.mtime_ns, one.mtime_ns))

    def _fetch(self, entry: ManifestEntry, path: str, report: Callable[[int], None]) -> None:
        with explaining(path, "written"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with closing_fd(fd), explaining(path, "written"):
            try:
                self._store.fetch(f"{OBJECTS}/{entry.digest}", fd, entry.size_bytes, report)
            except NotFound as error:
                raise IncompleteCheckpoint(f"object {entry.digest} is gone") from error
            if digest_of(fd, report) != entry.digest:
                raise IncompleteCheckpoint(
                    f"{shown(entry.name)} of the checkpoint has another content than its digest says"
                )
            os.fchmod(fd, entry.mode | 0o600)
            os.utime(fd, ns=(entry.mtime_ns, entry.mtime_ns))


def digest_of(fd: int, report: Callable[[int], None]) -> str:
    """Return the SHA-256 of an open file's content, as 64 hex digits; ``report`` is called before each piece."""
    import hashlib

    digest, at = hashlib.sha256(), 0
    while True:
        report(0)
        if not (piece := os.pread(fd, READ_CHUNK, at)):
            return digest.hexdigest()
        digest.update(piece)
        at += len(piece)


def _path(top: str, entry: ManifestEntry) -> str:
    return f"{top}/{entry.name}" if entry.name else top
