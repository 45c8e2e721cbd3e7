"""Session of a command: the connections to a cluster, each opened on first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

from dlapp.cluster.yarn.client.local_files import node_cache
from dlapp.cluster.yarn.client.rest import NewApplication, NodeInfo, YarnRest
from dlapp.cluster.yarn.dialect import FIELD3_LIMIT, Dialect, choose_dialect
from dlapp.cluster.yarn.staging import StagingFiles
from dlapp.cluster.yarn.values import DEFAULT_PREEMPTION_WAIT_S, PREEMPTION_WAIT
from dlapp.config import NO_CREDENTIALS, Config
from dlapp.errors import ConfigError
from dlapp.hadoop.configuration import HadoopConfiguration, read_configuration
from dlapp.locations import HdfsPlace
from dlapp.login import Login

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.notices import CommandNotices

FilesOf = Callable[[HdfsPlace], StagingFiles]
"""Opens the file system at an `HdfsPlace`."""


class ClusterSession:
    """Connections of one command to a cluster.

    Args:
        open_files: opens the file system of the cluster as a user.
        login: identity for status requests and kills.

    Raises:
        ConfigError: the address of the cluster is not configured.
    """

    def __init__(self, config: Config, open_files: FilesOf, login: Login) -> None:
        self.config = config
        self.site: HadoopConfiguration = read_configuration(config.yarn.conf_dir)
        self.certificates = self.site.certificates()
        """CA certificates (PEM) of the cluster's web servers; empty: OpenSSL's default."""
        self.login = login
        self._open_files = open_files
        self._rest_by_user: dict[str, YarnRest] = {}
        self._files_by_user: dict[str, StagingFiles] = {}
        self._new: NewApplication | None = None
        self._dialect: Dialect | None = None
        self._properties: dict[str, str | None] = {}

    @property
    def user(self) -> str:
        """Return the Hadoop user for status requests and kills."""
        return self.login.user

    def close(self) -> None:
        """Close the connections."""
        for rest in self._rest_by_user.values():
            rest.close()
        for files in self._files_by_user.values():
            files.close()

    def rest(self, user: str | None = None) -> YarnRest:
        """Return the REST client of the ResourceManager as ``user``; None: as the session's user."""
        user = user or self.user
        if user not in self._rest_by_user:
            self._rest_by_user[user] = self.own_rest(user)
        return self._rest_by_user[user]

    def files(self, user: str) -> StagingFiles:
        """Return the file system as ``user``."""
        if user not in self._files_by_user:
            self._files_by_user[user] = self._open_files(self.hdfs(user))
        return self._files_by_user[user]

    def own_rest(self, user: str | None = None) -> YarnRest:
        """Return a new REST client, like `rest`, for another thread, which must close it."""
        urls = self.site.web_urls()
        return YarnRest(
            node_cache.active_first(urls),
            self.login.as_user(user or self.user),
            self.certificates,
            keep_active=partial(node_cache.keep_active, urls),
        )

    def own_files(self) -> StagingFiles:
        """Return a new connection to the file system for another thread, which must close it."""
        return self._open_files(self.hdfs(self.user))

    def notices(self, files: StagingFiles) -> CommandNotices | None:
        """Return the notifications that no ApplicationMaster delivers; None: no channel is configured."""
        notify = self.config.notify
        if not (notify.webhook or notify.mail or notify.command):
            return None
        from dlapp.cluster.yarn.client.notices import CommandNotices

        return CommandNotices(self.config, files)

    def hdfs(self, user: str) -> HdfsPlace:
        """Return the default file system with ``user`` as its identity."""
        return self.site.hdfs(self.login.as_user(user), self.config.storage.hdfs)

    def nodes(self, *, refresh: bool = False) -> list[NodeInfo]:
        """Return the running nodes.

        Args:
            refresh: read the list from the ResourceManager now; otherwise it may be `node_cache.MAX_AGE_S` old.
        """
        urls = self.site.web_urls()
        if not refresh and (kept := node_cache.find(urls)) is not None:
            return kept
        nodes = self.rest().nodes(running=True)
        node_cache.keep(urls, nodes)
        return nodes

    def forget(self) -> None:
        """Discard what was read of the ResourceManager, so that the next use reads it again: it may have restarted."""
        self._new = None
        self._properties.clear()

    def configuration(self, name: str) -> str | None:
        """Return one property of the ResourceManager's configuration; None: no such property."""
        if name not in self._properties:
            self._properties[name] = self.rest().configuration(name)
        return self._properties[name]

    def largest(self) -> Mapping[str, int]:
        """Return the maximum of each resource in one container; the answer has a new application's id, too."""
        if self._new is None:
            self._new = self.rest().new_application()
        return self._new.largest

    def new_id(self, rest: YarnRest) -> NewApplication:
        """Return a new id; it is valid for one application."""
        new, self._new = self._new or rest.new_application(), None
        return new

    def dialect(self) -> Dialect:
        """Return the dialect in which this cluster counts GPUs. Raises ConfigError: the cluster does not support the
        configured one."""
        if self._dialect is None:
            types = set(self.largest())
            configured = self.config.yarn.dialect
            maybe = configured == "field3" or (configured == "auto" and len(types) <= 2)
            field3 = maybe and self.configuration(FIELD3_LIMIT) is not None
            self._dialect = choose_dialect(configured, types, has_field3=field3)
        return self._dialect

    def preemption_wait_s(self) -> float:
        """Return the time between the announcement of a preemption and the end of the container [s]."""
        text = self.configuration(PREEMPTION_WAIT)
        return int(text) / 1000 if text is not None and text.isdecimal() else DEFAULT_PREEMPTION_WAIT_S

    def check_credentials(self) -> None:
        """Refuse a GPU ledger that everybody may write, unless the operator allowed it. Raises ConfigError."""
        zookeeper = self.config.gpuid.zookeeper
        if self.dialect() is not Dialect.YARN_GPU and zookeeper.ensemble is not None and zookeeper.credentials is None:
            raise ConfigError(NO_CREDENTIALS)

    def has_ledger(self) -> bool:
        """Return whether GPUs have a ledger: dlapp's, or with ``yarn.io/gpu`` that of each NodeManager."""
        return self.dialect() is Dialect.YARN_GPU or self.config.gpuid.zookeeper.ensemble is not None
