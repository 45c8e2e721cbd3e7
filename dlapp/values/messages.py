"""Messages between the ApplicationMaster, its tasks and the tools: HTTP/1.1 with JSON bodies.

    who    call                                    body -> answer
    task   POST /v1/tasks/<container id>/hello     Hello -> Assignment
    task   POST /v1/tasks/<container id>/report    Report -> Orders      (held back up to ``wait_s`` for news)
    task   GET  /v1/tasks/<container id>/roster    -> Roster             (if its orders name one)
    task   POST /v1/tasks/<container id>/stream    StreamAnswer -> a stream, with Upgrade (`dlapp.net.streams`)
    tool   GET  /v1/view                           -> ApplicationView
    tool   POST /v1/softkill, /v1/kill, /v1/release StopRequest -> StopAnswer
    tool   POST /v1/streams                        StreamRequest -> a stream, with Upgrade
    viewer GET  /v1/view, POST /v1/streams         as a tool, but streams to ports only
    modifier GET /v1/view, POST /v1/softkill, /v1/kill, /v1/release     as a tool
    anyone GET  /                                  -> a page, read-only
    anyone GET  /v1/view                           -> ApplicationView    (on a cluster: YARN's pages show as much)

Every other call carries ``Authorization: Bearer <token>``; a missing or wrong token is answered with 401 and changes
nothing. A token (`dlapp.values.access`) is derived from the application's secret and its purpose: every attempt can
verify it without having issued it. A task numbers its reports; a duplicate or late report changes nothing.

Unknown fields are ignored, so an older AM and a newer task understand each other.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

from dlapp.errors import SpecError
from dlapp.system.text import lazy_pattern
from dlapp.value import Value, field
from dlapp.values.access import STREAM_EXEC
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import LiveWorkspace
from dlapp.values.spec import (
    BY_DEFAULT,
    WHOLE_GPU,
    CheckpointSpec,
    Framework,
    InputSpec,
    OutputSpec,
    PayloadCache,
    Resources,
)
from dlapp.values.usage import USAGE_EVERY_S, Receipt, Usage

PREEMPTED, DECOMMISSIONED = TAKEN_AWAY = "preempted", "decommissioned"
"""Reasons of a soft stop (`Orders.reason`): the engine takes the container for others, or with its node."""
MAX_METRICS = 64
_MAX_HOSTS, _HOST = 32, lazy_pattern(r"[A-Za-z0-9_.:-]{1,255}")
_METRIC = lazy_pattern(r"[A-Za-z0-9_.:/@%+-]{1,64}")
_ADDRESS = lazy_pattern(r"[0-9A-Fa-f.:]{2,45}")
_BOARD_PATH = lazy_pattern(r"/[0-9a-f]{32}/")
MAX_PROBLEM_CHARACTERS = 300
MAX_NAMED = 8
"""Names of each kind that a container reports of what was not stored: an application may have ten thousand
containers, whose results its ApplicationMaster keeps."""
_MAX_NAME = 255
_MAX_METRIC = 1e18
"""Below the limit of `dlapp.values.serialization` for numbers."""
_MAX_STEPS = 1 << 62
MAX_WHY = 600
"""Maximum length of the reason why there is no checkpoint [characters]: it has a path, which can be longer."""


_RUN_SIZE = 1_000_000_000
"""Numbers of checkpoints that one start of a payload can store."""


def checkpoints_after(found: int, starts: int) -> int:
    """Return the offset of the checkpoint numbers of one start of a payload, distinct from all other starts.

    A payload on a node that its ApplicationMaster has lost may continue and store checkpoints while the next start runs
    on another node. So each start has its own range of numbers: ``starts`` grows with each, and ``found`` never
    decreases.

    Args:
        found: the greatest existing checkpoint number before this start; 0: none.
        starts: number of this start of the payload, from 1.
    """
    former = (found - 1) // _RUN_SIZE if found else -1
    return (former + starts) * _RUN_SIZE


def are_of_a_later_start(number: int, after: int) -> bool:
    """Return whether a checkpoint belongs to a later start than the one with offset ``after``."""
    return number > after + _RUN_SIZE


def address_name(attempt: int, control_url: str) -> str:
    """Return the file name by which an attempt publishes its control address in a directory.

    The address is in the name, so one listing gives it: reading a small file costs HDFS ten times as much.
    """
    return f"{attempt}-{control_url.encode().hex()}"


def latest_address(names: Iterable[str]) -> str | None:
    """Return the control address of the latest attempt with an `address_name` in a directory; None: there is none."""
    latest, address = 0, None
    for name in names:
        attempt, _, code = name.partition("-")
        try:
            number, url = int(attempt), bytes.fromhex(code).decode()
        except ValueError:
            continue  # not an address name
        if number > latest and url.startswith("http://"):
            latest, address = number, url
    return address


class Phase(Enum):
    """Phases of a task, in order."""

    STARTING = "starting"
    PULLING = "pulling"
    UNPACKING = "unpacking"
    FETCHING = "fetching"
    LEASING = "leasing"
    WAITING = "waiting"
    """Ready, and waiting at the gate of its gang, for its role's dependencies, or for the journal."""
    RUNNING = "running"
    STORING = "storing"
    RELEASING = "releasing"
    ENDED = "ended"


