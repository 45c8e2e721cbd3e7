"""Checkpoints of gangs: all payloads of a generation begin with the same one (`dlapp.am.model.checkpoints`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from dlapp.am.model.gate import Gate
from dlapp.am.model.instance import Container
from dlapp.am.model.records.indexes import GateRecord
from dlapp.am.model.state import ApplicationState
from dlapp.value import replace
from dlapp.values.messages import CheckpointStatus, Report, Stop
from dlapp.values.report import CheckpointView
from dlapp.values.spec import RoleFailure

NOT_STARTED = "the program has not started"


def handle_report(state: ApplicationState, container: Container, report: Report) -> None:
    """Process a report on the checkpoints that a task has found, stored and restored; its generation is recorded."""
    instance = container.bound_instance
    if (newest := report.checkpoint) is not None:
        known_one = state.checkpoints.newest.get(instance.index)
        if known_one is not None and not newest.number:  # a task that has not stored one yet
            newest = replace(known_one, why=newest.why)
        state.checkpoints.newest[instance.index] = newest
    if report.checkpoints is None:
        return
    state.checkpoints.numbers[instance.index] = report.checkpoints
    gate = state.role_of(container).gate
    known, orders = gate.checkpoints, container.orders
    if known is None or report.generation != gate.generation or orders is None:
        return
    if container.stop_reason is not None or orders.stop is not Stop.NO:
        return
    known.found[instance.index] = frozenset(report.checkpoints)
    if report.not_whole is not None:
        known.refused.add(report.not_whole)
    if not gate.open:
        _choose(state, gate)
    elif report.restored is None:
        number, after = known.choose_for_member(
            instance.index, state.checkpoint_starts(gate.generation + instance.tries)
        )
        if number != orders.checkpoint:
            state.order(container, checkpoint=number, checkpoints_after=after)
    elif known.of_every_index and known.update_complete():
        for one in _members(state, gate):
            state.order(one, checkpoint=known.complete)


def can_be_resumed(state: ApplicationState) -> bool:
    """Return whether there is a checkpoint with which another application can continue (``--resume``)."""
    checkpoint, numbers = state.spec.checkpoint, state.checkpoints.numbers
    if checkpoint is None or not checkpoint.is_of_every_index:
        return any(numbers.values())
    together = [{one.index for one in state.members_of(gate)} for gate in state.gates]
    alone = [{index} for index in numbers if not any(index in group for group in together)]
    whole = [group for group in (*alone, *together) if group <= numbers.keys()]
    return any(frozenset.intersection(*(frozenset(numbers[index]) for index in group)) for group in whole)


def newest_of(state: ApplicationState) -> CheckpointView | None:
    """Return the newest checkpoint of an application; None if it has no ``[checkpoint]``.

    If each container has its own, it is that of the container without one, or with the oldest.
    """
    if (spec := state.spec.checkpoint) is None:
        return None
    writers = {index for role in state.roles if state.spec.checkpoint_of(role.spec)[1] for index in role.indexes}
    if not spec.is_of_every_index:
        writers = set(sorted(writers)[:1])
    found = {index: state.checkpoints.newest.get(index, CheckpointStatus(why=NOT_STARTED)) for index in writers}
    if not found:
        return CheckpointView(why=NOT_STARTED)
    index = min(found, key=lambda one: (found[one].at_ms if found[one].number else -1, one))
    newest = found[index]
    return CheckpointView(
        number=newest.number or None,
        step=newest.step,
        epoch=newest.epoch,
        at_ms=newest.at_ms or None,
        why=newest.why,
        container=index if spec.is_of_every_index and len(writers) > 1 else None,
    )


def is_restored(container: Container, gate: Gate) -> bool:
    """Return whether a member that is ready has the checkpoint of its generation."""
    known = gate.checkpoints
    return known is None or (known.number is not None and container.restored == known.number)


def have_same_checkpoint(state: ApplicationState, gate: Gate, members: Iterable[Container]) -> bool:
    """Return whether members of an earlier attempt have the same checkpoint, of those that begin together."""
    if gate.checkpoints is None:
        return True
    together = (one for one in members if state.role_of(one).spec.on_failure is not RoleFailure.RESTART)
    return len({one.restored for one in together if one.result is None}) <= 1


def _choose(state: ApplicationState, gate: Gate) -> None:
    assert gate.checkpoints is not None
    known = gate.checkpoints
    tries = max(state.instances[index].tries for index in known.writers)
    if not known.choose(state.checkpoint_starts(gate.generation + tries)):
        return
    gate.clear_ready()  # those who are ready have restored another one
    # It counts when the gate opens, which is on the disk; until then a next attempt can choose another one.
    record_gate(state, gate, durable=False)
    for container in _members(state, gate):
        state.order(container, checkpoint=known.number, checkpoints_after=known.after)


def record_gate(state: ApplicationState, gate: Gate, *, durable: bool = True) -> None:
    """Write down the state of a gate, with the checkpoint of its generation and its latest restarts."""
    known = gate.checkpoints
    number = known.number if known is not None else None
    record = GateRecord(
        role=gate.name,
        open=gate.open,
        generation=gate.generation,
        checkpoint=number,
        after=known.after if known is not None and number is not None else 0,
        restarts=gate.restarts,
        node_faults=gate.node_faults,
    )
    state.record(record, durable=durable)


def _members(state: ApplicationState, gate: Gate) -> Iterator[Container]:
    """Return the containers of this generation that continue."""
    for member in state.members_of(gate):
        one = member.container
        if (
            one is None
            or one.container_id not in state.containers.open
            or one.orders is None
            or one.stop_reason is not None
        ):
            continue
        if one.orders.stop is Stop.NO and one.orders.generation == gate.generation:
            yield one
