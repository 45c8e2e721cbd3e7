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
"""The resource name of a row that stands for the whole cluster."""


class NodeId(NamedTuple):
    """A NodeManager: the host name that it reports, and the port of its calls."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


class ResourceRequest(Value, kw_only=True):
    """One line of what an application wants: how many containers in all, there. The last word on its key counts.

    Args:
        priority: small is urgent; with ``name`` and ``request_id`` the row's key. One size of container for each.
        name: a host, a rack, or `ANY`.
        count: the total that is still wanted; 0 takes the row back.
        relax: on a rack or `ANY`: places outside the rows below it are welcome too.
        label: node label, on `ANY` rows alone.
    """

    priority: int
    request_id: int
    name: str
    count: int
    resources: Resources
    relax: bool = True
    label: str | None = None

    def __post_init__(self) -> None:
        # The ResourceManager takes a negative count, and its queue is short of so much from then on.
        if self.count < 0:
            raise ValueError(f"{self.count} containers wanted on {self.name}")


class Granted(Value, kw_only=True):
    """A container that YARN gave us.

    Args:
        web: host and port of its node's web interface.
        token: handed to the node at the start, byte for byte as it came.
    """

    container_id: ContainerId
    node: NodeId
    web: str
    resources: Resources
    priority: int
    request_id: int
    token: bytes = field(repr=False)


class ContainerStage(Enum):
    """Stage of a container, as its node says: the node fetches its files, or has no room for it yet; its processes run;
    they are gone.
    """

    PREPARING = "preparing"
    RUNNING = "running"
    ENDED = "ended"


class ContainerStatus(Value, kw_only=True):
    """A container as its node or the ResourceManager sees it; ``exit_status`` means something once it has ended."""

    container_id: ContainerId
    stage: ContainerStage
    exit_status: int
    diagnostics: str = ""


class Registration(Value, kw_only=True):
    """The answer to a registration.

    Args:
        largest: the largest container of the queue.
        live: containers that earlier attempts left running.
    """

    largest: Resources
    live: tuple[Granted, ...] = ()


class Allocation(Value, kw_only=True):
    """The answer to a heartbeat: what is new.

    Args:
        granted: new containers.
        live: containers of earlier attempts that the ResourceManager learnt of late.
        ended: containers that ended or were taken back; some may come twice after a ResourceManager's restart.
        nodes: those whose state changed.
        node_count: how many nodes the cluster has.
        preempted: containers that it is going to take away for another queue.
    """

    granted: tuple[Granted, ...] = ()
    live: tuple[Granted, ...] = ()
    ended: tuple[ContainerStatus, ...] = ()
    nodes: tuple[NodeReport, ...] = ()
    node_count: int = 0
    preempted: tuple[ContainerId, ...] = ()


class LocalResource(Value, kw_only=True):
    """A file that the NodeManager brings to a container.

    Args:
        url: where it lies, with a scheme that the node can open (``hdfs://host:port/path``).
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
        command: program and arguments, as they are to arrive; ``<LOG_DIR>`` in one is the container's log directory.
        environment: readable by anyone on the node's web pages; nothing secret belongs here.
        resources: name in the working directory -> file.
        credentials: a credentials file's bytes.
        acls: who besides its owner may see and end its application, by YARN's names of these rights.
    """

    command: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    resources: dict[str, LocalResource] = field(default_factory=dict)
    credentials: bytes = field(default=b"", repr=False)
    acls: dict[str, str] = field(default_factory=dict)


class NodeReport(Value, kw_only=True):
    """A node of the cluster, as the ResourceManager reports it."""

    node: NodeId
    rack: str
    usable: bool
    capability: Resources
    labels: tuple[str, ...] = ()


ContainerLaunch = Callable[["Grant", "TaskLaunch"], tuple[tuple[str, ...], bytes]]
"""Makes of a task's launch the command, and what goes into its credentials under `TASK_SECRET`."""


DEFAULT_PREEMPTION_WAIT_S = 15.0
"""Default of `PREEMPTION_WAIT`."""
PREEMPTION_WAIT = "yarn.resourcemanager.monitor.capacity.preemption.max_wait_before_kill"
"""Setting of the ResourceManager [ms]."""


class Cluster(Value, kw_only=True):
    """Addresses of YARN for an ApplicationMaster, and how it speaks to it; the client writes it down for it.

    Args:
        schedulers: ``yarn.resourcemanager.scheduler.address`` of each ResourceManager, ``host:port``.
        clients: ``yarn.resourcemanager.address`` of each; asked for the nodes alone.
        login: as whom it asks for what needs no token of its own.
        web_scheme: of the NodeManagers' web addresses: ``http`` or ``https``.
        web: web address of each ResourceManager, ``http://host:8088``; for tasks without an ApplicationMaster.
        preemption_wait_s: from its notice that it preempts a container to the end of the container.
    """

    schedulers: tuple[str, ...]
    clients: tuple[str, ...] = ()
    login: Login
    dialect: Dialect = Dialect.GCORES
    web_scheme: str = "http"
    web: tuple[str, ...] = ()
    preemption_wait_s: float = DEFAULT_PREEMPTION_WAIT_S


class Program(Value, kw_only=True):
    """Program of a container: files that YARN brings there, and what makes the command of them.

    Args:
        acls: see `Launch`.
    """

    launch: ContainerLaunch
    resources: Mapping[str, LocalResource] = field(default_factory=dict)
    acls: Mapping[str, str] = field(default_factory=dict)


def address(text: str) -> tuple[str, int]:
    """Host and port of ``host:port``; an IPv6 address stands in brackets.

    Raises:
        ConfigError: it is not of that form.
    """
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"{text!r} is not an address such as resourcemanager.example:8030")
    return host.removeprefix("[").removesuffix("]"), int(port)
