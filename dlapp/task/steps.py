"""Steps of one container, in order, and how each of them may fail.

    STARTING   hello, the assignment, and whether its input exists
    PULLING    the image (Docker only)
    UNPACKING  the workspace
    FETCHING   input, into the workspace
    LEASING    GPUs from the ledger, where the container has any; then the container is made
    WAITING    for the gate of the role's gang, and for what the role depends on
    RUNNING    the payload
    STORING    output, under a temporary name beside its target
    RELEASING  the workspace removed
    ENDED      with the result; the GPUs released

If the gang is restarted, a running payload is ended, and the steps from UNPACKING on are repeated for the next
generation; the image, the GPUs, and the plan of the input stay.

A stop before the payload runs interrupts the step; its leftovers are removed like everything else. In every case the
result is the last message to the ApplicationMaster. It is sent before the GPUs are released: their driver may hang, and
that must not cost the result.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any

from dlapp.errors import DlappError, UsageError
from dlapp.node_policy import node_policy, root_problem
from dlapp.runtime.process import CompanionGuardian, Guardian
from dlapp.system.files import remove_tree
from dlapp.system.logs import log_times
from dlapp.system.short_tmpdir import remove_stale_links
from dlapp.task import preparation
from dlapp.task.data.outputs import Outputs
from dlapp.task.failure import with_cause
from dlapp.task.interrupt import Stopped
from dlapp.task.link.am_address import am_finder
from dlapp.task.link.am_link import AmLink
from dlapp.task.payload.container import reserve_ports, result_of, run_payload, store_last_checkpoint, wait_for_gate
from dlapp.task.payload.factory import make_ready
from dlapp.task.payload.runner import PayloadOutcome
from dlapp.task.state import DIRECTORY_REMOVED, TaskState
from dlapp.task.step_errors import StepFailed
from dlapp.task.streams.task_streams import TaskStreams
from dlapp.task.usage import UsageMeter
from dlapp.value import replace
from dlapp.values.launch_spec import FILE_NAME, LaunchSpec
from dlapp.values.messages import Fault, Phase, Stop, TaskResult
from dlapp.values.serialization import from_json

RESULT_DEADLINE_S = 60.0
"""Time limit for the delivery of the result to an ApplicationMaster that does not answer, or to the next one."""
RESULT_ON_A_CLUSTER_S = 7 * 86_400.0
"""Time limit for the delivery on a cluster: the next ApplicationMaster may have to wait for its container, and until
then no other process has the result. If there is no next one, YARN ends the container."""


def run_task(task: TaskState) -> int:
    """Run all steps. Return the exit code: 0 if the ApplicationMaster has received the result."""
    task.launch = launch = _take_launch_spec(task)
    find, alone_s, end = am_finder(launch, task.log.warn), None if launch.on_a_cluster else launch.alone_s, None
    if launch.on_a_cluster:
        from dlapp.task.link.application_end import end_watch

        end = end_watch(launch, find)
    with AmLink(
        launch.control_url,
        launch.token,
        launch.container_id,
        task.stopper,
        task.log.warn,
        find,
        alone_s,
        end,
        containers=launch.containers,
    ) as link:
        task.link = link
        task.streams = TaskStreams(launch.container_id, launch.token, task.reachable, task.log.warn)
        link.open_streams = task.streams.handle_orders
        try:
            with task.stopper.interruptible():
                task.assignment = link.hello()
        except (DlappError, Stopped) as error:
            task.log.warn(f"no work: {error}")
            _clean_up(task)
            return 1
        one = task.assignment
        task.log.write(f"{one.application_id} attempt {one.attempt}: {one.role} {one.role_index}, index {one.index}")
        if one.docker_image is None and (one.sweep is not None or one.board):
            task.end_start()  # they would keep its descriptor open
            link.close_idle_connections()  # the other guardians would keep its connection open
            if one.sweep is not None:
                _fork_guardians(task, one.sweep.slots - 1, Guardian)
            else:
                _fork_guardians(task, 1, CompanionGuardian)
        task.generation = one.generation
        task.meter = UsageMeter(one.resources.memory_mib)
        link.begin(one.index, one.generation, task.meter.measured)
        task.outputs = Outputs(
            one,
            launch,
            task.container_dir,
            link,
            step=task.step,
            report_phase=task.report_phase,
            note=task.log.write,
            release=task.release_devices,
        )
        result = _all_steps(task)
        task.log.write(f"ended: {_describe(result)}")
        return _report_result(task, link, result)


def _take_launch_spec(task: TaskState) -> LaunchSpec:
    """Read the file that the engine wrote for the task, and remove it."""
    path = os.path.join(task.container_dir, FILE_NAME)
    with open(path, encoding="utf-8") as file:
        launch = from_json(LaunchSpec, json.load(file))
    try:
        os.unlink(path)  # not read again, and contains secrets
    except OSError as error:
        task.log.warn(f"{FILE_NAME} could not be removed: {error.strerror}")
    return launch


def _report_result(task: TaskState, link: AmLink, result: TaskResult) -> int:
    """Report the result, release the GPUs, and return the exit code of the task."""
    on_a_cluster = task.launch.on_a_cluster
    is_replaced = task.stopper.from_outside and result.fault is Fault.STOPPED
    if is_replaced and on_a_cluster:
        # The node ended this container. YARN reports why (memory, preemption), and that decides about the
        # index; our report would only arrive first.
        task.release_lease()
        return 128 + signal.SIGTERM
    if link.end_reason:
        task.release_lease()
        return 1  # there is no ApplicationMaster any more to report to
    link.send_result(result)
    task.release_lease()
    deadline_s = RESULT_ON_A_CLUSTER_S if on_a_cluster else RESULT_DEADLINE_S
    # After the ApplicationMaster of a replaced task there will be none; it may die also during the report.
    return 0 if link.finish(deadline_s, waits_for_master=not is_replaced) else 1


def _all_steps(task: TaskState) -> TaskResult:
    try:
        result = _work(task)
    except StepFailed as error:
        result = TaskResult(fault=error.fault, message=str(error), service=error.service, is_closed=error.is_closed)
    except Stopped as error:
        result = TaskResult(fault=Fault.STOPPED, message=str(error))
    except Exception as error:
        # An internal error: the log gets the trace, the user one line, the index another node.
        if not task.is_directory_removed:  # the log, and modules that are not loaded yet, were removed with it
            import traceback

            task.log.write(traceback.format_exc(), "ERROR")
        result = TaskResult(fault=Fault.NODE, message=f"the task failed: {error!r} (see dlapp.log)")
    if task.is_directory_removed and result.fault is not Fault.STOPPED:
        result = TaskResult(fault=Fault.NODE, message=DIRECTORY_REMOVED, lost=True)
    if task.outputs.unstored:
        result = replace(result, unstored=tuple(task.outputs.unstored))
    if not task.is_directory_removed:  # the logs, and the code that reads them, were removed with it
        result = _with_cause(task, result)
    task.report_phase(Phase.RELEASING, detail="removing the workspace")
    try:
        _clean_up(task)
        if task.assignment.docker_image is None:  # one in Docker has no name in /tmp
            with suppress(OSError):  # a user without access to /tmp has nothing there
                remove_stale_links()
    except Exception as error:  # an internal error must not lose the payload's output
        task.log.warn(f"the task could not clean up: {error!r}")
    task.meter.output_bytes += sum(one.size_bytes for one in result.outputs)
    task.meter.end_lease()
    return replace(result, receipt=task.meter.receipt())


def _work(task: TaskState) -> TaskResult:
    with task.step("this node's rules cannot be read", node=True):
        task.policy = node_policy()
    if task.assignment.collect_gpus:
        from dlapp.task.gpu_lease import collected_gpus

        collect = partial(collected_gpus, task.launch)
        return _run_without_payload(task, "the GPU ledger could not be cleaned up", collect)
    if task.assignment.check_node:
        return _run_without_payload(task, "the node could not be checked", partial(_checked_node, task))
    _refuse_root(task)
    preparation.check_live_workspace(task)
    preparation.plan_inputs(task)
    preparation.try_outputs(task)
    preparation.get_image(task)
    preparation.hold_caches(task)
    preparation.open_checkpoints(task)
    preparation.fill_workspace(task)
    preparation.lease_gpus(task)
    if task.assignment.sweep is not None:
        from dlapp.task.sweep.container import run_trials

        return run_trials(task, task.assignment.sweep)
    while True:
        reserve_ports(task)
        run = make_ready(task)
        try:
            preparation.check_shell(task)
            if not wait_for_gate(task):
                _prepare_generation(task)
                continue
            with (
                task.lease.watched(task.stopper.wake, task.payload_places) if task.lease else nullcontext(),
                task.checkpoints.copying() if task.checkpoints else nullcontext(),
                _live_copies(task),
            ):
                began = time.monotonic()
                outcome = run_payload(task, run)
                ran_s = time.monotonic() - began
                device, xid = _gpu_causes(task, outcome)
        finally:
            run.close()
        store_last_checkpoint(task, outcome)
        result = result_of(task, outcome, device)
        if not task.is_directory_removed:
            result = _with_cause(task, result, xid)  # the peers of a gang, which may be the cause, still run
        if not _must_restart(task, result, device):
            break
        _begin_generation(task)
    if task.stopper.wanted is Stop.NOW or task.is_directory_removed or task.link.end_reason:
        return result
    if not (keep_s := task.link.keep_s):
        return _with_output(task, result, ran_s)
    from dlapp.task.payload import kept_container

    stored = _with_output(task, result, ran_s)
    kept_container.release_gpus(task)
    kept_container.keep_container(task, keep_s, result)
    return stored


def _gpu_causes(task: TaskState, outcome: PayloadOutcome) -> tuple[str, str]:
    """Return the GPU failure that ended a payload, and the Xid error after which it failed; empty: there was none.

    A program that ends well after SIGTERM has saved its state, and its work is not done.
    """
    if task.lease is None or (outcome.ended.exit_code == 0 and not outcome.is_soft):
        return "", ""
    device = task.lease.failure_message()
    return device, "" if device or outcome.ended.exit_code == 0 else task.lease.xid_message()


def _with_cause(task: TaskState, result: TaskResult, xid: str = "") -> TaskResult:
    """Return a result with the cause of the failure, if it failed and the cause is found."""
    find_conflict = None if task.rendezvous is None else task.rendezvous.find_conflict
    return with_cause(
        result,
        task.container_dir,
        task.log.warn,
        has_gpus=task.assignment.resources.gcores > 0,
        is_exclusive=task.lease is not None and task.lease.is_exclusive,
        xid=xid,
        find_conflict=find_conflict,
        foreign_use=(lambda: "") if task.lease is None else task.lease.foreign_use,
    )


def _with_output(task: TaskState, result: TaskResult, ran_s: float) -> TaskResult:
    """Store the output of an ended payload. Return the result updated with it."""
    if task.changes is None:  # there was no workspace
        return result
    workspace = os.path.join(task.container_dir, "workspace")
    mounts = task.inputs.mounts if task.inputs is not None else ()
    mounted = [os.path.relpath(path, workspace) for _, path in mounts]  # Docker creates the mount points
    result = task.outputs.store(result, ran_s, task.changes, mounted)
    one = task.assignment
    copied = () if one.checkpoint is None else (one.checkpoint.path,)
    return replace(result, not_stored=task.outputs.not_stored(result, task.changes, copied))


def _fork_guardians(task: TaskState, more: int, kind: type[Guardian]) -> None:
    """Fork a guardian for each other slot, or for TensorBoard. No threads run yet."""
    from dlapp.runtime.guardian import fork_guardian

    for _ in range(more):
        others = [one.fileno() for one in task.guardians]
        task.guardians.append(kind(*fork_guardian(others), siblings=task.guardians))
    task.guardian.siblings = task.guardians


def _must_restart(task: TaskState, result: TaskResult, device: str) -> bool:
    """Return whether the payload must run again, in the next generation; this may block. If not, the link has whether
    the container is kept.

    Args:
        task: the task of the container.
        result: the result of the payload.
        device: the GPU failure; empty if there was none.
    """
    if device or task.is_directory_removed:
        return False
    is_failure = result.fault is Fault.USER and (task.assignment.in_gang or task.assignment.keep_failed)
    if is_failure and not task.is_gang_restarted and task.stopper.wanted is Stop.NO:
        task.log.write(f"the payload failed: {_describe(result)}")
        task.link.report_phase(Phase.RUNNING, detail=result.exit_text, gpus=task.gpus, failure=result)
        task.link.wait_for_decision(task.generation)
    return task.is_gang_restarted and task.stopper.wanted is Stop.NO


def _begin_generation(task: TaskState) -> None:
    """Prepare the payload of the next generation; keep the logs of the last one."""
    with task.step("the next generation could not be prepared", node=True):
        for name in ("stdout", "stderr", log_times.NAME):
            path = os.path.realpath(os.path.join(task.container_dir, name))  # on a cluster the NodeManager's directory
            if os.path.exists(path):
                os.rename(path, log_times.former_name(path, task.generation))
    task.generation = task.link.generation
    _prepare_generation(task)


def _prepare_generation(task: TaskState) -> None:
    """Fill the workspace for a generation, with the current checkpoint."""
    known = {"payload": None, "checkpoints": None, "restored": None, "not_whole": None}
    task.report_phase(Phase.UNPACKING, generation=task.generation, launches=(), launch_states=(), **known)
    preparation.fill_workspace(task)


def _refuse_root(task: TaskState) -> None:
    """Refuse to run a program as root on a cluster, with or without Docker, unless the node's operator allows it."""
    what = "a payload in Docker" if task.assignment.docker_image is not None else "the program"
    if task.on_a_node and (problem := root_problem(task.policy, what)):
        raise StepFailed(Fault.NODE, problem, is_closed=True)


