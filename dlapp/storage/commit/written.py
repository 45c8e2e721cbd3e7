"""Targets that dlapp wrote itself: with ``overwrite`` only these are removed; others are kept beside the new one.

A commit sets the attribute ``user.dlapp`` on the new target: its application and its path. After a later commit has
exchanged that target, it reads the attribute of the old one. Everyone who can write the target can set the attribute,
so it is trusted only if that is the user alone. It contains the path: a directory that was renamed, or copied with its
attributes, is not mistaken for the output of another path.

If a local file system has no attributes, and for outputs of versions that set none, the user's history is used: an
application committed to this path, and the inode has not changed since that application ended. The kernel sets the time
of that change (ctime), also on a rename to the path. HDFS keeps no such time, so only the attribute is used there.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterable

from dlapp.system.owners import other_writers

ATTRIBUTE = "user.dlapp"

CommitTimes = Callable[[], Iterable[int]]
"""Returns when applications of the user ended that committed to a target [ms since 1970]."""


def attribute_value(app: str, path: str) -> bytes:
    """Return the value of the attribute on an output of ``app`` at ``path``."""
    return f"{app} ".encode() + os.fsencode(path)


def names_path(value: bytes, path: str) -> bool:
    """Return whether an attribute's value is that of an output at ``path``."""
    return value.partition(b" ")[2] == os.fsencode(path)


def mark_written(fd: int, app: str, path: str) -> None:
    """Set the attribute on an open local file or directory. Raises OSError: its file system has no attributes."""
    os.setxattr(fd, ATTRIBUTE, attribute_value(app, path))


def is_marked(fd: int, path: str) -> bool:
    """Return whether an open local file or directory has the attribute of an output at ``path``, and only the caller
    could have set it."""
    found = os.fstat(fd)
    if found.st_uid != os.geteuid() or found.st_mode & 0o002 or other_writers(path, found):
        return False
    if not stat.S_ISDIR(found.st_mode) and found.st_mode & 0o020:
        return False
    try:
        return names_path(os.getxattr(fd, ATTRIBUTE), path)
    except OSError:
        return False


def is_unchanged_since_commit(found: os.stat_result, commit_times: CommitTimes) -> bool:
    """Return whether the entry at a target is what an application committed there, according to the user's history.

    Args:
        found: status of the current entry (lstat).
        commit_times: when those applications ended that committed there.
    """
    if found.st_uid != os.geteuid():
        return False
    changed_ms = found.st_ctime_ns // 1_000_000
    return any(changed_ms <= ended_ms for ended_ms in commit_times())
