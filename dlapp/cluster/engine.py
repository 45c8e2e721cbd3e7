"""The interface of an engine, and the values that pass through it.

The client side submits and reads; the ApplicationMaster's side asks for containers, starts tasks in them and learns
of their ends. Above this line nobody knows which engine it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from dlapp.value import Value, field
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.image_name import RegistryCredentials
from dlapp.values.report import ApplicationView, Cause, ContainerView, FinalStatus
from dlapp.values.spec import AppSpec, Placement, Resources, Secrets, Submission

if TYPE_CHECKING:
    from dlapp.cluster.reasons.facts import WaitFacts
    from dlapp.locations import HdfsPlace
    from dlapp.values.access import ControlAccess
    from dlapp.values.waiting import Estimate, Waiting

# ---- the client's side ----


class EngineInfo(Value, kw_only=True):
    """Name and version of an engine, and whether it has GPUs (``gcores=auto`` is 1 where it has).

    Args:
        hdfs: the HDFS that input and output can be on; None: there is none.
        no_hdfs: why there is none.
        paths_on_hdfs: paths without a scheme lie there; else they lie on this machine.
    """

    name: str
    version: str
    has_gpus: bool
    hdfs: HdfsPlace | None = None
    no_hdfs: str = ""
    paths_on_hdfs: bool = False


class PlanFacts(Value, kw_only=True):
    """Knowledge of an engine about an application that might be submitted now.

    Args:
        facts: its containers, and what there is.
        waiting: why it would wait, with the smallest change; code ``starting``: it would start now.
        estimate: when it would start.
        nodes: those that could take a container now, by role.
    """

    facts: WaitFacts
    waiting: Waiting
    estimate: Estimate
    nodes: Mapping[str, tuple[str, ...]]


class UserShare(Value, kw_only=True):
    """Part of what a queue has that a user uses, or has used.

    Args:
        share: 0 to 1.
        meaning: what it is a share of, for users.
    """

    user: str
    queue: str
    share: float
    meaning: str


class QueueFacts(Value, kw_only=True):
    """Knowledge of an engine about all that wait.

    Args:
        order: ids of those that wait for their turn, the first first.
        estimates: id -> when it is expected to start, for those of which that can be told.
        shares: of users; none: there is one user, or none is known.
    """

    order: tuple[str, ...] = ()
    estimates: Mapping[str, Estimate] = field(default_factory=dict)
    shares: tuple[UserShare, ...] = ()


class LogFiles(Value, kw_only=True):
    """Logs of one container: ``files`` maps ``stdout``, ``stderr``, ``dlapp.log`` to a URL each.

    ``problem``: why the URLs, which an ApplicationMaster said, are not opened; empty: they are.
    """

    container_id: ContainerId
    role: str
    role_index: int
    index: int
    files: dict[str, str]
    problem: str = ""

    @classmethod
    def of(cls, container: ContainerView, files: dict[str, str], problem: str = "") -> LogFiles:
        """Return the logs of a container of a view."""
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

    def check(self, spec: AppSpec) -> list[str]:
        """Refuse what can never run here; the answer is lines for the user (a key without effect, say).

        Raises:
            AskTooLarge: no node can ever meet the ask, with the reason.
            SpecError: a key that this engine cannot honour.
        """

    def node_names(self) -> tuple[str, ...]:
        """The names of the nodes that containers can be placed on by name now; none: on one machine."""

    def tend(self) -> str:
        """Replace what serves the caller's applications on this machine, should it have died; else do nothing.

        Returns:
            What keeps applications from going on: the full disk of this machine's state. Otherwise empty.
        """

    def close(self) -> None:
        """Close connections and files. Applications go on."""

    def prepare(self) -> None:
        """A submission follows in a moment: begin what takes time. Where none follows, it ends by itself."""

    def archive_cache(self) -> str:
        """Directory for packed workspaces, the caller's own; archives in it are named by their digest."""

    def find_archive(self, digest: str) -> str:
        """Return where the packed workspace of the caller's earlier submission is, for `Submission.workspace_archive`.

        Raises:
            NotFound: it was removed from the cache.
        """

    def submit(self, submission: Submission, secrets: Secrets) -> ApplicationId:
        """Hand an application in; after the return it runs whatever becomes of the caller."""

    def view(self, application_id: ApplicationId) -> ApplicationView:
        """Return the current view of an application. Raises NotFound."""

    def view_json(self, application_id: str) -> dict[str, Any]:
        """`view` in its JSON form, for dlapp-status, which loads no view. Raises NotFound."""

    def view_in_full_json(self, application_id: str) -> dict[str, Any]:
        """`view_json`; of one that waits, with the smallest change that ends the wait, and an estimate of its start.
        Raises NotFound."""

    def plan(self, spec: AppSpec) -> PlanFacts:
        """Return what is known here about an application that might be submitted now. Raises as `check`, for what can
        never run."""

    def queue_facts(self) -> QueueFacts:
        """Return in which order the applications that wait are to start, and when."""

    def ids(self, *, everybody: bool = False) -> list[str]:
        """All ids as text, oldest first: the caller's own, or everybody's."""

    def owner(self, application_id: str) -> str:
        """Return the user whose application it is: from who enforces it, not from what the user wrote."""

    def views(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[ApplicationView]:
        """Return the views of many applications, oldest first: the caller's own, one user's, or everybody's.

        Args:
            limit: how many of those that have ended, the latest; None: all. Their containers may be left out, but for
                the one that speaks for the exit code.
        """

    def views_json(
        self, *, everybody: bool = False, user: str | None = None, limit: int | None = None
    ) -> list[dict[str, Any]]:
        """`views` in JSON form."""

    def add_receipts(self, views: Sequence[dict[str, Any]]) -> None:
        """Add the receipts of applications that have ended to views of a list, in JSON form, which lack them.

        Args:
            views: of `views_json`, oldest first. Those stay without one of which nothing is known here.
        """

    def submission(self, application_id: ApplicationId) -> Submission:
        """Return the submission. Raises NotFound."""

    def usage_json(self, application_id: ApplicationId) -> Any:
        """Return the use of the containers over time, as it was written last (`dlapp.values.usage.UsageHistory`); None:
        there is none. Raises NotFound.
        """

    def trials_text(self, application_id: ApplicationId) -> str:
        """Return the results of a sweep as they were written last (`dlapp.sweep.results`); empty: there are none.
        Raises NotFound.
        """

    def soft_kill(self, application_id: ApplicationId, by: str) -> str:
        """Ask for a soft-kill; a line that says what comes of it. Raises NotFound, Denied."""

    def kill(self, application_id: ApplicationId, by: str) -> str:
        """Kill; returns when nothing of it is left, with a line that says so. Raises NotFound, Denied."""

    def release(self, application_id: ApplicationId, by: str) -> str:
        """Let an application that is held start; a line that says what comes of it. Raises NotFound, Denied."""

    def control_access(self, application_id: ApplicationId) -> ControlAccess:
        """Return the control address of the ApplicationMaster of an application, and the caller's token for it: that
        for tools, or for viewers where the application is another user's and its `view_acl` names the caller.

        Raises:
            NotFound: it is not there, or has ended.
            Denied: it is another user's, who does not let the caller in, or this machine has no token.
            StreamRefused: its ApplicationMaster has not started yet.
        """

    def check_removal(self, application_id: ApplicationId) -> None:
        """Refuse what `remove` would refuse.

        Raises:
            NotFound: it is not there.
            Denied: it is another user's.
            UsageError: it has not ended, or the engine's own list has it, which is not dlapp's.
        """

    def remove(self, application_id: ApplicationId) -> None:
        """Remove an application that has ended from the history. Raises as `check_removal`."""

    def unstored(self, view: Mapping[str, Any]) -> list[str]:
        """Return the directories with output of the caller's application that could not be stored.

        They are on this machine; on a cluster each is ``host:path``.

        Args:
            view: of the application, in its JSON form.
        """

    def logs(self, application_id: ApplicationId, try_number: int | None = None) -> list[LogFiles]:
        """The logs of all containers that ran, in CONTAINER_INDEX order, the last attempt of each.

        Args:
            try_number: in place of the last: of each index that was started so often its container then, from 1.
        """

    def aggregated_log(self, view: ApplicationView, log: LogFiles, name: str) -> Iterator[bytes] | None:
        """A log of an application that has ended, where the engine moved it; None: it moved none, or not yet.

        Raises:
            Denied: the caller may not read it.
            DlappError: it cannot be read.
        """

    def dashboard_urls(self, application_id: ApplicationId, *, wait_s: float = 0.0) -> tuple[str, str]:
        """The page while it runs, and the one after it is completed.

        Args:
            wait_s: how long to wait for an application that is just starting to have a page.
        """


# ---- the ApplicationMaster's side ----


class ResourceLimits(Value, kw_only=True):
    """The hard limits that an engine names at registration: the largest single container, or None where unknown."""

    largest: Resources | None = None


class Registered(Value, kw_only=True):
    """The answer to a registration.

    Args:
        live: the containers that an earlier attempt left running.
        is_complete: ``live`` has all of them: what it does not name is gone.
        single_node: all containers run on this machine.
        boot_id: of this machine as it runs now, where no container outlives its restart; empty: some do.
    """

    limits: ResourceLimits
    live: tuple[Grant, ...] = ()
    is_complete: bool = False
    single_node: bool = False
    boot_id: str = ""


class ContainerRequest(Value, kw_only=True):
    """Number of containers of one role that are wanted at this moment; the latest request of a role counts.

    Args:
        request_id: names the role, both ways (YARN: priority and allocation request id).
        avoid: nodes that failed one of our containers; used all the same where there are no others.
        short_of_gpus: hosts that have too few for such a container, by the ledger's names (the full one where the
            engine's is short, or the other way); used all the same, too.
    """

    request_id: int
    count: int
    resources: Resources
    placement: Placement = field(default_factory=Placement)
    avoid: tuple[str, ...] = ()
    short_of_gpus: tuple[str, ...] = ()


class Grant(Value, kw_only=True):
    """A container given to us: on ``node``, for the ask with this ``request_id``."""

    container_id: ContainerId
    request_id: int
    node: str
    resources: Resources
    log_url: str = ""


STATUS_UNKNOWN = -200
"""Exit status of a container of an earlier attempt, where only its parent would know it."""


NODE_MANAGER = "the NodeManager on "
"""How the name of a service begins that one node alone has."""


class ContainerEnd(Value, kw_only=True):
    """A container's processes are gone, or it was taken away before it had any.

    Args:
        exit_status: the task's exit code, or minus a signal's number; YARN's own codes where the node says so;
            `STATUS_UNKNOWN`.
        node_fault: the engine knows that the node, not the task, is to blame (lost, disk, preempted).
        presumed: its node is lost, and nobody has seen its processes end: they may run on.
        service: what of its node does not answer, though it may in a moment (`NODE_MANAGER`); empty: that is no reason.
        is_silent: its host did not answer at all when the container was to start: the node may be off.
    """

    container_id: ContainerId
    exit_status: int
    diagnostics: str = ""
    node_fault: bool = False
    presumed: bool = False
    service: str = ""
    is_silent: bool = False


class Heartbeat(Value, kw_only=True):
    """Events since the last heartbeat.

    Args:
        started: containers whose node has taken their tasks, and brings what they need.
        preparing: of those asked for with `AmEngine.check_start`, the ones whose node still brings what they need.
        ending: containers that the engine is taking away; each one's end follows, and until then it may run.
        preempted: containers that the engine is going to take for others, unless they end before; told once.
        preemption_wait_s: how long it waits for that.
        resync: the engine was restarted, and has taken us again: what nodes refused before says nothing against them.
        shut_down: the engine wants this attempt to end at once, with the reason.
        killed_in_s: the engine is going to kill the application then [s]; infinity: at no time; None: no news.
        refused: asks that no node can ever meet, by request id, with the reason.
    """

    granted: tuple[Grant, ...] = ()
    started: tuple[ContainerId, ...] = ()
    preparing: tuple[ContainerId, ...] = ()
    ended: tuple[ContainerEnd, ...] = ()
    start_failed: tuple[ContainerEnd, ...] = ()
    ending: tuple[ContainerId, ...] = ()
    preempted: tuple[ContainerId, ...] = ()
    preemption_wait_s: float = 0.0
    resync: bool = False
    shut_down: str | None = None
    killed_in_s: float | None = None
    refused: tuple[tuple[int, str], ...] = ()


class TaskLaunch(Value, kw_only=True):
    """All that a task is told: where its AM is, and (apart from every environment) its credentials.

    Args:
        control_url: the AM's control address, ``http://host:port``.
        token: the task's own (`dlapp.values.access.derive_token`).
        env, environment: what its payload gets of the user's secrets.
        registry_credentials: the submitter's, for the image of the container; None: there are none.
    """

    container_id: ContainerId
    control_url: str
    token: str
    env: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    registry_credentials: RegistryCredentials | None = None


class AmEngine(Protocol):
    """The ApplicationMaster's side of an engine. Calls return quickly or raise; ends and grants come by heartbeat."""

    def register(self, control_url: str) -> Registered:
        """Say that this attempt is alive, and where."""

    def heartbeat(
        self, asks: Sequence[ContainerRequest], releases: Sequence[ContainerId], progress: float
    ) -> Heartbeat:
        """Say what is wanted and learn what happened. The engine calls ``wake`` when there is something to learn.

        Args:
            progress: 0 to 1; at 1 there is nothing to wait for but the ends of containers.
        """

    def start(self, grant: Grant, launch: TaskLaunch) -> None:
        """Start a task in a container; a later heartbeat has it among ``started`` or ``start_failed``."""

    def check_start(self, container_id: ContainerId) -> None:
        """Find out whether the node of a container still brings what its task needs; the answer comes by heartbeat,
        where it does."""

    def stop(self, container_id: ContainerId) -> None:
        """End a container, whatever runs in it; its end comes by heartbeat. May be repeated."""

    def release_devices(self) -> None:
        """Give back the devices of the whole application, where the engine reserved them: its payloads are over. May be
        repeated. A container that has to start again leases anew."""

    def log_tail(self, container_id: ContainerId, log_url: str, stream: str, most_bytes: int) -> bytes | None:
        """Return the end of a log of a container, as everybody who may see the page may see it. May wait for a node;
        any thread may call it.

        Args:
            container_id: the container.
            log_url: of its grant.
            stream: ``stdout`` or ``stderr``.
            most_bytes: how much of it.

        Returns:
            None: there is none, or not yet.

        Raises:
            NotFound, Unreachable: it cannot be read.
        """

    def finish(self, final_status: FinalStatus, cause: Cause, diagnostics: str) -> bool:
        """Say how the application ended. The last call. False: it is over otherwise, or another attempt has it."""


Wake = Callable[[], None]
