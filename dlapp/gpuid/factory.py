"""Factory of ledgers: the store that the configuration names, and opening it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from dlapp.config import NO_CREDENTIALS
from dlapp.errors import ConfigError
from dlapp.gpuid.ledger import ClusterLedger, Inspect, Ledger, uninspected
from dlapp.gpuid.rules import LedgerError
from dlapp.launch_spec import MACHINE, NODE_MANAGER, ZOOKEEPER, LedgerSettings

if TYPE_CHECKING:
    from dlapp.config import Config

OPEN = "none"
"""What the operator writes in the place of the credentials' file for a ledger that everybody may write."""


def configured(config: Config) -> LedgerSettings:
    """Return where the configuration says that the ledger is. It holds the credentials: keep it secret.

    Raises:
        ConfigError: there are no credentials, or their file is not what it must be.
    """
    gpuid, docker_host = config.gpuid, config.runtime.docker.host
    zookeeper = gpuid.zookeeper
    if zookeeper.ensemble is None:
        return LedgerSettings(MACHINE, gpuid.lock_dir, docker_host)
    if zookeeper.credentials is None:
        raise ConfigError(NO_CREDENTIALS)
    return LedgerSettings(
        ZOOKEEPER,
        gpuid.lock_dir,
        docker_host,
        ensemble=zookeeper.ensemble,
        root=zookeeper.root,
        credentials="" if zookeeper.credentials == OPEN else read_credentials(zookeeper.credentials),
        session_timeout_s=zookeeper.session_timeout_s,
    )


def read_credentials(path: str) -> str:
    """``user:password`` from a file that nobody else may read. Raises ConfigError."""
    key = "gpuid.zookeeper.credentials"
    try:
        with open(path, encoding="utf-8") as file:
            if os.fstat(file.fileno()).st_mode & 0o077:
                raise ConfigError(f"{key}: {path} may be read by others; chmod 600 {path}")
            text = file.read(4096).strip()
    except (OSError, UnicodeDecodeError) as error:
        what = error.strerror if isinstance(error, OSError) else "is not UTF-8"
        raise ConfigError(f"{key}: {path}: {what}") from error
    user, _, password = text.partition(":")
    if not user or not password or "\n" in text:
        raise ConfigError(f"{key}: {path} is not one line user:password")
    return text


def open_ledger(settings: LedgerSettings, *, inspect: Inspect = uninspected) -> Ledger:
    """Open a ledger.

    Raises:
        LedgerError: it is of a kind that this dlapp does not know.
    """
    if settings.kind == MACHINE:
        from dlapp.gpuid.stores.machine import MachineLedger

        return MachineLedger(
            settings.lock_dir, docker_host=settings.docker_host, inspect=inspect, application=settings.application
        )
    if settings.kind == NODE_MANAGER:
        from dlapp.gpuid.stores.node_manager import NodeManagerGpuLedger

        return NodeManagerGpuLedger(settings.web, settings.lock_dir, docker_host=settings.docker_host)
    return open_cluster_ledger(settings, inspect=inspect)


def open_cluster_ledger(settings: LedgerSettings, *, inspect: Inspect = uninspected) -> ClusterLedger:
    """Open a ledger of many hosts.

    Raises:
        LedgerError: it is of another kind.
    """
    if settings.kind != ZOOKEEPER:
        raise LedgerError(f"a GPU ledger of kind {settings.kind!r} is not known to this dlapp")
    from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger, ZooKeeperSettings

    names = ZooKeeperSettings._fields
    own = ZooKeeperSettings(**{name: getattr(settings, name) for name in names})
    return ZooKeeperLedger(own, host=settings.host or None, inspect=inspect)
