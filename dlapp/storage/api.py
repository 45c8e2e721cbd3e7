"""Interfaces of file systems; their values are in `dlapp.storage.values`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from dlapp.storage.values import FileTotals, MatchedEntry, Workspace, ignore

if TYPE_CHECKING:
    from dlapp.storage.commit.marker import OutputCommit
    from dlapp.storage.values import FetchTarget, LeftOut, TreeNode


class FileSystem(Protocol):
    """File system, as far as input needs it. Every call is idempotent."""

    def matches(self, pattern: str) -> list[MatchedEntry]:
        """Return the matches of ``pattern``, sorted by location; empty if nothing matches.

        The rules are Hadoop's (`dlapp.storage.glob`): ``*``, ``?``, ``[a-z]``, ``[^a]``, ``{a,b}``; a backslash escapes
        the next character; hidden files are matched like others.

        Raises:
            UsageError: the pattern is invalid.
            Denied: a directory on the path may not be read.
        """

    def exists(self, location: str) -> bool:
        """Return whether the location exists."""

    def tree(self, entry: MatchedEntry) -> list[TreeNode]:
        """Return an entry and everything below it: the entry itself first (its ``name`` is empty), parents before
        children.

        Raises:
            NotFound: it does not exist any more.
            Denied: a directory may not be read.
        """

    def fetch(self, targets: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        """Fetch trees to their destinations; the caller has checked that there is space and no conflicting file.

        Args:
            done: called with the number of bytes after each piece, in the caller's thread.

        Raises:
            NotFound, DlappError, DiskFull: see `fetch`.
        """

    def read_range(self, node: TreeNode, fd: int, start: int, end: int) -> None:
        """Fetch a part of a file, found by `tree`, to the same offset of an open local file. Thread-safe.

        Args:
            node: the file.
            fd: the descriptor of the local file, whose position may change.
            start, end: the first byte, and the one after the last.

        Raises:
            NotFound: it does not exist any more.
            DlappError: it became shorter. A file that was replaced meanwhile is not always detected.
            Unreachable: its server does not answer.
            OSError: writing to ``fd`` failed.
        """


class OutputFileSystem(FileSystem, Protocol):
    """File system that output can be stored on. Every call is idempotent."""

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
        """Store the local file or directory ``local`` as ``location``, replacing what an earlier try left there.

        Args:
            local: its path, without links.
            location: the location of the stored file or directory.
            move: whether ``local`` is not needed any more, so that it may be renamed instead of copied.
            workspace: the directory around ``local``; None: links out of ``local`` are not stored.
            replaces: location of a directory that the output will replace, if there is one: stored files get its
                storage policies from the start, if the file system has such.
            note: called with a line about what differs from ``local``, for the log.
            left_out: called with each entry that is not stored: sockets and the like, links out of the workspace.

        Raises:
            NotFound: ``local`` does not exist.
            UntrustedFile: a link in its path points elsewhere.
            DiskFull: there is not enough space.
        """

    def move_stored(self, location: str, new: str) -> None:
        """Rename what `store` has stored to another location that `store` could have used.

        A missing ``location`` is no error: it may have been renamed by an earlier call.
        """

    def probe_store(self, location: str) -> None:
        """Store and delete a small file beside ``location``, in the same way as `store`, from this machine.

        Not needed for a local directory.

        Raises:
            Unreachable: a server does not answer; `dlapp.storage.hdfs.webhdfs.DataNodeUnreachable`: no DataNode does.
            Denied, DlappError: the write is refused.
        """

    def check_writable(self, target: str, *, overwrite: bool = True) -> Sequence[str]:
        """Refuse a target that output could never be committed to. Leave nothing behind.

        Args:
            target: its location.
            overwrite: whether an existing target is replaced at the commit.

        Returns:
            Description of the attributes of the existing target that a new one would not get.

        Raises:
            Denied: it may not be written.
            UsageError: it is not a valid target.
        """

    def remove(self, location: str) -> None:
        """Remove a file or a directory tree; a missing one is no error."""

    def make_own_directory(self, location: str) -> None:
        """Create a directory that only the caller can write to, and its parents; an existing one must satisfy that.

        Raises:
            UntrustedFile: others own it or can write to it.
        """

    def replace_file(self, fd: int, size_bytes: int, location: str, mode: int) -> None:
        """Write the beginning of an open file under a name, atomically replacing an existing file.

        Args:
            fd: the descriptor of the open file.
            size_bytes: number of bytes to write.
            location: in a directory of `make_own_directory`.
            mode: permissions.

        Raises:
            DlappError: the file became shorter, or writing failed.
        """

    def remove_in_own(self, location: str, name: str) -> None:
        """Remove an entry of a directory of `make_own_directory` with everything below it, and then the directory if it
        is empty; a missing one is no error. An entry that gets the name ``location`` meanwhile is left alone.

        Raises:
            UntrustedFile: others own the directory or can write to it.
        """

    def abort_calls(self, threads: Collection[int]) -> AbstractContextManager[Callable[[], None]]:
        """Abort the calls of threads (idents), and those that they start in the block, with an error. Call the result
        repeatedly until the threads have ended."""

    def output_commit(self, target: str, app: str) -> OutputCommit:
        """Return the commit of an application's output to ``target``."""

    def interrupted_commits(self, target: str) -> list[str]:
        """Return the applications whose commit to ``target`` has a marker."""
