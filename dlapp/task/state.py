"""State of one task: the data that its steps share, and what they all do.

The steps are functions of it, by subject: `dlapp.task.steps` has their order.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dlapp.errors import Unreachable
from dlapp.node_policy import NodePolicy
from dlapp.runtime.payload import Reachable, ServiceAway
from dlapp.runtime.process import Guardian
from dlapp.storage.tree import TransferRate
from dlapp.system.clock import backoff_s
from dlapp.system.waits import Wait
from dlapp.task.environment import NODE_MANAGERS
from dlapp.task.interrupt import InterruptHandler, Stopped
from dlapp.task.logs import TaskLog
from dlapp.task.step_errors import step
from dlapp.values.launch_spec import RESERVED_FROM, LaunchSpec
from dlapp.values.messages import Assignment, Fault, Phase, StreamOrder

if TYPE_CHECKING:
    from dlapp.runtime.payload import PayloadPlace
    from dlapp.storage.cache.payload import PayloadCaches
    from dlapp.storage.inputs import PlannedInput
    from dlapp.task.data.checkpoints import TaskCheckpoints
    from dlapp.task.data.inputs import Inputs
    from dlapp.task.data.outputs import Outputs
    from dlapp.task.data.workspace_changes import WorkspaceChanges
    from dlapp.task.feed.feeds import TaskFeeds
    from dlapp.task.gpu_lease import GpuLease
    from dlapp.task.link.am_link import AmLink
    from dlapp.task.mpi.payload import MpiPayload
    from dlapp.task.rendezvous import Rendezvous
    from dlapp.task.streams.task_streams import TaskStreams
    from dlapp.task.sweep.worker import TrialWorker
    from dlapp.task.usage import UsageMeter
    from dlapp.values.spec import InputSpec

SERVICE_AGAIN_S = 1.0, 5.0
"""Pauses between two tries of a service that the payload needs to start: doubled from the first to the second."""
DIRECTORY_REMOVED = (
    "the directory of the container was removed from its node: its NodeManager was restarted without recovery"
)
_PROGRESS_EVERY_S = 0.5
_START = (Phase.STARTING, Phase.UNPACKING)
"""Phases that take CPU time; in the others a task waits, or its payload runs."""
T = TypeVar("T")

CheckNode = Callable[[Mapping[str, str], LaunchSpec], Mapping[str, Any]]


class Companion(Protocol):
    """A program beside the payload, such as TensorBoard: it may run while the payload does."""

    def serving(self) -> AbstractContextManager[None]:
        """Run it while the payload does."""

    def close(self) -> None:
        """Release what it holds. Idempotent."""


class TaskState:
    """State of one container's task.

    Args:
        container_dir: the container's directory.
        keep_fds: descriptors that the payload inherits.
        starting_fds: descriptors that are closed when the task has started.
        outer, channel: the guardian's.
        check_node: checks this node against a configuration, for dlapp-doctor; None if not available.
    """

    def __init__(
        self,
        container_dir: str,
        keep_fds: tuple[int, ...],
        starting_fds: tuple[int, ...],
        outer: int,
        channel: socket.socket,
        check_node: CheckNode | None = None,
    ) -> None:
        self.check_node = check_node
        self.container_dir, self.keep_fds, self._starting_fds = container_dir, keep_fds, starting_fds
        self.guardian = Guardian(outer, channel)
        self.guardian.spared = self.nvml_pids
        self.guardians = [self.guardian]
        self.stopper = InterruptHandler()
        self.log = TaskLog(os.path.join(container_dir, "dlapp.log"))
        self.lease: GpuLease | None = None
        self._former_lease: GpuLease | None = None
        self.planned: list[PlannedInput] = []
        self.mounted: list[tuple[InputSpec, str | None]] = []
        self.inputs: Inputs | None = None
        self.caches: PayloadCaches | None = None
        self.rendezvous: Rendezvous | None = None
        self.mpi: MpiPayload | None = None
        self.board: Companion | None = None
        self.cache_paths: dict[str, str] = {}  # of the host
        self.changes: WorkspaceChanges | None = None
        self.checkpoints: TaskCheckpoints | None = None
        self.feeds: TaskFeeds | None = None
        self.has_begun = False  # the payload
        self.running: Reachable | None = None  # the payload; it may have ended
        self.trials: TrialWorker | None = None  # of a sweep
        self.generation = 0
        self.directory_id = _identity(container_dir)
        self.waits_for = ""  # retried, and this is what it waited for
        self.step = partial(step, self.stopper)
        self.meter: UsageMeter
        self.link: AmLink
        self.streams: TaskStreams
        self.outputs: Outputs
        self.launch: LaunchSpec
        self.assignment: Assignment
        self.policy: NodePolicy

    @property
    def is_directory_removed(self) -> bool:
        """Return True if the container's directory was removed while in use, as by a NodeManager that starts without
        recovery.

        The payload may have failed because of that, or exited without its output; so its exit is no valid result.
        """
        return self.launch.on_a_cluster and _identity(self.container_dir) != self.directory_id

    @property
    def is_gang_restarted(self) -> bool:
        """Return True if the gang was restarted since this task's generation began."""
        return self.link.generation > self.generation

    @property
    def on_a_node(self) -> bool:
        """Return True if a NodeManager started this task."""
        return NODE_MANAGERS in os.environ or self.launch.on_a_cluster

    @property
    def payload_workspace(self) -> str:
        """Return the path of the workspace as the payload sees it."""
        if self.assignment.docker_image is None:
            live = self.assignment.live
            return os.path.join(self.container_dir, "workspace") if live is None else live.path
        from dlapp.runtime.docker.container_factory import WORKSPACE

        return WORKSPACE

    @property
    def payload_run_dir(self) -> str:
        """Return the path of DLAPP_DIR as the payload sees it."""
        if self.assignment.docker_image is None:
            return os.path.join(self.container_dir, "run")
        from dlapp.runtime.docker.container_factory import RUN

        return RUN

    @property
    def gpus(self) -> tuple[int, ...]:
        """Return the indices of the leased devices."""
        return self.lease.indexes if self.lease else ()

    @property
    def kill_grace_s(self) -> float:
        """Return the seconds between SIGTERM and SIGKILL."""
        grace_s = self.assignment.kill_grace_s if self.stopper.grace_s is None else self.stopper.grace_s
        most_s = self.policy.kill_grace_max_s
        return grace_s if most_s is None else min(grace_s, most_s)

    @property
    def log_limit_bytes(self) -> int:
        """Return the size limit of each log."""
        limit_bytes, most = self.assignment.log_limit_bytes, self.policy.log_limit_bytes
        return limit_bytes if most is None else min(limit_bytes, most)

    def reachable(self, order: StreamOrder) -> Reachable | None:
        """Return what a stream is for; None if it does not run. Thread-safe.

        Raises:
            StreamRefused: it is a trial that does not run.
        """
        return self.running if self.trials is None else self.trials.reachable(order)

    def payload_places(self) -> list[PayloadPlace]:
        """Return where the payloads run now: one, or those of the trials. Thread-safe."""
        running = [self.running] if self.trials is None else self.trials.programs()
        places = [one.place() for one in running if one is not None]
        return [one for one in places if one is not None]

    def end_start(self) -> None:
        """Tell the engine that the next task may start: this one will take little CPU time, or wait."""
        # Forgotten before they are closed: a signal that interrupts a step may raise in between.
        fds, self._starting_fds = self._starting_fds, ()
        for fd in fds:
            os.close(fd)

    def report_phase(self, phase: Phase, **details: Any) -> None:
        """Report a phase, and log it; see `AmLink.report_phase`."""
        if phase not in _START:
            self.end_start()
        self.meter.set_phase(phase)
        self.log.write(" ".join(filter(None, (phase.value, str(details.get("detail", ""))))))
        self.link.report_phase(phase, **{"gpus": self.gpus, "waits_for": self.waits_for, **details})

    def progress_reporter(self, *, with_rate: bool = False) -> Callable[[int, int], None]:
        """Return a function that a step calls with bytes done and the total; it reports twice a second.

        Args:
            with_rate: also report the rate and the remaining time.
        """
        link, phase, next_at = self.link, self.link.phase, time.monotonic() + _PROGRESS_EVERY_S
        pace = TransferRate(time.monotonic) if with_rate else None

        def report(done: int, total: int) -> None:
            nonlocal next_at
            if (now := time.monotonic()) >= next_at:
                next_at = now + _PROGRESS_EVERY_S
                share = min(1.0, done / total) if total else None
                detail = pace.text(done, total) if pace else ""
                link.report_phase(phase, progress=share, gpus=self.gpus, detail=detail, waits_for=self.waits_for)

        return report

    def retry_while_unavailable(self, ask: Callable[[], T], phase: Phase, service: str = "") -> T:
        """Call ``ask``, and retry while its service is away: the ApplicationMaster ends us when that takes too long.

        Docker is local to each node, so only a single node waits for it.

        Args:
            ask: the call; a failed call must leave nothing behind.
            phase: reported meanwhile.
            service: the service that is away if ``ask`` raises Unreachable; empty to raise that.
        """
        wait = Wait("", None)
        try:
            for pause_s in backoff_s(*SERVICE_AGAIN_S):
                try:
                    return ask()
                except ServiceAway as error:
                    if error.fault is Fault.NODE and self.launch.on_a_cluster:
                        raise
                    wait.what, wait.why = error.service, error.why
                except Unreachable as error:
                    if not service:
                        raise
                    wait.what, wait.why = service, str(error)
                wait.begin()
                self.report_phase(phase, detail=wait.text, waits_for=wait.what)
                time.sleep(pause_s)
        finally:
            wait.end()
        raise AssertionError

    def nvml_pids(self) -> Collection[int]:
        """Return the children of this process that are no payload's, and may never end."""
        lease = self.lease or self._former_lease
        return () if lease is None else lease.nvml_pids

    def forget_lease(self) -> None:
        """Have no GPUs any more; they are released."""
        self._former_lease, self.lease = self.lease, None

    def release_lease(self) -> None:
        """Release the GPUs; an error, after which the lease ends with this process, is logged. Idempotent."""
        if self.lease is not None:
            self.meter.end_lease()
            try:
                self.lease.release()
            except Stopped:
                raise
            except Exception as error:  # the result counts more
                self.log.warn(f"the GPUs could not be released: {error!r}")

    def release_devices(self) -> None:
        """Release the GPUs, and the descriptors that hold the application's devices on a single machine; its guardian
        holds them, too.

        Idempotent.
        """
        self.release_lease()
        self.guardian.close()
        reserved, self.keep_fds = self.keep_fds[RESERVED_FROM:], self.keep_fds[:RESERVED_FROM]
        for fd in reserved:
            os.close(fd)


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode number of a directory; None if it is missing."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
