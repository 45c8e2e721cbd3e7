"""Commit of an output: it gets its final name all at once, and is never mixed with what was there.

The functions are for any target: `dlapp.storage.commit.local` and `dlapp.storage.commit.hdfs` say how it goes, and what
lies beside the target meanwhile; `dlapp.storage.commit.marker` has what they share.
"""

from __future__ import annotations

import contextlib

from dlapp.errors import Denied, DlappError
from dlapp.locations import HdfsPlace
from dlapp.storage.api import OutputFileSystem
from dlapp.storage.commit.marker import CommitBusy as CommitBusy
from dlapp.storage.commit.marker import CommitRefused as CommitRefused
from dlapp.storage.commit.marker import ForeignMarker as ForeignMarker
from dlapp.storage.commit.marker import OutputCommit, Parts, Step, ignore_step, previous_name
from dlapp.storage.commit.written import CommitTimes
from dlapp.storage.open import open_output
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId, ContainerId


def part_location(target: str, app_id: ApplicationId, part: ContainerId | str) -> str:
    """Return where a container's task stores its part of the output, or that of a trial
    (`dlapp.values.ids.trial_part`)."""
    return f"{parts_location(target, app_id)}/{part}"


def trial_target(target: str, number: int | str) -> str:
    """Return where the output of a trial belongs that is committed by itself."""
    return f"{target.rstrip('/')}/{number}"


def parts_location(target: str, app_id: ApplicationId) -> str:
    """The directory of all containers' parts."""
    return f"{target.rstrip('/')}.{app_id}.tmp"


def commit(
    target: str,
    app_id: ApplicationId,
    parts: Parts,
    *,
    overwrite: bool,
    keep_previous: int = 0,
    again: bool = False,
    commit_times: CommitTimes = tuple,
    hdfs: HdfsPlace | None = None,
    files: OutputFileSystem | None = None,
    step: Step | None = None,
) -> str | None:
    """Make the parts the target. A commit that was begun is finished with the parts of its first call.

    Args:
        target: where the output belongs.
        app_id: of the application.
        parts: what its containers stored.
        overwrite: replace a target that is there. What dlapp did not write itself is kept beside it.
        keep_previous: so many former outputs that dlapp wrote are kept beside it, too; older ones are removed.
        commit_times: returns when applications of the user ended that committed to this target [ms since 1970].
        again: an earlier call may have got through. Then parts that are all gone, with nothing of this application
            beside a target that is there and is no other application's, are parts that were committed.
        hdfs: the HDFS that is configured, if one is; so in the functions below.
        files: the target's file system, if it is open already; so in the functions below.
        step: told the name of each step before it is taken.

    Returns:
        Where the old target lies if dlapp had not written it, could not remove it, or keeps it (`is_previous`); else
        None. The output is in place then.

    Raises:
        CommitRefused: the target is there and ``overwrite`` is false; the output is kept aside.
        CommitBusy: another process is at it.
        NotFound: a part is gone; nothing was changed.
        DlappError: the file system cannot do it; the parts are still there for `keep_partial`.
    """
    files = files or open_output(target, hdfs)
    # What is left of another application must not be taken for the old target; that it cannot be settled, and why,
    # is that application's story.
    with contextlib.suppress(DlappError):
        finish_interrupted(target, but=app_id, files=files)
    one = output_commit(target, app_id, files=files)
    return one.commit(
        parts,
        overwrite=overwrite,
        keep_previous=keep_previous,
        again=again,
        commit_times=commit_times,
        step=step or ignore_step,
    )


def is_previous(location: str, target: str) -> bool:
    """Return whether an old target that `commit` kept is one that dlapp wrote, by its name."""
    name = target.rstrip("/").rpartition("/")[2]
    return location.rpartition("/")[2].startswith(previous_name(name, ""))


def finish_interrupted(
    target: str,
    *,
    but: ApplicationId | None = None,
    hdfs: HdfsPlace | None = None,
    files: OutputFileSystem | None = None,
) -> list[str]:
    """Finish the caller's commits to this target whose processes died. Return the ids of their applications.

    A commit that is still going on is left alone. One that is refused now is settled as well: its output is kept aside.

    Args:
        target: where the outputs belong.
        but: leave this application's commit alone.
        hdfs: the HDFS that is configured, if one is.
        files: the file system of the target, where it is open already.

    Raises:
        ForeignMarker: another user's commit was cut off; those of the caller are finished.
        UntrustedFile: a marker is none that may be obeyed.
    """
    finished: list[str] = []
    problem: DlappError | None = None
    files = files or open_output(target, hdfs)
    for app in files.marked(target):
        try:
            if app != str(but) and files.output_commit(target, app).finish_interrupted():
                finished.append(app)
        except (Denied, UntrustedFile) as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return finished


def output_commit(
    target: str, app_id: ApplicationId, *, hdfs: HdfsPlace | None = None, files: OutputFileSystem | None = None
) -> OutputCommit:
    """Return the commit of an application to a target.

    Args:
        target: where the output belongs.
        app_id: of the application.
        hdfs: the HDFS that is configured, if one is.
        files: the file system of the target, where it is open already.
    """
    return (files or open_output(target, hdfs)).output_commit(target, str(app_id))
