"""Input in a live workspace: the user's own directory (`dlapp.values.launch_spec`).

A program in another shell's container may write to the workspace at the same time. So input is fetched into a directory
outside of all containers, and placed in the workspace by descriptor, never through a link: it is renamed, or, if the
workspace is on another file system, copied beside its place and then renamed. So a named file is complete. An existing
file is kept: an earlier session fetched it, or the user changed it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import posixpath
import tempfile
from collections.abc import Callable, Sequence

from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.locations import shown
from dlapp.storage.inputs import FetchFiles, PlannedInput
from dlapp.storage.tree import copy_nodes, explained, explaining, nodes_to_fetch
from dlapp.storage.values import FileTotals, Progress
from dlapp.system import files
from dlapp.system.files import remove_tree
from dlapp.values.spec import InputSpec

STAGING = ".dlapp-shell-input-"
Note = Callable[[str], None]


def missing_input(inputs: Sequence[InputSpec], workspace: str, note: Note) -> tuple[InputSpec, ...]:
    """Return the sections whose input is fetched, as far as the workspace itself shows; note why others are not.

    Args:
        inputs: the sections.
        workspace: its absolute path.
        note: called with one line for each notice for the user.

    Raises:
        UsageError: a link in the workspace points out of it.
    """
    return tuple(one for one in inputs if not _already_exists(one, workspace, note))


def target_path(one: InputSpec, workspace: str) -> str:
    """Return the path that input is written to. Raises UsageError: a link in it points out of the workspace."""
    into = os.path.normpath(os.path.join(workspace, one.input_path))
    _resolve_inside(into, workspace)
    return into


def _resolve_inside(path: str, workspace: str) -> str:
    """Return the relative path in the workspace with links resolved. A program in an earlier shell may have created a
    link.

    Raises:
        UsageError: the link points out of the workspace, or it was replaced just now.
    """
    try:
        root, real = os.path.realpath(workspace), os.path.realpath(path)
    except OSError as error:  # it was a link, and is not one any more
        relative = shown(os.path.relpath(path, workspace))
        raise UsageError(f"{relative} was changed meanwhile: {error.strerror}") from error
    if real != root and not real.startswith(root.rstrip("/") + "/"):
        relative = shown(os.path.relpath(path, workspace))
        raise UsageError(f"{relative} leads out of the workspace by a link, to {shown(real)}; remove it")
    return os.path.relpath(real, root)


def _already_exists(one: InputSpec, workspace: str, note: Callable[[str], None]) -> bool:
    """Return True if a list, or the content of archives, was fetched before, or there is nothing to fetch."""
    into = target_path(one, workspace)
    if one.mode in ("feed", "mount"):
        note(f"{one.input_path} is not there: a shell has no input with mode={one.mode}")
        return True
    if one.as_list:
        existing = os.path.lexists(into)
    else:
        existing = one.unpack and into != os.path.normpath(workspace) and _has_entries(into)
    if existing:
        note(f"{one.input_path} already exists: kept as it is")
    return existing


def _has_entries(directory: str) -> bool:
    """Return False for a directory that is empty or missing; a program in another shell may remove it at any time."""
    try:
        with explaining(directory, "read"):
            return bool(os.listdir(directory))
    except NotFound:
        return False


def add_input(
    planned: PlannedInput,
    workspace: str,
    private: str,
    note: Note,
    fetch: FetchFiles,
    progress: Progress | None = None,
) -> tuple[list[str], FileTotals]:
    """Fetch the missing input of a section into the workspace. Return the paths that were added, relative to the
    workspace, and their totals.

    Args:
        planned: its plan, for `target_path`.
        workspace: its absolute path.
        private: the absolute path of a directory that only the caller can write to and no container mounts.
        note: called with one line for each notice for the user.
        fetch: executes the plan, through a cache or not.
        progress: called while unpacking.

    Raises:
        UntrustedFile: a directory of the workspace was replaced by a link.
        DlappError: a file has the name of fetched input, or there is no space.
    """
    one = planned.section
    into = target_path(one, workspace)
    if one.as_list or one.unpack:
        if _already_exists(one, workspace, note):
            return [], FileTotals(0, 0)
    else:
        existing = [each for _, each in planned.plan.targets if os.path.lexists(each.path)]
        for each in existing:
            note(f"{os.path.relpath(each.path, workspace)} already exists: kept as it is")
        planned = planned._replace(plan=planned.plan.without(existing))
        if existing and not planned.plan.targets:
            return [], FileTotals(0, 0)
    directory = os.path.dirname(into) if one.as_list else into
    staging = tempfile.mkdtemp(prefix="input-", dir=private)
    try:
        found = os.path.join(staging, "input")
        fresh = os.path.join(found, os.path.basename(into)) if one.as_list else found
        totals = planned.fetch(fresh, fetch, os.path.join(staging, "archives"), progress)
        names = sorted(os.listdir(found))
        with (
            files.closing_fd(files.open_directory(os.path.realpath(workspace))) as root_fd,
            files.closing_fd(open_below(root_fd, _resolve_inside(directory, workspace), workspace)) as fd,
        ):
            _remove_stale(fd, directory)
            _move_into_place(found, names, fd, directory)
    finally:
        remove_tree(staging)
    return [posixpath.normpath(os.path.relpath(os.path.join(directory, name), workspace)) for name in names], totals


def open_below(fd: int, path: str, top: str) -> int:
    """Open a directory, created with its parents if missing, never through a link.

    Args:
        path: below the base, normalized; empty or ``.`` for the base itself.
        top: the path of the base, for messages.

    Raises:
        UntrustedFile: a component is not a directory.
        DlappError: it cannot be created.
    """
    at = os.dup(fd)
    try:
        for name in path.split("/") if path not in ("", ".") else ():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, dir_fd=at)
            inner = files.open_directory(name, dir_fd=at, path=os.path.join(top, path))
            os.close(at)
            at = inner
    except OSError as error:
        os.close(at)
        if isinstance(error, DlappError):
            raise
        raise explained(error, os.path.join(top, path), "made") from error
    return at


def _move_into_place(found: str, names: Sequence[str], fd: int, directory: str) -> None:
    """Move the fetched files ``names``, all that are in the private directory ``found``, to the directory ``fd``;
    ``directory`` is its path, for messages.
    """
    try:
        with files.closing_fd(files.open_directory(found)) as found_fd:
            _rename(names, found_fd, fd, directory)
        return
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
    staging = f"{STAGING}{os.urandom(8).hex()}"
    path = os.path.join(directory, staging)
    with explaining(path, "made"):
        os.mkdir(staging, 0o700, dir_fd=fd)
    try:
        with files.closing_fd(files.open_directory(staging, dir_fd=fd, path=path)) as staging_fd:
            _lock(staging_fd)
            _copy(found, staging_fd, path)
            _rename(names, staging_fd, fd, directory)
    finally:
        remove_tree(path, dir_fd=fd, name=staging)


def _rename(names: Sequence[str], source_fd: int, fd: int, directory: str) -> None:
    """Rename entries from one directory to the directory ``fd``, whose path is ``directory``, for messages.

    Raises:
        OSError: EXDEV; it is on another file system.
        DlappError: a name exists already, or cannot be renamed.
    """
    for name in names:
        path = os.path.join(directory, name)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.stat(name, dir_fd=fd, follow_symlinks=False)
                raise DlappError(f"{shown(path)} already exists, where input would be placed")
            os.rename(name, name, src_dir_fd=source_fd, dst_dir_fd=fd)
        except OSError as error:
            if error.errno == errno.EXDEV:
                raise
            raise explained(error, path, "written") from error


def _copy(found: str, fd: int, directory: str) -> None:
    """Copy everything in the private directory ``found`` to the directory ``fd``, even if the names there change
    meanwhile; ``directory`` is its path, for messages.
    """
    nodes = nodes_to_fetch(found)[1:]
    for node in nodes:
        above, name = os.path.split(node.name)
        with files.closing_fd(open_below(fd, node.name if node.is_dir else above, directory)) as at:
            if not node.is_dir:
                # By a descriptor and one name, under which both kinds are created: no link is followed.
                copy_nodes([node._replace(name=name)], f"/proc/self/fd/{at}", done=lambda count: None)
    for node in reversed(nodes):
        if node.is_dir:
            with files.closing_fd(open_below(fd, node.name, directory)) as at:
                os.fchmod(at, node.mode & 0o777)
                os.utime(at, ns=(node.mtime_ns, node.mtime_ns))


def _remove_stale(fd: int, directory: str) -> None:
    """Remove leftovers in a directory of a session that was killed while copying."""
    with explaining(directory, "read"):
        names = os.listdir(fd)
    for name in names:
        if name.startswith(STAGING):
            path = os.path.join(directory, name)
            with (
                contextlib.suppress(OSError, DlappError),
                files.closing_fd(files.open_directory(name, dir_fd=fd, path=path)) as left,
            ):
                if _lock(left):
                    remove_tree(path, dir_fd=fd, name=name)


def _lock(fd: int) -> bool:
    """Lock a directory while it is open; return False if another session has, or it cannot be locked."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
