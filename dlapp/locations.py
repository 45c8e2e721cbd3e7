"""Locations, as text with a scheme, and the address and user of an HDFS, as one value that is passed around.

`dlapp.storage` defines what a location is. A cluster may have several HDFS (nameservices), and mount tables (viewfs)
that combine parts of them into one tree. Only clients know mount tables: submissions and nodes use locations of an
HDFS.
"""

from __future__ import annotations

from collections.abc import Iterable

from dlapp.errors import UsageError
from dlapp.login import Login
from dlapp.system.text import lazy_pattern
from dlapp.value import NamedTuple

FILE = "file://"
HDFS = "hdfs://"
VIEWFS = "viewfs:"
WEBHDFS, NATIVE, AUTO = "webhdfs", "native", "auto"
"""Protocols for HDFS: WebHDFS; its native protocols; native with WebHDFS where that is not available."""
_WILDCARD = lazy_pattern(r"[*?\[\]{}\\]")


def shown(name: str) -> str:
    """Return the name in a form that a message can show on one line, whatever bytes it contains."""
    return name if name.isprintable() else repr(name)


def remote_scheme(location: str) -> str:
    """Return the scheme of a location that requires fsspec; empty: it does not."""
    scheme, colon, _ = location.partition("://")
    return scheme if colon and not location.startswith((FILE, HDFS)) and scheme.replace("+", "").isalnum() else ""


def is_on_hdfs(location: str) -> bool:
    """Return whether a location, or a file system as of `file_system`, is on HDFS."""
    return location.startswith(HDFS)


class FileInfo(NamedTuple):
    """Status of a file: its size [bytes], modification time [ms since 1970], owner and permissions.

    ``encrypted``: it is in an encryption zone. ``is_file`` is false for directories and symbolic links. ``inode_id``
    changes when the file is replaced; 0: not reported by the server.
    """

    size_bytes: int
    modified_ms: int
    owner: str
    mode: int
    is_file: bool
    encrypted: bool = False
    inode_id: int = 0


class HdfsService(NamedTuple):
    """Nameservice of the configuration, with the fields of `HdfsPlace` in which it differs from others."""

    location: str
    web: tuple[str, ...]
    names: tuple[str, ...] = ()


class MountTable(NamedTuple):
    """Mount table of viewfs.

    Args:
        name: part after ``viewfs://``.
        links: path in the table -> its target location. ``/`` applies to paths under no other link.
        unsupported: path -> setting, for links of an unsupported kind; one of the path ``/`` may affect any path.
        homes: path of the parent of all home directories.
    """

    name: str
    links: dict[str, str]
    unsupported: dict[str, str]
    homes: str = "/user"

    def target(self, path: str) -> str:
        """Return the target location of a path, or a pattern, of the table.

        Raises:
            UsageError: it is under no link, has links under it, or has a wildcard in the place of a link.

        Source: org.apache.hadoop.fs.viewfs.InodeTree (3.4: the longest link; before, links may not be nested).
        """
        parts = plain_parts(path)
        name = shown(f"viewfs://{self.name}/{'/'.join(parts)}")
        found, length = "", -1
        for link, target in (self.links | self.unsupported).items():
            above = plain_parts(link)
            if parts[: len(above)] == above:
                if link in self.unsupported:
                    raise UsageError(
                        f"{name}: dlapp does not follow {self.unsupported[link]}; write the hdfs:// location"
                    )
                if len(above) > length:
                    found, length = target, len(above)
            elif above[: len(parts)] == parts:
                raise UsageError(f"{name} has mount points in it, such as {link}; name what is in one of them")
            else:
                one, other = next(pair for pair in zip(parts, above, strict=False) if pair[0] != pair[1])
                begin, *wild = _WILDCARD.split(one, maxsplit=1)
                if wild and other.startswith(begin):
                    raise UsageError(
                        f"{name}: a wildcard stands for names below a mount point only; write {link} itself, or its "
                        "hdfs:// location"
                    )
        if length < 0:
            raise UsageError(f"{name} is below no mount point (fs.viewfs.mounttable.{self.name}.link)")
        return "/".join((found.rstrip("/"), *parts[length:]))


