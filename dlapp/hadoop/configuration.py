"""Configuration of a Hadoop cluster, from its XML files.

The files core-site.xml, hdfs-site.xml and yarn-site.xml of one directory are read, with Hadoop's own defaults for the
few properties needed here. A later value overrides an earlier one, unless the earlier one is final or the later one is
empty. ``${name}`` refers to another property, ``${env.NAME}`` to a variable, and ``xi:include`` includes the properties
of another file, as in Hadoop.

Source: org.apache.hadoop.conf.Configuration; yarn-default.xml and hdfs-default.xml of 3.4.2; answers of its
``hdfs getconf``.
"""

from __future__ import annotations

import contextlib
import errno
import os
import pwd
import re
import stat
from collections.abc import Mapping
from typing import NamedTuple

from dlapp.errors import ConfigError, UsageError
from dlapp.locations import HDFS, HdfsPlace, HdfsService, MountTable
from dlapp.login import Login
from dlapp.system.files import closing_fd

FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
_SSL_CLIENT = "ssl-client.xml"
"""File in which Hadoop's own clients find the trusted CAs. It may contain passwords, and be unreadable for users."""
VARIABLE = "HADOOP_CONF_DIR"
_CLUSTER_ID = "yarn.resourcemanager.cluster-id"
_CLUSTER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", re.ASCII)
_CA, _TRUSTSTORE = "SSL_CERT_FILE", "ssl.client.truststore.location"
_MAX_BYTES = 16 << 20
_REFERENCE = re.compile(r"\$\{([^$} ]+)\}")
_VARIABLE = re.compile(r"env\.(.+?)(?:(:?-)(.*))?", re.DOTALL)
_MAX_REFERENCES = 20
"""Source: Configuration.MAX_SUBST."""
_MAX_INCLUDES = 10
"""Maximum depth of included files."""
_MAX_INCLUDED = 100
"""Maximum number of included files of a configuration."""
_MAX_TEXT = 1 << 16
"""Maximum length of a value after resolving its references [characters]."""
_RENAMED: Mapping[str, str] = {
    "fs.default.name": "fs.defaultFS",
    "dfs.federation.nameservices": "dfs.nameservices",
    "dfs.http.address": "dfs.namenode.http-address",
    "dfs.https.address": "dfs.namenode.https-address",
    "dfs.umaskmode": "fs.permissions.umask-mode",
}
"""Old names of properties that are read here. Source: Hadoop's DeprecatedProperties.md."""
_DEFAULTS: Mapping[str, str] = {
    "yarn.resourcemanager.hostname": "0.0.0.0",
    "yarn.resourcemanager.address": "${yarn.resourcemanager.hostname}:8032",
    "yarn.resourcemanager.scheduler.address": "${yarn.resourcemanager.hostname}:8030",
    "yarn.resourcemanager.webapp.address": "${yarn.resourcemanager.hostname}:8088",
    "yarn.resourcemanager.webapp.https.address": "${yarn.resourcemanager.hostname}:8090",
    "yarn.timeline-service.hostname": "0.0.0.0",
    "yarn.timeline-service.webapp.address": "${yarn.timeline-service.hostname}:8188",
    "yarn.timeline-service.webapp.https.address": "${yarn.timeline-service.hostname}:8190",
    "yarn.timeline-service.reader.webapp.address": "${yarn.timeline-service.webapp.address}",
    "yarn.timeline-service.reader.webapp.https.address": "${yarn.timeline-service.webapp.https.address}",
    "yarn.timeline-service.version": "1.0f",
    "yarn.http.policy": "HTTP_ONLY",
}
_MOUNT_TABLE = "fs.viewfs.mounttable."
_MOUNT = re.compile(
    r"(.+?)\.(?:(link)\.(/.*)|(linkFallback|linkMergeSlash|homedir)|(link(?:Merge|Nfly|Regex)\b.*))", re.DOTALL
)
"""Suffixes of the property names; a mount table's name may contain dots."""
_DEFAULT_TABLE = f"{_MOUNT_TABLE}default.name.key"
_OVERLOADED = (".ViewFileSystemOverloadScheme", ".ViewDistributedFileSystem")
_PORTS: Mapping[str, str] = {
    "address": "8032",
    "scheduler.address": "8030",
    "webapp.address": "8088",
    "webapp.https.address": "8090",
}