def _run_without_payload(task: TaskState, problem: str, work: Callable[[], Mapping[str, Any]]) -> TaskResult:
    """Run a function on this node in place of a payload; write its result as standard output.

    Args:
        task: the task of the container.
        problem: beginning of the message if it fails.
        work: returns the result, which is written as JSON.
    """
    wait_for_gate(task)
    task.report_phase(Phase.RUNNING)
    with task.step(problem, node=True):
        for name, text in (("stdout", json.dumps(work()) + "\n"), ("stderr", "")):
            with open(os.path.join(task.container_dir, name), "w", encoding="utf-8") as file:
                file.write(text)
    return TaskResult(fault=Fault.NONE, exit_code=0)


def _checked_node(task: TaskState) -> Mapping[str, Any]:
    if task.check_node is None:
        raise UsageError("this task has no checks of its node")
    return task.check_node(json.loads(task.assignment.args[0]), task.launch)


def _live_copies(task: TaskState) -> AbstractContextManager[None]:
    """Return a block in which outputs with ``sync`` are copied."""
    if all(one.sync_s is None for one in task.assignment.outputs):
        return nullcontext()
    from dlapp.task.data.live_outputs import LiveOutputs

    return LiveOutputs(task.assignment, task.container_dir, task.launch.hdfs, task.log.write).copying()


