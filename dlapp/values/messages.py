"""Messages between the ApplicationMaster, its tasks and the tools: HTTP/1.1 with JSON bodies.

    who    call                                    body -> answer
    task   POST /v1/tasks/<container id>/hello     Hello -> Assignment
    task   POST /v1/tasks/<container id>/report    Report -> Orders      (held back up to ``wait_s`` for news)
    task   GET  /v1/tasks/<container id>/roster    -> Roster             (if its orders name one)
    task   POST /v1/tasks/<container id>/stream    StreamAnswer -> a stream, with Upgrade (`dlapp.net.streams`)
    tool   GET  /v1/view                           -> ApplicationView
    tool   POST /v1/softkill, /v1/kill, /v1/release StopRequest -> StopAnswer
    tool   POST /v1/streams                        StreamRequest -> a stream, with Upgrade
    viewer GET  /v1/view, POST /v1/streams         as a tool; streams to ports alone
    modifier GET /v1/view, POST /v1/softkill, /v1/kill, /v1/release     as a tool
    anyone GET  /                                  -> a page, read-only
    anyone GET  /v1/view                           -> ApplicationView    (on a cluster, whose own pages show as much)

Every other call carries ``Authorization: Bearer <token>``; a missing or wrong one is answered with 401 and changes
nothing. A token (`dlapp.values.access`) is derived from the application's secret and its purpose: every attempt can
check it without having given it out. A task numbers its reports; one that comes twice, or late, changes nothing.

Unknown fields are passed over, so an older AM and a newer task understand each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum

from dlapp.errors import SpecError
from dlapp.value import Value, field
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.spec import CheckpointSpec, Framework, InputSpec, OutputSpec, PayloadCache, Resources
from dlapp.values.usage import USAGE_EVERY_S, Receipt, Usage

PREEMPTED = "preempted"
"""Reason of a soft stop (`Orders.reason`): the engine takes the container for others."""
MAX_METRICS = 64
_MOST_HOSTS, _HOST = 32, re.compile(r"[A-Za-z0-9_.:-]{1,255}")
_METRIC = re.compile(r"[A-Za-z0-9_.:/@%+-]{1,64}")
_ADDRESS = re.compile(r"[0-9A-Fa-f.:]{2,45}")
_BOARD_PATH = re.compile(r"/[0-9a-f]{32}/")
MOST_PROBLEM = 300
_MOST_NAME = 255
_MOST_METRIC = 1e18
"""Below what `dlapp.values.serialization` takes for a number."""
_MOST_STEPS = 1 << 62


_RUN_SIZE = 1_000_000_000
"""Numbers of checkpoints that one start of a payload can store."""


def checkpoints_after(found: int, starts: int) -> int:
    """Return the number after which a start of a payload numbers its checkpoints, apart from those of all other starts.

    A payload on a node that is lost to its ApplicationMaster may run on, and store, while the next one runs elsewhere.
    So each start has a range of its own: ``starts`` grows with each, and ``found`` never becomes less.

    Args:
        found: the greatest number of a checkpoint that there was before it; 0: none.
        starts: which start of the payload this is, from 1.
    """
    former = (found - 1) // _RUN_SIZE if found else -1
    return (former + starts) * _RUN_SIZE


def are_of_a_later_start(number: int, after: int) -> bool:
    """Return whether a checkpoint is of a later start than the one whose numbers come after ``after``."""
    return number > after + _RUN_SIZE


def address_name(attempt: int, control_url: str) -> str:
    """Return the name by which an attempt leaves its control address in a directory of a file system.

    One listing tells a task the address: reading a small file costs HDFS ten times as much.
    """
    return f"{attempt}-{control_url.encode().hex()}"


def latest_address(names: Iterable[str]) -> str | None:
    """Return the control address of the latest attempt of which a directory has an `address_name`; None: of none."""
    latest, address = 0, None
    for name in names:
        attempt, _, code = name.partition("-")
        try:
            number, url = int(attempt), bytes.fromhex(code).decode()
        except ValueError:
            continue  # nobody's
        if number > latest and url.startswith("http://"):
            latest, address = number, url
    return address


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
        generation: of the gang, to which its phase belongs.
    """

    container_id: ContainerId
    host: str
    pid: int
    index: int | None = None
    phase: Phase = Phase.STARTING
    generation: int = 0


