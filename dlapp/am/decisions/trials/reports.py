"""Reports of tasks on trials: values of the metric, and ends.

How the program of a trial ended is assessed like that of a container (`dlapp.am.decisions.assessment`): an exit code
counts against ``retries``; what the node did is tried again some times, after a pause; for a service that does not
answer, also one of the node such as Docker, a trial waits like a container; missing input is final.
"""

from __future__ import annotations

from dlapp.am.decisions import assessment, services
from dlapp.am.decisions.trials import dispatch
from dlapp.am.model.instance import Container, Stage
from dlapp.am.model.records.trials import RungRecord
from dlapp.am.model.state import ApplicationState
from dlapp.am.model.trials import TrialRecord
from dlapp.sweep.results import TrialState, missing_metric_text
from dlapp.values.messages import Fault, Report, TaskResult, TrialReport

MAX_REPORTED_POINTS = 256
"""Maximum number of points in a report of a trial; a task sends half as many."""
_NOT_THE_PROGRAMS = (Fault.NODE, Fault.STOPPED, Fault.SERVICE)


def handle_report(state: ApplicationState, container: Container, report: Report) -> None:
    """Process a task's report on its trials."""
    sweep, container_id = state.sweep_state, container.container_id
    if state.stage not in (Stage.ACTIVE, Stage.CLOSING):
        return
    is_first = container.orders is not None and container.orders.trials is None
    named = set()
    for one in report.trials:
        if not 0 <= one.number < len(sweep.trials):
            continue
        trial = sweep.trials[one.number]
        is_known = not sweep.uses_optuna or trial.parameters is not None
        if is_first and is_known and trial.state is TrialState.WAITING and one.try_number >= trial.tries:
            # An earlier attempt gave it out and died before that was written.
            sweep.assign_trial(trial, container_id, container.bound_instance.index, one.try_number, state.now_ms)
        if trial.holder == container_id and trial.tries == one.try_number and trial.state is TrialState.RUNNING:
            named.add(one.number)
            _handle_trial_report(state, container, trial, one)
    if is_first:
        for trial in sweep.running_in(container_id):
            if trial.number not in named:
                sweep.requeue_trial(trial)  # the task never got it
    dispatch.update_free_slot(state, container)
    if container.orders is not None and (is_first or any(one.stop for one in sweep.running_in(container_id))):
        dispatch.send_orders(state, container)


def _handle_trial_report(state: ApplicationState, container: Container, trial: TrialRecord, one: TrialReport) -> None:
    sweep = state.sweep_state
    points = tuple((point[0], point[1]) for point in one.points[-MAX_REPORTED_POINTS:] if len(point) == 2)
    if points != trial.points:
        trial.points, trial.reports = points, one.reports
        sweep.changed += 1
    trial.problem, trial.ran_s = one.problem, one.ran_s
    if sweep.asha is not None:
        for step, value in points:
            if step > trial.evaluated_step and not trial.stop:
                trial.evaluated_step = int(step)
                decision = sweep.asha.report(trial.number, int(step), value)
                if decision is not None:
                    state.record(RungRecord(decision))
                    trial.stop = decision.message if decision.stops else ""
    elif sweep.study is not None:
        for step, value in points:
            if step > trial.evaluated_step and not trial.stop:
                trial.evaluated_step = int(step)
                if sweep.study.report(trial.number, int(step), value):
                    pruner = sweep.spec.optuna_pruner
                    trial.stop = f"stopped early at step {int(step)}: {value:.6g}, by Optuna's pruner {pruner}"
    if one.result is not None:
        _assess(state, container, trial, one, one.result)
    elif one.ran_s > 0 and container.trials_wait_ms is not None and (trial.started_ms or 0) >= container.trials_wait_ms:
        services.end_wait(state, container)  # its program runs: the service is back


def _assess(
    state: ApplicationState, container: Container, trial: TrialRecord, one: TrialReport, result: TaskResult
) -> None:
    """Decide what becomes of a trial whose program has ended."""
    sweep = state.sweep_state
    assessed = assessment.of_result(result)
    trial.exit_code, trial.outputs, trial.message = result.exit_code, result.outputs, assessed.reason
    if assessed.fault is Fault.NONE and result.left and result.outputs and not _has_data(result):
        trial.message = f"its output has no data, and {assessment.lost_work('its script', result.left)}"
        dispatch.end(state, trial, TrialState.FAILED)
    elif assessed.fault is Fault.NONE:
        trial.message = ""
        if sweep.spec.metric and not trial.points:
            trial.message = missing_metric_text(sweep.spec.metric, trial.problem)
        dispatch.end(state, trial, TrialState.DONE)
    elif assessed.fault is Fault.STOPPED and (one.timed_out or trial.stop):
        dispatch.end(state, trial, TrialState.STOPPED)
    elif state.stage is not Stage.ACTIVE:
        trial.message = state.ending.diagnostics if state.ending is not None else assessed.reason
        dispatch.end(state, trial, TrialState.WAITING)
    elif assessed.service:
        _wait(state, container, trial, assessed)
    else:
        trial.user_faults += assessed.fault is Fault.USER
        trial.node_faults += assessed.fault in _NOT_THE_PROGRAMS
        if assessed.fault in _NOT_THE_PROGRAMS:
            dispatch.pause(state, container)
        if _is_retried(sweep.spec.retries, trial, assessed):
            dispatch.requeue(state, trial)
        else:
            trial.is_lost = assessed.fault in _NOT_THE_PROGRAMS or result.storing_failed
            dispatch.end(state, trial, TrialState.FAILED)


def _wait(state: ApplicationState, container: Container, trial: TrialRecord, assessed: assessment.Assessment) -> None:
    """Let a trial wait for a service, uncounted, as long as a container does; another container may run it at once."""
    instance = container.bound_instance
    services.begin_wait(state, instance, assessed.service)
    if services.left_ms(state, instance, assessed.service) > 0:
        container.trials_wait_ms = state.now_ms
        dispatch.pause(state, container)
        dispatch.requeue(state, trial)
        return
    patience_s = state.spec.service_patience_s
    trial.message = f"waited {patience_s:g} s (service_patience) for {assessed.service}: {assessed.reason}"
    trial.is_lost = True
    dispatch.end(state, trial, TrialState.FAILED)


def _has_data(result: TaskResult) -> bool:
    return any(one.size_bytes for one in result.outputs)


def _is_retried(retries: int, trial: TrialRecord, assessed: assessment.Assessment) -> bool:
    if assessed.fault is Fault.SERVICE:
        return trial.node_faults <= dispatch.LOSSES
    return assessment.is_retried(
        assessed, user_faults=trial.user_faults, node_faults=trial.node_faults, retries=retries
    )
