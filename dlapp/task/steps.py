"""The steps of one container, in their order, and how each of them may fail.

    STARTING   hello, what there is to do, and whether its input is there
    PULLING    the image (Docker only)
    UNPACKING  the workspace
    FETCHING   input, into the workspace
    LEASING    GPUs from the ledger, where the container has any; then the container is made
    WAITING    for the gate of the role's gang, and for what the role depends on
    RUNNING    the payload
    STORING    output, under a temporary name beside its target
    RELEASING  the workspace removed, the GPUs given back
    ENDED      with the result

A stop before the payload runs cuts the step off; what it left is removed like everything else. Whatever happens, the
result is the last thing the ApplicationMaster hears, and it hears it when nothing of the container is left to do.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from dlapp.errors import Denied, DlappError, NotFound, Unreachable, UsageError
from dlapp.launch_spec import FILE_NAME, RESERVED_FROM, LaunchSpec, LedgerSettings
from dlapp.locations import HDFS, HdfsPlace, shown
from dlapp.messages import Assignment, Fault, Phase, Stop, StoredOutput, TaskResult
from dlapp.node_policy import FILE as NODE_FILE
from dlapp.node_policy import NodePolicy, node_policy
from dlapp.runtime.payload import Payload, PayloadDevice, PayloadError, PayloadExit, Running, ServiceAway
from dlapp.runtime.process import Guardian, PlainRun
from dlapp.serialization import from_json
from dlapp.spec import OnFailure, OutputSpec
from dlapp.storage.api import DiskFull, Moved
from dlapp.storage.open import open_output
from dlapp.storage.tree import Pace, remove_tree
from dlapp.system import log_times
from dlapp.system.clock import backoff_s
from dlapp.system.disk_space import FULL, mount_point
from dlapp.system.log_times import LogTimesWriter
from dlapp.system.owners import user_name
from dlapp.system.waits import FILE_SYSTEM, Wait
from dlapp.task.am_address import finder
from dlapp.task.am_link import AmLink
from dlapp.task.environment import NODE_MANAGERS, node_name, payload_environment
from dlapp.task.inputs import Inputs
from dlapp.task.interrupt import InterruptHandler, Stopped
from dlapp.task.logs import LogCap, TaskLog
from dlapp.task.unpack import unpack
from dlapp.task.workspace_changes import WorkspaceChanges, closest, describe
from dlapp.value import replace

if TYPE_CHECKING:
    from dlapp.gpuid.ledger import Lease, Ledger
    from dlapp.storage.cache.payload import PayloadCaches
    from dlapp.storage.inputs import PlannedInput
    from dlapp.task.gpu_health import LeasedDevices

RESULT_DEADLINE_S = 60.0
"""How long the result is tried to be brought to an ApplicationMaster that does not answer, or to the next one."""
RESULT_ON_A_CLUSTER_S = 7 * 86_400.0
"""There the next one may have to wait for its turn, and until it is there nobody else knows what this one did. Should
there be none any more, YARN ends the container."""
_STORE_AGAIN_S = 1.0, 30.0
"""Between two tries to store what cannot be stored just now: doubled from the first to the second."""
_SERVICE_AGAIN_S = 1.0, 5.0
"""The same for a service that the payload needs to start."""
_REACH_S = 2.0
"""How long ZooKeeper or a NameNode may take to answer before it counts as away."""
T = TypeVar("T")
_HOME_GONE = "the directory of the container was removed from its node: its NodeManager was restarted without recovery"
_DOCKER_ANSWER_S = 60.0
_PROGRESS_EVERY_S = 0.5
_TAKEN_EVERY_S = 0.005


class StepFailed(Exception):
    """A step failed, with the fault and the line for the user; ``service`` as in `TaskResult`."""

    def __init__(self, fault: Fault, message: str, *, service: str = "") -> None:
        super().__init__(message)
        self.fault, self.service = fault, service


CheckNode = Callable[[Mapping[str, str], LaunchSpec], Mapping[str, Any]]


class Task:
    """One container's task.

    Args:
        home: the container's directory.
        keep_fds: descriptors that the payload inherits.
        outer, channel: the guardian's.
        check_node: checks this node by a configuration, for dlapp-doctor; None: it is not there.
    """

    def __init__(
        self,
        home: str,
        keep_fds: tuple[int, ...],
        outer: int,
        channel: socket.socket,
        check_node: CheckNode | None = None,
    ) -> None:
        self._check_node = check_node
        self._home, self._keep_fds = home, keep_fds
        self._guardian = Guardian(outer, channel)
        self._stopper = InterruptHandler()
        self._log = TaskLog(os.path.join(home, "dlapp.log"))
        self._note = self._log.note
        self._ledger: Ledger | None = None
        self._lease: Lease | None = None
        self._devices: LeasedDevices | None = None
        self._planned: list[PlannedInput] = []
        self._inputs: Inputs | None = None
        self._caches: PayloadCaches | None = None
        self._cache_paths: dict[str, str] = {}  # of the host
        self._ran_s = 0.0  # the payload
        self._changes: WorkspaceChanges | None = None
        self._has_begun = False  # the payload
        self._home_id = _identity(home)
        self._stays: list[str] = []  # of the workspace, because it could not be brought to any other place
        self._waits_for = ""  # it is tried again, and this is what it waited for
        self._unstored: list[str] = []  # directories with such output
        self._link: AmLink
        self._launch: LaunchSpec
        self._assignment: Assignment
        self._policy: NodePolicy

    def run(self) -> int:
        """All steps. Returns the exit code: 0 when the ApplicationMaster has the result."""
        with open(os.path.join(self._home, FILE_NAME), encoding="utf-8") as file:
            self._launch = launch = from_json(LaunchSpec, json.load(file))
        if launch.hdfs is not None and launch.hdfs.certificates:
            from dlapp.net.http import trust

            trust(launch.hdfs.certificates)  # its NodeManager, too
        find, alone_s, end = finder(launch, self._log.warn), None if launch.on_a_cluster else launch.alone_s, None
        if launch.on_a_cluster:
            from dlapp.task.application_end import end_watch

            end = end_watch(launch, find)
        with AmLink(
            launch.control_url,
            launch.token,
            launch.container_id,
            self._stopper,
            self._log.warn,
            find,
            alone_s,
            end,
        ) as link:
            self._link = link
            try:
                with self._stopper.interruptible():
                    self._assignment = link.hello()
            except (DlappError, Stopped) as error:
                self._log.warn(f"no work: {error}")
                self._clean_up()
                return 1
            one = self._assignment
            self._note(f"{one.application_id} attempt {one.attempt}: {one.role} {one.role_index}, index {one.index}")
            link.begin(one.index)
            result = self._all_steps()
            self._note(f"ended: {_words_on(result)}")
            if self._stopper.from_outside and result.fault is Fault.STOPPED:
                if launch.on_a_cluster:
                    # The node ended this container. Why (its memory, a preemption) YARN says, and the index is judged
                    # by that; a word of ours would only come first.
                    return 128 + signal.SIGTERM
                if not link.has_master():
                    return 1  # and there will be none: this task was ended in place of one
            if link.why_over:
                return 1  # nobody is left to be told
            deadline_s = RESULT_ON_A_CLUSTER_S if launch.on_a_cluster else RESULT_DEADLINE_S
            return 0 if link.finish(result, deadline_s) else 1

    def _all_steps(self) -> TaskResult:
        try:
            result = self._work()
        except StepFailed as error:
            result = TaskResult(fault=error.fault, message=str(error), service=error.service)
        except Stopped as error:
            result = TaskResult(fault=Fault.STOPPED, message=str(error))
        except Exception as error:
            # A bug of ours: the log has its trace, the user a line, the index another node.
            import traceback

            self._log.note(traceback.format_exc(), "ERROR")
            result = TaskResult(fault=Fault.NODE, message=f"the task failed: {error!r} (see dlapp.log)")
        if self._is_home_gone and result.fault is not Fault.STOPPED:
            result = TaskResult(fault=Fault.NODE, message=_HOME_GONE, lost=True)
        if self._unstored:
            result = replace(result, unstored=tuple(self._unstored))
        self._link.say(Phase.RELEASING, detail="removing the workspace")
        self._clean_up()
        return result

    def _work(self) -> TaskResult:
        with self._step("this node's rules cannot be read", node=True):
            self._policy = node_policy()
        if self._assignment.collect_gpus:
            return self._work_without_payload("the GPU ledger could not be cleaned up", self._collected_gpus)
        if self._assignment.check_node:
            return self._work_without_payload("the node could not be checked", self._checked_node)
        self._refuse_root()
        self._look_at_inputs()
        self._try_outputs()
        self._get_image()
        self._hold_caches()
        self._fill_workspace()
        self._lease_gpus()
        run = self._made_ready()
        try:
            self._wait()
            with self._devices.watched(self._stopper.wake) if self._devices else nullcontext():
                began = time.monotonic()
                ended, soft, cut = self._run(run)
                self._ran_s = time.monotonic() - began
                device = self._devices.why_it_failed() if self._devices and ended.exit_code != 0 else ""
        finally:
            run.close()
        result = self._result_of(ended, soft, cut, device)
        if self._stopper.wanted is Stop.NOW or self._is_home_gone or self._link.why_over:
            return result
        return self._with_outputs(result)

    @property
    def _is_home_gone(self) -> bool:
        """True if the container's directory was removed under it, as by a NodeManager that starts without recovery.

        The payload may have failed by that, or ended well without its output; so what it says of its end is no result.
        """
        return self._launch.on_a_cluster and _identity(self._home) != self._home_id

    def _refuse_root(self) -> None:
        """Refuse to run a program as root on a cluster, in Docker or not, unless the node's operator allows it.

        On one machine root is the submitter; on a node it only means that the NodeManager runs as root.
        """
        if os.getuid() == 0 and self._on_a_node and not self._policy.docker.root:
            where = "a payload in Docker" if self._assignment.docker_image is not None else "the program"
            raise StepFailed(Fault.NODE, f"{where} would be root on this node (docker.root of {NODE_FILE})")

    @property
    def _on_a_node(self) -> bool:
        return NODE_MANAGERS in os.environ or self._launch.on_a_cluster

    def _work_without_payload(self, problem: str, work: Callable[[], Mapping[str, Any]]) -> TaskResult:
        """Do something on this node; what came of it is what would be the payload's standard output.

        Args:
            problem: begins the message if it fails.
            work: returns what is written, as JSON.
        """
        self._wait()
        self._say(Phase.RUNNING)
        with self._step(problem, node=True):
            for name, text in (("stdout", json.dumps(work()) + "\n"), ("stderr", "")):
                with open(os.path.join(self._home, name), "w", encoding="utf-8") as file:
                    file.write(text)
        return TaskResult(fault=Fault.NONE, exit_code=0)

    def _collected_gpus(self) -> Mapping[str, Any]:
        from dlapp.gpuid.factory import open_ledger
        from dlapp.gpuid.ledger import reclaim_all

        ledger = open_ledger(self._ledger_settings)
        try:
            return {"host": ledger.host, "leases": reclaim_all(ledger)}
        finally:
            ledger.close()

    def _checked_node(self) -> Mapping[str, Any]:
        if self._check_node is None:
            raise UsageError("this task has no checks of its node")
        return self._check_node(json.loads(self._assignment.args[0]), self._launch)

    # ---- before the payload ----

    def _get_image(self) -> None:
        """Have Docker and the image first: a pull takes long, or has to wait for its registry."""
        image = self._assignment.docker_image
        if image is None:
            return
        from dlapp.runtime.container_factory import explained, open_docker
        from dlapp.runtime.images import make_sure_of_image

        def ask() -> None:
            with explained(settings.host, f"image {image}"):
                make_sure_of_image(docker, image, settings.lock_dir, self._note, self._teller())

        settings = self._launch.docker
        self._say(Phase.PULLING, detail=image)
        with self._step("the image could not be pulled", node=True):
            docker = open_docker(settings.host, _DOCKER_ANSWER_S)
            self._wait_out(ask, Phase.PULLING)

    def _wait_out(self, ask: Callable[[], T], phase: Phase, service: str = "") -> T:
        """Do what needs a service, again until it is there: the ApplicationMaster ends us when that takes too long.

        Docker, which each node has for itself, is waited for on a single node alone.

        Args:
            ask: does it; nothing is left of a call that fails.
            phase: reported meanwhile.
            service: the one that is away where ``ask`` raises Unreachable; empty: that is raised.
        """
        wait = Wait("", None)
        try:
            for pause_s in backoff_s(*_SERVICE_AGAIN_S):
                try:
                    return ask()
                except ServiceAway as error:
                    if error.fault is Fault.NODE and self._launch.on_a_cluster:
                        raise
                    wait.what, wait.why = error.service, error.why
                except Unreachable as error:
                    if not service:
                        raise
                    wait.what, wait.why = service, str(error)
                wait.begin()
                self._say(phase, detail=wait.text, waits_for=wait.what)
                time.sleep(pause_s)
        finally:
            wait.end()
        raise AssertionError

    def _look_at_inputs(self) -> None:
        """Check the input before anything is pulled or unpacked."""
        one = self._assignment
        if not one.inputs:
            return
        self._say(Phase.STARTING, detail="looking at the input")
        from dlapp.storage.inputs import plan_input

        workspace = os.path.join(self._home, "workspace")
        remove_tree(workspace)  # what an earlier task left there would seem to be in the way
        for each in one.inputs:
            with self._step(f"input {each.input_path} could not be fetched"):
                into = os.path.join(workspace, each.input_path)
                plan = partial(plan_input, each, into, one.index, one.total, hdfs=self._launch.hdfs)
                service = _file_system(each.sources)
                if service.startswith(HDFS) and self._launch.hdfs is not None:
                    self._wait_out(partial(_reach_hdfs, self._launch.hdfs.of(each.sources[0])), Phase.STARTING, service)
                self._planned.append(self._wait_out(plan, Phase.STARTING, service))

    def _try_outputs(self) -> None:
        """Store a small file where output goes on HDFS. What this node cannot store later would be computed for
        nothing: it may reach the NameNode and no DataNode.
        """
        one = self._assignment
        tried: set[str] = set()
        for output, part in zip(one.outputs, one.parts, strict=True):
            service = _file_system((part,))
            if self._launch.hdfs is None or not service.startswith(HDFS) or service in tried:
                continue
            tried.add(service)
            self._say(Phase.STARTING, detail="trying the place of the output")
            with self._step(f"output {output.output_path} could not be stored"):
                self._wait_out(partial(_reach_hdfs, self._launch.hdfs.of(part)), Phase.STARTING, service)
                self._wait_out(partial(self._try_storing, part, service), Phase.STARTING, service)

    def _try_storing(self, part: str, service: str) -> None:
        from dlapp.storage.webhdfs import DataNodeRefused, DataNodeUnreachable

        try:
            open_output(part, self._launch.hdfs).try_storing(part)
        except DiskFull as error:
            self._note(f"the output could not be stored now: {error}")  # it may be possible when there is output
        except DataNodeUnreachable as error:
            message = f"the output could not be stored from this node: {error}"
            raise ServiceAway(f"the DataNodes of {service}", str(error), message, Fault.NODE) from error
        except DataNodeRefused as error:
            raise StepFailed(Fault.NODE, f"the output could not be stored from this node: {error}") from error

    def _hold_caches(self) -> None:
        if not self._assignment.caches:
            return
        from dlapp.task.payload_caches import open_caches

        # What this node does not allow another may; on a single machine a retry cannot help.
        with self._step("the caches cannot be used", node=self._launch.on_a_cluster):
            wanted, in_docker = self._assignment.caches, self._assignment.docker_image is not None
            self._caches = open_caches(wanted, self._launch.cache, self._policy, self._note, in_docker=in_docker)
            for one in wanted:
                self._cache_paths[one.name] = self._caches.hold(one.name)

    def _lease_gpus(self) -> None:
        gcores = self._assignment.resources.gcores
        if gcores == 0:
            return
        self._say(Phase.LEASING, detail=f"{gcores} GPUs")
        with self._step("GPUs could not be leased", node=True):
            self._lease = self._leased(gcores)
        from dlapp.task.gpu_health import LeasedDevices

        assert self._ledger is not None
        self._devices = LeasedDevices(self._ledger, self._lease.devices, self._note, self._log.warn)
        self._say(Phase.LEASING, gpus=self._gpus)

    def _leased(self, gcores: int) -> Lease:
        from dlapp.gpuid.factory import open_ledger
        from dlapp.gpuid.health.inspection import Inspector
        from dlapp.gpuid.rules import LeaseRequest

        one = self._assignment
        settings = self._ledger_settings
        self._ledger = ledger = open_ledger(settings, inspect=Inspector())
        # A plain payload inherits the lease's descriptors; one in Docker cannot.
        evidence = self._evidence_of_docker() if one.docker_image else {}
        ask = LeaseRequest(
            str(one.application_id), str(one.container_id), one.username, gcores, (), evidence, one.spread
        )

        timeout_s = self._launch.lease_timeout_s

        def lease() -> Lease:
            ledger.reach(timeout_s=_REACH_S)
            with Wait(f"{gcores} free GPU{'' if gcores == 1 else 's'} of this node", timeout_s):
                return ledger.acquire(ask, timeout_s=timeout_s)

        leased = self._wait_out(lease, Phase.LEASING, f"ZooKeeper at {settings.ensemble}" if settings.ensemble else "")
        # A payload runs for days. With a session for each, an ensemble that restarts gets all of them back at once; a
        # release connects anew.
        ledger.close()
        return leased

    @property
    def _ledger_settings(self) -> LedgerSettings:
        if self._launch.ledger is None:
            raise UsageError("there is no GPU ledger")
        return self._launch.ledger

    def _evidence_of_docker(self) -> dict[str, Any]:
        from dlapp.gpuid.liveness.probes import this_task
        from dlapp.runtime.labels import LABEL_CONTAINER

        label = f"{LABEL_CONTAINER}={self._assignment.container_id}"
        # With the task's name whoever needs the GPUs may remove what it left, once it is gone.
        return {
            "task": this_task(),
            "fifo": os.path.join(self._home, "life"),
            "docker": {"host": self._launch.docker.host, "label": label},
        }

    @property
    def _gpus(self) -> tuple[int, ...]:
        return tuple(device.index for device in self._lease.devices) if self._lease else ()

    def _fill_workspace(self) -> None:
        """Unpack the workspace and fetch the input. On a single node a full disk is waited for, like a service: the
        ApplicationMaster ends us when that takes too long."""
        wait = Wait("", None)
        for pause_s in backoff_s(*_SERVICE_AGAIN_S):
            try:
                self._unpack()
                self._fetch()
                self._waits_for = ""
                return
            except StepFailed as error:
                if self._launch.on_a_cluster or (lack := _lack(error.__cause__, self._home)) is None:
                    raise
                wait.what, wait.why = lack, str(error)
            self._waits_for = f"space on {mount_point(self._home)}"
            with self._step("there is no space", node=True):
                self._say(self._link.phase, detail=wait.text)
                if self._inputs is not None:
                    self._inputs.close()
                time.sleep(pause_s)

    def _unpack(self) -> None:
        self._say(Phase.UNPACKING)
        workspace = os.path.join(self._home, "workspace")
        for name in ("workspace", "tmp"):
            remove_tree(os.path.join(self._home, name))
        with self._step("the workspace could not be unpacked", node=True):
            os.mkdir(os.path.join(self._home, "tmp"), 0o700)
            os.mkdir(workspace, 0o700)  # in a shared queue the group may read the directory that it is in
            one = self._assignment
            if one.outputs:
                self._changes = WorkspaceChanges(workspace, os.path.join(self._home, "tmp"))
            if one.workspace_archive:
                unpack(one.workspace_archive, workspace, digest=one.workspace_digest, progress=self._teller())

    def _fetch(self) -> None:
        if not self._assignment.inputs:
            return
        self._say(Phase.FETCHING)
        self._inputs = inputs = Inputs(self._launch.cache, self._note)
        in_docker, outputs, written = self._what_is_written()
        temporary = os.path.join(self._home, "tmp", "archives")
        for planned in self._planned:
            one = planned.section
            with self._step(f"input {one.input_path} could not be fetched", service=_file_system(one.sources)):
                into = self._inside_workspace(one.input_path)
                # What is mounted is not there for whoever stores the output, and cannot be written.
                may_mount = in_docker and not one.unpack and not any(f"{into}/".startswith(f"{p}/") for p in outputs)
                moved = planned.bring(
                    into,
                    partial(
                        inputs.bring,
                        may_mount=may_mount,
                        closed_to_mounts=written,
                        progress=self._teller(with_rate=True),
                    ),
                    temporary,
                    self._teller(),
                )
                self._note(f"input {one.input_path}: {moved.files} files, {moved.size_bytes} bytes")
        self._planned.clear()  # of many files it takes room

    def _what_is_written(self) -> tuple[bool, list[str], list[str]]:
        """Return whether the payload is a container; where its outputs are; all that somebody may have to write to, or
        that has to be there for us: absolute paths of the host."""
        one, root = self._assignment, os.path.join(self._home, "workspace")
        outputs = [os.path.realpath(os.path.join(root, output.output_path)) for output in one.outputs]
        others = [
            os.path.realpath(os.path.join(root, path))
            for path in (*([one.script] if one.script else ()), *(i.input_path for i in one.inputs))
        ]
        return one.docker_image is not None, outputs, [*outputs, *others]

    def _inside_workspace(self, path: str) -> str:
        """The host's path of a directory in the workspace. Raises UsageError where a link leads out of it."""
        root = os.path.realpath(os.path.join(self._home, "workspace"))
        full = os.path.realpath(os.path.join(root, path))
        if full != root and not full.startswith(root + "/"):
            raise UsageError(f"{shown(path)} leads out of the workspace by a link")
        return full

    def _made_ready(self) -> Running:
        one = self._assignment
        if one.docker_image is None:
            home = os.path.join(self._home, "home")
            os.makedirs(home, 0o700, exist_ok=True)  # on a cluster the submitter's is not there
            payload = self._payload(
                workspace=os.path.join(self._home, "workspace"),
                home=home,
                tmp=os.path.join(self._home, "tmp"),
                submitter=self._launch.environment,
            )
            return PlainRun(payload, self._guardian)
        from dlapp.runtime import container_factory
        from dlapp.runtime.docker import DockerRun

        self._guardian.close()  # a container has its own init, and its lifeline
        phase = self._link.phase
        self._say(phase, detail="making the container")
        payload = self._payload(
            workspace=container_factory.WORKSPACE,
            home=container_factory.HOME,
            tmp=container_factory.TMP,
            submitter=None,
        )
        policy, settings = self._policy.docker, self._launch.docker
        if one.network is not None:
            settings = replace(settings, network=one.network)
        with self._step("the container could not be made", node=True):
            run = DockerRun(payload, settings, policy, self._note, self._teller())
            try:
                self._wait_out(run.prepare, phase)
                self._link.say(phase, gpus=self._gpus, image=run.image_digest)
            except BaseException:
                run.close()
                raise
        return run

    def _payload(self, *, workspace: str, home: str, tmp: str, submitter: dict[str, str] | None) -> Payload:
        one, lease = self._assignment, self._lease
        return Payload(
            application_id=str(one.application_id),
            container_id=str(one.container_id),
            directory=self._home,
            script=one.script,
            command=one.command,
            args=one.args,
            env=payload_environment(
                one,
                workspace=workspace,
                home=home,
                tmp=tmp,
                submitter=submitter,
                user=self._launch.env,
                gpu_indices=self._gpus,
                gpu_uuids=[device.uuid for device in lease.devices] if lease else [],
                caches={
                    cache.variable: self._cache_paths[cache.name] if one.docker_image is None else cache.path
                    for cache in one.caches
                },
            ),
            resources=one.resources,
            image=one.docker_image,
            mounts=tuple(self._inputs.mounts) if self._inputs else (),
            caches=tuple((self._cache_paths[cache.name], cache.path) for cache in one.caches),
            gpus=tuple(PayloadDevice(one.uuid, one.index, one.minor, one.mig) for one in lease.devices)
            if lease
            else (),
            keep_fds=(
                *self._keep_fds,
                *(lease.fds if lease else ()),
                *(self._caches.lock_fds if self._caches else ()),
            ),
            as_submitter=runs_as_submitter(os.environ, on_a_node=self._on_a_node),
        )

    def _wait(self) -> None:
        self._say(Phase.WAITING)
        with self._stopper.interruptible():
            self._link.wait_for_go()

    # ---- the payload ----

    def _run(self, run: Running) -> tuple[PayloadExit, bool, str]:
        """Run the payload to its end: how it ended, whether it had been asked to, and what was cut from its logs."""
        files = tuple(os.path.join(self._home, name) for name in ("stdout", "stderr"))
        for path in files:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        limit_bytes, most = self._assignment.log_limit_bytes, self._policy.log_limit_bytes
        times = LogTimesWriter(os.path.join(self._home, log_times.NAME))
        with LogCap(files, limit_bytes if most is None else min(limit_bytes, most), times, self._log.warn) as cap:
            ended, soft = self._run_under(cap, run)
            cap.check()
        if cap.told:
            self._note(cap.told)
        return ended, soft, cap.told

    def _run_under(self, cap: LogCap, run: Running) -> tuple[PayloadExit, bool]:
        if self._changes is not None:
            self._changes.begin()
        # Once it may have begun, a soft stop is for the payload, which has a grace time; it does not cut us off.
        with self._step("the payload could not be started", node=True, cut_by=Stop.NOW):
            self._has_begun = True
            run.start()
        self._say(Phase.RUNNING)
        if self._inputs is not None:
            self._inputs.settle_later()
        kill_at: float | None = None
        look_at, told = 0.0, ""
        while True:
            try:
                if (ended := run.ended()) is not None:
                    break
            except PayloadError as error:
                raise StepFailed(error.fault, str(error), service=error.service) from error
            now = time.monotonic()
            is_lost = self._is_home_gone or (self._devices is not None and self._devices.failed)
            if self._stopper.wanted is Stop.NOW or is_lost:
                run.kill()
            elif self._stopper.wanted is Stop.SOFT and kill_at is None:
                grace_s = self._assignment.kill_grace_s if self._stopper.grace_s is None else self._stopper.grace_s
                if (most_s := self._policy.kill_grace_max_s) is not None:
                    grace_s = min(grace_s, most_s)
                kill_at = now + grace_s
                self._note(f"{self._stopper.why}: SIGTERM, and SIGKILL in {grace_s:g} s")
                run.soft_stop()
            elif kill_at is not None and now >= kill_at:
                self._note("the grace time is over: SIGKILL")
                run.kill()
                kill_at = float("inf")
            if now >= look_at:
                look_at = now + cap.check()
                if bool(cap.told) and not told:
                    told = cap.told
                    self._note(f"{told}; what follows is dropped too")
                    self._say(Phase.RUNNING, detail=told)
            if self._poll(run, cap, min(look_at, kill_at or look_at) - time.monotonic()):
                look_at = 0.0
        return ended, kill_at is not None

    def _poll(self, run: Running, cap: LogCap, timeout_s: float) -> bool:
        """Wait for news; whether the payload printed after a silence."""
        poll = select.poll()
        poll.register(self._stopper.wake_fd, select.POLLIN)
        watched = run.watched_fds()
        for fd, events in watched:
            poll.register(fd, events)
        if not watched:
            timeout_s = min(timeout_s, _TAKEN_EVERY_S)  # its start is still to be seen
        if cap.wake_fd is not None:
            poll.register(cap.wake_fd, select.POLLIN)
        ready = poll.poll(max(1, int(timeout_s * 1000)))
        self._stopper.drain()
        return any(fd == cap.wake_fd for fd, _ in ready)

    def _result_of(self, ended: PayloadExit, soft: bool, cut: str, device: str) -> TaskResult:
        fault, message = ended.fault, ended.problem
        if self._stopper.wanted is Stop.NOW or soft:
            fault, message = Fault.STOPPED, self._stopper.why
        elif device:
            fault, message = Fault.NODE, device
        elif fault is Fault.USER and ended.exit_code == 0 and not message:
            fault = Fault.NONE
        message = "; ".join(part for part in (message, cut) if part)
        return TaskResult(
            fault=fault, exit_code=ended.exit_code, signal=ended.signal, message=message, service=ended.service
        )

    # ---- after it ----

    def _with_outputs(self, result: TaskResult) -> TaskResult:
        """Store what there is of output. The result of a payload that failed stays what it was."""
        one = self._assignment
        if not one.outputs:
            return result
        self._say(Phase.STORING)
        if self._link.why_over:  # who found that out before this phase began ended the payload alone
            return result
        stored: list[StoredOutput] = []
        absent: list[_AbsentOutput] = []
        problems: list[StepFailed] = []
        has_failed = result.exit_code != 0 and result.fault is not Fault.STOPPED
        began = time.monotonic()
        # What took days is worth an answer of an operator; what a script left that failed is not worth so much.
        room_until = began + min(one.output_patience_s, self._ran_s if has_failed else one.output_patience_s)
        self._store_until = room_until, began + one.output_patience_s
        try:
            for output, part in zip(one.outputs, one.parts, strict=True):
                with self._step("the output could not be stored", cut_by=Stop.NOW):
                    try:
                        local = self._inside_workspace(output.output_path)
                    except UsageError as error:
                        absent.append(_AbsentOutput(output, part, str(error)))
                        continue
                    if not os.path.exists(local):
                        section = f"to_hdfs {output.name}".rstrip()
                        text = f"the script made no {output.output_path!r} in its workspace ({section})"
                        absent.append(_AbsentOutput(output, part, text))
                        continue
                try:
                    stored.append(self._stored_output(output, local, output.output_path, part))
                except StepFailed as error:
                    problems.append(error)  # the others may fit where they belong
            if problems:
                raise StepFailed(problems[0].fault, "; ".join(map(str, problems)))
            if absent and (text := self._keep_changes(absent, stored, must_exist=result.exit_code == 0)):
                raise StepFailed(Fault.DATA, text)
        except StepFailed as error:
            is_stopped = result.fault is Fault.STOPPED
            if result.fault is Fault.NONE or (is_stopped and not absent):
                return replace(result, fault=error.fault, message=str(error), outputs=tuple(stored))
            message = f"{result.message or result.exit_text}; {error}"
            return replace(result, message=message, outputs=tuple(stored))
        except Stopped as error:
            return replace(result, fault=Fault.STOPPED, message=str(error))
        return replace(result, outputs=tuple(stored))

    def _stored_output(
        self, output: OutputSpec, local: str, path: str, part: str, *, stray: bool = False
    ) -> StoredOutput:
        with self._step("the output could not be stored", cut_by=Stop.NOW):
            moved = self._stored(local, path, part, output.target if output.overwrite else "")
        self._note(f"output {path}: {moved.files} files, {moved.size_bytes} bytes at {part}")
        return StoredOutput(name=output.name, part=part, files=moved.files, size_bytes=moved.size_bytes, stray=stray)

    def _keep_changes(self, absent: list[_AbsentOutput], stored: list[StoredOutput], *, must_exist: bool) -> str:
        """Store what is new or changed in the workspace in place of outputs that the script did not make.

        Args:
            absent: those outputs; not empty.
            stored: the others; what is stored is added.
            must_exist: the script came to its end, so that they are missing.

        Returns:
            What became of it, for the user; empty if it did not come so far and nothing is to be kept.
        """
        assert self._changes is not None
        root = os.path.join(self._home, "workspace")
        done = {one.name for one in stored}
        elsewhere = [one.output_path for one in self._assignment.outputs if one.name in done]
        if self._inputs is not None:
            # Docker makes their mount points.
            elsewhere += [os.path.relpath(path, root) for _, path in self._inputs.mounts]
        left = self._changes.keep_only(elsewhere)
        keeping = next((one for one in absent if one.output.on_failure is OnFailure.KEEP), None)
        if not must_exist and (keeping is None or all(path.endswith("/") for path in left)):
            return ""
        texts = ["; ".join(one.text for one in absent)]
        texts.append(f"new or changed there: {describe(left)}" if left else "nothing is new or changed there")
        if (near := closest(absent[0].output.output_path, left)) is not None:
            texts.append(f"the nearest name is {near!r}")
        if left and keeping is not None:
            try:
                stored.append(self._stored_output(keeping.output, root, ".", keeping.part, stray=True))
                texts.append("all of it is kept")
            except StepFailed as error:
                texts.append(str(error))
        return "; ".join(texts)

    def _stored(self, local: str, path: str, part: str, replaces: str) -> Moved:
        """Store one output. A file system that is away, takes no changes or is full is waited for; after that, and
        where the output is refused, it stays on this machine: it is never computed again.

        Raises:
            StepFailed: it is not stored; the text says where it is, or that YARN deletes it.
        """
        move, wait = len(self._assignment.outputs) == 1, Wait("", None)
        try:
            for pause_s in backoff_s(*_STORE_AGAIN_S):
                try:
                    files = open_output(part, self._launch.hdfs)
                    return files.store(
                        local, part, move=move, seen_as=self._seen_as(path), replaces=replaces, note=self._note
                    )
                except (Unreachable, DiskFull) as error:
                    left_s = self._store_until[isinstance(error, Unreachable)] - time.monotonic()
                    if self._link.is_alone or pause_s >= left_s:
                        raise self._stays_here(local, path, error) from error
                    wait.what = error.lack if isinstance(error, DiskFull) else FILE_SYSTEM
                    wait.why = "" if isinstance(error, DiskFull) else str(error)
                    wait.longest_s = wait.lasted_s + left_s
                    wait.begin()
                    self._give_back_gpus()
                    self._let_go_of_reservation()
                    self._say(Phase.STORING, detail=wait.text)
                except DlappError as error:
                    raise self._stays_here(local, path, error) from error
                time.sleep(pause_s)
        finally:
            wait.end()
        raise AssertionError

    def _stays_here(self, local: str, path: str, error: DlappError) -> StepFailed:
        """Bring an output that cannot be stored to where it outlives the container; the failure that says whether."""
        above = os.path.join(self._launch.unstored, str(self._assignment.container_id))
        place = os.path.join(above, "workspace" if path == "." else path)
        try:
            if not self._launch.unstored:
                raise FileNotFoundError
            os.makedirs(os.path.dirname(place), 0o700, exist_ok=True)
            os.rename(local, place)
        except OSError as problem:
            self._note(f"{shown(local)} cannot be renamed to {shown(place)}: {problem}")
            self._stays.append(local)
            if self._launch.on_a_cluster:
                lost = f"it could not be renamed to {place} ({problem.strerror}): YARN deletes it with its container"
                return StepFailed(Fault.DATA, f"the output could not be stored: {error}; {lost}")
            above = place = local
        if above not in self._unstored:
            self._unstored.append(above)
        return StepFailed(Fault.DATA, f"the output could not be stored: {error}; it stays on {node_name()} in {place}")

    def _seen_as(self, path: str) -> tuple[str, ...]:
        if self._assignment.docker_image is None:
            return ()
        from dlapp.runtime.container_factory import WORKSPACE

        return (os.path.normpath(os.path.join(WORKSPACE, path)),)

    def _clean_up(self) -> None:
        """Leave the logs, and nothing else that takes room; then give the GPUs back, for by now nobody uses them."""
        self._guardian.close()
        if self._inputs is not None:
            self._inputs.close()
        if self._caches is not None:
            self._caches.close()
        for name in ("workspace", "home", "tmp"):
            if name == "workspace" and (self._stays or self._is_left_to_aftermath):
                continue
            try:
                remove_tree(os.path.join(self._home, name))
            except (DlappError, OSError) as error:
                self._log.warn(f"{name} could not be removed: {error}")
        for name in ("life", "exit"):
            try:
                os.unlink(os.path.join(self._home, name))
            except FileNotFoundError:
                continue
        self._give_back_gpus()

    @property
    def _is_left_to_aftermath(self) -> bool:
        """True if a later process keeps the output so far, because the last ApplicationMaster died."""
        is_ended = self._stopper.from_outside and not self._launch.on_a_cluster
        return is_ended and self._has_begun and bool(self._assignment.outputs) and not self._link.has_master()

    def _give_back_gpus(self) -> None:
        """Release the GPUs; nobody uses them any more. May be repeated."""
        if self._devices is not None:
            self._devices.look_after()
            self._devices = None
        if self._lease is not None:
            if not self._lease.release():
                self._log.warn("the GPU ledger cannot be reached: the GPUs are free when others see that we are gone")
            self._lease = None
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _let_go_of_reservation(self) -> None:
        """Close what holds the application's devices of a single machine; its guardian has it, too. May be repeated."""
        self._guardian.close()
        for fd in self._keep_fds[RESERVED_FROM:]:
            os.close(fd)
        self._keep_fds = self._keep_fds[:RESERVED_FROM]

    # ---- what all steps share ----

    def _say(self, phase: Phase, **details: Any) -> None:
        self._note(" ".join(filter(None, (phase.value, str(details.get("detail", ""))))))
        self._link.say(phase, **{"gpus": self._gpus, "waits_for": self._waits_for, **details})

    def _teller(self, *, with_rate: bool = False) -> Callable[[int, int], None]:
        """Return the function that a step calls with bytes done and bytes in all; it reports twice a second.

        Args:
            with_rate: also report the rate and the remaining time.
        """
        link, phase, next_at = self._link, self._link.phase, time.monotonic() + _PROGRESS_EVERY_S
        pace = Pace(time.monotonic) if with_rate else None

        def tell(done: int, total: int) -> None:
            nonlocal next_at
            if (now := time.monotonic()) >= next_at:
                next_at = now + _PROGRESS_EVERY_S
                share = min(1.0, done / total) if total else None
                detail = pace.text(done, total) if pace else ""
                link.say(phase, progress=share, gpus=self._gpus, detail=detail, waits_for=self._waits_for)

        return tell

    @contextmanager
    def _step(self, what: str, *, node: bool = False, service: str = "", cut_by: Stop = Stop.SOFT) -> Iterator[None]:
        """A step that an order to stop may cut off; its errors become `StepFailed`.

        Args:
            what: what has failed then, for users.
            node: what is no error of the input or output is the node's fault, not the data's.
            service: the one that is away where a server does not answer.
            cut_by: the weakest order that cuts it off.
        """
        try:
            with self._stopper.interruptible(cut_by):
                yield
        except PayloadError as error:
            if self._stopper.wanted is Stop.NOW:
                raise Stopped(self._stopper.why) from error  # what it needs is being ended, too
            raise StepFailed(error.fault, str(error), service=error.service) from error
        except (NotFound, Denied, UsageError) as error:
            raise StepFailed(Fault.NODE if node else Fault.DATA, f"{what}: {error}") from error
        except Unreachable as error:
            raise StepFailed(Fault.SERVICE if service else Fault.NODE, f"{what}: {error}", service=service) from error
        except (DiskFull, ConnectionError, TimeoutError) as error:
            raise StepFailed(Fault.NODE, f"{what}: {error}") from error
        except DlappError as error:
            raise StepFailed(Fault.NODE if node else Fault.DATA, f"{what}: {error}") from error
        except OSError as error:
            raise StepFailed(Fault.NODE, f"{what}: {error.strerror}: {error.filename or ''}".rstrip(": ")) from error