class MpiWork(Value, kw_only=True):
    """Part of an assignment with the framework mpi.

    Args:
        head: the CONTAINER_INDEX that runs the program; its mpirun starts processes in all containers.
        slots: role -> how many processes mpirun starts in each of its containers, for the roles that take part.
    """

    head: int
    slots: dict[str, int]


class MpiLaunch(Value, kw_only=True):
    """One command of the head's mpirun for another container: its daemon there.

    Args:
        number: of this launch, from 1 in each generation.
        index: the CONTAINER_INDEX that is to run it.
        command: for a shell; empty: that container has it already.
        directory: where mpirun was started, relative to the workspace.
    """

    number: int
    index: int
    command: str
    directory: str = "."


class LaunchState(Value, kw_only=True):
    """State of a launch in its container.

    Args:
        status: the exit status of the command; None: it has begun, and has not ended.
    """

    number: int
    status: int | None = None


class TrialWork(Value, kw_only=True):
    """Part of an assignment in a sweep: how its container runs trials (`Orders.trials`).

    Args:
        slots: how many it runs at a time.
        metric: name of the metric that is compared.
        trial_time_s: how long one may run; None: as long as it takes.
        milestones: steps of whose reports none may be left out, in order.
    """

    slots: int = 1
    metric: str
    trial_time_s: float | None = None
    milestones: tuple[int, ...] = ()


class TrialOrder(Value, kw_only=True):
    """One trial for a container.

    Args:
        number: of the trial.
        try_number: counts its starts, from 1.
        parameters: each with its name and value (`dlapp.sweep.trial.TrialSpec`).
        stop: why it is to end softly; empty: it is not.
    """

    number: int
    try_number: int
    parameters: tuple[tuple[str, str], ...] = ()
    stop: str = ""


class TrialReport(Value, kw_only=True):
    """State of a trial in its container.

    Args:
        number, try_number: as of its order.
        points: step and value of the metric, steps growing; thinned out, but for the milestones of `TrialWork`.
        reports: how often it reported the metric.
        problem: why a report of the metric was not taken; empty: all were.
        ran_s: how long its payload has run.
        timed_out: it was ended because its time was over.
        result: how it ended; None: it runs, or is prepared or stored.
    """

    number: int
    try_number: int
    points: tuple[tuple[float, ...], ...] = ()
    reports: int = 0
    problem: str = ""
    ran_s: float = 0.0
    timed_out: bool = False
    result: TaskResult | None = None


