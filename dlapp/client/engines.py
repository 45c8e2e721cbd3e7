"""Engines of one user's applications: the configured one, and the other one if it was used.

An id contains its engine: ids of this machine's engine have a common prefix. So a user who sometimes submits to YARN
can inspect an application without naming the engine.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dlapp.cluster.engine import Engine
    from dlapp.cluster.yarn.client.engine import YarnEngine
    from dlapp.config import Config
    from dlapp.locations import HdfsPlace
    from dlapp.login import Login
    from dlapp.values.launch_spec import LedgerSettings

LOCAL, YARN = "local", "yarn"
NAMENODE_TIMEOUT_S = 20.0
"""How long a command waits for a NameNode; a failover takes 10 to 30 s."""
UNKNOWN_NAMENODE_TIMEOUT_S = 3.0
"""The same if no NameNode has answered at all: probably the configuration has a wrong address."""


class Engines:
    """Engines, opened when needed and cached.

    Args:
        engine: instead of the configured one; then it is the only one.
    """

    def __init__(self, config: Config, engine: Engine | None = None) -> None:
        self._config, self._only = config, engine is not None
        self.configured = engine if engine is not None else self._open(config.cluster)
        self._by_name = {config.cluster: self.configured}

    def of(self, application_id: str) -> Engine:
        """Return the engine of an application id, whether or not the application exists."""
        if self._only or not self._other_is_known():
            return self.configured
        from dlapp.cluster.local.client import ownership

        return self._named(LOCAL if ownership.owns(self._config, application_id) else YARN)

    def used(self) -> list[Engine]:
        """Return all engines that this user's applications may be on, the configured one first."""
        return [self.configured, *([self._named(self._other)] if self._other_is_used() else [])]

    def other_last(self) -> tuple[str, int] | None:
        """Return the caller's last application on the engine that is not configured, and its submission time."""
        if not self._other_is_used():
            return None
        if self._other == YARN:
            from dlapp.cluster.yarn.client.local_files.last_application import last_application

            return last_application()
        engine = self._named(LOCAL)
        mine = engine.ids()
        return (mine[-1], int(engine.view(mine[-1]).json["submitted_ms"])) if mine else None

    @cached_property
    def login(self) -> Login:
        """Return the identity for using a cluster from here. Raises ConfigError: there is no user name."""
        from dlapp.login import own_login

        return own_login()

    @cached_property
    def certificates(self) -> str:
        """Return the CA certificates (PEM) of the cluster's web servers; empty: OpenSSL's default."""
        from dlapp.hadoop.configuration import read_configuration

        return read_configuration(self._config.yarn.conf_dir).certificates()

    def close(self) -> None:
        """Close the connections of all engines opened here."""
        if not self._only:
            for engine in self._by_name.values():
                engine.close()

    @property
    def _other(self) -> str:
        return LOCAL if self._config.cluster == YARN else YARN

    def _other_is_known(self) -> bool:
        """Return True if the other engine may have applications."""
        from dlapp.cluster.local.client import ownership

        if self._other == LOCAL:
            return ownership.is_used(self._config)
        return bool(self._config.yarn.conf_dir or os.environ.get("HADOOP_CONF_DIR"))

    def _other_is_used(self) -> bool:
        """Return True if this user ever submitted there from here: otherwise no request is needed."""
        if self._only or not self._other_is_known():
            return False
        if self._other == LOCAL:
            return True
        from dlapp.cluster.yarn.client.local_files.last_application import last_application

        return last_application() is not None

    def _named(self, name: str) -> Engine:
        if name not in self._by_name:
            self._by_name[name] = self._open(name)
        return self._by_name[name]

    def _open(self, name: str) -> Engine:
        if name == YARN:
            return open_yarn(self._config, self.login)
        from dlapp.cluster.local.client.engine import LocalEngine

        return LocalEngine(self._config)


def open_yarn(config: Config, login: Login) -> YarnEngine:
    """Return the engine of the configured cluster, as ``login``."""
    from dlapp.cluster.yarn.client.engine import YarnEngine
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    def ledger_of(config: Config) -> LedgerSettings:
        from dlapp.gpuid.factory import configured

        return configured(config)

    def open_files(place: HdfsPlace) -> HdfsStagingFiles:
        return HdfsStagingFiles(place, NAMENODE_TIMEOUT_S, UNKNOWN_NAMENODE_TIMEOUT_S)

    return YarnEngine(config, open_files, login, ledger_of=ledger_of)
