"""Commit of an output: it gets its final name atomically, and is never mixed with an existing target.

The functions work on any target: `dlapp.storage.commit.local` and `dlapp.storage.commit.hdfs` describe the steps and
the temporary names beside the target; `dlapp.storage.commit.marker` is common to both.
"""

from __future__ import annotations

import contextlib

from dlapp.errors import Denied, DlappError
from dlapp.locations import HdfsPlace
from dlapp.storage.api import OutputFileSystem
from dlapp.storage.commit.marker import CommitBusy as CommitBusy
from dlapp.storage.commit.marker import CommitRefused as CommitRefused
from dlapp.storage.commit.marker import ForeignMarker as ForeignMarker
from dlapp.storage.commit.marker import OutputCommit, Parts, Step, previous_name
from dlapp.storage.commit.written import CommitTimes
from dlapp.storage.open import open_output
from dlapp.storage.values import ignore
from dlapp.system.files import UntrustedFile
from dlapp.values.ids import ApplicationId, ContainerId


def part_location(target: str, app_id: ApplicationId, part: ContainerId | str) -> str:
    """Return where a task stores its part of the output, or a trial's (`dlapp.values.ids.trial_part`)."""
    return f"{parts_location(target, app_id)}/{part}"


def trial_target(target: str, number: int | str) -> str:
    """Return the target of a trial whose output is committed separately."""
    return f"{target.rstrip('/')}/{number}"


def parts_location(target: str, app_id: ApplicationId) -> str:
    """Return the directory of all containers' parts."""
    return f"{target.rstrip('/')}.{app_id}.tmp"


def commit(
    target: str,
    app_id: ApplicationId,
    parts: Parts,
    *,
    overwrite: bool,
    keep_previous: int = 0,
    is_retry: bool = False,
    commit_times: CommitTimes = tuple,
    hdfs: HdfsPlace | None = None,
    files: OutputFileSystem | None = None,
    step: Step | None = None,
) -> str | None:
    """Make the parts the target. A commit that was started earlier is finished with the parts of its first call.

    Args:
        target: final location of the output.
        app_id: the id of the application.
        parts: stored by its containers.
        overwrite: replace an existing target. It is kept beside the new one if dlapp did not write it.
        keep_previous: number of former outputs written by dlapp that are also kept beside it; older ones are removed.
        commit_times: returns when those applications of the user ended that committed to this target [ms since 1970].
        is_retry: an earlier call may have succeeded. Then the parts count as committed if all are gone, no file of this
            application is beside the target, and the target exists and is not another application's.
        hdfs: the configured HDFS, if any; also in the functions below.
        files: the target's file system, if it is already open; also in the functions below.
        step: called with the name of each step before it is executed.

    Returns:
        Location of the old target if dlapp did not write it, could not remove it, or keeps it (`is_previous`); else
        None. The output is in place then.

    Raises:
        CommitRefused: the target exists and ``overwrite`` is false; the output is kept aside.
        CommitBusy: another process is committing it.
        NotFound: a part is missing; nothing was changed.
        DlappError: the file system failed; the parts still exist for `keep_partial`.
    """
    files = files or open_output(target, hdfs)
    # Leftovers of another application must not be mistaken for the old target; an error while settling them is reported
    # by that application.
    with contextlib.suppress(DlappError):
        finish_interrupted(target, but=app_id, files=files)
    one = output_commit(target, app_id, files=files)
    return one.commit(
        parts,
        overwrite=overwrite,
        keep_previous=keep_previous,
        is_retry=is_retry,
        commit_times=commit_times,
        step=step or ignore,
    )


def is_previous(location: str, target: str) -> bool:
    """Return whether an old target that `commit` kept was written by dlapp, by its name."""
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

    A commit that is still running is left alone. One that is refused now also counts as settled: its output is kept
    aside.

    Args:
        target: the target of the outputs.
        but: leave this application's commit alone.
        hdfs: the configured HDFS, if any.
        files: the file system of the target, if it is already open.

    Raises:
        ForeignMarker: another user's commit was interrupted; those of the caller are finished.
        UntrustedFile: a marker cannot be trusted.
    """
    finished: list[str] = []
    problem: DlappError | None = None
    files = files or open_output(target, hdfs)
    for app in files.interrupted_commits(target):
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
        target: the target of the output.
        app_id: the id of the application.
        hdfs: the configured HDFS, if any.
        files: the file system of the target, if it is already open.
    """
    return (files or open_output(target, hdfs)).output_commit(target, str(app_id))
