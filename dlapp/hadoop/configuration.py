"""Configuration of a Hadoop cluster: the addresses in the files that its operators hand out.

Read are core-site.xml, hdfs-site.xml and yarn-site.xml of one directory, later over earlier, with Hadoop's own
defaults under them for the few properties that matter here. ``${name}`` stands for another property, and
``${env.NAME}`` for a variable, as in Hadoop.

Source: org.apache.hadoop.conf.Configuration; yarn-default.xml and hdfs-default.xml of 3.4.2.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import NamedTuple

from dlapp.errors import ConfigError
from dlapp.locations import HdfsPlace
from dlapp.login import Login

FILES = ("core-site.xml", "hdfs-site.xml", "yarn-site.xml")
VARIABLE = "HADOOP_CONF_DIR"
_MOST_BYTES = 16 << 20
_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_MOST_ROUNDS = 20
_MOST_TEXT = 1 << 16
"""Characters of a value when its references are resolved; a value with each twice doubles in each round."""
_DEFAULTS = {
    "yarn.resourcemanager.hostname": "0.0.0.0",
    "yarn.resourcemanager.address": "${yarn.resourcemanager.hostname}:8032",
    "yarn.resourcemanager.scheduler.address": "${yarn.resourcemanager.hostname}:8030",
    "yarn.resourcemanager.webapp.address": "${yarn.resourcemanager.hostname}:8088",
    "yarn.resourcemanager.webapp.https.address": "${yarn.resourcemanager.hostname}:8090",
    "yarn.timeline-service.hostname": "0.0.0.0",
    "yarn.timeline-service.webapp.address": "${yarn.timeline-service.hostname}:8188",
    "yarn.timeline-service.webapp.https.address": "${yarn.timeline-service.hostname}:8190",
    "yarn.http.policy": "HTTP_ONLY",
}
_PORTS = {"address": "8032", "scheduler.address": "8030", "webapp.address": "8088", "webapp.https.address": "8090"}


class HadoopConfiguration(NamedTuple):
    """The properties of one cluster; ``origin`` and ``files`` say where they came from, for messages."""

    properties: Mapping[str, str]
    origin: str
    files: tuple[str, ...] = ()

    def get(self, name: str) -> str | None:
        """The value of a property, references resolved; None: it has none, or an empty one."""
        text = self.properties.get(name) or _DEFAULTS.get(name)
        return self._resolved(text).strip() or None if text else None

    def _resolved(self, text: str) -> str:
        def value(match: re.Match[str]) -> str:
            name = match[1]
            if name.startswith("env."):
                return os.environ.get(name[4:], "")
            return self.properties.get(name) or _DEFAULTS.get(name, "")

        for _ in range(_MOST_ROUNDS):
            if not _REFERENCE.search(text):
                return text
            text = _REFERENCE.sub(value, text)
            if len(text) > _MOST_TEXT:
                raise ConfigError(f"{self.origin}: {text[:40]!r}… grows beyond {_MOST_TEXT} characters")
        raise ConfigError(f"{self.origin}: {text!r} refers to itself")

    def is_on(self, name: str) -> bool:
        """Return True if a property is ``true``."""
        return (self.get(name) or "").lower() == "true"

    def resource_managers(self, what: str) -> list[str]:
        """``host:port`` of each ResourceManager; ``what`` is the end of the property: ``scheduler.address``.

        Raises:
            ConfigError: the files name none.
        """
        ids = [one.strip() for one in (self.get("yarn.resourcemanager.ha.rm-ids") or "").split(",") if one.strip()]
        if not self.is_on("yarn.resourcemanager.ha.enabled") or not ids:
            ids = [""]
        return [self._resource_manager(what, f".{one}" if one else "") for one in ids]

    def _resource_manager(self, what: str, suffix: str) -> str:
        name = f"yarn.resourcemanager.{what}{suffix}"
        # A ResourceManager of several has its host name under its own id, and the usual ports.
        host = self.get(f"yarn.resourcemanager.hostname{suffix}") if suffix else None
        found = self.get(name) or (f"{host}:{_PORTS[what]}" if host else None)
        if found is None or found.startswith("0.0.0.0:"):
            raise ConfigError(
                f"{self.origin}: neither yarn.resourcemanager.hostname{suffix} nor {name} says where the "
                f"ResourceManager is"
            )
        return found

    @property
    def web_scheme(self) -> str:
        """Scheme of the web addresses of YARN's servers: ``http`` or ``https``."""
        return "https" if self.get("yarn.http.policy") == "HTTPS_ONLY" else "http"

    def web_urls(self) -> list[str]:
        """The web address of each ResourceManager."""
        what = "webapp.https.address" if self.web_scheme == "https" else "webapp.address"
        return [f"{self.web_scheme}://{one}" for one in self.resource_managers(what)]

    def hdfs(self, login: Login) -> HdfsPlace:
        """Return where the default file system is, used as ``login``.

        Raises:
            ConfigError: it is not an HDFS, or the files do not say.
        """
        location = (self.get("fs.defaultFS") or self.get("fs.default.name") or "").rstrip("/")
        scheme, _, place = location.partition("://")
        if scheme != "hdfs" or not place:
            raise ConfigError(f"{self.origin}: fs.defaultFS is {location or 'not set'}; it must be hdfs://…")
        return HdfsPlace(location, tuple(self._namenodes(place)), login)

    def _namenodes(self, place: str) -> list[str]:
        https = self.get("dfs.http.policy") == "HTTPS_ONLY"
        name, scheme = ("dfs.namenode.https-address", "https") if https else ("dfs.namenode.http-address", "http")
        if ids := self.get(f"dfs.ha.namenodes.{place}"):
            suffixes = [f".{place}.{one.strip()}" for one in ids.split(",")]
        else:
            suffixes = [""]
        host = place.partition(":")[0]
        found = []
        for suffix in suffixes:
            address = self.get(name + suffix)
            if address is None and suffix:
                raise ConfigError(f"{self.origin}: {name}{suffix} is not set")
            bound = address or f"{host}:{9871 if https else 9870}"
            found.append(f"{scheme}://{bound.replace('0.0.0.0', host) if not suffix else bound}")
        return found

    def timeline_url(self) -> str | None:
        """The timeline server's web address; None: the cluster has none."""
        if not self.is_on("yarn.timeline-service.enabled"):
            return None
        found = self.get(f"yarn.timeline-service.webapp.{'https.' if self.web_scheme == 'https' else ''}address")
        return None if found is None or found.startswith("0.0.0.0:") else f"{self.web_scheme}://{found}"


