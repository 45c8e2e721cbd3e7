"""Interface of a file system, and its values."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dlapp.errors import DlappError
from dlapp.system.text import human_size

if TYPE_CHECKING:
    from dlapp.storage.commit.marker import OutputCommit
    from dlapp.storage.fetch_plan import FetchTarget
    from dlapp.storage.tree import TreeNode

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all, from the caller's thread."""


class DiskFull(DlappError):
    """Lack of room, or quota, where something was to be written; another machine may have it.

    Attributes:
        lack: what is missing, and where: ``4.1 MiB on /data``, ``3 names in the name quota of /user/ann``.
        is_too_small: even the empty disk would be too small.
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
        """Make the error.

        Args:
            text: the message.
            missing_bytes: how much more room it takes; None: not known.
            place: the mount point of the disk; empty: not known.
            lack: what is missing, in place of both.
            is_too_small: even the empty disk would be too small.
        """
        super().__init__(text)
        self.is_too_small = is_too_small
        amount = "space" if missing_bytes is None else human_size(missing_bytes)
        self.lack = lack or (f"{amount} on {place}" if place else f"{amount}: {text}")


class MatchedEntry(NamedTuple):
    """Match of a pattern; ``size_bytes`` is 0 for a directory."""

    location: str
    is_dir: bool
    size_bytes: int


class Moved(NamedTuple):
    """Amount that was fetched or stored: how many files, with how many bytes together."""

    files: int
    size_bytes: int


class FileSystem(Protocol):
    """File system, as far as input needs it. Every call may be repeated."""

    def matches(self, pattern: str) -> list[MatchedEntry]:
        """Return what ``pattern`` matches, sorted by location; nothing is an empty list.

        The rules are Hadoop's (`dlapp.storage.glob`): ``*``, ``?``, ``[a-z]``, ``[^a]``, ``{a,b}``, a backslash takes
        the next character as it is, hidden files are matched like others.

        Raises:
            UsageError: no valid pattern.
            Denied: a directory on the way may not be read.
        """

    def exists(self, location: str) -> bool:
        """Return whether something is there."""

    def tree(self, entry: MatchedEntry) -> list[TreeNode]:
        """Return all that is in an entry, the entry itself first (its ``name`` is empty), parents before what is in
        them.

        Raises:
            NotFound: it is gone.
            Denied: a directory may not be read.
        """

    def bring(self, landings: Sequence[FetchTarget], done: Callable[[int], None]) -> None:
        """Bring trees to where each lands; that there is room, and nothing in the way, was looked at before.

        Args:
            done: told the number of bytes after each piece, in the caller's thread.

        Raises:
            NotFound, DlappError, DiskFull: as `fetch`.
        """

    def read_range(self, node: TreeNode, fd: int, start: int, end: int) -> None:
        """Bring a part of a file, which `tree` has found, to the same place of an open local file. Any thread may call.

        Args:
            node: the file.
            fd: of the local file, whose position may change.
            start, end: the first byte, and the one after the last.

        Raises:
            NotFound: it is gone.
            DlappError: it became shorter. That something else is there by now is not always found out.
            Unreachable: its server does not answer.
            OSError: ``fd`` cannot be written.
        """


class OutputFileSystem(FileSystem, Protocol):
    """File system that output can go to. Every call may be repeated."""

    def store(
        self,
        local: str,
        location: str,
        *,
        move: bool = False,
        seen_as: Sequence[str] = (),
        replaces: str = "",
        note: Callable[[str], None] | None = None,
    ) -> Moved:
        """Put the local file or directory ``local`` under ``location``, in place of what a try before left there.

        Args:
            local: its path, without links.
            location: what it becomes.
            move: ``local`` is not needed any more, so it may be renamed instead of copied.
            seen_as: other absolute paths under which a payload saw ``local``; links that name it so stay right.
            replaces: location of a directory that the output will replace, if there is one: what is stored has its
                storage policies from the start, where the file system has such.
            note: told, in a line each, what is not stored: sockets and the like, links that lead out of ``local``.

        Raises:
            NotFound: ``local`` is not there.
            UntrustedFile: its path leads elsewhere by a link.
            DiskFull: there is not enough room.
        """

    def pass_on(self, location: str, new: str) -> None:
        """Rename what `store` has stored to another place that `store` could have stored it in.

        Nothing at ``location`` is no error: it may have been passed on before.
        """

    def try_storing(self, location: str) -> None:
        """Store and delete a small file beside ``location``, in the way in which `store` will: from this machine.

        A local directory needs none.

        Raises:
            Unreachable: what it needs does not answer; `dlapp.storage.hdfs.webhdfs.DataNodeUnreachable`: no DataNode
                does.
            Denied, DlappError: it is refused.
        """

    def check_writable(self, target: str, *, overwrite: bool = True) -> Sequence[str]:
        """Refuse a target that output could never be committed to. Leaves nothing behind.

        Args:
            target: its location.
            overwrite: what is there when the output is committed is to be replaced.

        Returns:
            What a new target would not have of the one that is there, in words.

        Raises:
            Denied: it may not be written.
            UsageError: it is no possible target.
        """

    def remove(self, location: str) -> None:
        """Remove a file or a directory with all that it holds; that nothing is there is no error."""

    def make_own_directory(self, location: str) -> None:
        """Make a directory that only the caller may write, with those above it; one that is there must be one.

        Raises:
            UntrustedFile: others own or may write it.
        """

    def replace_file(self, fd: int, size_bytes: int, location: str, mode: int) -> None:
        """Put the beginning of an open file under a name, in place of a file that is there: a reader finds the one or
        the other, whole.

        Args:
            fd: of the open file.
            size_bytes: of it.
            location: in a directory of `make_own_directory`.
            mode: permissions.

        Raises:
            DlappError: it became shorter, or cannot be written.
        """

    def remove_in_own(self, location: str, name: str) -> None:
        """Remove what has a name in a directory of `make_own_directory`, with all that it holds, and then the directory
        if it is empty; nothing there is no error. What gets the name ``location`` meanwhile is left alone.

        Raises:
            UntrustedFile: others own or may write the directory.
        """

    def cut_off(self, threads: Collection[int]) -> AbstractContextManager[Callable[[], None]]:
        """End the calls of threads (idents), and those that they begin in the block, by an error. What it gives is to
        be called until they have ended."""

    def output_commit(self, target: str, app: str) -> OutputCommit:
        """The commit of an application's output to ``target``."""

    def marked(self, target: str) -> list[str]:
        """The applications whose commit to ``target`` has a marker."""
