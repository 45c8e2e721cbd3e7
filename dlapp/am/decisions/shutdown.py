"""End of an application: a user stops it, it fails, its time limit is reached, or all is done.

A decision is durable in the journal before any payload is stopped for it. A soft stop or a failure gives payloads the
grace time, then those that store output time for that; a kill gives none. Then the outputs are settled, once, and the
last ends are awaited. Each of these waits has a deadline, so the end is always reached; the diagnostics name what is
not known by then.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from dlapp.am.decisions import assessment, containers
from dlapp.am.model.events import (
    AnswerStop,
    ApplicationEnd,
    Finish,
    Kill,
    OutputsSettled,
    Part,
    Settlement,
    SettleOutputs,
    SoftKill,
    in_order,
)
from dlapp.am.model.instance import Container, Instance, Stage, StopReason
from dlapp.am.model.records.application import EndingRecord, FinishRecord, SettledRecord, SoftRecord
from dlapp.am.model.state import ApplicationState
from dlapp.value import replace
from dlapp.values.ids import ContainerId
from dlapp.values.messages import Diagnosis, Fault, Stop, StopAnswer, StoredOutput
from dlapp.values.report import Cause, FinalStatus
from dlapp.values.spec import OnFailure

NOTHING_KEPT = ", no output kept"
MAX_RUNTIME = "max_runtime"
LIFETIME = "lifetime limit of the queue or application in YARN"
IDLE_GUARD = "idle_guard"
MAX_IDLE = "max_idle"


def handle_stop(state: ApplicationState, event: SoftKill | Kill) -> None:
    """Handle a request to end the application."""
    soft = isinstance(event, SoftKill)
    if state.stage is Stage.STARTING:
        if not isinstance(state.stop.before_start, Kill):
            state.stop.before_start = event
        answer = StopAnswer(state="stopping", commits=False)
    elif state.stage is Stage.ACTIVE or (
        state.stage is Stage.CLOSING and state.closing.settlement is not Settlement.DROP and not soft
    ):
        execute_stop(state, event)
        commits = state.commits and bool(state.spec.outputs)
        answer = StopAnswer(state="stopping", left_s=_grace_left_s(state), commits=commits)
    elif soft and (kept := _kept_containers(state)):
        for container in kept:
            container.kept_until_ms = None
            state.order(container, stop=Stop.SOFT, why=f"soft-killed by {event.by}")
        state.closing.until_ms = max(state.closing.until_ms, state.awake_ms + state.timing.end_ms)
        indexes = ", ".join(str(one.instance.index) for one in kept if one.instance is not None)
        text = f"container {indexes} is kept no longer; {state.ending.diagnostics if state.ending else ''}"
        answer = StopAnswer(state="stopping", message=text)
    elif state.stage is Stage.CLOSING and state.stop.ends_ms is not None and state.stop.text is not None:
        left_s = _grace_left_s(state)
        text = f"{state.stop.text} already, {left_s:.0f} s of the grace time left"
        answer = StopAnswer(state="already", left_s=left_s, message=text)
    elif state.stage is Stage.ENDED:
        text = state.ending.diagnostics if state.ending else "the attempt has ended"
        answer = StopAnswer(state="ended", message=text)
    else:
        text = state.ending.diagnostics if state.ending else ""
        stage = "already" if state.stage is Stage.CLOSING else "ended"
        answer = StopAnswer(state=stage, message=f"it is already ending: {text}")
    state.add_action(AnswerStop(answer))


def _kept_containers(state: ApplicationState) -> list[Container]:
    """Return the containers kept after their failures while the application ends, without overdue ones."""
    margin_ms = state.timing.store_ms
    return [
        one for one in state.containers.open.values() if one.is_kept and state.awake_ms < one.keep_ends_ms + margin_ms
    ]


def _grace_left_s(state: ApplicationState) -> float:
    if state.stop.ends_ms is None or state.stop.text is None:
        return 0.0
    return max(0, state.stop.until_ms - state.awake_ms) / 1000


def execute_stop(state: ApplicationState, event: SoftKill | Kill) -> None:
    """End the application as requested."""
    if isinstance(event, SoftKill):
        stop_softly(state, event.by, Cause.SOFT_KILLED)
        return
    if state.stage is Stage.CLOSING and state.stop.text is None and state.commits and _is_decided(state):
        # The output is stored; what still runs are services and roles that do not decide.
        assert state.ending is not None
        conclude(state, state.ending, Settlement.COMMIT)
        return
    state.stop.text = None
    text = f"killed by {event.by}{NOTHING_KEPT if state.spec.outputs else ''}"
    conclude(state, ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, text), Settlement.DROP)


def _is_decided(state: ApplicationState) -> bool:
    """Return whether the application has ended by itself, with all its output stored."""
    return bool(state.deciding) and not state.undecided and any(state.instances[index].done for index in state.deciding)


def stop_softly(state: ApplicationState, by: str, cause: Cause, *, ends_ms: int | None = None) -> None:
    """End the payloads with SIGTERM and keep their stored output; before any payload has run, kill.

    Args:
        state: state of the application; it is changed.
        by: who requested it, or the reached limit.
        cause: SOFT_KILLED or TIMED_OUT.
        ends_ms: end of the grace time [ms since 1970], if an earlier attempt began this.
    """
    text = f"soft-killed by {by}" if cause is Cause.SOFT_KILLED else f"timed out: {by}"
    if by == MAX_RUNTIME:
        text = f"timed out after {state.spec.max_runtime_s:g} s"
    if not state.payload_ran and not any(one.unconfirmed for one in state.containers.open.values()):
        cause = Cause.KILLED if cause is Cause.SOFT_KILLED else cause
        ending = ApplicationEnd(FinalStatus.KILLED, cause, f"{text} before a payload ran")
        conclude(state, ending, Settlement.DROP)
        return
    grace_ms = int(state.spec.kill_grace_s * 1000)
    if ends_ms is None:
        state.stop.ends_ms = state.now_ms + grace_ms
    else:
        state.stop.ends_ms = ends_ms
        grace_ms = max(0, min(grace_ms, ends_ms - state.now_ms))
    state.stop.by, state.stop.text = by, text
    state.record(SoftRecord(by, cause, state.stop.ends_ms), durable=True)
    conclude(state, ApplicationEnd(FinalStatus.KILLED, cause, text), Settlement.COMMIT, grace_ms=grace_ms)


def end_unused(state: ApplicationState, idle_s: float) -> None:
    """End an application with services only that nobody has used for ``max_idle``, successfully."""
    text = f"nobody was connected for {idle_s:g} s ({MAX_IDLE})"
    ending = ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, text)
    conclude(state, ending, Settlement.COMMIT, grace_ms=int(state.spec.kill_grace_s * 1000))


def diagnosis_of_limit(ending: ApplicationEnd) -> Diagnosis:
    """Return the cause of an end by a limit, from its diagnostics (`stop_softly`)."""
    if LIFETIME in ending.diagnostics:
        rule, cause, next_step = "lifetime_limit", "it reached the lifetime limit of YARN", "ask the operator"
    elif IDLE_GUARD in ending.diagnostics:
        rule, cause = "idle_guard", "its GPUs were not used"
        next_step = "request fewer GPUs; idle_guard sets how long they may be idle"
    else:
        rule, cause = "time_limit", "it ran for longer than max_runtime"
        next_step = "set a longer max_runtime; with a [checkpoint] dlapp-launcher --resume goes on"
    return Diagnosis(rule=rule, cause=cause, fault=Fault.USER, next_step=next_step)


def handle_lifetime(state: ApplicationState, killed_in_s: float) -> None:
    """Record in how many seconds the engine is going to kill the application; infinity: never."""
    state.lifetime.killed_until_ms = state.awake_ms + killed_in_s * 1000
    state.lifetime.limit_ms = state.lifetime.killed_until_ms - state.lifetime.runtime_from_ms


def _lifetime_grace_ms(state: ApplicationState) -> int | None:
    """Return the remaining grace time of a soft stop that must complete, with stored output, before the engine kills
    the application [ms]; None: not due. Half of even a short lifetime is left to the payload.
    """
    if math.isinf(state.lifetime.killed_until_ms):
        return None
    timing, grace_ms = state.timing, int(state.spec.kill_grace_s * 1000)
    store_ms = min(max(state.lifetime.limit_ms / 10, timing.least_store_ms), timing.most_store_ms)
    left_ms = state.lifetime.killed_until_ms - state.awake_ms
    if left_ms > min(grace_ms + store_ms, state.lifetime.limit_ms / 2):
        return None
    return int(min(grace_ms, max(left_ms - store_ms, left_ms / 2, 0)))


def fail(state: ApplicationState, text: str) -> None:
    """End the application as failed; the other payloads get the grace time to save their state."""
    if state.stage is Stage.ACTIVE:
        ending = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, text)
        conclude(state, ending, Settlement.KEEP, grace_ms=int(state.spec.kill_grace_s * 1000), decided=True)


def conclude(
    state: ApplicationState,
    ending: ApplicationEnd,
    how: Settlement,
    *,
    grace_ms: int | None = None,
    decided: bool = False,
) -> None:
    """Stop all containers, and then end.

    Args:
        state: state of the application; it is changed.
        ending: how the application ends.
        how: what to do with the outputs.
        grace_ms: between SIGTERM and SIGKILL, after which output is stored; None: SIGKILL and no output.
        decided: the end does not depend on the stored output.
    """
    state.ending, state.closing.settlement = ending, how
    state.stage = Stage.CLOSING
    state.closing.stage = 0
    if grace_ms is None or decided:
        # Durable before any payload is stopped: a next attempt must not treat their ends as failures.
        state.record(EndingRecord(ending, how), durable=True)
    if grace_ms is None:
        containers.stop_all(state)
        state.closing.stage = 2
        state.closing.until_ms = state.awake_ms + state.timing.end_ms
        return
    for container in list(state.containers.open.values()):
        if container.is_kept and ending.cause is Cause.FAILED:
            continue
        container.kept_until_ms = None
        orders = container.orders
        may_run = container.ran or (orders is not None and orders.go)
        if container.instance is None or container.stop_reason is not None or orders is None or not may_run:
            containers.stop(state, container, StopReason.ENDING)
        elif orders.stop is Stop.NO:
            text = containers.stop_text(state, StopReason.ENDING)
            reason = ending.cause.value.replace("-", "_").replace(" ", "_")
            state.order(container, stop=Stop.SOFT, why=text, reason=reason, grace_s=grace_ms / 1000)
    state.stop.until_ms = state.awake_ms + grace_ms
    state.closing.until_ms = state.stop.until_ms + state.timing.soft_margin_ms


def advance(state: ApplicationState) -> None:
    """Begin an end that is due by itself, and the next stage of an end when one is complete."""
    if state.stage is Stage.ACTIVE:
        limit_s = state.spec.max_runtime_s if state.start_gate.is_open else None
        if not state.undecided and not state.spec.is_service:
            _conclude_decided(state)
        elif limit_s is not None and state.awake_ms - state.lifetime.runtime_from_ms >= limit_s * 1000:
            stop_softly(state, MAX_RUNTIME, Cause.TIMED_OUT)
        elif (grace_ms := _lifetime_grace_ms(state)) is not None:
            stop_softly(state, LIFETIME, Cause.TIMED_OUT, ends_ms=state.now_ms + grace_ms)
    if state.stage is Stage.CLOSING:
        _check_closing(state)
    if state.stage is Stage.LEAVING and (not state.containers.live or state.awake_ms >= state.closing.until_ms):
        _finish(state)


def _conclude_decided(state: ApplicationState) -> None:
    """End the application once each deciding index has succeeded, or has failed and the others were to continue."""
    if state.sweep is not None:
        _conclude_sweep(state)
        return
    failure = _failure_text(state)
    if all(state.instances[index].failed for index in state.deciding):
        fail(state, failure)
        return
    ending = ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, "")
    if failure:
        ending = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, failure)
    conclude(state, ending, Settlement.COMMIT, grace_ms=int(state.spec.kill_grace_s * 1000))


def _conclude_sweep(state: ApplicationState) -> None:
    """End the application once each trial has ended, or no container is left to run one."""
    from dlapp.am.decisions import sweep_summary

    sweep = state.sweep_state
    text = sweep_summary.failures_text(sweep)
    if sweep.left:
        fail(state, _failure_text(state) or "no container is left that runs trials")
    elif sweep.failed == len(sweep.trials):
        fail(state, text)
    else:
        ending = ApplicationEnd(FinalStatus.SUCCEEDED, Cause.SUCCEEDED, text)
        if any(one.is_lost for one in sweep.trials):
            text += "; the output of the others is committed, and `dlapp-launcher --resume` runs the trials that failed"
            ending = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, text)
        conclude(state, ending, Settlement.COMMIT, grace_ms=int(state.spec.kill_grace_s * 1000))


def _failure_text(state: ApplicationState) -> str:
    """Return the indexes that failed while the others continued, as text; empty: none."""
    return assessment.failures({one.index: one.failed for one in state.instances if one.failed}, len(state.instances))


def _check_closing(state: ApplicationState) -> None:
    if not state.containers.open:
        if state.sweep is None or not state.sweep.committing or state.closing.settlement is Settlement.DROP:
            settle(state)
    elif state.awake_ms < state.closing.until_ms:
        return
    elif not (others := _not_kept(state)):
        return  # they end by themselves
    elif state.closing.stage == 0:
        # The grace time and its margin are over. Containers that store go on: their output would be lost otherwise.
        storing = False
        for container in others:
            if container.storing and container.stop_reason is None:
                storing = True
            else:
                containers.stop(state, container, StopReason.ENDING, at_once=True)
        state.closing.stage = 1 if storing else 2
        store_ms = state.timing.store_ms + int(state.spec.output_patience_s * 1000)
        state.closing.until_ms = state.awake_ms + (store_ms if storing else state.timing.end_ms)
    elif state.closing.stage == 1:
        for container in others:
            containers.stop(state, container, StopReason.ENDING, at_once=True)
        state.closing.stage = 2
        state.closing.until_ms = state.awake_ms + state.timing.end_ms
    elif not _kept_containers(state):
        settle(state)


def _not_kept(state: ApplicationState) -> list[Container]:
    kept = _kept_containers(state)
    return [one for one in state.containers.open.values() if one not in kept]


def settle(state: ApplicationState) -> None:
    """Start the settlement of the outputs."""
    assert state.ending is not None
    parts = tuple(
        _part(one, *one.stored)
        for one in state.instances
        if one.stored is not None and (one.done or (not one.failed and _filled(one.stored[1])))
    )
    if state.stop.text is not None:
        parts = _nonempty_parts(parts)
    there = {part.index for part in parts}
    failed, lost = _kept_parts([one for one in state.instances if one.index not in there])
    if state.sweep is not None:
        from dlapp.am.decisions import sweep_summary

        parts, lost = sweep_summary.parts_of(state.sweep, failed=False), ()
        failed = sweep_summary.parts_of(state.sweep, failed=True)
    if state.stop.text is not None:
        _describe_soft_end(state, state.stop.text, parts, has_rest=bool(failed or lost))
    withheld = False
    if state.ending.cause is Cause.SUCCEEDED and state.commits and (lost_work := _lost_work_text(state)):
        parts, withheld = _withhold_outputs(state, lost_work, parts)
    state.closing.until_ms = state.awake_ms + state.timing.end_ms
    if state.commits or state.stop.text is not None or withheld:
        state.record(EndingRecord(state.ending, state.closing.settlement), durable=True)
    state.stage = Stage.SETTLING
    committed = state.sweep.committed if state.sweep is not None else 0
    dead = tuple(
        each.container_id
        for one in state.instances
        for each in filter(None, (*one.earlier, one.last))
        if each.result is None and each.end is not None
    )
    match how := state.closing.settlement:
        case Settlement.COMMIT:
            state.add_action(SettleOutputs(how, state.ending, parts, failed, lost, dead, committed))
        case Settlement.KEEP:
            # An earlier try of an unfinished index may have stored something that the last one did not.
            kept, done = failed, parts
            if state.sweep is None:
                kept, lost = _kept_parts([one for one in state.instances if not one.done])
                done = tuple(part for part in parts if state.instances[part.index].done)
            parts = in_order(done + kept)
            state.add_action(SettleOutputs(how, state.ending, parts, (), lost, dead, committed))
        case Settlement.DROP:
            # What a container or a trial has stored is kept apart, also after a kill: its task reports it when all is.
            stored = in_order(parts + failed)
            if state.sweep is not None:
                from dlapp.sweep.results import WITH_RESULT

                # What a sweep took over from another one is still there.
                ended = [one for one in parts if state.sweep.trials[one.index].state in WITH_RESULT]
                stored = tuple(one for one in ended if not one.sources)
            names = {one.name for one in state.spec.outputs if one.on_failure is OnFailure.KEEP}
            if complete := [one for one in stored if names & _filled(one.outputs)]:
                text = f"{state.ending.diagnostics.removesuffix(NOTHING_KEPT)}, {complete_text(complete)}"
                state.ending = replace(state.ending, diagnostics=text)
            state.add_action(SettleOutputs(how, state.ending, stored, dead=dead, committed=committed))


def complete_text(parts: Sequence[Part]) -> str:
    """Return whose output a kill keeps apart: that of containers or trials which was complete."""
    if parts and parts[0].trial:
        whose = ("trial " if len(parts) == 1 else "trials ") + assessment.listed([str(one.index) for one in parts])
    else:
        whose = assessment.listed([assessment.container_name(one.index, one.role, one.role_index) for one in parts])
    return f"the complete output of {whose} kept as partial"


def _filled(outputs: tuple[StoredOutput, ...]) -> set[str]:
    """Return the names of the outputs that have a file."""
    return {one.name for one in outputs if one.files and not one.stray}


def _nonempty_parts(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    """Return the parts without the outputs that contain no file: the end came too early for them."""
    return _parts_of(parts, _filled(tuple(one for part in parts for one in part.outputs)))


def _parts_of(parts: tuple[Part, ...], names: set[str]) -> tuple[Part, ...]:
    """Return the parts with the outputs of these names, and those that are kept apart."""
    return tuple(
        replace(part, outputs=tuple(one for one in part.outputs if one.stray or one.name in names)) for part in parts
    )


def _kept_parts(instances: list[Instance]) -> tuple[tuple[Part, ...], tuple[Part, ...]]:
    """Return the kept output of indexes that did not succeed, of all their tries.

    Returns:
        These are the stored parts; and containers whose task ended without a result, as parts without outputs.
    """
    stored, lost = [], []
    for one in instances:
        with_files, without_result = one.tries_with_output()
        stored += [_part(one, each.container_id, each.result.outputs) for each in with_files if each.result is not None]
        lost += [_part(one, each.container_id, ()) for each in without_result]
    return tuple(stored), tuple(lost)


def _part(instance: Instance, container_id: ContainerId, outputs: tuple[StoredOutput, ...]) -> Part:
    return Part(instance.index, instance.role.name, instance.role_index, container_id, outputs)


def _describe_soft_end(state: ApplicationState, text: str, parts: tuple[Part, ...], *, has_rest: bool) -> None:
    """Add to the diagnostics ``text`` what happens to the output, which is known only now.

    ``parts`` are to be committed; with ``has_rest`` other containers may have left output.
    """
    assert state.ending is not None
    filled = _filled(tuple(one for part in parts for one in part.outputs))
    if not state.spec.outputs:
        pass
    elif not filled and state.sweep is not None and state.sweep.committed:
        state.closing.settlement = Settlement.COMMIT
        text += ", output committed"
    elif not filled:
        text += ", there was no output to commit"
        state.closing.settlement = Settlement.KEEP if parts or has_rest else Settlement.DROP
    elif state.ending.cause is Cause.TIMED_OUT and not _all_succeeded(state):
        # Nobody has checked that it is worth keeping, and it may be incomplete.
        text += ", output kept as partial: not every script ended with exit code 0 in its grace time"
        state.closing.settlement = Settlement.KEEP
    else:
        text += ", output committed"
        there = {part.index for part in parts}
        without = [one for one in _with_output(state) if one.index not in there and not one.failed]
        if state.sweep is not None:
            without = []  # its parts belong to trials
        if without:
            names = [assessment.container_name(one.index, one.role.name, one.role_index) for one in without]
            text += f" but for {assessment.listed(names)}"
        if empty := [one.target for one in state.spec.outputs if one.name not in filled]:
            text += f"; there was none for {assessment.listed(empty)}"
    if failure := _failure_text(state):
        text += f"; {failure}"
    state.ending = replace(state.ending, diagnostics=text)


def _lost_work_text(state: ApplicationState) -> str:
    """Return which script ended before processes that it had started, which were killed; empty: none."""
    for one in state.instances:
        if one.done and one.last is not None and one.last.result is not None and (left := one.last.result.left):
            name = assessment.container_name(one.index, one.role.name, one.role_index)
            return assessment.lost_work(f"the script of {name}", left)
    return ""


def _withhold_outputs(
    state: ApplicationState, lost_work: str, parts: tuple[Part, ...]
) -> tuple[tuple[Part, ...], bool]:
    """Let no output without data replace an older one, as work was lost; the application failed if none has data.

    Returns:
        The parts to commit, and whether the application failed.
    """
    with_data = {one.name for part in parts for one in part.outputs if one.size_bytes}
    without = [one.target for one in state.spec.outputs if one.name not in with_data]
    assert state.ending is not None
    if not without:
        return parts, False
    if not with_data:
        state.ending = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, f"the output has no data, and {lost_work}")
        state.closing.settlement = Settlement.KEEP
        return parts, True
    text = f"there was no data for {assessment.listed(without)}, and {lost_work}"
    text = "; ".join(filter(None, (state.ending.diagnostics, text)))
    state.ending = replace(state.ending, diagnostics=text)
    return _parts_of(parts, with_data), False


def _with_output(state: ApplicationState) -> list[Instance]:
    return [one for one in state.instances if not one.role.keep_running]


def _all_succeeded(state: ApplicationState) -> bool:
    """Return whether every payload exited with 0, so that it saved its state."""
    lasts = [one.last for one in _with_output(state)]
    return all(one is not None and one.result is not None and one.result.exit_code == 0 for one in lasts)


def handle_settled(state: ApplicationState, event: OutputsSettled) -> None:
    """Handle the settled outputs, or their failure: wait for the last ends."""
    if state.stage is not Stage.SETTLING:
        return
    assert state.ending is not None
    state.closing.outputs, state.waiting_for = event.outputs or state.closing.outputs, ""
    if event.ended is not None:
        state.ending = event.ended
    if event.error is not None and state.commits:
        failure = _failure_text(state)
        text = f"{failure}; {event.error}" if failure else event.error
        state.ending = ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, text)
    elif event.error is not None:
        state.ending = replace(state.ending, diagnostics=f"{state.ending.diagnostics}; {event.error}")
    if state.sweep is not None and state.sweep.committed and not state.commits:
        places = assessment.listed([one.target for one in state.spec.outputs])
        count = state.sweep.committed
        text = f"the output of {count} trial{'s is' if count > 1 else ' is'} committed in {places}"
        state.ending = replace(state.ending, diagnostics="; ".join(filter(None, (state.ending.diagnostics, text))))
    state.record(SettledRecord(state.ending, state.closing.settlement, state.closing.outputs))
    state.stage = Stage.LEAVING
    state.closing.until_ms = state.awake_ms + state.timing.end_ms


def _finish(state: ApplicationState) -> None:
    assert state.ending is not None
    if state.containers.live:
        names = [f"{one.container_id} on {one.host}" for one in state.containers.live.values()]
        end = "the end of " + assessment.listed(names) + " is not known"
        text = state.ending.diagnostics
        state.ending = replace(state.ending, diagnostics=f"{text}; {end}" if text else end)
    state.stage = Stage.ENDED
    state.lifetime.finished_ms = state.now_ms
    state.record(FinishRecord())
    state.add_action(Finish(state.ending))