class Assignment(Value, kw_only=True):
    """Work of one container. Paths inside it are relative to the workspace.

    Args:
        index: CONTAINER_INDEX; ``total`` is NUM_CONTAINERS.
        script: of the workspace; empty: ``command`` runs, without a shell.
        workspace_archive: location of the packed workspace; empty: there is none.
        parts: for each output, in order, the location of the directory that takes this container's part.
        spread: `Placement.spread`.
        collect_gpus, check_node: of `AppSpec`.
        framework: whose variables the payload gets.
        network: `AppSpec.network`.
        hang_timeout_s: `AppSpec.hang_timeout_s`.
        ready_by_port: its payload is ready as soon as its first port accepts connections.
        ready_path: that is not enough: a GET of this path there must be answered well, too; empty: it is enough.
        watches_use: it is reported whether somebody is connected to its ports (`PayloadStatus.in_use`).
        checkpoint: of `AppSpec`; ``target`` is the directory of the checkpoints that this container begins with.
        stores_checkpoints: it also stores them.
        checkpoint_start: which start of its payload this is, for the numbers of checkpoints (`checkpoints_after`).
        in_gang: it starts together with others, and again with them.
        keep_failed: when its payload has failed, it reports that first (`Report.failure`), as in a gang: orders may be
            to keep the container.
        generation: of the gang that its payload starts with, unless orders name a later one.
        ports: `RoleSpec.ports`.
        has_roster: `AppSpec.has_roster`.
        mpi: None: the framework is another one.
        board: directory of the workspace that a TensorBoard beside the payload reads; empty: there is none.
        sweep: it runs trials, and the program belongs to each of them; None: it runs its program once.
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
    checkpoint: CheckpointSpec | None = None
    stores_checkpoints: bool = True
    checkpoint_start: int = 1
    command: tuple[str, ...] = ()
    hang_timeout_s: float | None = None
    ready_by_port: bool = False
    ready_path: str = ""
    watches_use: bool = False
    in_gang: bool = False
    keep_failed: bool = False
    generation: int = 0
    ports: int = 0
    has_roster: bool = False
    framework: Framework = Framework.NONE
    mpi: MpiWork | None = None
    board: str = ""
    sweep: TrialWork | None = None


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


class Evidence(Value, kw_only=True):
    """Line of a log that shows a cause.

    Args:
        file: ``stderr`` or ``stdout`` of the container.
        offset: of the line's first byte.
        line: its text without control characters; a long one is cut.
    """

    file: str
    offset: int
    line: str


class Diagnosis(Value, kw_only=True):
    """Cause of a failure, as a rule names it (docs/failures.md).

    Args:
        rule: the rule's name.
        cause: one line for the user.
        fault: whose fault it is.
        next_step: what the user can do.
        evidence: the line that shows it; None: how the program ended shows it.
        retry: True: it is tried again, and counts against no ``retries``; False: it is not; None: ``retries`` decide.
        avoid_node: the next try should be on another node.
        is_consequence: it follows from the failure of another process.
    """

    rule: str
    cause: str
    fault: Fault
    next_step: str = ""
    evidence: Evidence | None = None
    retry: bool | None = None
    avoid_node: bool = False
    is_consequence: bool = False


class TaskResult(Value, kw_only=True):
    """Result of a task.

    Args:
        exit_code: the payload's; None: it never ran or died by a signal.
        signal: the signal that ended the payload.
        message: one line for the user; empty when all is well.
        service: with SERVICE the service that is away, for users; with NODE one of this node alone, such as Docker,
            which comes back without a change of its setup.
        lost: with NODE: the node removed the container's directories, or the engine preempted it. It counts as what
            YARN takes away.
        unstored: the directories of this machine with output that could not be stored.
        diagnosis: the cause of a failure; None: no rule names it, or it did not fail.
        receipt: what it has cost.
    """

    fault: Fault
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    outputs: tuple[StoredOutput, ...] = ()
    service: str = ""
    lost: bool = False
    unstored: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    receipt: Receipt | None = None

    @property
    def exit_text(self) -> str:
        """Return the signal or exit code in words; empty if the payload ended with 0 or never ran."""
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.exit_code}" if self.exit_code else ""


class PayloadStatus(Value, kw_only=True):
    """Progress and metrics that a payload has reported (docs/payload.md, DLAPP_REPORT).

    Args:
        progress: share of its work that is done, 0 to 1; None: it did not say.
        metrics: the last value of each metric, at most `MAX_METRICS` of them.
        step: the step that the last metrics are of.
        ready: it can serve others, or whatever ready means for it.
        lines: how many lines were taken so far.
        in_use: whether somebody is connected to its ports, or was a moment ago; None: not known.

    Raises:
        SpecError: a value is out of its range, or there are too many metrics.
    """

    progress: float | None = None
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    ready: bool = False
    lines: int = 0
    in_use: bool | None = None

    def __post_init__(self) -> None:
        if self.progress is not None and not 0.0 <= self.progress <= 1.0:
            raise SpecError("progress", "is not a number from 0 to 1")
        if self.step is not None and not 0 <= self.step < _MOST_STEPS:
            raise SpecError("step", f"is not a number from 0 to {_MOST_STEPS - 1}")
        if len(self.metrics) > MAX_METRICS:
            raise SpecError("metrics", f"has more than {MAX_METRICS} names")
        for name, value in self.metrics.items():
            if not _METRIC.fullmatch(name):
                raise SpecError("metrics", "has a name that is not 1 to 64 letters, digits or any of _ . : / @ % + -")
            if not -_MOST_METRIC <= value <= _MOST_METRIC:
                raise SpecError("metrics", f"has a value beyond {_MOST_METRIC:g}")


class PortPlace(Value, kw_only=True):
    """Place at which a port of a payload is reached without a stream through the ApplicationMaster.

    Args:
        hosts: names and addresses of its host, at which others may reach it.
        loopback: its address within the host; empty: it has none.
        boot, network: boot id of the host and the inode of its network namespace, by which the same host is known.

    Raises:
        SpecError: there are more hosts than one machine has addresses, or one is no name.
    """

    hosts: tuple[str, ...] = ()
    loopback: str = ""
    boot: str = ""
    network: int = 0

    def __post_init__(self) -> None:
        if len(self.hosts) > _MOST_HOSTS or not all(map(_HOST.fullmatch, (*self.hosts, self.loopback or "0"))):
            raise SpecError("hosts", f"are more than {_MOST_HOSTS}, or one is neither a name nor an address")


class StreamOrder(Value, kw_only=True):
    """A stream that a task is to open to its ApplicationMaster.

    Args:
        number: grows within one attempt.
        kind, head: as of `dlapp.values.access.StreamRequest`.
        for_viewer: a user asks whom `view_acl` names, and not the owner.
    """

    number: int
    kind: str
    head: str
    for_viewer: bool = False


class StreamAnswer(Value, kw_only=True):
    """Answer of a task to a `StreamOrder`: the connection that says it becomes the stream.

    Args:
        container_id: of the task.
        number: of the order.
        error: why there is no stream, for the user; empty: there is.
        reason: as of `dlapp.net.streams.StreamRefused`.
    """

    container_id: ContainerId
    number: int
    error: str = ""
    reason: str = ""


class BoardStatus(Value, kw_only=True):
    """State of the TensorBoard beside a payload.

    Args:
        address, port: on which it listens; 0: it does not.
        path: of its pages, which nobody can guess.
        problem: why it does not run, one line; empty: it runs or starts.

    Raises:
        SpecError: a value is not possible.
    """

    address: str = ""
    port: int = 0
    path: str = ""
    problem: str = ""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 1 << 16:
            raise SpecError("port", "is not a port")
        if self.port and not (_ADDRESS.fullmatch(self.address) and _BOARD_PATH.fullmatch(self.path)):
            raise SpecError("path", "is not that of a TensorBoard")
        if len(self.problem) > MOST_PROBLEM or not self.problem.isprintable():
            raise SpecError("problem", "is not a line of text")


class Report(Value, kw_only=True):
    """A task's news. Reports of one task are numbered from 1.

    Args:
        index: what it runs; an AM that knows otherwise answers with `Stop.NOW`.
        progress: share of the phase that is done, 0 to 1; None: unknown. While RUNNING the payload's own.
        detail: a few words on the phase.
        gpus: indices of the devices it holds, in NVML's PCI order.
        address: at which its peers reach it, an IPv4 or IPv6 address; None: it has no peers, or is not that far.
        ports: TCP ports of its host that are locked for it.
        roster_version: of the roster that it has.
        image: which image its payload runs in, for good: the digest at its registry, or its id.
        waits_for: the service that is away, without which this phase cannot go on; empty: it goes on.
        payload: what the payload has said; None: nothing.
        usage: what the payload uses; None: it does not run, or was not measured since the last one.
        receipt: what the container has cost so far; None: as above.
        result: how it ended; with it the phase is ENDED and no report follows.
        failure: how the payload of a member of a gang failed, or of a container that may be kept. The task waits for
            orders: to prepare a later generation, to keep the container, or to stop; in the end this is its result.
        launches: of the head's task (`MpiWork`): those of its generation whose end it does not know.
        launch_states: of another one's: the states of the launches that its orders name.
        generation: of the gang, to which the phase and the result belong.
        checkpoints: numbers of the whole checkpoints that the task found, that of a member of a gang for this
            generation, and that it has stored since; None: it has not looked yet.
        restored: number of the checkpoint with which its payload begins in this generation; 0: with none; None: that is
            not done yet.
        not_whole: number of a checkpoint that orders named for this generation and that could not be restored; None:
            there is none.
        trials: in a sweep: those that it was ordered to run, until orders leave them out.
        board: the TensorBoard beside the payload; None: there is none.
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
    ports: tuple[int, ...] = ()
    roster_version: int = 0
    image: str = ""
    waits_for: str = ""
    payload: PayloadStatus | None = None
    usage: Usage | None = None
    receipt: Receipt | None = None
    result: TaskResult | None = None
    failure: TaskResult | None = None
    launches: tuple[MpiLaunch, ...] = ()
    launch_states: tuple[LaunchState, ...] = ()
    generation: int = 0
    checkpoints: tuple[int, ...] | None = None
    restored: int | None = None
    not_whole: int | None = None
    trials: tuple[TrialReport, ...] = ()
    board: BoardStatus | None = None
    seen: int = 0
    wait_s: float = 0.0


