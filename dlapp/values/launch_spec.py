"""Launch specification of a task: values that an ApplicationMaster's engine writes and only the task reads."""

from __future__ import annotations

from dlapp.locations import HdfsPlace
from dlapp.login import Login
from dlapp.value import Value
from dlapp.values.ids import ContainerId
from dlapp.values.image_name import RegistryCredentials

FILE_NAME = "launch.json"
"""File in a container's directory with the `LaunchSpec`; it contains secrets. The task removes it after reading."""
RESERVED_FROM = 2
"""Index into the descriptors inherited by a task of the embedded engine: from here on they hold the devices reserved
for the application; those before are locks that show that the container and the application are alive."""
MACHINE, ZOOKEEPER, NODE_MANAGER = "machine", "zookeeper", "nodemanager"
"""Kinds of GPU ledger: files of one machine, a ZooKeeper ensemble, and YARN's own (``yarn.io/gpu``)."""
DOCKER_WORKSPACE = "/workspace"
"""Path of the workspace in a Docker container."""
DOCKER_SHELL = "/dlapp/shell"
"""Path of `LiveWorkspace.shell_dir` in a Docker container."""


class LiveWorkspace(Value, kw_only=True):
    """The user's own directory as the workspace of a dlapp-shell on this machine.

    Only the embedded engine accepts it, and only its task uses the path: as the working directory of a plain process,
    or as a mount in Docker. dlapp adds missing input to it and changes nothing else there. All that dlapp packs,
    commits, settles or removes has a path in its own directories.

    Args:
        path: absolute path of the directory.
        shell_dir: absolute path of the files of dlapp-run; in Docker mounted read-only at `DOCKER_SHELL`.
        session: absolute path of a file that dlapp-shell locks while it lives.
        records: absolute path of the directory with the records of fetched input (`dlapp.task.data.input_record`).
        tmp: TMPDIR of a plain process: that of the caller.
        lease_timeout_s: how long to wait for free GPUs of a cluster's ledger (`Secrets.ledger`).
        inputs, outputs: names and paths of the sections whose variables the program gets; their files are fetched and
            stored by others, if at all.
    """

    path: str
    shell_dir: str
    session: str
    records: str
    tmp: str = "/tmp"
    lease_timeout_s: float = 0.0
    inputs: tuple[tuple[str, str], ...] = ()
    outputs: tuple[tuple[str, str], ...] = ()


class LedgerSettings(Value):
    """Location of a GPU ledger (`dlapp.gpuid.factory.open_ledger`).

    Args:
        kind: `MACHINE`, `ZOOKEEPER` or `NODE_MANAGER`.
        lock_dir: directory of this machine's ledger; one for all users.
        docker_host: the only dockerd that is asked for containers; empty: none.
        application: for `MACHINE`: lease from the reservation of its ApplicationMaster; empty: each lease reserves its
            own.
        ensemble: for `ZOOKEEPER`: ``zk1:2181,zk2:2181,zk3:2181``.
        root: path of the ledger's znodes.
        former_root: where a host's record is read if it is not there yet; empty: nowhere.
        credentials: ``user:password`` of ZooKeeper's digest scheme; empty: the znodes are open to everyone.
        session_timeout_s: timeout of the session with the ensemble.
        tls: whether to connect to the ensemble by TLS.
        certificates: CAs of its servers' certificates (PEM); empty: the system's.
        client_certificate: with its key (PEM), for servers that require one; empty: none.
        host: this host's name in the ledger; empty: the kernel's host name.
        full_name: fully qualified host name; empty: not known.
        resource_managers: web addresses of the cluster's ResourceManagers, ``http://rm1:8088``.
        login: identity for these; None: no authentication is needed.
        web: for `NODE_MANAGER`: its web address, ``http://node7:8042``; before its container runs only ``http://``.
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

    @property
    def covers_cluster(self) -> bool:
        """Return whether the ledger covers all hosts of a cluster, and not only this machine."""
        return self.kind == ZOOKEEPER


class DockerSettings(Value):
    """Settings of Docker.

    Args:
        host: dockerd's address, ``unix:///var/run/docker.sock``; must be on this machine.
        network: Docker's network mode.
        gpu_mode: one of `dlapp.node_policy.GPU_MODES`, ``auto`` or ``none``.
        lock_dir: directory of the machine with locks that serialize image pulls.
    """

    host: str
    network: str
    gpu_mode: str = "auto"
    lock_dir: str = "/run/lock/dlapp"


class CacheSettings(Value):
    """Input cache of a node, and the caches of payloads.

    Args:
        limit_bytes, age_s: limits of size and of time since the last use; what exceeds them is removed.
        keep_free: share of the disk that is kept free.
        directory: its path; empty: chosen by the node.
        payload_limit_bytes, payload_directory: the same for the caches of payloads.
    """

    limit_bytes: int
    age_s: float
    keep_free: float = 0.0
    directory: str = ""
    payload_limit_bytes: int = 0
    payload_directory: str = ""


class LaunchSpec(Value):
    """Start parameters of a task; the ApplicationMaster sends the rest (`dlapp.values.messages.Assignment`).

    Args:
        control_url: the ApplicationMaster's control address, ``http://host:port``.
        token: token of this task (`dlapp.values.access.derive_token`).
        env: the part of the user's secrets for the payload.
        environment: the part of the submitter's environment for the payload.
        docker: settings of payloads in Docker.
        ledger: None: no ledger.
        cache: None: no cache.
        hdfs: None: the application uses no HDFS.
        am_file: where the next ApplicationMaster publishes its address: a file of this machine, or a directory on HDFS
            with a name for each attempt (`dlapp.values.messages.address_name`); empty: nowhere.
        containers: number of containers, all of which may search for its ApplicationMaster at a time.
        resource_managers: web address of each ResourceManager, ``http://host:8088``; none on one machine.
        alone_s: how long the payload continues without an ApplicationMaster; on one machine.
        unstored: directory of this machine for outputs that cannot be stored at their target; it survives the
            container. Empty: none.
        registry_credentials: the submitter's credentials for this container's image; None: none.
        lease_timeout_s: how long to wait for granted GPUs: leftovers of an earlier payload end by then.
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
        """Return True if YARN runs the task, and ends it."""
        return bool(self.am_file) and not self.am_file.startswith("/")
