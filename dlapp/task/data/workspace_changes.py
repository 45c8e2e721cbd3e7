"""New and changed files of a workspace, for a payload that wrote no output to the path in the properties file.

Changes are detected by the change time (ctime), which the kernel sets and no program can forge. Everything that dlapp
itself writes to the workspace is changed between two marks: one before unpacking, one before the payload starts. A file
with another change time was changed by the payload, also if the clock was set back meanwhile. All times are those of
the workspace's file system.
"""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections import deque
from collections.abc import Collection

from dlapp.system.files import walk
from dlapp.value import NamedTuple

_MAX_NAMES = 5
_MAX_CANDIDATES = 1000
_PYTHON_CACHE = "__pycache__"
"""Directory that Python writes for each module that a script imports from the workspace."""
_CACHES = frozenset(
    {_PYTHON_CACHE, ".cache", ".ipynb_checkpoints", ".pytest_cache", ".mypy_cache", ".ruff_cache", ".nv", ".triton"}
)
"""Directories of files that programs make again when they need them."""
_MAX_ENTRIES, _MAX_DEPTH, _SEARCH_S = 200_000, 32, 2.0
"""Limits of the search for new files, at which the container still holds its resources. Two cores read 100,000 entries
in about half a second; a tree of more, or on a slow disk, is searched from the top as far as that goes."""


class NewFiles(NamedTuple):
    """New and changed files.

    Args:
        largest: path in the workspace and size in bytes of the largest ones, the largest first.
        more: number of the others that were found.
        is_complete: the search did not reach its limits.
    """

    largest: tuple[tuple[str, int], ...]
    more: int
    is_complete: bool


class WorkspaceChanges:
    """Detector of the files that a payload created or changed in its workspace.

    Args:
        scratch: a directory on the same file system, for the marks.
    """

    def __init__(self, workspace: str, scratch: str) -> None:
        self._workspace, self._scratch = workspace, scratch
        self._real = os.path.realpath(workspace)
        self._from_ns = self._until_ns = _clock_ns(scratch, 0)

    def begin(self) -> None:
        """Set the second mark: later changes are the payload's."""
        self._real = os.path.realpath(self._workspace)
        self._until_ns = _clock_ns(self._scratch, _clock_ns(self._scratch, 0))

    def keep_only(self, without: Collection[str]) -> list[str]:
        """Remove files that the payload did not change, and Python's caches. Its processes must have ended.

        Args:
            without: other paths to remove, relative to the workspace.

        Returns:
            Return the remaining paths, sorted and relative to the workspace; those of directories end in ``/``. If the
            payload replaced the workspace by a link, remove nothing and return nothing.
        """
        if os.path.realpath(self._workspace) != self._real:
            return []
        left: list[str] = []
        unwanted = tuple(f"{os.path.normpath(path)}/" for path in without)
        for directory, names, files in reversed(list(walk(self._workspace))):
            is_cache = os.path.basename(directory) == _PYTHON_CACHE
            for name in (*files, *names):
                path = os.path.join(directory, name)
                relative = os.path.relpath(path, self._workspace)
                is_directory = os.path.isdir(path) and not os.path.islink(path)
                # Entries that cannot be removed stay.
                with contextlib.suppress(OSError):
                    if is_directory:
                        os.rmdir(path)  # fails if it contains something to keep
                    elif is_cache or f"{relative}/".startswith(unwanted) or self._is_unchanged(path):
                        os.unlink(path)
                if os.path.lexists(path):
                    left.append(f"{relative}/" if is_directory else relative)
        return sorted(left)

    def new_files(self, stored: Collection[str], most: int) -> NewFiles:
        """Return regular files that the payload created or changed and that are not stored anywhere else.

        A file with another hard link that is not in the searched part of the workspace is stored there. The search is
        limited in entries, depth and time, and begins at the top. Caches are not searched.

        Args:
            stored: paths in the workspace whose content is stored or is not the payload's.
            most: maximum number of `NewFiles.largest`.
        """
        if os.path.realpath(self._workspace) != self._real:
            return NewFiles((), 0, True)
        skipped = {os.path.normpath(path) for path in stored}
        found: list[tuple[int, str]] = []
        links: dict[tuple[int, int], list[str]] = {}
        todo, seen, is_complete, until = deque([("", 0)]), 0, True, time.monotonic() + _SEARCH_S
        while todo and seen <= _MAX_ENTRIES:
            directory, depth = todo.popleft()
            with contextlib.suppress(OSError), os.scandir(os.path.join(self._real, directory)) as entries:
                for entry in entries:
                    seen += 1
                    if seen > _MAX_ENTRIES or time.monotonic() > until:
                        is_complete, seen = False, _MAX_ENTRIES + 1
                        break
                    path = f"{directory}/{entry.name}" if directory else entry.name
                    if path in skipped or entry.is_symlink():
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        if depth >= _MAX_DEPTH:
                            is_complete = False
                        elif entry.name not in _CACHES:
                            todo.append((path, depth + 1))
                        continue
                    status = entry.stat(follow_symlinks=False)
                    if stat.S_ISREG(status.st_mode) and not self._is_made_before(status):
                        if status.st_nlink == 1:
                            found.append((status.st_size, path))
                        else:
                            links.setdefault((status.st_ino, status.st_nlink), []).append(path)
                            if len(links[status.st_ino, status.st_nlink]) == status.st_nlink:
                                found.append((status.st_size, path))
        largest = sorted(found, key=lambda one: (-one[0], one[1]))[:most]
        return NewFiles(tuple((path, size) for size, path in largest), len(found) - len(largest), is_complete)

    def _is_unchanged(self, path: str) -> bool:
        return self._is_made_before(os.lstat(path))

    def _is_made_before(self, status: os.stat_result) -> bool:
        return self._from_ns <= status.st_ctime_ns < self._until_ns


def describe(left: Collection[str]) -> str:
    """Describe the top-level entries that `WorkspaceChanges.keep_only` left: ``'log.txt', 'outptu' (3 files)``."""
    counts: dict[str, int] = {}
    for path in left:
        top, slash, _ = path.partition("/")
        counts[top] = counts.get(top, 0) + (bool(slash) and not path.endswith("/"))
    names = [
        f"{name!r} ({count} file{'s' if count > 1 else ''})" if count else repr(name) for name, count in counts.items()
    ]
    more = len(names) - _MAX_NAMES
    return ", ".join(names[:_MAX_NAMES]) + (f" and {more} more" if more > 0 else "")


def closest(wanted: str, left: Collection[str]) -> str | None:
    """Return the path most similar to the expected one; None if none is similar."""
    import difflib

    candidates = [path.rstrip("/") for path in list(left)[:_MAX_CANDIDATES]]
    found = difflib.get_close_matches(wanted, candidates, n=1, cutoff=0.5)
    return found[0] if found else None


def _clock_ns(directory: str, later_than_ns: int) -> int:
    """Return the file system's time for a change made now, after its clock has advanced."""
    path = os.path.join(directory, ".mark")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while (now_ns := os.fstat(descriptor).st_ctime_ns) == later_than_ns:
            os.fchmod(descriptor, 0o600)
        return now_ns
    finally:
        os.close(descriptor)
        os.unlink(path)