class Orders(Value, kw_only=True):
    """Orders for a task.

    Args:
        attempt: of the AM that speaks; a task refuses an attempt lower than one it has heard.
        number: grows with every change.
        go: the gate is open, the payload may start.
        generation: of the gang. A task with an earlier one ends its payload (SIGTERM, the grace time, SIGKILL), unpacks
            the workspace anew and waits at the gate again; it keeps its image and its GPUs.
        stop: how to end, if at all.
        why: to end, in a few words; they stand in the task's result.
        reason: to end, in one word for programs (docs/payload.md, DLAPP_STOP).
        abort: the payload hangs, in a few words: it gets SIGABRT, by which Python dumps its stacks, and has failed.
        keep_s: the payload has failed for good; the task gives its GPUs back and keeps the rest so long for those who
            look into it [s]. The result comes after it. 0: it is not kept.
        grace_s: seconds between SIGTERM and SIGKILL of a soft stop.
        report_every_s: the longest silence between two reports.
        usage_every_s: the least time between two reports with ``usage`` and ``receipt``.
        roster: number of the latest roster (``GET /v1/tasks/ID/roster``); 0: there is none. It grows with every
            change within one attempt.
        checkpoint: of a member of a gang: number of the checkpoint that its payload begins with; 0: it begins without
            one; None: that is not known yet. While payloads run: the last one that is complete.
        checkpoints_after: numbers of checkpoints that it stores are greater (`checkpoints_after`).
        launches: for this container (`MpiLaunch`). A task starts each once; one that is no longer named runs on.
        launch_states: for the head's task: the states of its launches in the other containers, as far as known.
        trials: in a sweep: those that the container is to run. One that it runs and that is not named is killed, and
            what it stored is nobody's; the end of one that is not named is on record. None: that is not known yet.
        trials_are_over: none is to come for this container, which ends.
        streams: that are to be opened, each once; one that is no longer named is open, or nobody waits for it.
    """

    attempt: int
    number: int
    go: bool = False
    generation: int = 0
    stop: Stop = Stop.NO
    why: str = ""
    reason: str = ""
    abort: str = ""
    keep_s: float = 0.0
    grace_s: float = 0.0
    report_every_s: float = 10.0
    usage_every_s: float = USAGE_EVERY_S
    roster: int = 0
    checkpoint: int | None = None
    checkpoints_after: int = 0
    launches: tuple[MpiLaunch, ...] = ()
    launch_states: tuple[LaunchState, ...] = ()
    trials: tuple[TrialOrder, ...] | None = None
    trials_are_over: bool = False
    streams: tuple[StreamOrder, ...] = ()


class StopRequest(Value, kw_only=True):
    """A tool asks for a soft-kill, a kill or a release.

    Raises:
        SpecError: ``user`` is no name.
    """

    user: str
    unknown: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < len(self.user) <= _MOST_NAME or not self.user.isprintable():
            raise SpecError("user", f"is not the name of a user, of at most {_MOST_NAME} characters")


class StopAnswer(Value, kw_only=True):
    """Answer to a stop, or to a release.

    Args:
        state: ``stopping``, ``already`` or ``ended``; ``released``.
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
