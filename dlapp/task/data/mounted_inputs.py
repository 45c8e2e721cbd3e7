"""Inputs with ``mode=mount``: a directory of a shared file system appears at its place in the workspace; nothing is
copied.

Only directories in ``shared_paths`` of the node's policy are allowed: the files are read as the container's user, but
dockerd mounts the directory as root. A plain process gets a symbolic link.
"""

from __future__ import annotations

import os

from dlapp.errors import DlappError, NotFound, UsageError
from dlapp.locations import local_path, shown
from dlapp.node_policy import NodePolicy, shared_path_problem
from dlapp.storage.open import open_location
from dlapp.storage.tree import explaining, make_directories
from dlapp.values.spec import InputSpec


def find_mounted(section: InputSpec, policy: NodePolicy) -> str | None:
    """Return the directory of an input with all links resolved; None if an optional input is missing.

    Raises:
        NotFound: it does not exist.
        UsageError: it is not a directory, or this node does not allow it.
    """
    (source,) = section.sources
    entries = open_location(source).matches(source)
    if not entries and section.optional:
        return None
    if not entries:
        raise NotFound(f"{shown(source)}: nothing is there")
    if len(entries) > 1 or not entries[0].is_dir:
        raise UsageError(f"{shown(source)} is not one directory, and mode=mount takes one")
    path = os.path.realpath(local_path(entries[0].location))
    if problem := shared_path_problem(path, policy.shared_paths):
        raise UsageError(problem)
    return path


def place_mounted(path: str | None, into: str, mounts: list[tuple[str, str]] | None) -> None:
    """Create the path at which the payload finds the directory of an input.

    Args:
        path: the directory; None creates an empty one.
        into: absolute path in the workspace.
        mounts: the mounts of the container, to which this one is added; None if the payload is a plain process.

    Raises:
        DlappError: the path exists already.
    """
    if path is None or mounts is not None:
        make_directories(into)
        if path is not None and mounts is not None:
            mounts.append((path, into))
        return
    make_directories(os.path.dirname(into))
    if os.path.lexists(into):
        raise DlappError(f"{shown(into)} is there, where the input would be")
    with explaining(into, "made"):
        os.symlink(path, into)
