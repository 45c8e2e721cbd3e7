"""Where input comes from and output goes to: list, read, write, and an exchange that readers never see half done.

A place is named by a *location*, text with a scheme. ``file://`` is followed by the absolute path exactly as the
operating system has it, nothing in it is escaped: ``file:///data/50% off #1/a b``. Names that are no UTF-8 are carried
as Python carries them (surrogateescape).

`open_location` gives the `FileSystem` behind a scheme; `commit` makes an application's output visible.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from dlapp.errors import DlappError, NotFound, UsageError

FILE = "file://"

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all, from the caller's thread."""


class DiskFull(DlappError):
    """There is no room, or no more quota, where something was to be written; another machine may have it."""


class Entry(NamedTuple):
    """What a pattern matched; ``size_bytes`` is 0 for a directory."""

    location: str
    is_dir: bool
    size_bytes: int


class Moved(NamedTuple):
    """What was fetched or stored: how many files, with how many bytes together."""

    files: int
    size_bytes: int


class FileSystem(Protocol):
    """What dlapp needs of a place that keeps files. Every call but `fetch` may be repeated."""

    def matches(self, pattern: str) -> list[Entry]:
        """What ``pattern`` matches, sorted by location; nothing is an empty list.

        The rules are Hadoop's (`dlapp.storage.glob`): ``*``, ``?``, ``[a-z]``, ``[^a]``, ``{a,b}``, a backslash takes
        the next character as it is, hidden files are matched like others.

        Raises:
            UsageError: no valid pattern.
            Denied: a directory on the way may not be read.
        """

    def exists(self, location: str) -> bool:
        """Whether something is there."""

    def fetch(self, entries: Sequence[Entry], into: str, *, progress: Progress | None = None) -> Moved:
        """Bring entries into the directory ``into``, each under its own last name, directories with all they hold.

        Nothing is written before it is known that all of it has room and that nothing is in its way.

        Raises:
            NotFound: an entry, or something in it, is gone.
            DlappError: a file stands where one would land, or changed while it was read; it names the file.
            DiskFull: there is not enough room.
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
            move: ``local`` is not needed any more, so it may be renamed instead of copied.
            seen_as: other absolute paths under which a payload saw ``local``; links that name it so stay right.
            note: told, in a line each, what is not stored: sockets and the like, links that lead out of ``local``.

        Raises:
            NotFound: ``local`` is not there.
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


def open_location(location: str) -> FileSystem:
    """The file system that ``location`` is on.

    Raises:
        UsageError: no scheme, or one that we have no storage for.
    """
    local_path(location)
    from dlapp.storage.files import LocalFiles

    return LocalFiles()


def local_path(location: str) -> str:
    """The path that a ``file://`` location names.

    Raises:
        UsageError: it is no such location.
    """
    if location.startswith(FILE + "/") and "\0" not in location:
        return location[len(FILE) :]
    scheme, colon, _ = location.partition("://")
    if colon and location.startswith(FILE):
        raise UsageError(f"{shown(location)}: after file:// comes an absolute path, as in file:///data/train")
    if colon and scheme.isalnum():
        raise UsageError(f"{shown(location)}: there is no storage for {scheme}:// here, only for file://")
    raise UsageError(f"{shown(location)}: is no location, as file:///data/train is one")


def file_location(path: str) -> str:
    """The location of an absolute path on this machine."""
    return FILE + path


def fetch_sources(sources: Sequence[str], into: str, *, progress: Progress | None = None) -> Moved:
    """Bring all that ``sources`` match into the directory ``into``; see `FileSystem.fetch`.

    Raises:
        NotFound: a source matches nothing.
    """
    entries: list[Entry] = []
    for source in sources:
        found = open_location(source).matches(source)
        if not found:
            raise NotFound(f"{shown(source)}: nothing is there")
        entries.extend(found)
    return open_location(sources[0]).fetch(entries, into, progress=progress)


def shown(name: str) -> str:
    """A name as a message can show it on one line, whatever bytes are in it."""
    return name if name.isprintable() else repr(name)