class HdfsPlace(NamedTuple):
    """Location of an HDFS, and the user who accesses it.

    Args:
        location: prefix of its locations: ``hdfs://namenode:8020`` or ``hdfs://nameservice``.
        web: the web address of each NameNode: ``http://namenode:9870``.
        login: the Hadoop user and credentials; relative paths start at this user's home.
        ca: file of the CA certificates for NameNodes and DataNodes (``https://``); None: OpenSSL's default.
        certificates: additional trusted CAs for all servers of the cluster (PEM).
        umask: umask of new directories (``fs.permissions.umask-mode``).
        protected: directories that may not be replaced, nor their parents (``fs.protected.directories``); if one ends
            with a slash, its content is protected, too.
        homes: path of the parent of all home directories (``dfs.user.home.dir.prefix``).
        names: other authorities of the same HDFS after ``hdfs://``: the nameservice, ``host:port`` of its NameNodes.
        others: the other nameservices of the configuration.
        mounts: the mount tables of the configuration.
        view: mount table of paths without a scheme (``fs.defaultFS`` is viewfs); empty: they are on this HDFS.
        protocol: protocol to use (``storage.hdfs``): `WEBHDFS`, `NATIVE` or `AUTO`.
        by_hostname: DataNodes are reached by their names, not by the addresses that the NameNode sees
            (``dfs.client.use.datanode.hostname``).
    """

    location: str
    web: tuple[str, ...]
    login: Login
    ca: str | None = None
    certificates: str = ""
    umask: int = 0o022
    protected: tuple[str, ...] = ()
    homes: str = "/user"
    names: tuple[str, ...] = ()
    others: tuple[HdfsService, ...] = ()
    mounts: tuple[MountTable, ...] = ()
    view: str = ""
    protocol: str = WEBHDFS
    by_hostname: bool = False

    @property
    def home(self) -> str:
        """Return the location of the user's home directory."""
        return self._default(f"{self.homes}/{self.login.user}")

    def resolve(self, path: str) -> str:
        """Return the location of a path in Hadoop's forms: absolute, relative to the home, or with a scheme.

        Raises:
            UsageError: it is on an HDFS, or under a mount point, that is not configured.
        """
        if path.startswith(FILE):
            return path
        if path.startswith(VIEWFS + "/"):
            return self._of_view(path.removeprefix(VIEWFS))
        if path.startswith(HDFS) and not path.startswith(HDFS + "/"):
            _, slash, rest = path.removeprefix(HDFS).partition("/")
            return self.of(path).location + slash + rest if slash else path
        for prefix in (HDFS, "hdfs:"):
            if path.startswith(prefix + "/"):
                return self._default(path.removeprefix(prefix))
        return self._default(path if path.startswith("/") else f"{self.homes}/{self.login.user}/{path}")

    def _default(self, path: str) -> str:
        """Return the location of an absolute path on the default file system."""
        return self._of_view(f"//{self.view}{path}") if self.view else self.location + path

    def _of_view(self, text: str) -> str:
        """Return the location of ``//table/path``, or of ``/path`` in the default table."""
        named, _, path = text[2:].partition("/") if text.startswith("//") else ("", "", text)
        name = named or self.view or "default"
        table = next((one for one in self.mounts if one.name == name), None)
        if table is None:
            raise UsageError(
                f"{shown(VIEWFS + text)}: the Hadoop configuration has no mount table {shown(name)} "
                f"(fs.viewfs.mounttable.{shown(name)}.link)"
            )
        found = table.target(path)
        if not found.startswith(HDFS) or found.startswith(HDFS + "/"):
            raise UsageError(f"{shown(VIEWFS + text)} stands for {shown(found)}, which is not on hdfs://NAMESERVICE")
        return self.resolve(found)

    def of(self, location: str) -> HdfsPlace:
        """Return this place, or that of the nameservice of a location.

        Raises:
            UsageError: the nameservice is not configured.
        """
        authority = location.removeprefix(HDFS).partition("/")[0]
        if not location.startswith(HDFS) or self._is_here(authority):
            return self
        for one in self.others:
            place = self._replace(location=one.location, web=one.web, names=one.names)
            if place._is_here(authority):
                return place
        host, colon, _ = authority.partition(":")
        kind = "https" if self.web[:1] and self.web[0].startswith("https:") else "http"
        settings = f"dfs.ha.namenodes.{host} and dfs.namenode.{kind}-address.{host}.NAMENODE"
        if colon:
            settings = f"dfs.namenode.rpc-address.NAME ({authority}) and dfs.namenode.{kind}-address.NAME"
        raise UsageError(
            f"{shown(location)}: the HDFS that is configured is {self.location}; for another one hdfs-site.xml must "
            f"have its name in dfs.nameservices, {shown(settings)}"
        )

    def for_locations(self, locations: Iterable[str]) -> HdfsPlace:
        """Return this place with only those nameservices that the locations use, for nodes."""
        used = {self.of(one).location for one in locations} - {self.location}
        others = tuple(one for one in self.others if one.location in used)
        return self._replace(others=others, mounts=(), view="")

    def _is_here(self, authority: str) -> bool:
        """Return whether a name refers to this HDFS; empty: the default one."""
        known = (self.location.removeprefix(HDFS), *self.names)
        return not authority or authority.removesuffix(":8020") in [one.removesuffix(":8020") for one in known]

    def path(self, location: str) -> str:
        """Return the absolute path of a location on this HDFS.

        Raises:
            UsageError: it is on another file system, or not a valid HDFS path.
        """
        authority, slash, rest = location.removeprefix(HDFS).partition("/")
        if not location.startswith(HDFS) or not slash:
            raise UsageError(f"{shown(location)}: is not a location on HDFS, such as {self.home}")
        if not self._is_here(authority):
            raise UsageError(f"{shown(location)}: the HDFS that is configured is {self.location}")
        if not rest.isascii():
            try:
                rest.encode()
            except UnicodeEncodeError:
                raise UsageError(f"{shown(location)}: names on HDFS are UTF-8, and this one is not") from None
        return "/" + "/".join(plain_parts(rest))


def plain_parts(path: str) -> list[str]:
    """Return the components of a path, without ``.`` and ``..``."""
    kept: list[str] = []
    for part in path.split("/"):
        if part == "..":
            del kept[-1:]
        elif part not in ("", "."):
            kept.append(part)
    return kept


def local_path(location: str) -> str:
    """Return the path of a ``file://`` location.

    Raises:
        UsageError: it is not such a location.
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
    """Return the location of an absolute path on this machine."""
    return FILE + path


def last_name(location: str) -> str:
    """Return the file name under which a location is stored; empty if it has none.

    >>> last_name("hdfs://nn:8020/data/a b/"), last_name("https://host/a%20b.tar?v=1")
    ('a b', 'a b.tar')
    """
    scheme, _, rest = location.partition("://")
    path = rest.partition("/")[2]
    if scheme in ("http", "https"):
        from urllib.parse import unquote

        path = unquote(path.partition("?")[0].partition("#")[0])
    return path.rstrip("/").rpartition("/")[2]


def file_system(location: str) -> str:
    """Return the file system of a location, for users: ``hdfs://nn:8020``; empty: this machine's."""
    scheme, _, rest = location.partition("://")
    return "" if scheme == "file" else f"{scheme}://{rest.partition('/')[0]}"
