"""Locations, as text with a scheme, and where an HDFS is and as whom it is used: one value, handed to all who need it.

`dlapp.storage` says what a location is.
"""

from __future__ import annotations

from typing import NamedTuple

from dlapp.errors import UsageError
from dlapp.login import Login

FILE = "file://"
HDFS = "hdfs://"


def shown(name: str) -> str:
    """A name as a message can show it on one line, whatever bytes are in it."""
    return name if name.isprintable() else repr(name)


class HdfsPlace(NamedTuple):
    """Location of an HDFS, and the user that it is used as.

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
            raise UsageError(f"{shown(location)}: is not a location on HDFS, such as {self.home}")
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
        raise UsageError(f"{shown(location)}: no HDFS is configured; set HADOOP_CONF_DIR")
    if colon and scheme.isalnum():
        raise UsageError(f"{shown(location)}: there is no storage for {scheme}:// here, only for file://")
    raise UsageError(f"{shown(location)}: is not a location, such as file:///data/train")


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