class Fault(Enum):
    """Cause of a task's end; it decides whether and where its index is retried."""

    NONE = "none"
    USER = "user"
    """The payload's exit code, or a script that cannot run: counts against the role's retries."""
    NODE = "node"
    """A GPU, the disk, Docker or the host failed: retried on another node, not counted."""
    SERVICE = "service"
    """A service that all nodes use is unavailable (ZooKeeper, HDFS, a registry): waited for, not counted."""
    DATA = "data"
    """Missing or unreadable input, an output that cannot be written: not retried."""
    STOPPED = "stopped"
    """dlapp ended the task itself."""


class Stop(Enum):
    """Manner in which a task ends its payload."""

    NO = "no"
    SOFT = "soft"
    """SIGTERM, then SIGKILL after the grace time; the output is stored."""
    NOW = "now"
    """SIGKILL; nothing is stored."""


class Hello(Value, kw_only=True):
    """First message of a task to an ApplicationMaster, also to a new attempt.

    Args:
        host: the task's host; on a cluster YARN's name of it.
        pid: the task's process id on that host.
        index: the CONTAINER_INDEX that the task already runs; None: it requests one.
        generation: gang generation of the task's phase.
    """

    container_id: ContainerId
    host: str
    pid: int
    index: int | None = None
    phase: Phase = Phase.STARTING
    generation: int = 0


class MpiWork(Value, kw_only=True):
    """Part of an assignment for the mpi framework.

    Args:
        head: the CONTAINER_INDEX that runs the program; its mpirun starts processes in all containers.
        slots: role -> how many processes mpirun starts in each of its containers, for the roles that take part.
    """

    head: int
    slots: dict[str, int]


class MpiLaunch(Value, kw_only=True):
    """One command of the head's mpirun for another container: it starts mpirun's daemon there.

    Args:
        number: the number of this launch, from 1 in each generation.
        index: the CONTAINER_INDEX that runs it.
        command: shell command; empty: the container already has it.
        directory: where mpirun was started, relative to the workspace.
    """

    number: int
    index: int
    command: str
    directory: str = "."


class LaunchState(Value, kw_only=True):
    """State of a launch in its container.

    Args:
        status: exit status of the command; None: it is running.
    """

    number: int
    status: int | None = None


class TrialWork(Value, kw_only=True):
    """Part of an assignment in a sweep: how the container runs trials (`Orders.trials`).

    Args:
        slots: how many trials run at a time.
        metric: name of the metric to compare.
        trial_time_s: time limit of one trial; None: no limit.
        milestones: steps whose reports must not be dropped, in order.
    """

    slots: int = 1
    metric: str
    trial_time_s: float | None = None
    milestones: tuple[int, ...] = ()


class TrialOrder(Value, kw_only=True):
    """One trial for a container.

    Args:
        number: number of the trial.
        try_number: counts its starts, from 1.
        parameters: each with its name and value (`dlapp.sweep.trial.TrialSpec`).
        stop: why the trial is to be soft-stopped; empty: it is not.
    """

    number: int
    try_number: int
    parameters: tuple[tuple[str, str], ...] = ()
    stop: str = ""


