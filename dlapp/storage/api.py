"""Interface of a file system, and its values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dlapp.errors import DlappError

if TYPE_CHECKING:
    from dlapp.storage.commit.marker import OutputCommit
    from dlapp.storage.fetch_plan import FetchTarget
    from dlapp.storage.tree import TreeNode

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all, from the caller's thread."""


class DiskFull(DlappError):
    """Lack of room, or quota, where something was to be written; another machine may have it.

    Attributes:
        missing_bytes: how much more room it takes; None: not known.
        place: the mount point of the disk; empty: not known, or a quota of HDFS.
    """

    def __init__(self, text: str, *, missing_bytes: int | None = None, place: str = "") -> None:
        super().__init__(text)
        self.missing_bytes, self.place = missing_bytes, place


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
    """File system, as far as dlapp needs it. Every call but `fetch` may be repeated."""

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

    def fetch(self, entries: Sequence[MatchedEntry], into: str, *, progress: Progress | None = None) -> Moved:
        """Bring entries into the directory ``into``, each under its own last name, directories with all they hold.

        Nothing is written before it is known that all of it has room and that nothing is in its way. Permissions and
        modification times are kept, but what is fetched can always be read and written by its new owner.

        Raises:
            NotFound: an entry, or something in it, is gone.
            DlappError: a file stands where one would land, or changed while it was read; it names the file.
            DiskFull: there is not enough room.
        """

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

    def store(
        self,
        local: str,
        location: str,
        *,
        move: bool = False,
        seen_as: Sequence[str] = (),
        note: Callable[[str], None] | None = None,
    ) -> Moved:
        """Put the local file or directory ``local`` under ``location``, in place of what a try before left there.

        Args:
            local: its path, without links.
            location: what it becomes.
            move: ``local`` is not needed any more, so it may be renamed instead of copied.
            seen_as: other absolute paths under which a payload saw ``local``; links that name it so stay right.
            note: told, in a line each, what is not stored: sockets and the like, links that lead out of ``local``.

        Raises:
            NotFound: ``local`` is not there.
            UntrustedFile: its path leads elsewhere by a link.
            DiskFull: there is not enough room.
        """

    def check_writable(self, target: str) -> None:
        """Refuse a target that output could never be committed to. Leaves nothing behind.

        Raises:
            Denied: it may not be written.
            UsageError: it is no possible target.
        """

    def remove(self, location: str) -> None:
        """Remove a file or a directory with all that it holds; that nothing is there is no error."""

    def output_commit(self, target: str, app: str) -> OutputCommit:
        """The commit of an application's output to ``target``. Raises UsageError: output cannot be here."""

    def marked(self, target: str) -> list[str]:
        """The applications whose commit to ``target`` has a marker."""
