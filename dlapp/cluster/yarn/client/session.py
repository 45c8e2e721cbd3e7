"""Session of a command: the connections to a cluster, each made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from dlapp.net.http import trust

if TYPE_CHECKING:
    from dlapp.cluster.yarn.client.notices import EndNotices

FilesOf = Callable[[HdfsPlace], StagingFiles]
"""Opens the file system at an `HdfsPlace`."""


class ClusterSession:
    """A cluster as one user reaches it.

    Args:
        open_files: gives the file system of the cluster as one user.
        login: as whom we look and kill.

    Raises:
        ConfigError: nothing says where the cluster is.
    """

    def __init__(self, config: Config, open_files: FilesOf, login: Login) -> None:
        self.config = config
        self.site: HadoopConfiguration = read_configuration(config.yarn.conf_dir)
        trust(self.site.certificates())
        self.login = login
        self._open_files = open_files
        self._rest_by_user: dict[str, YarnRest] = {}
        self._files_by_user: dict[str, StagingFiles] = {}
        self._new: NewApplication | None = None
        self._dialect: Dialect | None = None

    @property
    def user(self) -> str:
        """The Hadoop user that looks and kills."""
        return self.login.user

    def close(self) -> None:
        """Close the connections."""
        for rest in self._rest_by_user.values():
            rest.close()
        for files in self._files_by_user.values():
            files.close()

    def rest(self, user: str | None = None) -> YarnRest:
        """The ResourceManager, as ``user``; None: as who looks."""
        user = user or self.user
        if user not in self._rest_by_user:
            self._rest_by_user[user] = self.own_rest(user)
        return self._rest_by_user[user]

    def files(self, user: str) -> StagingFiles:
        """The file system, as ``user``."""
        if user not in self._files_by_user:
            self._files_by_user[user] = self._open_files(self.hdfs(user))
        return self._files_by_user[user]

    def own_rest(self, user: str | None = None) -> YarnRest:
        """A connection of its own, as `rest` has one, for another thread, which closes it."""
        return YarnRest(self.site.web_urls(), self.login.as_user(user or self.user))

    def own_files(self) -> StagingFiles:
        """A connection of its own, for another thread, which closes it."""
        return self._open_files(self.hdfs(self.user))

    def notices(self, files: StagingFiles) -> EndNotices | None:
        """Return what tells the user of ends that no ApplicationMaster told; None: they are told of nothing."""
        notify = self.config.notify
        if not (notify.webhook or notify.mail or notify.command):
            return None
        from dlapp.cluster.yarn.client.notices import EndNotices

        return EndNotices(self.config, files)

    def hdfs(self, user: str) -> HdfsPlace:
        """Return where the default file system is, used as ``user``."""
        return self.site.hdfs(self.login.as_user(user), self.config.storage.hdfs)

    def nodes(self, *, afresh: bool = False) -> list[NodeInfo]:
        """Return the nodes that run.

        Args:
            afresh: as the ResourceManager has them now; else they may be `node_cache.MAX_AGE_S` old.
        """
        urls = self.site.web_urls()
        if not afresh and (kept := node_cache.find(urls)) is not None:
            return kept
        nodes = self.rest().nodes(running=True)
        node_cache.keep(urls, nodes)
        return nodes

    def ask_anew(self) -> None:
        """Forget what the ResourceManager said of its largest container, so that it is asked again."""
        self._new = None

    def largest(self) -> Mapping[str, int]:
        """The most of each resource in one container; an id for an application comes with it."""
        if self._new is None:
            self._new = self.rest().new_application()
        return self._new.largest

    def take_id(self, rest: YarnRest) -> NewApplication:
        """The id for an application; each is good for one."""
        new, self._new = self._new or rest.new_application(), None
        return new

    def dialect(self) -> Dialect:
        """Return the form in which this cluster counts GPUs. Raises ConfigError: not as configured."""
        if self._dialect is None:
            types = set(self.largest())
            configured = self.config.yarn.dialect
            maybe = configured == "field3" or (configured == "auto" and len(types) <= 2)
            field3 = maybe and self.rest().configuration(FIELD3_LIMIT) is not None
            self._dialect = choose_dialect(configured, types, has_field3=field3)
        return self._dialect

    def preemption_wait_s(self) -> float:
        """Return how long the ResourceManager waits after it has said that it preempts a container."""
        text = self.rest().configuration(PREEMPTION_WAIT)
        return int(text) / 1000 if text is not None and text.isdecimal() else DEFAULT_PREEMPTION_WAIT_S

    def check_credentials(self) -> None:
        """Refuse GPUs of a ledger that everybody may write, unless the operator wants it so. Raises ConfigError."""
        zookeeper = self.config.gpuid.zookeeper
        if self.dialect() is not Dialect.YARN_GPU and zookeeper.ensemble is not None and zookeeper.credentials is None:
            raise ConfigError(NO_CREDENTIALS)

    def has_ledger(self) -> bool:
        """Return whether GPUs have a ledger: ours, or with ``yarn.io/gpu`` each NodeManager's."""
        return self.dialect() is Dialect.YARN_GPU or self.config.gpuid.zookeeper.ensemble is not None
