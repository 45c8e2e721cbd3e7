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

Where the gang is restarted, a payload that runs is ended, and the steps from UNPACKING on are made again for the next
generation; the image, the GPUs, and the plan of the input stay.

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
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from dlapp.errors import DlappError, Unreachable, UsageError
from dlapp.ids import trial_part
from dlapp.launch_spec import FILE_NAME, RESERVED_FROM, LaunchSpec
from dlapp.locations import HDFS, HdfsPlace
from dlapp.messages import PREEMPTED, Assignment, Fault, PayloadStatus, Phase, Stop, TaskResult
from dlapp.node_policy import FILE as NODE_FILE
from dlapp.node_policy import NodePolicy, node_policy
from dlapp.runtime.payload import Payload, PayloadDevice, PayloadError, PayloadExit, Running, ServiceAway
from dlapp.runtime.process import Guardian, PlainRun
from dlapp.serialization import from_json
from dlapp.spec import PayloadProgram
from dlapp.storage.api import DiskFull
from dlapp.storage.tree import Pace, remove_tree
from dlapp.system import log_times
from dlapp.system.clock import backoff_s
from dlapp.system.disk_space import mount_point
from dlapp.system.log_times import LogTimesWriter
from dlapp.system.owners import user_name
from dlapp.system.waits import Wait
from dlapp.task.data.inputs import Inputs
from dlapp.task.data.outputs import Outputs, inside_workspace
from dlapp.task.data.unpack import unpack
from dlapp.task.data.workspace_changes import WorkspaceChanges
from dlapp.task.environment import NODE_MANAGERS, payload_environment
from dlapp.task.failure import with_cause
from dlapp.task.interrupt import InterruptHandler, Stopped
from dlapp.task.link.am_address import finder
from dlapp.task.link.am_link import AmLink
from dlapp.task.logs import LogCap, TaskLog
from dlapp.task.payload_end import PayloadEnd
from dlapp.task.protocol.payload_files import PayloadFiles
from dlapp.task.step_errors import REACH_S, StepFailed, is_full_disk, step
from dlapp.task.usage import UsageMeter
from dlapp.value import replace

if TYPE_CHECKING:
    from dlapp.messages import TrialOrder, TrialWork
    from dlapp.roster import Roster
    from dlapp.runtime.docker import DockerRun
    from dlapp.storage.cache.payload import PayloadCaches
    from dlapp.storage.inputs import PlannedInput
    from dlapp.task.data.checkpoints import TaskCheckpoints
    from dlapp.task.gpu_lease import GpuLease
    from dlapp.task.mpi.payload import MpiPayload
    from dlapp.task.rendezvous import Rendezvous
    from dlapp.task.sweep.worker import WorkerEnd
    from dlapp.task.sweep.workspace import WorkspaceTemplate

