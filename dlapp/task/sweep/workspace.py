"""Workspaces of trials: each is a copy of the container's, and all share one input tree.

Copies share blocks if the file system can (reflink), never inodes: with hard links a trial would write to the files of
the others. Input is not copied. It stays in the container's workspace, write-protected; a plain process gets a link to
it, a Docker container a read-only mount.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Sequence

from dlapp.storage.tree import OpenTree, copy_nodes
from dlapp.storage.values import TreeNode
from dlapp.system.files import is_inside, walk


class WorkspaceTemplate:
    """The container's workspace, which is copied for each trial. Nothing may change it.

    Args:
        shared: paths that are not copied, relative to the workspace.
        mounts: whether the trials run in Docker, which mounts the shared paths; else they get links.
    """

    def __init__(self, path: str, shared: Sequence[str], *, mounts: bool) -> None:
        self._path, self._mounts = path, mounts
        self._shared = [one for one in shared if os.path.isdir(os.path.join(path, one))]
        with contextlib.closing(OpenTree(path)) as tree:
            self._nodes = self._read(tree)
        for one in self._shared:
            _protect(os.path.join(path, one))

    def _read(self, tree: OpenTree) -> list[TreeNode]:
        found = os.fstat(tree.fd)
        nodes, todo = [], [TreeNode(self._path, "", found.st_mode, found.st_size, found.st_mtime_ns)]
        while todo:
            node = todo.pop()
            if stat.S_ISLNK(node.mode):
                nodes.append(node._replace(link=tree.read_link(node.source)))
            elif node.name in self._shared:
                nodes.append(node if self._mounts else node._replace(link=node.source))
            elif node.is_dir:
                nodes.append(node)
                todo.extend(reversed(tree.children(node)))
            elif node.is_file:
                nodes.append(node)
        return nodes

    def copy_to(self, path: str, done: Callable[[int], None]) -> None:
        """Create a copy.

        Args:
            path: the path of the copy; must not exist.
            done: called with the number of bytes after each piece.

        Raises:
            DiskFull, DlappError, OSError: it cannot be created.
        """
        copy_nodes(self._nodes, path, owner_bits=0o600, done=done)

    def mounts_of(self, path: str) -> tuple[tuple[str, str], ...]:
        """Return the mounts of a copy at ``path``: host path and path in the container of each."""
        if not self._mounts:
            return ()
        return tuple((os.path.join(self._path, one), os.path.join(path, one)) for one in self._shared)


def shared_paths(inputs: Sequence[str], written: Sequence[str]) -> list[str]:
    """Return the input paths that trials can share, the outermost ones.

    Args:
        inputs: paths in the workspace that contain input.
        written: paths in the workspace that a trial may write to, or needs a copy of.
    """
    found: list[str] = []
    for path in sorted(os.path.normpath(one) for one in inputs):
        is_own = path == "." or any(is_inside(os.path.normpath(one), path) for one in written)
        if not is_own and not any(is_inside(path, one) for one in found):
            found.append(path)
    return found


def _protect(top: str) -> None:
    """Make all files and directories of a tree read-only. Skip links."""
    for directory, names, files in walk(top):
        for name in (*names, *files):
            path = os.path.join(directory, name)
            found = os.lstat(path)
            if stat.S_ISREG(found.st_mode) or stat.S_ISDIR(found.st_mode):
                os.chmod(path, found.st_mode & 0o7555)
    os.chmod(top, os.lstat(top).st_mode & 0o7555)
