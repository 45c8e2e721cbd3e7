"""Settlement of an application whose ApplicationMaster died: complete a begun commit, or keep the output apart and
clean up.

When this runs, all processes of the application are gone; it holds the application's lock. It may itself die at any
point: the next one starts again, with the same result.
"""

from __future__ import annotations

import json

from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.am.decisions.shutdown import NOTHING_KEPT, complete_text
from dlapp.am.model.events import ApplicationEnd, Part, in_order
from dlapp.am.model.journal import done, records, replay
from dlapp.am.model.state import ApplicationState
from dlapp.am.settlement import OutputSettlement
from dlapp.am.view import of as view_of
from dlapp.cluster.engine import AmEngine
from dlapp.cluster.view_rules import EndFacts, ended
from dlapp.errors import DlappError, Unreachable
from dlapp.system.logs import log
from dlapp.value import replace
from dlapp.values.ids import ApplicationId, ContainerId
from dlapp.values.report import ApplicationView, Cause, FinalStatus, OutputView
from dlapp.values.spec import Submission


def settle_crashed(
    app_dir: LocalApplicationDir, application_id: ApplicationId, attempt: int, engine: AmEngine, now_ms: int, why: str
) -> None:
    """Settle the application in place of its ApplicationMaster.

    Args:
        app_dir: directory of the application.
        application_id: id of the application.
        attempt: number of the dead ApplicationMaster's attempt.
        engine: receives the final status.
        now_ms: time of the end [ms since 1970].
        why: cause of the death, in one line.

    Raises:
        Unreachable: as in `decide`.
    """
    submission = app_dir.submission()
    committed = _commit_trials(app_dir, submission, application_id)
    end, outputs = decide(app_dir, submission, application_id, why)
    view = _readable_view(app_dir) or view_of(ApplicationState(submission, application_id, attempt), "")
    if submission.spec.sweep is not None:
        _write_results(app_dir, submission, application_id, attempt, committed)
    state, finished_ms = end.cause.state(by_itself=False), view.finished_ms or now_ms
    facts = EndFacts(
        state=state,
        final_status=end.final_status,
        cause=end.cause,
        diagnostics=end.diagnostics,
        finished_ms=finished_ms,
    )
    view = replace(ended(view, facts), outputs=outputs)
    app_dir.write_view(view)
    engine.finish(end.final_status, end.cause, end.diagnostics)
    app_dir.write_report(view)


def _write_results(
    app_dir: LocalApplicationDir,
    submission: Submission,
    application_id: ApplicationId,
    attempt: int,
    committed: set[int],
) -> None:
    """Write the results of a sweep's trials from the journals: the ApplicationMaster may have died before it did.

    ``committed`` has the numbers of the trials that were committed since.
    """
    from dlapp.am.decisions.trials import recovery

    last = ApplicationState(submission, application_id, attempt)
    recovery.recover(last, replay(records(app_dir.all_journal_lines())))
    sweep = last.sweep_state
    for number in committed:
        sweep.record_committed(sweep.trials[number])
    app_dir.write_trials(sweep.results())