class TrialReport(Value, kw_only=True):
    """State of a trial in its container.

    Args:
        number, try_number: as in its order.
        points: step and value of the metric, in step order; thinned out, except for the milestones of `TrialWork`.
        reports: number of reports of the metric.
        problem: why a report of the metric was rejected; empty: none was.
        ran_s: run time of its payload.
        timed_out: it was ended because its time limit was reached.
        result: how it ended; None: it is running, being prepared or being stored.
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
    """Work of one container. Paths are relative to the workspace.

    Args:
        index: CONTAINER_INDEX; ``total`` is NUM_CONTAINERS.
        script: script in the workspace; empty: ``command`` runs, without a shell.
        workspace_archive: location of the packed workspace; empty: no workspace.
        parts: for each output, in order, the location of the directory for this container's part.
        spread, gpu, gpu_memory_mb, cuda_visible_devices: as in `Placement`.
        collect_gpus, check_node: as in `AppSpec`.
        framework: whose variables the payload gets.
        network: `AppSpec.network`.
        hang_timeout_s: `AppSpec.hang_timeout_s`.
        ready_by_port: the payload is ready as soon as its first port accepts connections.
        ready_path: additionally require a successful GET of this path; empty: not required.
        watches_use: report whether its ports have connections (`PayloadStatus.in_use`).
        checkpoint: as in `AppSpec`; ``target`` is the directory of the checkpoints that this container starts from.
        stores_checkpoints: it also stores them.
        checkpoint_start: number of this start of its payload, for checkpoint numbers (`checkpoints_after`).
        in_gang: it starts and restarts together with others.
        keep_failed: after a failure of its payload, report that first (`Report.failure`), as in a gang: the AM may
            order to keep the container.
        generation: gang generation that its payload starts with, unless orders name a later one.
        ports: `RoleSpec.ports`.
        has_roster: `AppSpec.has_roster`.
        mpi: None: another framework.
        board: workspace directory for a TensorBoard beside the payload; empty: no TensorBoard.
        sweep: run trials, each of which runs the program; None: run the program once.
        workdir: directory of the image at which ``command`` starts; empty: the workspace.
        gpu_capabilities: `AppSpec.capabilities_of` its role.
        needs_output: `AppSpec.needs_output`.
        master: index of the container whose address is ``{master}``; None: no role decides.
        live: `Submission.live`.
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
    gpu: str = WHOLE_GPU
    gpu_memory_mb: int = 0
    cuda_visible_devices: str = BY_DEFAULT
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
    workdir: str = ""
    gpu_capabilities: tuple[str, ...] = ()
    needs_output: bool = True
    master: int | None = None
    live: LiveWorkspace | None = None


class StoredOutput(Value, kw_only=True):
    """One output of one container, complete under its temporary name.

    Args:
        stray: it consists of the new and changed files of the workspace, because the script did not create the output.
            It is kept, but never committed.
    """

    name: str
    part: str
    files: int
    size_bytes: int
    stray: bool = False


class LeftOutEntry(Value, kw_only=True):
    """An entry of an output that was not stored.

    Args:
        name: its path in the workspace.
        reason: what it is: ``a FIFO``.
    """

    name: str
    reason: str


class NewFile(Value, kw_only=True):
    """A file outside of the outputs that a payload created or changed.

    Args:
        name: its path in the workspace.
    """

    name: str
    size_bytes: int


class NotStored(Value, kw_only=True):
    """Files and other entries that a payload wrote, and that were removed with its workspace.

    Args:
        entries: what was left out of the outputs, at most `MAX_NAMED`.
        more_entries: number of further ones.
        files: files outside of the outputs, the largest first, at most `MAX_NAMED`.
        more_files: number of further ones that were found.
        all_files_found: the search for files did not reach its limits.
    """

    entries: tuple[LeftOutEntry, ...] = ()
    more_entries: int = 0
    files: tuple[NewFile, ...] = ()
    more_files: int = 0
    all_files_found: bool = True

    def plus(self, other: NotStored) -> NotStored:
        """Return both, within the same limits."""
        entries = (*self.entries, *other.entries)
        files = tuple(sorted((*self.files, *other.files), key=lambda one: -one.size_bytes))
        return NotStored(
            entries=entries[:MAX_NAMED],
            more_entries=self.more_entries + other.more_entries + len(entries[MAX_NAMED:]),
            files=files[:MAX_NAMED],
            more_files=self.more_files + other.more_files + len(files[MAX_NAMED:]),
            all_files_found=self.all_files_found and other.all_files_found,
        )


