"""The interface of an engine, and the values that pass through it.

The client side submits and reads; the ApplicationMaster side requests containers, starts tasks in them and receives
their ends. Code above this interface does not depend on the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dlapp.errors import Refuse, raise_error
from dlapp.value import Value, field
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.launch_spec import LedgerSettings
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus
from dlapp.values.spec import AppSpec, Placement, Resources, Secrets, Submission

if TYPE_CHECKING:
    from dlapp.cluster.reasons.facts import WaitFacts
    from dlapp.cluster.view_forms import ViewForms
    from dlapp.locations import HdfsPlace
    from dlapp.values.access import ControlAccess
    from dlapp.values.waiting import Estimate, Waiting

# ---- the client's side ----


class EngineInfo(Value, kw_only=True):
    """Name and version of an engine, and whether it has GPUs (then ``gcores=auto`` means 1).

    Args:
        hdfs: the HDFS available for input and output; None: no HDFS.
        no_hdfs: why there is no HDFS.
        paths_on_hdfs: paths without a scheme are on HDFS; otherwise on this machine.
    """

    name: str
    version: str
    has_gpus: bool
    hdfs: HdfsPlace | None = None
    no_hdfs: str = ""
    paths_on_hdfs: bool = False


class PlanFacts(Value, kw_only=True):
    """Estimate of an engine for an application that might be submitted now.

    Args:
        facts: its containers, and the available resources.
        waiting: why it would wait, with the smallest change that avoids it; code ``starting``: it would start now.
        estimate: when it would start.
        nodes: nodes that could take a container now, by role.
    """

    facts: WaitFacts
    waiting: Waiting
    estimate: Estimate
    nodes: Mapping[str, tuple[str, ...]]


class UserShare(Value, kw_only=True):
    """Share of a queue that a user uses, or has used.

    Args:
        share: 0 to 1.
        meaning: what the share refers to, as text for users.
    """

    user: str
    queue: str
    share: float
    meaning: str


class QueueFacts(Value, kw_only=True):
    """All waiting applications of an engine, with their order.

    Args:
        order: ids of those that wait for their turn, first to start first.
        estimates: id -> expected start, where it can be estimated.
        shares: shares of users; empty: only one user, or not known.
    """

    order: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    shares: tuple[UserShare, ...] = ()


class LogFiles(Value, kw_only=True):
    """Logs of one container: ``files`` maps ``stdout``, ``stderr``, ``dlapp.log`` to a URL each.

    ``problem``: why the URLs, reported by an ApplicationMaster, are not opened; empty: they are.
    """

    container_id: ContainerId
    role: str
    role_index: int
    index: int
    files: dict[str, str]
    problem: str = ""

    @classmethod
    def of(cls, container: ContainerView, files: dict[str, str], problem: str = "") -> LogFiles:
        """Return the logs of a container in a view."""
        return cls(
            container_id=container.container_id,
            role=container.role,
            role_index=container.role_index,
            index=container.index,
            files=files,
            problem=problem,
        )


class Engine(Protocol):
    """The client's side of an engine."""

    def info(self) -> EngineInfo:
        """Return the engine's name and version. Raises Unreachable if it does not answer."""

    def check(self, spec: AppSpec, refuse: Refuse = raise_error) -> list[str]:
        """Reject an application that can never run here; return lines for the user (a key without effect, for example).

        Args:
            spec: the application.
            refuse: called with each error; it may return, and the next ones follow. By default it raises the first.

        Raises:
            RequestTooLarge: no node can ever satisfy the request; with the reason.
            SpecError: a key that this engine does not support.
        """

    def node_names(self) -> tuple[str, ...]:
        """Return the names of the nodes on which containers can be placed by name now; none on one machine."""

    def ensure_runner(self) -> str:
        """Restart the process that serves the caller's applications on this machine if it has died; else do nothing.

        Returns:
            What blocks applications: the full disk of this machine's state. Otherwise empty.
        """

    def close(self) -> None:
        """Close connections and files. Applications go on."""

    def prepare(self) -> None:
        """Start slow preparations for a submission that follows soon. If none follows, they end by themselves."""

    def archive_cache(self) -> str:
        """Return the caller's directory for packed workspaces; archives in it are named by their digest."""

    def find_archive(self, digest: str) -> str:
        """Return where the packed workspace of the caller's earlier submission is, for `Submission.workspace_archive`.

        Raises:
            NotFound: it was removed from the cache.
        """

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Submit an application; after the return it runs independently of the caller."""

    def view(self, application_id: ApplicationId | str) -> ViewForms:
        """Return the current view of an application. Raises NotFound."""

    def view_in_full(self, application_id: ApplicationId | str) -> ViewForms:
        """Return `view`; for a waiting application with the smallest change that ends the wait, and an estimated start.
        Raises NotFound."""

    def plan(self, spec: AppSpec) -> PlanFacts:
        """Return an estimate for an application that might be submitted now. Raises as `check`, if it can never run."""

    def queue_facts(self) -> QueueFacts:
        """Return the start order of the waiting applications, and the expected times."""

    def ids(self, *, everybody: bool = False) -> list[str]:
        """Return all ids as text, oldest first: the caller's own, or those of all users."""

    def owner(self, application_id: str) -> str:
        """Return the owner of an application, as enforced by the engine, not as written by the user."""

    def views(self, *, everybody: bool = False, user: str | None = None, limit: int | None = None) -> list[ViewForms]:
        """Return the views of many applications, oldest first: the caller's own, one user's, or those of all users.

        Args:
            limit: how many ended ones to include, the latest first; None: all. Their containers may be left out, except
                the one that determines the exit code.
        """

    def add_receipts(self, views: Sequence[dict[str, Any]]) -> Collection[str]:
        """Add receipts to the list views of ended applications, in JSON form, which lack them.

        Args:
            views: JSON of the result of `views`, oldest first. A view whose receipt is not known here stays unchanged.

        Returns:
            The caller's applications whose receipts could not be read, or not in a bounded time.
        """

    def submission(self, application_id: ApplicationId) -> Submission:
        """Return the submission. Raises NotFound."""

    def usage_json(self, application_id: ApplicationId) -> Any:
        """Return the resource usage of the containers over time, as last written (`dlapp.values.usage.UsageHistory`);
        None: not recorded. Raises NotFound.
        """

    def trials_text(self, application_id: ApplicationId) -> str:
        """Return the results of a sweep as last written (`dlapp.sweep.results`); empty: none. Raises NotFound."""

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Request a soft-kill; return a line about the result. Raises NotFound, Denied."""

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill an application; return when all its processes are gone, with a line about it. Raises NotFound,
        Denied."""

    def release(self, application_id: ApplicationId, by: str) -> str:
        """Let a held application start; return a line about the result. Raises NotFound, Denied."""

    def control_access(self, application_id: ApplicationId) -> ControlAccess:
        """Return the control address of an application's ApplicationMaster and the caller's token: the token for tools,
        or for viewers if the application is another user's and its `view_acl` names the caller.

        Raises:
            NotFound: it does not exist, or has ended.
            Denied: it is another user's who has not granted access, or this machine has no token.
            StreamRefused: its ApplicationMaster has not started yet.
        """

    def check_removal(self, application_id: ApplicationId) -> None:
        """Raise the errors that `remove` would raise.

        Raises:
            NotFound: it does not exist.
            Denied: it is another user's.
            UsageError: it has not ended, or it is in the engine's own list, which dlapp does not manage.
        """

    def remove(self, application_id: ApplicationId) -> None:
        """Remove an ended application from the history. Raises as `check_removal`."""

    def unstored(self, view: Mapping[str, Any]) -> list[str]:
        """Return the directories of the caller's application with output that could not be stored.

        They are on this machine; on a cluster each is ``host:path``.

        Args:
            view: view of the application in its JSON form.
        """

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        """Return the logs of all containers that ran, by CONTAINER_INDEX, the last attempt of each.

        Args:
            try_number: return the containers of this try, from 1, instead of the last one.
        """

    def aggregated_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """Return a log of an ended application that the engine has moved; None: not moved, or not yet.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """Return the page while the application runs, and the one after its end.

        Args:
            wait_s: how long to wait for an application that is just starting to have a page.
        """


# ---- the ApplicationMaster's side ----


class ResourceLimits(Value, kw_only=True):
    """Hard limits that an engine reports at registration: the largest single container, or None if unknown."""

    largest: Resources | None = None


class Registered(Value, kw_only=True):
    """Answer to a registration.

    Args:
        live: containers of an earlier attempt that are still running.
        is_complete: ``live`` is complete: any other container is gone.
        single_node: all containers run on this machine.
        boot_id: current boot id of this machine, if no container survives its reboot; empty: some do.
    """

    limits: ResourceLimits
    live: tuple[Grant, ...] = ()
    is_complete: bool = False
    single_node: bool = False
    boot_id: str = ""


class ContainerRequest(Value, kw_only=True):
    """Number of containers of one role that are requested now; the latest request of a role counts.

    Args:
        request_id: identifies the role in both directions (YARN: priority and allocation request id).
        avoid: nodes on which one of our containers failed; used only if there are no others.
        short_of_gpus: hosts with too few GPUs for such a container, by the ledger's names (which may be the full name
            where the engine has the short one, or vice versa); also used only if there are no others.
    """

    request_id: int
    count: int
    resources: Resources
    placement: Placement = field(default_factory=Placement)
    avoid: tuple[str, ...] = ()
    short_of_gpus: tuple[str, ...] = ()


class Grant(Value, kw_only=True):
    """Container granted on ``node`` for the request with this ``request_id``."""

    container_id: ContainerId
    request_id: int
    node: str
    resources: Resources
    log_url: str = ""


STATUS_UNKNOWN = -200
"""Exit status of a container of an earlier attempt, which only its parent process could know."""


NODE_MANAGER = "the NodeManager on "
"""Prefix of the name of a service that belongs to a single node."""


class ContainerEnd(Value, kw_only=True):
    """End of a container: its processes are gone, or it was taken away before it had any.

    Args:
        exit_status: exit code of the task, or the negative signal number; YARN's own codes where the node reports one;
            `STATUS_UNKNOWN`.
        node_fault: the engine knows that the node, not the task, caused it (lost, disk, preempted).
        presumed: its node is lost and the end of its processes was not observed: they may still run.
        node_answered: its NodeManager answered after the engine had taken it away: it ends its containers if an
            operator has removed the node.
        service: the service of its node that does not answer but may recover (`NODE_MANAGER`); empty: another cause.
        is_silent: its host did not answer at all when the container was to start: the node may be down.
    """

    container_id: ContainerId
    exit_status: int
    diagnostics: str = ""
    node_fault: bool = False
    presumed: bool = False
    node_answered: bool = False
    service: str = ""
    is_silent: bool = False


class AnnouncedEnd(Value, kw_only=True):
    """Notice that the engine is going to take a container away.

    Args:
        wait_s: how long it waits before it does [s].
        is_decommissioned: because its node is decommissioned; False: for another queue.
    """

    container_id: ContainerId
    wait_s: float
    is_decommissioned: bool = False


class Heartbeat(Value, kw_only=True):
    """Events since the last heartbeat.

    Args:
        started: containers whose node has accepted their tasks and is fetching their files.
        preparing: of those checked with `AmEngine.check_start`, the ones whose node is still fetching their files.
        ending: containers that the engine is taking away; the end of each follows, until then it may run.
        announced: containers that the engine is going to take away unless they end before; each is reported once.
        removed_nodes: hosts that an operator has removed, which end their containers.
        resync: the engine was restarted and has re-registered us: earlier refusals of nodes no longer count.
        shut_down: the engine requires this attempt to end at once; with the reason.
        killed_in_s: time until the engine kills the application [s]; infinity: never; None: no change.
        refused: requests that no node can ever satisfy, by request id, with the reason.
    """

    granted: tuple[Grant, ...] = ()
    started: tuple[ContainerId, ...] = ()
    preparing: tuple[ContainerId, ...] = ()
    ended: tuple[ContainerEnd, ...] = ()
    start_failed: tuple[ContainerEnd, ...] = ()
    ending: tuple[ContainerId, ...] = ()
    announced: tuple[AnnouncedEnd, ...] = ()
    removed_nodes: tuple[str, ...] = ()
    resync: bool = False
    shut_down: str | None = None
    killed_in_s: float | None = None
    refused: tuple[tuple[int, str], ...] = ()


class TaskLaunch(Value, kw_only=True):
    """Parameters of a task's start: the address of its AM and, apart from any environment, its credentials.

    Args:
        control_url: the AM's control address, ``http://host:port``.
        token: token of this task (`dlapp.values.access.derive_token`).
        env, environment: the part of the user's secrets for its payload.
        registry_credentials: the submitter's credentials for the container's image; None: none.
        ledger: `Secrets.ledger`.
    """

    container_id: ContainerId
    control_url: str
    token: str
    env: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    registry_credentials: RegistryCredentials | None = None
    ledger: LedgerSettings | None = None


class AmEngine(Protocol):
    """The ApplicationMaster's side of an engine. Calls return quickly or raise; ends and grants come by heartbeat."""

    def register(self, control_url: str) -> Registered:
        """Register this attempt and its address."""

    def heartbeat(
        self, asks: Sequence[ContainerRequest], releases: Sequence[ContainerId], progress: float
    ) -> Heartbeat:
        """Send the current requests and return events. The engine calls ``wake`` when there are new events.

        Args:
            progress: 0 to 1; at 1 only the ends of containers are still awaited.
        """

    def start(self, grant: Grant, launch: TaskLaunch) -> None:
        """Start a task in a container; a later heartbeat lists it in ``started`` or ``start_failed``."""

    def check_start(self, container_id: ContainerId) -> None:
        """Check whether the node of a container is still fetching the files of its task; if so, a heartbeat reports
        it."""

    def stop(self, container_id: ContainerId) -> None:
        """End a container and all its processes; a heartbeat reports its end. May be repeated."""

    def release_devices(self) -> None:
        """Release the devices that the engine reserved for the whole application: its payloads have ended. May be
        repeated.
        A container that has to start again leases anew."""

    def log_tail(self, container_id: ContainerId, log_url: str, stream: str, most_bytes: int) -> bytes | None:
        """Return the end of a container's log, as anyone who may see the page may see it. May block on a node; callable
        from any thread.

        Args:
            container_id: id of the container.
            log_url: log URL of its grant.
            stream: ``stdout`` or ``stderr``.
            most_bytes: maximum size [bytes].

        Returns:
            None: no log, or not yet.

        Raises:
            NotFound, Unreachable: it cannot be read.
        """

    def finish(self, final_status: FinalStatus, cause: Cause, diagnostics: str) -> bool:
        """Report the application's final status, as the last call. False: it has ended otherwise, or another attempt
        took over."""


Wake = Callable[[], None]
