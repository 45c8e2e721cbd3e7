"""Commit of an output: it gets its final name all at once, and is never mixed with what was there.

The functions are for any target: `dlapp.storage.commit.local` and `dlapp.storage.commit.hdfs` say how it goes, and what
lies beside the target meanwhile; `dlapp.storage.commit.marker` has what they share.
"""

from __future__ import annotations

import contextlib

from dlapp.errors import Denied, DlappError
from dlapp.ids import ApplicationId, ContainerId
from dlapp.locations import HdfsPlace
from dlapp.storage.api import FileSystem
from dlapp.storage.commit.marker import CommitBusy as CommitBusy
from dlapp.storage.commit.marker import CommitRefused as CommitRefused
from dlapp.storage.commit.marker import ForeignMarker as ForeignMarker
from dlapp.storage.commit.marker import OutputCommit, Parts, Step, ignore_step
from dlapp.storage.commit.written import CommitTimes
from dlapp.storage.open import open_location
from dlapp.system.files import UntrustedFile


def part_location(target: str, app_id: ApplicationId, container_id: ContainerId) -> str:
    """Return where a container's task stores its part of the output."""
    return f"{parts_location(target, app_id)}/{container_id}"


def parts_location(target: str, app_id: ApplicationId) -> str:
    """The directory of all containers' parts."""
    return f"{target.rstrip('/')}.{app_id}.tmp"


def commit(
    target: str,
    app_id: ApplicationId,
    parts: Parts,
    *,
    overwrite: bool,
    again: bool = False,
    commit_times: CommitTimes = tuple,
    hdfs: HdfsPlace | None = None,
    files: FileSystem | None = None,
    step: Step | None = None,
) -> str | None:
    """Make the parts the target. A commit that was begun is finished with the parts of its first call.

    Args:
        target: where the output belongs.
        app_id: of the application.
        parts: what its containers stored.
        overwrite: replace a target that is there. What dlapp did not write itself is kept beside it.
        commit_times: returns when applications of the user ended that committed to this target [ms since 1970].
        again: an earlier call may have got through. Then parts that are all gone, with nothing of this application
            beside a target that is there, are parts that were committed.
        hdfs: the HDFS that is configured, if one is; so in the functions below.
        files: the target's file system, if it is open already; so in the functions below.
        step: told the name of each step before it is taken.

    Returns:
        Where the old target lies if dlapp had not written it, or could not remove it; else None. The output is in
        place then.

    Raises:
        CommitRefused: the target is there and ``overwrite`` is false; the output is kept aside.
        CommitBusy: another process is at it.
        NotFound: a part is gone; nothing was changed.
        DlappError: the file system cannot do it; the parts are still there for `keep_partial`.
    """
    files = files or open_location(target, hdfs)
    # What is left of another application must not be taken for the old target; that it cannot be settled, and why,
    # is that application's story.
    with contextlib.suppress(DlappError):
        finish_interrupted(target, but=app_id, files=files)
    one = files.output_commit(target, str(app_id))
    return one.commit(parts, overwrite=overwrite, again=again, commit_times=commit_times, step=step or ignore_step)


def finish_interrupted(
    target: str, *, but: ApplicationId | None = None, hdfs: HdfsPlace | None = None, files: FileSystem | None = None
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
    files = files or open_location(target, hdfs)
    for app in files.marked(target):
        try:
            if app != str(but) and files.output_commit(target, app).finish_interrupted():
                finished.append(app)
        except (Denied, UntrustedFile) as error:
            problem = problem or error
    if problem is not None:
        raise problem
    return finished


def keep_partial(
    target: str, app_id: ApplicationId, parts: Parts, *, hdfs: HdfsPlace | None = None, files: FileSystem | None = None
) -> str | None:
    """Put the output of a failed application aside. Return its location, or None if there is none.

    Parts that are not there are passed over. A commit that was begun and has not reached the target is undone; one
    that has reached it is finished, and the answer is None. May be repeated.

    Args:
        target: where it was to go.
        app_id: of the application.
        parts: what its containers stored.
        hdfs: the HDFS that is configured, if one is.
        files: the file system of the target, where it is open already.

    Raises:
        CommitBusy: a process is committing it just now.
    """
    return _of(target, app_id, hdfs, files).keep_partial(parts)


def keep_failed(
    target: str, app_id: ApplicationId, parts: Parts, *, hdfs: HdfsPlace | None = None, files: FileSystem | None = None
) -> str | None:
    """Put the output of failed containers aside, of an application whose other containers' output is committed next.

    Parts that are not there are passed over. May be repeated.

    Args:
        target: where the output of the others goes.
        app_id: of the application.
        parts: what the failed containers stored.
        hdfs: the HDFS that is configured, if one is.
        files: the file system of the target, where it is open already.

    Returns:
        The location of a directory with all of them; None if there is nothing.
    """
    return _of(target, app_id, hdfs, files).keep_failed(parts)


def drop(target: str, app_id: ApplicationId, *, hdfs: HdfsPlace | None = None, files: FileSystem | None = None) -> None:
    """Remove all that an application left beside the target but its partial output. May be repeated.

    A commit that was begun and has not reached the target is given up; one that has reached it is finished.

    Args:
        target: where the output was to go.
        app_id: of the application.
        hdfs: the HDFS that is configured, if one is.
        files: the file system of the target, where it is open already.

    Raises:
        CommitBusy: a process is committing it just now.
    """
    _of(target, app_id, hdfs, files).drop()


def _of(target: str, app_id: ApplicationId, hdfs: HdfsPlace | None, files: FileSystem | None) -> OutputCommit:
    return (files or open_location(target, hdfs)).output_commit(target, str(app_id))