class Evidence(Value, kw_only=True):
    """Line of a log that shows a cause.

    Args:
        file: ``stderr`` or ``stdout`` of the container.
        offset: offset of the line's first byte.
        line: the line's text without control characters, truncated if long.
    """

    file: str
    offset: int
    line: str


class Diagnosis(Value, kw_only=True):
    """Cause of a failure, as found by a rule (docs/failures.md).

    Args:
        rule: the rule's name.
        cause: one line for the user.
        fault: who is responsible.
        next_step: what the user can do.
        evidence: the log line that shows the cause; None: the exit status shows it.
        retry: True: retry, without counting against ``retries``; False: do not retry; None: ``retries`` decide.
        avoid_node: the next try should be on another node.
        is_consequence: it is a consequence of another process's failure.
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
        exit_code: the payload's exit code; None: it never ran, or a signal ended it.
        signal: the signal that ended the payload.
        message: one line for the user; empty on success.
        service: with SERVICE, the name of the unavailable service for users; with NODE, a service of this node alone,
            such as Docker, that recovers without a change of its setup.
        lost: with NODE: the node removed the container's directories, or the engine preempted it. It counts like a
            container taken away by YARN.
        is_closed: with NODE: the node refuses such containers until it is repaired, so one failure there is enough.
        left: the processes that were killed because the script had ended, as text: ``1 process, bash``; empty: none.
        unstored: directories of this machine with output that could not be stored.
        storing_failed: output could not be stored, for a reason that is not the program's; it is in ``unstored``, or
            gone.
        not_stored: what the payload wrote and was removed with the workspace; None: nothing.
        diagnosis: cause of a failure; None: no rule found one, or no failure.
        receipt: cost of the container.
    """

    fault: Fault
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    outputs: tuple[StoredOutput, ...] = ()
    service: str = ""
    lost: bool = False
    is_closed: bool = False
    left: str = ""
    unstored: tuple[str, ...] = ()
    storing_failed: bool = False
    not_stored: NotStored | None = None
    diagnosis: Diagnosis | None = None
    receipt: Receipt | None = None

    @property
    def exit_text(self) -> str:
        """Return the signal or exit code as text; empty if the payload exited with 0 or never ran."""
        if self.signal is not None:
            return f"killed by signal {self.signal}"
        return f"exit code {self.exit_code}" if self.exit_code else ""


