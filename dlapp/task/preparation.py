"""Preparation of a container: its image, workspace, input, caches and GPUs."""

from __future__ import annotations

import os
import time
from functools import partial

from dlapp.errors import DlappError
from dlapp.locations import HdfsPlace, file_system, is_on_hdfs
from dlapp.storage.values import DiskFull
from dlapp.system import lock_files
from dlapp.system.clock import backoff_s
from dlapp.system.disk_space import mount_point
from dlapp.system.files import remove_tree
from dlapp.system.waits import Wait
from dlapp.task.data.inputs import Inputs
from dlapp.task.data.outputs import inside_workspace
from dlapp.task.data.unpack import unpack
from dlapp.task.data.workspace_changes import WorkspaceChanges
from dlapp.task.environment import FRAMEWORKS, node_name
from dlapp.task.payload.factory import runs_as_submitter
from dlapp.task.state import SERVICE_AGAIN_S, TaskState
from dlapp.task.step_errors import REACH_S, StepFailed, is_full_disk
from dlapp.values.access import STREAM_EXEC
from dlapp.values.launch_spec import LiveWorkspace
from dlapp.values.messages import Fault, Phase
from dlapp.values.spec import PayloadCache

WAITS_FOR_CHECKPOINTS = "waits for all containers to list their checkpoints"
"""Detail of a gang's container; the phase of its application shows it, like each that begins with "waits"."""
_DOCKER_ANSWER_S = 60.0
_EVICT_EVERY_S = 3600.0
"""Between two measurements of the caches of a program that has named none: a cache of 100,000 files takes a second."""


def check_live_workspace(task: TaskState) -> None:
    """Refuse a live workspace that is not the submitter's own directory on this machine, or whose dlapp-shell was
    killed while the application waited for GPUs: nothing is fetched, pulled or leased for that."""
    live = task.assignment.live
    if live is None:
        return
    if task.on_a_node:
        raise StepFailed(Fault.DATA, "a directory of the submitter's machine is no workspace on a cluster")
    if not os.path.isdir(live.path):  # Docker would make it
        raise StepFailed(Fault.DATA, f"the workspace {live.path} is not there any more")
    check_shell(task)
    task.streams.prepare(STREAM_EXEC)  # the user waits for the shell


def check_shell(task: TaskState) -> None:
    """Refuse to run a program that waits for a shell whose dlapp-shell was killed meanwhile."""
    live = task.assignment.live
    if live is not None and not lock_files.kind_held(live.session):
        raise StepFailed(Fault.DATA, "dlapp-shell has ended")


def plan_inputs(task: TaskState) -> None:
    """Check the input before pulling or unpacking."""
    one = task.assignment
    if not one.inputs:
        return
    task.report_phase(Phase.STARTING, detail="checking the input")
    from dlapp.storage.inputs import plan_input

    workspace = os.path.join(task.container_dir, "workspace")
    remove_tree(workspace)  # leftovers of an earlier task would conflict
    for each in one.inputs:
        if each.mount:
            from dlapp.task.data.mounted_inputs import find_mounted

            # An input or policy that is missing on this node may exist on another one.
            with task.step(f"input {each.input_path} could not be mounted", node=task.launch.on_a_cluster):
                task.mounted.append((each, find_mounted(each, task.policy)))
            continue
        with task.step(f"input {each.input_path} could not be fetched"):
            into, is_live = os.path.join(workspace, each.input_path), one.live is not None
            if one.live is not None:
                from dlapp.task.data.live_input import target_path

                into = target_path(each, one.live.path)
            plan = partial(plan_input, each, into, one.index, one.total, hdfs=task.launch.hdfs, may_be_there=is_live)
            service = file_system(each.sources[0])
            if is_on_hdfs(service) and task.launch.hdfs is not None:
                task.retry_while_unavailable(
                    partial(_reach_hdfs, task.launch.hdfs.of(each.sources[0])), Phase.STARTING, service
                )
            found = task.retry_while_unavailable(plan, Phase.STARTING, service)
            if each.feed is None:  # otherwise it is pulled when the payload starts
                task.planned.append(found)


