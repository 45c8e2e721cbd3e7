"""Dispatch of trials to containers with free slots, and the end of containers when no trial is left.

While an earlier attempt's container is open and has not reported, no trial is dispatched: it may run any of them.
"""

from __future__ import annotations

from dlapp.am.decisions import assessment, containers, shutdown
from dlapp.am.decisions.sweep_summary import failures_text
from dlapp.am.model.events import CommitTrial, Settlement, TrialCommitted
from dlapp.am.model.instance import Container, Stage, StopReason
from dlapp.am.model.records.trials import TrialCommitRecord, TrialRetryRecord, TrialStartRecord
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.subjects import Due
from dlapp.am.model.trials import SweepState, TrialRecord, end_record, part_of
from dlapp.errors import DlappError
from dlapp.sweep.results import TrialState, downsampled
from dlapp.sweep.spec import SweepCommit
from dlapp.values.messages import Phase, Stop

LOSSES = 8
"""Number of retries of a trial whose container was lost while it ran; the trial may be the cause."""


def check(state: ApplicationState) -> None:
    """Dispatch trials, and end containers that have none."""
    sweep = state.sweep_state
    if state.stage is not Stage.ACTIVE:
        return
    if sweep.spec.max_failures is not None and sweep.failed > sweep.spec.max_failures:
        allowed = f"max_failures={sweep.spec.max_failures}"
        shutdown.fail(state, f"more trials failed than {allowed} allows: {failures_text(sweep)}")
        return
    if sweep.uses_optuna and sweep.study is None:
        try:
            sweep.open_study()
        except DlappError as error:
            shutdown.fail(state, str(error))
            return
    for container_id, until_ms in list(sweep.paused.items()):
        if until_ms <= state.awake_ms:
            del sweep.paused[container_id]
            update_free_slot(state, state.containers.by_id[container_id])
    if sweep.free and not any(one.unconfirmed for one in state.containers.open.values()):
        _dispatch(state, sweep)
    if not sweep.left:
        _end_all(state, sweep)


def update_free_slot(state: ApplicationState, container: Container) -> None:
    """Update whether a container has a free slot; call this when that may have changed."""
    sweep, orders = state.sweep_state, container.orders
    may_run = (
        container.container_id in state.containers.open
        and container.stop_reason is None
        and container.phase is Phase.RUNNING
        and orders is not None
        and orders.stop is Stop.NO
        and not orders.trials_are_over
        and container.container_id not in sweep.paused
    )
    if may_run and len(sweep.running_in(container.container_id)) < sweep.spec.trials_per_container:
        sweep.free.setdefault(container.container_id)
    else:
        sweep.free.pop(container.container_id, None)


def _dispatch(state: ApplicationState, sweep: SweepState) -> None:
    for container_id in list(sweep.free):
        container, is_new = state.containers.by_id[container_id], False
        while container_id in sweep.free and sweep.running < sweep.concurrency:
            if (trial := sweep.next_waiting()) is None:
                break
            index = container.bound_instance.index
            if sweep.study is not None:
                try:
                    trial.parameters = trial.parameters or sweep.study.ask(trial.number)
                except DlappError as error:
                    shutdown.fail(state, str(error))
                    return
            sweep.assign_trial(trial, container_id, index, trial.tries + 1, state.now_ms)
            has_chosen = sweep.study is not None
            record = TrialStartRecord(
                number=trial.number,
                try_number=trial.tries,
                holder=container_id,
                index=index,
                parameters=trial.parameters if has_chosen else None,
            )
            state.record(record, durable=has_chosen)
            update_free_slot(state, container)
            is_new = True
        if is_new:
            send_orders(state, container)
        elif sweep.next_waiting() is None and not sweep.held.get(container_id):
            # A trial that runs elsewhere and fails is retried there, and the index of a lost container gets another
            # container.
            _end_container(state, sweep, container)


def send_orders(state: ApplicationState, container: Container) -> None:
    """Order a container to run its trials."""
    sweep = state.sweep_state
    assert container.orders is not None
    trials = tuple(map(sweep.order_of, sweep.held.get(container.container_id, {}).values()))
    if trials != container.orders.trials:
        state.order(container, trials=trials)


def _end_container(state: ApplicationState, sweep: SweepState, container: Container) -> None:
    sweep.free.pop(container.container_id, None)
    state.order(container, trials=(), trials_are_over=True)