class HadoopConfiguration(NamedTuple):
    """Properties of one cluster; ``origin`` and ``files`` name their source, for messages."""

    properties: Mapping[str, str]
    origin: str
    files: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """Return the value of a property, with references resolved; None: it has none, or an empty one.

        An unresolvable reference stays unchanged, with those after it.

        Raises:
            ConfigError: it has too many references, or a cycle of them.

        Source: Configuration.substituteVars.
        """
        text = whole = self._raw(name) or ""
        for _ in range(_MAX_REFERENCES):
            reference = _REFERENCE.search(text)
            value = self._referred(reference[1]) if reference else None
            if reference is None or value is None:
                return text.strip() or None
            if reference[0] in value:
                return whole.strip()
            text = text[: reference.start()] + value + text[reference.end() :]
            if len(text) > _MAX_TEXT:
                raise ConfigError(f"{self.origin}: {text[:40]!r}… grows beyond {_MAX_TEXT} characters")
        raise ConfigError(
            f"{self.origin}: {name} ({whole[:100]!r}) refers to itself, or {_MAX_REFERENCES} times to others"
        )

    def _raw(self, name: str) -> str | None:
        return self.properties.get(name) or _DEFAULTS.get(name)

    def _referred(self, name: str) -> str | None:
        """Return the value of ``${name}``; None: it has none."""
        if variable := _VARIABLE.fullmatch(name):
            value = os.environ.get(variable[1])
            missing = value is None if variable[2] == "-" else not value
            return variable[3] if variable[2] and missing else value
        return _of_java(name) or self._raw(name)

    def is_on(self, name: str) -> bool:
        """Return True if a property is ``true``."""
        return (self.get(name) or "").lower() == "true"

    def resource_managers(self, what: str) -> list[str]:
        """Return ``host:port`` of each ResourceManager; ``what`` is the suffix of the property: ``scheduler.address``.

        Raises:
            ConfigError: the files contain none.
        """
        ids = self._list("yarn.resourcemanager.ha.rm-ids")
        if not self.is_on("yarn.resourcemanager.ha.enabled") or not ids:
            ids = [""]
        return [self._resource_manager(what, f".{one}" if one else "") for one in ids]

    def _resource_manager(self, what: str, suffix: str) -> str:
        name = f"yarn.resourcemanager.{what}{suffix}"
        # One of several ResourceManagers has its host name under its own id, and the default ports.
        host = self.get(f"yarn.resourcemanager.hostname{suffix}") if suffix else None
        found = self.get(name) or (f"{host}:{_PORTS[what]}" if host else None)
        if found is None or found.startswith("0.0.0.0:"):
            raise ConfigError(
                f"{self.origin}: neither yarn.resourcemanager.hostname{suffix} nor {name} says where the "
                f"ResourceManager is"
            )
        return found

    @property
    def cluster_name(self) -> str:
        """Return a name that identifies this cluster: its id, else the host or nameservice of its default file system.

        Raises:
            ConfigError: the files have neither, or it has other characters than letters, digits, dots, dashes and
                underscores.
        """
        place = (self.get("fs.defaultFS") or "").partition("://")[2]
        found = self.get(_CLUSTER_ID) or place.partition("/")[0].partition(":")[0]
        if not _CLUSTER_NAME.fullmatch(found):
            raise ConfigError(
                f"{self.origin}: the cluster has no name that a path can have ({found!r}): set {_CLUSTER_ID}"
            )
        return found

    @property
    def web_scheme(self) -> str:
        """Return the scheme of the web addresses of YARN's servers: ``http`` or ``https``."""
        return "https" if self.get("yarn.http.policy") == "HTTPS_ONLY" else "http"

    def certificates(self, environ: Mapping[str, str] = os.environ) -> str:
        """Return the CAs of this cluster's web servers, as PEM; empty: OpenSSL's default.

        Raises:
            ConfigError: their file cannot be read.
        """
        if "HTTPS_ONLY" not in (self.get("yarn.http.policy"), self.get("dfs.http.policy")):
            return ""
        for setting, path in ((_CA, environ.get(_CA)), (_TRUSTSTORE, self.get(_TRUSTSTORE))):
            if path:
                from dlapp.hadoop.truststore import read_certificates

                return read_certificates(path, setting)
        return ""

    def web_urls(self) -> list[str]:
        """Return the web address of each ResourceManager."""
        what = "webapp.https.address" if self.web_scheme == "https" else "webapp.address"
        return [f"{self.web_scheme}://{one}" for one in self.resource_managers(what)]

    def hdfs(self, login: Login, protocol: str | None = None) -> HdfsPlace:
        """Return the default file system for ``login``; ``protocol`` as of `HdfsPlace`, None for the default there.

        Raises:
            ConfigError: it is not HDFS, or not configured.
        """
        location = (self.get("fs.defaultFS") or "").rstrip("/")
        scheme, _, name = location.partition("://")
        if scheme not in ("hdfs", "viewfs") or not name:
            raise ConfigError(f"{self.origin}: fs.defaultFS is {location or 'not set'}; it must be hdfs://…")
        services, mounts = self._services(), self._mount_tables()
        tables = [one.name for one in mounts]
        if (
            scheme == "hdfs"
            and name.partition(":")[0] in tables
            and (self.get("fs.hdfs.impl") or "").endswith(_OVERLOADED)
        ):
            raise ConfigError(
                f"{self.origin}: by fs.hdfs.impl {location} is a mount table, which dlapp follows as viewfs:// only; "
                "give it a copy of the files without fs.hdfs.impl (yarn.conf_dir)"
            )
        end = "/" if self.is_on("dfs.protected.subdirectories.enable") else ""
        protected = [f"{one.rstrip('/')}{end}" for one in self._list("fs.protected.directories")]
        place = HdfsPlace(
            location,
            (),
            login,
            certificates=self.certificates(),
            umask=self._umask(),
            protected=tuple(filter(None, protected)),
            homes=(self.get("dfs.user.home.dir.prefix") or "/user").rstrip("/"),
            others=services,
            mounts=mounts,
            by_hostname=self.is_on("dfs.client.use.datanode.hostname"),
        )
        if protocol is not None:
            place = place._replace(protocol=protocol)
        if scheme == "viewfs":
            # The user's files are in the user's home directory.
            homes = next((one.homes for one in mounts if one.name == name), "/user")
            place = place._replace(view=name, homes=homes)
            try:
                return place.of(place.home)
            except UsageError as error:
                raise ConfigError(f"{self.origin}: {error}") from error
        of = next((one for one in services if name in (*one.names, one.location.removeprefix(HDFS))), None)
        if of is not None:
            return place._replace(web=of.web, names=(*of.names, of.location.removeprefix(HDFS)))
        return place._replace(web=tuple(self._namenodes(name)))

    def _services(self) -> tuple[HdfsService, ...]:
        """Return the nameservices; one without a NameNode's address is left out, which is an error only if it is
        used."""
        found = []
        for name in self._list("dfs.nameservices"):
            ids = self._list(f"dfs.ha.namenodes.{name}")
            rpc = [self.get(f"dfs.namenode.rpc-address.{name}{one}") for one in [f".{one}" for one in ids] or [""]]
            known = [one for one in rpc if one]
            # Only a nameservice with several NameNodes has a name that Hadoop's clients know, too.
            location = f"{HDFS}{name if ids or not known else known[0]}"
            with contextlib.suppress(ConfigError):
                found.append(HdfsService(location, tuple(self._namenodes(name)), (name, *known)))
        return tuple(found)

    def _mount_tables(self) -> tuple[MountTable, ...]:
        tables: dict[str, MountTable] = {}
        for key in self.properties:
            if not key.startswith(_MOUNT_TABLE) or not (found := _MOUNT.fullmatch(key, len(_MOUNT_TABLE))):
                continue
            name, link, path, one, other = found.groups()
            value = self.get(key) or ""
            table = tables.setdefault(name, MountTable(name, {}, {}))
            if link:
                table.links[path] = value
            elif one == "homedir":
                tables[name] = table._replace(homes=value.rstrip("/"))
            elif one:
                table.links["/"] = value
            else:
                is_regex = other.startswith("linkRegex")
                table.unsupported["/" if is_regex else f"/{other.partition('/')[2]}"] = key
        if (named := self.get(_DEFAULT_TABLE)) and named in tables:
            tables["default"] = tables[named]._replace(name="default")
        return tuple(tables.values())

    def _list(self, name: str) -> list[str]:
        return [one.strip() for one in (self.get(name) or "").split(",") if one.strip()]

    def _umask(self) -> int:
        """Return ``fs.permissions.umask-mode``, octal or symbolic (``u=rwx,g=rx,o=``)."""
        text = self.get("fs.permissions.umask-mode") or "022"
        if re.fullmatch("[0-7]{1,4}", text):
            return int(text, 8) & 0o777
        umask = 0o777
        for clause in text.split(","):
            match = re.fullmatch("([ugoa]*)=([rwx]*)", clause.strip())
            if match is None:
                raise ConfigError(
                    f"{self.origin}: fs.permissions.umask-mode is {text!r}, neither 027 nor u=rwx,g=rx,o="
                )
            allowed = sum(4 >> "rwx".index(one) for one in set(match[2]))
            for shift, who in ((6, "u"), (3, "g"), (0, "o")):
                if not match[1] or who in match[1] or "a" in match[1]:
                    umask = umask & ~(7 << shift) | (7 & ~allowed) << shift
        return umask

    def _namenodes(self, place: str) -> list[str]:
        """Return the web addresses of the NameNodes of a nameservice, or of ``host:port``.

        Source: DFSUtil.getInfoServer (the default is the usual port of the host that serves RPC).
        """
        https = self.get("dfs.http.policy") == "HTTPS_ONLY"
        name, scheme = ("dfs.namenode.https-address", "https") if https else ("dfs.namenode.http-address", "http")
        ids = self._list(f"dfs.ha.namenodes.{place}")
        is_service = bool(ids) or place in self._list("dfs.nameservices")
        found = []
        for suffix in [f".{place}.{one}" for one in ids] or ([f".{place}"] if is_service else [""]):
            rpc = self.get(f"dfs.namenode.rpc-address{suffix}") if is_service else place
            host = (rpc or "").partition(":")[0]
            address = self.get(name + suffix) or (f"{host}:{9871 if https else 9870}" if host else None)
            if address is None:
                raise ConfigError(f"{self.origin}: {name}{suffix} is not set")
            found.append(f"{scheme}://{address.replace('0.0.0.0', host or '0.0.0.0')}")
        return found

    def timeline_url(self) -> str | None:
        """Return the web address of the timeline server of version 1 or 1.5; None: the cluster has none."""
        return self._timeline_address("") if "1" in self._timeline_versions() else None

    def timeline_reader_url(self) -> str | None:
        """Return the URL of this cluster in the reader of Timeline Service v2; None: the cluster has none.

        Source: TimelineReaderClientImpl.
        """
        from urllib.parse import quote  # takes 5 ms, also for one machine without a cluster

        address = self._timeline_address("reader.") if "2" in self._timeline_versions() else None
        cluster = quote(self.get(_CLUSTER_ID) or "yarn_cluster", safe="")
        return f"{address}/ws/v2/timeline/clusters/{cluster}" if address else None

    def _timeline_versions(self) -> set[str]:
        """Return the major versions of the timeline servers: ``1.5f`` is 1. Empty: there is none.

        Source: YarnConfiguration.getEnabledTimelineServiceVersions.
        """
        if not self.is_on("yarn.timeline-service.enabled"):
            return set()
        found = self._list("yarn.timeline-service.versions") or self._list("yarn.timeline-service.version")
        return {one.partition(".")[0] for one in found}

    def _timeline_address(self, which: str) -> str | None:
        found = self.get(f"yarn.timeline-service.{which}webapp.{'https.' if self.web_scheme == 'https' else ''}address")
        return None if found is None or found.startswith("0.0.0.0:") else f"{self.web_scheme}://{found}"


