"""State of an application at one moment, as used by reports, views and outcomes.

The ApplicationMaster writes the `ApplicationView`; the engine adds its own facts (waiting, killed, died); the
tools show it. The states are YARN's on every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from dlapp.value import Value, field, fields, replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Diagnosis, NotStored, Phase
from dlapp.values.usage import Receipt, Usage
from dlapp.values.waiting import PendingRequest, Waiting


class State(Enum):
    """The engine's state of an application. Source: yarn_protos.proto, YarnApplicationStateProto."""

    NEW = "NEW"
    NEW_SAVING = "NEW_SAVING"
    SUBMITTED = "SUBMITTED"
    ACCEPTED = "ACCEPTED"
    RUNNING = "RUNNING"
    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"

    @property
    def ended(self) -> bool:
        """Return True if the state is final."""
        return self in (State.FINISHED, State.FAILED, State.KILLED)


class FinalStatus(Enum):
    """Final status of an application. Source: yarn_protos.proto, FinalApplicationStatusProto."""

    UNDEFINED = "UNDEFINED"
    SUCCEEDED = "SUCCEEDED"
    FAILED = "FAILED"
    KILLED = "KILLED"


class Cause(Enum):
    """Cause of the end of an application, finer than `FinalStatus`; it decides the exit code of ``--wait``."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    SOFT_KILLED = "soft-killed"
    KILLED = "killed"
    TIMED_OUT = "timed out"

    def state(self, *, by_itself: bool) -> State:
        """Return YARN's state of an application that ended for this cause.

        FINISHED covers every end that an ApplicationMaster reported itself, including failures; FAILED means that its
        ApplicationMaster died (not ``by_itself``). Source: yarn_protos.proto, YarnApplicationStateProto.
        """
        if self is Cause.KILLED:
            return State.KILLED
        return State.FAILED if self is Cause.FAILED and not by_itself else State.FINISHED


class TryView(Value, kw_only=True):
    """Earlier container of an index; the fields are those of `ContainerView`."""

    container_id: ContainerId
    attempt: int
    host: str = ""
    started_ms: int = 0
    finished_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    log_url: str = ""
    unstored: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    receipt: Receipt | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


_OF_TRY = tuple(name for name in fields(TryView) if name != "unknown")


class ContainerView(Value, kw_only=True):
    """Container that was started.

    Args:
        index: CONTAINER_INDEX.
        attempt: number of starts of this index, including this one.
        progress: share of the phase, 0 to 1, or None; while its payload runs, the payload's own.
        metrics, step, ready: the payload's last report (`dlapp.values.messages.PayloadStatus`).
        image: in Docker the digest of its image at the registry, or its id if it is from no registry.
        generation: number of gang restarts before its payload started, or is going to start.
        exit_code: the payload's exit code; None while it runs, or if a signal ended it.
        log_url: directory or page with its stdout and stderr.
        kept_until_ms: its program has failed, and the container is kept for inspection (``dlapp-exec``) until then [ms
            since 1970]; None: it is not kept.
        unstored: directories on ``host`` with output that could not be stored.
        not_stored: what its payload wrote and was removed with its workspace; None: nothing, or not known.
        diagnosis: cause of its failure; None: it did not fail, or no rule found the cause.
        usage: last measured resource usage of its payload; None: not measured.
        receipt: its cost; None: not known.
        earlier: the latest of the earlier containers of the index, oldest first.
    """

    container_id: ContainerId
    role: str
    role_index: int
    index: int
    attempt: int = 1
    host: str = ""
    phase: Phase = Phase.STARTING
    progress: float | None = None
    detail: str = ""
    metrics: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    ready: bool = False
    gpus: tuple[int, ...] = ()
    image: str = ""
    generation: int = 0
    started_ms: int = 0
    finished_ms: int | None = None
    exit_code: int | None = None
    signal: int | None = None
    message: str = ""
    kept_until_ms: int | None = None
    log_url: str = ""
    unstored: tuple[str, ...] = ()
    not_stored: NotStored | None = None
    diagnosis: Diagnosis | None = None
    usage: Usage | None = None
    receipt: Receipt | None = None
    earlier: tuple[TryView, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def of_try(self, number: int | None) -> ContainerView | None:
        """Return the container of start ``number`` of this index, from 1; None as number: the last one."""
        if number in (None, self.attempt):
            return self
        found = next((one for one in self.earlier if one.attempt == number), None)
        if found is None:
            return None
        return replace(self, **{name: getattr(found, name) for name in _OF_TRY}, phase=Phase.ENDED, earlier=())

    def as_try(self) -> TryView:
        """Return the part of this container's view that is kept when the index has another container."""
        return TryView(**{name: getattr(self, name) for name in _OF_TRY})