class PayloadStatus(Value, kw_only=True):
    """Progress and metrics that a payload has reported (docs/payload.md, DLAPP_REPORT).

    Args:
        progress: completed share of its work, 0 to 1; None: not reported.
        metrics: latest value of each metric, at most `MAX_METRICS`.
        step: the step of the latest metrics.
        ready: the payload reported that it is ready.
        lines: number of lines accepted so far.
        in_use: whether its ports have connections, or had a moment ago; None: not known.

    Raises:
        SpecError: a value is out of range, or there are too many metrics.
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
        _check_step("step", self.step)
        if len(self.metrics) > MAX_METRICS:
            raise SpecError("metrics", f"has more than {MAX_METRICS} names")
        for name, value in self.metrics.items():
            if not _METRIC.fullmatch(name):
                raise SpecError("metrics", "has a name that is not 1 to 64 letters, digits or any of _ . : / @ % + -")
            if not -_MAX_METRIC <= value <= _MAX_METRIC:
                raise SpecError("metrics", f"has a value beyond {_MAX_METRIC:g}")


class CheckpointStatus(Value, kw_only=True):
    """Newest checkpoint of a container, as its task reports it.

    Args:
        number: of the checkpoint; 0: this start of the payload has neither stored nor restored one.
        step, epoch: of the checkpoint, from the payload's report or from names in it; None: not known.
        at_ms: when it was stored, or if it was restored, when its newest file was written [ms since 1970].
        why: why there is none, or no newer one, in one line; empty: the newest one is stored.

    Raises:
        SpecError: a value is out of range.
    """

    number: int = 0
    step: int | None = None
    epoch: int | None = None
    at_ms: int = 0
    why: str = ""

    def __post_init__(self) -> None:
        _check_step("step", self.step)
        _check_step("epoch", self.epoch)
        if len(self.why) > MAX_WHY:
            raise SpecError("why", f"is longer than {MAX_WHY} characters")


def _check_step(name: str, value: int | None) -> None:
    if value is not None and not 0 <= value < _MAX_STEPS:
        raise SpecError(name, f"is not a number from 0 to {_MAX_STEPS - 1}")


class PortPlace(Value, kw_only=True):
    """Address at which a port of a payload is reached without a stream through the ApplicationMaster.

    Args:
        hosts: names and addresses at which other hosts may reach it.
        loopback: its address within its host; empty: none.
        boot, network: boot id of the host and inode of its network namespace, which identify the host.

    Raises:
        SpecError: there are more hosts than one machine has addresses, or one is not a valid name.
    """

    hosts: tuple[str, ...] = ()
    loopback: str = ""
    boot: str = ""
    network: int = 0

    def __post_init__(self) -> None:
        if len(self.hosts) > _MAX_HOSTS or not all(map(_HOST.fullmatch, (*self.hosts, self.loopback or "0"))):
            raise SpecError("hosts", f"are more than {_MAX_HOSTS}, or one is neither a name nor an address")


class StreamOrder(Value, kw_only=True):
    """A stream that a task is to open to its ApplicationMaster.

    Args:
        number: order number, growing within one attempt.
        kind, head: as in `dlapp.values.access.StreamRequest`.
        for_viewer: requested by a user whom `view_acl` names, not by the owner.
        trial, try_number: the trial of a sweep for which it is, and its try; None: it is for the container.
    """

    number: int
    kind: str
    head: str
    for_viewer: bool = False
    trial: int | None = None
    try_number: int = 0

    @property
    def is_command(self) -> bool:
        """Return whether it is the stream of a command beside the payload."""
        return self.kind == STREAM_EXEC


class StreamAnswer(Value, kw_only=True):
    """Answer of a task to a `StreamOrder`: the connection that carries it becomes the stream.

    Args:
        container_id: container of the task.
        number: number of the order.
        error: why the stream was refused, for the user; empty: it was not.
        reason: as in `dlapp.net.streams.StreamRefused`.
    """

    container_id: ContainerId
    number: int
    error: str = ""
    reason: str = ""


class BoardStatus(Value, kw_only=True):
    """State of the TensorBoard beside a payload.

    Args:
        address, port: where it listens; port 0: it does not.
        path: unguessable path of its pages.
        problem: why it does not run, in one line; empty: it is running or starting.

    Raises:
        SpecError: a value is out of range.
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
        if len(self.problem) > MAX_PROBLEM_CHARACTERS or not self.problem.isprintable():
            raise SpecError("problem", "is not a line of text")


