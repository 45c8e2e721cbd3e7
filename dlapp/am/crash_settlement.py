"""What is done for an application whose ApplicationMaster died: finish a begun commit, or put aside and clean up.

All processes of the application are gone when this runs; it holds the application's lock. It may itself die at any
point: the next one begins again, and comes to the same end.
"""

from __future__ import annotations

import json
from dataclasses import replace

from dlapp.am.application_dir.local import LocalApplicationDir
from dlapp.am.model.events import ApplicationEnd, Part
from dlapp.am.model.journal import records, replay
from dlapp.am.settlement import carry_out_patiently, leave
from dlapp.cluster import AmEngine
from dlapp.errors import DlappError
from dlapp.ids import ApplicationId
from dlapp.messages import Phase
from dlapp.report import ApplicationView, Cause, FinalStatus, OutputView, State
from dlapp.spec import Submission


def settle_crashed(
    app_dir: LocalApplicationDir, application_id: ApplicationId, attempt: int, engine: AmEngine, now_ms: int, why: str
) -> None:
    """Bring the application to its end, in place of its ApplicationMaster.

    Args:
        app_dir: the files of the application.
        application_id: of the application.
        attempt: the number of the ApplicationMaster that died.
        engine: told how the application ended.
        now_ms: when it ended [ms since 1970].
        why: the cause of its death, in a line.

    Raises:
        Unreachable: as `decide`.
    """
    submission = app_dir.submission()
    ending, outputs = decide(app_dir, submission, application_id, why)
    app_dir.write_view(_last_view(app_dir, submission, application_id, attempt, ending, outputs, now_ms))
    engine.finish(ending.final_status, ending.cause, ending.diagnostics)


def decide(
    app_dir: LocalApplicationDir, submission: Submission, application_id: ApplicationId, why: str
) -> tuple[ApplicationEnd, tuple[OutputView, ...]]:
    """Return how the application has ended, and where its outputs are after this.

    A commit that was begun is finished: that decision had been made. Otherwise what was stored is put aside, or
    removed where somebody had asked for a kill.

    Args:
        app_dir: the files of the application, its commit claim among them.
        submission: what was submitted: the outputs and their targets.
        application_id: of the application.
        why: the cause of the death of its ApplicationMaster, in a line.

    Raises:
        Unreachable: a file system does not answer. Nothing is decided by that: whoever cleans up next does the rest.
    """
    if (claim := app_dir.claimed()) is not None:
        settled = carry_out_patiently(app_dir, claim, submission, application_id, again=True, give_up=False)
        if settled.error is not None:
            return ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, settled.error), settled.outputs
        note = "the ApplicationMaster died while it committed the output; the commit was finished after it"
        said = "; ".join(filter(None, (claim.diagnostics, note)))
        return ApplicationEnd(claim.final_status, claim.cause, said), settled.outputs
    if (by := app_dir.kill_request()) is not None:
        views = leave(submission, application_id, (), keep=False, hdfs=app_dir.hdfs)
        return ApplicationEnd(FinalStatus.KILLED, Cause.KILLED, f"killed by {by}, no output kept"), views
    parts = _stored_parts(app_dir, submission)
    left = leave(submission, application_id, parts, keep=True, hdfs=app_dir.hdfs)
    return ApplicationEnd(FinalStatus.FAILED, Cause.FAILED, why), left


def _stored_parts(app_dir: LocalApplicationDir, submission: Submission) -> list[Part]:
    """What the containers had stored by the journals, in the order of CONTAINER_INDEX."""
    former = replay(records(app_dir.all_journal_lines()))
    parts = []
    for index, container_id in sorted(former.last.items()):
        result = former.containers[container_id].result
        if result is not None and result.outputs:
            role, role_index = submission.spec.role_of(index)
            parts.append(Part(index, role.name, role_index, container_id, result.outputs))
    return parts


def _last_view(
    app_dir: LocalApplicationDir,
    submission: Submission,
    application_id: ApplicationId,
    attempt: int,
    ending: ApplicationEnd,
    outputs: tuple[OutputView, ...],
    now_ms: int,
) -> ApplicationView:
    spec = submission.spec
    memory_mib, vcores, gcores = spec.total()
    view = _readable_view(app_dir) or ApplicationView(
        application_id=application_id,
        attempt=attempt,
        state=State.RUNNING,
        username=spec.username,
        appname=spec.appname,
        queue=spec.queue or "default",
        priority=spec.priority,
        project=spec.project or "",
        tags=spec.tags,
        network=spec.network or "",
        submitter=submission.submitter,
        submitted_ms=submission.submitted_ms,
        total_containers=spec.containers,
        memory_mib=memory_mib,
        vcores=vcores,
        gcores=gcores,
    )
    state = State.FINISHED
    if ending.cause is Cause.KILLED:
        state = State.KILLED
    elif ending.cause is Cause.FAILED:
        state = State.FAILED
    containers = tuple(
        one
        if one.phase is Phase.ENDED
        else replace(one, phase=Phase.ENDED, finished_ms=now_ms, progress=None, message="ended with its application")
        for one in view.containers
    )
    return replace(
        view,
        state=state,
        final_status=ending.final_status,
        cause=ending.cause,
        phase="",
        diagnostics=ending.diagnostics,
        finished_ms=view.finished_ms or now_ms,
        containers=containers,
        outputs=outputs,
    )


def _readable_view(app_dir: LocalApplicationDir) -> ApplicationView | None:
    try:
        return app_dir.view()
    except (DlappError, json.JSONDecodeError):
        return None  # a power cut may leave a view without content; the outcome does not depend on it
