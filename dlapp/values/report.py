"""State of an application at one moment, for all that show it: reports, views and outcomes.

The ApplicationMaster writes the `ApplicationView`; the engine adds what only it knows (waiting, killed, died) and the
tools show it. The states are YARN's on every engine.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from dlapp.value import Value, field, fields, replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.messages import Diagnosis, Phase
from dlapp.values.usage import Receipt, Usage
from dlapp.values.waiting import ContainerAsk, Waiting


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
        """True if no other state can follow."""
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
        """Return YARN's state of an application that has ended for this cause.

        FINISHED is whatever an ApplicationMaster itself told the engine, also that it failed; FAILED is an application
        whose ApplicationMaster died (not ``by_itself``). Source: yarn_protos.proto, YarnApplicationStateProto.
        """
        if self is Cause.KILLED:
            return State.KILLED
        return State.FAILED if self is Cause.FAILED and not by_itself else State.FINISHED


class TryView(Value, kw_only=True):
    """A container that an index had before its last one; the fields are those of `ContainerView`."""

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
    """One container that was started.

    Args:
        index: CONTAINER_INDEX.
        attempt: how many times this index was started, this one included.
        progress: share of the phase, 0 to 1, or None; while its payload runs, what the payload reports.
        metrics, step, ready: what the payload reported last (`dlapp.values.messages.PayloadStatus`).
        image: in Docker the digest of its image at the registry, or its id where it comes from none.
        generation: how often its gang had been restarted when its payload started, or is going to start.
        exit_code: the payload's; None while it runs, or where a signal ended it.
        log_url: directory or page under which its stdout and stderr are found.
        kept_until_ms: its program has failed, and it is kept until then for those who look into it (``dlapp-exec``) [ms
            since 1970]; None: it is not kept.
        unstored: directories on ``host`` with output that could not be stored.
        diagnosis: why it failed; None: it did not, or no rule names the cause.
        usage: what its payload used, as it was measured last; None: it was not.
        receipt: what it has cost; None: not known.
        earlier: the containers that the index had before, the latest of them, oldest first.
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
    diagnosis: Diagnosis | None = None
    usage: Usage | None = None
    receipt: Receipt | None = None
    earlier: tuple[TryView, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def of_try(self, number: int | None) -> ContainerView | None:
        """Return the container that was this index's at its start ``number``, from 1; None as number: the last."""
        if number in (None, self.attempt):
            return self
        found = next((one for one in self.earlier if one.attempt == number), None)
        if found is None:
            return None
        return replace(self, **{name: getattr(found, name) for name in _OF_TRY}, phase=Phase.ENDED, earlier=())

    def as_try(self) -> TryView:
        """Return what is kept of this container once the index has another."""
        return TryView(**{name: getattr(self, name) for name in _OF_TRY})


class ContainerDiagnosis(Value, kw_only=True):
    """Cause of an application's failure: that of the container with CONTAINER_INDEX ``index``."""

    index: int
    diagnosis: Diagnosis
    unknown: Mapping[str, Any] = field(default_factory=dict)


class IdleGpus(Value, kw_only=True):
    """GPUs that an application with an `dlapp.values.idle_guard` holds and does not use.

    Args:
        containers: CONTAINER_INDEX of those whose GPUs are all idle, in order.
        since_ms: since when those of the first one are [ms since 1970].
        message: for people.
    """

    containers: tuple[int, ...]
    since_ms: int
    message: str
    unknown: Mapping[str, Any] = field(default_factory=dict)


class RestartView(Value, kw_only=True):
    """Restart of a gang.

    Args:
        role: the first one of the gang.
        generation: the one that began with the restart.
        at_ms: when [ms since 1970].
        container: CONTAINER_INDEX of the member that was the reason; None: it was no single one.
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
    """Page that a container serves.

    Args:
        name: for people: a role and the number of the container in it, the NAME of a ``link.NAME``, or `TENSORBOARD`.
        url: of the page; empty: there is none now.
        container: CONTAINER_INDEX of the container.
        ready: whether its service is ready; None: nothing says so.
        secret: who knows the URL sees what is served there.
        problem: why there is no page; empty: nothing is wrong.
    """

    name: str
    url: str
    container: int
    ready: bool | None = None
    secret: bool = False
    problem: str = ""
    unknown: Mapping[str, Any] = field(default_factory=dict)


class OutputView(Value, kw_only=True):
    """One output.

    Args:
        committed: it is complete under ``target``.
        partial: where the output of an application or of containers that failed is kept.
        replaced: where that is kept which was at ``target`` before and was not written by dlapp.
        previous: the same for a former output of dlapp's own.
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
        parts: name within the target ("" for the target itself) -> location of what a container stored.
        failed: the same for containers that failed while the others went on: kept beside the target.
        keep_previous: as in `dlapp.values.spec.OutputSpec`.
        committed: how many trials have been committed by themselves, and are not among the parts.
    """

    target: str
    overwrite: bool
    parts: dict[str, str]
    failed: dict[str, str] = field(default_factory=dict)
    keep_previous: int = 0
    committed: int = 0


class CommitClaim(Value, kw_only=True):
    """The decision that an application's output is committed, and how the application has ended by that.

    A process that finds it after the ApplicationMaster's death finishes what it says: nothing is decided again.
    """

    attempt: int
    final_status: FinalStatus
    cause: Cause
    diagnostics: str
    outputs: tuple[OutputClaim, ...] = ()
    unknown: Mapping[str, Any] = field(default_factory=dict)


class ApplicationView(Value, kw_only=True):
    """An application as its ApplicationMaster sees it, and after the end as it left it.

    Args:
        queue, priority: as the engine has them, which may lower a priority; without effect on one machine. ``priority``
            None: the engine has none of it.
        project, tags: what the user wrote to find it again; YARN makes both lower case.
        changes: what the engine gave otherwise than it was asked for, a line each.
        phase: a few words on where it is: ``running 3 of 4``.
        cause: why it ended; None while it runs.
        diagnostics: one line on the end, or on what it waits for.
        soft_kill_ends_ms: when the grace time of a soft-kill is over [ms since 1970].
        as_of_ms: when this was written, where the ApplicationMaster could not be asked [ms since 1970]; None: it is of
            now, or of the end.
        network: Docker's network mode of its containers; empty: it is not in Docker.
        resumed_from: id of the application from whose checkpoint it goes on; empty: none.
        again_of: id of the application that is submitted once more by this one; empty: none.
        trials: how many trials its sweep has; None: it is no sweep, or that is not known yet.
        containers: the last one of each index, in the order of CONTAINER_INDEX.
        not_started: role -> how many containers it is to have, of the roles of which none was ever started.
        resumable: it has a whole checkpoint, with which ``--resume`` goes on when it has ended.
        diagnosis: why it failed, by the container that failed first; one that only followed from another comes last.
        receipt: what it has cost so far, with all tries of all containers; None: not known.
        waiting: why it, or some of its containers, cannot start yet; None: all run, or it has ended.
        lacking: the containers that its ApplicationMaster has asked for and does not have.
        usable_gpus: hosts that may not give out all of their GPUs -> how many they may, by the ledger.
        idle: the GPUs that are not used; None: none are, or there is no guard.
        restarts: the latest of its gangs, oldest first.
        links: the pages that containers serve which run now.
        view_acl, modify_acl: whom its owner lets in, as the file has it; empty: nobody.
        min_version: the least format version that may write this.
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
    outputs: tuple[OutputView, ...] = ()
    diagnosis: ContainerDiagnosis | None = None
    receipt: Receipt | None = None
    waiting: Waiting | None = None
    lacking: tuple[ContainerAsk, ...] = ()
    usable_gpus: dict[str, int] = field(default_factory=dict)
    idle: IdleGpus | None = None
    restarts: tuple[RestartView, ...] = ()
    links: tuple[LinkView, ...] = ()
    view_acl: str = ""
    modify_acl: str = ""
    min_version: int = 1
    unknown: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        """Return the essence: the whole has a page."""
        end = f", {self.cause.value}" if self.cause else f": {self.phase}" if self.phase else ""
        return f"<ApplicationView {self.application_id} {self.state.value}{end}>"

    def containers_of_try(self, number: int | None) -> list[ContainerView]:
        """Return the containers of all indexes that were started so often (`ContainerView.of_try`), by index."""
        found = (one.of_try(number) for one in sorted(self.containers, key=lambda one: one.index))
        return [one for one in found if one is not None]

    def ended(
        self, state: State, final_status: FinalStatus, cause: Cause | None, diagnostics: str, finished_ms: int | None
    ) -> ApplicationView:
        """Return this view after an end that the ApplicationMaster did not report: no container runs any more.

        Args:
            state, final_status, cause, diagnostics, finished_ms: of the end.
        """
        containers = tuple(
            one
            if one.phase is Phase.ENDED
            else replace(
                one, phase=Phase.ENDED, finished_ms=finished_ms, progress=None, message="ended with its application"
            )
            for one in self.containers
        )
        return replace(
            self,
            state=state,
            final_status=final_status,
            cause=cause,
            phase="",
            diagnostics=diagnostics,
            finished_ms=finished_ms,
            containers=containers,
            waiting=None,
            lacking=(),
            idle=None,
            links=(),
        )
