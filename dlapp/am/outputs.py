"""Putting the outputs of an application where they belong: the commit claim, and the work that it stands for.

The claim is made once, before the first target is touched, and says all that is needed to finish: so an
ApplicationMaster that dies in between leaves a plan, not a riddle.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from dlapp.am.events import Ending, OutputsSettled, Part, Settlement, SettleOutputs
from dlapp.am.home import CommitClaim, Home, OutputClaim
from dlapp.errors import DlappError, Unreachable
from dlapp.ids import ApplicationId
from dlapp.report import OutputView
from dlapp.spec import OnFailure, OutputSpec, Submission
from dlapp.storage import HdfsPlace, commit

AGAIN_S = 1.0
"""Between two tries while the file system does not answer."""


def settle(
    home: Home, submission: Submission, application_id: ApplicationId, attempt: int, wanted: SettleOutputs
) -> OutputsSettled:
    """Do what ``wanted`` says with every output of the application.

    A commit that cannot be finished (an output that appeared meanwhile, a full disk) leaves that output aside and
    says so; the ones before it stay committed.

    Raises:
        Superseded: it is another attempt's by now.
    """
    outputs = submission.spec.outputs
    home.check_ours()
    if (earlier := home.claimed()) is not None:
        # An attempt before us decided; whatever we know, what it claimed is neither dropped nor put aside.
        settled = carry_out_patiently(home, earlier, submission, application_id, again=True, give_up=True)
        return settled._replace(ended=Ending(earlier.final_status, earlier.cause, earlier.diagnostics))
    if wanted.how is not Settlement.COMMIT:
        keep = wanted.how is Settlement.KEEP
        return OutputsSettled(leave(submission, application_id, wanted.parts, keep=keep, hdfs=home.hdfs))
    claim = home.claim(
        CommitClaim(
            attempt=attempt,
            final_status=wanted.ending.final_status,
            cause=wanted.ending.cause,
            diagnostics=wanted.ending.diagnostics,
            outputs=tuple(
                OutputClaim(
                    target=output.target,
                    overwrite=output.overwrite,
                    parts=dict(_named_parts(submission, wanted.parts, output)),
                )
                for output in outputs
            ),
        )
    )
    if claim.attempt == attempt:
        return carry_out_patiently(home, claim, submission, application_id, again=False, give_up=True)
    settled = carry_out_patiently(home, claim, submission, application_id, again=True, give_up=True)
    return settled._replace(ended=Ending(claim.final_status, claim.cause, claim.diagnostics))


def carry_out_patiently(
    home: Home, claim: CommitClaim, submission: Submission, application_id: ApplicationId, *, again: bool, give_up: bool
) -> OutputsSettled:
    """`carry_out`, again while the file system does not answer and the home has patience.

    Args:
        give_up: what does not answer even then counts as a commit that failed.

    Raises:
        Unreachable: it does not answer even then, and another try by somebody else is to come.
    """
    deadline = time.monotonic() + home.patience_s
    while time.monotonic() < deadline:
        try:
            return carry_out(claim, submission, application_id, again=again, hdfs=home.hdfs, wait=True)
        except Unreachable as error:
            print(f"the output: {error}; it is tried again", flush=True)
        again = True
        time.sleep(AGAIN_S)
    return carry_out(claim, submission, application_id, again=again, hdfs=home.hdfs, wait=not give_up)


def carry_out(
    claim: CommitClaim,
    submission: Submission,
    application_id: ApplicationId,
    *,
    again: bool = False,
    hdfs: HdfsPlace | None = None,
    wait: bool = False,
) -> OutputsSettled:
    """Do what a commit claim says; with ``again`` some or all of it may have been done before.

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
            kept = commit.keep_partial(output.target, application_id, parts, hdfs=hdfs)
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
    """Put what was stored of each output aside, or remove it."""
    views = []
    for output in submission.spec.outputs:
        kept = None
        if keep and output.on_failure is OnFailure.KEEP:
            kept = commit.keep_partial(
                output.target, application_id, _named_parts(submission, parts, output), hdfs=hdfs
            )
        else:
            commit.drop(output.target, application_id, hdfs=hdfs)
        views.append(OutputView(name=output.name, target=output.target, partial=kept))
    return tuple(views)


def _named_parts(submission: Submission, parts: Sequence[Part], output: OutputSpec) -> list[tuple[str, str]]:
    """What each part of an output is called within the target: nothing for the only one, else by index or role."""
    spec = submission.spec
    named = []
    for part in parts:
        for stored in part.outputs:
            if stored.name == output.name:
                if spec.containers == 1:
                    name = ""
                elif len(spec.roles) == 1:
                    name = str(part.index)
                else:
                    name = f"{part.role}_{part.role_index}"
                named.append((name, stored.part))
    return named
