"""Messages between the ApplicationMaster, its tasks and the tools: HTTP/1.1 with JSON bodies.

    who    call                                    body -> answer
    task   POST /v1/tasks/<container id>/hello     Hello -> Assignment
    task   POST /v1/tasks/<container id>/report    Report -> Orders      (held back up to ``wait_s`` for news)
    tool   GET  /v1/view                           -> ApplicationView
    tool   POST /v1/softkill, /v1/kill             StopRequest -> StopAnswer
    anyone GET  /                                  -> a page, read-only
    anyone GET  /v1/view                           -> ApplicationView    (on a cluster, whose own pages show as much)

Every other call carries ``Authorization: Bearer <token>``; a missing or wrong one is answered with 401 and changes
nothing. A token is derived from the application's secret and what it is for, so every attempt can check it
without having given it out. A task numbers its reports; one that comes twice, or late, changes nothing.

Unknown fields are passed over, so an older AM and a newer task understand each other.
"""

from __future__ import annotations

import os
from enum import Enum

from dlapp.ids import ApplicationId, ContainerId
from dlapp.spec import InputSpec, OutputSpec, PayloadCache, Resources
from dlapp.value import Value, field

TOOLS = "tools"
"""Purpose of the token that tools present; a task's is its container id."""


def new_secret() -> str:
    """A secret for one application: 32 random bytes as hex digits."""
    return os.urandom(32).hex()


def derive_token(control_secret: str, purpose: str) -> str:
    """The token for ``purpose`` (`TOOLS` or a container id): keyed BLAKE2b, 64 hex digits."""
    import hashlib  # a task never derives a token, and hashlib costs 3 ms

    key = bytes.fromhex(control_secret)
    return hashlib.blake2b(purpose.encode(), key=key, person=b"dlapp-control", digest_size=32).hexdigest()


def page_path(control_secret: str) -> str:
    """Return the path of the page for browsers, on an address that others on the machine can reach as well."""
    return f"/{derive_token(control_secret, 'page')[:32]}/"


def token_is_right(control_secret: str, purpose: str, token: str) -> bool:
    """Return True if ``token`` is the one for ``purpose``; takes as long for a near miss as for a far one."""
    import hmac

    return hmac.compare_digest(derive_token(control_secret, purpose).encode(), token.encode())


class Phase(Enum):
    """Phases of a task, in their order."""

    STARTING = "starting"
    PULLING = "pulling"
    UNPACKING = "unpacking"
    FETCHING = "fetching"
    LEASING = "leasing"
    WAITING = "waiting"
    """Ready, at the gate of its gang, or waiting for what its role depends on, or for the journal."""
    RUNNING = "running"
    STORING = "storing"
    RELEASING = "releasing"
    ENDED = "ended"


class Fault(Enum):
    """Cause of a task's end; it decides whether and where its index is tried again."""

    NONE = "none"
    USER = "user"
    """The payload's exit code, or a script that cannot run: counted against the role's retries."""
    NODE = "node"
    """A GPU, the disk, Docker or the host: tried elsewhere, not counted."""
    SERVICE = "service"
    """A service that all nodes use is away (ZooKeeper, HDFS, a registry): waited for, counted against nothing."""
    DATA = "data"
    """Missing or unreadable input, an output that cannot be written: not tried again."""
    STOPPED = "stopped"
    """We ended it ourselves."""


class Stop(Enum):
    """Manner in which a task ends its payload."""

    NO = "no"
    SOFT = "soft"
    """SIGTERM, the grace time, SIGKILL; output is stored."""
    NOW = "now"
    """SIGKILL; nothing is stored."""


class Hello(Value, kw_only=True):
    """A task's first word to an ApplicationMaster, a new attempt's included.

    Args:
        host: the task's host, on a cluster by YARN's name of it.
        pid: its process id there.
        index: the CONTAINER_INDEX that it runs already; None: it asks for one.
    """

    container_id: ContainerId
    host: str
    pid: int
    index: int | None = None
    phase: Phase = Phase.STARTING


