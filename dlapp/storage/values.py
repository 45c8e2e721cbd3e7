"""Values of file systems: matches, trees and their nodes, totals, and the error of a full disk."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator

from dlapp.errors import DlappError
from dlapp.system.text import human_size
from dlapp.value import NamedTuple

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all, from the caller's thread."""


def ignore(_event: object) -> None:
    """Do nothing: the callback of callers that do not observe what a function reports."""


class DiskFull(DlappError):
    """Lack of space or quota for a write; another machine may have it.

    Args:
        text: the message.
        missing_bytes: additional space that is needed; None if unknown.
        place: the mount point of the disk; empty if unknown.
        lack: description of what is missing, in place of both: ``3 names in the name quota of /user/ann``. By default
            the attribute is made of them: ``4.1 MiB on /data``.
        is_too_small: the disk would be too small even when empty.
    """

    def __init__(
        self,
        text: str,
        *,
        missing_bytes: int | None = None,
        place: str = "",
        lack: str = "",
        is_too_small: bool = False,
    ) -> None:
        super().__init__(text)
        self.is_too_small = is_too_small
        amount = "space" if missing_bytes is None else human_size(missing_bytes)
        self.lack = lack or (f"{amount} on {place}" if place else f"{amount}: {text}")


class MatchedEntry(NamedTuple):
    """Match of a pattern; ``size_bytes`` is 0 for a directory."""

    location: str
    is_dir: bool
    size_bytes: int


class FileTotals(NamedTuple):
    """Number of files that were fetched or stored, and their total bytes."""

    files: int
    size_bytes: int


class Workspace(NamedTuple):
    """The workspace around an output: what links lead to in it is stored with the output.

    Args:
        path: its path, without links.
        seen_as: other absolute paths of it, as payloads saw it: links with them are understood.
        mounted: paths in it where payloads saw another file system, which is not there now.
        linked: receives the paths in it that were stored in place of links.
    """

    path: str
    seen_as: tuple[str, ...] = ()
    mounted: tuple[str, ...] = ()
    linked: Callable[[str], None] = ignore


class TreeNode(NamedTuple):
    """One node of a tree.

    Args:
        source: its location.
        name: its path in the tree, empty for the tree itself.
        link: new target of a link at the destination; None if it is not a link.
        blocks_bytes: space of its blocks on a local disk; None if unknown.
    """

    source: str
    name: str
    mode: int
    size_bytes: int
    mtime_ns: int
    link: str | None = None
    blocks_bytes: int | None = None

    @property
    def space_bytes(self) -> int:
        """Return the space that a copy of it needs: holes of a file need none."""
        if not self.is_file:
            return 0
        return self.size_bytes if self.blocks_bytes is None else min(self.size_bytes, self.blocks_bytes)

    @property
    def is_dir(self) -> bool:
        """Return True if it is a directory."""
        return self.link is None and stat.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        """Return True if it is a regular file."""
        return self.link is None and stat.S_ISREG(self.mode)


class FetchTarget(NamedTuple):
    """One entry, its nodes, and its absolute destination path."""

    entry: MatchedEntry
    path: str
    nodes: list[TreeNode]

    @property
    def size_bytes(self) -> int:
        """Return the total size of all its files."""
        return sum(node.size_bytes for node in self.nodes if node.is_file)

    @property
    def files(self) -> int:
        """Return the number of its files."""
        return sum(node.is_file for node in self.nodes)

    def places(self) -> Iterator[tuple[TreeNode, str]]:
        """Yield each node with its local path, parents first."""
        for node in self.nodes:
            yield node, f"{self.path}/{node.name}" if node.name else self.path


class LeftOut(NamedTuple):
    """An entry of a tree that is not stored.

    Args:
        name: its path in the tree, empty for the tree itself.
        reason: what it is: ``a FIFO``.
    """

    name: str
    reason: str