RESULT_DEADLINE_S = 60.0
"""How long the result is tried to be brought to an ApplicationMaster that does not answer, or to the next one."""
RESULT_ON_A_CLUSTER_S = 7 * 86_400.0
"""There the next one may have to wait for its turn, and until it is there nobody else knows what this one did. Should
there be none any more, YARN ends the container."""
_SERVICE_AGAIN_S = 1.0, 5.0
"""Between two tries of a service that the payload needs to start: doubled from the first to the second."""
T = TypeVar("T")
_HOME_GONE = "the directory of the container was removed from its node: its NodeManager was restarted without recovery"
_DOCKER_ANSWER_S = 60.0
_PROGRESS_EVERY_S = 0.5
_TAKEN_EVERY_S = 0.005


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
        self._guardians = [self._guardian]
        self._stopper = InterruptHandler()
        self._log = TaskLog(os.path.join(home, "dlapp.log"))
        self._note = self._log.note
        self._lease: GpuLease | None = None
        self._planned: list[PlannedInput] = []
        self._inputs: Inputs | None = None
        self._caches: PayloadCaches | None = None
        self._rendezvous: Rendezvous | None = None
        self._mpi: MpiPayload | None = None
        self._refused: Roster | None = None  # the payload did not let it be written
        self._cache_paths: dict[str, str] = {}  # of the host
        self._changes: WorkspaceChanges | None = None
        self._checkpoints: TaskCheckpoints | None = None
        self._has_begun = False  # the payload
        self._generation = 0
        self._home_id = _identity(home)
        self._waits_for = ""  # it is tried again, and this is what it waited for
        self._step = partial(step, self._stopper)
        self._meter: UsageMeter
        self._link: AmLink
        self._outputs: Outputs
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
            from dlapp.task.link.application_end import end_watch

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
            containers=launch.containers,
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
            if one.sweep is not None and one.docker_image is None:
                link.rest()  # the guardians of the other slots would hold its connection
                self._fork_guardians(one.sweep.slots - 1)
            self._generation = one.generation
            self._meter = UsageMeter(one.resources.memory_mib)
            link.begin(one.index, one.generation, self._meter.measured)
            self._outputs = Outputs(
                one,
                launch,
                self._home,
                link,
                step=self._step,
                say=self._say,
                note=self._note,
                give_back=self._give_back_all,
            )
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
            if not self._is_home_gone:  # with it went the log, and what is not loaded yet
                import traceback

                self._log.note(traceback.format_exc(), "ERROR")
            result = TaskResult(fault=Fault.NODE, message=f"the task failed: {error!r} (see dlapp.log)")
        if self._is_home_gone and result.fault is not Fault.STOPPED:
            result = TaskResult(fault=Fault.NODE, message=_HOME_GONE, lost=True)
        if self._outputs.unstored:
            result = replace(result, unstored=tuple(self._outputs.unstored))
        if not self._is_home_gone:  # with it went the logs, and the code that reads them
            result = with_cause(result, self._home, self._log.warn)
        self._say(Phase.RELEASING, detail="removing the workspace")
        try:
            self._clean_up()
        except Exception as error:  # what the payload did is not lost by a bug of ours
            self._log.warn(f"the task could not clean up: {error!r}")
        self._meter.output_bytes += sum(one.size_bytes for one in result.outputs)
        return replace(result, receipt=self._meter.receipt())

    def _work(self) -> TaskResult:
        with self._step("this node's rules cannot be read", node=True):
            self._policy = node_policy()
        if self._assignment.collect_gpus:
            from dlapp.task.gpu_lease import collected_gpus

            return self._work_without_payload(
                "the GPU ledger could not be cleaned up", partial(collected_gpus, self._launch)
            )
        if self._assignment.check_node:
            return self._work_without_payload("the node could not be checked", self._checked_node)
        self._refuse_root()
        self._look_at_inputs()
        self._try_outputs()
        self._get_image()
        self._hold_caches()
        self._open_checkpoints()
        self._fill_workspace()
        self._lease_gpus()
        if self._assignment.sweep is not None:
            return self._run_trials(self._assignment.sweep)
        while True:
            self._take_place()
            run = self._made_ready()
            try:
                if not self._wait():
                    self._prepare_anew()
                    continue
                with (
                    self._lease.watched(self._stopper.wake) if self._lease else nullcontext(),
                    self._checkpoints.copying() if self._checkpoints else nullcontext(),
                ):
                    began = time.monotonic()
                    ended, ending, cut = self._run(run)
                    ran_s = time.monotonic() - began
                    device = self._lease.why_it_failed() if self._lease and ended.exit_code != 0 else ""
            finally:
                run.close()
            self._store_last_checkpoint(ended, ending.is_soft)
            result = self._result_of(ended, ending, cut, device)
            if not self._is_to_begin_again(result, device):
                break
            self._begin_generation()
        if self._stopper.wanted is Stop.NOW or self._is_home_gone or self._link.why_over:
            return result
        if self._changes is None:  # there is no output
            return result
        workspace = os.path.join(self._home, "workspace")
        mounts = self._inputs.mounts if self._inputs is not None else ()
        mounted = [os.path.relpath(path, workspace) for _, path in mounts]  # Docker makes the mount points
        return self._outputs.store(result, ran_s, self._changes, mounted)

    def _fork_guardians(self, more: int) -> None:
        """Fork a guardian for each other slot. No thread runs yet."""
        from dlapp.runtime.guardian import fork_guardian

        for _ in range(more):
            others = [one.fileno() for one in self._guardians]
            self._guardians.append(Guardian(*fork_guardian(others), siblings=self._guardians))
        self._guardian.siblings = self._guardians

    def _run_trials(self, work: TrialWork) -> TaskResult:
        """Run the trials that orders name, until there are no more."""
        from dlapp.task.sweep.trial import TrialSetup
        from dlapp.task.sweep.worker import TrialWorker
        from dlapp.task.sweep.workspace import WorkspaceTemplate, shared_paths

        one = self._assignment
        with self._step("the workspace cannot be copied", node=True):
            for name in ("stdout", "stderr"):  # of the container, in which nothing but trials runs
                os.close(os.open(os.path.join(self._home, name), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
            own = [each.output_path for each in one.outputs] + ([one.script] if one.script else [])
            shared = shared_paths([each.input_path for each in one.inputs if not each.as_list], own)
            mounts = one.docker_image is not None
            template = WorkspaceTemplate(os.path.join(self._home, "workspace"), shared, mounts=mounts)
        most = self._policy.log_limit_bytes
        setup = TrialSetup(
            assignment=one,
            work=work,
            launch=self._launch,
            home=self._home,
            logs=os.path.dirname(os.path.realpath(os.path.join(self._home, "stdout"))),
            template=template,
            link=self._link,
            make_run=partial(self._made_trial_ready, work, template),
            kill_grace_s=lambda: self._kill_grace_s,
            log_limit_bytes=one.log_limit_bytes if most is None else min(one.log_limit_bytes, most),
            note=self._note,
            tell=self._stopper.wake,
        )
        worker = TrialWorker(setup, self._stopper, why_over=self._why_no_trial, sample=self._meter.sample)
        self._wait()
        with self._lease.watched(self._stopper.wake) if self._lease else nullcontext():
            self._say(Phase.RUNNING)
            if self._inputs is not None:
                self._inputs.settle_later()
            self._meter.begin_run(worker.counters)
            try:
                return worker.run()
            finally:
                self._meter.end_run()
                self._meter.output_bytes = worker.stored_bytes()

    def _why_no_trial(self) -> WorkerEnd | None:
        from dlapp.task.sweep.worker import WorkerEnd

        if self._is_home_gone:
            return WorkerEnd(_HOME_GONE, is_lost=True)
        if self._lease is not None and self._lease.has_failed:
            return WorkerEnd(self._lease.why_it_failed() or "a GPU failed")
        if self._assignment.docker_image is None and any(one.gone for one in self._guardians):
            return WorkerEnd("a guardian was killed, and the trials with it")
        return None

    def _made_trial_ready(
        self, work: TrialWork, template: WorkspaceTemplate, order: TrialOrder, slot: int, home: str
    ) -> Running:
        """Make the payload of a trial ready; by the thread of its slot.

        Args:
            work: what the trials of this container share.
            template: of their workspaces.
            order: the trial.
            slot: its slot, which has its share of the GPUs, or all if they cannot be divided.
            home: its directory.
        """
        from dlapp.sweep.trial import TrialSpec

        trial = TrialSpec(order.number, dict(order.parameters))
        one, is_plain = self._assignment, self._assignment.docker_image is None
        payload = self._plain_payload(home) if is_plain else self._docker_payload()
        devices, indices = payload.gpus, self._gpus
        if devices and len(devices) % work.slots == 0:
            share = len(devices) // work.slots
            own = slice(slot * share, (slot + 1) * share)
            devices, indices = devices[own], indices[own]
        env = {**payload.env, **trial.environment(), "NV_GPU": ",".join(map(str, indices))}
        if is_plain:
            env["CUDA_VISIBLE_DEVICES"] = ",".join(each.uuid for each in devices)
        amounts = one.resources
        payload = replace(
            payload,
            directory=home,
            task_directory=self._home,
            name=trial_part(order.number, order.try_number),
            env=env,
            args=trial.arguments(payload.args),
            command=trial.arguments(payload.command),
            gpus=devices,
            resources=replace(
                amounts,
                memory_mib=max(1, amounts.memory_mib // work.slots),
                vcores=max(1, amounts.vcores // work.slots),
            ),
            mounts=template.mounts_of(os.path.join(home, "workspace")),
        )
        if is_plain:
            return PlainRun(payload, self._guardians[slot])
        return self._docker_run(payload)

    @property
    def _is_recalled(self) -> bool:
        """True if the gang was restarted since this task's generation began."""
        return self._link.generation > self._generation

    def _is_to_begin_again(self, result: TaskResult, device: str) -> bool:
        """Return whether the payload is to run once more, in the next generation; of a gang that may take some time.

        Args:
            result: of the payload.
            device: what failed of the GPUs; empty: they did not fail.
        """
        if device or self._is_home_gone:
            return False
        is_failure = result.fault is Fault.USER and self._assignment.in_gang
        if is_failure and not self._is_recalled and self._stopper.wanted is Stop.NO:
            self._note(f"the payload failed: {_words_on(result)}")
            failure = with_cause(result, self._home, self._log.warn)
            self._link.say(Phase.RUNNING, detail=result.exit_text, gpus=self._gpus, failure=failure)
            self._link.wait_for_decision(self._generation)
        return self._is_recalled and self._stopper.wanted is Stop.NO

    def _begin_generation(self) -> None:
        """Prepare the payload of the next generation, and keep what the last one printed."""
        with self._step("the next generation could not be prepared", node=True):
            for name in ("stdout", "stderr", log_times.NAME):
                path = os.path.realpath(os.path.join(self._home, name))  # on a cluster the NodeManager's directory
                if os.path.exists(path):
                    os.rename(path, log_times.former_name(path, self._generation))
        self._generation = self._link.generation
        self._prepare_anew()

    def _prepare_anew(self) -> None:
        """Fill the workspace for a generation, with the checkpoint that counts now."""
        known = {"payload": None, "checkpoints": None, "restored": None, "not_whole": None}
        self._say(Phase.UNPACKING, generation=self._generation, launches=(), launch_states=(), **known)
        self._fill_workspace()

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
        from dlapp.runtime.images import ImageStore

        def ask() -> None:
            with explained(settings.host, f"image {image}"):
                images = ImageStore(docker, settings.lock_dir, self._note, registries, credentials)
                images.require(image, self._teller())

        settings, registries = self._launch.docker, self._policy.docker.registry
        credentials = self._launch.registry_credentials
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
                self._wait_out(partial(self._outputs.try_storing, part, service), Phase.STARTING, service)

    def _hold_caches(self) -> None:
        if not self._assignment.caches:
            return
        from dlapp.task.data.payload_caches import open_caches

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
        from dlapp.task.gpu_lease import GpuLease

        with self._step("GPUs could not be leased", node=True):
            self._lease = GpuLease(self._assignment, self._launch, self._home, self._note, self._log.warn)
            self._wait_out(self._lease.take, Phase.LEASING, self._lease.service)
            self._meter.begin_lease(tuple(self._lease.devices), partial(getattr, self._lease, "use"))
        self._say(Phase.LEASING, gpus=self._gpus)

    @property
    def _gpus(self) -> tuple[int, ...]:
        return self._lease.indexes if self._lease else ()

    def _fill_workspace(self) -> None:
        """Unpack the workspace and fetch the input. On a single node a full disk is waited for, like a service: the
        ApplicationMaster ends us when that takes too long."""
        wait = Wait("", None)
        for pause_s in backoff_s(*_SERVICE_AGAIN_S):
            try:
                self._unpack()
                self._fetch()
                self._restore_checkpoint()
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
        for name in ("workspace", "tmp", "run"):
            remove_tree(os.path.join(self._home, name))
        with self._step("the workspace could not be unpacked", node=True):
            for name in ("tmp", "run"):
                os.mkdir(os.path.join(self._home, name), 0o700)
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
        # What the last generation had of the cache stays there until this one has it.
        former, self._inputs = self._inputs, Inputs(self._launch.cache, self._note)
        inputs = self._inputs
        in_docker, outputs, written = self._what_is_written()
        temporary = os.path.join(self._home, "tmp", "archives")
        for planned in self._planned:
            one = planned.section
            with self._step(f"input {one.input_path} could not be fetched", service=_file_system(one.sources)):
                into = inside_workspace(self._home, one.input_path)
                # What is mounted is not there for whoever stores the output, and cannot be written.
                may_mount = in_docker and not one.unpack and not any(f"{into}/".startswith(f"{p}/") for p in outputs)
                may_mount = may_mount and self._assignment.sweep is None  # its trials have all input mounted
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
                self._meter.input_bytes += moved.size_bytes
        if former is not None:
            former.close()
        if not self._assignment.in_gang:
            self._planned.clear()  # of many files it takes room

    def _open_checkpoints(self) -> None:
        one = self._assignment
        if one.checkpoint is None:
            return
        from dlapp.task.data.checkpoints import TaskCheckpoints

        seen_as = [os.path.normpath(os.path.join(self._seen_workspace, one.checkpoint.path))]
        with self._step("checkpoints are not possible", node=True):
            self._checkpoints = TaskCheckpoints(
                one.checkpoint,
                self._home,
                self._launch.hdfs,
                self._note,
                seen_as,
                stores=one.stores_checkpoints,
                tell=lambda numbers: self._link.say_besides(checkpoints=numbers),
                complete=(lambda: self._link.checkpoint) if one.in_gang else None,
            )

    def _restore_checkpoint(self) -> None:
        if self._checkpoints is None or (spec := self._assignment.checkpoint) is None:
            return
        one, service = self._checkpoints, _file_system((spec.target,))
        restoring = "restoring the checkpoint"
        with self._step("the checkpoint could not be restored"):
            if not self._assignment.in_gang:
                self._say(Phase.FETCHING, detail=restoring)
                newest = partial(one.restore_newest, self._assignment.checkpoint_start)
                self._wait_out(newest, Phase.FETCHING, service)
                return
            not_whole: int | None = None
            while True:
                found = self._wait_out(one.find, Phase.FETCHING, service)
                known = {"generation": self._generation, "checkpoints": found, "restored": None, "not_whole": not_whole}
                self._say(Phase.FETCHING, detail="waits until all containers have looked for checkpoints", **known)
                generation, number, after = self._link.wait_for_checkpoint(self._generation, not_whole)
                if generation != self._generation:
                    self._generation, not_whole = generation, None
                    continue
                self._say(Phase.FETCHING, detail=restoring)
                if self._wait_out(partial(one.restore, number, after), Phase.FETCHING, service):
                    self._say(Phase.FETCHING, restored=number)
                    return
                not_whole = number

    @property
    def _seen_workspace(self) -> str:
        """Path of the workspace as the payload sees it."""
        if self._assignment.docker_image is None:
            return os.path.join(self._home, "workspace")
        from dlapp.runtime.container_factory import WORKSPACE

        return WORKSPACE

    @property
    def _seen_run(self) -> str:
        """Path of DLAPP_DIR as the payload sees it."""
        if self._assignment.docker_image is None:
            return os.path.join(self._home, "run")
        from dlapp.runtime.container_factory import RUN

        return RUN

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

    def _made_ready(self) -> Running:
        if self._assignment.docker_image is None:
            os.makedirs(os.path.join(self._home, "home"), 0o700, exist_ok=True)  # on a cluster the submitter's is away
            return PlainRun(self._plain_payload(self._home), self._guardian)
        self._guardian.close()  # a container has its own init, and its lifeline
        phase = self._link.phase
        self._say(phase, detail="making the container")
        with self._step("the container could not be made", node=True):
            run = self._docker_run(self._docker_payload(), partial(self._wait_out, phase=phase), self._teller())
        self._link.say(phase, gpus=self._gpus, image=run.image_digest)
        return run

    def _docker_run(
        self,
        payload: Payload,
        wait_out: Callable[[Callable[[], None]], None] = lambda prepare: prepare(),
        progress: Callable[[int, int], None] | None = None,
    ) -> DockerRun:
        """Make a container. For any thread.

        Args:
            payload: that is to run in it.
            wait_out: calls what it is given, again while Docker or a registry is away.
            progress: told how much of the image has come.
        """
        from dlapp.runtime.docker import DockerRun

        policy, settings = self._policy.docker, self._launch.docker
        if self._assignment.network is not None:
            settings = replace(settings, network=self._assignment.network)
        run = DockerRun(payload, settings, policy, self._note, progress, self._launch.registry_credentials)
        try:
            wait_out(run.prepare)
        except BaseException:
            run.close()
            raise
        return run

    def _plain_payload(self, home: str) -> Payload:
        """Return the payload as a process; its files are in the directory ``home``."""
        return self._payload(
            workspace=os.path.join(home, "workspace"),
            home=os.path.join(home, "home"),
            tmp=os.path.join(home, "tmp"),
            run=os.path.join(home, "run"),
            python=os.path.join(home, "python"),
            submitter=self._launch.environment,
        )

    def _docker_payload(self) -> Payload:
        from dlapp.runtime import container_factory

        return self._payload(
            workspace=container_factory.WORKSPACE,
            home=container_factory.HOME,
            tmp=container_factory.TMP,
            run=container_factory.RUN,
            python=container_factory.PYTHON,
            submitter=None,
        )

    def _payload(
        self, *, workspace: str, home: str, tmp: str, run: str, python: str, submitter: dict[str, str] | None
    ) -> Payload:
        one, lease = self._assignment, self._lease
        program = PayloadProgram(one.script, one.command, one.args)
        if self._mpi is not None and self._mpi.command:
            program = PayloadProgram("", self._mpi.command, ())
        return Payload(
            application_id=str(one.application_id),
            container_id=str(one.container_id),
            directory=self._home,
            script=program.script,
            command=program.command,
            args=program.args,
            env=payload_environment(
                one,
                workspace=workspace,
                home=home,
                tmp=tmp,
                run=run,
                python=python,
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
                *(self._rendezvous.lock_fds if self._rendezvous else ()),
            ),
            as_submitter=runs_as_submitter(os.environ, on_a_node=self._on_a_node),
        )

    def _take_place(self) -> None:
        """Lock the ports of this container, and find the address at which its peers reach it."""
        one = self._assignment
        if not one.has_roster:
            return
        from dlapp.task.rendezvous import Rendezvous

        with self._step("the container has no address or ports for its peers", node=True):
            if self._rendezvous is None:
                self._rendezvous = Rendezvous(one, self._launch, self._policy, self._home)
            self._rendezvous.take_place()
        self._link.say(self._link.phase, address=self._rendezvous.address, ports=self._rendezvous.ports)
        if one.mpi is not None and self._mpi is None:
            from dlapp.task.mpi.payload import MpiPayload

            with self._step("mpirun is not possible", node=True):
                self._mpi = MpiPayload(one, one.mpi, self._launch, self._home, self._seen_run, self._note)

    def _wait(self) -> bool:
        """Wait for the gate. Return False if another checkpoint is to be restored first."""
        self._say(Phase.WAITING)
        restored = None
        if self._checkpoints is not None and self._assignment.in_gang:
            restored = self._checkpoints.restored or 0
        with self._stopper.interruptible():
            wait_for_go = partial(self._link.wait_for_go, with_roster=self._rendezvous is not None, restored=restored)
            while (generation := wait_for_go(self._generation)) != self._generation:
                if generation is None:
                    return False
                self._generation = generation
                if restored is not None:
                    return False
                self._say(Phase.WAITING, generation=generation)
        return True

    # ---- the payload ----

    def _run(self, run: Running) -> tuple[PayloadExit, PayloadEnd, str]:
        """Run the payload to its end: how it ended, what it had been sent, and what was cut from its logs."""
        files = tuple(os.path.join(self._home, name) for name in ("stdout", "stderr"))
        for path in files:
            os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644))
        limit_bytes, most = self._assignment.log_limit_bytes, self._policy.log_limit_bytes
        times = LogTimesWriter(os.path.join(self._home, log_times.NAME))

        def tell(status: PayloadStatus) -> None:
            self._link.say(Phase.RUNNING, gpus=self._gpus, progress=status.progress, payload=status, detail=cap.told)

        with LogCap(files, limit_bytes if most is None else min(limit_bytes, most), times, self._log.warn) as cap:
            with self._step("the payload could not be started", node=True, cut_by=Stop.NOW):
                place = None
                if self._assignment.ready_by_port and self._rendezvous is not None:
                    place = self._rendezvous.address, self._rendezvous.ports[0]
                run_path, total = os.path.join(self._home, "run"), self._assignment.total
                payload_files = PayloadFiles(run_path, total, tell, self._note, place)
            with payload_files, PayloadEnd(run, files[1], self._note) as ending:
                try:
                    ended = self._run_under(cap, run, payload_files, ending)
                finally:
                    self._meter.end_run()
                payload_files.finish(time.monotonic())
                self._take_checkpoint_reports(payload_files)
            cap.check()
        if cap.told:
            self._note(cap.told)
        return ended, ending, cap.told

    def _start(self, run: Running) -> None:
        """Start the payload, with what was not known before the gate opened."""
        if self._changes is not None:
            self._changes.begin()
        # Once it may have begun, a soft stop is for the payload, which has a grace time; it does not cut us off.
        with self._step("the payload could not be started", node=True, cut_by=Stop.NOW):
            late_env = {"DLAPP_GENERATION": str(self._generation)}
            if self._rendezvous is not None:
                self._rendezvous.check_ports()
                late_env |= self._rendezvous.late_environment(self._link.roster)
                if self._mpi is not None and (roster := self._rendezvous.written) is not None:
                    late_env |= self._mpi.begin(roster, self._rendezvous.interface, self._kill_grace_s)
            if self._checkpoints is not None:
                late_env |= self._checkpoints.late_environment(self._seen_workspace)
            self._has_begun = True
            run.start(late_env)
            self._meter.begin_run(run.counters)
        self._say(Phase.RUNNING)
        if self._inputs is not None:
            self._inputs.settle_later()

    def _run_under(self, cap: LogCap, run: Running, payload_files: PayloadFiles, ending: PayloadEnd) -> PayloadExit:
        """Watch the payload until nothing of it is left."""
        self._start(run)
        look_at, told = 0.0, ""
        while True:
            try:
                if (ended := run.ended()) is not None:
                    break
            except PayloadError as error:
                raise StepFailed(error.fault, str(error), service=error.service) from error
            now = time.monotonic()
            is_lost = self._is_home_gone or (self._lease is not None and self._lease.has_failed)
            if self._stopper.wanted is Stop.NOW or is_lost:
                run.kill()
            elif ending.has_begun:
                ending.advance()
            elif self._stopper.wanted is Stop.SOFT or self._is_recalled:
                why = self._stopper.why or "the gang is restarted"
                reason = self._stopper.reason or ("stopped" if self._stopper.why else "gang_restart")
                payload_files.write_stop(reason, why, self._kill_grace_s)
                ending.stop(why, self._kill_grace_s)
            elif self._link.abort:
                ending.abort(self._link.abort)
            self._replace_roster()
            if self._mpi is not None:
                self._mpi.exchange(self._link, self._generation)
            if now >= look_at:
                look_at = now + cap.check()
                if bool(cap.told) and not told:
                    told = cap.told
                    self._note(f"{told}; what follows is dropped too")
                    self._say(Phase.RUNNING, detail=told, progress=payload_files.report.status.progress)
                payload_files.check(now)
                self._take_checkpoint_reports(payload_files)
            sample_s = self._meter.sample()
            if self._poll(run, cap, min(sample_s, look_at - time.monotonic(), ending.wait_s())):
                look_at = 0.0
        return ended

    def _take_checkpoint_reports(self, payload_files: PayloadFiles) -> None:
        if self._checkpoints is not None:
            report = payload_files.report
            self._checkpoints.take_reports(report.checkpoints, report.checkpoint_step)

    @property
    def _kill_grace_s(self) -> float:
        """Seconds between SIGTERM and SIGKILL."""
        grace_s = self._assignment.kill_grace_s if self._stopper.grace_s is None else self._stopper.grace_s
        most_s = self._policy.kill_grace_max_s
        return grace_s if most_s is None else min(grace_s, most_s)

    def _replace_roster(self) -> None:
        """Give the payload the latest roster. It may have made that impossible, which is its own loss."""
        one, latest = self._rendezvous, self._link.roster
        if one is None or latest is None or latest is one.written or latest is self._refused:
            return
        try:
            one.write(latest)
        except OSError as error:
            self._refused = latest
            self._log.warn(f"the payload does not get the roster of version {latest.version}: {error}")

    def _poll(self, run: Running, cap: LogCap, timeout_s: float) -> bool:
        """Wait for news; whether the payload printed after a silence."""
        poll = select.poll()
        poll.register(self._stopper.wake_fd, select.POLLIN)
        watched = run.watched_fds()
        for fd, events in watched:
            poll.register(fd, events)
        if not watched:
            timeout_s = min(timeout_s, _TAKEN_EVERY_S)  # its start is still to be seen
        if self._mpi is not None:
            poll.register(self._mpi.fileno(), select.POLLIN)
        if cap.wake_fd is not None:
            poll.register(cap.wake_fd, select.POLLIN)
        ready = poll.poll(max(1, int(timeout_s * 1000)))
        self._stopper.drain()
        return any(fd == cap.wake_fd for fd, _ in ready)

    def _result_of(self, ended: PayloadExit, ending: PayloadEnd, cut: str, device: str) -> TaskResult:
        fault, message, soft = ended.fault, ended.problem, ending.is_soft
        is_preempted = soft and self._stopper.wanted is Stop.SOFT and self._stopper.reason == PREEMPTED
        if is_preempted:
            fault, message = Fault.NODE, self._stopper.why
        elif self._stopper.wanted is Stop.NOW or soft:
            fault, message = Fault.STOPPED, self._stopper.why
        elif device:
            fault, message = Fault.NODE, device
        elif ending.hang:
            fault = Fault.USER
            message = f"{ending.hang}; stderr has the stacks of its Python threads"
        elif fault is Fault.USER and ended.exit_code == 0 and not message:
            fault = Fault.NONE
        message = "; ".join(part for part in (message, cut) if part)
        return TaskResult(
            fault=fault,
            exit_code=ended.exit_code,
            signal=ended.signal,
            message=message,
            service=ended.service,
            lost=is_preempted,
        )

    # ---- after it ----

    def _store_last_checkpoint(self, ended: PayloadExit, soft: bool) -> None:
        """Store what a payload left that has ended, if there is somebody to use it."""
        if self._checkpoints is None or self._stopper.wanted is Stop.NOW or self._is_home_gone or self._link.why_over:
            return
        if not self._assignment.stores_checkpoints:
            return
        self._say(Phase.STORING, detail="the checkpoint")
        try:
            with self._step("the checkpoint could not be stored", cut_by=Stop.NOW):
                self._checkpoints.store_last(
                    is_orderly=ended.signal is None and (soft or ended.exit_code == 0),
                    patience_s=0.0 if self._is_recalled else self._assignment.output_patience_s,
                    say=self._say,
                    give_back=self._give_back_all,
                    may_wait=lambda: not self._link.is_alone,
                )
        except Stopped:
            return  # the result says it, too

    def _clean_up(self) -> None:
        """Leave the logs, and nothing else that takes room; then give the GPUs back, for by now nobody uses them."""
        self._guardian.close()
        if self._inputs is not None:
            self._inputs.close()
        if self._caches is not None:
            self._caches.close()
        if self._rendezvous is not None:
            self._rendezvous.close()
        if self._checkpoints is not None:
            self._checkpoints.close()
        if self._mpi is not None:
            self._mpi.close()
        for name in ("workspace", "trials", "home", "tmp", "run", "python"):
            if name == "workspace" and self._has_begun and (self._outputs.stays or self._is_left_to_aftermath):
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
        self._give_back_lease()

    def _give_back_lease(self) -> None:
        if self._lease is not None:
            self._meter.end_lease()
            self._lease.give_back()

    @property
    def _is_left_to_aftermath(self) -> bool:
        """True if a later process keeps the output of a payload so far, because the last ApplicationMaster died."""
        is_ended = self._stopper.from_outside and not self._launch.on_a_cluster
        return is_ended and bool(self._assignment.outputs) and not self._link.has_master()

    def _give_back_all(self) -> None:
        """Release the GPUs, and what holds the application's devices of a single machine; its guardian has it, too.

        May be repeated.
        """
        self._give_back_lease()
        self._guardian.close()
        for fd in self._keep_fds[RESERVED_FROM:]:
            os.close(fd)
        self._keep_fds = self._keep_fds[:RESERVED_FROM]

    # ---- what all steps share ----

    def _say(self, phase: Phase, **details: Any) -> None:
        self._meter.enter(phase)
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
    if not is_full_disk(error):
        return None
    return error.lack if isinstance(error, DiskFull) else f"space on {mount_point(path)}"


def _reach_hdfs(hdfs: HdfsPlace) -> None:
    """Return if a NameNode serves, or raise Unreachable soon: a plan tries for a minute, of which nobody is told."""
    from dlapp.storage.hdfs_staging import HdfsStagingFiles

    files = HdfsStagingFiles(hdfs, patience_s=REACH_S)
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