class Report(Value, kw_only=True):
    """Report of a task. The reports of one task are numbered from 1.

    Args:
        index: the CONTAINER_INDEX that it runs; an AM with another record answers with `Stop.NOW`.
        progress: completed share of the phase, 0 to 1; None: unknown. While RUNNING the payload's own.
        detail: short text about the phase.
        gpus: indices of its devices, in NVML's PCI order.
        address: IPv4 or IPv6 address for its peers; None: it has no peers, or does not know its address yet.
        ports: TCP ports of its host that are locked for it.
        roster_version: version of its roster.
        image: image of its payload, pinned: the digest at its registry, or its id.
        waits_for: the unavailable service that blocks this phase; empty: none.
        payload: what the payload has reported; None: nothing.
        usage: resource usage of the payload; None: it does not run, or was not measured since the last report.
        receipt: cost of the container so far; None: as for ``usage``.
        result: how the task ended; with it the phase is ENDED and no report follows.
        failure: how the payload of a gang member, or of a container that may be kept, failed. The task waits for
            orders: to prepare a later generation, to keep the container, or to stop; in the end this is its result.
        launches: from the head's task (`MpiWork`): the launches of its generation that it does not know to have ended.
        launch_states: from the other tasks: the states of the launches in their orders.
        generation: gang generation of the phase and the result.
        checkpoints: numbers of the complete checkpoints that the task found (a gang member: for this generation) and
            has stored since; None: it has not listed them yet.
        checkpoint: its newest checkpoint; None: it stores none.
        restored: number of the checkpoint with which its payload starts in this generation; 0: without one; None: not
            restored yet.
        not_whole: number of a checkpoint that orders named for this generation and that could not be restored; None:
            none.
        trials: in a sweep: the trials in its orders, until orders leave them out.
        board: the TensorBoard beside the payload; None: no TensorBoard.
        seen: number of the orders that the task has; the answer is held back until there are newer ones.
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
    checkpoint: CheckpointStatus | None = None
    restored: int | None = None
    not_whole: int | None = None
    trials: tuple[TrialReport, ...] = ()
    board: BoardStatus | None = None
    seen: int = 0
    wait_s: float = 0.0


class Orders(Value, kw_only=True):
    """Orders for a task.

    Args:
        attempt: number of the AM's attempt; a task rejects an attempt lower than one from which it had orders.
        number: grows with every change.
        go: the gate is open, the payload may start.
        generation: gang generation. A task with an earlier one ends its payload (SIGTERM, the grace time, SIGKILL),
            unpacks the workspace again and waits at the gate again; it keeps its image and its GPUs.
        stop: how to end; None: continue.
        why: reason of the stop as short text, for the task's result.
        reason: reason of the stop as one word, for programs (docs/payload.md, DLAPP_STOP).
        abort: short text if the payload hangs: it gets SIGABRT, on which Python dumps its stacks, and counts as failed.
        keep_s: the payload has failed permanently; the task releases its GPUs and keeps the rest this long for
            inspection, then sends its result [s]. 0: do not keep it.
        grace_s: seconds between SIGTERM and SIGKILL of a soft stop.
        report_every_s: the longest silence between two reports.
        usage_every_s: the least time between two reports with ``usage`` and ``receipt``.
        roster: version of the latest roster (``GET /v1/tasks/ID/roster``); 0: none. It grows with every change within
            one attempt.
        checkpoint: for a gang member: number of the checkpoint that its payload starts from; 0: none; None: not decided
            yet. While payloads run: the latest complete one.
        checkpoints_after: the task numbers its checkpoints above this (`checkpoints_after`).
        launches: launches for this container (`MpiLaunch`). A task starts each once; it lets one that orders omit run
            on.
        launch_states: for the head's task: the states of its launches in the other containers, as far as known.
        trials: in a sweep: the trials for the container. The task kills a running trial that orders omit, and its
            output is not used; an ended trial that orders omit is recorded. None: not known yet.
        trials_are_over: no further trial follows for this container, which ends.
        streams: streams to open, each once; one that orders omit is open, or its requester has gone.
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
    """Request of a tool for a soft-kill, a kill or a release.

    Raises:
        SpecError: ``user`` is not a valid name.
    """

    user: str
    unknown: dict[str, object] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 0 < len(self.user) <= _MAX_NAME or not self.user.isprintable():
            raise SpecError("user", f"is not the name of a user, of at most {_MAX_NAME} characters")


class StopAnswer(Value, kw_only=True):
    """Answer to a stop or a release request.

    Args:
        state: ``stopping``, ``already`` or ``ended``; ``released``.
        left_s: remaining grace time [s].
        message: text to show; empty: show `line`.
        commits: output exists and is committed at the end.
    """

    state: str
    left_s: float = 0.0
    message: str = ""
    commits: bool = True

    def line(self, application_id: str) -> str:
        """Return the result of a soft-kill as text for the user who requested it."""
        left = f"SIGKILL follows in {max(0.0, self.left_s):.0f} s at the latest"
        if self.message:
            return self.message
        if self.state == "ended":
            return f"{application_id} had already ended"
        if self.state == "already":
            return f"{application_id} is already being stopped; {left}"
        output = ", its output will be committed" if self.commits else ""
        return f"{application_id} is being stopped{output}; {left}"
