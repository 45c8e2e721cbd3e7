"""Putting the outputs of an application where they belong: the commit claim, and the work that it stands for.

The claim is made once, before the first target is touched, and says all that is needed to finish: so an
ApplicationMaster that dies in between leaves a plan, not a riddle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dlapp.am.application_dir.interface import ApplicationDir, CommitClaim, OutputClaim
from dlapp.am.model.events import ApplicationEnd, OutputsSettled, Part, Settlement, SettleOutputs
from dlapp.errors import DlappError, Unreachable
from dlapp.ids import ApplicationId
from dlapp.locations import HdfsPlace, shown
from dlapp.report import OutputView
from dlapp.spec import OnFailure, OutputSpec, Submission
from dlapp.storage import commit
from dlapp.system import log
from dlapp.system.files import UntrustedFile

AGAIN_S = 1.0
"""Between two tries while the file system does not answer."""


def settle(
    app_dir: ApplicationDir, submission: Submission, application_id: ApplicationId, attempt: int, wanted: SettleOutputs
) -> OutputsSettled:
    """Do what ``wanted`` says with every output of the application.

    A commit that cannot be finished (an output that appeared meanwhile, a full disk) leaves that output aside and
    says so; the ones before it stay committed.

    Args:
        app_dir: the files of the application, where the claim is made.
        submission: what was submitted: the outputs and their targets.
        application_id: of the application.
        attempt: the number of this ApplicationMaster.
        wanted: what to do: commit, keep aside or remove, and which parts there are.

    Raises:
        Superseded: it is another attempt's by now.
    """
    outputs = submission.spec.outputs
    app_dir.check_ours()
    if (earlier := app_dir.claimed()) is not None:
        # An attempt before us decided; whatever we know, what it claimed is neither dropped nor put aside.
        settled = carry_out_patiently(app_dir, earlier, submission, application_id, again=True, give_up=True)
        return settled._replace(ended=ApplicationEnd(earlier.final_status, earlier.cause, earlier.diagnostics))
    if wanted.how is not Settlement.COMMIT:
        keep = wanted.how is Settlement.KEEP
        return OutputsSettled(leave(submission, application_id, wanted.parts, keep=keep, hdfs=app_dir.hdfs))
    if problem := _misplaced_part(submission, application_id, wanted.parts):
        return OutputsSettled(leave(submission, application_id, wanted.parts, keep=True, hdfs=app_dir.hdfs), problem)
    claim = app_dir.claim(
        CommitClaim(
            attempt=attempt,
            final_status=wanted.ending.final_status,
            cause=wanted.ending.cause,
            diagnostics=wanted.ending.diagnostics,
            outputs=tuple(
                OutputClaim(
                    target=output.target,
                    overwrite=output.overwrite,
                    parts=dict(_named_parts(submission, application_id, wanted.parts, output)),
                )
                for output in outputs
            ),
        )
    )
    if claim.attempt == attempt:
        return carry_out_patiently(app_dir, claim, submission, application_id, again=False, give_up=True)
    settled = carry_out_patiently(app_dir, claim, submission, application_id, again=True, give_up=True)
    return settled._replace(ended=ApplicationEnd(claim.final_status, claim.cause, claim.diagnostics))


def carry_out_patiently(
    app_dir: ApplicationDir,
    claim: CommitClaim,
    submission: Submission,
    application_id: ApplicationId,
    *,
    again: bool,
    give_up: bool,
) -> OutputsSettled:
    """Carry out a commit claim; try again while the file system does not answer and the directory has patience.

    Args:
        app_dir: the files of the application; they have the patience.
        claim, submission, application_id, again: as of `carry_out`.
        give_up: what does not answer even then counts as a commit that failed.

    Raises:
        Unreachable: it does not answer even then, and another try by somebody else is to come.
    """
    deadline = time.monotonic() + app_dir.patience_s
    while time.monotonic() < deadline:
        try:
            return carry_out(claim, submission, application_id, again=again, hdfs=app_dir.hdfs, wait=True)
        except Unreachable as error:
            log.warning(f"the output: {error}; it is tried again")
        again = True
        time.sleep(AGAIN_S)
    return carry_out(claim, submission, application_id, again=again, hdfs=app_dir.hdfs, wait=not give_up)


def carry_out(
    claim: CommitClaim,
    submission: Submission,
    application_id: ApplicationId,
    *,
    again: bool = False,
    hdfs: HdfsPlace | None = None,
    wait: bool = False,
) -> OutputsSettled:
    """Do what a commit claim says.

    Args:
        claim: what was decided, and the parts.
        submission: what was submitted: the outputs and their targets.
        application_id: of the application.
        again: some or all of it may have been done before.
        hdfs: the HDFS that is configured, if one is.
        wait: let a file system that does not answer be tried again by the caller.

    Raises:
        Unreachable: with ``wait``, where the file system does not answer; else that counts as a commit that failed.
    """
    views, error = [], None
    for spec, output in zip(submission.spec.outputs, claim.outputs, strict=True):
        parts = list(output.parts.items())
        try:
            commit.commit(output.target, application_id, parts, overwrite=output.overwrite, again=again, hdfs=hdfs)
            views.append(OutputView(name=spec.name, target=output.target, committed=True))
        except (DlappError, OSError) as problem:
            if wait and isinstance(problem, Unreachable):
                raise
            error = error or f"output {output.target} could not be committed: {problem}"
            kept = _kept(output.target, application_id, parts, hdfs)
            views.append(OutputView(name=spec.name, target=output.target, partial=kept))
    return OutputsSettled(tuple(views), error)


def leave(
    submission: Submission,
    application_id: ApplicationId,
    parts: Sequence[Part],
    *,
    keep: bool,
    hdfs: HdfsPlace | None = None,
) -> tuple[OutputView, ...]:
    """Put what was stored of each output aside, or remove it.

    Args:
        submission: what was submitted: the outputs and their targets.
        application_id: of the application.
        parts: what its containers stored.
        keep: put it aside; else it is removed.
        hdfs: the HDFS that is configured, if one is.
    """
    views = []
    for output in submission.spec.outputs:
        kept = None
        if keep and output.on_failure is OnFailure.KEEP:
            named = _named_parts(submission, application_id, parts, output)
            kept = _kept(output.target, application_id, named, hdfs)
        else:
            commit.drop(output.target, application_id, hdfs=hdfs)
        views.append(OutputView(name=output.name, target=output.target, partial=kept))
    return tuple(views)


def _kept(
    target: str, application_id: ApplicationId, parts: Sequence[tuple[str, str]], hdfs: HdfsPlace | None
) -> str | None:
    """Call `commit.keep_partial`; leave the parts where they are if a file of another user is in the way."""
    try:
        return commit.keep_partial(target, application_id, parts, hdfs=hdfs)
    except UntrustedFile as error:
        where = commit.parts_location(target, application_id)
        log.error(f"the output of {target} cannot be put aside and stays in {where}: {error}")
        return where


def _misplaced_part(submission: Submission, application_id: ApplicationId, parts: Sequence[Part]) -> str | None:
    """Say which part a task reported at another place than its container's own; None: none."""
    targets = {output.name: output.target for output in submission.spec.outputs}
    for part in parts:
        for stored in part.outputs:
            target = targets.get(stored.name)
            if target is None:
                return f"{part.container_id} reported the output {shown(stored.name)!r}, which there is none of"
            if stored.part != commit.part_location(target, application_id, part.container_id):
                return (
                    f"{part.container_id} reported its output at {shown(stored.part)}, which is not its own part of "
                    f"{shown(target)}; nothing is committed"
                )
    return None


def _named_parts(
    submission: Submission, application_id: ApplicationId, parts: Sequence[Part], output: OutputSpec
) -> list[tuple[str, str]]:
    """Return the path of each part and its name within the target: empty for the only one, else by index or role.

    The path of a part is derived from its container; a report with another path is ignored.
    """
    spec = submission.spec
    named = []
    for part in parts:
        location = commit.part_location(output.target, application_id, part.container_id)
        if any((stored.name, stored.part) == (output.name, location) for stored in part.outputs):
            if spec.containers == 1:
                name = ""
            elif len(spec.roles) == 1:
                name = str(part.index)
            else:
                name = f"{part.role}_{part.role_index}"
            named.append((name, location))
    return named
