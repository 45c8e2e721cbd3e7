"""Scan of a workspace before it is read: sizes, links, and files that cannot be packed.

A link to a path inside the workspace is kept; an absolute one is made relative, because the workspace has another path
when the program runs. A link out of the workspace would dangle there, so it is refused.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

from dlapp.errors import UsageError
from dlapp.locations import shown
from dlapp.storage.links import link_kept_inside, link_reader
from dlapp.storage.tree import kind_text
from dlapp.system.files import walk
from dlapp.system.text import human_size
from dlapp.value import Value

SPARSE_FROM = 64 << 10
"""Size from which files are searched for holes."""
_MAX_NAMED = 100
DEFAULT_EXCLUDES = (".git", ".venv", "__pycache__", "node_modules")
"""Entries of projects that a run never needs: version history, local environments, caches."""


class ScanEntry(NamedTuple):
    """One entry to pack: ``name`` is its path in the workspace, ``link`` the new target of a link, ``size_bytes`` its
    data.
    """

    name: str
    mode: int
    size_bytes: int
    link: str | None


class Scan(Value):
    """Result of scanning a workspace.

    Args:
        root: its absolute path.
        entries: to pack, parents first, sorted by the bytes of their names.
        size_bytes: total size of all files, without holes.
        left_out: for each non-empty path of ``keep_empty``, the number of its files that are not packed.
        excluded: paths not packed because of `DEFAULT_EXCLUDES`.
        warnings: lines for the user.
    """

    root: str
    entries: tuple[ScanEntry, ...]
    size_bytes: int
    left_out: dict[str, int]
    excluded: tuple[str, ...]
    warnings: tuple[str, ...]

    def largest(self, count: int = 10) -> list[tuple[str, int]]:
        """Return the largest entries with their sizes [bytes], directories with all their contents and a ``/`` at the
        end.

        Top-down: a directory stands for its contents unless one of them is more than half of it.
        """
        sizes: dict[str, int] = {}
        inside: dict[str, list[str]] = {"": []}
        for entry in self.entries:
            name = entry.name + "/" if stat.S_ISDIR(entry.mode) else entry.name
            above = name.rstrip("/").rpartition("/")[0]
            inside[f"{above}/" if above else ""].append(name)
            if name.endswith("/"):
                inside[name] = []
            sizes[name] = entry.size_bytes
        for name in reversed(sizes):  # children before parents
            above = name.rstrip("/").rpartition("/")[0]
            if above:
                sizes[f"{above}/"] += sizes[name]
        shown_now, todo = [], list(inside[""])
        while todo:
            name = todo.pop()
            within = inside.get(name, ())
            if within and max(sizes[one] for one in within) * 2 > sizes[name] > 0:
                todo.extend(within)
            else:
                shown_now.append((name, sizes[name]))
        return sorted(shown_now, key=lambda one: (-one[1], one[0]))[:count]


EMPTY = Scan(root="", entries=(), size_bytes=0, left_out={}, excluded=(), warnings=())
"""Result for an application without a workspace."""


def scan_workspace(
    root: str, *, exclude: Sequence[str] = (), exclude_defaults: bool = False, keep_empty: Collection[str] = ()
) -> Scan:
    """Scan a workspace.

    Args:
        root: its directory.
        exclude: gitignore patterns of files not to pack. As with git, a later pattern cannot re-include a path inside
            an excluded directory.
        exclude_defaults: also exclude names of `DEFAULT_EXCLUDES`, unless a pattern re-includes them.
        keep_empty: directories, relative to ``root``, that are packed without their contents.

    Raises:
        UsageError: it is not a directory, a pattern is invalid, or (all at once) links point out of it or an entry
            cannot be read.
    """
    root = os.path.abspath(root)
    if not os.path.isdir(root):
        raise UsageError(f"{shown(root)}: there is no such directory")
    by_default: list[str] = []
    is_included = _included(exclude, frozenset(DEFAULT_EXCLUDES if exclude_defaults else ()), by_default)
    kept_empty = {os.path.normpath(path): path for path in keep_empty}
    read_link, roots = link_reader(root), [root.rstrip("/"), os.path.realpath(root)]
    entries: list[ScanEntry] = []
    left_out: dict[str, int] = {}
    warnings: list[str] = []
    problems: list[str] = []
    size_bytes = 0
    # Remaining entries of the current directory, and of each of its parents.
    todo = [_listed(root, "", warnings, problems)]
    while todo:
        if not todo[-1]:
            todo.pop()
            continue
        found = todo[-1].pop()
        name = found.path[len(root) :].lstrip("/")
        try:
            status = found.stat(follow_symlinks=False)
        except FileNotFoundError:
            warnings.append(f"{shown(name)} disappeared while the workspace was scanned")
            continue
        mode = status.st_mode
        is_dir = stat.S_ISDIR(mode)
        if not is_included(name, is_dir):
            continue
        if is_dir:
            entries.append(ScanEntry(name, mode, 0, None))
            if name in kept_empty:
                if count := sum(len(files) for _, _, files in walk(found.path)):
                    left_out[kept_empty[name]] = count
            else:
                todo.append(_listed(found.path, name, warnings, problems))
        elif stat.S_ISREG(mode):
            # Check the caller's permissions by the kernel only if others may not read.
            if not mode & 0o004 and not os.access(found.path, os.R_OK, effective_ids=True):
                problems.append(f"{shown(name)} cannot be read: Permission denied")
            size = _data_size(status)
            entries.append(ScanEntry(name, mode, size, None))
            size_bytes += size
        elif stat.S_ISLNK(mode):
            text = os.readlink(found.path)
            if (kept := link_kept_inside(name, text, roots, read_link)) is None:
                problems.append(f"{shown(name)} is a link out of the workspace, to {shown(text)}")
            else:
                entries.append(ScanEntry(name, mode, 0, kept))
        else:
            warnings.append(f"{shown(name)} is not packed: it is {kind_text(mode)}")
    if problems:
        raise UsageError(_refusal(root, problems))
    return Scan(root, tuple(entries), size_bytes, left_out, tuple(by_default), tuple(warnings))


def _data_size(status: os.stat_result) -> int:
    """Return the size of a file without its holes [bytes]."""
    is_searched = status.st_size >= SPARSE_FROM
    return min(status.st_size, status.st_blocks * 512) if is_searched else status.st_size


def _included(
    exclude: Sequence[str], by_default: frozenset[str], excluded_by_default: list[str]
) -> Callable[[str, bool], bool]:
    """Return a function that tells for the path of an entry, and whether it is a directory, if the entry is packed.

    Args:
        exclude: gitignore patterns of the user.
        by_default: names that are excluded unless a pattern re-includes them.
        excluded_by_default: gets the paths that are excluded only for their names.
    """
    excluded = _excluded((*sorted(by_default), *exclude)) if exclude else None

    def is_included(name: str, is_dir: bool) -> bool:
        path, is_default = f"{name}/" if is_dir else name, name.rpartition("/")[2] in by_default
        if not (excluded(path) if excluded is not None else is_default):
            return True
        if is_default and not (exclude and _excluded(exclude)(path)):
            excluded_by_default.append(name)
        return False

    return is_included


def too_large(scan: Scan, limit_bytes: int) -> UsageError:
    """Return the error for a workspace above the limit."""
    largest = ", ".join(f"{shown(name)} {human_size(size)}" for name, size in scan.largest())
    return UsageError(
        f"the workspace {shown(scan.root)} has {human_size(scan.size_bytes)}, the limit (storage.workspace_limit) is "
        f"{human_size(limit_bytes)}; leave out what the program does not need (user_dev_workspace_exclude_list) or "
        f"bring it as input ([from_hdfs]). The largest: {largest}"
    )


def _refusal(root: str, problems: list[str]) -> str:
    if len(problems) == 1:
        return f"the workspace {shown(root)} cannot be packed: {problems[0]} (exclude it, or put it right)"
    more = [f"and {len(problems) - _MAX_NAMED} more"] if len(problems) > _MAX_NAMED else []
    lines = [f"the workspace {shown(root)} cannot be packed; exclude these, or put them right:"]
    return "\n  ".join([*lines, *problems[:_MAX_NAMED], *more])


def _listed(path: str, name: str, warnings: list[str], problems: list[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a directory, last first."""
    try:
        with os.scandir(path) as found:
            return sorted(found, key=lambda entry: os.fsencode(entry.name), reverse=True)
    except FileNotFoundError:
        warnings.append(f"{shown(name or path)} disappeared while the workspace was scanned")
    except OSError as error:
        problems.append(f"{shown(name or path)} cannot be read: {error.strerror}")
    return []


def _excluded(patterns: Sequence[str]) -> Callable[[str], bool]:
    """Return a predicate of whether a path is excluded (with ``/`` at its end for a directory)."""
    from pathspec import GitIgnoreSpec  # 15 ms, only with exclude patterns

    for pattern in patterns:
        try:
            GitIgnoreSpec.from_lines([pattern])
        except ValueError as error:
            raise UsageError(
                f"application.user_dev_workspace_exclude_list: {shown(pattern)} is not a gitignore pattern"
            ) from error
    return GitIgnoreSpec.from_lines(patterns).match_file