def try_outputs(task: TaskState) -> None:
    """Store a small probe file at the output's location on HDFS. If this node cannot store output, the run would be
    wasted: it may reach the NameNode and no DataNode.
    """
    one = task.assignment
    tried: set[str] = set()
    for output, part in zip(one.outputs, one.parts, strict=True):
        service = file_system(part)
        if task.launch.hdfs is None or not is_on_hdfs(service) or service in tried:
            continue
        tried.add(service)
        task.report_phase(Phase.STARTING, detail="checking the output location")
        with task.step(f"output {output.output_path} could not be stored"):
            task.retry_while_unavailable(partial(_reach_hdfs, task.launch.hdfs.of(part)), Phase.STARTING, service)
            task.retry_while_unavailable(partial(task.outputs.try_storing, part, service), Phase.STARTING, service)


def get_image(task: TaskState) -> None:
    """Prepare Docker and the image first: a pull takes long, or has to wait for its registry."""
    image = task.assignment.docker_image
    if image is None:
        return
    from dlapp.runtime.docker.container_factory import explained, open_docker
    from dlapp.runtime.docker.images import ImageStore

    def ask() -> None:
        with explained(settings.host, f"image {image}"):
            images = ImageStore(docker, settings.lock_dir, task.log.write, registries, credentials)
            images.require(image, task.progress_reporter(with_rate=True))

    settings, registries = task.launch.docker, task.policy.docker.registry
    credentials = task.launch.registry_credentials
    task.report_phase(Phase.PULLING, detail=image)
    with task.step("the image could not be pulled", node=True):
        docker = open_docker(settings.host, _DOCKER_ANSWER_S)
        task.retry_while_unavailable(ask, Phase.PULLING)


def hold_caches(task: TaskState) -> None:
    """Open the payload's caches on this node, and for a plain process a directory for the caches of frameworks."""
    one, in_docker = task.assignment, task.assignment.docker_image is not None
    if not one.caches and in_docker:
        return
    from dlapp.task.data.payload_caches import open_caches

    opened = partial(open_caches, settings=task.launch.cache, policy=task.policy, note=task.log.write)
    if one.caches:
        # A cache that this node denies may be allowed on another; on a single machine a retry cannot help.
        with task.step("the caches cannot be used", node=task.launch.on_a_cluster):
            task.caches = opened(one.caches, in_docker=in_docker)
            for cache in one.caches:
                task.cache_paths[cache.name] = task.caches.hold(cache.name)
    if in_docker or not runs_as_submitter(os.environ, on_a_node=task.on_a_node):
        return
    try:
        if task.caches is None:
            task.caches = opened((PayloadCache(FRAMEWORKS, f"/{FRAMEWORKS}"),), evict_every_s=_EVICT_EVERY_S)
        task.cache_paths[FRAMEWORKS] = task.caches.hold(FRAMEWORKS, create=False)
    except (DlappError, OSError) as error:
        task.log.write(f"what frameworks compile is lost with the container: {error}")


def open_checkpoints(task: TaskState) -> None:
    """Prepare storing and restoring checkpoints."""
    one = task.assignment
    if one.checkpoint is None:
        return
    from dlapp.task.data.checkpoints import TaskCheckpoints

    seen_as = [os.path.normpath(os.path.join(task.payload_workspace, one.checkpoint.path))]
    with task.step("checkpoints are not possible", node=True):
        task.checkpoints = TaskCheckpoints(
            one.checkpoint,
            task.container_dir,
            task.launch.hdfs,
            task.log.write,
            seen_as,
            stores=one.stores_checkpoints,
            on_change=lambda numbers: task.link.report_fields(checkpoints=numbers),
            on_status=lambda status: task.link.report_fields(checkpoint=status),
            complete=(lambda: task.link.checkpoint) if one.in_gang else None,
        )