class ContainerDiagnosis(Value, kw_only=True):
    """Cause of an application's failure: that of the container with CONTAINER_INDEX ``index``."""

    index: int
    diagnosis: Diagnosis
    unknown: Mapping[str, Any] = field(default_factory=dict)


class IdleGpus(Value, kw_only=True):
    """GPUs that an application with an `dlapp.values.idle_guard` holds without using them.

    Args:
        containers: CONTAINER_INDEX of the containers whose GPUs are all idle, in order.
        since_ms: since when the GPUs of the first one are idle [ms since 1970].
        message: for people.
    """

    containers: tuple[int, ...]
    since_ms: int
    message: str
    unknown: Mapping[str, Any] = field(default_factory=dict)


class RestartView(Value, kw_only=True):
    """Restart of a gang.

    Args:
        role: first role of the gang.
        generation: the generation that began with the restart.
        at_ms: time of the restart [ms since 1970].
        container: CONTAINER_INDEX of the member that caused it; None: no single member.
        cause: one line for people, with that container's name.
    """

    role: str
    generation: int
    at_ms: int
    container: int | None = None
    cause: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


TENSORBOARD = "tensorboard"


class LinkView(Value, kw_only=True):
    """Web page that a container serves.

    Args:
        name: for people: a role and the number of the container in it, the NAME of a ``link.NAME``, or `TENSORBOARD`.
        url: URL of the page; empty: none now.
        container: CONTAINER_INDEX of the container.
        ready: whether its service is ready; None: not known.
        secret: anyone who knows the URL can see the page.
        problem: why there is no page; empty: no problem.
    """

    name: str
    url: str
    container: int
    ready: bool | None = None
    secret: bool = False
    problem: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


class CheckpointView(Value, kw_only=True):
    """Newest checkpoint of an application.

    Args:
        number: its number; None: there is none yet.
        step, epoch: of the checkpoint, as far as known.
        at_ms: when it was stored [ms since 1970]; None: there is none yet.
        why: why there is none, or no newer one; empty: the newest one is stored.
        container: CONTAINER_INDEX of its container, if each has its own; it is the one with the oldest.
    """

    number: int | None = None
    step: int | None = None
    epoch: int | None = None
    at_ms: int | None = None
    why: str = ""
    container: int | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


class OutputView(Value, kw_only=True):
    """One output.

    Args:
        committed: it is complete under ``target``.
        partial: location of the output of a failed application or of failed containers.
        replaced: location of what was at ``target`` before and was not written by dlapp.
        previous: the same for an earlier output of dlapp's own.
    """

    name: str
    target: str
    committed: bool = False
    partial: str | None = None
    replaced: str | None = None
    previous: str | None = None
    unknown: Mapping[str, Any] = field(default_factory=dict)


class OutputClaim(Value, kw_only=True):
    """One output to commit.

    Args:
        parts: name within the target ("" for the target itself) -> location of a container's stored part.
        failed: the same for containers that failed while the others continued: kept beside the target.
        keep_previous: as in `dlapp.values.spec.OutputSpec`.
        committed: number of trials that were committed separately, and are not among the parts.
    """

    target: str
    overwrite: bool
    parts: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)
    keep_previous: int = 0
    committed: int = 0


class CommitClaim(Value, kw_only=True):
    """Decision to commit an application's output, with the final status of the application.

    A process that finds it after the ApplicationMaster's death completes the commit; it decides nothing again.
    """

    attempt: int
    final_status: FinalStatus
    cause: Cause
    diagnostics: str
    outputs: tuple[OutputClaim, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)