class Assignment(Value, kw_only=True):
    """Work of one container. Paths inside it are relative to the workspace.

    Args:
        index: CONTAINER_INDEX; ``total`` is NUM_CONTAINERS.
        script: of the workspace; empty: ``command`` runs, without a shell.
        workspace_archive: location of the packed workspace; empty: there is none.
        parts: for each output, in order, the location of the directory that takes this container's part.
        spread: `Placement.spread`.
        collect_gpus, check_node: of `AppSpec`.
        network: `AppSpec.network`.
    """

    application_id: ApplicationId
    attempt: int
    container_id: ContainerId
    index: int
    total: int
    role: str
    role_index: int
    role_size: int
    resources: Resources
    script: str
    args: tuple[str, ...]
    docker_image: str | None
    username: str
    appname: str
    workspace_archive: str
    workspace_digest: str
    inputs: tuple[InputSpec, ...] = ()
    outputs: tuple[OutputSpec, ...] = ()
    parts: tuple[str, ...] = ()
    kill_grace_s: float = 30.0
    output_patience_s: float = 86_400.0
    log_limit_bytes: int = 1 << 30
    spread: bool = False
    collect_gpus: bool = False
    check_node: bool = False
    network: str | None = None
    caches: tuple[PayloadCache, ...] = ()
    command: tuple[str, ...] = ()


class StoredOutput(Value, kw_only=True):
    """One output of one container, complete under its temporary name.

    Args:
        stray: it is what the workspace had of new and changed files, because the script did not make the output. It is
            kept, never committed.
    """

    name: str
    part: str
    files: int
    size_bytes: int
    stray: bool = False


class TaskResult(Value, kw_only=True):
    """Result of a task.

    Args:
        exit_code: the payload's; None: it never ran or died by a signal.
        signal: the signal that ended the payload.
        message: one line for the user; empty when all is well.
        service: with SERVICE the service that is away, for users; with NODE one of this node alone, such as Docker,
            which comes back without a change of its setup.
        lost: with NODE: the node removed the container's directories. It counts as what YARN takes away.
        unstored: the directories of this machine with output that could not be stored.
    """

    fault: Fault
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    outputs: tuple[StoredOutput, ...] = ()
    service: str = ""
    lost: bool = False
    unstored: tuple[str, ...] = ()

    @property
    def exit_text(self) -> str:
        """Return the signal or exit code in words; empty if the payload ended with 0 or never ran."""
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.exit_code}" if self.exit_code else ""


class Report(Value, kw_only=True):
    """A task's news. Reports of one task are numbered from 1.

    Args:
        index: what it runs; an AM that knows otherwise answers with `Stop.NOW`.
        progress: share of the phase that is done, 0 to 1; None: unknown.
        detail: a few words on the phase.
        gpus: indices of the devices it holds, in NVML's PCI order.
        image: which image its payload runs in, for good: the digest at its registry, or its id.
        waits_for: the service that is away, without which this phase cannot go on; empty: it goes on.
        result: how it ended; with it the phase is ENDED and no report follows.
        seen: the number of the orders that the task has; the answer is held back while there are no newer ones.
        wait_s: how long the answer may be held back.
    """

    container_id: ContainerId
    number: int
    index: int
    phase: Phase
    progress: float | None = None
    detail: str = ""
    gpus: tuple[int, ...] = ()
    address: str | None = None
    image: str = ""
    waits_for: str = ""
    result: TaskResult | None = None
    seen: int = 0
    wait_s: float = 0.0


class Orders(Value, kw_only=True):
    """Orders for a task.

    Args:
        attempt: of the AM that speaks; a task refuses an attempt lower than one it has heard.
        number: grows with every change.
        go: the gate is open, the payload may start.
        stop: how to end, if at all.
        why: to end, in a few words; they stand in the task's result.
        grace_s: seconds between SIGTERM and SIGKILL of a soft stop.
        report_every_s: the longest silence between two reports.
    """

    attempt: int
    number: int
    go: bool = False
    stop: Stop = Stop.NO
    why: str = ""
    grace_s: float = 0.0
    report_every_s: float = 10.0


class StopRequest(Value, kw_only=True):
    """A tool asks for a soft-kill or a kill."""

    user: str
    unknown: dict[str, object] = field(default_factory=dict)


class StopAnswer(Value, kw_only=True):
    """Answer to a stop.

    Args:
        state: ``stopping``, ``already`` or ``ended``.
        left_s: the grace time that is left [s].
        message: all that there is to say; empty: `line` says it.
        commits: there is output, and it is committed at the end.
    """

    state: str
    left_s: float = 0.0
    message: str = ""
    commits: bool = True

    def line(self, application_id: str) -> str:
        """Return what came of a soft-kill, for the user who asked for it."""
        left = f"SIGKILL follows in {max(0.0, self.left_s):.0f} s at the latest"
        if self.message:
            return self.message
        if self.state == "ended":
            return f"{application_id} had already ended"
        if self.state == "already":
            return f"{application_id} is already being stopped; {left}"
        output = ", its output will be committed" if self.commits else ""
        return f"{application_id} is being stopped{output}; {left}"
