"""Factory of ledgers: opens the configured store."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING

from dlapp.config import NO_CREDENTIALS, read_secret
from dlapp.errors import ConfigError
from dlapp.gpuid.ledger import ClusterLedger, Inspect, Ledger, uninspected
from dlapp.gpuid.rules import LedgerError
from dlapp.login import own_login
from dlapp.system import machine
from dlapp.system.processes.proc import command_line
from dlapp.value import replace
from dlapp.values.launch_spec import MACHINE, NODE_MANAGER, ZOOKEEPER, LedgerSettings

if TYPE_CHECKING:
    from dlapp.config import Config
    from dlapp.gpuid.health.nvml_subprocess import NvmlProcess
    from dlapp.hadoop.configuration import HadoopConfiguration

FORMER_ROOT = "/dlapp"
"""Former root of the ledgers of all clusters; the default root of each cluster is below it now."""
MAX_CERTIFICATES = 64 << 10
_YARN_GPU = "yarn.io/gpu"
_GPU_SETTINGS = ("yarn.nodemanager.resource-plugins", "yarn.resource-types")
SYSTEM = "system"
"""Value that selects the system's CAs instead of a CA file."""
OPEN = "none"
"""Value that selects a ledger writable by everyone instead of a credentials file."""


def configured(config: Config) -> LedgerSettings:
    """Return the configured location of the ledger. It contains the credentials: keep it secret.

    Raises:
        ConfigError: there are no credentials, or their file is invalid.
    """
    gpuid, docker_host = config.gpuid, config.runtime.docker.host
    zookeeper = gpuid.zookeeper
    if zookeeper.ensemble is None:
        return of_machine(config)
    if zookeeper.credentials is None:
        raise ConfigError(NO_CREDENTIALS)
    site = _site(config)
    return LedgerSettings(
        ZOOKEEPER,
        gpuid.lock_dir,
        docker_host,
        ensemble=zookeeper.ensemble,
        root=zookeeper.root or _root_of(site),
        former_root="" if zookeeper.root else FORMER_ROOT,
        resource_managers=_resource_managers(site),
        login=None if site is None else own_login(),
        credentials="" if zookeeper.credentials == OPEN else read_credentials(zookeeper.credentials),
        session_timeout_s=zookeeper.session_timeout_s,
        tls=zookeeper.ca is not None,
        certificates=_certificates(zookeeper.ca),
        client_certificate=_client_certificate(zookeeper.certificate, zookeeper.ca),
    )


def of_machine(config: Config) -> LedgerSettings:
    """Return the location of the ledger of this machine."""
    return LedgerSettings(MACHINE, config.gpuid.lock_dir, config.runtime.docker.host)


def yarn_assigns_gpus(config: Config) -> bool:
    """Return whether NodeManagers assign the GPUs of the configured cluster, as far as the files here say: their tasks
    use the ledgers of their hosts, also if there is one on ZooKeeper."""
    if config.yarn.dialect != "auto":
        return config.yarn.dialect == _YARN_GPU
    site = _site(config)
    named = () if site is None else (site.get(name) or "" for name in _GPU_SETTINGS)
    return any(one.strip() == _YARN_GPU for text in named for one in text.split(","))


def _site(config: Config) -> HadoopConfiguration | None:
    """Return the configuration of the cluster; None: there is none here, or it is not needed or not readable."""
    from dlapp.hadoop.configuration import VARIABLE, read_configuration

    if config.yarn.conf_dir is None and not os.environ.get(VARIABLE):
        return None
    try:
        return read_configuration(config.yarn.conf_dir)
    except ConfigError:
        if config.gpuid.zookeeper.root is None:
            raise
        return None


def _root_of(site: HadoopConfiguration | None) -> str:
    if site is None:
        raise ConfigError(
            "gpuid.zookeeper.root is not set, and no configuration of Hadoop names the cluster whose GPU ledger it is: "
            "set yarn.conf_dir, or HADOOP_CONF_DIR"
        )
    try:
        name = site.cluster_name
    except ConfigError as error:
        raise ConfigError(f"{error}, or gpuid.zookeeper.root") from error
    if name in ("hosts", "short"):
        raise ConfigError(f"gpuid.zookeeper.root is not set, and a cluster named {name} needs one of its own")
    return f"{FORMER_ROOT}/{name}"


def _resource_managers(site: HadoopConfiguration | None) -> tuple[str, ...]:
    try:
        return () if site is None else tuple(site.web_urls())
    except ConfigError:
        return ()  # it is for HDFS only


def _certificates(ca: str | None) -> str:
    """Return the CAs in the operator's file, which is passed to each container; empty: the system's."""
    from dlapp.hadoop.truststore import read_certificates

    key = "gpuid.zookeeper.ca"
    text = "" if ca in (None, SYSTEM) else read_certificates(ca, key)
    if len(text) > MAX_CERTIFICATES:
        raise ConfigError(f"{key}: {ca} has {len(text) >> 10} KiB, {MAX_CERTIFICATES >> 10} KiB are the maximum")
    return text