class ApplicationView(Value, kw_only=True):
    """Application as its ApplicationMaster sees it, and after the end in its final state.

    Args:
        queue, priority: as set by the engine, which may lower a priority; no effect on one machine. ``priority`` None:
            the engine has no priorities.
        project, tags: set by the user to find it again; YARN makes both lower case.
        changes: differences between what was requested and what the engine gave, one line each.
        phase: short text on its progress: ``running 3 of 4``.
        cause: cause of its end; None while it runs.
        diagnostics: one line on its end, or on what it waits for.
        soft_kill_ends_ms: end of the grace time of a soft-kill [ms since 1970].
        as_of_ms: when this was written, if the ApplicationMaster could not be asked [ms since 1970]; None: it is
            current, or final.
        program: its program with the arguments, as a line of a shell, cut if long; of each role if they differ.
        source: the git commit of its workspace, and the number of changed files; empty: no repository.
        comment: the user's sentence on the run.
        network: Docker's network mode of its containers; empty: it is not in Docker.
        resumed_from: id of the application from whose checkpoint it resumes; empty: none.
        again_of: id of the application that it resubmits; empty: none.
        trials: number of trials of its sweep; None: not a sweep, or not known yet.
        containers: the last container of each index, by CONTAINER_INDEX.
        not_started: role -> its number of containers, for roles of which none was started.
        resumable: it has a complete checkpoint, from which ``--resume`` can continue after its end.
        checkpoint: its newest checkpoint, or why there is none; None: it has no ``[checkpoint]``.
        diagnosis: cause of its failure, from the container that failed first; consequences of other failures rank last.
        receipt: its cost so far, for all tries of all containers; None: not known.
        waiting: why it, or some of its containers, cannot start yet; None: all run, or it has ended.
        lacking: containers that its ApplicationMaster has requested and does not have.
        usable_gpus: hosts on which not all GPUs and slices may be leased -> number of those that may, by the ledger.
        idle: its unused GPUs; None: none, or no guard.
        restarts: latest restarts of its gangs, oldest first.
        links: pages served by its running containers.
        view_acl, modify_acl: users to whom the owner grants access, as in the file; empty: none.
        min_version: lowest format version that may write this.
    """

    application_id: ApplicationId
    attempt: int
    state: State
    final_status: FinalStatus = FinalStatus.UNDEFINED
    cause: Cause | None = None
    phase: str = ""
    diagnostics: str = ""
    username: str = ""
    appname: str = ""
    submitter: str = ""
    queue: str = "default"
    priority: int | None = None
    project: str = ""
    tags: tuple[str, ...] = ()
    changes: tuple[str, ...] = ()
    program: str = ""
    source: str = ""
    comment: str = ""
    network: str = ""
    resumed_from: str = ""
    again_of: str = ""
    submitted_ms: int = 0
    started_ms: int | None = None
    finished_ms: int | None = None
    total_containers: int = 0
    memory_mib: int = 0
    vcores: int = 0
    gcores: int = 0
    tracking_url: str = ""
    soft_kill_by: str = ""
    soft_kill_ends_ms: int | None = None
    as_of_ms: int | None = None
    trials: int | None = None
    containers: tuple[ContainerView, ...] = ()
    not_started: dict[str, int] = field(default_factory=dict)
    resumable: bool = False
    checkpoint: CheckpointView | None = None
    outputs: tuple[OutputView, ...] = ()
    diagnosis: ContainerDiagnosis | None = None
    receipt: Receipt | None = None
    waiting: Waiting | None = None
    lacking: tuple[PendingRequest, ...] = ()
    usable_gpus: dict[str, int] = field(default_factory=dict)
    idle: IdleGpus | None = None
    restarts: tuple[RestartView, ...] = ()
    links: tuple[LinkView, ...] = ()
    view_acl: str = ""
    modify_acl: str = ""
    min_version: int = 1
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return a summary: the full text is on the page."""
        end = f", {self.cause.value}" if self.cause else f": {self.phase}" if self.phase else ""
        return f"<ApplicationView {self.application_id} {self.state.value}{end}>"

    def containers_of_try(self, number: int | None) -> list[ContainerView]:
        """Return the containers of all indexes that were started that often (`ContainerView.of_try`), by index."""
        found = (one.of_try(number) for one in sorted(self.containers, key=lambda one: one.index))
        return [one for one in found if one is not None]