def decide(
    app_dir: LocalApplicationDir, submission: Submission, application_id: ApplicationId, why: str
) -> tuple[ApplicationEnd, tuple[OutputView, ...]]:
    """Return how the application has ended, and the locations of its outputs.

    A begun commit is completed: that decision had been made. If that is impossible, the output is kept apart, also
    after a kill. Without a commit, stored output is kept apart; if a kill was requested, only that of containers whose
    tasks had reported it, and of trials that had ended.

    Args:
        app_dir: directory of the application, with its commit claim.
        submission: the submission, with the outputs and their targets.
        application_id: id of the application.
        why: cause of the death of its ApplicationMaster, in one line.

    Raises:
        Unreachable: a file system does not answer. Nothing is decided by that: the next clean-up does the rest.
    """
    settlement = OutputSettlement(app_dir, submission, application_id)
    if (claim := app_dir.claimed()) is not None:
        settled = settlement.finish(claim, is_retry=True, give_up=False)
        if settled.error is not None and (by := app_dir.kill_request()) is not None:
            said = f"killed by {by}; {settled.error}"
            return ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, said), settled.outputs
        if settled.error is not None:
            return ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, settled.error), settled.outputs
        note = "the ApplicationMaster died while it committed the output; the commit was finished after it"
        said = "; ".join(filter(None, (claim.diagnostics, note)))
        return ApplicationEnd(claim.final_status, claim.cause, said), settled.outputs
    if (by := app_dir.kill_request()) is not None:
        complete = _parts(app_dir, submission, ended_only=True)[0]
        left = settlement.keep_partial(in_order(tuple(complete)) or None)
        app_dir.clear_leftovers(app_dir.container_ids())
        kept = f", {complete_text(complete)}" if any(one.partial for one in left) else NOTHING_KEPT
        return ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, f"killed by {by}{kept}"), left
    stored, lost = _parts(app_dir, submission)
    stored_parts, unstored = settlement.store_lost_outputs(lost)
    left = settlement.keep_partial(in_order((*stored, *stored_parts)))
    if not unstored:
        app_dir.clear_leftovers(set(app_dir.container_ids()) - _with_unstored_output(app_dir))
    return ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, "; ".join((why, *unstored))), left


def _parts(
    app_dir: LocalApplicationDir, submission: Submission, *, ended_only: bool = False
) -> tuple[list[Part], list[Part]]:
    """Return from the journals the containers that stored output, and those without a result.

    Of an index that succeeded only its last container counts. Of another one an earlier try may have stored something
    that the last one did not. With ``ended_only`` trials that ended because the application did do not count.
    """
    former = replay(records(app_dir.all_journal_lines()))
    if submission.spec.sweep is not None:
        from dlapp.am.model.trials import recovered_parts

        return recovered_parts(former.trials, ended_only=ended_only), []
    succeeded = set(done(former))
    stored, lost = [], []
    for container_id, known in former.containers.items():
        if known.index is None:
            continue
        if known.index in succeeded and former.last[known.index] != container_id:
            continue
        role, role_index = submission.spec.role_of(known.index)
        if known.result is not None and any(one.files for one in known.result.outputs):
            stored.append(Part(known.index, role.name, role_index, container_id, known.result.outputs))
        elif known.result is None:
            lost.append(Part(known.index, role.name, role_index, container_id, ()))
    return stored, lost


def _commit_trials(app_dir: LocalApplicationDir, submission: Submission, application_id: ApplicationId) -> set[int]:
    """Commit the ended trials, if trials are committed separately; not after a kill, or if already claimed.

    The output of a trial that cannot be committed is left with the others.

    Returns:
        The numbers of the committed trials.

    Raises:
        Unreachable: as in `decide`.
    """
    committed = set[int]()
    by_trial = any(one.by_trial for one in submission.spec.outputs)
    if not by_trial or app_dir.claimed() is not None or app_dir.kill_request() is not None:
        return committed
    from dlapp.am.model.trials import recovered_parts

    settlement = OutputSettlement(app_dir, submission, application_id)
    for part in recovered_parts(replay(records(app_dir.all_journal_lines())).trials, ended_only=True):
        if part.sources:
            continue
        try:
            settlement.commit_trial(part, is_retry=True)
            committed.add(part.index)
        except Unreachable:
            raise
        except (DlappError, OSError) as error:
            log.error(f"the output of trial {part.index} could not be committed: {error}")
    return committed


def _with_unstored_output(app_dir: LocalApplicationDir) -> set[ContainerId]:
    """Return the containers whose directory may have the only copy of an output, according to their results."""
    known = replay(records(app_dir.all_journal_lines())).containers
    return {one for one, each in known.items() if each.result is not None and each.result.unstored}


def _readable_view(app_dir: LocalApplicationDir) -> ApplicationView | None:
    try:
        return app_dir.view()
    except (DlappError, json.JSONDecodeError):
        return None  # a power failure may leave a view empty; the outcome does not depend on it
