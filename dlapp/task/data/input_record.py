"""Record of the input that dlapp-shell fetched into a workspace.

A run of the same workspace fetches its own input: if what the shell fetched were also packed, the two would conflict.
Every submission reads the record, so this module loads nothing of fetching.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
from collections.abc import Sequence

from dlapp.system import files
from dlapp.values.spec import AppSpec

_MAX_RECORD_BYTES = 64 << 20


def record_paths(records: str, workspace: str, paths: Sequence[str]) -> None:
    """Add paths (relative to ``workspace``) to its record, a file in the directory ``records``.

    Two shells may fetch into one workspace at the same time; the directory is locked for some milliseconds.
    """
    import fcntl

    with files.closing_fd(files.open_directory(records, owners={os.geteuid()})) as directory:
        fcntl.flock(directory, fcntl.LOCK_EX)
        known = set(_read(records, workspace))
        if known >= set(paths):
            return
        path = _record(records, workspace)
        temporary = f"{path}.{os.getpid()}"
        with open(temporary, "w", encoding="utf-8", errors="surrogateescape") as file:
            json.dump({"workspace": workspace, "brought": sorted(known | set(paths))}, file, ensure_ascii=False)
        os.rename(temporary, path)


def recorded_paths(records: str, spec: AppSpec) -> list[str]:
    """Return the recorded paths that still exist in the workspace and belong to the spec's input."""
    places = [posixpath.normpath(one.input_path) for one in spec.inputs]
    return [
        path
        for path in _read(records, spec.workspace)
        if (path in places or posixpath.dirname(path) in ("" if place == "." else place for place in places))
        and os.path.lexists(os.path.join(spec.workspace, path))
    ]


def _read(records: str, workspace: str) -> list[str]:
    try:
        data = files.read_file(_record(records, workspace), owners={os.geteuid()}, max_bytes=_MAX_RECORD_BYTES)
        return list(json.loads(data.decode("utf-8", "surrogateescape"))["brought"])
    except FileNotFoundError:
        return []
    except (ValueError, KeyError, TypeError, RecursionError, files.UntrustedFile):
        # An unreadable record is empty; if there is a conflict then, its message names the file.
        return []


def as_pattern(path: str) -> str:
    """Return the gitignore pattern that matches exactly one path, relative to the workspace."""
    return "/" + "".join(map(_escaped, path))


def _escaped(character: str) -> str:
    if character.isspace() and character != " ":
        return f"[{character}]"  # at the end of a pattern blanks are dropped, and a backslash preserves only a space
    return f"\\{character}" if character in "\\*?[] !#" else character


def _record(records: str, workspace: str) -> str:
    digest = hashlib.blake2b(os.fsencode(workspace), digest_size=16).hexdigest()
    return os.path.join(records, f"{digest}.json")