def fill_workspace(task: TaskState) -> None:
    """Unpack the workspace and fetch the input. On a single node, wait while the disk is full, as for a service: the
    ApplicationMaster ends us when that takes too long. A dlapp-shell fails instead: its user is there."""
    wait = Wait("", None)
    for pause_s in backoff_s(*SERVICE_AGAIN_S):
        try:
            _unpack(task)
            _fetch(task)
            _restore_checkpoint(task)
            task.waits_for = ""
            return
        except StepFailed as error:
            lack = _missing_space(error.__cause__, task.container_dir)
            if task.launch.on_a_cluster or task.assignment.live is not None or lack is None:
                raise
            wait.what, wait.why = lack, str(error)
        task.waits_for = f"space on {mount_point(task.container_dir)}"
        with task.step("there is no space", node=True):
            task.report_phase(task.link.phase, detail=wait.text)
            if task.inputs is not None:
                task.inputs.close()
            time.sleep(pause_s)


def _unpack(task: TaskState) -> None:
    task.report_phase(Phase.UNPACKING)
    workspace = os.path.join(task.container_dir, "workspace")
    for name in ("workspace", "tmp", "run"):
        remove_tree(os.path.join(task.container_dir, name))
    with task.step("the workspace could not be unpacked", node=True):
        for name in ("tmp", "run"):
            os.mkdir(os.path.join(task.container_dir, name), 0o700)
        os.mkdir(workspace, 0o700)  # in a shared queue the group may read its parent directory
        one = task.assignment
        if one.sweep is None and one.live is None:  # each trial has its own; what a user does is no result
            task.changes = WorkspaceChanges(workspace, os.path.join(task.container_dir, "tmp"))
        if one.workspace_archive:
            unpack(one.workspace_archive, workspace, digest=one.workspace_digest, progress=task.progress_reporter())


def _fetch(task: TaskState) -> None:
    if not task.assignment.inputs:
        return
    task.report_phase(Phase.FETCHING)
    if task.assignment.live is not None:
        _add_to_live_workspace(task, task.assignment.live)
        return
    # Keep the last generation's cache entries locked until this one has them.
    former, task.inputs = task.inputs, Inputs(task.launch.cache, task.log.write)
    inputs = task.inputs
    in_docker = task.assignment.docker_image is not None
    root = os.path.join(task.container_dir, "workspace")
    outputs = [os.path.realpath(os.path.join(root, one.output_path)) for one in task.assignment.outputs]
    own = [task.assignment.script] if task.assignment.script else []
    own += [one.input_path for one in task.assignment.inputs]
    # Host paths that may have to be written, or that we need.
    written = [*outputs, *(os.path.realpath(os.path.join(root, path)) for path in own)]
    for mounted, path in task.mounted:
        from dlapp.task.data.mounted_inputs import place_mounted

        with task.step(f"input {mounted.input_path} could not be mounted"):
            into = inside_workspace(task.container_dir, mounted.input_path)
            place_mounted(path, into, inputs.mounts if in_docker else None)
            task.log.write(f"input {mounted.input_path}: {path or 'does not exist, and is optional'}")
    temporary = os.path.join(task.container_dir, "tmp", "archives")
    for planned in task.planned:
        one = planned.section
        with task.step(f"input {one.input_path} could not be fetched", service=file_system(one.sources[0])):
            into = inside_workspace(task.container_dir, one.input_path)
            # Mounted inputs are invisible to the process that stores the output, and are read-only.
            may_mount = in_docker and not one.unpack and not any(f"{into}/".startswith(f"{p}/") for p in outputs)
            may_mount = may_mount and task.assignment.sweep is None  # its trials have all input mounted
            moved = planned.fetch(
                into,
                partial(
                    inputs.bring,
                    may_mount=may_mount,
                    closed_to_mounts=written,
                    progress=task.progress_reporter(with_rate=True),
                ),
                temporary,
                task.progress_reporter(),
            )
            task.log.write(f"input {one.input_path}: {moved.files} files, {moved.size_bytes} bytes")
            task.meter.input_bytes += moved.size_bytes
    if former is not None:
        former.close()
    if not task.assignment.in_gang:
        task.planned.clear()  # takes memory if there are many files