def _clean_up(task: TaskState) -> None:
    """Remove everything but the logs."""
    task.streams.close()
    task.guardian.close()
    for used in (task.inputs, task.caches, task.rendezvous, task.checkpoints, task.mpi, task.board):
        if used is not None:
            used.close()
    for name in ("workspace", "trials", "board", "home", "tmp", "run", "exec", "feed", "python"):
        if (
            name == "workspace"
            and task.has_begun
            and (task.outputs.is_in_workspace or _is_left_to_crash_settlement(task))
        ):
            continue
        try:
            remove_tree(os.path.join(task.container_dir, name))
        except (DlappError, OSError) as error:
            task.log.warn(f"{name} could not be removed: {error}")
    for name in ("life", "ending", "exit"):
        try:
            os.unlink(os.path.join(task.container_dir, name))
        except FileNotFoundError:
            continue


def _is_left_to_crash_settlement(task: TaskState) -> bool:
    """Return True if a later process keeps the payload's output so far, because the last ApplicationMaster died."""
    is_ended = task.stopper.from_outside and not task.launch.on_a_cluster
    return is_ended and bool(task.assignment.outputs) and not task.link.has_master()


def _describe(result: TaskResult) -> str:
    code = "" if result.exit_code is None else f"exit code {result.exit_code}"
    code = code if result.signal is None else f"signal {result.signal}"
    blame = "well" if result.fault is Fault.NONE else f"fault: {result.fault.value}"
    return ", ".join(filter(None, (blame, code, result.message)))