def _client_certificate(path: str | None, ca: str | None) -> str:
    key = "gpuid.zookeeper.certificate"
    if path is None:
        return ""
    if ca is None:
        raise ConfigError(f"{key} is set, and gpuid.zookeeper.ca is not: without it there is no TLS")
    text = read_secret(path, key, MAX_CERTIFICATES)
    if "-----BEGIN CERTIFICATE-----" not in text or "PRIVATE KEY-----" not in text:
        raise ConfigError(f"{key}: {path} is not a certificate with its key, both as PEM")
    return text


def read_credentials(path: str) -> str:
    """Return ``user:password`` from a file that no other user may read. Raises ConfigError."""
    key = "gpuid.zookeeper.credentials"
    text = read_secret(path, key, 4096)
    user, _, password = text.partition(":")
    if not user or not password or "\n" in text:
        raise ConfigError(f"{key}: {path} is not one line user:password")
    return text


def web_certificates(config: Config, settings: LedgerSettings) -> str:
    """Return the CA certificates (PEM) of the cluster's ResourceManagers; empty: OpenSSL's default."""
    if not any(url.startswith("https:") for url in settings.resource_managers):
        return ""
    site = _site(config)
    return "" if site is None else site.certificates()


def open_ledger(
    settings: LedgerSettings,
    certificates: str = "",
    *,
    inspect: Inspect = uninspected,
    nvml: NvmlProcess | None = None,
) -> Ledger:
    """Open a ledger.

    Args:
        settings: its location.
        certificates: CA certificates (PEM) of YARN's web servers; empty: OpenSSL's default.
        inspect: checks the health of GPUs before they are leased.
        nvml: calls NVML; None: a process of its own.

    Raises:
        LedgerError: its kind is unknown to this version, or `host_of_task` refuses this container.
    """
    if settings.kind == MACHINE:
        from dlapp.gpuid.stores.machine import MachineLedger

        return MachineLedger(
            settings.lock_dir,
            docker_host=settings.docker_host,
            nvml=nvml,
            inspect=inspect,
            application=settings.application,
        )
    if settings.kind == NODE_MANAGER:
        from dlapp.gpuid.stores.node_manager import NodeManagerGpuLedger

        return NodeManagerGpuLedger(
            settings.web,
            settings.lock_dir,
            docker_host=settings.docker_host,
            certificates=certificates,
            inspect=inspect,
            nvml=nvml,
        )
    host = settings.host or host_of_task(settings.lock_dir)
    full_name = settings.full_name or full_name_of(host or os.uname().nodename)
    here = replace(settings, host=host, full_name=full_name)
    return open_cluster_ledger(here, certificates, inspect=inspect, nvml=nvml)


def host_of_task(lock_dir: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the name of a task's host in a cluster's ledger; empty: this machine's kernel host name.

    A YARN container can have its own namespaces. Then the kernel's host name is the container's, and a GPU of the host
    is locked in the host's directory only if that is mounted.

    Args:
        environ: environment set by the NodeManager.

    Raises:
        LedgerError: other containers of this host could not see which GPUs this one holds.
    """
    node = environ.get("NM_HOST", "")
    pids, names = machine.namespaces_of_its_own() if node else (False, False)
    is_apart = names and os.uname().nodename.partition(".")[0] != node.partition(".")[0]
    if not is_apart and not (pids and not _is_running(_NODE_MANAGER)):
        return ""
    if not machine.is_mounted_apart(lock_dir):
        raise LedgerError(
            f"{node}: this container has namespaces of its own, and {lock_dir} of its host is not mounted: other "
            "containers could not see which GPUs it holds; mount it (gpuid.lock_dir) or run tasks without YARN's Docker"
        )
    return node


def full_name_of(host: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a host's fully qualified name, as its NodeManager has it; empty: not known."""
    node = environ.get("NM_HOST", "")
    return node if "." in node and node.partition(".")[0] == host.partition(".")[0] else ""


_NODE_MANAGER = b"org.apache.hadoop.yarn.server.nodemanager.NodeManager"


def _is_running(program: bytes) -> bool:
    """Return whether a process of this pid namespace has a word in its command line."""
    return any(program in command_line(int(name)) for name in os.listdir("/proc") if name.isdigit())


def open_cluster_ledger(
    settings: LedgerSettings,
    certificates: str = "",
    *,
    inspect: Inspect = uninspected,
    nvml: NvmlProcess | None = None,
) -> ClusterLedger:
    """Open a ledger of many hosts.

    Args:
        settings, certificates, inspect, nvml: see `open_ledger`.

    Raises:
        LedgerError: it is of another kind.
    """
    if not settings.covers_cluster:
        raise LedgerError(f"a GPU ledger of kind {settings.kind!r} is not known to this dlapp")
    from dlapp.gpuid.liveness.applications import ApplicationProbe
    from dlapp.gpuid.stores.zookeeper import ZooKeeperLedger

    applications = ApplicationProbe(settings.resource_managers, settings.login, certificates)
    host = settings.host or None
    return ZooKeeperLedger(settings, host=host, nvml=nvml, inspect=inspect, applications=applications)