def _end_all(state: ApplicationState, sweep: SweepState) -> None:
    """End all containers: there are no more trials."""
    sweep.free.clear()
    for instance in state.instances:
        container = instance.container
        if instance.done or instance.given_up:
            continue
        if container is None:
            state.role_of_index(instance.index).remove_waiting(instance.index)
            state.mark_done(instance)
        elif (
            container.container_id not in state.containers.open
            or container.orders is None
            or container.stop_reason is not None
        ):
            continue
        elif container.phase is Phase.RUNNING and container.orders.stop is Stop.NO:
            if not container.orders.trials_are_over:
                _end_container(state, sweep, container)
        else:
            containers.stop(state, container, StopReason.ENDING)


def release(state: ApplicationState, container: Container) -> None:
    """Make the trials of an ended container wait again. Their reported ends count."""
    sweep = state.sweep_state
    sweep.free.pop(container.container_id, None)
    sweep.paused.pop(container.container_id, None)
    for trial in sweep.running_in(container.container_id):
        if state.stage is not Stage.ACTIVE:
            sweep.requeue_trial(trial)  # for an application that resumes this one
            continue
        trial.node_faults += 1
        if trial.node_faults > LOSSES:
            trial.message = f"its container was lost {trial.node_faults} times while it ran"
            end(state, trial, TrialState.FAILED)
        else:
            requeue(state, trial)


def pause(state: ApplicationState, container: Container) -> None:
    """Give a container no trial for a while: what one of its trials failed of is not over yet."""
    instance = container.bound_instance
    instance.pauses += 1
    pause_ms = assessment.pause_ms(instance.pauses)
    state.sweep_state.paused[container.container_id] = state.awake_ms + pause_ms
    state.set_deadline(pause_ms, Due.TRIALS, container)
    update_free_slot(state, container)


def requeue(state: ApplicationState, trial: TrialRecord) -> None:
    """Make a trial wait again, and record the counted failure."""
    state.sweep_state.requeue_trial(trial)
    state.record(TrialRetryRecord(trial.number, trial.user_faults, trial.node_faults))


def end(state: ApplicationState, trial: TrialRecord, how: TrialState) -> None:
    """Record the end of a trial; its container may forget it when that is durable."""
    trial.finished_ms, trial.points = state.now_ms, downsampled(trial.points)
    state.record(end_record(trial, how))
    state.sweep_state.end(trial, how, state.now_ms, state.journal.lines)


def handle_journal_written(state: ApplicationState, lines: int) -> None:
    """Let containers forget ends of trials that are durable now: in the first ``lines`` lines of the journal."""
    sweep = state.sweep_state
    while sweep.unrecorded and sweep.unrecorded[0][0] <= lines:
        _, holder, trial = sweep.unrecorded.popleft()
        sweep.record_durable_end(trial, holder)
        commit(state, trial, again=False)
        container = state.containers.open.get(holder)
        if container is not None and container.instance is not None:
            # The container works, however often the earlier ones were lost.
            container.instance.node_faults = container.instance.pauses = 0
            update_free_slot(state, container)


def commit(state: ApplicationState, trial: TrialRecord, *, again: bool) -> None:
    """Commit the output of an ended trial, if trials are committed separately; ``again``: it may be committed."""
    sweep = state.sweep_state
    if sweep.spec.commit is not SweepCommit.TRIAL or trial.state not in (TrialState.DONE, TrialState.STOPPED):
        return
    if state.stage in (Stage.SETTLING, Stage.LEAVING, Stage.ENDED):
        return  # its part is committed at the end
    is_dropped = state.stage is not Stage.ACTIVE and state.closing.settlement is Settlement.DROP
    # Output to be copied from another sweep, or kept apart, waits for the end.
    waits = bool(trial.sources) or any(one.stray for one in trial.outputs)
    if trial.outputs and not trial.is_committed and not waits and not is_dropped:
        sweep.committing.add(trial.number)
        state.add_action(CommitTrial(part_of(trial), again))


def handle_committed(state: ApplicationState, event: TrialCommitted) -> None:
    """Record that the output of a trial is committed; if it is not, the end of the application tries again."""
    sweep = state.sweep_state
    sweep.committing.discard(event.number)
    if not event.error:
        sweep.record_committed(sweep.trials[event.number])
        state.record(TrialCommitRecord(event.number))
