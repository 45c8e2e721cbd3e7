"""Files of a notebook, brought back into the user's own workspace.

A file gets into the workspace only where the one there is still as it was packed, or where there is none; else both
stay: the user's in the workspace, the notebook's where it was stored. What comes was written in a container, so it is
fetched into a directory of its own first, and placed by descriptor, through no link. What programs of this machine run
or obey by its name (hooks of git, an environment of Python) is not placed, whatever the container stored.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Collection, Mapping
from typing import NamedTuple

from dlapp.client.shell.input import open_below
from dlapp.locations import HdfsPlace, last_name
from dlapp.runtime.notebook_program import SKIPPED, list_files
from dlapp.storage.glob import literal_pattern
from dlapp.storage.open import plan_fetch
from dlapp.storage.tree import explaining, remove_tree
from dlapp.system import files

STAGING = ".dlapp-notebook-"
_STALE_S = 3600.0

FileFacts = tuple[int, int, int]
"""Of a file: size, time of its last change [ns], inode."""


class BroughtBack(NamedTuple):
    """Files of a notebook by what became of them: paths in the workspace, sorted.

    Args:
        placed: they are in the workspace.
        kept: another file is there.
        left_out: dlapp obeys the file there, or other programs run what lies in such a directory.
    """

    placed: tuple[str, ...]
    kept: tuple[str, ...]
    left_out: tuple[str, ...] = ()


def list_workspace(workspace: str) -> dict[str, FileFacts]:
    """Return path -> what changes with its content, of the regular files of a workspace."""
    return list_files(workspace, ())


def remove_leftovers(workspace: str) -> None:
    """Remove what a command left in a workspace that was killed while it brought files back."""
    for name in os.listdir(workspace):
        path = os.path.join(workspace, name)
        if name.startswith(STAGING) and time.time() - os.lstat(path).st_mtime > _STALE_S:
            remove_tree(path)


def bring_back(
    location: str,
    workspace: str,
    packed: Mapping[str, FileFacts],
    hdfs: HdfsPlace | None,
    trusted: Collection[str] = (),
) -> BroughtBack:
    """Bring the files of a notebook back.

    Args:
        location: where they are stored.
        workspace: absolute path of the workspace.
        packed: path in it -> what was there when it was packed.
        hdfs: the HDFS that is configured, if one is.
        trusted: absolute paths of files and directories that dlapp obeys on this machine; nothing is placed there.

    Raises:
        DlappError: they cannot be read or written; those that were placed before stay.
    """
    with explaining(workspace, "written"):
        staging = tempfile.mkdtemp(prefix=STAGING, dir=workspace)
    try:
        plan_fetch((literal_pattern(location),), staging, hdfs=hdfs).fetch()
        return _place_all(os.path.join(staging, last_name(location)), workspace, packed, trusted)
    finally:
        remove_tree(staging)


def _place_all(found: str, workspace: str, packed: Mapping[str, FileFacts], trusted: Collection[str]) -> BroughtBack:
    placed: list[str] = []
    kept: list[str] = []
    left_out: list[str] = []
    real = os.path.realpath(workspace)
    guarded = _below(trusted, {os.path.abspath(workspace), real})
    with files.closing_fd(files.open_directory(real)) as top:
        for directory, names, here in os.walk(found):
            names.sort()
            below = os.path.relpath(directory, found)
            for name in sorted(here):
                source, path = os.path.join(directory, name), os.path.normpath(os.path.join(below, name))
                if not stat.S_ISREG(os.lstat(source).st_mode):
                    continue
                if not SKIPPED.isdisjoint(path.split("/")) or any(files.is_inside(f"/{path}", one) for one in guarded):
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
    return BroughtBack(tuple(placed), tuple(kept), tuple(left_out))


def _below(paths: Collection[str], workspaces: Collection[str]) -> set[str]:
    """Return those that lie in a workspace, as given or by their links, as if that were the root."""
    ways = {way(path) for path in paths for way in (os.path.abspath, os.path.realpath)}
    return {
        os.path.normpath(f"/{os.path.relpath(way, top)}")
        for way in ways
        for top in workspaces
        if files.is_inside(way, top)
    }


def _facts(name: str, directory: int) -> FileFacts | None:
    """Return the facts of a file; None: there is none. Of what is no regular file they are those of no file."""
    with contextlib.suppress(FileNotFoundError):
        found = os.stat(name, dir_fd=directory, follow_symlinks=False)
        return (found.st_size, found.st_mtime_ns, found.st_ino) if stat.S_ISREG(found.st_mode) else (-1, 0, 0)
    return None
