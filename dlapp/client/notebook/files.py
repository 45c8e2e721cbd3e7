"""Files of a notebook, fetched into the user's own workspace.

A file is written to the workspace only if the existing one is unchanged since packing, or if there is none; otherwise
both are kept: the user's in the workspace, the notebook's where it was stored. The files were written in a container,
so they are first fetched into a separate directory, and then placed by descriptor, never through a link. Files that
programs of this machine execute or obey by their names (`dlapp.client.notebook.obeyed`) are never placed.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from dlapp.client.notebook.obeyed import is_obeyed
from dlapp.locations import HdfsPlace, last_name
from dlapp.runtime.notebook_program import SKIPPED, list_files
from dlapp.storage.glob import literal_pattern
from dlapp.storage.open import plan_fetch
from dlapp.storage.tree import explaining
from dlapp.system import files
from dlapp.system.files import remove_tree, walk
from dlapp.task.data.live_input import open_below

STAGING = ".dlapp-notebook-"
_STALE_S = 3600.0

FileFacts = tuple[int, int, int]
"""Facts about a file: size, modification time [ns], inode."""


class FetchedFiles(NamedTuple):
    """Files of a notebook by result: paths in the workspace, sorted.

    Args:
        placed: written to the workspace.
        kept: not written; another file exists there.
        left_out: not written; dlapp trusts the file there, or other programs execute files in such a directory.
    """

    placed: tuple[str, ...]
    kept: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def list_workspace(workspace: str) -> dict[str, FileFacts]:
    """Return path -> facts that change with the content, for the regular files of a workspace."""
    return list_files(workspace, ())


def remove_leftovers(workspace: str) -> None:
    """Remove leftovers in a workspace of a command that was killed while fetching files."""
    for name in os.listdir(workspace):
        path = os.path.join(workspace, name)
        with contextlib.suppress(FileNotFoundError):  # another command removed it
            if name.startswith(STAGING) and time.time() - os.lstat(path).st_mtime > _STALE_S:
                remove_tree(path)


def fetch_files(
    location: str,
    workspace: str,
    packed: Mapping[str, FileFacts],
    hdfs: HdfsPlace | None,
    trusted: Collection[str] = (),
) -> FetchedFiles:
    """Fetch the files of a notebook.

    Args:
        location: where they are stored.
        workspace: absolute path of the workspace.
        packed: path in it -> facts of the file at packing.
        hdfs: the configured HDFS, if any.
        trusted: absolute paths of files and directories that dlapp trusts on this machine; nothing is placed there.

    Raises:
        DlappError: they cannot be read or written; files placed before stay.
    """
    with explaining(workspace, "written"):
        staging = tempfile.mkdtemp(prefix=STAGING, dir=workspace)
    try:
        plan_fetch((literal_pattern(location),), staging, hdfs=hdfs).fetch()
        return _place_all(os.path.join(staging, last_name(location)), workspace, packed, trusted)
    finally:
        remove_tree(staging)


def _place_all(found: str, workspace: str, packed: Mapping[str, FileFacts], trusted: Collection[str]) -> FetchedFiles:
    placed: list[str] = []
    kept: list[str] = []
    left_out: list[str] = []
    real = os.path.realpath(workspace)
    guarded = _below(trusted, {os.path.abspath(workspace), real})

    def has(path: str) -> bool:
        return any(os.path.lexists(os.path.join(top, path)) for top in (found, real))

    with files.closing_fd(files.open_directory(real)) as top:
        for directory, names, file_names in walk(found):
            names.sort()
            below = os.path.relpath(directory, found)
            for name in sorted(file_names):
                source, path = os.path.join(directory, name), os.path.normpath(os.path.join(below, name))
                if not stat.S_ISREG(os.lstat(source).st_mode):
                    continue
                if (
                    not SKIPPED.isdisjoint(path.split("/"))
                    or is_obeyed(path, has)
                    or any(files.is_inside(f"/{path}", one) for one in guarded)
                ):
                    left_out.append(path)
                    continue
                with (
                    explaining(os.path.join(workspace, path), "written"),
                    files.closing_fd(open_below(top, os.path.normpath(below), workspace)) as at,
                ):
                    is_free = _facts(name, at) == packed.get(path)
                    if is_free:
                        os.rename(source, name, dst_dir_fd=at)
                (placed if is_free else kept).append(path)
    return FetchedFiles(tuple(placed), tuple(kept), tuple(left_out))


def _below(paths: Collection[str], workspaces: Collection[str]) -> set[str]:
    """Return the trusted paths that are in a workspace, as given or after resolving links, relative to it."""
    ways = {way(path) for path in paths for way in (os.path.abspath, os.path.realpath)}
    return {
        os.path.normpath(f"/{os.path.relpath(way, top)}")
        for way in ways
        for top in workspaces
        if files.is_inside(way, top)
    }


def _facts(name: str, directory: int) -> FileFacts | None:
    """Return the facts of a file; None if it does not exist. For other than regular files they match no file."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return (found.st_size, found.st_mtime_ns, found.st_ino) if stat.S_ISREG(found.st_mode) else (-1, 0, 0)
    return None