def read_configuration(directory: str | None, environ: Mapping[str, str] = os.environ) -> HadoopConfiguration:
    """Return the configuration in ``directory``, else in ``$HADOOP_CONF_DIR``.

    Raises:
        ConfigError: there is none, or one of its files cannot be read.
    """
    named = directory or environ.get(VARIABLE)
    if not named:
        raise ConfigError(
            f"no cluster is configured: set yarn.conf_dir, or {VARIABLE}, to the directory with its "
            f"core-site.xml and yarn-site.xml"
        )
    origin = f"yarn.conf_dir ({named})" if directory else f"{VARIABLE} ({named})"
    reading, found = _Reading(named), []
    for name in (_SSL_CLIENT, *FILES):
        path = os.path.join(named, name)
        try:
            data = _content(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            if name == _SSL_CLIENT:
                continue
            raise ConfigError(f"{path}: {error.strerror}") from error
        reading.read(data, path)
        if name != _SSL_CLIENT:
            found.append(name)
    if not found:
        raise ConfigError(f"{origin}: there is none of {', '.join(FILES)}")
    return HadoopConfiguration(reading.properties, origin, tuple(found))


def parse_properties(data: bytes, path: str) -> dict[str, str]:
    """Return the properties of one file, and of those that it includes, by names relative to its directory.

    Raises:
        ConfigError: it is not XML, or includes a missing file without a fallback.
    """
    reading = _Reading(os.path.dirname(path))
    reading.read(data, path)
    return reading.properties


class _Reading:
    """Properties of several files, read one after the other.

    Args:
        directory: base of the names of included files, also of those in included files.

    Source: org.apache.hadoop.conf.Configuration, Parser and loadProperty.
    """

    def __init__(self, directory: str) -> None:
        self.properties: dict[str, str] = {}
        self._final: set[str] = set()
        self._directory = directory
        self._included = 0

    def read(self, data: bytes, path: str, depth: int = 0) -> None:
        """Read a file of this path, which is in ``depth`` others. Raises the errors of `parse_properties`."""
        # Loading only the parser takes 1 ms, ElementTree 15.
        from xml.parsers import expat

        one: dict[str, str] = {}
        text: list[str] = []
        missing, in_fallback = "", False

        def start(tag: str, attributes: dict[str, str]) -> None:
            nonlocal missing, in_fallback
            local = tag.rpartition(":")[2]
            if local == "property":
                one.clear()
                one.update(attributes)
            elif local in ("name", "value", "final"):
                text.clear()
            elif local == "include" and (href := attributes.get("href")):
                if not self._include(href, f"{path}:{parser.CurrentLineNumber}", depth):
                    missing = href
            elif local == "fallback":
                in_fallback = True

        def end(tag: str) -> None:
            nonlocal missing, in_fallback
            local = tag.rpartition(":")[2]
            if local in ("name", "value", "final") and (text or local == "final"):
                one[local] = "".join(text)
            elif local == "property" and (missing or not in_fallback):
                self._add(one.get("name", "").strip(), one.get("value"), one.get("final") == "true")
            elif local == "include":
                if missing and not in_fallback:
                    raise ConfigError(f"{path}:{parser.CurrentLineNumber}: includes {missing}, which is not there")
                missing, in_fallback = "", False

        def entity(*_: object) -> None:
            # Hadoop's files have none, and nested entities can expand without limit.
            raise ConfigError(f"{path}:{parser.CurrentLineNumber}: declares an entity, which is not read here")

        parser = expat.ParserCreate()
        parser.EntityDeclHandler = entity
        parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, text.append
        try:
            parser.Parse(data, True)
        except LookupError as error:  # an encoding unknown to Python
            raise ConfigError(f"{path}:{parser.CurrentLineNumber}: {str(error)!r:.80}") from error
        except expat.ExpatError as error:
            raise ConfigError(f"{path}:{error.lineno}: is not XML: {expat.errors.messages[error.code]}") from error

    def _add(self, name: str, value: str | None, final: bool) -> None:
        name = _RENAMED.get(name, name)
        if name and value is not None and name not in self._final:
            self.properties[name] = value
        if final:
            self._final.add(name)

    def _include(self, href: str, where: str, depth: int) -> bool:
        """Read a file that one in ``depth`` others includes, in the line ``where``; return whether it exists."""
        if depth >= _MAX_INCLUDES:
            raise ConfigError(f"{where}: includes {href}, the {depth + 1}th file that includes another one")
        name = href.removeprefix("file://") if href.startswith("file:///") else href.removeprefix("file:")
        if "://" in name:
            raise ConfigError(f"{where}: includes {href}; dlapp reads files only, so copy it beside this one")
        path = os.path.join(self._directory, name)
        self._included += 1
        if self._included > _MAX_INCLUDED:
            raise ConfigError(f"{where}: includes {path}; more than {_MAX_INCLUDED} files are included")
        try:
            data = _content(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise ConfigError(f"{where}: includes {path}: {error.strerror}") from error
        self.read(data, path, depth + 1)
        return True


def _content(path: str) -> bytes:
    """Return the content of a file. Raises OSError, also if it is not a regular file: a FIFO is not waited for."""
    with closing_fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)) as fd:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "is not a regular file", path)
        with open(fd, "rb", closefd=False) as file:
            return file.read(_MAX_BYTES)


def _of_java(name: str) -> str | None:
    """Return a Java system property, which takes precedence over a property of that name; None: not one used in
    configurations."""
    if name not in ("user.name", "user.home"):
        return None
    try:
        user = pwd.getpwuid(os.getuid())
    except KeyError:
        return None
    return user.pw_name if name == "user.name" else user.pw_dir
