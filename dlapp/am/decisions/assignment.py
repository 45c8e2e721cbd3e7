"""Assignment of work: an index is bound to a container when its task requests it, and freed when the container is lost.

An index is bound only on a hello, to a task that has just proved to be alive. While a container of an earlier attempt
may run an unknown index of the role, no index of the role is assigned: the requests of tasks wait.

The payload starts when the index is durable in the journal. Otherwise a next attempt might not know of a container at
all:

1. A binds an index to a container; the line of the journal is not durable yet.
2. YARN loses the container's node, and reports that to A, once. The task runs on.
3. A dies. B reads the journal and YARN's list of live containers; neither lists this container.
4. B assigns the index to another container before the task has found B.

So every running payload is recorded, and B waits for it. On one machine the engine lists every live container.
"""

from __future__ import annotations

from dlapp import frameworks
from dlapp.am.decisions import containers
from dlapp.am.decisions.usage import receipts, usage_history
from dlapp.am.model.demand import Role
from dlapp.am.model.events import Assign, Refuse, SendOrders, StopContainer
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.records.containers import AssignRecord
from dlapp.am.model.records.indexes import FreeRecord
from dlapp.am.model.roster import roster_for
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Assignment, MpiWork, Orders, Stop
from dlapp.values.program.placeholders import APP_ID, substitute
from dlapp.values.spec import (
    READY_BY_HTTP,
    READY_BY_REPORT,
    CheckpointSpec,
    Framework,
    Until,
    deciding_roles,
)
from dlapp.values.usage import report_period_s


def answer_waiting_tasks(state: ApplicationState, role: Role) -> None:
    """Answer the tasks that wait for work."""
    while role.held and not role.blockers:
        container_id, container = next(iter(role.held.items()))
        del role.held[container_id]
        assign_waiting_index(state, container)
        if container.stop_reason is not None:
            refuse(state, container_id, container.stop_reason.value)


def assign_waiting_index(state: ApplicationState, container: Container) -> None:
    """Assign the lowest waiting index to a container that requests work, as soon as one may be assigned."""
    role = state.role_of(container)
    index = role.next_index()
    if state.stage is not Stage.ACTIVE:
        containers.stop(state, container, StopReason.ENDING)
    elif role.blockers:
        role.held[container.container_id] = container
    elif index is None:
        containers.stop(state, container, StopReason.SURPLUS)
    else:
        bind(state, container, state.instances[index])
        assign(state, container, state.instances[index])


def bind(state: ApplicationState, container: Container, instance: Instance) -> None:
    """Bind a waiting index to a container, for the container's life."""
    role = state.role_of(container)
    role.remove_waiting(instance.index)
    role.unbound.pop(container.container_id, None)
    role.held.pop(container.container_id, None)
    if instance.last is not None:
        instance.spent = receipts.spent_before(instance)
        instance.add_earlier(instance.last)
        usage_history.downsample_earlier(instance)
    instance.container = instance.last = container
    instance.tries += 1
    instance.stored = None
    instance.good_since_ms = state.awake_ms
    container.instance, container.try_number, container.view = instance, instance.tries, None
    container.generation = role.gate.generation
    state.record(
        AssignRecord(
            container.container_id,
            instance.index,
            container.host,
            instance.tries,
            container.generation,
            instance.spent,
        )
    )
    container.is_recorded = state.engine.lists_all
    if not container.is_recorded:
        state.journal.unrecorded.append((state.journal.lines, container))
    make_orders(state, container)


def make_orders(state: ApplicationState, container: Container) -> None:
    """Create the first orders of a bound container, and set the deadline of its reports."""
    gate = state.role_of(container).gate
    known = gate.checkpoints if not gate.open else None  # a payload that starts alone first reports its checkpoints
    container.orders = Orders(
        attempt=state.attempt,
        number=1,
        go=may_start(state, container),
        generation=gate.generation,
        report_every_s=state.timing.report_interval_s(len(state.instances)),
        usage_every_s=report_period_s(len(state.instances)),
        checkpoint=known.number if known is not None else None,
        checkpoints_after=known.after if known is not None else 0,
    )
    state.set_deadline(state.timing.silence_ms, Due.SILENCE, container)


def may_start(state: ApplicationState, container: Container) -> bool:
    """Return whether the payload of a bound container may start."""
    return container.is_recorded and state.role_of(container).may_start


def handle_journal_written(state: ApplicationState, lines: int) -> None:
    """Start the payloads whose index is durable now: it is among the first ``lines`` lines of the journal."""
    while state.journal.unrecorded and state.journal.unrecorded[0][0] <= lines:
        _, container = state.journal.unrecorded.popleft()
        container.is_recorded = True
        start_if_allowed(state, container)


def start_if_allowed(state: ApplicationState, container: Container) -> None:
    """Order a payload to start if it may, and was not ordered to before."""
    orders = container.orders
    if orders is None or orders.go or orders.stop is not Stop.NO:
        return
    if (
        container.container_id in state.containers.open
        and container.stop_reason is None
        and may_start(state, container)
    ):
        state.order(container, go=True, roster=roster_for(state, container))


