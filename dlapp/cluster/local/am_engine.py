"""LocalAmEngine: containers on this machine, for one ApplicationMaster.

The whole request was reserved before the ApplicationMaster started, so containers are granted at once. Each is a task
process in its own session, with its own lock file, which all descendants of the task inherit: a container has ended
when that lock is free, not before. So the next attempt can detect which containers of this one still run.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Sequence

from dlapp.cluster.engine import (
    STATUS_UNKNOWN,
    ContainerEnd,
    ContainerRequest,
    Grant,
    Heartbeat,
    Registered,
    ResourceLimits,
    TaskLaunch,
    Wake,
)
from dlapp.cluster.local import outcome as outcomes
from dlapp.cluster.local.attempts import DEVICES_RETURNED
from dlapp.cluster.local.capacity import cores
from dlapp.cluster.local.runner.election import ensure_runner
from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import StateDir, file_url, is_locked, read_json, write_atomically
from dlapp.errors import DlappError, SpecError
from dlapp.locations import HdfsPlace
from dlapp.system import clock, locks
from dlapp.system.logs import log
from dlapp.system.logs.log_files import last_lines
from dlapp.system.machine import boot_id
from dlapp.system.processes.proc import open_process, start_time
from dlapp.system.processes.spawn import FIRST_KEPT, spawn
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.launch_spec import FILE_NAME, MACHINE, CacheSettings, DockerSettings, LaunchSpec, LedgerSettings
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.serialization import from_json, to_json
from dlapp.values.spec import AppSpec, Resources, Submission

AM_FILE = "am.json"
"""File in an application's directory with the address of its ApplicationMaster."""
TERM_GRACE_S = 2.0
"""Time between SIGTERM and SIGKILL to a task that is to stop; its guardian ends the payload in any case."""
STRAYS_AFTER_S, STRAYS_EVERY_S = 2.0, 5.0
"""How long leftover processes of a dead task may take to end by themselves before they are killed, and the interval
after that."""
STARTING_S = 2.0
"""How long a starting task may delay the start of others; a stopped one must not do so indefinitely."""
POLL_INTERVAL_S = (0.002, 0.1)
"""Poll interval for a container whose task has ended and whose last processes are ending."""
GRANT = "grant.json"
"""File in a container's directory with its allocation, for the next attempt."""
FIRST_CONTAINER = 2
"""As on YARN, where number 1 is the ApplicationMaster's own container."""


class _Container:
    """Granted container; ``pidfd`` is -1 until its task runs and after the task was reaped; ``starting`` is the
    descriptor whose end of file means that the task has started, -1 before and after."""

    def __init__(self, grant: Grant, directory: str) -> None:
        self.grant, self.directory = grant, directory
        self.pid, self.pidfd, self.starting = 0, -1, -1
        self.starting_until = 0.0
        self.launch: TaskLaunch | None = None
        self.stopping = False
        self.kill_at: float | None = None
        self.status: int | None = None  # exit status of its task, once that has ended
        self.poll_interval_s = POLL_INTERVAL_S[0]
        self.strays_at = 0.0


