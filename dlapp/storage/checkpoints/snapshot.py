"""A directory at one moment, whose newest files stay readable when the program replaces or removes them."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Sequence

from dlapp.errors import DlappError, NotFound
from dlapp.locations import shown
from dlapp.storage.checkpoints.manifest import MAX_ENTRIES
from dlapp.storage.checkpoints.selection import DirectoryState, FileIdentity, Inspection
from dlapp.storage.tree import Note, OpenTree, explaining, nodes_to_store
from dlapp.storage.values import TreeNode, ignore
from dlapp.system.files import closing_fd
from dlapp.system.processes.open_files import open_for_writing
from dlapp.value import Closeable

_MAX_HELD = 100
"""Files that are held open: three snapshots can exist at a time, a process usually may have 1024 files open, and a
program that saves at short intervals replaces few files."""
_TRIES = 5
"""Listings of a directory in which an entry disappears meanwhile."""


class CheckpointChanged(DlappError):
    """A directory that changed while it was copied; nothing was stored."""


class DirectorySnapshot(Closeable):
    """A directory at one moment. Used in a ``with`` block, or closed.

    Args:
        directory: its path, without links.
        payload_paths: other absolute paths of it as payloads see it; links with them are kept correct.
        note: called with a line about each entry that is not stored.
        holds: hold its newest files open, and find out which are open for writing.

    Attributes:
        state: its state.
        inspection: the same, as the selection of a checkpoint needs it.

    Raises:
        NotFound, Denied: it cannot be opened.
        UntrustedFile: it is reached by a link.
        CheckpointChanged: it changes too fast to be listed.
        DlappError: it is no directory, or has too many entries.
    """

    def __init__(
        self, directory: str, payload_paths: Sequence[str] = (), note: Note = ignore, *, holds: bool = False
    ) -> None:
        self._tree, self._payload_paths = OpenTree(directory), payload_paths
        self._held: dict[str, int] = {}
        try:
            if not stat.S_ISDIR(os.fstat(self._tree.fd).st_mode):
                raise DlappError(f"{shown(directory)} is no directory")
            self._at_ns = time.time_ns()
            self.state = self._read(note, holds=holds)
            self.inspection = Inspection(self.state, self._at_ns, self._find_writers() if holds else {})
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close open files."""
        while self._held:
            os.close(self._held.popitem()[1])
        self._tree.close()

    def read_again(self) -> DirectoryState:
        """Return the state that the directory has now. Raises CheckpointChanged, DlappError."""
        return self._state(ignore)

    @contextlib.contextmanager
    def open(self, node: TreeNode) -> Iterator[int]:
        """Open a file as it was at that moment if it is held. Raises CheckpointChanged: it is gone, or is not a file
        any more; DlappError."""
        with self._opened(node, self._held.get(node.name)) as fd:
            yield fd

    def is_unchanged(self, node: TreeNode) -> bool:
        """Return whether a file has the same content as at that moment; one that is held may have been replaced or
        removed. Raises DlappError."""
        try:
            with self.open(node) as fd:
                return is_same_content(fd, self.state.identities[node.name])
        except CheckpointChanged:
            return False

    def unchanged(self, later: DirectoryState) -> set[str]:
        """Return the files that have the same content in a later state, or since then if they are held."""
        return {
            name
            for name, identity in self.state.identities.items()
            if (
                is_same_content(self._held[name], identity)
                if name in self._held
                else later.identities.get(name) == identity
            )
        }

    def add_writers(self, earlier: DirectorySnapshot) -> None:
        """Count the files that were open for writing at an earlier moment as open."""
        known, files = earlier.state.identities, self.state.identities.items()
        inodes = {known[name][:2] for name in earlier.inspection.writers}
        found = {name: False for name, one in files if one[:2] in inodes}
        self.inspection = self.inspection._replace(writers={**found, **self.inspection.writers})

    def _read(self, note: Note, *, holds: bool) -> DirectoryState:
        for left in reversed(range(_TRIES)):
            try:
                state = self._state(note)
                if holds:
                    self._hold(state)
            except CheckpointChanged:
                if not left:
                    raise
                self._at_ns = time.time_ns()
            else:
                return state
        raise AssertionError

    def _hold(self, state: DirectoryState) -> None:
        """Hold the newest files open. Raises CheckpointChanged: one was replaced or removed meanwhile."""
        while self._held:
            os.close(self._held.popitem()[1])
        newest = sorted(state.identities, key=lambda name: state.identities[name].ctime_ns)[-_MAX_HELD:]
        nodes = {one.name: one for one in state.nodes}
        for name in newest:
            with self._opened(nodes[name]) as fd:
                if identity_of(fd)[:2] != state.identities[name][:2]:
                    raise CheckpointChanged(f"{shown(nodes[name].source)} changed while it was copied")
                self._held[name] = os.dup(fd)

    def _state(self, note: Note) -> DirectoryState:
        tree = self._tree
        try:
            nodes = nodes_to_store(tree, payload_paths=self._payload_paths, note=note, most=MAX_ENTRIES - 1)[0]
        except NotFound as error:
            raise CheckpointChanged(f"{shown(tree.top)} changed while it was copied: {error}") from error
        identities = {}
        for index, node in enumerate(nodes):
            if node.is_file:
                with self._opened(node) as fd:
                    identities[node.name] = one = identity_of(fd)
                nodes[index] = node._replace(size_bytes=one.size_bytes, mtime_ns=one.mtime_ns)
        return DirectoryState(nodes, identities)

    @contextlib.contextmanager
    def _opened(self, node: TreeNode, held: int | None = None) -> Iterator[int]:
        try:
            fd = self._tree.open(node.source) if held is None else _reopen(held)
        except PermissionError as error:
            raise DlappError(f"{shown(node.source)} cannot be read: {error.strerror}") from error
        except OSError as error:
            raise CheckpointChanged(f"{shown(node.source)} changed while it was copied: {error}") from error
        with closing_fd(fd), explaining(node.source, "copied"):
            yield fd

    def _find_writers(self) -> dict[str, bool]:
        found = open_for_writing({(one.device, one.inode) for one in self.state.identities.values()})
        files = self.state.identities.items()
        return {name: found[one.device, one.inode] for name, one in files if (one.device, one.inode) in found}


def identity_of(fd: int) -> FileIdentity:
    """Return the identity of an open file."""
    found = os.fstat(fd)
    return FileIdentity(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def is_same_content(fd: int, identity: FileIdentity) -> bool:
    """Return whether an open file has the content of an earlier moment. Its removal, too, updates ``ctime_ns``."""
    now, found = identity_of(fd), os.fstat(fd)
    return now == identity or (found.st_nlink == 0 and now[:4] == identity[:4])


def _reopen(fd: int) -> int:
    return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