def assign(state: ApplicationState, container: Container, instance: Instance) -> None:
    """Answer a task's hello with its work."""
    spec, role = state.spec, instance.role
    place = spec.placement_of(role)
    framework = frameworks.framework_of(spec, role)
    program = frameworks.command_of(framework, spec.program_of(role))
    values = _placeholder_values(state, instance)
    checkpoint, stores_checkpoints = _checkpoint_of(state, instance)
    assignment = Assignment(
        application_id=state.application_id,
        attempt=state.attempt,
        container_id=container.container_id,
        index=instance.index,
        total=spec.total_of(role),
        role=role.name,
        role_index=instance.role_index,
        role_size=role.instances,
        resources=role.resources,
        script=program.script,
        command=substitute(program.command, values),
        framework=framework,
        args=substitute(program.args, values),
        docker_image=spec.image_of(role),
        workdir=spec.workdir_of(role),
        gpu_capabilities=spec.capabilities_of(role),
        username=spec.username,
        appname=spec.appname,
        workspace_archive=state.submission.workspace_archive,
        workspace_digest=state.submission.workspace_digest,
        inputs=spec.inputs_of(role),
        outputs=() if role.keep_running else spec.outputs,
        parts=() if role.keep_running else state.parts_of(container.container_id),
        kill_grace_s=spec.kill_grace_s,
        output_patience_s=spec.output_patience_s,
        log_limit_bytes=state.submission.log_limit_bytes,
        spread=place.spread,
        gpu=place.gpu,
        gpu_memory_mb=place.gpu_memory_mb,
        cuda_visible_devices=place.cuda_visible_devices,
        collect_gpus=spec.collect_gpus,
        check_node=spec.check_node,
        network=spec.network_of(role),
        caches=spec.caches,
        hang_timeout_s=spec.hang_timeout_s,
        ready_by_port=_is_ready_by_port(state, container),
        ready_path=role.ready.removeprefix(READY_BY_HTTP) if role.ready.startswith(READY_BY_HTTP) else "",
        watches_use=role.max_idle_s is not None,
        checkpoint=checkpoint,
        stores_checkpoints=stores_checkpoints,
        checkpoint_start=state.checkpoint_starts(instance.tries),
        generation=container.generation,
        in_gang=state.role_of(container).gate.gang,
        keep_failed=spec.keep_failed_s > 0,
        ports=role.ports,
        has_roster=spec.has_roster,
        mpi=_mpi_work_of(state) if framework is Framework.MPI else None,
        board=spec.tensorboard if instance.index == spec.board_index else "",
        sweep=state.sweep.work if state.sweep is not None else None,
        needs_output=spec.needs_output(instance.index),
        master=spec.first_deciding_index,
        live=state.submission.live,
    )
    state.add_action(Assign(container.container_id, assignment))
    assert container.orders is not None
    state.add_action(SendOrders(container.container_id, container.orders))


def _mpi_work_of(state: ApplicationState) -> MpiWork:
    from dlapp.frameworks import mpi

    assert state.launches.head is not None
    return MpiWork(head=state.launches.head, slots=mpi.slots(deciding_roles(state.spec.roles, state.spec.success)))


def _is_ready_by_port(state: ApplicationState, container: Container) -> bool:
    """Return whether a container's task polls its first port to determine whether its payload is ready."""
    role = state.role_of(container).spec
    if role.ready:
        return role.ready != READY_BY_REPORT
    # Another role waits for that.
    return role.ports > 0 and any(
        (state.role_of(container), Until.READY) in conditions for conditions in state.conditions.values()
    )


def _checkpoint_of(state: ApplicationState, instance: Instance) -> tuple[CheckpointSpec | None, bool]:
    """Return the checkpoints that an index starts from, and whether it stores them. Their directory is named by the
    application that stored the first of them."""
    one, stores = state.spec.checkpoint_of(instance.role)
    if one is None:
        return None, False
    target = f"{one.target.rstrip('/')}/{state.submission.checkpoints_of or state.application_id}"
    if one.is_of_every_index:
        return replace(one, target=f"{target}/{instance.index}"), True
    return replace(one, target=target), stores and instance.role_index == 0


def _placeholder_values(state: ApplicationState, instance: Instance) -> dict[str, str]:
    """Return the values of `placeholders.OF_CONTAINER`, except for the names of parameters of a sweep."""
    role, sweep = instance.role, state.spec.sweep
    values = {
        "index": str(instance.index),
        "role": role.name,
        "role_index": str(instance.role_index),
        "role_size": str(role.instances),
        APP_ID: str(state.application_id),
    }
    return {name: value for name, value in values.items() if sweep is None or name not in sweep.parameters}


def refuse(state: ApplicationState, container_id: ContainerId, why: str) -> None:
    """Answer a task's hello: there is no work for it."""
    state.add_action(Refuse(container_id, why))
    state.add_action(StopContainer(container_id))


def free(
    state: ApplicationState, instance: Instance, durable: bool = False, *, paused_until_ms: int | None = None
) -> None:
    """Make an index wait for a container again. Call this only when its previous container is no longer open.

    Args:
        state: state of the application; it is changed.
        instance: the index.
        durable: record this durably before acting on it.
        paused_until_ms: request no container for it before [ms of time awake]; None: at once.
    """
    container = instance.container
    assert container is not None
    role = state.role_of(container)
    instance.container = None
    state.mark_not_done(instance)
    role.gate.mark_not_ready(instance.index)
    role.wait(instance.index, paused_until_ms)
    record = FreeRecord(instance.index, instance.user_faults, instance.node_faults)
    state.record(record, durable=durable)
    answer_waiting_tasks(state, role)