def read_configuration(directory: str | None, environ: Mapping[str, str] = os.environ) -> HadoopConfiguration:
    """The configuration in ``directory``, else in ``$HADOOP_CONF_DIR``.

    Raises:
        ConfigError: there is none, or a file of it cannot be read.
    """
    named = directory or environ.get(VARIABLE)
    if not named:
        raise ConfigError(
            f"no cluster is configured: set yarn.conf_dir, or {VARIABLE}, to the directory with its "
            f"core-site.xml and yarn-site.xml"
        )
    origin = f"yarn.conf_dir ({named})" if directory else f"{VARIABLE} ({named})"
    properties: dict[str, str] = {}
    found = []
    for name in FILES:
        path = os.path.join(named, name)
        try:
            with open(path, "rb") as file:
                data = file.read(_MOST_BYTES)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        properties.update(parse_properties(data, path))
        found.append(name)
    if not found:
        raise ConfigError(f"{origin}: there is none of {', '.join(FILES)}")
    return HadoopConfiguration(properties, origin, tuple(found))


def parse_properties(data: bytes, path: str) -> dict[str, str]:
    """The properties of one file.

    Raises:
        ConfigError: it is not XML.
    """
    # The parser alone takes 1 ms to load, ElementTree 15.
    from xml.parsers import expat

    found: dict[str, str] = {}
    texts: dict[str, list[str]] = {}
    inside = ""

    def start(tag: str, _: object) -> None:
        nonlocal inside
        if tag == "property":
            texts.clear()
        inside = tag

    def end(tag: str) -> None:
        nonlocal inside
        if tag == "property" and (name := "".join(texts.get("name", ())).strip()):
            found[name] = "".join(texts.get("value", ())).strip()
        inside = ""

    def character_data(text: str) -> None:
        if inside in ("name", "value"):
            texts.setdefault(inside, []).append(text)

    def entity(*_: object) -> None:
        # Hadoop's files have none, and entities of entities grow without end.
        raise ConfigError(f"{path}:{parser.CurrentLineNumber}: declares an entity, which is not read here")

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = entity
    parser.StartElementHandler, parser.EndElementHandler, parser.CharacterDataHandler = start, end, character_data
    try:
        parser.Parse(data, True)
    except LookupError as error:  # an encoding that Python does not know
        raise ConfigError(f"{path}:{parser.CurrentLineNumber}: {str(error)!r:.80}") from error
    except expat.ExpatError as error:
        raise ConfigError(f"{path}:{error.lineno}: is not XML: {expat.errors.messages[error.code]}") from error
    return found