class _AbsentOutput(NamedTuple):
    """An output that the script did not make where the properties file says, and the text on that."""

    output: OutputSpec
    part: str
    text: str


def runs_as_submitter(environ: Mapping[str, str], *, on_a_node: bool) -> bool:
    """Return whether this task runs as the user who submitted.

    On a node the container executor decides that. A NodeManager sets USER to the submitter.
    """
    return not on_a_node or user_name(os.getuid()) == environ.get("USER")


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a directory; None: it is not there."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lack(error: BaseException | None, path: str) -> str | None:
    """Return what is missing if an error is that of a full disk, in words; otherwise None.

    Args:
        error: what made a step fail.
        path: the directory that it wrote in.
    """
    if isinstance(error, DiskFull):
        return None if error.is_too_small else error.lack
    if isinstance(error, OSError) and not isinstance(error, DlappError) and error.errno in FULL:
        return f"space on {mount_point(path)}"
    return None


def _reach_hdfs(hdfs: HdfsPlace) -> None:
    """Return if a NameNode serves, or raise Unreachable soon: a plan tries for a minute, of which nobody is told."""
    from dlapp.storage.hdfs_staging import HdfsStagingFiles

    files = HdfsStagingFiles(hdfs, patience_s=_REACH_S)
    try:
        files.look(f"{hdfs.location}/")
    finally:
        files.close()


def _file_system(sources: tuple[str, ...]) -> str:
    """Return the file system of the sources of an input, for users: ``hdfs://nn:8020``; empty: this machine's."""
    scheme, _, rest = sources[0].partition("://")
    return "" if scheme == "file" else f"{scheme}://{rest.partition('/')[0]}"


def _words_on(result: TaskResult) -> str:
    code = "" if result.exit_code is None else f"exit code {result.exit_code}"
    code = code if result.signal is None else f"signal {result.signal}"
    blame = "well" if result.fault is Fault.NONE else f"fault: {result.fault.value}"
    return ", ".join(filter(None, (blame, code, result.message)))
