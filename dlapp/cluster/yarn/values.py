"""Messages between an ApplicationMaster and YARN, as values; ids and amounts are dlapp's own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple

from dlapp.cluster.yarn.dialect import Dialect
from dlapp.errors import ConfigError
from dlapp.login import Login
from dlapp.value import Value, field
from dlapp.values.ids import ContainerId
from dlapp.values.spec import Resources

if TYPE_CHECKING:
    from dlapp.cluster.engine import Grant, TaskLaunch

ANY = "*"
"""Resource name of a row for the whole cluster."""


class NodeId(NamedTuple):
    """NodeManager address: the host name that it reports, and its RPC port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ResourceRequest(Value, kw_only=True):
    """Row of a resource request: the total number of containers at a place. The latest row of a key counts.

    Args:
        priority: lower is more urgent; with ``name`` and ``request_id`` the row's key. One container size per priority.
        name: a host, a rack, or `ANY`.
        count: total still needed; 0 takes the row back.
        relax: on a rack or `ANY`: also allow places outside the rows below it.
        label: node label, only on `ANY` rows.
    """

    priority: int
    request_id: int
    name: str
    count: int
    resources: Resources
    relax: bool = True
    label: str | None = None

    def __post_init__(self) -> None:
        # The ResourceManager accepts a negative count, and its queue is short by that amount from then on.
        if self.count < 0:
            raise ValueError(f"{self.count} containers wanted on {self.name}")


class Granted(Value, kw_only=True):
    """Container granted by YARN.

    Args:
        web: host and port of its node's web server.
        token: token for the node at the start, passed on unchanged.
    """

    container_id: ContainerId
    node: NodeId
    web: str
    resources: Resources
    priority: int
    request_id: int
    token: bytes = field(repr=False)


class ContainerStage(Enum):
    """Stage of a container, as reported by its node: the node is fetching its files, or has no room for it yet; its
    processes run; they have ended.
    """

    PREPARING = "preparing"
    RUNNING = "running"
    ENDED = "ended"


class ContainerStatus(Value, kw_only=True):
    """Status of a container from its node or the ResourceManager; ``exit_status`` is valid once it has ended."""

    container_id: ContainerId
    stage: ContainerStage
    exit_status: int
    diagnostics: str = ""


class Registration(Value, kw_only=True):
    """Answer to a registration.

    Args:
        largest: largest container of the queue.
        live: containers that earlier attempts left running.
    """

    largest: Resources
    live: tuple[Granted, ...] = ()


class Allocation(Value, kw_only=True):
    """Answer to a heartbeat: new events.

    Args:
        granted: new containers.
        live: containers of earlier attempts that the ResourceManager learned of late.
        ended: containers that ended or were taken back; some may be repeated after a ResourceManager's restart.
        nodes: nodes whose state changed.
        node_count: number of nodes of the cluster.
        preempted: containers that it is going to take away for another queue.
    """

    granted: tuple[Granted, ...] = ()
    live: tuple[Granted, ...] = ()
    ended: tuple[ContainerStatus, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    node_count: int = 0
    preempted: tuple[ContainerId, ...] = ()


class LocalResource(Value, kw_only=True):
    """File that the NodeManager fetches for a container.

    Args:
        url: its URL, with a scheme that the node supports (``hdfs://host:port/path``).
        size: bytes; not checked by YARN.
        timestamp_ms: the file's modification time, exactly, or the container fails.
        archive: unpack it.
        visibility: ``PUBLIC`` (readable by everyone along its path; kept on the node for all), ``PRIVATE`` (kept for
            the user) or ``APPLICATION``.
    """

    url: str
    size: int
    timestamp_ms: int
    archive: bool = False
    visibility: str = "APPLICATION"


VIEW_APP, MODIFY_APP = "VIEW_APP", "MODIFY_APP"


class Launch(Value, kw_only=True):
    """Command, environment and files of a container.

    Args:
        command: program and arguments, unescaped; ``<LOG_DIR>`` in one is the container's log directory.
        environment: visible to anyone on the node's web pages; must not contain secrets.
        resources: name in the working directory -> file.
        credentials: bytes of a credentials file.
        acls: who besides the owner may view and end its application, by YARN's names of these rights.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    resources: dict[str, LocalResource] = field(default_factory=dict)
    credentials: bytes = field(default=b"", repr=False)
    acls: dict[str, str] = field(default_factory=dict)


class NodeReport(Value, kw_only=True):
    """A node of the cluster, as the ResourceManager reports it.

    Args:
        leaves_in_s: how long the containers of a node that is decommissioned gracefully may run from the operator's
            order on [s]; infinity: until they end; None: it is not.
        is_removed: it is decommissioned, and its NodeManager ends its containers.
    """

    node: NodeId
    rack: str
    usable: bool
    capability: Resources
    leaves_in_s: float | None = None
    is_removed: bool = False


ContainerLaunch = Callable[["Grant", "TaskLaunch"], tuple[tuple[str, ...], bytes]]
"""Builds the command from a task's launch, and the content of its credentials under `TASK_SECRET`."""


DEFAULT_PREEMPTION_WAIT_S = 15.0
"""Default of `PREEMPTION_WAIT`."""
PREEMPTION_WAIT = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
"""Setting of the ResourceManager [ms]."""


class Cluster(Value, kw_only=True):
    """Addresses and protocol settings of YARN for an ApplicationMaster; written by the client.

    Args:
        schedulers: ``yarn.resourcemanager.scheduler.address`` of each ResourceManager, ``host:port``.
        clients: ``yarn.resourcemanager.address`` of each; only asked for the nodes.
        login: identity for requests without a token.
        web_scheme: scheme of the NodeManagers' web addresses: ``http`` or ``https``.
        web: web address of each ResourceManager, ``http://host:8088``; for tasks without an ApplicationMaster.
        preemption_wait_s: from the notice of a preemption to the end of the container.
    """

    schedulers: tuple[str, ...]
    clients: tuple[str, ...] = ()
    login: Login
    dialect: Dialect = Dialect.GCORES
    web_scheme: str = "http"
    web: tuple[str, ...] = ()
    preemption_wait_s: float = DEFAULT_PREEMPTION_WAIT_S


class Program(Value, kw_only=True):
    """Program of a container: files that YARN fetches, and the function that builds its command.

    Args:
        acls: see `Launch`.
    """

    launch: ContainerLaunch
    resources: Mapping[str, LocalResource] = field(default_factory=dict)
    acls: Mapping[str, str] = field(default_factory=dict)


def address(text: str) -> tuple[str, int]:
    """Return host and port of ``host:port``; an IPv6 address stands in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{text!r} is not an address such as resourcemanager.example:8030")
    return host.removeprefix("[").removesuffix("]"), int(port)
