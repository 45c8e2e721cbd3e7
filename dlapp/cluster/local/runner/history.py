"""Cleanup of the state directory: ended applications and packed workspaces by age and size, files of dead submissions.

Files that an application may still need before its end are kept.
"""

from __future__ import annotations

import contextlib
import os
import stat

from dlapp.cluster.local.attempts import is_alive
from dlapp.cluster.local.queue import Queue
from dlapp.cluster.local.row import DONE, ApplicationRow
from dlapp.cluster.local.settings import RunnerSettings
from dlapp.cluster.local.state import STALE_STAGING_S, StateDir
from dlapp.cluster.local.views import unstored_in
from dlapp.errors import DlappError
from dlapp.system.files import remove_tree
from dlapp.system.retention import KeptItem, Retention, files_in

FRESH_ARCHIVE_S = 3600.0
"""Younger archives are kept: a submission packs its archive before it inserts its row."""


def clear_old(state: StateDir, queue: Queue, settings: RunnerSettings, uid: int, now_s: float) -> int:
    """Remove ended applications of a user beyond the history's limits. Return how many were removed.

    Args:
        state: the state directory.
        queue: the rows of the applications.
        settings: the limits.
        uid: the user.
        now_s: the time [s since 1970].
    """
    rows = queue.rows(
        "state = ? AND uid = ? ORDER BY finished_ms DESC, number DESC",
        (DONE, uid),
        columns="number, id, finished_ms, submitted_ms, size_bytes",
    )
    row_by_id = {row.id: row for row in rows}
    kept = [KeptItem(row.id, row.size_bytes, row.finished_ms or row.submitted_ms) for row in rows]
    limits = Retention(settings.history_age_s, settings.history_limit_bytes)
    count = 0
    for one in limits.expired(kept, int(now_s * 1000)):
        count += forget(state, queue, row_by_id[one.name])
    return count


def forget(state: StateDir, queue: Queue, row: ApplicationRow) -> bool:
    """Remove an ended application: its directory and its row. Return False if it cannot be removed now."""
    application_dir = state.application(row.id)
    if is_alive(application_dir) or unstored_in(application_dir):
        return False
    # The files first: the next cleanup finds a row without files, but not files without a row.
    try:
        remove_tree(application_dir)
    except DlappError:
        return False
    with queue.change():
        queue.delete(row.number)
    return True


def clear_cache(state: StateDir, queue: Queue, settings: RunnerSettings, uid: int, now_s: float) -> int:
    """Remove packed workspaces of a user beyond the cache's limits, least recently used first. Return how many.

    Args:
        state: the state directory.
        queue: the rows of applications, whose workspaces are kept.
        settings: the limits.
        uid: the user.
        now_s: the time [s since 1970].
    """
    limits = Retention(settings.cache_age_s, settings.cache_limit_bytes)
    before_ms = int((now_s - FRESH_ARCHIVE_S) * 1000)
    old = [one.name for one in limits.expired(files_in(state.cache(uid)), int(now_s * 1000), before_ms)]
    if not old:
        return 0
    # Read the rows and remove the archives in one transaction: a submission checks its archive in a transaction, too.
    with queue.change():
        needed = {row.archive for row in queue.rows("state != 'done'", columns="archive")}
        gone = [path for path in old if path not in needed]
        for path in gone:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
    return len(gone)


def clear_staging(state: StateDir, now_s: float) -> None:
    """Remove the files of submissions that died before their end."""
    for entry in _entries(state.staging):
        with contextlib.suppress(OSError):
            info = entry.stat(follow_symlinks=False)
            if info.st_uid == os.geteuid() and now_s - info.st_mtime > STALE_STAGING_S:
                with contextlib.suppress(DlappError):
                    remove_tree(entry.path)


def size_of_tree(path: str) -> int:
    """Return the disk usage of a directory tree [bytes]."""
    total = 0
    pending = [path]
    while pending:
        for entry in _entries(pending.pop()):
            with contextlib.suppress(OSError):
                info = entry.stat(follow_symlinks=False)
                total += info.st_blocks * 512
                if stat.S_ISDIR(info.st_mode):
                    pending.append(entry.path)
    return total


def _entries(path: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(path) as entries:
            return list(entries)
    except OSError:
        return []