def _add_to_live_workspace(task: TaskState, live: LiveWorkspace) -> None:
    from dlapp.task.data.input_record import record_paths
    from dlapp.task.data.live_input import add_input

    inputs = task.inputs = Inputs(task.launch.cache, task.log.tell)
    for planned in task.planned:
        one = planned.section
        with task.step(f"input {one.input_path} could not be fetched", service=file_system(one.sources[0])):
            paths, moved = add_input(
                planned,
                live.path,
                os.path.join(task.container_dir, "workspace"),
                task.log.tell,
                partial(inputs.bring, may_mount=False, progress=task.progress_reporter(with_rate=True)),
                task.progress_reporter(),
            )
            record_paths(live.records, live.path, paths)
            task.log.write(f"input {one.input_path}: {moved.files} files, {moved.size_bytes} bytes")
            task.meter.input_bytes += moved.size_bytes


def _restore_checkpoint(task: TaskState) -> None:
    if task.checkpoints is None or (spec := task.assignment.checkpoint) is None:
        return
    one, service = task.checkpoints, file_system(spec.target)
    restoring = "restoring the checkpoint"
    with task.step("the checkpoint could not be restored"):
        if not task.assignment.in_gang:
            task.report_phase(Phase.FETCHING, detail=restoring)
            newest = partial(one.restore_newest, task.assignment.checkpoint_start)
            task.retry_while_unavailable(newest, Phase.FETCHING, service)
            return
        not_whole: int | None = None
        while True:
            found = task.retry_while_unavailable(one.find, Phase.FETCHING, service)
            known = {"generation": task.generation, "checkpoints": found, "restored": None, "not_whole": not_whole}
            task.report_phase(Phase.FETCHING, detail=WAITS_FOR_CHECKPOINTS, **known)
            generation, number, after = task.link.wait_for_checkpoint(task.generation, not_whole)
            if generation != task.generation:
                task.generation, not_whole = generation, None
                continue
            task.report_phase(Phase.FETCHING, detail=restoring)
            if task.retry_while_unavailable(partial(one.restore, number, after), Phase.FETCHING, service):
                task.report_phase(Phase.FETCHING, restored=number)
                return
            not_whole = number


def lease_gpus(task: TaskState) -> None:
    """Lease the container's GPUs, if any."""
    gcores = task.assignment.resources.gcores
    if gcores == 0:
        return
    task.report_phase(Phase.LEASING, detail=f"{gcores} GPUs")
    from dlapp.gpuid.rules import InQuarantine
    from dlapp.task.gpu_lease import GpuLease

    with task.step("GPUs could not be leased", node=True):
        task.lease = GpuLease(task.assignment, task.launch, task.container_dir, task.log.write, task.log.warn)
        try:
            task.retry_while_unavailable(task.lease.acquire, Phase.LEASING, task.lease.service)
        except InQuarantine as error:
            raise StepFailed(Fault.NODE, f"GPUs could not be leased: {error}", is_closed=True) from error
        task.meter.begin_lease(tuple(task.lease.devices), partial(getattr, task.lease, "use"), node_name())
    task.report_phase(Phase.LEASING, gpus=task.gpus)


def _missing_space(error: BaseException | None, path: str) -> str | None:
    """Return a description of the missing space if an error is ENOSPC; otherwise None."""
    if not is_full_disk(error):
        return None
    return error.lack if isinstance(error, DiskFull) else f"space on {mount_point(path)}"


def _reach_hdfs(hdfs: HdfsPlace) -> None:
    """Return if a NameNode answers, or raise Unreachable soon: a plan retries for a minute without reporting it."""
    from dlapp.storage.hdfs.staging import HdfsStagingFiles

    files = HdfsStagingFiles(hdfs, patience_s=REACH_S)
    try:
        files.status(f"{hdfs.location}/")
    finally:
        files.close()
