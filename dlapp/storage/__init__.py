"""Where input comes from and output goes to: list, read, write, and an exchange that readers never see half done.

A place is named by a *location*, text with a scheme. ``file://`` is followed by the absolute path exactly as the
operating system has it, nothing in it is escaped: ``file:///data/50% off #1/a b``. Names that are no UTF-8 are carried
as Python carries them (surrogateescape). ``hdfs://`` is followed by a NameNode or nameservice, and the path likewise.

`open_location` gives the `FileSystem` behind a scheme; `commit` makes an application's output visible. What is needed
to reach an HDFS is one value, `HdfsPlace`, that the caller passes down. What else has a scheme is fsspec's, for input
only: ``s3://bucket/name``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from dlapp.errors import DlappError, UsageError
from dlapp.login import Login

if TYPE_CHECKING:
    from dlapp.storage.fetching import Landing
    from dlapp.storage.tree import Node

FILE = "file://"
HDFS = "hdfs://"

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all, from the caller's thread."""

OUTPUT_PATIENCE_S = 86_400.0
"""How long what an application has computed waits for a file system that does not answer, or takes no changes, before
it is given up: a NameNode with much to read is in safe mode for an hour, and a night may pass until somebody sees that
it is down."""


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


class HdfsPlace(NamedTuple):
    """Where an HDFS is, and as whom we use it.

    Args:
        location: what stands before a path: ``hdfs://namenode:8020`` or ``hdfs://nameservice``.
        web: the web address of each NameNode: ``http://namenode:9870``.
        login: the Hadoop user, whose home relative paths begin at, with the proof.
        ca: file of the certificates that sign those of NameNodes and DataNodes (``https://``); None: what OpenSSL has.
    """

    location: str
    web: tuple[str, ...]
    login: Login
    ca: str | None = None

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> HdfsPlace:
        """The place that a mapping of the same names describes; what else it holds is ignored."""
        web = tuple(str(one).rstrip("/") for one in settings["web"])
        where = str(settings["location"]).rstrip("/")
        return cls(where, web, Login.from_settings(settings), settings.get("ca"))

    @property
    def home(self) -> str:
        """The location of the user's home directory."""
        return f"{self.location}/user/{self.login.user}"

    def resolve(self, path: str) -> str:
        """The location of a path as HDFS takes it: absolute, or relative to the home; one with a scheme stays."""
        if path.startswith((FILE, HDFS)) and not path.startswith(HDFS + "/"):
            return path
        for prefix in (HDFS, "hdfs:"):
            if path.startswith(prefix + "/"):
                return self.location + path.removeprefix(prefix)
        return self.location + path if path.startswith("/") else f"{self.home}/{path}"

    def path(self, location: str) -> str:
        """The absolute path that a location names here.

        Raises:
            UsageError: it is on another file system, or its name is one that HDFS cannot have.
        """
        authority, slash, rest = location.removeprefix(HDFS).partition("/")
        if not location.startswith(HDFS) or not slash:
            raise UsageError(f"{shown(location)}: is no location on HDFS, as {self.home} is one")
        if authority and authority.removesuffix(":8020") != self.location.removeprefix(HDFS).removesuffix(":8020"):
            raise UsageError(f"{shown(location)}: the HDFS that is configured is {self.location}")
        if not rest.isascii():
            try:
                rest.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{shown(location)}: names on HDFS are UTF-8, and this one is not") from None
        kept: list[str] = []
        for part in rest.split("/"):
            if part == "..":
                del kept[-1:]
            elif part not in ("", "."):
                kept.append(part)
        return "/" + "/".join(kept)


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

        Nothing is written before it is known that all of it has room and that nothing is in its way. Permissions and
        modification times are kept, but what is fetched can always be read and written by its new owner.

        Raises:
            NotFound: an entry, or something in it, is gone.
            DlappError: a file stands where one would land, or changed while it was read; it names the file.
            DiskFull: there is not enough room.
        """

    def tree(self, entry: Entry) -> list[Node]:
        """All that is in an entry, the entry itself first (its ``name`` is empty), parents before what is in them.

        Raises:
            NotFound: it is gone.
            Denied: a directory may not be read.
        """

    def bring(self, landings: Sequence[Landing], done: Callable[[int], None]) -> None:
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


def open_location(location: str, hdfs: HdfsPlace | None = None) -> FileSystem:
    """The file system that ``location`` is on.

    Args:
        hdfs: the HDFS that is configured, if one is.

    Raises:
        UsageError: no scheme, or one that we have no storage for.
    """
    if hdfs is not None and location.startswith(HDFS):
        hdfs.path(location)
        from dlapp.storage.hdfs import HdfsFiles

        return HdfsFiles(hdfs)
    scheme, colon, _ = location.partition("://")
    if colon and not location.startswith((FILE, HDFS)) and scheme.replace("+", "").isalnum():
        from dlapp.storage.remote import RemoteFiles

        return RemoteFiles(scheme)
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
    if location.startswith(HDFS):
        raise UsageError(f"{shown(location)}: no HDFS is configured; HADOOP_CONF_DIR says where one is")
    if colon and scheme.isalnum():
        raise UsageError(f"{shown(location)}: there is no storage for {scheme}:// here, only for file://")
    raise UsageError(f"{shown(location)}: is no location, as file:///data/train is one")


def file_location(path: str) -> str:
    """The location of an absolute path on this machine."""
    return FILE + path


def last_name(location: str) -> str:
    """The name that what is at a location lands under; empty where it has none.

    >>> last_name("hdfs://nn:8020/data/a b/"), last_name("https://host/a%20b.tar?v=1")
    ('a b', 'a b.tar')
    """
    scheme, _, rest = location.partition("://")
    path = rest.partition("/")[2]
    if scheme in ("http", "https"):
        from urllib.parse import unquote

        path = unquote(path.partition("?")[0].partition("#")[0])
    return path.rstrip("/").rpartition("/")[2]


def fetch_sources(
    sources: Sequence[str], into: str, *, hdfs: HdfsPlace | None = None, progress: Progress | None = None
) -> Moved:
    """Bring all that ``sources`` match into the directory ``into``; see `FileSystem.fetch`.

    Raises:
        NotFound: a source matches nothing.
    """
    from dlapp.storage.fetching import plan_fetch

    return plan_fetch(sources, into, hdfs=hdfs).fetch(progress)


def shown(name: str) -> str:
    """A name as a message can show it on one line, whatever bytes are in it."""
    return name if name.isprintable() else repr(name)
