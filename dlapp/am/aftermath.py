"""What is done for an application whose ApplicationMaster died: finish a begun commit, or put aside and clean up.

All processes of the application are gone when this runs; it holds the application's lock. It may itself die at any
point: the next one begins again, and comes to the same end.
"""

from __future__ import annotations

import json
from dataclasses import replace

from dlapp.am.events import Ending, Part
from dlapp.am.home import Home
from dlapp.am.journal import records, replay
from dlapp.am.outputs import carry_out_patiently, leave
from dlapp.cluster import AmEngine
from dlapp.control import Phase
from dlapp.errors import DlappError
from dlapp.ids import ApplicationId
from dlapp.report import ApplicationView, Cause, FinalStatus, OutputView, State
from dlapp.spec import Submission


def settle_what_is_left(
    home: Home, application_id: ApplicationId, attempt: int, engine: AmEngine, now_ms: int, why: str
) -> None:
    """Bring the application to its end, in place of its ApplicationMaster; ``why`` it died, in a line.

    Raises:
        Unreachable: as `decide`.
    """
    submission = home.submission()
    ending, outputs = decide(home, submission, application_id, why)
    home.write_view(_last_view(home, submission, application_id, attempt, ending, outputs, now_ms))
    engine.finish(ending.final_status, ending.cause, ending.diagnostics)


def decide(
    home: Home, submission: Submission, application_id: ApplicationId, why: str
) -> tuple[Ending, tuple[OutputView, ...]]:
    """How the application has ended, and where its outputs are after this.

    A commit that was begun is finished: that decision had been made. Otherwise what was stored is put aside, or
    removed where somebody had asked for a kill.

    Raises:
        Unreachable: a file system does not answer. Nothing is decided by that: whoever cleans up next does the rest.
    """
    if (claim := home.claimed()) is not None:
        settled = carry_out_patiently(home, claim, submission, application_id, again=True, give_up=False)
        if settled.error is not None:
            return Ending(FinalStatus.FAILED, Cause.FAILED, settled.error), settled.outputs
        note = "the ApplicationMaster died while it committed the output; the commit was finished after it"
        said = "; ".join(filter(None, (claim.diagnostics, note)))
        return Ending(claim.final_status, claim.cause, said), settled.outputs
    if (by := home.kill_request()) is not None:
        views = leave(submission, application_id, (), keep=False, hdfs=home.hdfs)
        return Ending(FinalStatus.KILLED, Cause.KILLED, f"killed by {by}, no output kept"), views
    parts = _stored_parts(home, submission)
    left = leave(submission, application_id, parts, keep=True, hdfs=home.hdfs)
    return Ending(FinalStatus.FAILED, Cause.FAILED, why), left


def _stored_parts(home: Home, submission: Submission) -> list[Part]:
    """What the containers had stored by the journals, in the order of CONTAINER_INDEX."""
    former = replay(records(home.all_journal_lines()))
    parts = []
    for index, container_id in sorted(former.last.items()):
        result = former.containers[container_id].result
        if result is not None and result.outputs:
            role, role_index = submission.spec.role_of(index)
            parts.append(Part(index, role.name, role_index, container_id, result.outputs))
    return parts


def _last_view(
    home: Home,
    submission: Submission,
    application_id: ApplicationId,
    attempt: int,
    ending: Ending,
    outputs: tuple[OutputView, ...],
    now_ms: int,
) -> ApplicationView:
    spec = submission.spec
    memory_mib, vcores, gcores = spec.total()
    view = _readable_view(home) or ApplicationView(
        application_id=application_id,
        attempt=attempt,
        state=State.RUNNING,
        username=spec.username,
        appname=spec.appname,
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


def _readable_view(home: Home) -> ApplicationView | None:
    try:
        return home.view()
    except (DlappError, json.JSONDecodeError):
        return None  # a power cut may leave a view without content; the outcome does not depend on it