class LocalAmEngine:
    """The ApplicationMaster's side of the embedded engine.

    Until it fetches its input or runs its payload, a task only takes CPU time, most of it to load our modules. No more
    tasks than cores start at a time: more would only delay each other, and the first payload.

    Args:
        application_dir: the application's directory.
        attempt: 1, or more after an ApplicationMaster that died.
        alive_fd: descriptor of the application's lock; inherited by all started processes.
        hold_fds: descriptors that hold the application's devices; inherited as well.
        wake: called, from any thread, when a heartbeat would return events.
        is_crash_settlement: it only cleans up after an ApplicationMaster that died.
    """

    def __init__(
        self,
        application_dir: str,
        attempt: int,
        alive_fd: int,
        hold_fds: Sequence[int],
        wake: Wake,
        *,
        is_crash_settlement: bool = False,
    ) -> None:
        self._application_dir, self._attempt, self._wake = os.path.normpath(application_dir), attempt, wake
        self._is_crash_settlement = is_crash_settlement
        self._alive_fd, self._hold_fds = alive_fd, tuple(hold_fds)
        for fd in (alive_fd, *hold_fds):
            os.set_inheritable(fd, False)
        self._application = ApplicationId.from_text(os.path.basename(self._application_dir))
        engine = read_json(os.path.join(self._application_dir, "engine.json"))
        if engine is None:
            raise DlappError(f"{self._application_dir}/engine.json is not there")
        try:
            self._settings = RunnerSettings(engine["settings"])  # type: ignore[arg-type]
            shared = bool(engine["shared"])
            self.hdfs = from_json(HdfsPlace, engine["hdfs"]) if "hdfs" in engine else None
            """Return the HDFS that the application uses."""
        except (KeyError, TypeError, SpecError) as error:
            raise DlappError(f"{self._application_dir}/engine.json is damaged: {error}") from error
        self._umask = engine.get("umask", 0o022)
        own = _raise_open_files()
        self._caller = engine.get("caller", {"limits": {"NOFILE": own}})  # without: from an earlier dlapp
        top = os.path.dirname(os.path.dirname(self._application_dir))
        self._state = StateDir(top, shared=shared)
        self._total = self._reserved()
        self._free = list(self._total)
        self._asks: dict[int, ContainerRequest] = {}
        self._next = FIRST_CONTAINER
        self._containers: dict[ContainerId, _Container] = {}
        self._to_start: deque[_Container] = deque()
        self._starting, self._cores = 0, cores()
        self._lock = threading.Lock()
        self._ended: deque[ContainerEnd] = deque()
        self._start_failed: deque[ContainerEnd] = deque()
        self._started: deque[ContainerId] = deque()
        self._removals: list[int] = []
        self._orphaned: list[_Container] = []  # containers of an earlier attempt with processes but without a task
        self._reaper: threading.Thread | None = None
        self._nudge = (-1, -1)
        self._finished = False
        self._broken: BaseException | None = None

    def _reserved(self) -> tuple[int, int, int]:
        from dlapp.values.serialization import from_json

        found = read_json(os.path.join(self._application_dir, "submission.json"))
        spec = from_json(Submission, found).spec
        self._has_image = _has_image(spec)
        return spec.total()

    # ---- the engine's calls ----

    def register(self, control_url: str) -> Registered:
        """Publish the address of this attempt, which takes effect with that."""
        live = self._adopt() if self._attempt > 1 else ()
        pid = os.getpid()
        value = {
            "pid": pid,
            "start_time": start_time(pid),
            "boot_id": boot_id(),
            "attempt": self._attempt,
            "control_url": control_url,
        }
        outcomes.forget_death(self._application_dir)
        write_atomically(os.path.join(self._application_dir, AM_FILE), json.dumps(value))
        memory_mib, vcores, gcores = self._total
        largest = Resources(memory_mib=memory_mib, vcores=vcores, gcores=gcores)
        return Registered(
            limits=ResourceLimits(largest=largest), live=live, is_complete=True, single_node=True, boot_id=boot_id()
        )

    def heartbeat(
        self, asks: Sequence[ContainerRequest], releases: Sequence[ContainerId], progress: float
    ) -> Heartbeat:
        """Grant requests out of the reservation, and report ends."""
        if self._broken is not None:
            raise self._broken
        for container_id in releases:
            self._release(container_id)
        for ask in asks:
            self._asks[ask.request_id] = ask
        granted, refused = [], []
        for request_id, ask in list(self._asks.items()):
            if ask.count > 0 and not self._can_ever_fit(ask.resources):
                refused.append((request_id, f"{ask.resources} is more than was reserved for the application"))
                ask = ContainerRequest(request_id=request_id, count=0, resources=ask.resources)
            while ask.count > 0 and self._reserve_resources(ask.resources):
                granted.append(self._grant(ask))
                ask = ContainerRequest(
                    request_id=request_id, count=ask.count - 1, resources=ask.resources, placement=ask.placement
                )
            self._asks[request_id] = ask
        ended, failed = [], []
        while self._ended:
            ended.append(self._ended.popleft())
        while self._start_failed:
            failed.append(self._start_failed.popleft())
        started = [self._started.popleft() for _ in range(len(self._started))]
        return Heartbeat(
            granted=tuple(granted),
            started=tuple(started),
            ended=tuple(ended),
            start_failed=tuple(failed),
            refused=tuple(refused),
        )

    def check_start(self, container_id: ContainerId) -> None:
        """Do nothing: on one machine no files are fetched for a container."""

    def start(self, grant: Grant, launch: TaskLaunch) -> None:
        """Start a task in a granted container; a failure is reported by a later heartbeat."""
        with self._lock:
            container = self._containers.get(grant.container_id)
            if container is None or container.launch is not None:
                return  # released or started already: a repeated call
            container.launch = launch
            self._to_start.append(container)
        self._start_next()

    def stop(self, container_id: ContainerId) -> None:
        """End a container and all its processes. May be repeated."""
        with self._lock:
            container = self._containers.get(container_id)
        if container is None or container.stopping:
            return
        with self._lock:  # nor is it being started right now
            container.stopping = True
        if container.pidfd < 0:
            if container.status is None:  # granted, never started
                self._end(container, ContainerEnd(container_id=container_id, exit_status=-signal.SIGTERM))
            return
        self._signal(container, signal.SIGTERM)
        container.kill_at = time.monotonic() + TERM_GRACE_S
        self._nudge_reaper()

    def release_devices(self) -> None:
        """Release the application's devices that no task has leased. May be repeated.

        A file records that first, so that a next attempt does not wait for devices it does not need. While the disk is
        full, the devices are kept.
        """
        if not self._hold_fds:
            return
        try:
            write_atomically(os.path.join(self._application_dir, DEVICES_RETURNED), "")
        except OSError:
            return
        with self._lock:  # the reaper's thread may be starting a task with them
            returned, self._hold_fds = self._hold_fds, ()
        for fd in returned:
            os.close(fd)

    def log_tail(self, container_id: ContainerId, _log_url: str, stream: str, most_bytes: int) -> bytes | None:
        """Return the end of a log: the page has a secret path. See `AmEngine`.

        Args:
            container_id, _log_url, stream, most_bytes: see `AmEngine`.
        """
        return last_lines(
            os.path.join(self._application_dir, "containers", str(container_id), stream), most_bytes, most_bytes
        )

    def finish(self, final_status: FinalStatus, cause: Cause, diagnostics: str) -> bool:
        """Write the outcome, once, and let waiting applications start."""
        by_itself = not self._is_crash_settlement
        ended_ms = clock.now_ms() if by_itself else self.ended_ms()
        state = cause.state(by_itself=by_itself)
        outcome = outcomes.ended(state.value, final_status.value, cause.value, diagnostics, ended_ms)
        outcomes.write_outcome(self._application_dir, outcome)
        self._finished = True
        self._nudge_reaper()
        if self._reaper is not None:
            self._reaper.join()
            self._reaper = None
            for fd in self._nudge:  # not by the reaper: it may end before it is nudged
                os.close(fd)
        # The runner notices our end by itself; if it has died, the waiting applications need another one.
        with contextlib.suppress(DlappError, OSError):
            ensure_runner(self._state, self._settings, wake=False)
        return True

    def why_it_died(self) -> str:
        """Return why the previous ApplicationMaster died, in one line; for a clean-up process."""
        found: dict[str, object] = {}
        with contextlib.suppress(DlappError):  # a power failure may leave it empty or missing
            found = read_json(os.path.join(self._application_dir, "am.json")) or {}
        return outcomes.why_it_died(self._application_dir, str(found.get("boot_id", "")), boot_id())

    def ended_ms(self) -> int:
        """Return when the application ended [ms since 1970]; for a clean-up process: at the death or, if a commit had
        begun, now that it is finished."""
        if os.path.exists(os.path.join(self._application_dir, "commit.json")):
            return clock.now_ms()
        return outcomes.died_ms(self._application_dir)

    # ---- containers ----

    def _adopt(self) -> tuple[Grant, ...]:
        """Adopt the containers of earlier attempts that still have processes."""
        from dlapp.cluster.local.runner.orphans import end_containers, tasks_of

        above = os.path.join(os.path.realpath(self._application_dir), "containers")
        tasks = tasks_of(above, os.getuid())
        grants, others = [], []
        for name in sorted(os.listdir(above)):
            directory = os.path.join(above, name)
            if not is_locked(os.path.join(directory, "alive")):
                others.append(directory)
                continue
            grant = from_json(Grant, read_json(os.path.join(directory, GRANT)))
            amounts = grant.resources.times(1)
            self._free = [free - taken for free, taken in zip(self._free, amounts, strict=True)]
            container = self._containers[grant.container_id] = _Container(grant, directory)
            task, pidfd = tasks.get(directory), None
            if task is not None:
                pidfd = open_process(task.pid, task.started, os.getuid())
            if task is not None and pidfd is not None:
                container.pid, container.pidfd = task.pid, pidfd
            else:
                self._record_end(container, STATUS_UNKNOWN)
                self._orphaned.append(container)
            grants.append(grant)
        # The descriptor that the daemon closed.
        self._log_killed(end_containers(others, os.getuid(), self._state.runner_lock(os.getuid())))
        if grants:
            log.info(f"attempt {self._attempt} takes over {len(grants)} containers")
            self._nudge_reaper()
        return tuple(grants)

    def _can_ever_fit(self, requested: Resources) -> bool:
        return all(needed <= there for needed, there in zip(requested.times(1), self._total, strict=True))

    def _reserve_resources(self, requested: Resources) -> bool:
        amounts = requested.times(1)
        with self._lock:
            if any(needed > free for needed, free in zip(amounts, self._free, strict=True)):
                return False
            self._free = [free - needed for needed, free in zip(amounts, self._free, strict=True)]
        return True

    def _grant(self, ask: ContainerRequest) -> Grant:
        container_id = ContainerId(self._application, self._attempt, self._next)
        self._next += 1
        directory = os.path.join(self._application_dir, "containers", str(container_id))
        grant = Grant(
            container_id=container_id,
            request_id=ask.request_id,
            node=os.uname().nodename,
            resources=ask.resources,
            log_url=file_url(directory),
        )
        with self._lock:
            self._containers[container_id] = _Container(grant, directory)
        return grant

    def _release(self, container_id: ContainerId) -> None:
        with self._lock:
            container = self._containers.get(container_id)
            unstarted = container is not None and container.pidfd < 0 and container.status is None
            if container is not None and unstarted:
                container.stopping = True
        if container is not None and unstarted:
            self._return_resources(container)
        else:
            self.stop(container_id)

    def _return_resources(self, container: _Container) -> None:
        with self._lock:
            if self._containers.pop(container.grant.container_id, None) is None:
                return
            amounts = container.grant.resources.times(1)
            self._free = [free + returned for free, returned in zip(self._free, amounts, strict=True)]

    def _end(self, container: _Container, end: ContainerEnd) -> None:
        self._return_resources(container)
        self._ended.append(end)
        self._wake()

    def _start_next(self) -> None:
        """Start the containers whose turn it is; callable from any thread."""
        while True:
            with self._lock:
                if not self._to_start or self._starting >= self._cores:
                    return
                container = self._to_start.popleft()
                if container.stopping or container.launch is None:
                    continue
                problem: OSError | None = None
                try:
                    # Under the lock, so that a concurrent end finds it either started or not to be started.
                    self._spawn(container, container.launch)
                except OSError as error:
                    problem = error
                else:
                    self._starting += 1
            if problem is None:
                self._started.append(container.grant.container_id)
                self._nudge_reaper()
                continue
            self._return_resources(container)
            why = f"the task could not be started: {problem.strerror}"
            end = ContainerEnd(
                container_id=container.grant.container_id, exit_status=-1, diagnostics=why, node_fault=True
            )
            self._start_failed.append(end)
            self._wake()

    def _end_start(self, container: _Container) -> None:
        """Count a task as started if it has, or has ended, or takes too long; start further ones."""
        os.close(container.starting)
        container.starting = -1
        with self._lock:
            self._starting -= 1
        self._start_next()

    def _spawn(self, container: _Container, launch: TaskLaunch) -> None:
        directory = container.directory
        os.mkdir(directory, 0o700)
        settings = self._settings
        # Released devices are no longer reserved: a container that starts again then makes its own reservation.
        is_returned = self._total[2] > 0 and not self._hold_fds
        reserved_for = "" if is_returned else str(self._application)
        spec = LaunchSpec(
            launch.container_id,
            launch.control_url,
            launch.token,
            launch.env,
            launch.environment,
            DockerSettings(settings.docker_host, settings.docker_network, settings.docker_gpu_mode, settings.lock_dir),
            ledger=launch.ledger
            or LedgerSettings(MACHINE, settings.lock_dir, settings.docker_host, application=reserved_for),
            cache=CacheSettings(
                settings.cache_limit_bytes,
                settings.cache_age_s,
                directory=self._state.input_cache(os.geteuid()),
                payload_limit_bytes=settings.payload_cache_limit_bytes,
                payload_directory=self._state.payload_caches(os.geteuid()),
            ),
            hdfs=self.hdfs,
            am_file=os.path.join(self._application_dir, AM_FILE),
            unstored=self._state.unstored(os.geteuid()),
            registry_credentials=launch.registry_credentials,
        )
        write_atomically(os.path.join(directory, GRANT), json.dumps(to_json(container.grant)), mode=0o600)
        write_atomically(os.path.join(directory, FILE_NAME), json.dumps(to_json(spec)), mode=0o600)
        alive = os.open(os.path.join(directory, "alive"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        starting, started = -1, -1
        try:
            locks.try_lock(alive)
            if self._state.shared:
                os.chmod(directory, 0o2750)  # only now: a reader's lock would have blocked ours
            starting, started = os.pipe()
            # In the order given by `RESERVED_FROM` of the launch specification.
            keep = [alive, self._alive_fd, *self._hold_fds, started]
            *numbers, last = (str(FIRST_KEPT + place) for place in range(len(keep)))
            arguments = [*settings.program, "task", "--engine", "local", "--home", directory]
            arguments += ["--keep-fds", ",".join(numbers), "--starting-fd", last]
            arguments += ["--umask", f"{self._umask:o}", "--caller", json.dumps(self._caller)]
            pid = spawn(arguments, keep=keep, log=os.path.join(directory, "dlapp.log"))
        except OSError:
            if starting >= 0:
                os.close(starting)
            raise
        finally:
            os.close(alive)
            if started >= 0:
                os.close(started)
        container.pid, container.starting = pid, starting
        container.starting_until = time.monotonic() + STARTING_S
        container.pidfd = os.pidfd_open(pid)  # our child: the pid is not reused until it is reaped

    def _signal(self, container: _Container, number: int) -> None:
        # Under the lock the reaper does not close the descriptor, whose number another process would get.
        with self._lock, contextlib.suppress(OSError):
            signal.pidfd_send_signal(container.pidfd, number)

    # ---- ends ----

    def _nudge_reaper(self) -> None:
        if self._reaper is None:
            if self._finished:
                return
            self._nudge = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
            self._reaper = threading.Thread(target=self._run_reaper, name="am-reaper", daemon=True)
            self._reaper.start()
        with contextlib.suppress(BlockingIOError):
            os.write(self._nudge[1], b"\0")

    def _run_reaper(self) -> None:
        try:
            self._reap()
        except BaseException as error:  # this thread reports all ends: let the next heartbeat raise the error
            self._broken = error
            self._wake()

    def _reap(self) -> None:
        poll = select.poll()
        poll.register(self._nudge[0], select.POLLIN)
        watched: dict[int, _Container] = {}
        starting: dict[int, _Container] = {}
        ending = self._orphaned
        while not self._finished:
            with self._lock:
                new = [one for one in self._containers.values() if one.pidfd >= 0 and one.pidfd not in watched]
            for container in new:
                watched[container.pidfd] = container
                poll.register(container.pidfd, select.POLLIN)
                if container.starting >= 0:
                    starting[container.starting] = container
                    poll.register(container.starting, select.POLLIN)
            for fd, _ in poll.poll(self._pause_ms(watched, starting, ending)):
                if fd == self._nudge[0]:
                    with contextlib.suppress(BlockingIOError):
                        os.read(fd, 4096)
                elif fd in starting:
                    starting[fd].starting_until = 0.0
                else:
                    poll.unregister(fd)
                    container = watched.pop(fd)
                    self._collect(container)
                    ending.append(container)
            now = time.monotonic()
            for fd in [fd for fd, one in starting.items() if one.starting_until <= now]:
                poll.unregister(fd)
                self._end_start(starting.pop(fd))
            for container in list(watched.values()):
                if container.kill_at is not None and container.kill_at <= now:
                    container.kill_at = None
                    self._signal(container, signal.SIGKILL)
            ending = [container for container in ending if not self._has_ended(container)]

    def _pause_ms(
        self, watched: dict[int, _Container], starting: dict[int, _Container], ending: list[_Container]
    ) -> float | None:
        now = time.monotonic()
        pauses = [one.starting_until - now for one in starting.values()]
        pauses += [one.kill_at - now for one in watched.values() if one.kill_at is not None]
        pauses += [one.poll_interval_s for one in ending]
        return max(0.0, min(pauses) * 1000) if pauses else None

    def _collect(self, container: _Container) -> None:
        status = 0
        try:
            found = os.waitid(os.P_PIDFD, container.pidfd, os.WEXITED)
        except ChildProcessError:
            status = STATUS_UNKNOWN  # it is the child of an earlier attempt
        else:
            if found is not None:
                status = found.si_status if found.si_code == os.CLD_EXITED else -found.si_status
        self._record_end(container, status)  # first: without a status and a descriptor it would never have started
        with self._lock:
            os.close(container.pidfd)
            container.pidfd = -1

    @staticmethod
    def _record_end(container: _Container, status: int) -> None:
        """Record that the task of a container has ended; its leftover processes may still end by themselves."""
        container.status = status
        container.strays_at = time.monotonic() + STRAYS_AFTER_S

    def _end_strays(self, container: _Container) -> None:
        """End the payload of a non-root user whose task and guardians were all killed."""
        now = time.monotonic()
        if now < container.strays_at:
            return
        container.strays_at = now + STRAYS_EVERY_S
        from dlapp.cluster.local.runner.orphans import end_containers

        killed = end_containers([container.directory], os.getuid(), self._state.runner_lock(os.getuid()))
        self._log_killed(killed, f"{container.grant.container_id}: ")

    @staticmethod
    def _log_killed(pids: Sequence[int], what: str = "") -> None:
        if pids:
            names = ", ".join(f"process {pid}" for pid in pids)
            log.info(f"{what}killed orphaned processes: {names}")

    def _start_container_removal(self) -> None:
        """Have a killed task's leftover Docker container removed: its payload has ended, by its lifeline."""
        self._removals = [pid for pid in self._removals if os.waitpid(pid, os.WNOHANG)[0] == 0]
        arguments = [*self._settings.program, "cleanup", "--application", str(self._application)]
        arguments += ["--host", self._settings.docker_host]
        try:
            self._removals.append(spawn(arguments, log=os.path.join(self._application_dir, "am.log")))
        except OSError as error:
            log.warning(f"its containers could not be listed: {error}")

    def _has_ended(self, container: _Container) -> bool:
        if is_locked(os.path.join(container.directory, "alive")):
            container.poll_interval_s = min(2 * container.poll_interval_s, POLL_INTERVAL_S[1])
            self._end_strays(container)
            return False
        status = container.status or 0
        if status < 0 and self._has_image:
            self._start_container_removal()
        diagnostics = ""
        if status != 0:
            # The status has its own text; add what it does not contain.
            diagnostics = outcomes.last_error(os.path.join(container.directory, "dlapp.log"))
        container_id = container.grant.container_id
        self._end(container, ContainerEnd(container_id=container_id, exit_status=status, diagnostics=diagnostics))
        return True


def _has_image(spec: AppSpec) -> bool:
    return any(image is not None for image in (spec.docker_image, *(role.docker_image for role in spec.roles)))


def _raise_open_files() -> int:
    """Raise this process's limit of open files as far as possible; return the previous limit, for payloads.

    Each container needs about four files. Payloads keep the lower limit: select(2) fails above 1,023.
    """
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return soft
