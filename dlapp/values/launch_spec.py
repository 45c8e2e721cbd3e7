"""Launch specification of a task: values that an ApplicationMaster's engine writes for it, and nobody else reads."""

from __future__ import annotations

from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.value import Value
from dlapp.values.ids import ContainerId
from dlapp.values.image_name import RegistryCredentials

FILE_NAME = "launch.json"
"""The file in a container's directory that has the `LaunchSpec`; it holds secrets. The task removes it once it is
read."""
RESERVED_FROM = 2
"""Of the descriptors that a task of the embedded engine inherits, those from this place on hold the devices that are
reserved for the application; those before it are locks that say that the container and the application are alive."""
MACHINE, ZOOKEEPER, NODE_MANAGER = "machine", "zookeeper", "nodemanager"
"""Kinds of GPU ledger: files of one machine, an ensemble, and YARN's own (``yarn.io/gpu``)."""


class LedgerSettings(Value):
    """Location of a ledger of GPUs (`dlapp.gpuid.factory.open_ledger`).

    Args:
        kind: `MACHINE`, `ZOOKEEPER` or `NODE_MANAGER`.
        lock_dir: where the ledger of this machine is; one for everybody on it.
        docker_host: the dockerd that is asked for containers, and no other one; empty: none.
        application: of `MACHINE`: leases come from what its ApplicationMaster reserved; empty: each reserves its own.
        ensemble: of `ZOOKEEPER`: ``zk1:2181,zk2:2181,zk3:2181``.
        root: path of the ledger's znodes.
        former_root: where a host's record is read that is not there yet; empty: nowhere.
        credentials: ``user:password`` of ZooKeeper's digest scheme; empty: the znodes are open to everybody.
        session_timeout_s: of the session with the ensemble.
        tls: whether the ensemble is connected to by TLS.
        certificates: of the CAs that its servers' certificates are of (PEM); empty: those of the system.
        client_certificate: with its key (PEM), for servers that require one; empty: none.
        host: this host's name in the ledger; empty: the kernel's.
        full_name: its name with the domain; empty: not known.
        resource_managers: web addresses of the cluster's ResourceManagers, ``http://rm1:8088``.
        login: for these; None: no proof is needed.
        web: of `NODE_MANAGER`: its web address, ``http://node7:8042``; before its container runs only ``http://``.
    """

    kind: str = MACHINE
    lock_dir: str = "/run/lock/dlapp"
    docker_host: str = ""
    application: str = ""
    ensemble: str = ""
    root: str = "/dlapp"
    former_root: str = ""
    credentials: str = ""
    session_timeout_s: float = 10.0
    tls: bool = False
    certificates: str = ""
    client_certificate: str = ""
    host: str = ""
    full_name: str = ""
    resource_managers: tuple[str, ...] = ()
    login: Login | None = None
    web: str = ""


class DockerSettings(Value):
    """Settings of Docker.

    Args:
        host: dockerd's address, ``unix:///var/run/docker.sock``; it must be this machine's.
        network: Docker's network mode.
        gpu_mode: one of `dlapp.node_policy.GPU_MODES`, ``auto`` or ``none``.
        lock_dir: a directory of the machine in which tasks wait for each other's pulls.
    """

    host: str
    network: str
    gpu_mode: str = "auto"
    lock_dir: str = "/run/lock/dlapp"


class CacheSettings(Value):
    """The cache of input on a node, and the caches of payloads.

    Args:
        limit_bytes, age_s: what is above, or was not used for so long, is removed.
        keep_free: share of the disk that stays free.
        directory: where it is; empty: the node says where.
        payload_limit_bytes, payload_directory: the same for the caches of payloads.
    """

    limit_bytes: int
    age_s: float
    keep_free: float = 0.0
    directory: str = ""
    payload_limit_bytes: int = 0
    payload_directory: str = ""


class LaunchSpec(Value):
    """All that a task is told when it starts; the rest its ApplicationMaster says (`dlapp.values.messages.Assignment`).

    Args:
        control_url: the ApplicationMaster's control address, ``http://host:port``.
        token: the task's own (`dlapp.values.access.derive_token`).
        env: what the payload gets of the user's secrets.
        environment: what it gets of the submitter's environment.
        docker: how payloads in Docker run.
        ledger: None: there is none.
        cache: None: there is none.
        hdfs: None: the application has to do with none.
        am_file: where the next ApplicationMaster leaves its address: a file of this machine, or a directory on HDFS
            with a name for each attempt (`dlapp.values.messages.address_name`); empty: nowhere.
        containers: how many the application has, all of which may search for its ApplicationMaster at a time.
        resource_managers: web address of each ResourceManager, ``http://host:8088``; on one machine none.
        alone_s: how long the payload runs on while no ApplicationMaster is there; on one machine.
        unstored: a directory of this machine for outputs that cannot be stored where they belong; it outlives the
            container. Empty: there is none.
        registry_credentials: the submitter's, for the image of this container; None: there are none.
        lease_timeout_s: how long GPUs that were granted are waited for: what is left of a payload before ends by then.
    """

    container_id: ContainerId
    control_url: str
    token: str
    env: dict[str, str]
    environment: dict[str, str]
    docker: DockerSettings
    ledger: LedgerSettings | None = None
    cache: CacheSettings | None = None
    hdfs: HdfsPlace | None = None
    am_file: str = ""
    alone_s: float = 60.0
    unstored: str = ""
    lease_timeout_s: float = 30.0
    resource_managers: tuple[str, ...] = ()
    containers: int = 1
    registry_credentials: RegistryCredentials | None = None

    @property
    def on_a_cluster(self) -> bool:
        """True if YARN runs the task, and ends it."""
        return bool(self.am_file) and not self.am_file.startswith("/")
